"""Binaries that killed a worker, by sha256, so that none is run twice.

A binary that faulted is refused for good. One that ran past a deadline is refused for deadlines no longer than that
one. Kept in the cache when one is given, else for the life of the process.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol


class Store(Protocol):
    """What `cache.Cache` offers."""

    def get(self, key: str, default: Any = None) -> Any: ...
    def set(self, key: str, value: Any) -> None: ...


class Memory:
    """A store for the life of the process."""

    def __init__(self) -> None:
        self._entries: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        return self._entries.get(key, default)

    def set(self, key: str, value: Any) -> None:
        self._entries[key] = value


@dataclass(frozen=True, slots=True)
class Sentence:
    """Why a binary is refused. `deadline_s` is None when no deadline would help."""

    reason: str
    deadline_s: float | None = None


class Quarantine:
    def __init__(self, store: Store | None = None) -> None:
        self._store: Store = Memory() if store is None else store
        self._seen = Memory()  # stands also when the cache's disk is full
        self._lock = threading.Lock()

    def _read(self, sha256: str) -> Sentence | None:
        key = f"quarantine:{sha256}"
        entry = self._seen.get(key, self) if self._seen.get(key, self) is not self else self._store.get(key)
        return None if entry is None else Sentence(*entry)

    def _write(self, sha256: str, entry: tuple[str, float | None] | None) -> None:
        self._seen.set(f"quarantine:{sha256}", entry)
        self._store.set(f"quarantine:{sha256}", entry)

    def add(self, sha256: str, reason: str, deadline_s: float | None = None) -> None:
        """`deadline_s`: the binary only ran too long for this one. A harder sentence is never softened."""
        with self._lock:
            old = self._read(sha256)
            if old and (old.deadline_s is None or (deadline_s is not None and old.deadline_s > deadline_s)):
                return
            self._write(sha256, (reason, deadline_s))

    def why(self, sha256: str, deadline_s: float) -> Sentence | None:
        """None when it may run with this deadline."""
        with self._lock:
            found = self._read(sha256)
        if found is None or (found.deadline_s is not None and deadline_s > found.deadline_s):
            return None
        return found

    def forget(self, sha256: str) -> None:
        with self._lock:
            self._write(sha256, None)
