"""The engine over its client, as the server uses it: trust, bad messages, facts, queue, deaths."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cuda_agent.config import Settings
from cuda_agent.engine import messages, processes, registry, wire
from cuda_agent.engine.client import EngineClient, EngineDied
from cuda_agent.engine.messages import Cancel, Capture, FactsOf, JobDone, Nothing, Optimize, Verify
from cuda_agent.errors import Cancelled, CudaAgentError, ToolchainError, Untrusted, UsageError
from cuda_agent.trust import Answers
from patience import patience

KERNEL = "__global__ void k(float *x) { x[threadIdx.x] = 1; }\n"
SLEEP = Settings("emulator", "sleep 1000")


class Link:
    """A client with what it heard."""

    def __init__(self, root: Path, trusted: Answers) -> None:
        self.events: list[object] = []
        self.lost: list[str] = []
        self.client = EngineClient(self.events.append, self.lost.append)
        self.client.root, self.client.trusted = str(root), trusted

    def done(self) -> list[JobDone]:
        return [event for event in self.events if isinstance(event, JobDone)]

    async def until_done(self, count: int, seconds: float = 20.0) -> list[JobDone]:
        end = time.monotonic() + patience(seconds)
        while len(self.done()) < count:
            assert time.monotonic() < end, self.events
            await asyncio.sleep(0.01)
        return self.done()


@pytest_asyncio.fixture
async def link(tmp_path: Path) -> AsyncIterator[Link]:
    made = Link(tmp_path, {"/": True})
    yield made
    pid = made.client.pid
    below = processes.descendants(pid) if pid is not None else []
    await made.client.close()
    assert not [one for one in below if processes.is_alive(one)]


async def test_untrusted_refuses_everything_that_compiles_or_runs(tmp_path: Path) -> None:
    link = Link(tmp_path, {"/elsewhere": True})
    asks = {
        "facts": FactsOf("/a.cu", KERNEL),
        "optimize": Optimize("/a.cu", KERNEL, "k"),
        "capture": Capture("/a.cu", KERNEL),
        "verify": Verify("/a.cu", KERNEL, KERNEL, "k"),
    }
    for method, params in asks.items():
        with pytest.raises(Untrusted, match="not trusted: nothing in it is compiled or run"):
            await link.client.request(method, params)
    assert await link.client.request("jobs", Nothing()) == []
    assert len(processes.descendants(link.client.pid or 0)) == 0
    await link.client.close()


async def test_messages_that_do_not_fit_are_answered(link: Link) -> None:
    with pytest.raises(CudaAgentError, match="no such method: dance"):
        await link.client.request("dance", Nothing())
    with pytest.raises(CudaAgentError, match="the field 'path' is missing"):
        await link.client.request("facts", Nothing())
    with pytest.raises(CudaAgentError, match="str expected, got int"):
        await link.client.request("cancel", Cancel(3))  # type: ignore[arg-type]
    assert await link.client.request("cancel", Cancel("no such job")) == {"cancelled": False}


def test_bytes_that_are_no_message_end_the_engine_with_1() -> None:
    command = [sys.executable, "-m", "cuda_agent.engine"]
    good = wire.encode(wire.request(1, "jobs", {}))
    bad = b"Content-Length: 5\r\n\r\n{bad}" + good + b"Content-Length: 2\r\n\r\n[]Content-Length: nonsense\r\n\r\n"
    done = subprocess.run(command, input=bad, capture_output=True, timeout=20, check=False)
    assert done.returncode == 1
    assert done.stdout.count(b"Content-Length") == 3
    assert b'"code":-32700' in done.stdout
    assert b'"id":1,"result":[]' in done.stdout
    assert b'"code":-32600' in done.stdout


async def test_a_job_that_cannot_be_done_ends_with_its_reason(link: Link, tmp_path: Path) -> None:
    path = tmp_path / "lib.cu"
    path.write_text(KERNEL)
    answer = await link.client.request("capture", Capture(str(path), KERNEL, "k", Settings("emulator"), "mine"))
    assert answer == {"job": "mine"}
    (done,) = await link.until_done(1)
    assert (done.job, done.kind, done.status) == ("mine", "capture", "failed")
    assert "set cudaAgent.runCommand" in done.message


async def test_jobs_run_in_order_and_each_ends_once(link: Link, tmp_path: Path) -> None:
    path = tmp_path / "lib.cu"
    path.write_text(KERNEL)
    for id in ("one", "two", "three"):
        await link.client.request("capture", Capture(str(path), KERNEL, "k", SLEEP, id))
    with pytest.raises(UsageError, match="there is a job two already"):
        await link.client.request("capture", Capture(str(path), KERNEL, "k", SLEEP, "two"))
    states = [(job["job"], job["state"]) for job in await link.client.request("jobs", Nothing())]
    assert states == [("one", "running"), ("two", "queued"), ("three", "queued")]
    await asyncio.sleep(0.3)
    for id in ("two", "one", "three"):
        began = time.monotonic()
        assert await link.client.request("cancel", Cancel(id)) == {"cancelled": True}
        assert time.monotonic() - began < patience(0.5)
    done = await link.until_done(3)
    assert [(event.job, event.status) for event in done] == [
        ("two", "cancelled"),
        ("one", "cancelled"),
        ("three", "cancelled"),
    ]


async def test_a_newer_text_replaces_one_that_waits(link: Link) -> None:
    asks = [
        FactsOf("/tmp/latest.cu", f"// {i}\n#error stop {i}\n", i, Settings(nvcc_path="/no/nvcc")) for i in range(4)
    ]
    answers = await asyncio.gather(*(link.client.request("facts", ask) for ask in asks), return_exceptions=True)
    assert [type(answer) is Cancelled for answer in answers[1:3]] == [True, True]
    assert isinstance(answers[3], ToolchainError)
    assert "does not run as nvcc" in str(answers[3])


async def test_a_killed_engine_is_told_and_started_again(link: Link, tmp_path: Path) -> None:
    path = tmp_path / "lib.cu"
    await link.client.request("capture", Capture(str(path), KERNEL, "k", SLEEP, "one"))
    first = link.client.pid
    assert first is not None
    await asyncio.sleep(0.5)
    below = processes.descendants(first)
    os.kill(first, signal.SIGSTOP)  # so that it dies with the request unanswered, with a compiler here or without
    waiting = asyncio.create_task(link.client.request("facts", FactsOf(str(path), KERNEL)))
    await asyncio.sleep(0.1)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(EngineDied, match="killed by SIGKILL"):
        await waiting
    assert "SIGKILL" in link.lost[0]
    for _ in range(200):
        if not any(processes.is_alive(pid) for pid in below):
            break
        await asyncio.sleep(0.01)
    assert not [pid for pid in below if processes.is_alive(pid)]
    assert await link.client.request("jobs", Nothing()) == []
    assert link.client.pid not in (None, first)


async def test_an_engine_that_keeps_dying_is_given_up_until_restarted(link: Link) -> None:
    for _ in range(4):
        await link.client.request("jobs", Nothing())
        assert link.client.pid is not None
        os.kill(link.client.pid, signal.SIGKILL)
        while link.client.pid is not None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
    with pytest.raises(EngineDied, match="not started again"):
        await link.client.request("jobs", Nothing())
    await link.client.restart()
    assert await link.client.request("jobs", Nothing()) == []


async def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    lost: list[str] = []
    client = EngineClient(lambda event: None, lost.append, (sys.executable, "-c", "raise SystemExit('no disk left')"))
    with pytest.raises(EngineDied, match="no disk left"):
        await client.request("jobs", Nothing())
    await client.close()


def test_a_search_has_a_deadline_and_a_capture_none() -> None:
    ask = Optimize("/a.cu", "", "k", Settings(budget_seconds=5.0))
    search = registry.Job("1", "optimize", ask, None)  # type: ignore[arg-type]
    assert registry.deadline_s(search) == 40.0
    capture = registry.Job("1", "capture", Capture("/a.cu", ""), None)  # type: ignore[arg-type]
    assert registry.deadline_s(capture) is None


def test_every_request_has_a_shape() -> None:
    assert all(isinstance(shape, type) for shape in [*messages.REQUESTS.values(), *messages.EVENTS.values()])
