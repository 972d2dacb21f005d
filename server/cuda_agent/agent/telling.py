"""How a search goes, as events. Each carries the numbers of its moment; `live.py` makes words of them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuda_agent.agent.policies import WORTH, State, Step
from cuda_agent.agent.request import Event, OnEvent
from cuda_agent.judge.evidence import traffic_sentence
from cuda_agent.model import Candidate, Verdict

FULL_FROM = 92  # per cent: the full verdicts are the last of them


@dataclass(frozen=True)
class Telling:
    """Of one search over `kernel`."""

    say: OnEvent
    kernel: str
    state: State

    def phase(self, message: str, percentage: int | None = None) -> None:
        """Without a percentage: what the budget says."""
        at = self._percent() if percentage is None else percentage
        self.say({"event": "phase", "message": message, "percentage": at, **self._live()})

    def trying(self, candidate: Candidate) -> None:
        self.say({"event": "trying", "origin": candidate.origin, "percentage": self._percent(), **self._live()})

    def step(self, step: Step) -> None:
        """What became of a candidate, with its quick verdict: what a cancelled search has so far."""
        gain, timing = _gain(step), step.verdict.timing if step.verdict else None
        self.say(
            {
                "event": "candidate",
                "origin": step.candidate.origin,
                "score": step.score,
                "candidate": step.candidate,
                "verdict": step.verdict,
                "note": step.note,
                "seconds": step.seconds,
                "percentage": self._percent(),
                "gain": gain,
                "ratio": timing.ratio if timing else None,
                "ci": timing.ci if timing else None,
                "message": f"{short(step.candidate)}: {step.note or gain or 'rejected'}",
                **self._live(),
            }
        )

    def full(self, candidate: Candidate) -> None:
        self.phase(f"full verdict on {short(candidate)}", FULL_FROM)

    def late(self, event: Event) -> None:
        """A full verdict's own 0 to 100 % are the last of ours."""
        own = event.get("percentage")
        if isinstance(own, int):
            event = {**event, "percentage": FULL_FROM + (100 - FULL_FROM) * own // 100, **self._live()}
        self.say(event)

    def _live(self) -> dict[str, Any]:
        """The numbers of this moment: candidates judged, the best so far, seconds left; a model's tokens and money."""
        best, budget = self.state.best, self.state.budget
        asked = {"tokens": budget.used, "cost": budget.paid} if budget.used else {}
        return {
            **asked,
            "search": self.kernel,
            "tried": budget.tried,
            "best": f"{_gain(best)} by {short(best.candidate)}" if best and _better(best) else None,
            "left_s": budget.left,
        }

    def _percent(self) -> int:
        return 5 + int(85 * self.state.budget.share)


def _better(step: Step) -> bool:
    return step.score is not None and step.score >= WORTH and step.verdict is not None


def _gain(step: Step) -> str:
    """What may be said of a candidate that passed the quick gates: a time on a GPU, predicted sectors elsewhere."""
    if step.verdict is None or step.score is None:
        return ""
    if step.verdict.timing is not None:
        return f"{step.verdict.timing.ratio:.2f}×"
    return traffic_sentence(step.verdict.traffic) or "same results"


def why_rejected(verdict: Verdict) -> str:
    """The sentence of the first gate that failed or could not decide, or why a GPU did not time it; else empty."""
    for gate in verdict.gates:
        if gate.status == "fail" or gate.undecided:
            return f"{gate.id} {gate.name}: {gate.detail}"
    timed = next((gate for gate in verdict.gates if gate.id == "G8"), None)
    emulated = verdict.level == "emulated"
    return timed.detail if timed and timed.status == "not-run" and verdict.timing is None and not emulated else ""


def short(candidate: Candidate) -> str:
    return candidate.origin.removeprefix("rule:")
