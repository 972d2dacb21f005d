"""The search policy: no model. All single edits first, then composition on the best of each depth, one round a step.

A composed edit must beat its parent by `GAIN`, so every edit in the final diff is worth having.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cuda_agent.agent.policies import State, Step
from cuda_agent.model import Candidate
from cuda_agent.rewrite import candidates

GAIN = 1.02
BEAM = 2


class Search:
    name = "search"

    def __init__(self) -> None:
        self._expanded: set[str | None] = set()
        self._of_depth: Counter[int] = Counter()

    def propose(self, state: State) -> Sequence[Candidate]:
        for parent in self._frontier(state):
            self._expanded.add(parent.candidate.id if parent else None)
            self._of_depth[_depth(parent)] += 1
            base = parent.candidate if parent else None
            found = [c for c in candidates(state.context_of(base), base) if not state.tried(c)]
            if found:
                return found
        return []

    def _frontier(self, state: State) -> list[Step | None]:
        """What to expand next: the original, then the accepted candidates that beat their parent, best first."""
        if None not in self._expanded:
            return [None]
        scores = {s.candidate.id: s.score for s in state.steps}
        good = [
            s
            for s in state.steps
            if s.score is not None
            and s.candidate.id not in self._expanded
            and s.score >= GAIN * (scores.get(s.candidate.parent or "") or 1.0)
        ]
        best = state.best
        floor = (best.score or 1.0) * 0.9 if best else 1.0
        ranked = sorted((s for s in good if (s.score or 0) >= floor), key=lambda s: -(s.score or 0.0))
        return [s for s in ranked if self._of_depth[_depth(s)] < BEAM]


def _depth(step: Step | None) -> int:
    """How many edits a candidate is made of."""
    return step.candidate.origin.count("+") + 1 if step else 0
