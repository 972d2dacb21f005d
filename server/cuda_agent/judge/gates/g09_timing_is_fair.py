"""G9, timing is fair: both sides had the same machine."""

from __future__ import annotations

import math
from typing import ClassVar

from ...model import GateResult
from ..case import Case
from ..gate import Needs, not_run, passed
from ..statistics import MINIMUM_ROUNDS
from ..timing import LaunchTime, measure

CLOCK = 0.02  # relative difference of the median SM clocks that is still the same clock


class TimingIsFair:
    """Original and candidate are timed in one process on one GPU, in rounds A B B A or B A A B drawn at random; the
    interval is a 95 % bootstrap over rounds (`statistics.py`). The SM clock is sampled beside every sample: the two
    sides' median clocks must agree within 2 %, and the ratio in cycles must agree with the ratio in time. A
    measurement that is not fair is made once more, then nothing is claimed. Memory clocks and other users of the GPU
    are not seen, except as noise."""

    id: ClassVar[str] = "G9"
    name: ClassVar[str] = "timing is fair"
    cost: ClassVar[float] = 0.0
    needs: ClassVar[Needs] = "gpu"

    def check(self, case: Case) -> GateResult:
        complaint = unfair(case.times.launches)
        if complaint is not None:
            case.remember(measure(case, case.options.seed + 104729))
            complaint = unfair(case.times.launches)
        if complaint is not None:
            return not_run(
                self, f"{complaint}, twice: let the GPU cool or lock its clocks, then judge again", undecided=True
            )
        rounds = min(launch.timing.samples // 4 for launch in case.times.launches)
        clocks = [launch.clock_mhz for launch in case.times.launches if launch.clock_mhz is not None]
        if not clocks:
            return passed(
                self, f"{rounds} rounds in random order; this device gives no SM clock, so cycles were not compared"
            )
        a, b = clocks[0]
        return passed(
            self, f"{rounds} rounds in random order, SM clock {a:.0f} and {b:.0f} MHz, cycles agree", rounds=rounds
        )


def unfair(launches: tuple[LaunchTime, ...]) -> str | None:
    """What was not the same for both sides, in words; None when the measurement is fair."""
    for launch in launches:
        timing = launch.timing
        if timing.samples // 4 < MINIMUM_ROUNDS:
            return f"{launch.shape}: only {timing.samples // 4} rounds"
        if launch.clock_mhz is not None:
            a, b = launch.clock_mhz
            if abs(math.log(a / b)) > CLOCK:
                return (
                    f"{launch.shape}: the SM clock was {a:.0f} MHz for the original and {b:.0f} MHz for the candidate"
                )
        if timing.cycles_ratio is not None:
            room = max(CLOCK, math.log(timing.ci[1] / timing.ci[0]))
            if abs(math.log(timing.cycles_ratio / timing.ratio)) > room:
                return f"{launch.shape}: {timing.ratio:.3f}× in time but {timing.cycles_ratio:.3f}× in cycles"
    return None
