"""The socket of a running server: who may ask, what is answered, what is left behind."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from lsprotocol import types

from cuda_agent import paths
from cuda_agent.engine import attach, wire
from cuda_agent.lsp.attach import MAX_CONNECTIONS, REQUESTS, Listener
from cuda_agent.lsp.documents import Documents
from cuda_agent.mcp import editor

TEXT = "__global__ void k() {}\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest_asyncio.fixture
async def listener(tmp_path: Path) -> AsyncIterator[Listener]:
    documents = Documents()
    documents.open(types.TextDocumentItem("untitled:1", "cuda", 1, "x"))
    documents.open(types.TextDocumentItem((tmp_path / "k.cu").as_uri(), "cuda", 7, TEXT))
    failed: list[BaseException] = []
    server: Any = SimpleNamespace(root=tmp_path, documents=documents, failures=failed)
    server.failed = lambda where, failure: f"{where}: {failure!r}"
    made = Listener(server)
    await made.start()
    yield made
    await made.close()


async def ask(path: Path, *messages: bytes) -> list[Any]:
    """Each answer, None where the server closed."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"".join(messages))
    writer.write_eof()
    answers = [await asyncio.wait_for(wire.read(reader), 5) for _ in messages]
    writer.close()
    return answers


def request(method: str, **params: Any) -> bytes:
    return wire.encode(wire.request(1, method, params))


async def test_open_files_and_their_texts(listener: Listener, tmp_path: Path) -> None:
    assert listener.path is not None
    uri = (tmp_path / "k.cu").as_uri()
    documents, text, other = await ask(
        listener.path, request("documents"), request("text", uri=uri), request("text", uri="file:///x")
    )
    assert documents["result"] == {
        "root": str(tmp_path),
        "documents": [{"uri": uri, "path": str(tmp_path / "k.cu"), "version": 7}],
    }
    assert text["result"] == {"text": TEXT, "version": 7}
    assert other["result"] is None
    found = await editor.find(tmp_path / "k.cu")
    assert found == editor.OpenText(listener.path, uri, TEXT, 7)
    assert await editor.find(tmp_path / "other.cu") is None


async def test_what_is_no_request_is_answered_or_ends_the_connection_only(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listener.path is not None
    unknown, odd, params = await ask(
        listener.path, request("shell"), wire.encode({"id": {}}), request("propose", proposal={})
    )
    assert unknown["error"]["code"] == odd["error"]["code"] == wire.METHOD_NOT_FOUND
    assert unknown["error"]["message"] == f"there are {', '.join(REQUESTS)}"
    assert params["error"]["code"] == wire.INVALID_PARAMS
    assert "missing" in params["error"]["message"]
    for broken in (b"GET / HTTP/1.1\r\n\r\n" * 9000, b"Content-Length: 3\r\n\r\n{]x", b"Content-Length: -1\r\n\r\n"):
        assert await ask(listener.path, broken) == [None]
    monkeypatch.setitem(REQUESTS, "text", lambda server, params: 1 // 0)
    (bug,) = await ask(listener.path, request("text"))
    assert bug["error"]["code"] == wire.INTERNAL_ERROR
    (still,) = await ask(listener.path, request("documents"))
    assert "result" in still


async def test_a_crowd_is_turned_away_and_the_first_are_served(listener: Listener) -> None:
    assert listener.path is not None
    held = [await asyncio.open_unix_connection(listener.path) for _ in range(MAX_CONNECTIONS)]
    for _ in range(100):
        if len(listener._connections) == MAX_CONNECTIONS:
            break
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_unix_connection(listener.path)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    held[0][1].write(request("documents"))
    assert "result" in await asyncio.wait_for(wire.read(held[0][0]), 5)
    for _, one in held:
        one.close()


async def test_another_user_hears_nothing(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    assert listener.path is not None
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    reader, writer = await asyncio.open_unix_connection(listener.path)
    writer.write(request("documents"))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 5)
    writer.close()


async def test_the_folder_is_the_persons_alone(
    listener: Listener, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache / "run"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    assert paths.run_dir() == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="not a folder of yours"):
        paths.run_dir()
    assert attach.all_paths() == []


async def test_a_link_is_no_folder_of_ours(cache: Path, tmp_path: Path) -> None:
    cache.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (cache / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        paths.run_dir()


async def test_the_socket_goes_with_the_server_and_a_dead_ones_is_removed(listener: Listener) -> None:
    assert listener.path is not None
    dead = listener.path.with_name(f"{socket.gethostname()}-0.sock")
    elsewhere = listener.path.with_name("another-host-0.sock")
    for path in (dead, elsewhere):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
            gone.bind(str(path))
    assert await editor.find(Path("/x.cu")) is None
    attach.remove_stale()
    assert not dead.exists()
    assert elsewhere.exists(), "another host's server may live"
    assert listener.path.exists()
    path = listener.path
    await listener.close()
    assert not path.exists()


async def test_a_server_without_a_socket_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / ("long" * 40)))
    server: Any = SimpleNamespace()
    made = Listener(server)
    await made.start()
    assert made.path is None
    assert "cannot ask this server for unsaved texts" in caplog.text
    await made.close()
