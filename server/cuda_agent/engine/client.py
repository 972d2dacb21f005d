"""The server's side of the engine: starts it when first needed, starts it again when it dies, says what happened.

Everything runs on the caller's event loop; an answer that will never come ends as EngineDied."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from cuda_agent import keys
from cuda_agent.engine import messages, processes, wire
from cuda_agent.engine.codec import CodecError, from_json, to_json
from cuda_agent.engine.runner import describe_exit, rebuild_error
from cuda_agent.errors import CudaAgentError
from cuda_agent.trust import Answers

OnEvent = Callable[[object], None]
OnLost = Callable[[str], None]

MAX_DEATHS = 4
DEATH_WINDOW_S = 60.0


class EngineDied(CudaAgentError):
    """The engine ended while it worked for us."""


class EngineClient:
    """`on_event` gets JobProgress, JobDone and Log; `on_lost` a sentence when the engine died: its jobs are gone."""

    def __init__(self, on_event: OnEvent, on_lost: OnLost, command: tuple[str, ...] | None = None) -> None:
        self.on_event, self.on_lost = on_event, on_lost
        self.command = command or (sys.executable, "-m", "cuda_agent.engine", "--parent", str(os.getpid()))
        self.root = ""
        self.trusted: Answers = {}
        self._process: asyncio.subprocess.Process | None = None
        self._pending: dict[int, tuple[asyncio.subprocess.Process, asyncio.Future[Any]]] = {}
        self._next_id = 0
        self._starting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._deaths: collections.deque[float] = collections.deque(maxlen=MAX_DEATHS)
        self._stderr: collections.deque[str] = collections.deque(maxlen=10)
        self._closed = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def state(self) -> str:
        return "closed" if self._closed else "running" if self.pid is not None else "not started"

    async def request(self, method: str, params: object) -> Any:
        """The engine's result; its CudaAgentError; EngineDied when it ended first or cannot be kept alive."""
        await self._ensure()
        return await self._call(method, params)

    async def trust(self, trusted: Answers) -> None:
        """These answers hold from now on."""
        if trusted == self.trusted:
            return
        self.trusted = trusted
        if self.pid is not None:
            await self._call("trust", messages.Trust(trusted))

    async def restart(self) -> None:
        """End the engine with all its jobs; the next request starts a fresh one."""
        self._deaths.clear()
        await self._kill()

    async def close(self, deadline_s: float = 0.3) -> None:
        """Ask it to end its jobs and itself; kill it when it does not."""
        self._closed = True
        if self.pid is not None:
            with contextlib.suppress(TimeoutError, CudaAgentError):
                await asyncio.wait_for(asyncio.shield(self._call("shutdown", messages.Nothing())), deadline_s)
        await self._kill()

    # ------------------------------------------------------------ process

    async def _ensure(self) -> None:
        async with self._starting:
            if self._closed:
                raise EngineDied("the server is shutting down")
            if self.pid is not None:
                return
            now = time.monotonic()
            if len(self._deaths) == MAX_DEATHS and now - self._deaths[0] < DEATH_WINDOW_S:
                raise EngineDied(
                    f"the engine ended {MAX_DEATHS} times within a minute and is not started again; "
                    "see the server's log, then use the command cudaAgent.restartEngine"
                )
            await self._start()
            await self._call("initialize", messages.Initialize(self.root, self.trusted))

    async def _start(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=keys.environment(),
            start_new_session=True,
            limit=1 << 20,
        )
        self._process = process
        self._stderr.clear()
        for work in (self._listen(process), self._forward_stderr(process)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _kill(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        for _ in range(100):
            below = processes.descendants(process.pid)
            processes.signal_all([*below, process.pid])
            if not below:
                break
            await asyncio.sleep(0.003)
        processes.kill_group(process.pid)
        await process.wait()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while (message := await wire.read(process.stdout)) is not None:
                self._take(message)
        except (wire.WireError, ValueError) as broken:
            self._stderr.append(f"engine's stream is broken: {broken}")
            processes.signal_all([process.pid], signal.SIGKILL)
        code = await process.wait()
        self._lose(process, code)
        async with self._starting:  # a fresh engine must not be taken for an orphan of the old one
            await self._sweep()

    async def _sweep(self) -> None:
        """Orphans of a killed engine come back to us (`adopt_orphans`); guardians need a moment to end their jobs
        first."""
        for _ in range(50):
            left = [pid for pid in processes.children(os.getpid()) if pid != self.pid and processes.is_alive(pid)]
            processes.reap_adopted(
                [self.pid] if self.pid is not None else []
            )  # after the look: who ended since is reaped
            if not left:
                return
            await asyncio.sleep(0.01)
        for pid in left:
            processes.signal_all([*processes.descendants(pid), pid])
        processes.reap_adopted([self.pid] if self.pid is not None else [])

    def _lose(self, process: asyncio.subprocess.Process, code: int) -> None:
        self._deaths.append(time.monotonic())
        last = "\n".join(self._stderr)
        reason = f"the engine {describe_exit(code)}" + (f"\n{last}" if last else "")
        for owner, future in self._pending.values():
            if owner is process and not future.done():
                future.set_exception(EngineDied(reason))
        if not self._closed:
            self.on_lost(reason)

    async def _forward_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(1 << 16):
            self._stderr.extend(line for line in chunk.decode("utf-8", "replace").splitlines() if line.strip())
            os.write(2, chunk)

    # ------------------------------------------------------------ messages

    async def _call(self, method: str, params: object) -> Any:
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            raise EngineDied("the engine ended; try again")
        self._next_id += 1
        id = self._next_id
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[id] = (process, future)
        try:
            process.stdin.write(wire.encode(wire.request(id, method, to_json(params))))
            return await future
        finally:
            self._pending.pop(id, None)

    def _take(self, message: Mapping[str, Any]) -> None:
        if "method" in message:
            self._take_event(str(message["method"]), message.get("params") or {})
            return
        _, future = self._pending.get(message.get("id", -1), (None, None))
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(rebuild_error(message["error"]))
        else:
            future.set_result(message.get("result"))

    def _take_event(self, method: str, params: Mapping[str, Any]) -> None:
        shape = messages.EVENTS.get(method)
        if shape is None:
            return
        try:
            event: object = from_json(shape, params)
        except CodecError as problem:
            event = messages.Log("warning", f"the engine's {method} cannot be read: {problem}")
        self.on_event(event)
