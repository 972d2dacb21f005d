"""Rewrite rules: every candidate that the catalogue offers for one kernel, most promising rules first."""

from __future__ import annotations

from collections.abc import Iterator

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Candidate
from cuda_agent.rewrite.moves import Move, Recipe, labels_of, moves, replay, rules_of
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.rules import RULES

__all__ = [
    "RULES",
    "Context",
    "Move",
    "Recipe",
    "candidates",
    "labels_of",
    "moves",
    "refusals",
    "replay",
    "rules_of",
]


def candidates(context: Context) -> Iterator[Candidate]:
    """Candidates of every rule on this text, but for the rules that made it."""
    return (candidate for _, candidate in moves(context))


def refusals(context: Context) -> dict[str, str]:
    """Rule → why it may not act on this kernel, for rules that recognised their pattern and refused."""
    reasons: dict[str, str] = {}
    for rule in RULES:
        try:
            for site in rule.sites(context):
                rule.rewrite(context, site)
        except RuleRefused as error:
            reasons[rule.name] = str(error)
    return reasons
