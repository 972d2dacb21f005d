"""The reward of a candidate and of a search: −1 failed, 1 correct, 2 faster than the original by more than 5 %, 3
faster than the best rule search by more than 5 %.

Milestones, not ratios: a policy trained on raw ratios makes fewer kernels faster. "By more than 5 %" is said of the
lower end of the ratio's interval. On the emulator nothing is timed, so nothing earns more than 1. What was not decided
has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuda_agent.model import Timing, Verdict

if TYPE_CHECKING:
    from cuda_agent.agent.policies import Step

FAILED, CORRECT, FASTER, BEATS_RULES = -1, 1, 2, 3
MARGIN = 1.05


@dataclass(frozen=True, slots=True)
class Rules:
    """The best that the rewrite rules made of the same kernel on the same inputs and device: times faster than the
    original, 1.0 where they found nothing. `source` is the trajectory that says so, or "this search"."""

    ratio: float
    source: str


def of_verdict(verdict: Verdict | None, rules: Rules | None = None) -> int | None:
    """None where nothing was decided. `rules`: what a model is held against."""
    if verdict is None or verdict.status == "undecided":
        return None
    return FAILED if verdict.status == "rejected" else of_timing(verdict.timing, rules)


def of_timing(timing: Timing | None, rules: Rules | None = None) -> int:
    """Of a correct kernel."""
    low = timing.ci[0] if timing is not None else 1.0
    if low <= MARGIN:
        return CORRECT
    return BEATS_RULES if rules is not None and low > MARGIN * max(1.0, rules.ratio) else FASTER


def best_rules(steps: Iterable[Step], known: Rules | None) -> Rules | None:
    """The better of what another search found and what the rules found in this one."""
    own = [
        Rules(step.verdict.timing.ratio, "this search")
        for step in steps
        if step.candidate.origin.startswith("rule:") and step.score is not None and step.verdict and step.verdict.timing
    ]
    return max([*own, *([known] if known is not None else [])], key=lambda rules: rules.ratio, default=None)
