"""Frames between a client and its worker: a JSON header and raw bytes, length-prefixed, over any pair of byte streams.

    frame = magic "CAW1" | header length u32 | payload length u64 (little-endian) | header (UTF-8 JSON) | payload

The conversation, one job at a time:

    worker  ready {info, pid, version}            or  failed {error, missing}
    client  have {names}          worker  need {names}
    client  put {name} + bytes    (once for each needed blob)
    client  run {job, steps}      worker  turn  at {step, module}*  beat*  wait turn  result {step, result} + bytes  …
                                          done {job, uploaded}
                                  or      dying {step, error, module}   (a CUDA error: the process ends after it)

`turn`: the GPU is this job's now (`turn.py`), and its deadline begins, or goes on after `wait`. `at` names the module
that is about to run, so that a worker that is killed from outside can be blamed on the right binary. `uploaded`: bytes
of buffers that the job moved to the device. Python's JSON carries NaN and Infinity; both ends are this file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Protocol

VERSION = 3
MAGIC = b"CAW1"
_PREFIX = struct.Struct("<4sIQ")
MAX_HEADER = 256 * 1024 * 1024  # a job of thousands of buffers stays far below; more means a torn stream


class Stream(Protocol):
    """What a frame needs of a binary file object (an unbuffered pipe may write less than asked)."""

    def read(self, n: int, /) -> bytes | None: ...
    def write(self, data: Any, /) -> int | None: ...
    def flush(self) -> None: ...


class StreamClosed(Exception):
    """The other end is gone (end of file, or a broken pipe)."""


class TornStream(Exception):
    """The bytes are no frame: something else wrote to the stream."""


def write_frame(stream: Stream, header: Mapping[str, Any], payload: bytes | memoryview = b"") -> None:
    """Raises StreamClosed when the reader is gone."""
    text = json.dumps(header, separators=(",", ":")).encode()
    try:
        _write_all(stream, _PREFIX.pack(MAGIC, len(text), len(payload)) + text)
        _write_all(stream, payload)
        stream.flush()
    except (BrokenPipeError, ConnectionError, ValueError) as error:  # ValueError: closed by another thread
        raise StreamClosed(str(error)) from error


def _write_all(stream: Stream, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[stream.write(view) or 0 :]


def read_frame(stream: Stream) -> tuple[dict[str, Any], bytes]:
    """Next (header, payload). Raises StreamClosed at end of file, TornStream on anything that is no frame."""
    magic, header_size, payload_size = _PREFIX.unpack(_read_exactly(stream, _PREFIX.size))
    if magic != MAGIC or header_size > MAX_HEADER:
        raise TornStream(f"expected a frame, got {magic!r}")
    header = json.loads(_read_exactly(stream, header_size))
    if not isinstance(header, dict) or "type" not in header:
        raise TornStream("a frame without a type")
    return header, bytes(_read_exactly(stream, payload_size))


def _read_exactly(stream: Stream, size: int) -> bytes | bytearray:
    if size == 0:
        return b""
    first = stream.read(size)
    if first is not None and len(first) == size:
        return first
    data = bytearray(first or b"")
    while len(data) < size:
        part = stream.read(min(size - len(data), 1 << 20)) if first else None
        if not part:
            raise StreamClosed("end of stream")
        data += part
    return data
