"""Open, hover, lenses, actions: what the text alone gives, in every encoding, and what untrusted or broken files
give."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from editor import Editor, bare, neovim, vscode
from lsprotocol import types

from conftest import Starter
from patience import patience

CLIENTS = {"vscode": (vscode, "utf-16"), "neovim": (neovim, "utf-8"), "bare": (bare, "utf-16")}
BEYOND = "// 𝔸 𝔹 ℂ, é — outside the BMP: 🚀🚀\n/* 🚀 */ "


@pytest.mark.parametrize("name", CLIENTS)
async def test_hover_and_lens_of_text_with_characters_outside_the_bmp(
    started: Starter, workspace: Path, name: str
) -> None:
    capabilities, encoding = CLIENTS[name]
    editor = await started(capabilities(), options={"trusted": False})
    assert editor.encoding == encoding
    path = workspace / "softmax_rows.cu"
    path.write_text(path.read_text().replace("__global__", BEYOND + "__global__", 1))
    uri = editor.open(path)
    began = time.monotonic()
    lenses = await editor.lenses(uri)
    hover = await editor.hover(uri, editor.at(uri, "softmax_rows(", 3))
    assert time.monotonic() - began < patience(1.0)
    assert lenses[0].range.start == editor.at(uri, "softmax_rows(const")
    assert lenses[0].command is not None
    assert lenses[0].command.title == "launched as <<<grid, block>>>"
    assert "not `__restrict__`: `in`, `out`" in hover
    assert await editor.hover(uri, editor.at(uri, "rows(", 6)) == ""  # inside the parameter list: clangd's


async def test_hover_on_launch_shared_and_bounds_only(started: Starter, workspace: Path) -> None:
    path = workspace / "k.cu"
    path.write_text(
        "template <int N>\n__global__ void __launch_bounds__(256, 2) k(float *x) {\n"
        "    __shared__ float tile[N][33];\n    extern __shared__ char rest[];\n    x[0] = tile[0][0] + rest[0];\n}\n"
        "void go(float *d) { k<8><<<dim3(4), 128, 64>>>(d); }\n"
    )
    editor = await started(vscode(), options={"trusted": False})
    uri = editor.open(path)
    launch = await editor.hover(uri, editor.at(uri, "<<<", 4))
    assert "grid `dim3(4)`, block `128`" in launch
    assert "template arguments `8`" in launch
    assert "means `k`, line 2" in launch
    assert "static" in await editor.hover(uri, editor.at(uri, "tile[N]"))
    assert "third launch argument" in await editor.hover(uri, editor.at(uri, "rest[]"))
    assert "at most `256` threads a block" in await editor.hover(uri, editor.at(uri, "__launch_bounds__", 3))
    for other in ("x[0]", "void go", ">>>(d"):
        assert await editor.hover(uri, editor.at(uri, other, 4 if other.startswith(">") else 0)) == ""


async def test_lenses_follow_incremental_edits_in_one_message(started: Starter, workspace: Path) -> None:
    editor = await started(vscode(), options={"trusted": False})
    uri = editor.open(workspace / "softmax_rows.cu")
    editor.edit(uri, "__global__", "/* 🚀 */ __global__")
    editor.edit(uri, "softmax_rows(const", "softmax_all(const")
    (first, *_) = await editor.lenses(uri)
    assert first.range.start == editor.at(uri, "softmax_all(const")
    assert first.command is not None
    assert "0 launches" in first.command.title


async def test_other_languages_get_nothing_and_cuda_headers_get_all(started: Starter, workspace: Path) -> None:
    editor = await started(vscode(), options={"trusted": False})
    text = (workspace / "softmax_rows.cu").read_text()
    plain = workspace / "a.cpp"
    plain.write_text(text)
    header = workspace / "a.cuh"
    header.write_text(text)
    assert await editor.lenses(editor.open(plain, "cpp")) == []
    assert await editor.lenses(editor.open(header, "cpp"))
    assert await editor.lenses(editor.open(workspace / "softmax_rows.cu", "cuda-cpp"))


async def test_half_typed_text_gives_partial_answers(started: Starter, workspace: Path) -> None:
    editor = await started(vscode(), options={"trusted": False})
    uri = editor.open(workspace / "softmax_rows.cu")
    text = editor.texts[uri]
    end = text.index("static void softmax_reference")
    for cut in range(0, end, 37):
        editor.replace(uri, text[:cut])
        await editor.lenses(uri)
        await editor.hover(uri, types.Position(18, 20))
        await editor.actions(uri, types.Position(18, 20))
    editor.replace(uri, text)
    assert await editor.lenses(uri)
    assert [m.message for m in editor.client.messages] == []


async def test_untrusted_means_text_only(started: Starter, workspace: Path) -> None:
    editor = await started(vscode(), options={"trusted": False})
    uri = editor.open(workspace / "softmax_rows.cu")
    assert "trust this folder" in await editor.hover(uri, editor.at(uri, "softmax_rows("))
    answer = await editor.run("cudaAgent.optimize", {"uri": uri, "kernel": "softmax_rows"})
    assert "not trusted" in answer["error"]
    (action, *_) = await editor.actions(uri, editor.at(uri, "softmax_rows("), ["refactor"])
    assert action.disabled.reason == "this folder is not trusted: nothing in it is compiled or run"
    assert (await editor.debug())["engine"]["state"] == "not started"
    editor.client.protocol.notify("cudaAgent/trust", {"trusted": True})
    assert await editor.until_lens(uri, "Optimise")


async def test_other_editors_are_asked_once_and_the_answer_is_kept(
    started: Starter, workspace: Path, tmp_path: Path
) -> None:
    first = await started(neovim(), options={})
    uri = first.open(workspace / "softmax_rows.cu")
    assert "Trust this folder" in await first.titles(uri)
    answer = await first.run("cudaAgent.capture", {"uri": uri, "kernel": "softmax_rows"})
    assert "not trusted" in answer["error"]  # no button pressed: not trusted, and asked again next time
    first.answer = "Trust this folder"
    assert "job" in await first.run("cudaAgent.capture", {"uri": uri, "kernel": "softmax_rows"})
    assert len(first.questions) == 2
    assert str(workspace) in first.questions[0].message
    second = await started(neovim(), options={})
    assert (await second.debug())["trusted"] is True
    assert (tmp_path / "config" / "cuda-agent" / "trust.json").is_file()


async def test_action_without_a_way_to_run_says_so(started: Starter, workspace: Path) -> None:
    path = workspace / "lib.cu"
    path.write_text("__global__ void k(float *x) { x[0] = 1; }\nvoid go(float *d) { k<<<1, 32>>>(d); }\n")
    editor = await started(vscode())
    uri = editor.open(path)
    optimise, capture = await editor.actions(uri, editor.at(uri, "k<<<"))
    assert (optimise.kind, capture.kind) == ("refactor.rewrite.cudaAgent.optimize", "source.cudaAgent.capture")
    assert optimise.disabled.reason.startswith("no run command yet")
    assert capture.disabled.reason.startswith("no run command yet")
    assert await editor.actions(uri, editor.at(uri, "void go"), ["quickfix"]) == []
    editor.edit(uri, "x[0] = 1;", "x[0] = ;(")
    (optimise, _) = await editor.actions(uri, editor.at(uri, "x[0]"))
    assert optimise.disabled.reason == "kernel has a syntax error"
    (workspace / ".cuda-agent" / "captures").mkdir(parents=True)
    editor.edit(uri, "x[0] = ;(", "x[0] = 1;")
    command = await editor.until("the capture to be seen", lambda: _enabled(editor, uri), 5.0)
    assert command.command == "cudaAgent.optimize"


async def _enabled(editor: Editor, uri: str) -> types.Command | None:
    found = (await editor.actions(uri, editor.at(uri, "x[0]")))[0]
    return found.command if found.disabled is None else None


async def test_clients_without_disabled_actions_or_literals(started: Starter, workspace: Path) -> None:
    path = workspace / "lib.cu"
    path.write_text("__global__ void k(float *x) { x[0] = 1; }\n")
    editor = await started(bare())
    assert await editor.actions(editor.open(path), types.Position(0, 17)) == []
    uri = editor.open(workspace / "softmax_rows.cu")
    found = await editor.actions(uri, editor.at(uri, "softmax_rows("))
    assert [type(action) for action in found] == [types.Command, types.Command]
    assert found[0].command == "cudaAgent.optimize"


async def test_the_server_never_imports_numpy_or_cupy(started: Starter, workspace: Path) -> None:
    editor = await started(vscode())
    uri = editor.open(workspace / "softmax_rows.cu")
    await editor.hover(uri, editor.at(uri, "softmax_rows("))
    await editor.actions(uri, editor.at(uri, "softmax_rows("))
    modules = set((await editor.debug())["modules"])
    assert modules & {"lsprotocol", "tree_sitter"} == {"lsprotocol", "tree_sitter"}
    assert not modules & {"numpy", "cupy", "diskcache", "rich", "elftools", "zstandard"}
