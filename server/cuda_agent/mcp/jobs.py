"""One tool call's heavy work, in a process tree of its own (`engine/job.py`): progress comes out of it, a cancel ends
all of it. One job at a time, the others wait in order; compiler facts do not wait."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import anyio

from cuda_agent.engine.runner import JobProcess
from cuda_agent.errors import DeadlineExceeded
from cuda_agent.trust import Trust

_log = logging.getLogger(__name__)
TASKS = "cuda_agent.mcp.tasks"
INTERVAL_S = 0.2  # between two words of progress

Say = Callable[[float, str], Awaitable[None]]


class Progress:
    """What a job says, to the client: the newest word wins, and the number rises each time, as the protocol wants."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._news = asyncio.Event()
        self._percentage, self._message = 0.0, ""

    def take(self, method: str, notice: Mapping[str, Any]) -> None:
        """A notice of `JobProcess`."""
        if method == "log":
            _log.info("%s", notice.get("message"))
            return
        best = notice.get("best")
        self.set(
            float(notice.get("percentage") or 0),
            str(notice.get("message") or "") + (f" · best {best}" if best else ""),
        )

    def set(self, percentage: float, message: str) -> None:
        self._percentage, self._message = min(percentage, 99.0), message
        self._news.set()

    async def forward(self) -> None:
        """Until cancelled. A client that is gone hears nothing; its call is cancelled by others."""
        sent, last = "", 0.0
        while True:
            await self._news.wait()
            self._news.clear()
            if self._message and self._message != sent:
                sent, last = self._message, max(self._percentage, last + 0.01)
                await self._say(last, sent)
            await asyncio.sleep(INTERVAL_S)


class Jobs:
    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(
        self, kind: str, params: Mapping[str, Any], cwd: str, say: Say, limit_s: float, *, waits: bool = True
    ) -> Any:
        """The task's answer. Its CudaAgentError; DeadlineExceeded after `limit_s` seconds. When the caller is cancelled
        the job and all below it are killed before this returns."""
        progress = Progress(say)
        forward = asyncio.create_task(progress.forward())
        process = JobProcess(progress.take, TASKS)
        turn: AbstractAsyncContextManager[Any] = self._turn if waits else nullcontext()
        try:
            if waits and self._turn.locked():
                progress.set(0, "waiting for another job to end")
            async with turn:
                began = time.monotonic()
                with anyio.move_on_after(limit_s):
                    return await process.run(kind, params, cwd, Trust().answers)
                raise DeadlineExceeded(
                    f"{kind} was stopped after {time.monotonic() - began:.0f} s: the program or a kernel may never "
                    "end, or the budget is too small for it"
                )
        finally:
            forward.cancel()
            with anyio.CancelScope(shield=True):
                await process.kill()
