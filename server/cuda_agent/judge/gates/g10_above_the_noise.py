"""G10, above the noise: a win is measured again in a fresh process, and the last number is the one that is said."""

from __future__ import annotations

from typing import ClassVar

from cuda_agent.judge import statistics
from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, failed, passed
from cuda_agent.judge.gates.g09_timing_is_fair import unfair
from cuda_agent.judge.timing import Times, measure
from cuda_agent.model import GateResult, Timing

SMALL = 1.05  # where a process's addresses and the place of its code may make the difference


class AboveTheNoise:
    """The original timed against itself gives the noise floor of this kernel on this machine now; f is the larger of
    it and the median of what this GPU showed that day on kernels about as long (kept in the cache, from three runs
    on). "Faster" needs the interval's lower end above 1 + max(f, 1 %). The best of many candidates is partly the
    luckiest, so a winner is measured again in a fresh worker process with another order of rounds and other buffers,
    and only that number is reported; the two must agree that it is faster, and by how much the second fell short of
    the first counts as noise. A gain of up to 5 % must stand in a second fresh process too. What is not a win is
    reported as it is: this gate fails only when the candidate breaks in a fresh process. The recorded data are used
    again; other data are G5's."""

    id: ClassVar[str] = "G10"
    name: ClassVar[str] = "above the noise"
    cost: ClassVar[float] = 10.0
    needs: ClassVar[Needs] = "gpu"

    def check(self, case: Case) -> GateResult:
        first = case.times.total
        floors = [dict(launch.floors) for launch in case.times.launches]
        if first.label != "FASTER":
            return passed(self, f"no win is claimed: {_words(first)}", first=_data(first), floors=floors)
        for turn in range(1 if first.ratio > SMALL else 2):
            case.device.restart()
            again = _measure(case, turn)
            if again.fault is not None:
                return failed(self, f"in a fresh process: {again.fault}")
            wrong = [t for t in again.launches if not (t.raw.get("checked") or {"within": False})["within"]]
            if wrong:
                return failed(self, f"in a fresh process the timed output of {wrong[0].shape} is wrong")
            case.remember(again)
            total = again.total
            data = {"first": _data(first), "again": _data(total), "floors": floors, "processes": turn + 1}
            doubt = unfair(again.launches) or _doubt(first, total)
            if doubt is not None:
                case.relabel("AMBIGUOUS")
                both = f"{_words(first)}, in a fresh process {_words(total)}"
                return passed(self, f"no win is claimed: {both}: {doubt}", **data)
        where = "a fresh process" if turn == 0 else "a second fresh process"
        return passed(self, f"{_words(total)} in {where} ({_words(first)} before)", **data)


def _measure(case: Case, turn: int) -> Times:
    """In the process as it is, once more when that was not fair, as G9 does."""
    again = measure(case, case.options.seed + 15485863 + turn)
    if again.fault is None and unfair(again.launches) is not None:
        again = measure(case, case.options.seed + 32452843 + turn)
    return again


def _doubt(first: Timing, again: Timing) -> str | None:
    """Why the second measurement does not bear out the first, in words. What it fell short by is what the process
    did, not the kernel: as much is taken off again before it is held against the margin."""
    if again.label != "FASTER":
        return "that is no win"
    shortfall = max(1.0, first.ratio / again.ratio)
    low, high = again.ci
    if statistics.label((low / shortfall, high / shortfall), again.noise_floor) != "FASTER":
        return f"the two differ by {(shortfall - 1) * 100:.1f} %, too much for a gain so small"
    return None


def _words(timing: Timing) -> str:
    return (
        f"{timing.ratio:.3f}× [{timing.ci[0]:.3f}, {timing.ci[1]:.3f}] with a noise floor of "
        f"{timing.noise_floor * 100:.1f} %"
    )


def _data(timing: Timing) -> dict[str, object]:
    return {"ratio": timing.ratio, "ci": list(timing.ci), "label": timing.label, "noise_floor": timing.noise_floor}
