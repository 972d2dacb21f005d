"""The person's running language servers, asked for unsaved texts and given proposals (`lsp/attach.py`). Without one the
file on disk counts."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent.engine import attach, wire
from cuda_agent.engine.codec import to_json
from cuda_agent.errors import CudaAgentError, SourceError
from cuda_agent.model import Proposal

_log = logging.getLogger(__name__)
ANSWER_S = 3.0  # a server that is asked answers in milliseconds; one that hangs is left out


@dataclass(frozen=True)
class OpenText:
    """A document that is open in an editor, as it stands there."""

    server: Path  # its socket
    uri: str
    text: str
    version: int


async def find(path: Path) -> OpenText | None:
    """The text of `path` (resolved) in the newest server that has it open."""
    for server in attach.all_paths():
        try:
            async with asyncio.timeout(ANSWER_S), _connected(server) as connection:
                uri = _uri_of(path, await connection.ask("documents", {}))
                found = await connection.ask("text", {"uri": uri}) if uri else None
        except (OSError, TimeoutError, ValueError, CudaAgentError) as silent:
            _log.debug("the server at %s does not answer: %r", server, silent)
            continue
        if uri and found:
            return OpenText(server, uri, str(found["text"]), int(found["version"]))
    return None


async def propose(where: OpenText, proposal: Proposal) -> None:
    """SourceError when the editor cannot show it."""
    try:
        async with asyncio.timeout(ANSWER_S), _connected(where.server) as connection:
            await connection.ask("propose", {"proposal": to_json(proposal)})
    except (OSError, TimeoutError, ValueError) as gone:
        raise SourceError(f"the editor that had the file open does not answer ({gone!r}): try again") from gone


def _uri_of(path: Path, answer: Mapping[str, Any]) -> str | None:
    """Of the document that is this file; the editor's spelling may go through links."""
    for document in answer["documents"]:
        try:
            if Path(document["path"]).resolve() == path:
                return str(document["uri"])
        except (OSError, RuntimeError):
            continue
    return None


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        self.writer.write(wire.encode(wire.request(1, method, params)))
        answer = await wire.read(self.reader)
        if not isinstance(answer, dict):
            raise ConnectionError("the server closed the connection")
        if "error" in answer:
            raise SourceError(str(answer["error"].get("message", "refused")))
        return answer.get("result")


@asynccontextmanager
async def _connected(server: Path) -> AsyncIterator[_Connection]:
    reader, writer = await asyncio.open_unix_connection(server)
    try:
        peer: socket.socket = writer.get_extra_info("socket")
        if not attach.is_same_user(peer):
            raise PermissionError(f"{server} is served by somebody else")
        yield _Connection(reader, writer)
    finally:
        writer.close()
