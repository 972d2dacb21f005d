"""G5, hidden sizes and values: not built yet, and named in every verdict, so that nobody takes its silence for a
pass."""

from __future__ import annotations

from typing import ClassVar

from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, not_run
from cuda_agent.model import GateResult


class HiddenSizes:
    """G5 runs the kernel at sizes and on values that the program did not show: 0, 1, around warp and block sizes,
    primes, several times larger, misaligned and aliasing pointers, denormals, infinities. Until it is built a
    candidate that is only right at the recorded sizes or values is not caught."""

    id: ClassVar[str] = "G5"
    name: ClassVar[str] = "hidden sizes and values"
    cost: ClassVar[float] = 0.0
    needs: ClassVar[Needs] = "run"

    def check(self, case: Case) -> GateResult:
        return not_run(self, "not built yet: only the recorded sizes and values were tried")
