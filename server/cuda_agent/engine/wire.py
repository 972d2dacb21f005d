"""JSON-RPC 2.0 framing (Content-Length headers, UTF-8) shared by the server, the engine and its job processes.

A process that speaks over its standard streams first calls `private_stdio`: a stray `print()` or a child that inherits
fd 1 would otherwise write into the middle of a message.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

Message = dict[str, Any]

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
CUDA_AGENT_ERROR = -32001  # a CudaAgentError; `data.kind` is its class name

MAX_HEADER = 4096
MAX_BODY = 1 << 30  # bytes; a longer Content-Length means that the stream is not ours


class WireError(Exception):
    """The other side sent bytes that are not a message; the stream cannot be trusted any further."""


def encode(message: Mapping[str, Any]) -> bytes:
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


def request(id: int | str, method: str, params: Mapping[str, Any]) -> Message:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": dict(params)}


def notification(method: str, params: Mapping[str, Any]) -> Message:
    return {"jsonrpc": "2.0", "method": method, "params": dict(params)}


def result(id: int | str, value: Any) -> Message:
    return {"jsonrpc": "2.0", "id": id, "result": value}


def error(id: int | str | None, code: int, message: str, data: Any = None) -> Message:
    body: Message = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    return {"jsonrpc": "2.0", "id": id, "error": body}


def _length(line: bytes, so_far: int) -> int:
    """The length after one header line; other headers are allowed and ignored."""
    name, _, value = line.partition(b":")
    if name.strip().lower() != b"content-length":
        return so_far
    try:
        length = int(value)
    except ValueError:
        raise WireError(f"bad Content-Length header: {line[:80]!r}") from None
    if not 0 <= length <= MAX_BODY:
        raise WireError(f"Content-Length {length} is outside 0…{MAX_BODY}")
    return length


def _decode(body: bytes) -> Any:
    """ValueError when the body is not JSON: the frame was whole, so the stream goes on."""
    return json.loads(body)


async def read(reader: asyncio.StreamReader) -> Any:
    """The next message's JSON value, None at the end of the stream. ValueError: not JSON. WireError: not frames."""
    length = -1
    while True:
        try:
            line = await reader.readline()
        except ValueError as broken:  # longer than the reader's limit
            raise WireError(str(broken)) from None
        if not line.endswith(b"\n"):
            return None
        if line in (b"\r\n", b"\n"):
            if length >= 0:
                break
            continue
        length = _length(line, length)
    try:
        return _decode(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        return None


def read_blocking(stream: BinaryIO) -> Any:
    """`read` for a thread of a job process."""
    length = -1
    while True:
        line = stream.readline(MAX_HEADER)
        if not line.endswith(b"\n"):
            return None
        if line in (b"\r\n", b"\n"):
            if length >= 0:
                break
            continue
        length = _length(line, length)
    body = stream.read(length)
    return _decode(body) if len(body) == length else None


class FdWriter:
    """Writes whole messages to a file descriptor. Blocking: order is kept and nothing is lost at exit.

    The descriptor may be non-blocking (it can share its description with our stdin): wait until it takes more."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def write(self, data: bytes) -> None:
        """BrokenPipeError when the other side is gone."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.fd, view) :]
            except BlockingIOError:
                select.select([], [self.fd], [], 1.0)

    def send(self, message: Mapping[str, Any]) -> None:
        self.write(encode(message))

    def close(self) -> None:
        os.close(self.fd)


def private_stdio() -> tuple[int, int]:
    """(in, out): private copies of fd 0 and 1. Afterwards fd 0 is /dev/null and fd 1 is stderr, so that neither our own
    `print()` nor a child that inherits them can touch the stream. The copies are not inheritable."""
    sys.stdout.flush()
    fd_in, fd_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return fd_in, fd_out


async def open_reader(fd: int) -> asyncio.StreamReader:
    """A reader on the event loop itself: no thread pool that busy handlers could starve."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20, loop=loop)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader, loop=loop), os.fdopen(fd, "rb", 0))
    return reader
