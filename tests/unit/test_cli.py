"""The command line's own parts, in this process: arguments, exit codes, errors as JSON, the facts of a machine
without a compiler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cuda_agent import cli, errors
from cuda_agent.cli import doctor, flags, parser
from cuda_agent.progress import Progress
from cuda_agent.toolchain import nvcc, nvrtc

Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("4096", 4096), ("1K", 1024), ("256M", 256 << 20), ("1.5g", 3 << 29)]
)
def test_sizes(text: str, size: int) -> None:
    assert flags.size(text) == size


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (errors.UsageError("no"), 3, "error"),
        (errors.NoInputs("no"), 2, "undecided"),
        (errors.ToolMissing("no"), 2, "undecided"),
        (errors.Cancelled("no"), 130, "undecided"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_has_its_exit_code_and_the_contracts_fields(
    error: errors.CudaAgentError, code: int, status: str, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    def fails(*_: object) -> int:
        raise error

    monkeypatch.setattr(doctor, "run", fails)
    assert cli.main(["doctor", "--json"]) == code
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["status"] == status
    assert set(found) >= {"status", "evidence_level", "inputs", "gates", "timing", "diff"}
    assert found["kind"] == type(error).__name__
    assert err == "cuda-agent: no\n"


def test_the_compilers_words_follow_the_sentence(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    def fails(*_: object) -> int:
        raise errors.CompileError("k.cu does not compile.", "k.cu:3: error: expected ;")

    monkeypatch.setattr(doctor, "run", fails)
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err.splitlines() == ["cuda-agent: k.cu does not compile.", "k.cu:3: error: expected ;"]


def test_ctrl_c_stops_once_and_leaves_twice(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    before = signal.getsignal(signal.SIGINT)

    def once(arguments: object, progress: object, stop: Any) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_set()
        return 2

    def twice(arguments: object, progress: object, stop: Any) -> int:
        once(arguments, progress, stop)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second Ctrl-C leaves at once")

    for command in (once, twice):
        monkeypatch.setattr(doctor, "run", command)
        assert cli.main(["doctor"]) == 130
        assert "stopping" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_facts_without_a_compiler_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setattr(nvcc, "_places", lambda: iter(()))
    monkeypatch.setattr(nvrtc, "installed", lambda: False)
    (tmp_path / "k.cu").write_text("__global__ void k(float *x) { x[0] = 1; }\n")
    assert cli.main(["facts", str(tmp_path / "k.cu"), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "ToolMissing"
    assert "nvcc was not found" in found["error"]
    assert "install" in found["error"].lower()


def test_run_and_args_exclude_each_other(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k(float *x) { x[0] = 1; }\n")
    assert cli.main(["bench", str(tmp_path / "k.cu"), "--run", "make run", "--args", "3"]) == 3
    assert "--run is the whole command" in capsys.readouterr().err
    assert cli.main(["bench", str(tmp_path / "k.cu"), "--args", "'"]) == 3


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"event": "phase", "message": "compiling", "percentage": 5}, "[  5 %] compiling\n"),
        ({"type": "output", "text": "PASS"}, "PASS\n"),
        (
            {"type": "launch", "kernel": "k", "grid": [8, 1, 1], "block": [16, 4, 1], "bytes": 3 << 19},
            "k<<<8, (16, 4)>>>: 1.5 MiB kept\n",
        ),
        (
            {"type": "launch", "kernel": "k", "grid": [1, 1, 2], "block": [1, 1, 1], "bytes": 0, "skipped": "a graph"},
            "k<<<(1, 1, 2), 1>>>: not kept, a graph\n",
        ),
        ({"event": "gate", "status": "not-run", "message": "G8: not run", "percentage": 9}, ""),
        ({"event": "gate", "status": "not-run", "undecided": True, "message": "G2", "percentage": 9}, "[  9 %] G2\n"),
        ({"event": "bundle", "kernel": "k"}, ""),
    ],
)  # fmt: skip
def test_progress_in_plain_lines(event: Mapping[str, Any], line: str, capsys: Capsys) -> None:
    with Progress() as progress:
        progress.event(event)
        progress.event(event)  # said once
    out, err = capsys.readouterr()
    assert (out, err) == ("", line)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["compare", "x.cu"], "needs a language model"),
        (["compare", "x.cu", "--policies", "luck"], "not ['luck']"),
        (["compare", "x.cu", "--policies", ","], "--policies are"),
        (["trajectories", "export"], "needs --out"),
        (["trajectories", "list", "--out", "x"], "is for `trajectories export`"),
        (["trajectories", "show", "nothing"], "is no recorded search"),
        (["replay", "nothing"], "is no recorded search"),
    ],
)
def test_what_the_records_commands_refuse(
    argv: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.cu").write_text("")
    assert cli.main(argv) == 3
    assert words in capsys.readouterr().err


def test_no_search_was_recorded_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))
    assert cli.main(["trajectories"]) == 0
    assert "no search was recorded yet" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(parser.COMMANDS.keys() - set(parser.ELSEWHERE)))
def test_every_command_has_a_file(name: str, capsys: Capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_a_command_imports_no_other_and_nothing_heavy() -> None:
    code = (
        "import sys\nfrom cuda_agent import cli\n"
        "try: cli.main(['optimize', '--help'])\nexcept SystemExit: pass\n"
        "print(*(name for name in sys.modules if name.startswith('cuda_agent.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    ours = {name.removeprefix("cuda_agent.") for name in done.stderr.split()}
    assert ours == {"cli", "cli.parser", "cli.flags", "cli.answers", "cli.optimize", "config", "errors", "keys"}
