"""The known traps of a pygls server, one test each: what we do instead, seen from outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest_asyncio
from editor import children, command_line
from raw import Raw

from patience import patience

Start = Callable[..., Awaitable[Raw]]
FOREVER = {"device": "emulator", "runCommand": "sleep 1000"}


@pytest_asyncio.fixture
async def raw(workspace: Path, cache: Path, tmp_path: Path) -> AsyncIterator[Start]:
    made: list[Raw] = []

    async def begin(settings: dict[str, Any] | None = None, trusted: bool | None = True, **initialize: Any) -> Raw:
        environment = {"CUDA_AGENT_CACHE": str(cache), "XDG_CONFIG_HOME": str(tmp_path / "config")}
        options: dict[str, Any] = {"settings": settings or FOREVER}
        if trusted is not None:
            options["trusted"] = trusted
        one = await Raw.start(workspace, environment, initializationOptions=options, **initialize)
        made.append(one)
        return one

    yield begin
    for one in made:
        await one.kill()


async def start_endless_job(one: Raw, workspace: Path) -> tuple[str, str, list[int]]:
    """A capture of `sleep 1000`: (uri, job, pids of everything below the server, with the sleep among them)."""
    uri = await one.open(workspace / "softmax_rows.cu")
    began = time.monotonic()
    job = (await one.command("cudaAgent.capture", {"uri": uri, "kernel": "softmax_rows"}))["job"]
    assert time.monotonic() - began < patience(0.3), "a command answers with its job id at once"
    for _ in range(3000):
        below = children(one.process.pid)
        if any(command_line(pid).startswith("sleep 1000") for pid in below):
            return uri, job, below
        await asyncio.sleep(0.01)
    raise AssertionError([m for m in one.others if m.get("method") == "window/showMessage"])


async def gone(pids: list[int], seconds: float) -> bool:
    end = time.monotonic() + patience(seconds)
    while any(_alive(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.005)
    return True


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_busy_jobs_do_not_make_the_server_deaf(raw: Start, workspace: Path) -> None:
    one = await raw()
    uri, *_ = await start_endless_job(one, workspace)
    for name in ("a.cu", "b.cu", "c.cu"):  # more than any pool of this machine would take
        text = (workspace / "softmax_rows.cu").read_text()
        (workspace / name).write_text(text)
        other = await one.open(workspace / name)
        await one.command("cudaAgent.capture", {"uri": other, "kernel": "softmax_rows"})
    times = []
    for _ in range(50):
        began = time.monotonic()
        assert "kernel" in await one.hover(uri, 18, 20)
        times.append(time.monotonic() - began)
    assert sorted(times)[25] < patience(0.05)
    information = (await one.request("cudaAgent/debugInformation", {}))["result"]
    assert [name for name in information["threads"] if "Pool" in name] == []


async def test_cancelling_the_request_leaves_the_job_and_cancelling_the_job_kills_it(
    raw: Start, workspace: Path
) -> None:
    one = await raw()
    uri = await one.open(workspace / "softmax_rows.cu")
    params = {"command": "cudaAgent.capture", "arguments": [{"uri": uri, "kernel": "softmax_rows"}]}
    id, answer = one.send("workspace/executeCommand", params)
    one.notify("$/cancelRequest", {"id": id})
    reply = await answer
    jobs = (await one.request("cudaAgent/jobs", {}))["result"]
    assert [job["kind"] for job in jobs] == ["capture"] or "error" in reply
    _, job, below = await start_endless_job(one, workspace)
    engine = next(pid for pid in below if "cuda_agent.engine --parent" in command_line(pid))
    began = time.monotonic()
    assert (await one.request("cudaAgent/job/cancel", {"job": job}))["result"] == {"cancelled": True}
    assert time.monotonic() - began < patience(0.5)
    left = [pid for pid in children(one.process.pid) if pid != engine and pid in below]
    assert not any("sleep 1000" in command_line(pid) for pid in left)
    assert (await one.request("cudaAgent/jobs", {}))["result"] == []


async def test_a_late_answer_to_a_cancelled_wait_does_no_harm(raw: Start, workspace: Path) -> None:
    one = await raw(trusted=None)
    one.mute.add("window/showMessageRequest")
    uri = await one.open(workspace / "softmax_rows.cu")
    params = {"command": "cudaAgent.capture", "arguments": [{"uri": uri, "kernel": "softmax_rows"}]}
    id, answer = one.send("workspace/executeCommand", params)
    question = await one.wait_for("window/showMessageRequest")
    one.notify("$/cancelRequest", {"id": id})
    assert (await answer)["error"]["code"] == -32800
    one.write(b'{"jsonrpc":"2.0","id":"%s","result":null}' % question["id"].encode())
    assert "kernel" in await one.hover(uri, 18, 20)
    code, stderr = await one.finish()
    assert code == 0
    assert "InvalidStateError" not in stderr


async def test_shutdown_with_a_pending_command_and_a_running_job(raw: Start, workspace: Path) -> None:
    one = await raw(capabilities={"window": {"workDoneProgress": True}})
    _, _, below = await start_endless_job(one, workspace)
    began = time.monotonic()
    code, stderr = await one.finish()
    assert time.monotonic() - began < patience(1.0)
    assert code == 0
    assert "Traceback" not in stderr
    assert await gone(below, 0.5)


async def test_shutdown_while_a_question_is_open(raw: Start, workspace: Path) -> None:
    one = await raw(trusted=None)
    one.mute.add("window/showMessageRequest")
    uri = await one.open(workspace / "softmax_rows.cu")
    params = {"command": "cudaAgent.capture", "arguments": [{"uri": uri, "kernel": "softmax_rows"}]}
    one.send("workspace/executeCommand", params)
    await one.wait_for("window/showMessageRequest")
    code, stderr = await one.finish()
    assert code == 0
    assert "dictionary changed size" not in stderr


async def test_exit_without_shutdown_is_1_and_takes_everything_along(raw: Start, workspace: Path) -> None:
    one = await raw()
    _, _, below = await start_endless_job(one, workspace)
    one.notify("exit", None)
    assert (await one.ended(2.0))[0] == 1
    assert await gone(below, 0.5)


async def test_end_of_the_stream_is_an_exit_too(raw: Start, workspace: Path) -> None:
    one = await raw()
    _, _, below = await start_endless_job(one, workspace)
    assert one.process.stdin is not None
    one.process.stdin.close()
    assert (await one.ended(2.0))[0] == 1
    assert await gone(below, 0.5)


async def test_a_sigkilled_server_leaves_no_process(raw: Start, workspace: Path) -> None:
    one = await raw()
    _, _, below = await start_endless_job(one, workspace)
    one.process.send_signal(signal.SIGKILL)
    assert await gone(below, 1.0), [command_line(pid) for pid in below if _alive(pid)]


async def test_the_server_ends_with_its_client(raw: Start, workspace: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as client:
        one = await raw(processId=client.pid)
        _, _, below = await start_endless_job(one, workspace)
        client.kill()
        assert (await one.ended(2.0))[0] == 1
        assert await gone(below, 0.5)


async def test_a_client_in_another_pid_namespace_does_not_end_the_server(raw: Start, workspace: Path) -> None:
    one = await raw(processId=(1 << 22) - 3)  # no such process here
    uri = await one.open(workspace / "softmax_rows.cu")
    assert "kernel" in await one.hover(uri, 18, 20)


async def test_what_the_program_prints_stays_out_of_the_stream(raw: Start, workspace: Path) -> None:
    one = await raw({"device": "emulator", "runCommand": "sh -c 'echo Content-Length: 5; echo noise; exit 3'"})
    uri = await one.open(workspace / "softmax_rows.cu")
    await one.command("cudaAgent.capture", {"uri": uri, "kernel": "softmax_rows"})
    await one.wait_for("window/showMessage")  # it failed, and says so
    assert "kernel" in await one.hover(uri, 18, 20)  # Raw fails on stray bytes
    assert (await one.finish())[0] == 0


async def test_form_feeds_and_line_separators_do_not_end_a_line(raw: Start, workspace: Path) -> None:
    one = await raw(trusted=False)
    text = "// a\fb\u2028c\u0085d\x1ce\r// f\r\n__global__ void k(int n) {}\n"
    path = workspace / "odd.cu"
    uri = await one.open(path, text)
    assert "**kernel** `k`" in await one.hover(uri, 2, 16)
    where = {"start": {"line": 2, "character": 16}, "end": {"line": 2, "character": 17}}
    change = {"textDocument": {"uri": uri, "version": 2}, "contentChanges": [{"range": where, "text": "other"}]}
    one.notify("textDocument/didChange", change)
    assert "**kernel** `other`" in await one.hover(uri, 2, 16)


async def test_requests_see_the_text_of_their_place_in_the_stream(raw: Start, workspace: Path) -> None:
    """Every message is written before any answer is read: an asynchronous didChange would show the last text to all."""
    one = await raw(trusted=False)
    uri = await one.open(workspace / "k.cu", "__global__ void k0(int n) {}\n")
    answers = []
    for version in range(1, 30):
        text = f"__global__ void k{version}(int n) {{}}\n"
        change = {"textDocument": {"uri": uri, "version": version + 1}, "contentChanges": [{"text": text}]}
        one.notify("textDocument/didChange", change)
        where = {"textDocument": {"uri": uri}, "position": {"line": 0, "character": 16}}
        answers.append(one.send("textDocument/hover", where)[1])
    for version, answer in enumerate(answers, 1):
        assert f"`k{version}`" in (await answer)["result"]["contents"]["value"]


async def test_no_text_of_the_person_in_the_log_and_a_trace_of_names_only(raw: Start, workspace: Path) -> None:
    one = await raw(trusted=False)
    uri = await one.open(workspace / "k.cu", "__global__ void secret_kernel(int n) {}\n")
    one.notify("$/setTrace", {"value": "verbose"})
    await one.hover(uri, 0, 18)
    trace = await one.wait_for("$/logTrace")
    assert "secret" not in str(trace)
    code, stderr = await one.finish()
    assert code == 0
    assert "secret" not in stderr


async def test_messages_nobody_should_send(raw: Start, workspace: Path) -> None:
    one = await raw(trusted=False)
    uri = await one.open(workspace / "k.cu", "__global__ void k(int n) {}\n")
    one.write(b"{not json")
    assert (await one.request("textDocument/hover", {"textDocument": 3}))["error"]["code"] == -32602
    assert (await one.request("no/such", {}))["error"]["code"] == -32601
    one.write(b"[1, 2]")
    one.notify("textDocument/didChange", {"textDocument": {"uri": "file:///never", "version": 1}, "contentChanges": []})
    one.notify("window/workDoneProgress/cancel", {"token": "nobody's"})
    for arguments in ([], [None], [{"uri": 3}], [{"uri": uri, "kernel": "missing"}], [{"uri": uri, "proposal": "x"}]):
        for command in ("cudaAgent.optimize", "cudaAgent.accept", "cudaAgent.showDiff", "cudaAgent.cancel"):
            assert "error" in await one.command(command, *arguments) or command == "cudaAgent.cancel"
    nested = {"type_name": "x", "jsonrpc": "2.0", "method": "exit"}
    assert (await one.request("cudaAgent/proposal", {"id": "none", "more": nested}))["result"] is None
    assert "`k`" in await one.hover(uri, 0, 16)
    assert (await one.finish())[0] == 0


def test_the_command_line_does_not_import_the_server() -> None:
    code = "import sys; from cuda_agent import cli\ntry: cli.main(['--version'])\nexcept SystemExit: pass\n"
    code += "assert not {'pygls', 'lsprotocol', 'cattrs'} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_engine_does_not_import_the_server() -> None:
    code = "import sys; from cuda_agent.engine import server, tasks\n"
    code += "assert not {'pygls', 'lsprotocol', 'cattrs'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


async def test_the_converter_is_warm_before_the_first_hover(raw: Start, workspace: Path) -> None:
    one = await raw(trusted=False)
    uri = await one.open(workspace / "k.cu", "__global__ void k(int n) {}\n")
    await one.request("cudaAgent/jobs", {})  # initialized has been handled
    began = time.monotonic()
    await one.hover(uri, 0, 16)
    assert time.monotonic() - began < patience(0.05)


@contextlib.contextmanager
def stopped(pid: int) -> Any:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def test_an_engine_that_hangs_does_not_hold_up_the_server_or_its_end(raw: Start, workspace: Path) -> None:
    one = await raw()
    uri, _, below = await start_endless_job(one, workspace)
    engine = next(pid for pid in below if "cuda_agent.engine --parent" in command_line(pid))
    with stopped(engine):
        assert "kernel" in await one.hover(uri, 18, 20)
        began = time.monotonic()
        code, _ = await one.finish()
        assert time.monotonic() - began < patience(1.5)
    assert code == 0
    assert await gone(below, 0.5)
