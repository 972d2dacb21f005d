"""The one cache: results and blobs by content, bounded in size, shared by every process of this user.

A key is the sha256 of everything the result depends on, so nothing in it ever becomes wrong, only old. The cache is an
accelerator and never a reason to fail: when its disk is full or its folder cannot be written, callers compute as if it
were empty, and that is said once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import pickle
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import diskcache

from cuda_agent import __version__, config, paths

T = TypeVar("T")

_log = logging.getLogger(__name__)
_MISSING = object()
# Everything a broken disk, a broken database or an entry of another version can raise from diskcache.
_TROUBLE = (OSError, sqlite3.Error, diskcache.Timeout, pickle.PickleError, EOFError, AttributeError, ImportError)


def digest(*parts: object) -> str:
    """sha256 over the parts with their types and lengths, so that ("ab", "c") and ("a", "bc") differ.

    Parts are bytes, str, int, float, bool, None, Path, or tuples/lists of these. Raises TypeError for anything else,
    because a `repr` with an address in it would make a key that never hits.
    """
    state = hashlib.sha256()
    _feed(state, parts)
    return state.hexdigest()


def _feed(state: Any, part: object) -> None:
    if isinstance(part, tuple | list):
        state.update(b"T%d:" % len(part))
        for item in part:
            _feed(state, item)
        return
    if isinstance(part, bytes):
        kind, data = b"b", part
    elif isinstance(part, str | Path):
        kind, data = b"s", str(part).encode("utf-8", "surrogateescape")
    elif part is None or isinstance(part, bool | int | float):
        kind, data = b"n", repr(part).encode()
    else:
        raise TypeError(f"{type(part).__name__} cannot be part of a cache key")
    state.update(kind + b"%d:" % len(data))
    state.update(data)


@dataclass
class _Making:
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0


_making: dict[str, _Making] = {}
_making_lock = threading.Lock()


class Cache:
    """Content-addressed results and blobs under one folder, of at most `size_limit` bytes (default: the setting).

    `on_trouble` is called once, with a sentence, when the cache cannot be used; without it the sentence is logged.
    """

    def __init__(
        self,
        folder: Path | None = None,
        size_limit: int | None = None,
        on_trouble: Callable[[str], None] | None = None,
    ) -> None:
        self.folder = folder or paths.cache_dir() / "results"
        self.size_limit = config.current().cache_size_mb << 20 if size_limit is None else size_limit
        self.on_trouble = on_trouble
        self._told = False
        self._store: Any = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # A busy database must not hold up a job: half a second, then compute.
            self._store = diskcache.Cache(str(self.folder), size_limit=self.size_limit, timeout=0.5)
        except _TROUBLE as error:
            self._trouble(error)

    @property
    def usable(self) -> bool:
        return self._store is not None

    def memo(self, kind: str, key_parts: object, compute: Callable[[], T]) -> T:
        """The stored result for (kind, key_parts), else `compute()`, stored. Raises only what `compute` raises."""
        key = self.key(kind, key_parts)
        found = self.get(key, _MISSING)
        if found is not _MISSING:
            return found  # type: ignore[no-any-return]
        value = compute()
        self.set(key, value)
        return value

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Among this process's threads: the second one that makes the same thing waits, and then finds it."""
        with _making_lock:
            entry = _making.setdefault(key, _Making())
            entry.users += 1
        try:
            with entry.lock:
                yield
        finally:
            with _making_lock:
                entry.users -= 1
                if not entry.users:
                    del _making[key]

    def key(self, kind: str, key_parts: object) -> str:
        return f"{kind}:{digest(__version__, kind, key_parts)}"

    def get(self, key: str, default: Any = None) -> Any:
        return self._guard(lambda: self._store.get(key, default), default)

    def set(self, key: str, value: Any) -> None:
        self._guard(lambda: self._store.set(key, value), False)

    def put_blob(self, data: bytes) -> str:
        """Keep bytes; returns their sha256 (also when they could not be kept)."""
        name = hashlib.sha256(data).hexdigest()
        if not self._guard(lambda: ("blob:" + name) in self._store, False):
            self.set("blob:" + name, data)
        return name

    def get_blob(self, name: str) -> bytes | None:
        """The bytes of that sha256, or None when they are not here (evicted, never put, or damaged on disk)."""
        data = self.get("blob:" + name)
        if isinstance(data, bytes) and hashlib.sha256(data).hexdigest() == name:
            return data
        return None

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _guard(self, act: Callable[[], Any], otherwise: Any) -> Any:
        if self._store is None:
            return otherwise
        try:
            return act()
        except _TROUBLE as error:
            self._trouble(error)
            return otherwise

    def _trouble(self, error: BaseException) -> None:
        if self._told:
            return
        self._told = True
        sentence = (
            f"The cache in {self.folder} cannot be used ({error}); working without it. "
            "Free some disk space, or set CUDA_AGENT_CACHE to another folder."
        )
        if self.on_trouble is not None:
            self.on_trouble(sentence)
        else:
            _log.error(sentence)


_default: Cache | None = None
_apart: Cache | None = None


def default() -> Cache:
    """The process's cache, opened on first use, and again when CUDA_AGENT_CACHE or the setting of its size changed."""
    global _default
    if _apart is not None:
        return _apart
    wanted = (paths.cache_dir() / "results", config.current().cache_size_mb << 20)
    if _default is None or (_default.folder, _default.size_limit) != wanted:
        _default = Cache(*wanted)
    return _default


@contextlib.contextmanager
def apart() -> Iterator[Cache]:
    """Until the end an empty cache takes the place of this process's: nothing that was found before is known. What
    child processes keep is not in it."""
    global _apart
    with tempfile.TemporaryDirectory(prefix="cuda-agent-cache-", ignore_cleanup_errors=True) as folder:
        _apart = own = Cache(Path(folder))
        try:
            yield own
        finally:
            _apart = None
            own.close()


def native_dir() -> Path:
    """See `paths.native_dir`."""
    return paths.native_dir()
