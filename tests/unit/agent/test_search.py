"""What the search policy proposes, without a device: its rounds depend only on the steps so far."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cuda_agent.agent.budget import Budget
from cuda_agent.agent.policies import State, Step, search
from cuda_agent.agent.trajectory import Trajectory
from cuda_agent.model import Candidate


def made(origin: str, parent: str | None = None) -> Candidate:
    return Candidate("k", "", origin, (), origin, parent=parent, id=origin)


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> State:
    """Every text can be edited in the two ways a and b, each once."""

    def candidates(context: Any, base: Candidate | None) -> Iterator[Candidate]:
        for edit in "ab":
            if base is None:
                yield made(edit)
            elif edit not in base.origin:
                yield made(f"{base.origin}+{edit}", base.id)

    monkeypatch.setattr(search, "candidates", candidates)
    return State(lambda base: cast(Any, SimpleNamespace(base=base)), Budget())


def step(state: State, policy: search.Search, **scores: float | None) -> list[str]:
    """One round: the origins proposed; each gets its score."""
    found = list(policy.propose(state))
    state.steps += [Step(one, None, scores.get(one.origin.replace("+", "_"))) for one in found]
    return [one.origin for one in found]


def test_single_edits_first_then_on_the_best(state: State) -> None:
    policy = search.Search()
    assert step(state, policy, a=2.0, b=1.5) == ["a", "b"]
    assert step(state, policy, a_b=3.0) == ["a+b"]
    assert step(state, policy) == []


def test_only_what_beats_its_parent_is_built_on(state: State) -> None:
    policy = search.Search()
    assert step(state, policy, a=1.01, b=None) == ["a", "b"]
    assert step(state, policy) == []


def test_what_is_far_behind_the_best_is_left(state: State) -> None:
    policy = search.Search()
    step(state, policy, a=3.0, b=1.5)
    assert step(state, policy, a_b=2.0) == ["a+b"]
    assert step(state, policy) == []  # b+a starts from half of the best


def test_the_best_of_a_state() -> None:
    empty = State(lambda base: cast(Any, None), Budget())
    assert empty.best is None
    empty.steps += [Step(made("a"), None, 1.0), Step(made("b"), None, None), Step(made("c"), None, 2.0)]
    assert empty.best is not None
    assert empty.best.candidate.origin == "c"
    assert empty.tried(made("b"))
    assert not empty.tried(made("d"))


def test_a_budget_counts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("cuda_agent.agent.budget.time.monotonic", lambda: now)
    budget = Budget(10.0, 4, started=now)
    assert (budget.left, budget.share, budget.exhausted) == (10.0, 0.0, False)
    budget.tried = 3
    assert budget.share == 0.75
    now = 109.0
    assert (budget.left, budget.share, budget.exhausted) == (1.0, 0.9, False)
    now = 111.0
    assert (budget.left, budget.share, budget.exhausted) == (0.0, 1.0, True)


def test_a_trajectory_on_a_full_disk_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    from pathlib import Path

    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    trajectory = Trajectory(full)
    trajectory.append("start", kernel="k")
    assert trajectory.path is None
    assert "No space left" in caplog.text
    trajectory.append("end")
