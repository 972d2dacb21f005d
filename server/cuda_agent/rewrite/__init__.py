"""Rewrite rules: every candidate that the catalogue offers for one kernel, most promising rules first."""

from __future__ import annotations

from collections.abc import Iterator

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Candidate
from cuda_agent.rewrite.rule import Context, Rule, refuse_damaged
from cuda_agent.rewrite.rules import RULES

__all__ = ["RULES", "Context", "candidates", "refusals"]


def candidates(context: Context, base: Candidate | None = None) -> Iterator[Candidate]:
    """Candidates of every rule on this text. A rule acts at most once on the way to a candidate, so that a search
    ends."""
    refuse_damaged(context)
    for rule in RULES:
        if base is not None and rule.name in base.origin:
            continue
        yield from _of_rule(rule, context)


def _of_rule(rule: Rule, context: Context) -> Iterator[Candidate]:
    try:
        for site in rule.sites(context):
            try:
                yield rule.apply(context, site)
            except RuleRefused:
                continue  # this site's parameters are not legal; `refusals` tells the person why
    except RuleRefused:
        return


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
