"""A kernel in a header, launched in the source that includes it: one proposal edits both files, open or not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from editor import Editor, neovim, vscode
from lsprotocol import types

from conftest import CORPUS, Starter

WHERE = "softmax_rows"
LAUNCH = "softmax_rows<<<grid, block>>>(d_in, d_out, rows, cols);"
SETTINGS = {"runCommand": "make run", "arguments": "", "budgetCandidates": 2}
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make")


@pytest.fixture
def project(workspace: Path) -> Path:
    """softmax_rows.cu as two files, and a Makefile."""
    text = (CORPUS / "softmax_rows.cu").read_text()
    start, end = text.index("__global__"), text.index("static void softmax_reference")
    (workspace / "softmax_rows.cu").unlink()
    (workspace / "include").mkdir()
    (workspace / "include" / "softmax.cuh").write_text("#pragma once\n\n" + text[start:end].rstrip() + "\n")
    (workspace / "src").mkdir()
    source = text[:start] + '#include "softmax.cuh"\n\n' + text[end:]
    (workspace / "src" / "main.cu").write_text("// 𝔸 🚀\n" + source)
    (workspace / "Makefile").write_text(
        "run: main\n\t./main 64 96 1\nmain: src/main.cu include/softmax.cuh\n\tnvcc -O3 -Iinclude $< -o $@\n"
    )
    return workspace


async def proposed(editor: Editor, uri: str) -> str:
    assert "job" in await editor.run("cudaAgent.optimize", {"uri": uri, "kernel": WHERE})
    return await editor.until_lens(uri, "verified on the emulator", 180)


async def accept(editor: Editor, uri: str) -> Any:
    found = await editor.actions(uri, editor.at(uri, WHERE + "(const"))
    action = next(one for one in found if one.kind == "refactor.rewrite.cudaAgent.accept")
    return await editor.run(action.command)


async def test_one_edit_of_two_open_files(started: Starter, project: Path) -> None:
    editor = await started(vscode(), root=project, settings=SETTINGS)
    header, main = (editor.open(project / name) for name in ("include/softmax.cuh", "src/main.cu"))
    texts = dict(editor.texts)
    await proposed(editor, header)

    # What is typed and not saved counts in the other file, too.
    editor.edit(main, "int main(", "// typed, not saved 🚀\nint main(")
    editor.edit(main, "<<<grid, block>>>", "<<<grid, 256>>>")
    assert any("stale" in title for title in await editor.titles(header))
    await proposed(editor, header)
    shown = await editor.press(header, "Show diff")
    assert [line for line in shown["diff"].splitlines() if line.startswith("+++")] == [
        "+++ b/include/softmax.cuh",
        "+++ b/src/main.cu",
    ]
    assert "-        softmax_rows<<<grid, 256>>>" in shown["diff"]
    notice = next(params for method, params in editor.notices if method == "cudaAgent/showDiff")
    assert [file["uri"] for file in notice["files"]] == [header, main]
    candidates = [await editor.ask("cudaAgent/proposal", {"uri": file["candidate"]}) for file in notice["files"]]
    wanted = [candidate["text"] for candidate in candidates]

    # The typing goes on elsewhere; then one edit with both versions, and one undo brings it back.
    editor.edit(main, "// typed, not saved", "// still typing")
    assert await accept(editor, header) == {"applied": True}
    (applied,) = editor.applied
    documents = [change.text_document for change in applied.edit.document_changes or ()]  # type: ignore[union-attr]
    assert [(one.uri, one.version) for one in documents] == [(header, 1), (main, 4)]
    assert editor.texts[header] == wanted[0]
    assert editor.texts[main] == wanted[1].replace("// typed, not saved", "// still typing")
    assert "Accept" not in await editor.titles(header)
    editor.replace(main, texts[main].replace("<<<grid, block>>>", "<<<grid, 256>>>"))
    assert "Accept" not in await editor.titles(header)
    editor.replace(header, texts[header])
    assert "Accept" in await editor.titles(header)
    assert (project / "src" / "main.cu").read_text() == texts[main]


async def test_a_change_of_the_launch_makes_it_stale(started: Starter, project: Path) -> None:
    editor = await started(vscode(), root=project, settings=SETTINGS)
    header, main = (editor.open(project / name) for name in ("include/softmax.cuh", "src/main.cu"))
    await proposed(editor, header)
    editor.edit(main, "int repeats", "int  repeats")
    assert "Accept" in await editor.titles(header)
    editor.edit(main, LAUNCH, LAUNCH.replace("block>>>", "block, 0>>>"))
    titles = await editor.titles(header)
    assert any("stale" in title for title in titles)
    assert "Accept" not in titles
    assert "verify it again" in (await editor.run("cudaAgent.accept", {"uri": header, "kernel": WHERE}))["error"]
    editor.edit(main, "block, 0>>>", "block>>>")
    assert "Accept" in await editor.titles(header)
    assert "job" in await editor.run("cudaAgent.verify", {"uri": header, "kernel": WHERE})
    await editor.until_lens(header, "verified on the emulator", 120)
    (project / "src" / "main.cu").unlink()
    params = types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(main))
    editor.client.text_document_did_close(params)
    assert any("stale" in title for title in await editor.titles(header))


async def test_a_file_that_is_not_open_is_edited_on_disk(started: Starter, project: Path) -> None:
    editor = await started(neovim(), root=project, settings=SETTINGS)
    header, main = editor.open(project / "include" / "softmax.cuh"), project / "src" / "main.cu"
    before = main.read_text()
    await proposed(editor, header)
    shown = await editor.press(header, "Show diff")
    names = [Path(document.uri.removeprefix("file://")) for document in editor.client.shown_documents]
    assert [name.name for name in names] == ["softmax.cuh", "main.cu"]
    assert names[1].read_text() != before
    assert "+++ b/src/main.cu" in shown["diff"]
    assert await accept(editor, header) == {"applied": True}
    (applied,) = editor.applied
    changes = applied.edit.changes or {
        change.text_document.uri: change.text_document.version  # type: ignore[union-attr]
        for change in applied.edit.document_changes or ()
    }
    assert set(changes) == {header, main.as_uri()}
    assert main.read_text() == names[1].read_text()
    assert LAUNCH in before
    assert LAUNCH not in main.read_text()
    assert "Accept" not in await editor.titles(header)


async def test_the_run_command_would_not_see_a_launch_that_is_not_saved(started: Starter, project: Path) -> None:
    editor = await started(vscode(), root=project, settings=SETTINGS)
    header, main = (editor.open(project / name) for name in ("include/softmax.cuh", "src/main.cu"))
    editor.edit(main, "dim3 block(256)", "dim3 block(64)")
    await editor.run("cudaAgent.optimize", {"uri": header, "kernel": WHERE})
    assert "main.cu has unsaved changes" in await editor.until_said("save the file first", 30.0)
