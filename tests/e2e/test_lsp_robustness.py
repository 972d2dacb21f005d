"""What may go wrong around the server: it keeps answering and says what happened."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from editor import SERVER, Editor, children, command_line, vscode
from test_lsp_flow import WHERE, jobs_below, proposal, until_it_works

from conftest import Starter
from patience import patience

ENDLESS = """#include <cuda_runtime.h>
__global__ void spin(volatile int *x) { while (x[0] == 0) { x[1] = x[1] + 1; } }
int main() {
    int *x;
    cudaMalloc(&x, 64);
    cudaMemset(x, 0, 64);
    spin<<<1, 32>>>(x);
    cudaDeviceSynchronize();
    return 0;
}
"""


def small_disk_works() -> bool:
    command = ["bwrap", "--dev-bind", "/", "/", "--size", "65536", "--tmpfs", "/mnt", "true"]
    return shutil.which("bwrap") is not None and subprocess.run(command, check=False).returncode == 0


async def answers(editor: Editor, uri: str) -> None:
    """The server is alive and quick."""
    began = time.monotonic()
    assert "**kernel**" in await editor.hover(uri, editor.at(uri, "__global__"))
    assert await editor.titles(uri)
    assert time.monotonic() - began < patience(0.5)


def processes(editor: Editor, part: str) -> list[int]:
    return [pid for pid in children(editor.pid) if part in command_line(pid)]


async def test_kill_9_of_the_engine_during_a_job(started: Starter, workspace: Path) -> None:
    editor = await started(vscode())
    uri = editor.open(workspace / "softmax_rows.cu")
    await editor.press(uri, "Optimise")
    await until_it_works(editor)
    before = jobs_below(editor)
    (engine,) = processes(editor, "cuda_agent.engine --parent")
    os.kill(engine, signal.SIGKILL)
    said = await editor.until_said("killed by SIGKILL", 5.0)
    assert said.startswith("Optimising softmax_rows: stopped: the engine was killed by SIGKILL")
    assert "Run the action again" in said
    await answers(editor, uri)

    async def gone() -> bool:
        return not [pid for pid in before if "defunct" not in command_line(pid) and Path(f"/proc/{pid}").exists()]

    await editor.until("the killed engine's jobs to end", gone, 2.0)
    await proposal(editor, uri)  # a fresh engine does the work
    (fresh,) = processes(editor, "cuda_agent.engine --parent")
    assert fresh != engine


async def test_an_engine_that_always_dies_is_given_up_with_a_reason(started: Starter, workspace: Path) -> None:
    editor = await started(vscode(), options={"trusted": True})
    uri = editor.open(workspace / "softmax_rows.cu")
    for _ in range(4):
        answer = await editor.run("cudaAgent.capture", {"uri": uri, "kernel": WHERE})

        async def running() -> list[int]:
            return processes(editor, "cuda_agent.engine --parent")

        (engine,) = await editor.until("an engine", running, 10.0)
        os.kill(engine, signal.SIGKILL)

        async def noticed(pid: int = engine) -> bool:
            # Before its job has ended, the same command would join that job and start no engine.
            return pid not in children(editor.pid) and not await editor.ask("cudaAgent/jobs", {})

        await editor.until("its end", noticed, 10.0)
    answer = await editor.run("cudaAgent.capture", {"uri": uri, "kernel": WHERE})
    assert "job" in answer
    assert "cudaAgent.restartEngine" in await editor.until_said("ended 4 times within a minute", 10.0)
    await answers(editor, uri)
    await editor.run("cudaAgent.restartEngine", {})
    assert "engine" not in editor.client.messages[-1].message or await proposal(editor, uri)


async def test_kill_9_of_the_device_worker_during_a_job(started: Starter, workspace: Path) -> None:
    editor = await started(vscode())
    uri = editor.open(workspace / "softmax_rows.cu")
    await editor.press(uri, "Optimise")
    await until_it_works(editor)

    async def worker() -> list[int]:
        return processes(editor, "cuda_agent.device.worker") + processes(editor, "cuda_agent.cli worker")

    pids = await editor.until("the device's worker", worker, 60.0)
    os.kill(pids[-1], signal.SIGKILL)
    await answers(editor, uri)

    async def ended() -> bool:
        return not await editor.ask("cudaAgent/jobs", {})

    await editor.until("the end of the job", ended, 120.0)
    last = editor.client.messages[-1].message
    assert "verified" in last or "worker" in last or "nothing better" in last, last
    await answers(editor, uri)


async def test_kill_9_of_the_job(started: Starter, workspace: Path) -> None:
    editor = await started(vscode())
    uri = editor.open(workspace / "softmax_rows.cu")
    await editor.press(uri, "Optimise")
    await until_it_works(editor)
    (status,) = await editor.ask("cudaAgent/jobs", {})
    assert status["kind"] == "optimize"
    pids = processes(editor, "cuda_agent.engine.job")
    assert len(pids) >= 2
    for pid in pids:  # guardians and jobs, that of the facts among them
        os.kill(pid, signal.SIGKILL)
    assert "run the action again" in await editor.until_said("killed by SIGKILL", 5.0)
    assert not jobs_below(editor)
    await answers(editor, uri)


async def test_a_missing_nvcc_says_what_to_install(started: Starter, workspace: Path) -> None:
    editor = await started(vscode(), settings={"nvccPath": str(workspace / "no" / "nvcc")})
    uri = editor.open(workspace / "softmax_rows.cu")

    async def told() -> str:
        hover = await editor.hover(uri, editor.at(uri, WHERE + "(const"))
        return hover if "no compiler facts" in hover else ""

    hover = await editor.until("the reason in the hover", told, 10.0)
    assert "does not run as nvcc" in hover
    assert "cuda-downloads" in hover
    await answers(editor, uri)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="hides the toolkit with bubblewrap")
async def test_a_machine_without_a_toolkit(started: Starter, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a laptop without CUDA: the toolkit's folders are hidden from the server."""
    hidden = [folder.resolve() for folder in Path("/usr/local").glob("cuda*") if folder.is_dir()]
    hide = [word for folder in dict.fromkeys(hidden) for word in ("--tmpfs", str(folder))]
    command = ["bwrap", "--dev-bind", "/", "/", *hide, "--die-with-parent", "--", *SERVER]
    monkeypatch.setattr("editor.SERVER", command)
    clean = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if "cuda" not in p.lower())
    editor = await started(vscode(), environment={"PATH": clean, "CUDA_HOME": "", "CUDA_PATH": ""})
    uri = editor.open(workspace / "softmax_rows.cu")

    async def told() -> str:
        hover = await editor.hover(uri, editor.at(uri, WHERE + "(const"))
        return hover if "compiler" in hover else ""

    hover = await editor.until("facts, or the reason for none", told, 20.0)
    # NVRTC and headers from Python packages give facts of self-contained kernels without a toolkit.
    assert "registers a thread" in hover or "Install the CUDA Toolkit" in hover
    await proposal(editor, uri)  # the emulator needs no toolkit


async def test_a_file_that_is_gone_or_is_a_folder(started: Starter, workspace: Path) -> None:
    editor = await started(vscode())
    path = workspace / "softmax_rows.cu"
    uri = editor.open(path)
    path.unlink()
    await editor.run("cudaAgent.optimize", {"uri": uri, "kernel": WHERE})
    said = await editor.until_said("softmax_rows.cu", 60.0)
    assert "Traceback" not in said
    await answers(editor, uri)
    path.mkdir()
    editor.client.messages.clear()
    await editor.run("cudaAgent.optimize", {"uri": uri, "kernel": WHERE})
    assert "internal error" not in await editor.until_said("softmax_rows.cu", 60.0)
    await answers(editor, uri)


async def test_an_unreadable_file_and_a_broken_capture(started: Starter, workspace: Path) -> None:
    editor = await started(vscode())
    path = workspace / "softmax_rows.cu"
    uri = editor.open(path)
    bundle = workspace / ".cuda-agent" / "captures" / WHERE
    bundle.mkdir(parents=True)
    (bundle / "launch.json").write_text("{")
    editor_settings = {"uri": uri, "kernel": WHERE}
    await editor.run("cudaAgent.optimize", editor_settings)
    await answers(editor, uri)

    async def ended() -> bool:
        return not await editor.ask("cudaAgent/jobs", {})

    await editor.until("the end of the job", ended, 120.0)
    assert editor.client.messages
    assert "internal error" not in editor.client.messages[-1].message
    if os.geteuid() != 0:  # root reads everything
        path.chmod(0)
        await editor.run("cudaAgent.capture", editor_settings)
        await editor.until_said("ermission", 60.0)
    await answers(editor, uri)


async def test_a_kernel_that_never_ends(started: Starter, workspace: Path) -> None:
    editor = await started(vscode(), settings={"budgetSeconds": 2, "arguments": ""})
    path = workspace / "spin.cu"
    path.write_text(ENDLESS)
    uri = editor.open(path)
    await editor.press(uri, "Optimise")
    await until_it_works(editor)
    await answers(editor, uri)
    said = await editor.until_said("spin", 90.0)
    assert "never end" in said or "did not end" in said or "deadline" in said, said
    assert not jobs_below(editor)
    await answers(editor, uri)


async def test_a_cache_that_cannot_be_written(started: Starter, workspace: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "cache"
    blocked.write_text("not a folder")
    editor = await started(vscode(), environment={"CUDA_AGENT_CACHE": str(blocked)})
    uri = editor.open(workspace / "softmax_rows.cu")
    await answers(editor, uri)
    await editor.run("cudaAgent.optimize", {"uri": uri, "kernel": WHERE})

    async def ended() -> bool:
        return not await editor.ask("cudaAgent/jobs", {})

    await editor.until("the end of the job", ended, 120.0)
    await answers(editor, uri)
    said = [message.message for message in editor.client.messages]
    assert said
    assert not any("internal error" in message or "Error(" in message for message in said), said


async def test_settings_that_make_no_sense_are_named_and_the_rest_holds(started: Starter, workspace: Path) -> None:
    editor = await started(vscode(), settings={"budgetSeconds": "soon", "nonsense": 1, "lens": False})
    uri = editor.open(workspace / "softmax_rows.cu")
    assert "give a number" in await editor.until_said("cudaAgent.budgetSeconds", 5.0)
    assert await editor.until_said("no setting cudaAgent.nonsense", 5.0)
    assert await editor.titles(uri) == []
    assert "**kernel**" in await editor.hover(uri, editor.at(uri, WHERE + "(const"))


@pytest.mark.skipif(not small_disk_works(), reason="needs bubblewrap that may mount a file system of limited size")
@pytest.mark.parametrize("room_for_libraries", [False, True])
async def test_a_cache_on_a_disk_that_is_full(
    started: Starter,
    workspace: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    room_for_libraries: bool,
) -> None:
    """A file system of 256 KiB. With the emulator's libraries elsewhere the search ends as always; without, it says
    why it cannot begin."""
    disk, native = tmp_path / "disk", cache / "native"
    disk.mkdir()
    native.mkdir(exist_ok=True)
    mounts = ["--size", str(256 << 10), "--tmpfs", str(disk)]
    if room_for_libraries:
        mounts += ["--bind", str(native), str(disk / "native")]
    command = ["bwrap", "--dev-bind", "/", "/", *mounts, "--die-with-parent", "--", *SERVER]
    monkeypatch.setattr("editor.SERVER", command)
    editor = await started(vscode(), environment={"CUDA_AGENT_CACHE": str(disk)})
    uri = editor.open(workspace / "softmax_rows.cu")
    await answers(editor, uri)
    await editor.run("cudaAgent.optimize", {"uri": uri, "kernel": WHERE})
    await answers(editor, uri)

    async def ended() -> bool:
        return not await editor.ask("cudaAgent/jobs", {})

    await editor.until("the end of the job", ended, 180.0)
    await answers(editor, uri)
    said = [message.message for message in editor.client.messages]
    assert not any("internal error" in message or "Traceback" in message for message in said), said
    (told,) = [message for message in said if "working without it" in message]
    assert str(disk) in told
    assert "Free some disk space" in told
    if room_for_libraries:
        assert await editor.until_lens(uri, "verified on the emulator", 5.0)
    else:
        assert "no space is left for the cache" in said[-1]
