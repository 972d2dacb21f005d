"""Binaries that killed a worker, by sha256, so that none is run twice.

A binary that faulted is refused for good. One that ran past a deadline is refused for deadlines no longer than that
one. Kept in the cache when there is one, else for the life of the process.
"""

from __future__ import annotations

import threading
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

PREFIX = "quarantine:"


@dataclass(frozen=True, slots=True)
class Sentence:
    """Why a binary is refused. `deadline_s` is None when no deadline would help."""

    reason: str
    deadline_s: float | None = None


class Quarantine:
    def __init__(self, store: MutableMapping[str, Any] | None = None) -> None:
        self._store: MutableMapping[str, Any] = {} if store is None else store
        self._lock = threading.Lock()

    def add(self, sha256: str, reason: str, deadline_s: float | None = None) -> None:
        with self._lock:
            old = self._store.get(PREFIX + sha256)
            if old and (old["deadline_s"] is None or (deadline_s is not None and old["deadline_s"] > deadline_s)):
                return
            self._store[PREFIX + sha256] = {"reason": reason, "deadline_s": deadline_s}

    def why(self, sha256: str, deadline_s: float) -> Sentence | None:
        """None when it may run with this deadline."""
        with self._lock:
            entry = self._store.get(PREFIX + sha256)
        if entry is None or (entry["deadline_s"] is not None and deadline_s > entry["deadline_s"]):
            return None
        return Sentence(entry["reason"], entry["deadline_s"])

    def forget(self, sha256: str) -> None:
        with self._lock:
            self._store.pop(PREFIX + sha256, None)
