"""Compiling ahead of the gates: it is there when they ask, nothing that goes wrong shows, and it ends with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_agent.errors import CompileError
from cuda_agent.judge import JudgeOptions, ahead, emulated, mutation, shadow_kernel
from cuda_agent.judge.shadow_kernel import NoShadow
from patience import patience

MUTANTS, SHADOW, EMULATED = "mutants", "shadow", "emulated"


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> dict[str, threading.Event]:
    """What was compiled."""
    events = {name: threading.Event() for name in (MUTANTS, SHADOW, EMULATED)}

    def compilations(case: Any) -> Iterator[Callable[[], object]]:
        yield events[EMULATED].set

    def failing(name: str, error: Exception) -> Callable[[Any], None]:
        def work(case: Any) -> None:
            events[name].set()
            raise error

        return work

    monkeypatch.setattr(emulated, "compilations", compilations)
    monkeypatch.setattr(mutation, "compile_mutants", failing(MUTANTS, CompileError("no", "a.cu(3): error")))
    monkeypatch.setattr(shadow_kernel, "binary", failing(SHADOW, NoShadow("it reads half")))
    return events


def case(**changes: Any) -> Any:
    options = JudgeOptions(**changes.pop("options", {}))
    kernel = SimpleNamespace(has_error=changes.pop("damaged", False))
    return SimpleNamespace(options=options, kernel=kernel, unchanged_text=changes.pop("unchanged", False))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {MUTANTS, SHADOW, EMULATED}),
        ({"options": {"mutants": 0}}, {SHADOW, EMULATED}),
        ({"options": {"emulator_s": 0}}, {MUTANTS, SHADOW}),
        ({"damaged": True}, set()),
        ({"unchanged": True}, set()),
    ],
)
def test_what_is_compiled(done: dict[str, threading.Event], changes: dict[str, Any], expected: set[str]) -> None:
    with ahead.begun(case(**changes)):
        for name in expected:
            assert done[name].wait(patience(5))
    assert {name for name, event in done.items() if event.is_set()} == expected


def test_what_has_not_begun_when_the_gates_end_never_does(
    done: dict[str, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(case: Any) -> None:
        begun.set()
        go.wait(patience(5))

    monkeypatch.setattr(ahead, "AT_ONCE", 1)
    monkeypatch.setattr(mutation, "compile_mutants", slow)
    with ahead.begun(case()):
        assert begun.wait(patience(5))
    go.set()
    assert not done[EMULATED].wait(0.2)
