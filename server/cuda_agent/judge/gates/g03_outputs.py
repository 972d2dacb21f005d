"""G3, outputs: the candidate leaves what the original leaves."""

from __future__ import annotations

from typing import ClassVar

from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, failed, not_run, passed
from cuda_agent.judge.outcome import Outcome
from cuda_agent.model import GateResult


class Outputs:
    """Original and candidate run side by side on the recorded bytes. Buffers that the original only writes are
    poisoned before both, first with a NaN pattern, then with 2^100 in turn with a plain number made of the
    candidate's hash (integers: bit patterns), so an element that is not written, or is computed from one that nobody
    wrote, or is written only where poison is seen, shows. Every written element must be equal under the
    numeric rule (`numeric.py`), every element the original leaves alone must keep its bits, inputs included, and
    every launch must be accepted and end. A buffer the original also reads cannot be poisoned; there an element
    written with the value it had before is not told from one left alone. Only the recorded launches are seen: other
    sizes and values are G5's."""

    id: ClassVar[str] = "G3"
    name: ClassVar[str] = "outputs"
    cost: ClassVar[float] = 2.0
    needs: ClassVar[Needs] = "run"

    def check(self, case: Case) -> GateResult:
        outcomes = case.outcomes()
        rows = [row.to_json() for outcome in outcomes for row in outcome.compared]
        for outcome in outcomes:
            if outcome.fault is not None and _out_of_bounds(outcome):
                return not_run(self, "the launch ended early with an access out of bounds: see G4", numeric=rows)
            if sentence := wrong(outcome):
                return failed(self, f"launch {case.launch_name(outcome.launch)}: {sentence}", numeric=rows)
        return passed(self, _detail(case, outcomes), numeric=rows)


def wrong(outcome: Outcome) -> str | None:
    """The first thing that is wrong with one launch's results, in words."""
    if outcome.fault is not None:
        return outcome.fault
    bad = next((row for row in outcome.compared if not row.within), None)
    if bad is not None:
        return bad.sentence()
    return outcome.stray[0] if outcome.stray else None


def _out_of_bounds(outcome: Outcome) -> bool:
    return any(finding["kind"] == "out-of-bounds" for finding in outcome.findings)


def _detail(case: Case, outcomes: list[Outcome]) -> str:
    rows = [row for outcome in outcomes for row in outcome.compared]
    poisoned = any(case.baseline(outcome.launch).poisoned for outcome in outcomes)
    times = {1: "once", 2: "twice"}.get(case.options.poisons, str(case.options.poisons))
    how = f"poisoned {times}" if poisoned else "read and written in place"
    where = f"on {len(outcomes)} launch{'es' * (len(outcomes) > 1)}, {how}"
    differing = [row for row in rows if row.klass != "bit-exact"]
    if not differing:
        return f"bit-equal outputs {where}"
    worst = max(differing, key=lambda row: row.result["max_abs"])
    return f"{worst.klass}: {worst.difference()} {where}"
