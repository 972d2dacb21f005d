"""Folders, progress, results and names: the parts of the MCP server that need no connection."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import mcp_types as types
import pytest

from cuda_agent import cli
from cuda_agent.config import Settings
from cuda_agent.errors import SourceError, Untrusted, UsageError
from cuda_agent.judge.evidence import schema
from cuda_agent.mcp import results, roots, tasks
from cuda_agent.mcp.app import Tools
from cuda_agent.mcp.calls import Caller, Calls
from cuda_agent.mcp.jobs import Progress
from cuda_agent.mcp.tools import tools
from cuda_agent.trust import Trust

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "project"
    made.mkdir()
    (made / "k.cu").write_text("__global__ void k() {}\n")
    return made


async def silent(percentage: float, message: str) -> None:
    return


# ---------------------------------------------------------------- folders


def test_a_file_is_found_below_an_allowed_folder_only(tmp_path: Path, folder: Path) -> None:
    (folder / "deep").mkdir()
    (tmp_path / "secret.cu").touch()
    (folder / "link.cu").symlink_to(tmp_path / "secret.cu")
    (folder / "up").symlink_to(tmp_path)
    (folder / "inside.cu").symlink_to(folder / "k.cu")
    allowed = [folder, folder / "deep"]
    assert roots.find("k.cu", allowed) == (folder / "k.cu", folder)
    assert roots.find(str(folder / "k.cu"), allowed) == (folder / "k.cu", folder)
    assert roots.find("inside.cu", allowed) == (folder / "k.cu", folder)
    for outside in ("../secret.cu", "link.cu", "up/secret.cu", "/etc/passwd", str(tmp_path / "not there.cu")):
        with pytest.raises(UsageError, match="outside of the folders"):
            roots.find(outside, allowed)
    for missing in ("no.cu", "deep", ".", "k.cu/k.cu"):
        with pytest.raises(SourceError, match="no such file"):
            roots.find(missing, allowed)
    for broken in ("a\0b", "x" * 5000):
        with pytest.raises(SourceError):
            roots.find(broken, allowed)
    os.mkfifo(folder / "pipe.cu")
    with pytest.raises(SourceError, match="no such file"):
        roots.find("pipe.cu", allowed)


def test_the_deepest_folder_is_where_a_job_runs(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "k.cu").touch()
    assert roots.find("deep/k.cu", [folder, folder / "deep"])[1] == folder / "deep"


class Session:
    """A client that declares roots and answers with `uris`, or not at all."""

    can_send_request = True
    client_capabilities = types.ClientCapabilities(roots=types.RootsCapability())

    def __init__(self, *uris: str, refuses: Exception | None = None) -> None:
        self.uris, self.refuses = uris, refuses

    async def send_request(self, request: object, shape: object) -> types.ListRootsResult:
        if self.refuses:
            raise self.refuses
        return types.ListRootsResult(roots=[types.Root(uri=uri) for uri in self.uris])


async def test_folders_come_from_the_command_line_else_the_client_else_where_it_started(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaced = tmp_path / "with space"
    spaced.mkdir()
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    client = Session(spaced.as_uri(), "file://elsewhere/x")
    assert await roots.folders([folder], client) == [folder]  # type: ignore[arg-type]
    assert await roots.folders([], client) == [spaced]  # type: ignore[arg-type]
    assert await roots.folders([], Session()) == [here]  # type: ignore[arg-type]
    assert await roots.folders([], Session(refuses=TimeoutError())) == [here]  # type: ignore[arg-type]


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("", "model:mcp"),
        ("claude-code", "model:claude-code"),
        ("Some Host\n(beta) `x`", "model:Some-Host-beta-x"),
        ("ä", "model:mcp"),
        ("x" * 99, "model:" + "x" * 40),
    ],
)
def test_what_a_client_writes_is_a_models_text(name: str, origin: str) -> None:
    assert Caller([], name, silent).origin == origin


async def test_trust_can_be_given_and_taken_while_it_runs(folder: Path) -> None:
    made, caller = Calls(Settings()), Caller([folder], "x", silent)
    with pytest.raises(Untrusted, match=r"cuda-agent trust /.*project"):
        await made.facts(caller, {"file": "k.cu"})
    Trust().remember(folder, True)
    assert (await made._source(caller, {"file": "k.cu"})).path == folder / "k.cu"
    Trust().remember(folder, False)
    with pytest.raises(Untrusted):
        await made.verify(caller, {"file": "k.cu", "candidate": ""})


async def test_only_the_persons_own_command_is_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Trust().remember(folder, True)
    caller = Caller([folder], "x", silent)
    ran: list[tuple[str, str]] = []

    async def run(self: Calls, kind: str, caller: Caller, source: object, ask: tasks.Ask, limit: float) -> object:
        ran.append((ask.settings.run_command, ask.settings.arguments))
        return {"result": {}}

    monkeypatch.setattr(Calls, "_run", run)
    own, any_ = Calls(Settings(run_command="make run")), Calls(Settings(), run_any=True)
    with pytest.raises(UsageError, match="only the person's own run command"):
        await own.capture(caller, {"file": "k.cu", "command": "make run; id"})
    with pytest.raises(UsageError, match="leave `args` out"):
        await any_.capture(caller, {"file": "k.cu", "command": "./a", "args": "1"})
    with pytest.raises(UsageError, match="cannot be split"):
        await any_.capture(caller, {"file": "k.cu", "command": "'"})
    await own.capture(caller, {"file": "k.cu"})
    await own.capture(caller, {"file": "k.cu", "command": "make run"})
    await own.capture(caller, {"file": "k.cu", "args": "8 9"})
    await any_.capture(caller, {"file": "k.cu", "command": "./other 3"})
    assert ran == [("make run", ""), ("make run", ""), ("", "8 9"), ("./other 3", "")]


async def test_a_command_runs_in_a_folder_that_is_trusted_itself(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "k.cu").touch()
    Trust().remember(folder / "deep", True)
    with pytest.raises(Untrusted, match="project is not trusted"):
        await Calls(Settings(run_command="make")).capture(Caller([folder], "x", silent), {"file": "deep/k.cu"})


async def test_a_job_asks_for_what_else_it_would_compile_or_run(folder: Path) -> None:
    """The source that a header's kernel is compiled in, and the folder that the run command runs in."""
    for name in ("deep", "other"):
        (folder / name).mkdir()
    (folder / "deep" / "k.cuh").write_text("__global__ void k(float *x) { x[0] = 1; }\n")
    (folder / "other" / "x.cu").write_text('#include "../deep/k.cuh"\nvoid go(float *d) { k<<<1, 32>>>(d); }\n')
    (folder / "deep" / "k.cu").write_text("__global__ void k(float *x) { x[0] = 1; }\n")
    Trust().remember(folder / "deep", True)
    caller = Caller([folder], "x", silent)
    with pytest.raises(Untrusted, match="other is not trusted"):
        await Calls(Settings("emulator")).facts(caller, {"file": "deep/k.cuh"})
    running = Calls(Settings("emulator", run_command="touch ran"))
    for call in (running.bench, running.optimise):
        with pytest.raises(Untrusted, match="project is not trusted"):
            await call(caller, {"file": "deep/k.cu"})
    assert not (folder / "ran").exists()


async def test_a_rewrite_is_given_once(folder: Path) -> None:
    Trust().remember(folder, True)
    for given in ({}, {"candidate": "", "candidate_file": "k.cu"}):
        with pytest.raises(UsageError, match="either as"):
            await Calls(Settings()).verify(Caller([folder], "x", silent), {"file": "k.cu", **given})


async def test_what_goes_wrong_is_the_tools_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    server = Tools(Calls(Settings()), [folder])

    async def fails(*given: object) -> object:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(server, "_call", fails)
    found = await server.call(None, types.CallToolRequestParams(name="facts"))  # type: ignore[arg-type]
    assert found.is_error
    assert "internal error: ZeroDivisionError('a bug')" in found.model_dump_json()
    said = capsys.readouterr()
    assert "Traceback" in said.err
    assert said.out == ""


async def test_text_that_is_not_utf8_can_be_sent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Tools(Calls(Settings()), [folder])

    async def answers(*given: object) -> object:
        return {"diff": "caf\udce9"}

    monkeypatch.setattr(server, "_call", answers)
    found = await server.call(None, types.CallToolRequestParams(name="proposals"))  # type: ignore[arg-type]
    assert json.loads(found.model_dump_json(by_alias=True))["structuredContent"] == {"diff": "caf?"}


# ---------------------------------------------------------------- progress and results


async def test_progress_rises_and_the_newest_word_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuda_agent.mcp.jobs.INTERVAL_S", 0.01)
    said: list[tuple[float, str]] = []

    async def say(percentage: float, message: str) -> None:
        said.append((percentage, message))

    progress = Progress(say)
    forward = asyncio.create_task(progress.forward())
    for notice in (
        {"percentage": 5, "message": "a"},
        {"percentage": 5, "message": "b", "best": "2×"},
        {"percentage": 100, "message": "c"},
        {"percentage": 1, "message": "d"},
        {"percentage": 1, "message": "d"},
        {"percentage": 2, "message": ""},
    ):
        progress.take("progress", notice)
        await asyncio.sleep(0.03)
    progress.take("log", {"message": "to stderr"})
    for word in ("e", "f", "g"):
        progress.set(50, word)
    await asyncio.sleep(0.03)
    forward.cancel()
    assert [word for _, word in said] == ["a", "b · best 2×", "c", "d", "g"]
    assert [number for number, _ in said] == pytest.approx([5, 5.01, 99, 99.01, 99.02])


def test_every_tool_that_runs_something_says_that_it_needs_trust() -> None:
    for name, tool in tools().items():
        assert ("Needs a trusted folder." in (tool.description or "")) == (name in tasks.TASKS)
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint == (name in ("facts", "proposals"))
    assert list(Calls(Settings()).handlers) == list(tools())


def test_schemas_carry_the_definitions_they_use_and_no_others() -> None:
    made = results.verdict_schema()
    assert {"gate", "timing", "candidate", "interval"} <= made["$defs"].keys()
    assert not {"record", "source", "measurement"} & made["$defs"].keys()
    assert set(results.VERDICT) < schema.schema()["properties"].keys()


def test_the_page_names_every_tool_and_argument() -> None:
    page = (Path(__file__).parents[3] / "docs" / "mcp.md").read_text(encoding="utf-8")
    for name, tool in tools().items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert all(f"`{argument}`" in row for argument in tool.input_schema["properties"]), name


# ---------------------------------------------------------------- the command line


def test_trust_is_given_and_taken_on_the_command_line(folder: Path, capsys: Capsys) -> None:
    assert cli.main(["trust", str(folder)]) == 0
    assert Trust().covers(folder / "deep")
    assert f"{folder} is trusted now" in capsys.readouterr().out
    assert cli.main(["trust", str(folder), "--revoke", "--json"]) == 0
    assert not Trust().covers(folder)
    assert json.loads(capsys.readouterr().out) == {"status": "done", "folder": str(folder), "trusted": False}
    assert cli.main(["trust", str(folder / "k.cu")]) == 3
    assert "is not a folder" in capsys.readouterr().err


def test_trust_that_cannot_be_kept_is_said(folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nowhere")
    assert cli.main(["trust", str(folder)]) == 2
    assert "cannot be kept in /proc/nowhere" in capsys.readouterr().err


def test_without_the_sdk_it_says_what_to_install(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cuda_agent.mcp.app", raising=False)
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    assert cli.main(["mcp"]) == 2
    said = capsys.readouterr()
    assert "pip install 'cuda-agent-lsp[mcp]'" in said.err
    assert said.out == ""


def test_a_folder_that_is_not_there_is_said(capsys: Capsys) -> None:
    assert cli.main(["mcp", "/no/such/folder"]) == 3
    assert "/no/such/folder is not a folder" in capsys.readouterr().err
