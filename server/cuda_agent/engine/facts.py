"""Compiler facts in one long-lived job process: one compile at a time, the newest text of a file replaces one that
waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from cuda_agent.engine.codec import to_json
from cuda_agent.engine.messages import FactsOf, Log
from cuda_agent.engine.runner import JobProcess
from cuda_agent.errors import Cancelled, DeadlineExceeded
from cuda_agent.trust import Answers

DEADLINE_S = 120.0  # a file that includes all of cub takes seconds, a runaway template may never end


class FactsWorker:
    def __init__(
        self, emit: Callable[[str, object], None], cwd: Callable[[], str], trusted: Callable[[], Answers]
    ) -> None:
        self.emit, self.cwd, self.trusted = emit, cwd, trusted
        self._waiting: dict[str, tuple[FactsOf, asyncio.Future[Any]]] = {}  # by path, oldest first
        self._process = JobProcess(self._notice)
        self._drain: asyncio.Task[None] | None = None

    async def request(self, params: FactsOf) -> Any:
        """What `tasks.facts` returns. Cancelled: a newer text of the same file came while this one waited."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        replaced = self._waiting.pop(params.path, None)
        if replaced is not None and not replaced[1].done():
            replaced[1].set_exception(Cancelled("a newer version of the file is waiting"))
        self._waiting[params.path] = (params, answer)
        if self._drain is None or self._drain.done():
            self._drain = asyncio.create_task(self._run_all())
        return await answer

    async def close(self) -> None:
        for _, answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Cancelled("the engine is closing"))
        self._waiting.clear()
        await self._process.kill()
        if self._drain is not None:
            await asyncio.gather(self._drain, return_exceptions=True)

    async def _run_all(self) -> None:
        while self._waiting:
            path = next(iter(self._waiting))
            params, answer = self._waiting.pop(path)
            try:
                work = self._process.run("facts", to_json(params), self.cwd(), self.trusted())
                value = await asyncio.wait_for(work, DEADLINE_S)
                self._settle(answer, value, None)
            except TimeoutError:
                await self._process.kill()
                self._settle(
                    answer, None, DeadlineExceeded(f"compiling {path} took over {DEADLINE_S:.0f} s and was stopped")
                )
            except Exception as failure:  # handed to whoever asked; the queue goes on
                self._settle(answer, None, failure)

    @staticmethod
    def _settle(answer: asyncio.Future[Any], value: Any, failure: Exception | None) -> None:
        if answer.done():
            return
        if failure is None:
            answer.set_result(value)
        else:
            answer.set_exception(failure)

    def _notice(self, method: str, notice: Mapping[str, Any]) -> None:
        if method == "log":
            self.emit("log", Log(notice.get("level", "info"), str(notice.get("message", ""))))
