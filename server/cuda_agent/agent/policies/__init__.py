"""Policies: what to try next, given everything seen so far.

A policy proposes a round of candidates; the loop compiles them, drops the ones that change nothing, judges the rest
and hands the steps back in `State.steps`. An empty round ends the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from cuda_agent.agent.budget import Budget
from cuda_agent.errors import ToolMissing
from cuda_agent.hints.limits import Limiter
from cuda_agent.model import Binary, Candidate, Verdict
from cuda_agent.rewrite import rules_of
from cuda_agent.rewrite.rule import Context
from cuda_agent.source.edits import unified_diff

WORTH = 1.01  # an edit that gives less is left out of the diff


@dataclass(frozen=True)
class Step:
    """One candidate and what became of it. `score` is the gain over the original, 1.0 = none, None = not accepted."""

    candidate: Candidate
    verdict: Verdict | None
    score: float | None
    note: str = ""
    twin: bool = False  # another text of a judged candidate's machine code: its score, and no verdict of its own
    seconds: float = 0.0  # of the judgement
    log: str = ""  # what the compiler said, where it refused the text
    at: float = 0.0  # seconds into the search when it was judged
    mark: str = ""  # of its machine code and launch: the same for all texts that are the same to the machine
    sass: tuple[str, ...] = ()  # hashes of the kernel's instructions, one an instantiation; none on the emulator

    @cached_property
    def size(self) -> tuple[int, int]:
        """How much a person has to read: rules, then changed lines."""
        diff = unified_diff(self.candidate.original, self.candidate.text, "").splitlines()[2:]
        changed = sum(line.startswith(("+", "-")) for line in diff)
        return len(rules_of(self.candidate.origin)), changed


def _no_binary(candidate: Candidate | None) -> Binary:
    raise ToolMissing("there is no compiler here")


@dataclass
class State:
    """What a policy sees. `context_of` gives the rewriting context of a candidate (or of the original for None),
    `binary_of` its compiled module; both raise CompileError for a text that does not compile."""

    context_of: Callable[[Candidate | None], Context]
    budget: Budget
    steps: list[Step] = field(default_factory=list)
    binary_of: Callable[[Candidate | None], Binary] = field(default=_no_binary)
    limit: Limiter | None = None  # what limits the original, where that is known
    say: Callable[[str], None] = field(default=lambda message: None)  # progress, for the person
    record: Callable[..., None] = field(default=lambda step, **fields: None)  # a line of the trajectory
    cancelled: Callable[[], bool] = field(default=lambda: False)

    @property
    def best(self) -> Step | None:
        accepted = [s for s in self.steps if s.score is not None]
        return max(accepted, key=lambda s: s.score or 0.0, default=None)

    @property
    def chosen(self) -> Step | None:
        """What would be shown: the smallest diff within `WORTH` of the best."""
        return choose(self.steps)


def choose(steps: Iterable[Step]) -> Step | None:
    """Of the accepted steps the one with the fewest rules, then lines, whose score is within `WORTH` of the best."""
    accepted = [(s.score, s) for s in steps if s.score is not None]
    best = max((score for score, _ in accepted), default=0.0)
    near = [(s.size, -score, s) for score, s in accepted if score * WORTH > best]
    return min(near, key=lambda row: row[:2])[2] if near else None


class Policy(Protocol):
    name: str

    def propose(self, state: State) -> Sequence[Candidate]:
        """The next round. Raises Cancelled, and ModelError, which ends the search: what it found so far stays."""
        ...

    def ahead(self, context: Context) -> Sequence[Candidate]:
        """What would probably be proposed next if this context's candidate stayed the best: compiled while the device
        is busy. Called from another thread; may be empty."""
        ...


def asks_model(policy: Policy | None) -> bool:
    """Candidates may be a model's: they are run in the sandbox too."""
    return policy is not None and policy.name.startswith(("model:", "mixed:"))


def keeps_order(policy: Policy) -> bool:
    """A recorded search is judged in its own order: of two candidates with the same machine code the first one was."""
    return policy.name.startswith("replay:")
