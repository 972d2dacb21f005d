"""Who is judged in full after whom, as data: scores, and what the full judge would say."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from cuda_agent.agent.finalists import Finalists
from cuda_agent.agent.policies import Step
from cuda_agent.model import Candidate

SCORES = {"a": 2.4, "b": 1.3, "c": 1.1, "d": 1.05, "a+b": 2.9, "a+c": 2.6, "a+b+c": 3.2}


def asked(scores: Mapping[str, float], wrong: Collection[str] = (), slow: Collection[str] = ()) -> list[str]:
    """Candidates that use a rule in `wrong` are refused, those in `slow` are no win; the last that holds has a ✓."""
    steps = [Step(Candidate("k", "", name, (), f"rule:{name}", id=name), None, score) for name, score in scores.items()]
    finalists = Finalists.of(steps, 1.01)
    found = []
    while (step := finalists.next()) is not None:
        name = step.candidate.id
        if set(name.split("+")) & set(wrong):
            finalists.refused(step)
        elif name in slow:
            finalists.no_win(step)
        else:
            finalists.holds(step)
            name += " ✓"
        found.append(name)
    return found


@pytest.mark.parametrize(
    ("wrong", "slow", "expected"),
    [
        ([], [], ["a+b+c ✓"]),
        (["c"], [], ["a+b+c", "a ✓", "a+b ✓"]),
        (["b"], [], ["a+b+c", "a ✓", "a+b", "a+c ✓"]),
        (["a"], [], ["a+b+c", "a", "b ✓"]),
        (["a", "b", "c"], [], ["a+b+c", "a", "b", "c", "d ✓"]),
        ([], ["a+b+c"], ["a+b+c", "a+b ✓"]),
        ([], ["a+b+c", "a+b", "a+c", "a"], ["a+b+c", "a+b", "a+c", "a", "b ✓"]),
    ],
)
def test_order(wrong: list[str], slow: list[str], expected: list[str]) -> None:
    assert asked(SCORES, wrong, slow) == expected


def test_a_single_one_that_is_wrong() -> None:
    assert asked({"a": 2.0}, ["a"]) == ["a"]
    assert asked({"a(x=1)": 2.0, "a(x=2)": 1.9}, ["a(x=1)"]) == ["a(x=1)"]  # the same rule with another number


def test_what_gives_nothing_is_not_asked() -> None:
    assert asked({"a": 1.0, "b": 0.8}) == []


def test_on_the_emulator_equals_are_asked_too() -> None:
    steps = [Step(Candidate("k", "", name, (), f"rule:{name}", id=name), None, 1.0) for name in ("a", "b")]
    finalists = Finalists.of(steps, 1.0)
    first = finalists.next()
    assert first is steps[0]
    finalists.refused(first)
    assert finalists.next() is steps[1]
