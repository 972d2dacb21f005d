"""Which rules first, by what limits the kernel."""

from __future__ import annotations

from cuda_agent.hints import limits
from cuda_agent.rewrite.rules import RULES


def rule_order(limiter: limits.Limiter | None) -> tuple[str, ...]:
    """Names of all rules: those that lift this limit first, the rest as in the catalogue."""
    first = limits.RULES[limiter.kind] if limiter is not None else ()
    place = {number: at for at, number in enumerate(first)}
    return tuple(rule.name for rule in sorted(RULES, key=lambda rule: place.get(rule.number, len(first))))
