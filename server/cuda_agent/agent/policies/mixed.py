"""The mixed policy: the rewrite rules first, then a model, from the best that they found. It never ends below them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cuda_agent.agent.policies import Policy, State
from cuda_agent.agent.policies.model import ModelPolicy
from cuda_agent.agent.policies.search import Search
from cuda_agent.model import Candidate
from cuda_agent.rewrite.order import rule_order
from cuda_agent.rewrite.rule import Context

SHARE = 0.5  # of the time and of the candidates, for the rules
ROUND = 16  # candidates between two looks at the clock


class Mixed:
    def __init__(self, model: ModelPolicy) -> None:
        self._model = model
        self._now: Policy | None = None
        self.name = model.name.replace("model:", "mixed:", 1)

    def propose(self, state: State) -> Sequence[Candidate]:
        if self._now is None:
            self._now = Search(rule_order(state.limit))
        if self._now is not self._model:
            budget = state.budget
            left = math.ceil(SHARE * budget.candidates) - budget.tried
            if left > 0 and budget.spent < SHARE * budget.seconds:
                found = self._now.propose(state)  # what is not judged now is proposed again
                if found:
                    return found[: min(left, ROUND)]
            self._now = self._model
        return self._model.propose(state)

    def ahead(self, context: Context) -> Sequence[Candidate]:
        return (self._now or Search()).ahead(context)
