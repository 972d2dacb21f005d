"""The cache keeps, forgets within its limit, and never fails a job."""

from __future__ import annotations

import errno
import logging
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cuda_agent import cache, paths
from cuda_agent.toolchain import sandbox


@pytest.fixture
def store(tmp_path: Path) -> Iterator[cache.Cache]:
    opened = cache.Cache(tmp_path / "c")
    yield opened
    opened.close()


def test_memo_computes_once(store: cache.Cache) -> None:
    calls: list[int] = []
    for _ in range(3):
        assert store.memo("kind", ("a", 1), lambda: calls.append(1) or 42) == 42
    assert calls == [1]
    assert store.memo("other", ("a", 1), lambda: 7) == 7
    assert store.memo("kind", ("a", 2), lambda: 8) == 8


def test_memo_keeps_none(store: cache.Cache) -> None:
    calls: list[int] = []
    for _ in range(2):
        assert store.memo("k", "x", lambda: calls.append(1)) is None
    assert calls == [1]


def test_memo_raises_what_compute_raises(store: cache.Cache) -> None:
    with pytest.raises(OSError, match="from compute"):
        store.memo("k", "x", lambda: (_ for _ in ()).throw(OSError("from compute")))
    assert store.memo("k", "x", lambda: 1) == 1


def test_one_thread_makes_it_and_the_others_find_it(store: cache.Cache) -> None:
    made, ready = [], threading.Barrier(4)

    def work() -> None:
        ready.wait()
        with store.alone("k"):
            if store.get("k") is None:
                time.sleep(0.05)
                made.append(1)
                store.set("k", 7)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    with store.alone("other"), store.alone("another"):  # nothing is kept, and keys do not wait for each other
        assert {"other", "another"} <= cache._making.keys()
    assert not {"k", "other", "another"} & cache._making.keys()


def test_digest_tells_parts_apart() -> None:
    assert cache.digest("ab", "c") != cache.digest("a", "bc")
    assert cache.digest("1") != cache.digest(1) != cache.digest(b"1")
    assert cache.digest(("a",), "b") != cache.digest("a", ("b",))
    with pytest.raises(TypeError):
        cache.digest(object())


def test_blobs(store: cache.Cache) -> None:
    name = store.put_blob(b"data")
    assert store.put_blob(b"data") == name
    assert store.get_blob(name) == b"data"
    assert store.get_blob("0" * 64) is None


def test_damaged_blob_is_no_blob(store: cache.Cache) -> None:
    name = store.put_blob(b"data")
    store.set("blob:" + name, b"dat")
    assert store.get_blob(name) is None


def test_size_limit_holds(tmp_path: Path) -> None:
    store = cache.Cache(tmp_path / "c", size_limit=1 << 20)
    for i in range(64):
        store.put_blob(bytes([i]) * (1 << 16))
    assert store._store.volume() < 2 << 20
    store.close()


def test_another_process_sees_it(store: cache.Cache, tmp_path: Path) -> None:
    store.memo("k", "x", lambda: [1, 2])
    again = cache.Cache(tmp_path / "c")
    assert again.memo("k", "x", lambda: pytest.fail("must come from disk")) == [1, 2]
    again.close()


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), sqlite3.OperationalError("database or disk is full")]
)
def test_full_disk_is_said_once_and_fails_nothing(tmp_path: Path, error: Exception) -> None:
    told: list[str] = []
    store = cache.Cache(tmp_path / "c", on_trouble=told.append)

    class Full:
        def __getattr__(self, name: str) -> Any:
            raise error

        def __contains__(self, key: str) -> bool:
            raise error

    store._store = Full()
    assert store.memo("k", "x", lambda: 5) == 5
    assert store.memo("k", "y", lambda: 6) == 6
    assert len(store.put_blob(b"z")) == 64
    assert store.get_blob("0" * 64) is None
    assert len(told) == 1
    assert "CUDA_AGENT_CACHE" in told[0]


def test_folder_that_cannot_be_made() -> None:
    told: list[str] = []
    store = cache.Cache(Path("/dev/null/cache"), on_trouble=told.append)
    assert not store.usable
    assert store.memo("k", "x", lambda: 5) == 5
    assert len(told) == 1


@pytest.mark.skipif(not sandbox.available(), reason="needs bubblewrap to mount a small file system")
def test_disk_that_fills_up(tmp_path: Path) -> None:
    """A file system of 256 KiB, and results that do not fit."""
    program = """
import pathlib
from cuda_agent import cache
told = []
store = cache.Cache(pathlib.Path("/mnt/c"), on_trouble=told.append)
sizes = [len(store.memo("k", i, lambda: bytes(100_000))) for i in range(8)]
assert sizes == [100_000] * 8, sizes
assert len(told) == 1, told
print(told[0])
"""
    command = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--size", "262144", "--tmpfs", "/mnt"]
    command += [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Free some disk space" in done.stdout


def test_database_that_is_no_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / "cache.db").write_bytes(b"garbage" * 1000)
    with caplog.at_level(logging.WARNING):
        store = cache.Cache(folder)
        assert store.memo("k", "x", lambda: 5) == 5
        assert store.memo("k", "x", lambda: 6) == 6
    assert len(caplog.records) == 1


def test_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "here"))
    assert paths.native_dir() == tmp_path / "here" / "native"
    assert paths.native_dir().is_dir()
    first = cache.default()
    assert first.folder == tmp_path / "here" / "results"
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "there"))
    assert cache.default().folder == tmp_path / "there" / "results"
    monkeypatch.delenv("CUDA_AGENT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert paths.cache_dir() == tmp_path / "x" / "cuda-agent"


def test_apart_nothing_is_known_and_nothing_stays() -> None:
    usual = cache.default()
    key = usual.key("apart", "x")
    usual.set(key, 1)
    with cache.apart() as own:
        assert cache.default() is own
        assert cache.default().get(key) is None
        cache.default().set(key, 2)
    assert cache.default() is usual
    assert usual.get(key) == 1
    assert not own.folder.exists()
