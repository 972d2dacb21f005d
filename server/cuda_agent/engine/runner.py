"""The side of one job process (`job.py`) that asks: start it, talk to it, and end it with everything below it."""

from __future__ import annotations

import asyncio
import collections
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from cuda_agent import errors, keys
from cuda_agent.engine import processes, wire
from cuda_agent.trust import Answers

OnNotice = Callable[[str, Mapping[str, Any]], None]
NO_EDITOR = {"error": {"kind": "noProvider", "message": "no editor is on the other side"}}

KILL_DEADLINE_S = 0.4
STDERR_LINES = 20


class JobProcessDied(errors.WorkerDied):
    """The job's process ended without an answer."""


def describe_exit(code: int | None) -> str:
    """What an exit code says; a guardian passes its job's death by signal n on as 256 - n."""
    if code is None:
        return "is still running"
    number = -code if code < 0 else 256 - code if code > 256 - 65 else 0
    if not number:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = "; SIGKILL comes from `kill -9` or from the kernel when memory runs out" if number == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def rebuild_error(body: Mapping[str, Any]) -> errors.CudaAgentError:
    """The exception that a job or the engine sent; an unknown kind becomes the tree's root."""
    data = body.get("data") or {}
    kind = getattr(errors, str(data.get("kind", "")), None) if isinstance(data, Mapping) else None
    message = str(body.get("message", "unknown error"))
    if isinstance(kind, type) and issubclass(kind, errors.CompileError):
        return kind(message, str(data.get("diagnostics", "")))
    if isinstance(kind, type) and issubclass(kind, errors.CudaAgentError):
        return kind(message)
    return errors.CudaAgentError(message)


# Guardians of this process's jobs. Any other child is an orphan of a job whose guardian was killed.
_guardians: set[int] = set()
_spawning: set[object] = set()  # starts whose pid is not known yet


async def sweep_orphans() -> None:
    """Kill and reap children that are no guardian: they came back to us because theirs is dead."""
    while _spawning:
        await asyncio.sleep(0.002)
    own = os.getpid()
    orphans = [pid for pid in processes.children(own) if pid not in _guardians]
    for pid in orphans:
        processes.signal_all([*processes.descendants(pid), pid])
    for _ in range(100):
        alive = any(processes.is_alive(pid) for pid in orphans)
        processes.reap_adopted(_guardians)  # after the look: who ended since is reaped too
        if not alive:
            return
        await asyncio.sleep(0.002)


class JobProcess:
    """One `python -m cuda_agent.engine.job`. Runs one request at a time; `tasks` is the module that does the work.
    `asks`: `on_notice` takes the job's questions to the editor's language model; else each is answered with no."""

    def __init__(self, on_notice: OnNotice, tasks: str = "cuda_agent.engine.tasks", asks: bool = False) -> None:
        self.on_notice, self.tasks, self._asks = on_notice, tasks, asks
        self._process: asyncio.subprocess.Process | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stderr: collections.deque[str] = collections.deque(maxlen=STDERR_LINES)
        self._next_id = 0

    @property
    def pid(self) -> int | None:
        """The guardian's, which leads the process group; None when nothing runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self, cwd: str) -> None:
        command = (sys.executable, "-m", "cuda_agent.engine.job", self.tasks)
        pipe = asyncio.subprocess.PIPE
        mark = object()
        _spawning.add(mark)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                cwd=cwd,
                env=keys.environment(),
                start_new_session=True,
                limit=1 << 20,
            )
            _guardians.add(self._process.pid)
        finally:
            _spawning.discard(mark)
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._collect_stderr())]

    async def run(self, kind: str, params: Mapping[str, Any], cwd: str, trusted: Answers) -> Any:
        """The job's result; it compiles and runs only what `trusted` covers. Its CudaAgentError when it failed,
        JobProcessDied when its process ended first."""
        if self.pid is None:
            await self.start(cwd)
        self._next_id += 1
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._send(wire.request(self._next_id, "run", {"kind": kind, "params": params, "trusted": dict(trusted)}))
            return await self._answer
        finally:
            self._answer = None

    def ask_to_stop(self) -> None:
        """Let the job end by itself and hand in its best so far; `kill` follows when it does not."""
        self._send(wire.notification("cancel", {}))

    def answer(self, ask: int, answer: Mapping[str, Any]) -> None:
        """The editor's answer to a request of the job."""
        self._send(wire.notification("answer", {"ask": ask, "answer": answer}))

    async def kill(self) -> None:
        """SIGKILL the job and everything below it; returns when all are gone and reaped."""
        process = self._process
        if process is None:
            return
        end = time.monotonic() + KILL_DEADLINE_S
        while process.returncode is None and (victims := processes.descendants(process.pid)):
            processes.signal_all(victims)
            if time.monotonic() > end:
                break
            await asyncio.sleep(0.003)
        if process.returncode is None:
            processes.kill_group(process.pid)
        await process.wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send(self, message: wire.Message) -> None:
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            return
        process.stdin.write(wire.encode(message))

    async def _listen(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        reason = ""
        try:
            while (message := await wire.read(process.stdout)) is not None:
                self._take(message)
        except (wire.WireError, ValueError) as broken:
            reason = f"sent something that is not a message ({broken})"
            processes.kill_group(process.pid)
        code = await process.wait()
        _guardians.discard(process.pid)
        await sweep_orphans()
        if self._answer is not None and not self._answer.done():
            last = "\n".join(self._stderr)
            text = f"the job's process {reason or describe_exit(code)}; run the action again"
            self._answer.set_exception(JobProcessDied(f"{text}\n{last}" if last else text))

    def _take(self, message: wire.Message) -> None:
        if message.get("method") == "ask" and not self._asks:
            self.answer(int(message["params"]["ask"]), NO_EDITOR)
        elif "method" in message:
            self.on_notice(str(message["method"]), message.get("params") or {})
        elif self._answer is not None and not self._answer.done() and message.get("id") == self._next_id:
            if "error" in message:
                self._answer.set_exception(rebuild_error(message["error"]))
            else:
                self._answer.set_result(message.get("result"))

    async def _collect_stderr(self) -> None:
        process = self._process
        assert process is not None
        assert process.stderr is not None
        while chunk := await process.stderr.read(1 << 16):
            self._stderr.extend(chunk.decode("utf-8", "replace").splitlines())
            os.write(2, chunk)
