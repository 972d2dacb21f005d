"""G8, timing is real: what was timed did the work."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from cuda_agent.judge.baseline import buffer_name
from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, failed, not_run, passed
from cuda_agent.judge.numeric import show
from cuda_agent.judge.timing import LaunchTime
from cuda_agent.model import GateResult

WARM = 0.1  # relative difference of the cold and the warm ratio that is worth a word


class TimingIsReal:
    """A kernel can look fast by doing its work once, by finding its data in cache, or by replaying an old answer. So
    every timed launch takes the next of several complete buffer sets with its outputs restored and poisoned outside
    the window, L2 is evicted before each sample and persisting lines are reset, and the outputs of randomly chosen
    timed samples of both sides are compared with the original's under the numeric rule. The claim is about the cold
    L2; the ratio with a warm one is reported beside it, and said where it differs by a tenth. A sample that the host
    queued too slowly is taken again, and never counts. The values are the recorded ones each time: a kernel that
    recognises the data itself is G5's."""

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
                bad = next((f for f in failures if f["side"] == "b"), failures[0])
                sentence = f"of timed sample {bad['iteration']} on {launch.shape} {_wrong(case, launch, bad)}"
                if bad["side"] == "b":
                    return failed(self, f"the candidate's output {sentence}")
                return not_run(self, f"the original's output {sentence}", undecided=True)
            if not launch.raw.get("cold") or launch.raw.get("sets", 0) < 2:
                return not_run(self, f"{launch.shape} was timed on warm or single buffers", undecided=True)
            checked += int(found["count"])
        sets = min(int(launch.raw["sets"]) for launch in times.launches)
        words = f"cold L2, {sets} or more buffer sets in turn, the outputs of {checked} timed samples are right"
        return passed(self, words + warm_words(times.launches))


def _wrong(case: Case, launch: LaunchTime, row: Mapping[str, Any]) -> str:
    """The first wrong element of a timed sample, in words."""
    name, first = buffer_name(case, launch.index, row["buffer"]), row.get("first")
    where = f"{name}[{first['index']}]: expected {show(first['expected'])}, got {show(first['got'])}" if first else name
    return f"is wrong: {where} ({row['differing']:,} elements differ)"


def warm_words(launches: tuple[LaunchTime, ...]) -> str:
    """Where a warm L2 tells another story than the cold one that is claimed: by how much. Empty where it does not."""
    for launch in launches:
        cold, warm = launch.timing.ratio, launch.timing.warm_ratio
        if warm is not None and abs(math.log(warm / cold)) > WARM:
            return f"; with a warm L2 it is {warm:.2f}× instead of {cold:.2f}× on {launch.shape}"
    return ""
