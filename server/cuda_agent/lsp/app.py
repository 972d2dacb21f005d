"""`cuda-agent serve`: the language server on stdin and stdout.

The stream is read by the event loop itself, not by pygls's thread pool, so nothing can make the server deaf; fd 1 is
private, so nothing can write into the stream. Exit code 0 after shutdown and exit, else 1."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from cuda_agent import keys
from cuda_agent.engine import processes, wire
from cuda_agent.lsp import handlers
from cuda_agent.lsp.server import CudaAgentServer

_log = logging.getLogger(__name__)
POLL_S = 1.0


class _Writer(wire.FdWriter):
    """pygls's writer. A client that is gone ends the server instead of raising in whoever was talking."""

    def __init__(self, fd: int, gone: Callable[[], None]) -> None:
        super().__init__(fd)
        self._gone = gone

    def write(self, data: bytes) -> None:
        try:
            super().write(data)
        except OSError:
            self._gone()

    def close(self) -> None:
        return


def watch_client(pid: int | None, gone: Callable[[], None]) -> None:
    """Call `gone` when the client's process ends. A pid that is not there from the start is one of another namespace (a
    container, another host): it says nothing, and the stream's end has to do."""
    loop = asyncio.get_running_loop()
    if not pid:
        return
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return
    except PermissionError:  # it exists, under another user
        pass
    if hasattr(os, "pidfd_open"):
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return

        def ended() -> None:
            loop.remove_reader(fd)
            os.close(fd)
            gone()

        loop.add_reader(fd, ended)
        return

    def poll() -> None:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            gone()
            return
        loop.call_later(POLL_S, poll)

    loop.call_later(POLL_S, poll)


async def serve(fd_in: int, fd_out: int) -> int:
    stop = asyncio.Event()
    server = CudaAgentServer()
    handlers.register(server)
    protocol = server.protocol
    protocol.exited = stop
    protocol.on_shutdown = server.end
    protocol.set_writer(_Writer(fd_out, stop.set))
    reader = await wire.open_reader(fd_in)
    stopping = asyncio.create_task(stop.wait())
    watched = False
    try:
        while not stop.is_set():
            reading = asyncio.create_task(wire.read(reader))
            await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                break
            try:
                message = reading.result()
            except ValueError as broken:
                _log.warning("a message is not JSON: %s", broken)
                server.protocol._send_data(wire.error(None, wire.PARSE_ERROR, str(broken)))
                continue
            if message is None:
                break
            protocol.receive(message)
            if not gc.isenabled():  # what was made to start stays for good: no collection needs to look at it
                gc.freeze()
                gc.enable()
            if not watched and server.process_id is not None:
                watched = True
                watch_client(server.process_id, stop.set)
    except wire.WireError as broken:
        _log.error("the client's stream is broken: %s", broken)
        return 1
    finally:
        stopping.cancel()
        await server.end()
    return 0 if protocol.was_shut_down else 1


def main(argv: list[str] | None = None) -> int:
    """Options such as `--stdio`, which VS Code appends, are accepted and mean nothing: there is no other transport."""
    given: list[Any] = list(sys.argv[1:] if argv is None else argv)
    unknown = [word for word in given if word != "--stdio" and not str(word).startswith("--clientProcessId=")]
    if unknown:
        print(f"cuda-agent serve: unknown option {unknown[0]}; it takes none but --stdio", file=sys.stderr)
        return 3
    keys.take()
    fd_in, fd_out = wire.private_stdio()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("pygls").setLevel(logging.WARNING)  # at INFO it logs whole payloads, with the person's text
    processes.adopt_orphans()
    code = asyncio.run(serve(fd_in, fd_out))
    sys.stderr.flush()
    os._exit(code)  # nothing of a library's threads may delay the end


if __name__ == "__main__":
    sys.exit(main())
