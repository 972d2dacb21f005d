"""G5, hidden sizes and values: right also where the program did not look."""

from __future__ import annotations

from typing import Any, ClassVar

from ...model import GateResult
from ..case import Case
from ..gate import Needs, failed, not_run, passed


class HiddenSizes:
    """Launches that the program did not show are derived from one that it did, and original and candidate are compared
    on them by the rule of G3."""

    id: ClassVar[str] = "G5"
    name: ClassVar[str] = "hidden sizes and values"
    cost: ClassVar[float] = 3.0
    needs: ClassVar[Needs] = "run"

    def check(self, case: Case) -> GateResult:
        from ..hidden import plan, trials  # numpy

        made = plan.make(case)
        report = trials.run(case, made)
        data: dict[str, Any] = {
            "tried": [trial.name for trial in report.tried],
            "left_out": [left.to_json() for left in report.left_out],
            "notes": list(made.notes),
        }
        if report.failure is not None:
            return failed(self, report.failure, **data)
        if not report.tried:
            reasons = [left.why for left in report.left_out] + made.notes
            return not_run(self, f"no hidden case could be made: {'; '.join(dict.fromkeys(reasons))}", **data)
        return passed(self, f"{len(report.tried)} hidden cases agree; {len(report.left_out)} were left out", **data)
