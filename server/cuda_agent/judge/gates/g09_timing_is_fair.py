"""G9, timing is fair: both sides had the same machine."""

from __future__ import annotations

import math
from typing import ClassVar

from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, not_run, passed
from cuda_agent.judge.statistics import MINIMUM_ROUNDS
from cuda_agent.judge.timing import CLOCK, LaunchTime, measure
from cuda_agent.model import GateResult

THROTTLED = 0.1  # of the rounds: fewer are outliers, and the statistics' business
# A heavy kernel draws the clock down: a win at the lower clock is not smaller than stated, up to this difference.
AGAINST = 0.1
HOT = frozenset(("thermal", "hardware thermal", "hardware slowdown", "power brake"))


class TimingIsFair:
    """Original and candidate are timed in one process on one GPU, in rounds A B B A or B A A B drawn at random; the
    interval is a 95 % bootstrap over rounds (`statistics.py`). The SM clock is sampled on the GPU beside every
    sample (globaltimer and clock64 in a tiny kernel): the two sides' median clocks must agree within 2 % (a
    candidate that is faster although its own clock was the lower one: within 10 %), in at least half of the rounds
    the clock must stand still, and the intervals in time and in cycles must meet as closely. NVML is asked after
    every round what holds the clocks down: heat or a power brake in more than a tenth of the rounds is not fair,
    the power cap is named. A measurement that is not fair is made once more, then nothing is claimed. Other processes
    of this program wait while one times (`device/turn.py`); memory clocks and other users of the GPU are not seen,
    except as noise."""

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
        held = sorted({why for launch in case.times.launches for why in launch.limits})
        words = f", clocks held down by {' and '.join(held)}" if held else ""
        same = all(abs(math.log(one / other)) <= CLOCK for one, other in clocks)
        agree = "cycles agree" if same else "the candidate had the lower clock: its gain is not smaller than stated"
        return passed(
            self,
            f"{rounds} rounds in random order, SM clock {a:.0f} and {b:.0f} MHz, {agree}{words}",
            rounds=rounds,
            unsteady=[launch.unsteady for launch in case.times.launches],
            limits=[launch.limits for launch in case.times.launches],
        )


def unfair(launches: tuple[LaunchTime, ...]) -> str | None:
    """What was not the same for both sides, in words; None when the measurement is fair."""
    for launch in launches:
        timing, where = launch.timing, launch.shape
        rounds = timing.samples // 4
        if rounds < MINIMUM_ROUNDS:
            return f"{where}: only {rounds} rounds"
        hot = {why: count for why, count in launch.limits.items() if why in HOT and count > THROTTLED * rounds}
        if hot:
            why, count = max(hot.items(), key=lambda item: item[1])
            return f"{where}: the GPU was slowed down ({why}) in {count} of {rounds} rounds"
        allowed = CLOCK
        if launch.clock_mhz is not None:
            a, b = launch.clock_mhz
            allowed = AGAINST if timing.label == "FASTER" and b < a else CLOCK
            if abs(math.log(a / b)) > allowed:
                return f"{where}: the SM clock was {a:.0f} MHz for the original and {b:.0f} MHz for the candidate"
        if launch.unsteady > rounds / 2:
            return f"{where}: the SM clock changed during {launch.unsteady} of {rounds} rounds"
        if timing.cycles_ratio is not None and timing.cycles_ci is not None:
            more, less = timing.cycles_ci[0] / timing.ci[1], timing.ci[0] / timing.cycles_ci[1]
            if math.log(more) > allowed or math.log(less) > CLOCK:
                return f"{where}: {timing.ratio:.3f}× in time but {timing.cycles_ratio:.3f}× in cycles"
    return None
