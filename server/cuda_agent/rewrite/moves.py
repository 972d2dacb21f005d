"""A move is one rule at one of its places with its parameters, named so that it means the same on another text.

A chain of moves, a recipe, can be played again from the original with one move changed or left out: that is how a
search tunes numbers and makes a diff smaller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Candidate
from cuda_agent.rewrite.rule import Context, Rule, refuse_damaged
from cuda_agent.rewrite.rules import RULES


@dataclass(frozen=True, slots=True)
class Move:
    """`place` counts the rule's places in a kernel from 0, in its own order; `label` has the parameters:
    `unroll(factor=8)`. `minor`: see `rule.Site`."""

    rule: str
    place: int
    label: str
    minor: bool = field(default=False, compare=False)


Recipe = tuple[Move, ...]
ContextOf = Callable[[Candidate | None], Context]


def moves(context: Context, without: Collection[str] = ()) -> Iterator[tuple[Move, Candidate]]:
    """Every legal move on this text with the candidate that it makes, most promising rules first. A rule acts at most
    once on the way to a candidate, so that a search ends; those of `without` are not asked."""
    refuse_damaged(context)
    done = {*without, *(rules_of(context.base.origin) if context.base else ())}
    acted = set(done)
    for rule in RULES:
        if rule.name not in done:
            for move, candidate in of_rule(rule, context, acted):
                acted.add(rule.name)
                yield move, candidate


def of_rule(rule: Rule, context: Context, acted: Collection[str] = ()) -> Iterator[tuple[Move, Candidate]]:
    """One rule's moves, after the rules that `acted`. What it refuses is left out; `rewrite.refusals` tells the person
    why."""
    places: list[object] = []
    try:
        for site in rule.sites(context):
            if site.span not in places:
                places.append(site.span)
            if set(site.unless) & set(acted):
                continue
            move = Move(rule.name, places.index(site.span), site.label, site.minor)
            try:
                yield move, rule.apply(context, site)
            except RuleRefused:
                continue  # this site's parameters are not legal
    except RuleRefused:
        return


def replay(recipe: Sequence[Move], context_of: ContextOf) -> Candidate | None:
    """The candidate that these moves make, one after the other, from the original; None when there are none, or when
    one of them is not there any more."""
    candidate: Candidate | None = None
    for move in recipe:
        rule = next(rule for rule in RULES if rule.name == move.rule)
        found = of_rule(rule, context_of(candidate))
        candidate = next((made for one, made in found if one == move), None)
        if candidate is None:
            return None
    return candidate


def labels_of(origin: str) -> tuple[str, ...]:
    """The moves on the way to a candidate: `rule:a(x=1)+b` → `("a(x=1)", "b")`."""
    return tuple(re.split(r"\+(?![^()]*\))", origin.removeprefix("rule:")))


def rules_of(origin: str) -> tuple[str, ...]:
    """The same without their parameters: `("a", "b")`."""
    return tuple(label.partition("(")[0] for label in labels_of(origin))
