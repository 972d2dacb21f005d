"""The command line on the emulator, as a person uses it: optimise, apply, verify, capture, facts, doctor."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from command import Done, environment, run

from cuda_agent.judge.evidence import schema
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module
from cuda_agent.toolchain import nvcc
from patience import patience

SOFTMAX = Path(__file__).parents[1] / "corpus" / "softmax_rows.cu"
SMALL = ["--device", "emulator", "--args", "256 96 1", "--json"]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")


@pytest.fixture(scope="module")
def optimised(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """One search over a copy of softmax_rows.cu, applied, with its trajectory."""
    folder = tmp_path_factory.mktemp("optimised")
    shutil.copy(SOFTMAX, folder)
    argv = ["optimize", "softmax_rows.cu", *SMALL, "--candidates", "6", "--apply", "--trajectory", "steps.jsonl"]
    argv += ["--html", "page.html", "--evidence", "proof"]
    return folder, run(argv, folder, environment(cache)).check(0)


def test_optimize_finds_a_row_a_warp(optimised: tuple[Path, Done]) -> None:
    found = optimised[1].json
    assert found["status"] == "verified"
    assert found["evidence_level"] == "emulated"
    assert found["inputs"].startswith("captured")
    assert found["timing"] is None
    assert not found["faster"]
    assert "__shfl_xor_sync" in found["diff"]
    assert found["traffic"]["sectors_after"] < 0.5 * found["traffic"]["sectors_before"]
    built = {gate["id"]: gate["status"] for gate in found["gates"]}
    assert {built[gate] for gate in ("G0", "G1", "G2", "G3", "G4", "G6", "G7", "G14")} == {"pass"}
    assert all(set(gate) >= {"id", "name", "status", "detail"} for gate in found["gates"])


def test_the_winner_has_evidence_and_a_page(optimised: tuple[Path, Done]) -> None:
    folder, done = optimised
    assert list(schema.misfits(done.json)) == []
    assert str(folder) not in json.dumps(done.json["record"])
    kept = schema.read(folder / "proof" / "softmax_rows.json")
    assert kept == {key: done.json[key] for key in kept}
    html = (folder / "page.html").read_text()
    assert html.count("<article>") == 1
    assert "<code>softmax_rows</code>" in html
    assert "__shfl_xor_sync" in html
    assert "Predicted memory traffic" in html
    assert "not measured" in html


def test_apply_writes_the_verified_text(optimised: tuple[Path, Done]) -> None:
    folder, done = optimised
    text = (folder / "softmax_rows.cu").read_text()
    assert "__shfl_xor_sync" in text
    added = [line[1:] for line in done.json["diff"].splitlines() if line.startswith("+") and line[1:2] != "+"]
    assert set(added) <= set(text.splitlines())
    assert not module(Document("softmax_rows.cu", text)).kernel("softmax_rows").has_error


def test_the_trajectory_replays_to_the_same_text(optimised: tuple[Path, Done]) -> None:
    """Every candidate's text is there whole; the last line names the one that was written."""
    folder, done = optimised
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert [steps[0]["step"], steps[-1]["step"]] == ["start", "end"]
    texts = {step["id"]: step["text"] for step in steps if step["step"] == "candidate"}
    assert texts[steps[-1]["candidate"]] == (folder / "softmax_rows.cu").read_text()
    assert steps[-1]["status"] == "verified"
    assert len(texts) >= done.json["tried"]
    assert str(folder) not in (folder / "steps.jsonl").read_text()


def test_progress_is_on_stderr(optimised: tuple[Path, Done]) -> None:
    err = optimised[1].err
    assert "row-per-warp" in err
    assert "now has the verified kernel softmax_rows" in err


def test_a_second_search_is_fast(optimised: tuple[Path, Done], cache: Path, tmp_path: Path) -> None:
    """Nothing is compiled twice: what a cold search spends most of its time with comes from the cache."""
    shutil.copy(SOFTMAX, tmp_path)
    argv = ["optimize", "softmax_rows.cu", *SMALL, "--candidates", "6"]
    began = time.monotonic()
    again = run(argv, tmp_path, environment(cache)).check(0)
    assert again.json["diff"] == optimised[1].json["diff"]
    assert time.monotonic() - began < patience(30)
    # The same question, though the program is run and captured again: nothing is judged.
    report = ["--report", "search.html"]
    known = run([*argv, *report], tmp_path, environment(cache)).check(0)
    assert "searched before with the same inputs" in known.err
    assert "full verdict" not in known.err
    assert known.json["gates"] == again.json["gates"]
    page = (tmp_path / "search.html").read_text()
    assert "Tree of candidates" in page
    assert "row-per-warp(lanes=32)" in page
    fresh = run([*argv[:-2], "--candidates", "1", "--fresh"], tmp_path, environment(cache)).check(0)
    assert "full verdict" in fresh.err


def test_verify_takes_the_rewritten_file(optimised: tuple[Path, Done], cache: Path, tmp_path: Path) -> None:
    """The launch differs in the two files: the candidate's own program is run, and the original's capture stays."""
    shutil.copy(SOFTMAX, tmp_path / "good.cu")
    shutil.copy(optimised[0] / "softmax_rows.cu", tmp_path / "better.cu")
    argv = ["verify", "good.cu", "better.cu", "--device", "emulator", "--json"]
    found = run([*argv, "--kernel", "softmax_rows", "--args", "256 96 1"], tmp_path, environment(cache)).check(0).json
    assert found["status"] == "verified"
    assert found["evidence_level"] == "emulated"
    assert found["candidate"]["launch"]["grid"][0] in ("gx * 32", "32")
    saved = json.loads((tmp_path / ".cuda-agent/captures/softmax_rows/launch.json").read_text())
    assert [launch["grid"] for launch in saved["launches"]] == [[1, 1, 1]]
    # A second time without --args: the captured inputs are found again.
    again = run(argv, tmp_path, environment(cache)).check(0).json
    assert again["inputs"] == found["inputs"]


def test_a_screen_without_json(optimised: tuple[Path, Done], cache: Path, tmp_path: Path) -> None:
    shutil.copy(SOFTMAX, tmp_path / "good.cu")
    shutil.copy(optimised[0] / "softmax_rows.cu", tmp_path / "better.cu")
    argv = ["verify", "good.cu", "better.cu", "--device", "emulator", "--args", "40 33 1"]
    out = run(argv, tmp_path, environment(cache)).check(0).out
    assert "not measured" in out
    assert "__shfl_xor_sync" in out
    assert "G3" in out
    assert "\x1b[" not in out  # no colours into a pipe


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_capture_of_a_makefile_with_nvcc(cache: Path, tmp_path: Path) -> None:
    """The command calls nvcc, which this PATH does not have: ours compiles for the emulator."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "make", "g++", "as", "ld", "addr2line", "cat", "env", "rm", "python3", "c++", "gcc", "ar"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(SOFTMAX, project / "main.cu")
    (project / "Makefile").write_text("run: main\n\t./main 40 33 2\nmain: main.cu\n\tnvcc -O3 $< -o $@\n")
    env = environment(cache, PATH=str(tools))
    done = run(["capture", "--device", "emulator", "--json", "--", "sh", "-c", "make run"], project, env).check(0)
    found = done.json
    assert found["status"] == "done"
    assert [kernel["kernel"] for kernel in found["kernels"]] == ["softmax_rows"]
    assert found["kernels"][0]["recorded"] == 2
    assert found["builds"] == 1
    # What was captured is used: no --args, no run.
    again = run(["optimize", "main.cu", "--device", "emulator", "--candidates", "1", "--json"], project, env).check(0)
    assert again.json["inputs"].startswith("captured: 2 launches")


def test_capture_passes_the_programs_failure_on(cache: Path, tmp_path: Path) -> None:
    argv = ["capture", "--device", "emulator", "--json", "--", "sh", "-c", "echo no such data; exit 7"]
    done = run(argv, tmp_path, environment(cache)).check(2)
    assert done.json["exit_code"] == 7
    assert "exit code 7" in done.err
    assert "no such data" in done.err


def test_facts(cache: Path, tmp_path: Path) -> None:
    try:
        nvcc.find()
    except nvcc.ToolMissing as error:
        pytest.skip(str(error))
    shutil.copy(SOFTMAX, tmp_path)
    found = run(["facts", "softmax_rows.cu", "--arch", "sm_90", "--json"], tmp_path, environment(cache)).check(0).json
    assert found["arch"] == "sm_90"
    row = found["kernels"][0]
    assert row["kernel"] == "softmax_rows"
    assert 8 < row["registers"] < 255
    assert row["occupancy"]["max_warps"] == 64
    table = run(["facts", "softmax_rows.cu", "--arch", "sm_90"], tmp_path, environment(cache)).check(0).out
    assert str(row["registers"]) in table
    assert "softmax_rows" in table


def test_settings_on_the_command_line(cache: Path, tmp_path: Path) -> None:
    shutil.copy(SOFTMAX, tmp_path)
    wrong = run(["doctor", "--set", "sandbocks=off"], tmp_path, environment(cache)).check(3)
    assert "cudaAgent.sandbox" in wrong.err
    none = run(["facts", "softmax_rows.cu", "--set", "nvccPath=/bin/false"], tmp_path, environment(cache)).check(2)
    assert "cudaAgent.nvccPath is /bin/false" in none.err
    asked = ["device=emulator", "arguments=64 96 1", "budgetCandidates=1", "captureLaunches=1"]
    settings = [word for setting in asked for word in ("--set", setting)]
    found = run(["optimize", "softmax_rows.cu", "--json", *settings], tmp_path, environment(cache)).check(0).json
    assert found["inputs"].startswith("captured: 1 launch")
    assert found["tried"] == 1


def test_extra_flags_on_the_command_line(cache: Path, tmp_path: Path) -> None:
    try:
        nvcc.find()
    except nvcc.ToolMissing as error:
        pytest.skip(str(error))
    shutil.copy(SOFTMAX, tmp_path)
    argv = ["facts", "softmax_rows.cu", "--json", "--set", "extraFlags=-maxrregcount 24", "--set", "arch=sm_80"]
    found = run(argv, tmp_path, environment(cache)).check(0).json
    assert (found["arch"], found["kernels"][0]["registers"]) == ("sm_80", 24)


def test_bench_needs_a_gpu(cache: Path, tmp_path: Path) -> None:
    shutil.copy(SOFTMAX, tmp_path)
    done = run(["bench", "softmax_rows.cu", *SMALL], tmp_path, environment(cache)).check(2)
    assert "does not measure time" in done.json["error"]
    assert "GPU" in done.json["error"]


def test_doctor(cache: Path, tmp_path: Path) -> None:
    found = run(["doctor", "--json"], tmp_path, environment(cache)).check(0).json
    rows = {row["thing"]: row for row in found["checks"]}
    assert rows["Python"]["ok"]
    assert any("emulator" in thing for thing in rows)
    assert all(row["ok"] or row["todo"] for row in rows.values())
    assert "doctor" in run(["doctor"], tmp_path, environment(cache)).check(0).out
