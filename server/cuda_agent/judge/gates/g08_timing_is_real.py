"""G8, timing is real: what was timed did the work."""

from __future__ import annotations

from typing import ClassVar

from ...model import GateResult
from ..case import Case
from ..gate import Needs, failed, not_run, passed


class TimingIsReal:
    """A kernel can look fast by doing its work once, by finding its data in cache, or by replaying an old answer. So
    every timed launch takes the next of several complete buffer sets with its outputs restored and poisoned outside
    the window, L2 is evicted before each sample and persisting lines are reset, and the outputs of randomly chosen
    timed samples of both sides are compared with the original's under the numeric rule. Time with a warm L2 is
    reported beside it. The values are the recorded ones each time: a kernel that recognises the data itself is
    G5's."""

    id: ClassVar[str] = "G8"
    name: ClassVar[str] = "timing is real"
    cost: ClassVar[float] = 10.0
    needs: ClassVar[Needs] = "gpu"

    def check(self, case: Case) -> GateResult:
        times = case.times
        if times.fault is not None:
            return failed(self, times.fault)
        checked = 0
        for launch in times.launches:
            found = launch.raw.get("checked")
            if not found:
                return not_run(self, f"no timed output of {launch.shape} was checked", undecided=True)
            if not found["within"]:
                failures = found["failures"]
                side = "candidate" if any(f["side"] == "b" for f in failures) else "original"
                first = failures[0]
                sentence = (
                    f"the {side}'s output of timed sample {first['iteration']} on {launch.shape} is wrong "
                    f"({first['differing']:,} elements of buffer {first['buffer']} differ)"
                )
                return failed(self, sentence) if side == "candidate" else not_run(self, sentence, undecided=True)
            if not launch.raw.get("cold") or launch.raw.get("sets", 0) < 2:
                return not_run(self, f"{launch.shape} was timed on warm or single buffers", undecided=True)
            checked += int(found["count"])
        sets = min(int(launch.raw["sets"]) for launch in times.launches)
        return passed(
            self, f"cold L2, {sets} or more buffer sets in turn, the outputs of {checked} timed samples are right"
        )
