"""Which files a client may name: those below the folders that the person gave on the command line, else below the
client's own roots, else below the folder in which the server was started. Links are followed before that is asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlparse

import mcp_types as types
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError

from cuda_agent.errors import SourceError, UsageError

_log = logging.getLogger(__name__)
ANSWER_S = 5.0


async def folders(given: Sequence[Path], session: ServerSession) -> list[Path]:
    """Resolved, never empty. A client may change its roots, so it is asked each time."""
    found = list(given) or await _roots(session) or [Path.cwd()]
    return [folder.resolve() for folder in found]


async def _roots(session: ServerSession) -> list[Path]:
    """The client's, where it has any and can be asked (newer versions of the protocol have none)."""
    capabilities = session.client_capabilities
    if capabilities is None or capabilities.roots is None or not session.can_send_request:
        return []
    try:
        answer = await asyncio.wait_for(session.send_request(types.ListRootsRequest(), types.ListRootsResult), ANSWER_S)
    except (MCPError, TimeoutError) as refused:
        _log.warning("the client did not say its roots: %s", refused)
        return []
    parts = [urlparse(str(root.uri)) for root in answer.roots]
    return [Path(unquote(part.path)) for part in parts if part.scheme == "file" and part.netloc in ("", "localhost")]


def find(name: str, allowed: Sequence[Path]) -> tuple[Path, Path]:
    """A file and the folder of `allowed` that holds it, both resolved; a relative name is below the first folder.
    UsageError for a place outside, SourceError when there is no such file."""
    try:
        path = (allowed[0] / name).resolve()
        is_file = path.is_file()
    except (OSError, RuntimeError, ValueError) as broken:  # too long, a loop of links, a zero byte
        raise SourceError(f"{name[:200]!r} is no path: {broken}") from broken
    inside = [folder for folder in allowed if path.is_relative_to(folder)]
    if not inside:
        where = ", ".join(map(str, allowed))
        raise UsageError(f"{name} is outside of the folders that this server may read ({where})")
    if not is_file:
        raise SourceError(f"{path}: no such file")
    return path, max(inside, key=lambda folder: len(folder.parts))
