"""Other programs of the same person ask a running server for what only it knows: unsaved texts. They may also hand it a
proposal, which the person then sees and accepts or not. Nothing here changes a file.

The socket is served by the server's own event loop, one coroutine a connection; no request touches the disk for long or
waits for the engine. Which requests there are is in docs/protocol.md, which a test compares with `REQUESTS`."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent.engine import attach, wire
from cuda_agent.engine.codec import from_json
from cuda_agent.errors import SourceError, UsageError
from cuda_agent.lsp import render
from cuda_agent.model import Proposal

if TYPE_CHECKING:
    from cuda_agent.lsp.server import CudaAgentServer

_log = logging.getLogger(__name__)
MAX_CONNECTIONS = 16


def documents(server: CudaAgentServer, params: Mapping[str, Any]) -> dict[str, Any]:
    """What is open. Paths are as the editor spells them: whoever asks resolves links."""
    return {
        "root": str(server.root) if server.root else None,
        "documents": [
            {"uri": file.uri, "path": str(file.path), "version": file.document.version}
            for file in server.documents
            if file.path is not None
        ],
    }


def text(server: CudaAgentServer, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """The text of an open document, saved or not; None when it is not open."""
    file = server.documents.get(str(params.get("uri", "")))
    return {"text": file.document.text, "version": file.document.version} if file is not None else None


def propose(server: CudaAgentServer, params: Mapping[str, Any]) -> dict[str, Any]:
    """Show a judged candidate as a proposal of ours. UsageError when the file is not open, SourceError when it has no
    such kernel."""
    proposal = from_json(Proposal, params.get("proposal"))
    file = server.documents.get(proposal.uri)
    if file is None:
        raise UsageError(f"{proposal.uri} is not open")
    if proposal.verdict.status != "verified":
        raise SourceError("only a verified candidate is proposed")
    file.module.kernel(proposal.kernel)
    server.proposals.put(proposal)
    server.say(f"{proposal.kernel}: {render.proposal_title(proposal)} · proposed by {proposal.candidate.origin}")
    server.refresh_soon()
    return {"shown": True}


REQUESTS = {"documents": documents, "text": text, "propose": propose}


class Listener:
    """Listens until `close`. Where there can be no socket (no such folder, a path too long) the server goes on
    without."""

    def __init__(self, server: CudaAgentServer) -> None:
        self.server = server
        self.path: Path | None = None
        self._listening: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        if self._listening is not None or not hasattr(asyncio, "start_unix_server"):
            return
        try:
            path = attach.own_path()
            attach.remove_stale()
            path.unlink(missing_ok=True)  # of an earlier process with our number, in another container
            self._listening = await asyncio.start_unix_server(self._serve, path)
        except OSError as error:
            _log.warning("other programs cannot ask this server for unsaved texts: %s", error)
            return
        self.path = path

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for writer in list(self._connections):
            writer.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            self.path = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: socket.socket = writer.get_extra_info("socket")
        if not attach.is_same_user(peer) or len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.add(writer)
        try:
            while (message := await wire.read(reader)) is not None:
                writer.write(wire.encode(self._answer(message)))
                await writer.drain()
        except (wire.WireError, ValueError, OSError) as broken:
            _log.info("a program that asked us said something unreadable or left: %s", broken)
        finally:
            self._connections.discard(writer)
            writer.close()

    def _answer(self, message: Any) -> wire.Message:
        """Never raises: whatever goes wrong becomes the answer."""
        asked = message if isinstance(message, Mapping) else {}
        id, params = asked.get("id"), asked.get("params")
        handler = REQUESTS.get(str(asked.get("method")))
        if handler is None or not isinstance(id, (int, str)):
            return wire.error(None, wire.METHOD_NOT_FOUND, f"there are {', '.join(REQUESTS)}")
        try:
            return wire.result(id, handler(self.server, params if isinstance(params, Mapping) else {}))
        except (SourceError, UsageError, ValueError) as problem:
            return wire.error(id, wire.INVALID_PARAMS, str(problem))
        except Exception as failure:  # the catch-all
            return wire.error(id, wire.INTERNAL_ERROR, self.server.failed(f"attach {asked.get('method')}", failure))
