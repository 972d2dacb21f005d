"""The search policy: no model. Rounds come from stages, each asked only when those before it have nothing new, so that
whatever is found goes through all of them, and a short budget is spent on what promises most:

1. singles: every rule alone at every place, with its most promising parameters; where a rule only opens the way for
   others (`inline`), those others behind it;
2. composition: a small beam, the best accepted candidates times the rules that they do not have yet and that gave
   something alone, or could not act alone;
3. the singles that hardly ever give anything by themselves (`Move.minor`);
4. the singles' second parameters;
5. composition of the best with all other rules: one that gave nothing alone may give something there;
6. tuning: the numbers of the best (block and grid size, unrolling, elements a thread, …) by coordinate descent, one
   rule's parameter at a time over all values that the rule lists, until no change gives anything;
7. minimisation: the chosen candidate without each one of its rules, also those in the middle;
8. the rest: parameters not tried yet of rules that came near, on the best and alone.

Without a GPU there are no times, which most numbers are about: 6 and 8 are left out.

Coordinate descent, because the lists are short (at most half a dozen legal values a rule, and each rule decides what is
legal on the text as it is by then) and a search tries tens of configurations, not thousands. Kernel Tuner's strategies
would do it too, but its package asks for scipy, pandas, scikit-learn and pymoo, and Optuna's for SQLAlchemy and
Alembic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from cuda_agent.agent.policies import WORTH, State, Step
from cuda_agent.errors import RuleRefused
from cuda_agent.model import Candidate
from cuda_agent.rewrite import RULES, Move, Recipe, moves, replay
from cuda_agent.rewrite.rule import Context

NEAR = 0.9  # of the best: what is further behind is not built on
BEAM = 2
SECOND = 2  # parameters of a rule at a place that are tried without any sign that they will help

Child = tuple[Move, Candidate]
_OPENING = frozenset(rule.name for rule in RULES if rule.opens)


class Search:
    """`order`: names of rules that go first, as what limits the kernel suggests; the catalogue's order for the rest."""

    name = "search"

    def __init__(self, order: Sequence[str] = ()) -> None:
        self._order = {rule: number for number, rule in enumerate(order)}
        self._recipes: dict[str, Recipe] = {}
        self._children: dict[str | None, list[Child]] = {}
        self._composed: dict[frozenset[tuple[str, int]], str] = {}  # rules → the one candidate that is built on

    def propose(self, state: State) -> Sequence[Candidate]:
        stages: tuple[Callable[[State], Iterator[Child]], ...] = (
            lambda state: iter(_major(_first(self._on(state, None), 1))),
            self._promising,
            lambda state: iter(_first(self._on(state, None), 1)),
            lambda state: iter(_first(self._on(state, None), SECOND)),
            self._others,
            *((self._tunings, self._smaller, self._rest) if _timed(state) else (self._smaller,)),
        )
        for stage in stages:
            found = {made.id: made for _, made in _fresh(state, stage(state))}
            if found:
                return list(found.values())
        return []

    def ahead(self, context: Context) -> Sequence[Candidate]:
        return [*(made for _, made in _major(_first(self._of(context), 1))), *self._between(context)]

    def _between(self, context: Context) -> Iterator[Candidate]:
        """What tuning this candidate's numbers starts from: it without its last moves. Their order and numbers are what
        the recipe says, so the rules need nothing of what the compiler made of the texts."""
        base = context.base
        recipe = self._recipes.get(base.id, ()) if base is not None else ()

        def behind(candidate: Candidate | None) -> Context:
            if candidate is not None:
                return context.behind(candidate)
            path, first = Path(context.module.document.path), context.original
            return Context.make(path, first, context.kernel.id, context.workload, context.device, original=first)

        for at in range(1, len(recipe)):
            made = replay(recipe[:at], behind)
            if made is not None:
                yield made

    # ------------------------------------------------------------ stages

    def _promising(self, state: State) -> Iterator[Child]:
        """One parent a round: what the first one gives decides whether the second still is one."""
        alone = self._alone(state)
        for parent in self._beam(state):
            below = self._below(state, parent)
            children = [c for c in below if alone.get(c[0].rule, 0.0 if c[0].minor else WORTH) >= WORTH]
            if fresh := _fresh(state, children):
                yield from sorted(fresh, key=lambda child: -alone.get(child[0].rule, 0.0))
                return

    def _others(self, state: State) -> Iterator[Child]:
        alone = self._alone(state)
        for parent in self._beam(state)[:1]:
            yield from sorted(self._below(state, parent), key=lambda child: -alone.get(child[0].rule, 0.0))

    def _below(self, state: State, parent: Step) -> list[Child]:
        """A step's own compositions. Of candidates that differ in their numbers only one has any."""
        key = frozenset((move.rule, move.place) for move in self._recipes[parent.candidate.id])
        if self._composed.setdefault(key, parent.candidate.id) != parent.candidate.id:
            return []
        return _first(self._on(state, parent.candidate), SECOND)

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
            and not step.twin
            and step.candidate.id in self._recipes
            and step.score >= NEAR * best
            and step.score >= WORTH * (scores.get(step.candidate.parent or "") or 0.0)
        ]
        return sorted(good, key=lambda step: -(step.score or 0.0))[:BEAM]

    def _alone(self, state: State) -> dict[str, float]:
        """The best score of each rule that was tried by itself; 0 where none was accepted."""
        found: dict[str, float] = {}
        for step in state.steps:
            recipe = [move for move in self._recipes.get(step.candidate.id, ()) if not _opening(move)]
            if len(recipe) == 1:
                found[recipe[0].rule] = max(found.get(recipe[0].rule, 0.0), step.score or 0.0)
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
            recipe = self._recipes.get(base.id, ()) if base else ()
            rows = list(_chains(context))
            rows.sort(key=lambda row: self._order.get(row[0][-1].rule, len(self._order)))
            if base is None or recipe:
                for chain, made in rows:
                    self._recipes.setdefault(made.id, (*recipe, *chain))
            self._children[key] = [(chain[-1], made) for chain, made in rows if not _opening(chain[-1])]
        return self._children[key]

    def _played(self, state: State, recipe: Recipe) -> Iterator[Child]:
        made = replay(recipe, state.context_of)
        if made is not None:
            self._recipes.setdefault(made.id, recipe)
            yield recipe[-1], made


def _chains(context: Context) -> Iterator[tuple[Recipe, Candidate]]:
    """Every move on a text. Behind one that only opens the way also the moves of rules that could not act before."""
    found = list(moves(context))
    able = {move.rule for move, _ in found}
    for move, made in found:
        yield (move,), made
        if _opening(move):
            with suppress(RuleRefused):  # the text behind it is not understood whole
                yield from (((move, one), last) for one, last in moves(context.behind(made, context.facts), able))


def _opening(move: Move) -> bool:
    return move.rule in _OPENING


def _timed(state: State) -> bool:
    device = state.context_of(None).device
    return device is None or device.kind != "emulator"


def _fresh(state: State, children: Iterable[Child]) -> list[Child]:
    known = {step.candidate.id for step in state.steps}
    return [child for child in children if child[1].id not in known]


def _major(children: Iterable[Child]) -> list[Child]:
    return [child for child in children if not child[0].minor]


def _first(children: Iterable[Child], count: int) -> list[Child]:
    """At most `count` parameters of each rule at each place; the rules' first ones before their second ones."""
    taken: Counter[tuple[str, int]] = Counter()
    rows: list[tuple[int, Child]] = []
    for child in children:
        key = (child[0].rule, child[0].place)
        taken[key] += 1
        if taken[key] <= count:
            rows.append((taken[key], child))
    return [child for _, child in sorted(rows, key=lambda row: row[0])]
