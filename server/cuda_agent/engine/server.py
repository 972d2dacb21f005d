"""The engine process: typed JSON-RPC on stdio for the server, jobs in process trees of their own.

It ends when its stdin ends (the server's heartbeat) or its parent dies, and takes every job with it. A SIGKILL of this
process leaves the jobs to their guardians, which see the same hang-up."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from cuda_agent import keys, trust
from cuda_agent.engine import messages, processes, wire
from cuda_agent.engine.codec import CodecError, from_json, to_json
from cuda_agent.engine.facts import FactsWorker
from cuda_agent.engine.job import error_body
from cuda_agent.engine.registry import Registry
from cuda_agent.errors import CudaAgentError, Untrusted
from cuda_agent.paths import project

Handler = Callable[[Any], Awaitable[Any]]


class Engine:
    """One workspace's engine. `send` takes whole messages."""

    def __init__(self, send: Callable[[wire.Message], None]) -> None:
        self.send = send
        self.root: Path | None = None
        self.trusted: trust.Answers = {}
        self.closing = asyncio.Event()
        self.registry = Registry(self.emit, self.folder, lambda: self.trusted)
        self.facts = FactsWorker(self.emit, lambda: str(self.root or Path.cwd()), lambda: self.trusted)
        self.handlers: dict[str, Handler] = {
            "initialize": self.on_initialize,
            "trust": self.on_trust,
            "facts": self.on_facts,
            "capture": lambda params: self.on_job("capture", params),
            "optimize": lambda params: self.on_job("optimize", params),
            "verify": lambda params: self.on_job("verify", params),
            "cancel": self.on_cancel,
            "model/answer": self.on_model_answer,
            "jobs": self.on_jobs,
            "shutdown": self.on_shutdown,
        }

    def emit(self, method: str, event: object) -> None:
        self.send(wire.notification(method, to_json(event)))

    # ------------------------------------------------------------ requests

    async def on_initialize(self, params: messages.Initialize) -> Mapping[str, Any]:
        self.root = Path(params.root).resolve() if params.root and Path(params.root).is_dir() else None
        self.trusted = params.trusted
        return {"pid": os.getpid()}

    async def on_trust(self, params: messages.Trust) -> None:
        before, self.trusted = self.trusted, params.trusted
        granted = {**before, **{folder: True for folder, yes in params.trusted.items() if yes}}
        if granted != dict(params.trusted):  # something was taken back
            await asyncio.gather(self.facts.close(), *(self.registry.cancel(id) for id in list(self.registry.jobs)))

    async def on_facts(self, params: messages.FactsOf) -> Any:
        self._need_trust(params.path)
        return await self.facts.request(params)

    async def on_job(self, kind: messages.JobKind, params: Any) -> Mapping[str, Any]:
        self._need_trust(params.path)
        return {"job": self.registry.submit(kind, params).id}

    async def on_cancel(self, params: messages.Cancel) -> Mapping[str, Any]:
        return {"cancelled": await self.registry.cancel(params.job)}

    async def on_model_answer(self, params: messages.ModelAnswer) -> None:
        self.registry.answer(params.job, params.ask, params.answer)

    async def on_jobs(self, params: messages.Nothing) -> list[Mapping[str, Any]]:
        return [
            {"job": job.id, "kind": job.kind, "kernel": job.params.kernel, "state": job.state, "pid": job.process.pid}
            for job in self.registry.jobs.values()
        ]

    async def on_shutdown(self, params: messages.Nothing) -> None:
        await self.close()
        self.closing.set()

    def folder(self, path: str) -> str:
        """Where a file's job runs: the workspace, for a file outside of it the file's project."""
        inside = self.root is not None and Path(path).is_relative_to(self.root)
        return str(self.root if inside else project(Path(path)))

    def _need_trust(self, path: str) -> None:
        """What else a job compiles it asks for itself (`trust.need`)."""
        place = trust.uncovered(Path(path), self.trusted)
        if place is not None:
            raise Untrusted(trust.refusal(project(place)))

    # ------------------------------------------------------------ the stream

    async def handle(self, message: Any) -> None:
        """Answers one message. Never raises: whatever goes wrong becomes the answer."""
        id = message.get("id") if isinstance(message, dict) else None
        try:
            if not isinstance(message, dict) or not isinstance(message.get("method"), str):
                self.send(wire.error(id, wire.INVALID_REQUEST, "not a JSON-RPC request"))
                return
            handler, shape = self.handlers.get(message["method"]), messages.REQUESTS.get(message["method"])
            if handler is None or shape is None:
                self.send(wire.error(id, wire.METHOD_NOT_FOUND, f"no such method: {message['method']}"))
                return
            value = await handler(from_json(shape, message.get("params") or {}))
            if id is not None:
                self.send(wire.result(id, value))
        except CodecError as problem:
            self.send(wire.error(id, wire.INVALID_PARAMS, str(problem)))
        except Exception as failure:  # the catch-all of this process
            if not isinstance(failure, CudaAgentError):
                sys.excepthook(type(failure), failure, failure.__traceback__)
            self.send(wire.error(id, *error_body(failure)))

    async def serve(self, reader: asyncio.StreamReader) -> int:
        """Until `shutdown`, the end of the stream (0) or a broken one (1)."""
        running: set[asyncio.Task[None]] = set()
        closing = asyncio.create_task(self.closing.wait())
        code = 0
        while not self.closing.is_set():
            reading = asyncio.create_task(wire.read(reader))
            await asyncio.wait({reading, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                break
            try:
                message = reading.result()
            except wire.WireError as broken:
                print(f"engine: {broken}", file=sys.stderr)
                code = 1
                break
            except ValueError as broken:
                self.send(wire.error(None, wire.PARSE_ERROR, str(broken)))
                continue
            if message is None:
                break
            task = asyncio.create_task(self.handle(message))
            running.add(task)
            task.add_done_callback(running.discard)
        closing.cancel()
        await self.close()
        return code

    async def close(self) -> None:
        await asyncio.gather(self.registry.close(), self.facts.close())
        for _ in range(100):  # orphans that came back to us
            if processes.kill_below(os.getpid(), 0.02):
                break
            await asyncio.sleep(0.002)


async def _serve(fd_in: int, fd_out: int) -> int:
    writer = wire.FdWriter(fd_out)

    def send(message: wire.Message) -> None:
        try:
            writer.send(message)
        except BrokenPipeError:
            engine.closing.set()  # the server is gone; the read side ends too

    engine = Engine(send)
    return await engine.serve(await wire.open_reader(fd_in))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m cuda_agent.engine", description=__doc__)
    parser.add_argument("--parent", type=int, help="end when this process, our parent, ends")
    options = parser.parse_args(argv)
    if options.parent is not None:
        processes.die_with_parent(options.parent)
    processes.adopt_orphans()
    keys.take()
    fd_in, fd_out = wire.private_stdio()
    return asyncio.run(_serve(fd_in, fd_out))
