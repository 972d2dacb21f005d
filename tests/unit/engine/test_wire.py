"""Framing: whole messages in order, whatever arrives in between."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.engine import wire

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def read_all(data: bytes, cut: int = 0) -> list[object]:
    async def run() -> list[object]:
        reader = asyncio.StreamReader()
        reader.feed_data(data[:cut])
        asyncio.get_running_loop().call_soon(lambda: (reader.feed_data(data[cut:]), reader.feed_eof()))
        found = []
        while (message := await wire.read(reader)) is not None:
            found.append(message)
        return found

    return asyncio.run(run())


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=3).filter(bool), max_size=3), st.integers(0, 200))
def test_what_is_written_is_read_back_in_any_pieces(messages: list[dict[str, object]], cut: int) -> None:
    data = b"".join(wire.encode(message) for message in messages)
    assert read_all(data, min(cut, len(data))) == messages
    stream = io.BytesIO(data)
    assert [wire.read_blocking(stream) for _ in messages] == messages


def test_other_headers_and_bare_newlines_are_allowed() -> None:
    assert read_all(b'Content-Type: x\r\ncontent-length: 7\r\n\r\n{"a":1}Content-Length: 2\n\n{}') == [{"a": 1}, {}]


def test_a_body_that_is_not_json_leaves_the_stream_usable() -> None:
    async def run() -> object:
        reader = asyncio.StreamReader()
        reader.feed_data(b'Content-Length: 3\r\n\r\n{x}Content-Length: 7\r\n\r\n{"a":1}')
        with pytest.raises(ValueError, match="Expecting property name"):
            await wire.read(reader)
        return await wire.read(reader)

    assert asyncio.run(run()) == {"a": 1}


@pytest.mark.parametrize("header", [b"Content-Length: x", b"Content-Length: -4", b"Content-Length: 99999999999"])
def test_a_bad_length_breaks_the_stream(header: bytes) -> None:
    with pytest.raises(wire.WireError, match="Content-Length"):
        read_all(header + b"\r\n\r\n{}")


def test_a_cut_message_is_the_end() -> None:
    assert read_all(b'Content-Length: 100\r\n\r\n{"a":') == []


def test_print_and_children_cannot_write_into_the_stream() -> None:
    script = """
import os, subprocess, sys
from cuda_agent.engine import wire
fd_in, fd_out = wire.private_stdio()
print("stray", flush=True)
subprocess.run(["sh", "-c", "echo child; cat"])
os.write(1, b"raw\\n")
wire.FdWriter(fd_out).send({"a": 1})
assert not os.get_inheritable(fd_in) and not os.get_inheritable(fd_out)
"""
    done = subprocess.run([sys.executable, "-c", script], input=b"typed", capture_output=True, check=True)
    assert done.stdout == wire.encode({"a": 1})
    assert done.stderr.split() == [b"stray", b"child", b"raw"]


def test_a_full_pipe_that_does_not_block_loses_nothing() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys,time; time.sleep(.2); print(len(sys.stdin.buffer.read()))"],
        stdin=reader,
        stdout=subprocess.PIPE,
    )
    os.close(reader)
    message = {"text": "x" * 1_000_000}
    out = wire.FdWriter(writer)
    out.send(message)
    out.close()
    assert int(child.communicate(timeout=20)[0]) == len(wire.encode(message))
