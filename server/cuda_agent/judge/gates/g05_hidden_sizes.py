"""G5, hidden sizes and values: right also where the program did not look."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, failed, not_run, passed
from cuda_agent.model import GateResult

if TYPE_CHECKING:
    from cuda_agent.judge.hidden.plan import Plan
    from cuda_agent.judge.hidden.trials import Report


class HiddenSizes:
    """Launches that the program did not show are derived from one that it did, and original and candidate are compared
    on them by the rule of G3, with the bounds of G4 and the emulator's checkers. Sizes: integer arguments that bound a
    guard or a loop become 0, 1, 31, 32, 33, the block and its neighbours, primes, odd vector tails and twice as large;
    buffers are cut to what the kernel then reaches, or their bytes repeated. The number of blocks is what each side's
    own launch text says for that size (a text that is not understood leaves the recorded number), and, where the
    original has a guard, one more. Where the program launches the kernel in other shapes with the same arguments, a few
    of those, too. Values: float data are redrawn (normal, permuted, sorted both ways, constant, heavy
    tail, ones, zeros, negative zeros, denormal, huge, a few NaN, a few infinities), with the sign that the recorded
    data have; integers are put in another order, bytes also become any byte (two numbers alone are a mask and stay
    one), and only those that reach no index. Pointers: moved by one element, or
    two on one array, only where a launch site or a captured launch shows such. A case counts only if the original is
    clean on it: it ends, stays in bounds, agrees with itself, and the emulator's checkers find nothing new (on a GPU
    canaries and launch errors say so, which see no stray read). Where made-up values overflow in the original and the
    candidate may round in another order, the case is left out; a float difference gets a second look, because made-up
    values cancel (`hidden/sensitivity.py`). The time is limited: pointers, values, sizes and surplus blocks take turns,
    of each kind cheap cases first and then those that find most, so that whatever was tried covers them all; where
    every case is too large for it one other size is tried all the same, in twice the time; the result lists every case
    that was tried and every one that was left out, with the reason. Not seen: sizes that are template arguments or
    constants, struct members, data with an order of their own that the kernel needs (the original's answer on unordered
    data is then the reference all the same), sizes beyond about twice the recorded ones (an index that overflows 32
    bits there). A map of shapes that was fitted to the recorded launches says nothing about other sizes; such a
    candidate's own text must."""

    id: ClassVar[str] = "G5"
    name: ClassVar[str] = "hidden sizes and values"
    cost: ClassVar[float] = 3.0
    needs: ClassVar[Needs] = "run"

    def check(self, case: Case) -> GateResult:
        from cuda_agent.judge.hidden import trials  # numpy

        made = case.plan
        report = trials.run(case, made)
        data: dict[str, Any] = {
            "tried": [trial.name for trial in report.tried],
            "left_out": [left.to_json() for left in report.left_out],
            "notes": list(made.notes),
        }
        if report.failure is not None:
            return failed(self, report.failure, **data)
        if not report.tried:
            reasons = dict.fromkeys([*made.notes, *(left.why for left in report.left_out)])
            return not_run(self, f"no hidden case could be made: {'; '.join(reasons) or 'nothing to vary'}", **data)
        return passed(self, _detail(made, report), **data)


def _detail(made: Plan, report: Report) -> str:
    """`41 hidden cases agree (28 sizes, 13 value families); 2 left out: …`."""
    values = sum(bool(trial.family) for trial in report.tried)
    count = len(report.tried)
    said = f"{count} hidden case{'s' * (count > 1)} agree{'s' * (count == 1)} ({count - values} of sizes and pointers, "
    said += f"{values} of values)"
    reasons = Counter(left.why for left in report.left_out)
    if reasons:
        said += f"; {reasons.total()} left out: " + ", ".join(f"{why} ({n})" for why, n in reasons.most_common(3))
    return "; ".join([said, *made.notes])
