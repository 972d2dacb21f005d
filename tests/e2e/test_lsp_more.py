"""What some clients ask for beyond the common way: virtual documents, inlay hints, diagnostics, run commands."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from editor import Editor, neovim, vscode
from lsprotocol import types
from test_lsp_flow import WHERE, proposal

from conftest import Starter
from cuda_agent.errors import ToolMissing
from cuda_agent.toolchain import nvcc

SPILLS = """__global__ void __launch_bounds__(1024, 2) k(float *x, int n) {
    float a[64];
    for (int i = 0; i < 64; i++) a[i] = x[i * n];
    for (int j = 0; j < n; j++)
        for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i + 1) & 63] + x[i + j];
    for (int i = 0; i < 64; i++) x[i * n + 1] = a[i];
}
void go(float *d) { k<<<1, 2048>>>(d, 3); }
"""


def have_nvcc() -> bool:
    try:
        nvcc.find()
    except ToolMissing:
        return False
    return True


needs_nvcc = pytest.mark.skipif(not have_nvcc(), reason="needs nvcc for the compiler's facts")


@needs_nvcc
async def test_facts_hints_and_diagnostics_of_the_compiler(started: Starter, workspace: Path) -> None:
    path = workspace / "spills.cu"
    path.write_text("// 🚀\n" + SPILLS)
    editor = await started(vscode(), settings={"inlayHints": True, "hints": ["spills", "launch"]})
    uri = editor.open(path)
    title = await editor.until_lens(uri, "registers", 30.0)
    hover = await editor.hover(uri, editor.at(uri, "k(float"))
    assert "registers a thread" in hover

    async def published() -> Any:
        return editor.client.diagnostics.get(uri)

    found = await editor.until("diagnostics", published, 5.0)
    assert {item.code for item in found} <= {"spills", "launch"}
    launch = next(item for item in found if item.code == "launch")
    assert launch.severity == types.DiagnosticSeverity.Information
    assert launch.range.start.line == editor.at(uri, "void go").line
    where = types.Range(types.Position(0, 0), types.Position(20, 0))
    params = types.InlayHintParams(types.TextDocumentIdentifier(uri), where)
    (hint,) = await editor.client.text_document_inlay_hint_async(params) or []
    assert hint.label == title

    editor.edit(uri, "__launch_bounds__(1024, 2)", "__launch_bounds__(256)")
    assert "(before this edit)" in (await editor.titles(uri))[0]

    async def changed() -> str:
        text = await editor.hover(uri, editor.at(uri, "k(float"))
        return text if "registers a thread (+" in text else ""

    await editor.until("the change since the text before", changed, 20.0)
    editor.edit(uri, "float a[64];", "float a[64]")

    async def refused() -> str:
        text = await editor.hover(uri, editor.at(uri, "k(float"))
        return text if "no compiler facts" in text else ""

    assert "error" in await editor.until("the compiler's complaint", refused, 20.0)
    editor.client.text_document_did_close(types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri)))

    async def cleared() -> bool:
        return len(editor.client.diagnostics[uri]) == 0

    await editor.until("cleared diagnostics", cleared, 5.0)


@needs_nvcc
async def test_no_diagnostics_unless_asked_for(started: Starter, workspace: Path) -> None:
    path = workspace / "spills.cu"
    path.write_text(SPILLS)
    editor = await started(vscode())
    uri = editor.open(path)
    await editor.until_lens(uri, "registers", 30.0)
    assert editor.client.diagnostics == {}


async def test_text_document_content(started: Starter, workspace: Path) -> None:
    capabilities = neovim()
    assert capabilities.workspace is not None
    capabilities.workspace.text_document_content = types.TextDocumentContentClientCapabilities()
    editor = await started(capabilities)
    uri = editor.open(workspace / "softmax_rows.cu")
    await proposal(editor, uri)
    shown = await editor.press(uri, "Show diff")
    (document,) = editor.client.shown_documents
    assert document.uri == shown["candidate"]
    assert document.uri.startswith("cuda-agent-proposal:/")
    asked = types.TextDocumentContentParams(uri=document.uri)
    content = await editor.client.workspace_text_document_content_async(asked)
    assert content.text != editor.texts[uri]
    known = await editor.ask("cudaAgent/proposal", {"uri": document.uri})
    assert known["text"] == content.text
    assert known["state"] == "fresh"
    assert "gates passed" in known["evidence"]


async def test_the_run_command_is_asked_once(started: Starter, workspace: Path) -> None:
    """The kernel's file has no main; the program that launches it is built by the run command, as people do."""
    capabilities = vscode()
    capabilities.experimental = {"cudaAgent": {"askRunCommand": True}}
    editor = await started(capabilities)
    asked: list[Any] = []
    command = f"{shutil.which('sh')} -c 'echo this program launches no kernel'"

    @editor.client.feature("cudaAgent/askRunCommand")
    def answer(params: Any) -> dict[str, str]:
        asked.append(params)
        return {"command": command}

    path = workspace / "lib.cu"
    path.write_text("__global__ void k(float *x) { x[0] = 1; }\nvoid go(float *d) { k<<<1, 32>>>(d); }\n")
    uri = editor.open(path)
    for _ in range(2):
        editor.client.messages.clear()
        assert "job" in await editor.run("cudaAgent.capture", {"uri": uri, "kernel": "k"})
        await editor.until_said("Capturing inputs of k", 60.0)
    assert len(asked) == 1
    assert asked[0] == {"uri": uri, "kernel": "k"}


async def test_jobs_wait_in_order_and_a_waiting_one_can_be_cancelled(started: Starter, workspace: Path) -> None:
    editor = await started(vscode(), settings={"runCommand": "sleep 1000"})
    uris = []
    for name in ("a.cu", "b.cu"):
        shutil.copy(workspace / "softmax_rows.cu", workspace / name)
        uris.append(editor.open(workspace / name))
    first, second = [(await editor.run("cudaAgent.capture", {"uri": uri, "kernel": WHERE}))["job"] for uri in uris]
    again = await editor.run("cudaAgent.capture", {"uri": uris[0], "kernel": WHERE})
    assert again == {"job": first}  # the same work twice is one job
    assert [job["job"] for job in await editor.ask("cudaAgent/jobs", {})] == [first, second]
    assert await editor.ask("cudaAgent/job/cancel", {"job": second}) == {"cancelled": True}
    assert [job["job"] for job in await editor.ask("cudaAgent/jobs", {})] == [first]
    assert await editor.run("cudaAgent.cancel", {"job": first}) == {"cancelled": True}
    assert await editor.run("cudaAgent.cancel", {"job": first}) == {"cancelled": False}
    states = [params["state"] for method, params in editor.notices if method == "cudaAgent/job"]
    assert states.count("cancelled") == 2


async def test_taking_trust_away_ends_the_jobs(started: Starter, workspace: Path) -> None:
    editor = await started(vscode(), settings={"runCommand": "sleep 1000"})
    uri = editor.open(workspace / "softmax_rows.cu")
    await editor.run("cudaAgent.capture", {"uri": uri, "kernel": WHERE})
    editor.client.protocol.notify("cudaAgent/trust", {"trusted": False})

    async def ended() -> bool:
        return not await editor.ask("cudaAgent/jobs", {})

    await editor.until("the end of the job", ended, 10.0)
    assert "not trusted" in (await editor.run("cudaAgent.capture", {"uri": uri, "kernel": WHERE}))["error"]


async def test_refreshes_are_coalesced(started: Starter, workspace: Path) -> None:
    editor = await started(vscode(), settings={"runCommand": "sleep 1000"})
    uri = editor.open(workspace / "softmax_rows.cu")
    before = editor.refreshes
    for _ in range(20):
        await _start_and_cancel(editor, uri)
    notices = [1 for method, _ in editor.notices if method == "cudaAgent/job"]
    assert len(notices) >= 40
    assert editor.refreshes - before < len(notices)


async def _start_and_cancel(editor: Editor, uri: str) -> None:
    job = (await editor.run("cudaAgent.capture", {"uri": uri, "kernel": WHERE}))["job"]
    await editor.run("cudaAgent.cancel", {"job": job})


def change(editor: Editor, **settings: Any) -> None:
    """As when a person edits settings.json."""
    editor.client._configuration[""]["cudaAgent"].update(settings)
    editor.client.workspace_did_change_configuration(types.DidChangeConfigurationParams(settings=None))


@needs_nvcc
async def test_facts_follow_the_settings(started: Starter, workspace: Path) -> None:
    editor = await started(vscode())
    uri = editor.open(workspace / "softmax_rows.cu")
    free = await editor.until_lens(uri, "registers", 30.0)
    assert "24 registers" not in free
    change(editor, extraFlags=["-maxrregcount=24"])
    await editor.until_lens(uri, "24 registers", 30.0)
    change(editor, extraFlags=[])
    await editor.until_lens(uri, free, 30.0)


async def test_the_log_level(started: Starter, workspace: Path) -> None:
    """A line of the log at `info` is written or not; a command that runs nothing ends and is logged so."""
    logged: dict[str, list[str]] = {}
    for level in ("info", "error"):
        editor = await started(vscode(), settings={"logLevel": level, "runCommand": "sleep 1000"})
        uri = editor.open(workspace / "softmax_rows.cu")
        job = (await editor.run("cudaAgent.capture", {"uri": uri, "kernel": WHERE}))["job"]
        assert (await editor.run("cudaAgent.cancel", {"job": job}))["cancelled"]
        await editor.debug()
        logged[level] = [entry.message for entry in editor.client.log_messages if "Capturing" in entry.message]
    assert len(logged["info"]) == 1
    assert logged["error"] == []


async def test_a_search_takes_the_text_that_is_not_saved(started: Starter, workspace: Path) -> None:
    path = workspace / "softmax_rows.cu"
    text = path.read_text()
    path.write_text("#error saved in the middle of an edit\n")
    editor = await started(vscode())
    uri = editor.open(path, text=text)
    await proposal(editor, uri)
    assert path.read_text() == "#error saved in the middle of an edit\n"
    answer = await editor.run("cudaAgent.capture", {"uri": uri, "kernel": WHERE, "runCommand": "make run"})
    assert "job" in answer
    assert "softmax_rows.cu has unsaved changes" in await editor.until_said("save the file first", 20.0)
