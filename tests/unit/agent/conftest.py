"""Every test of a search has a memory of its own: what an earlier run found must not answer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cuda_agent import cache
from cuda_agent.agent import compiler, loop, recorded
from cuda_agent.agent.memory import Memory


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[cache.Cache]:
    kept = cache.Cache(tmp_path / "memory")
    monkeypatch.setattr(loop, "Memory", partial(Memory, store=lambda: kept))
    monkeypatch.setattr(recorded, "folder", lambda: tmp_path / "trajectories")
    yield kept
    kept.close()


@pytest.fixture(autouse=True)
def patience_with_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are judged in the order proposed, however busy the machine is."""
    monkeypatch.setattr(compiler, "PATIENCE_S", 60.0)
