"""Policies: what to try next, given everything seen so far.

A policy proposes a round of candidates; the loop compiles them, drops the ones that change nothing, judges the rest
and
hands the steps back in `State.steps`. An empty round ends the search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cuda_agent.agent.budget import Budget
from cuda_agent.model import Candidate, Verdict
from cuda_agent.rewrite.rule import Context


@dataclass(frozen=True)
class Step:
    """One candidate and what became of it. `score` is the gain over the original, 1.0 = none, None = not accepted."""

    candidate: Candidate
    verdict: Verdict | None
    score: float | None
    note: str = ""


@dataclass
class State:
    """What a policy sees. `context_of` gives the rewriting context of a candidate (or of the original for None)."""

    context_of: Callable[[Candidate | None], Context]
    budget: Budget
    steps: list[Step] = field(default_factory=list)

    @property
    def best(self) -> Step | None:
        accepted = [s for s in self.steps if s.score is not None]
        return max(accepted, key=lambda s: s.score or 0.0, default=None)

    def tried(self, candidate: Candidate) -> bool:
        return any(s.candidate.id == candidate.id for s in self.steps)


class Policy(Protocol):
    name: str

    def propose(self, state: State) -> Sequence[Candidate]: ...
