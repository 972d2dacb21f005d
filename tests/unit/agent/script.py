"""A policy that proposes what a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cuda_agent.agent.policies import State
from cuda_agent.model import Candidate


class Script:
    """Proposes these rounds; `before` is called with the number of each."""

    def __init__(self, *rounds: Sequence[Candidate], before: Callable[[int], None] = lambda number: None) -> None:
        self.rounds, self.before, self.asked = rounds, before, 0
        self.name = f"script {[one.id for round_ in rounds for one in round_]}"

    def ahead(self, context: object) -> Sequence[Candidate]:
        return []

    def propose(self, state: State) -> Sequence[Candidate]:
        number, self.asked = self.asked, self.asked + 1
        self.before(number)
        return self.rounds[number] if number < len(self.rounds) else []
