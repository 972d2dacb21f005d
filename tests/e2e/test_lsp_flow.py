"""The whole way in a headless editor, on the emulator, with nothing in the path replaced: open, lens, hover, optimise,
progress, cancel, optimise again, proposal, diff, accept, undo, stale, verify, reject."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from editor import Editor, bare, children, command_line, neovim, vscode
from lsprotocol import types

from conftest import Starter
from patience import patience

CLIENTS = {"vscode": (vscode, "utf-16"), "neovim": (neovim, "utf-8")}
BEYOND = "// 𝔸 𝔹 — outside the BMP: 🚀🚀\n/* 🚀 */ "
WHERE = "softmax_rows"


def with_characters_outside_the_bmp(workspace: Path) -> Path:
    path = workspace / "softmax_rows.cu"
    path.write_text(path.read_text().replace("__global__", BEYOND + "__global__", 1))
    return path


def jobs_below(editor: Editor) -> list[int]:
    """Processes of running jobs and orphans of theirs: what is below the engine, without the oldest guardian, which is
    the compiler-facts process's, and what is below that."""
    engine = next((pid for pid in children(editor.pid) if "cuda_agent.engine --parent" in command_line(pid)), None)
    below = children(engine) if engine is not None else []
    facts = min((pid for pid in below if "cuda_agent.engine.job" in command_line(pid)), default=None)
    kept = {facts, *children(facts)} if facts is not None else set()
    return [pid for pid in below if pid not in kept]


async def until_it_works(editor: Editor) -> None:
    """The search has begun: its device worker runs and progress came through."""

    async def busy() -> bool:
        reports = [value for value in editor.progress() if isinstance(value, types.WorkDoneProgressReport)]
        return bool(jobs_below(editor)) and any((value.percentage or 0) >= 2 for value in reports)

    await editor.until("a running search with progress", busy, 120)


async def proposal(editor: Editor, uri: str) -> str:
    answer = await editor.press(uri, "Optimise")
    assert "job" in answer, answer
    return await editor.until_lens(uri, "verified on the emulator", 180)


@pytest.mark.parametrize("name", CLIENTS)
async def test_the_whole_way(started: Starter, workspace: Path, name: str) -> None:
    capabilities, encoding = CLIENTS[name]
    editor = await started(capabilities())
    assert editor.encoding == encoding
    uri = editor.open(with_characters_outside_the_bmp(workspace), "cuda-cpp" if name == "vscode" else "cuda")
    original = editor.texts[uri]
    began = time.monotonic()
    assert "Optimise" in await editor.titles(uri)
    assert "**kernel** `softmax_rows`" in await editor.hover(uri, editor.at(uri, WHERE + "(const"))
    assert time.monotonic() - began < patience(1.0)

    # optimise, and cancel while it runs: from the progress bar's button in VS Code, by id in Neovim
    began = time.monotonic()
    job = (await editor.press(uri, "Optimise"))["job"]
    assert time.monotonic() - began < patience(0.5)
    assert await editor.until_lens(uri, "Cancel", 5.0)
    await until_it_works(editor)
    began = time.monotonic()
    if name == "vscode":
        (token,) = editor.client.progress_reports
        editor.client.window_work_done_progress_cancel(types.WorkDoneProgressCancelParams(token))
    else:
        assert await editor.ask("cudaAgent/job/cancel", {"job": job}) == {"cancelled": True}
    while jobs_below(editor):
        assert time.monotonic() - began < patience(0.5), [command_line(pid) for pid in jobs_below(editor)]
        await asyncio.sleep(0.005)
    assert isinstance(editor.progress()[0], types.WorkDoneProgressBegin)
    assert editor.progress()[0].cancellable
    await editor.until_lens(uri, "Optimise", 5.0)
    assert isinstance(editor.progress()[-1], types.WorkDoneProgressEnd)

    # optimise again
    assert "not measured" in await proposal(editor, uri)
    hover = await editor.hover(uri, editor.at(uri, WHERE + "(const"))
    assert "gates passed: G0, G1, G2, G3" in hover
    assert "evidence: emulated" in hover
    found = await editor.actions(uri, editor.at(uri, WHERE + "(const"))
    kinds = [action.kind for action in found]
    assert "refactor.rewrite.cudaAgent.accept" in kinds
    assert "source.cudaAgent.reject" in kinds

    # the diff
    shown = await editor.press(uri, "Show diff")
    assert shown["diff"].startswith("--- a/softmax_rows.cu")
    if name == "vscode":
        (notice,) = [params for method, params in editor.notices if method == "cudaAgent/showDiff"]
        virtual = await editor.ask("cudaAgent/proposal", {"uri": notice["candidate"]})
        candidate = virtual["text"]
    else:
        (document,) = editor.client.shown_documents
        candidate = Path(document.uri.removeprefix("file://")).read_text()
    assert candidate != original

    # accept: one edit, one undo step
    accept = next(action for action in found if action.kind == "refactor.rewrite.cudaAgent.accept")
    assert await editor.run(accept.command) == {"applied": True}
    assert len(editor.applied) == 1
    assert editor.texts[uri] == candidate
    (applied,) = editor.applied
    assert applied.label is not None
    assert applied.label.startswith("CUDA Agent: softmax_rows")
    if name == "vscode":
        assert len(applied.edit.document_changes or ()) == 1
    assert "Accept" not in await editor.titles(uri)

    # undo: it is offered again; an edit of the kernel makes it stale
    editor.replace(uri, original)
    assert "Accept" in await editor.titles(uri)
    editor.edit(uri, "float sum = 0.0f;", "float sum = 0.00f;")
    titles = await editor.titles(uri)
    assert any("stale" in title for title in titles)
    assert "Accept" not in titles
    assert "Verify again" in titles
    refused = await editor.run("cudaAgent.accept", {"uri": uri, "kernel": WHERE})
    assert "verify it again" in refused["error"]
    assert len(editor.applied) == 1


async def test_a_proposal_outlives_the_server_and_can_be_verified_and_rejected(
    started: Starter, workspace: Path
) -> None:
    first = await started(vscode())
    uri = first.open(workspace / "softmax_rows.cu")
    await proposal(first, uri)
    await first.client.shutdown_session()
    editor = await started(vscode())
    editor.open(workspace / "softmax_rows.cu")
    assert "Accept" in await editor.titles(uri)
    editor.edit(uri, "// Softmax over", "// 🚀 softmax over")  # elsewhere: still fresh, and the edits move along
    assert "Accept" in await editor.titles(uri)
    answer = await editor.run("cudaAgent.verify", {"uri": uri, "kernel": WHERE})
    assert "job" in answer
    assert await editor.until_said("verified on the emulator", 120)
    editor.refuse_edits = "the file is read-only"
    refused = await editor.run("cudaAgent.accept", {"uri": uri, "kernel": WHERE})
    assert "the file is read-only" in refused["error"]
    assert "Accept" in await editor.titles(uri)
    editor.refuse_edits = None
    assert await editor.press(uri, "Accept") == {"applied": True}
    assert "// 🚀 softmax over" in editor.texts[uri]
    editor.replace(uri, (workspace / "softmax_rows.cu").read_text())
    await editor.press(uri, "Reject")
    assert "Accept" not in await editor.titles(uri)
    assert "Optimise" in await editor.titles(uri)


async def test_a_client_that_cannot_apply_edits_gets_the_edit_in_the_action(started: Starter, workspace: Path) -> None:
    capabilities = types.ClientCapabilities(
        text_document=types.TextDocumentClientCapabilities(
            code_action=types.CodeActionClientCapabilities(
                code_action_literal_support=types.ClientCodeActionLiteralOptions(
                    types.ClientCodeActionKindOptions(value_set=[])
                )
            )
        )
    )
    editor = await started(capabilities)
    uri = editor.open(workspace / "softmax_rows.cu")
    await proposal(editor, uri)  # no progress bar, no refresh: the lens is asked for again
    found = await editor.actions(uri, editor.at(uri, WHERE + "(const"), ["refactor"])
    accept = next(action for action in found if action.kind == "refactor.rewrite.cudaAgent.accept")
    assert list(accept.edit.changes) == [uri]
    assert accept.command.command == "cudaAgent.accepted"
    answer = await editor.run("cudaAgent.accept", {"uri": uri, "kernel": WHERE})
    assert "use the code action Accept" in answer["error"]
    await editor.run(accept.command)
    assert "Accept" not in await editor.titles(uri)


async def test_a_bare_client_goes_the_way_too(started: Starter, workspace: Path) -> None:
    editor = await started(bare())
    uri = editor.open(workspace / "softmax_rows.cu")
    await proposal(editor, uri)
    shown = await editor.press(uri, "Show diff")
    assert any(message.message == shown["diff"] for message in editor.client.messages)
    assert editor.progress() == []
    assert editor.refreshes == 0
