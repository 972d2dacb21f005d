"""Nothing of a folder is compiled or run before that folder is trusted. A compiler that writes down what it is called
for says so: each project's own flags name it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from editor import Editor, neovim, vscode
from lsprotocol import types
from test_lsp_more import needs_nvcc

from conftest import Starter
from cuda_agent.errors import ToolMissing
from cuda_agent.toolchain import nvcc
from cuda_agent.trust import Trust

KERNEL = "__global__ void k(float *x) { x[threadIdx.x] = 1; }\n"
LAUNCH = "void go(float *d) { k<<<1, 32>>>(d); }\n"
YES = "Trust this folder"
pytestmark = needs_nvcc


class Projects:
    """Two projects and a folder that is none."""

    def __init__(self, folder: Path) -> None:
        self.a, self.b, self.elsewhere = (folder / name for name in ("a", "b", "elsewhere"))
        for project in (self.a, self.b):
            (project / "src").mkdir(parents=True)
            (project / "src" / "x.cu").write_text(KERNEL + LAUNCH)
            build = {"directory": str(project), "file": "src/x.cu", "command": f"nvcc -DOF_{project.name} -c src/x.cu"}
            (project / "compile_commands.json").write_text(json.dumps([build]))
        self.elsewhere.mkdir()
        self._calls = folder / "calls"
        try:
            real = nvcc.find().path
        except ToolMissing:  # the tests are skipped
            return
        recording = folder / "bin" / "nvcc"
        recording.parent.mkdir()
        log, real_nvcc = shlex.quote(str(self._calls)), shlex.quote(str(real))
        recording.write_text(f'#!/bin/sh\necho "$PWD $*" >> {log}\nexec {real_nvcc} "$@"\n')
        recording.chmod(0o755)
        self.session: dict[str, Any] = {
            "environment": {"PATH": f"{recording.parent}{os.pathsep}{os.environ['PATH']}"},
            "settings": {"sandbox": "off", "arguments": ""},
        }

    def called(self) -> bool:
        return self._calls.exists()

    def compiled(self) -> set[str]:
        """Projects whose flags, or whose folder, a compiler was given."""
        calls = self._calls.read_text() if self.called() else ""
        return {p.name for p in (self.a, self.b) if f"-DOF_{p.name}" in calls or str(p) in calls}


@pytest.fixture
def projects(tmp_path: Path) -> Projects:
    return Projects(tmp_path)


@pytest.fixture
def answers(tmp_path: Path) -> Trust:
    """Where the servers of this test remember the person's answers."""
    return Trust(tmp_path / "config" / "cuda-agent" / "trust.json")


async def refused(editor: Editor, uri: str, command: str = "cudaAgent.capture") -> str:
    return str((await editor.run(command, {"uri": uri, "kernel": "k"}))["error"])


async def compiled_again(editor: Editor, uri: str) -> None:
    """Facts of a new text: whatever was asked for before has been compiled, too."""
    editor.edit(uri, "x[threadIdx.x] = 1", "x[threadIdx.x + 1] = 1")

    async def current() -> bool:
        titles = await editor.titles(uri)
        return "registers" in titles[0] and "before this edit" not in titles[0]

    await editor.until("facts of the new text", current)


async def test_without_a_workspace_each_project_is_asked_about(
    started: Starter, projects: Projects, answers: Trust
) -> None:
    session = {**projects.session, "root": projects.elsewhere, "workspace": False, "options": {}}
    editor = await started(neovim(), **session)
    a, b = (editor.open(project / "src" / "x.cu") for project in (projects.a, projects.b))
    assert f"Trust the folder {projects.a}" in await editor.titles(a)
    editor.answer = YES
    assert "no run command yet" in await refused(editor, a)
    await editor.until_lens(a, "registers")

    # What was said of a says nothing of b.
    editor.answer = None
    assert f"Trust the folder {projects.b}" in await editor.titles(b)
    assert "trust this folder" in await editor.hover(b, editor.at(b, "k(float"))
    for command in ("cudaAgent.optimize", "cudaAgent.capture"):
        assert await refused(editor, b, command) == f"{projects.b} is not trusted: nothing in it is compiled or run"
    editor.edit(b, "x[threadIdx.x] = 1", "x[threadIdx.x + 2] = 1")
    editor.client.text_document_did_save(types.DidSaveTextDocumentParams(types.TextDocumentIdentifier(b)))
    await compiled_again(editor, a)
    assert projects.compiled() == {"a"}
    assert "registers" not in (await editor.titles(b))[0]

    editor.answer = YES
    assert "no run command yet" in await refused(editor, b)
    await editor.until_lens(b, "registers")
    assert projects.compiled() == {"a", "b"}
    asked = [question.message for question in editor.questions]
    assert [str(projects.a) in one for one in asked] == [True, False, False, False]
    assert [str(projects.b) in one for one in asked] == [False, True, True, True]
    assert answers.answers == {str(projects.a): True, str(projects.b): True}

    second = await started(neovim(), **session)
    await second.until_lens(second.open(projects.b / "src" / "x.cu"), "registers")
    assert second.questions == []


async def test_two_questions_at_once_are_about_two_folders(started: Starter, projects: Projects) -> None:
    editor = await started(neovim(), root=projects.elsewhere, workspace=False, options={}, **projects.session)
    a, b = (editor.open(project / "src" / "x.cu") for project in (projects.a, projects.b))

    editor.answer = lambda question: YES if str(projects.a) in question else "Not now"
    first, same, other = (editor.run("cudaAgent.capture", {"uri": uri, "kernel": "k"}) for uri in (a, a, b))
    said = [str(answer["error"]) for answer in await asyncio.gather(first, same, other)]
    assert ["no run command yet" in one for one in said] == [True, True, False]
    assert said[2].startswith(f"{projects.b} is not trusted")
    assert len(editor.questions) == 2
    await editor.until_lens(a, "registers")
    assert projects.compiled() == {"a"}


@pytest.mark.parametrize("client", ["Neovim", "VS Code"])
async def test_a_file_outside_of_the_workspace_is_asked_about(
    started: Starter, projects: Projects, answers: Trust, client: str
) -> None:
    """An editor's own trust is about its workspace, too."""
    answers.remember(projects.a, client == "Neovim")
    capabilities, options = (neovim(), {}) if client == "Neovim" else (vscode(), {"trusted": True})
    editor = await started(capabilities, root=projects.a, options=options, **projects.session)
    a, b = (editor.open(project / "src" / "x.cu") for project in (projects.a, projects.b))
    assert f"Trust the folder {projects.b}" in await editor.titles(b)
    await editor.until_lens(a, "registers")
    assert (await refused(editor, b)).startswith(f"{projects.b} is not trusted")
    await compiled_again(editor, a)
    assert projects.compiled() == {"a"}
    editor.answer = YES
    assert "no run command yet" in await refused(editor, b)
    await editor.until_lens(b, "registers")
    assert [str(projects.b) in question.message for question in editor.questions] == [True, True]
    assert answers.answers[str(projects.b)] is True


async def test_an_untrusted_workspace_of_an_editor_asks_about_nothing(
    started: Starter, projects: Projects, answers: Trust
) -> None:
    answers.remember(projects.b, True)
    editor = await started(vscode(), root=projects.a, options={"trusted": False}, **projects.session)
    for project in (projects.a, projects.b):
        uri = editor.open(project / "src" / "x.cu")
        assert not any("Trust" in title for title in await editor.titles(uri))
        assert "not trusted" in await refused(editor, uri)
        assert "not trusted" in await refused(editor, uri, "cudaAgent.trust")
    assert editor.questions == []
    assert not projects.called()


async def test_a_folder_that_the_editor_adds_to_its_workspace(started: Starter, projects: Projects) -> None:
    editor = await started(vscode(), root=projects.a, **projects.session)
    b = editor.open(projects.b / "src" / "x.cu")
    assert f"Trust the folder {projects.b}" in await editor.titles(b)
    folder = types.WorkspaceFolder(projects.b.as_uri(), "b")

    def change(added: list[types.WorkspaceFolder], removed: list[types.WorkspaceFolder]) -> None:
        event = types.WorkspaceFoldersChangeEvent(added, removed)
        editor.client.workspace_did_change_workspace_folders(types.DidChangeWorkspaceFoldersParams(event))

    change([folder], [])
    await editor.until_lens(b, "registers")
    change([], [folder])
    await editor.until_lens(b, f"Trust the folder {projects.b}")
    assert editor.questions == []


async def test_a_link_out_of_a_trusted_folder(started: Starter, projects: Projects, answers: Trust) -> None:
    answers.remember(projects.a, True)
    (projects.a / "src" / "link.cu").symlink_to(projects.b / "src" / "x.cu")
    (projects.a / "b").symlink_to(projects.b)
    editor = await started(neovim(), root=projects.a, options={}, **projects.session)
    for name in ("src/link.cu", "b/src/x.cu"):
        uri = editor.open(projects.a / name)
        assert f"Trust the folder {projects.b}" in await editor.titles(uri)
        assert (await refused(editor, uri)).startswith(f"{projects.b} is not trusted")
    await editor.until_lens(editor.open(projects.a / "src" / "x.cu"), "registers")
    assert projects.compiled() == {"a"}


async def test_a_link_into_a_trusted_folder_brings_no_flags_along(
    started: Starter, projects: Projects, answers: Trust
) -> None:
    answers.remember(projects.a, True)
    (projects.b / "a").symlink_to(projects.a)
    build = {"directory": str(projects.b), "file": "a/src/x.cu", "command": "nvcc -DOF_b -c a/src/x.cu"}
    (projects.b / "compile_commands.json").write_text(json.dumps([build]))
    editor = await started(neovim(), root=projects.elsewhere, workspace=False, options={}, **projects.session)
    await editor.until_lens(editor.open(projects.b / "a" / "src" / "x.cu"), "registers")
    assert projects.compiled() == {"a"}


async def test_a_header_is_compiled_in_a_source_that_is_trusted(
    started: Starter, projects: Projects, answers: Trust
) -> None:
    answers.remember(projects.a, True)
    header = projects.a / "k.cuh"
    header.write_text(KERNEL)
    (projects.b / "x.cu").write_text('#include "../a/k.cuh"\n' + LAUNCH)
    projects.session["settings"]["runCommand"] = "true"
    editor = await started(neovim(), root=projects.a, options={}, **projects.session)
    uri = editor.open(header)

    async def problem() -> str:
        text = await editor.hover(uri, editor.at(uri, "k(float"))
        return text if "no compiler facts" in text else ""

    assert f"{projects.b} is not trusted" in await editor.until("the missing folder", problem)
    assert "job" in await editor.run("cudaAgent.optimize", {"uri": uri, "kernel": "k"})
    assert f"{projects.b} is not trusted" in await editor.until_said("Optimising k")
    assert projects.compiled() == set()
    answers.remember(projects.b, True)  # as `cuda-agent trust` does in a terminal
    editor.edit(uri, "x[threadIdx.x] = 1", "x[threadIdx.x + 1] = 1")
    await editor.until_lens(uri, "registers")
    assert "b" in projects.compiled()


async def test_a_run_command_runs_in_a_trusted_folder(started: Starter, projects: Projects, answers: Trust) -> None:
    """In the workspace, for other files in their project."""
    where = projects.elsewhere / "where"
    command = shlex.join([str(shutil.which("sh")), "-c", f"pwd >> {shlex.quote(str(where))}"])
    session = {**projects.session, "settings": {**projects.session["settings"], "runCommand": command}}
    answers.remember(projects.b / "src", True)
    answers.remember(projects.a, True)

    async def capture(editor: Editor, project: Path, said: str) -> None:
        editor.client.messages.clear()
        uri = editor.open(project / "src" / "x.cu")
        await editor.run("cudaAgent.capture", {"uri": uri, "kernel": "k"})
        assert said in await editor.until_said("Capturing inputs of k", 60)

    rootless = {"root": projects.elsewhere, "workspace": False, "options": {}}
    for client, more in ((neovim(), rootless), (vscode(), {"root": projects.a})):
        editor = await started(client, **session, **more)
        await capture(editor, projects.b, f"{projects.b} is not trusted")
        assert not where.exists()
        await capture(editor, projects.a, "no kernel")
        assert where.read_text().split() == [str(projects.a)]
        where.unlink()
