"""The search policy: no model. Rounds come from five stages, each asked only when those before it have nothing new:

1. singles: every rule alone at every place, with its two most promising parameters;
2. composition: a small beam, the best accepted candidates times the rules they do not have yet, those that gave most
   alone first. The best is tried with every rule: one that gave nothing alone may give something there;
3. tuning: the numbers of the best (block and grid size, unrolling, elements a thread, …) by coordinate descent, one
   rule's parameter at a time over all values that the rule lists, until no change gives anything;
4. minimisation: the chosen candidate without each one of its rules, also those in the middle;
5. the rest: parameters not tried yet of rules that came near, on the best and alone. What is better goes through the
   stages before.

Coordinate descent, because the lists are short (at most half a dozen legal values a rule, and each rule decides what is
legal on the text as it is by then) and a search tries tens of configurations, not thousands. Kernel Tuner's strategies
would do it too, but its package asks for scipy, pandas, scikit-learn and pymoo, and Optuna's for SQLAlchemy and
Alembic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from cuda_agent.agent.policies import WORTH, State, Step
from cuda_agent.model import Candidate
from cuda_agent.rewrite import Move, Recipe, moves, replay
from cuda_agent.rewrite.rule import Context

GAIN = 1.02  # a rule with so much of a gain alone is worth trying on the second best too
NEAR = 0.9  # of the best: what is further behind is not built on
BEAM = 2
FIRST = 2  # parameters of a rule at a place that are tried before everything else

Child = tuple[Move, Candidate]


class Search:
    """`order`: names of rules that go first, as what limits the kernel suggests; the catalogue's order for the rest."""

    name = "search"

    def __init__(self, order: Sequence[str] = ()) -> None:
        self._order = {rule: number for number, rule in enumerate(order)}
        self._recipes: dict[str, Recipe] = {}
        self._children: dict[str | None, list[Child]] = {}
        self._composed: set[frozenset[tuple[str, int]]] = set()

    def propose(self, state: State) -> Sequence[Candidate]:
        stages: tuple[Callable[[State], Iterator[Child]], ...] = (
            self._singles,
            self._compositions,
            self._tunings,
            self._smaller,
            self._rest,
        )
        for stage in stages:
            found = {made.id: made for _, made in _fresh(state, stage(state))}
            if found:
                return list(found.values())
        return []

    def ahead(self, context: Context) -> Sequence[Candidate]:
        return [made for _, made in _first(self._of(context))]

    # ------------------------------------------------------------ stages

    def _singles(self, state: State) -> Iterator[Child]:
        yield from _first(self._on(state, None))

    def _compositions(self, state: State) -> Iterator[Child]:
        """One parent a round: what the first one gives decides whether the second still is one."""
        alone = self._alone(state)
        for number, parent in enumerate(self._beam(state)):
            key = frozenset((move.rule, move.place) for move in self._recipes[parent.candidate.id])
            if key in self._composed:
                continue
            self._composed.add(key)
            children = _fresh(state, _first(self._on(state, parent.candidate)))
            if number > 0:
                children = [child for child in children if alone.get(child[0].rule, 0.0) >= GAIN]
            if children:
                yield from sorted(children, key=lambda child: -alone.get(child[0].rule, 0.0))
                return

    def _tunings(self, state: State) -> Iterator[Child]:
        """All values of one parameter of the best: the first that has untried ones."""
        best = state.best
        if best is None:
            return
        recipe = self._recipes.get(best.candidate.id, ())
        for at, move in enumerate(recipe):
            if fresh := _fresh(state, self._changed(state, recipe, at, move)):
                yield from fresh
                return

    def _changed(self, state: State, recipe: Recipe, at: int, move: Move) -> Iterator[Child]:
        before = replay(recipe[:at], state.context_of)
        if before is None and at > 0:
            return
        for other, _ in self._on(state, before):
            if (other.rule, other.place) == (move.rule, move.place) and other != move:
                yield from self._played(state, (*recipe[:at], other, *recipe[at + 1 :]))

    def _smaller(self, state: State) -> Iterator[Child]:
        chosen = state.chosen
        recipe = self._recipes.get(chosen.candidate.id, ()) if chosen else ()
        for at in range(len(recipe)) if len(recipe) > 1 else ():
            yield from self._played(state, (*recipe[:at], *recipe[at + 1 :]))

    def _rest(self, state: State) -> Iterator[Child]:
        alone = self._alone(state)
        best = state.best
        for parent in (best.candidate if best else None, None):
            for child in self._on(state, parent):
                if alone.get(child[0].rule, 0.0) >= NEAR:
                    yield child

    # ------------------------------------------------------------ what is known

    def _beam(self, state: State) -> list[Step]:
        """The best accepted candidates that lost nothing to their parents, best first."""
        scores = {step.candidate.id: step.score for step in state.steps}
        best = (state.best.score if state.best else None) or 0.0
        good = [
            step
            for step in state.steps
            if step.score is not None
            and step.candidate.id in self._recipes
            and step.score >= NEAR * best
            and step.score >= WORTH * (scores.get(step.candidate.parent or "") or 0.0)
        ]
        return sorted(good, key=lambda step: -(step.score or 0.0))[:BEAM]

    def _alone(self, state: State) -> dict[str, float]:
        """The best score of each rule by itself."""
        found: dict[str, float] = {}
        for step in state.steps:
            recipe = self._recipes.get(step.candidate.id, ())
            if len(recipe) == 1 and step.score is not None:
                found[recipe[0].rule] = max(found.get(recipe[0].rule, 0.0), step.score)
        return found

    # ------------------------------------------------------------ candidates

    def _on(self, state: State, parent: Candidate | None) -> list[Child]:
        key = parent.id if parent else None
        return self._children[key] if key in self._children else self._of(state.context_of(parent))

    def _of(self, context: Context) -> list[Child]:
        """All moves on a text, in the order in which they should be tried."""
        base = context.base
        key = base.id if base else None
        if key not in self._children:
            found = sorted(moves(context), key=lambda child: self._order.get(child[0].rule, len(self._order)))
            recipe = self._recipes.get(base.id, ()) if base else ()
            if base is None or recipe:
                for move, made in found:
                    self._recipes.setdefault(made.id, (*recipe, move))
            self._children[key] = found
        return self._children[key]

    def _played(self, state: State, recipe: Recipe) -> Iterator[Child]:
        made = replay(recipe, state.context_of)
        if made is not None:
            self._recipes.setdefault(made.id, recipe)
            yield recipe[-1], made


def _fresh(state: State, children: Iterable[Child]) -> list[Child]:
    known = {step.candidate.id for step in state.steps}
    return [child for child in children if child[1].id not in known]


def _first(children: Iterable[Child]) -> list[Child]:
    """At most `FIRST` parameters of each rule at each place; the rules' first ones before their second ones."""
    taken: dict[tuple[str, int], int] = {}
    rows: list[tuple[int, Child]] = []
    for child in children:
        key = (child[0].rule, child[0].place)
        number = taken.get(key, 0)
        taken[key] = number + 1
        if number < FIRST:
            rows.append((number, child))
    return [child for _, child in sorted(rows, key=lambda row: row[0])]
