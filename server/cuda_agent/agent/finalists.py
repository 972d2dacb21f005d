"""Which candidates are judged in full, and in which order.

The first is what the search chose. Where the full judge refuses it, probably one of its rules is to blame: each that
was in all refused candidates so far and in no accepted one is suspected alike. The next is the candidate from which
most is to be expected: its gain times the chance that it does without the rule to blame. So after `a+b+c` at 3×, `a`
alone at 2.4× comes before `a+b` at 2.9×; once `a` holds, those that are better still are asked too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cuda_agent.agent.policies import WORTH, Step, choose
from cuda_agent.rewrite import rules_of

NOTHING = 0.9  # the score that a finalist is held against while none was accepted


@dataclass
class Finalists:
    """Of one search. `accepted` is the best that held so far."""

    left: list[Step]
    accepted: Step | None = None
    _suspects: frozenset[str] | None = field(default=None)  # None: nothing was refused yet

    @classmethod
    def of(cls, steps: Iterable[Step], worth: float) -> Finalists:
        return cls([step for step in steps if step.score is not None and step.score >= worth])

    def next(self) -> Step | None:
        """None when nothing is left from which something is to be expected."""
        if self._suspects is None:
            return choose(self.left) if self.accepted is None else None
        rated = [(self._expected(step), step) for step in self.left]
        best = max((expected for expected, _ in rated), default=0.0)
        floor = WORTH - 1 if self.accepted is not None else 0.0
        return choose(step for expected, step in rated if expected == best) if best > floor else None

    def refused(self, step: Step) -> None:
        """The full judge found it wrong: so is what is built on its rules."""
        rules = _rules(step)
        shared = rules if self._suspects is None else self._suspects & rules
        self._suspects = shared or rules
        self.left = [one for one in self.left if not rules <= _rules(one)]

    def no_win(self, step: Step) -> None:
        """Right, and no faster when it was measured again, or not decided."""
        self.left = [one for one in self.left if one is not step]

    def holds(self, step: Step) -> None:
        self.accepted = step
        self.left = [one for one in self.left if (one.score or 0.0) > (step.score or 0.0)]
        if self._suspects is not None:
            self._suspects -= _rules(step)

    def _expected(self, step: Step) -> float:
        suspects = self._suspects or frozenset()
        right = 1 - len(_rules(step) & suspects) / len(suspects) if suspects else 1.0
        base = self.accepted.score if self.accepted is not None else NOTHING
        return right * ((step.score or 0.0) - (base or 0.0))


def _rules(step: Step) -> frozenset[str]:
    return frozenset(rules_of(step.candidate.origin))
