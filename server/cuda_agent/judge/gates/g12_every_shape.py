"""G12, every captured shape: a win on one launch that loses on another is no win."""

from __future__ import annotations

import math
from typing import ClassVar

from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, failed, passed
from cuda_agent.model import GateResult, LaunchMap
from cuda_agent.workload.launch_map import unrecorded

SLOWER = 0.02


class EveryShape:
    """The headline is the geometric mean over the timed launches, shown with the worst of them. Where a win is
    claimed, no launch may be more than 2 % slower unless the person accepts that. Shapes that were not recorded are
    counted and not timed, and a launch that the program makes a thousand times counts as one."""

    id: ClassVar[str] = "G12"
    name: ClassVar[str] = "every captured shape"
    cost: ClassVar[float] = 0.0
    needs: ClassVar[Needs] = "gpu"

    def check(self, case: Case) -> GateResult:
        total = case.timing
        shapes = [{"shape": shape, "ratio": ratio, "ci": [low, high]} for shape, ratio, low, high in total.per_launch]
        shape, ratio, *_ = min(total.per_launch, key=lambda launch: launch[1])
        words = (
            f"geometric mean {total.ratio:.3f}× over {len(shapes)} launch{'es' * (len(shapes) > 1)}, worst "
            f"{ratio:.3f}× at {shape}"
        )
        if others := len({(x.grid, x.block, x.shared) for x in unrecorded(case.workload, LaunchMap())}):
            words += f"; the program launches {others} other shape{'s' * (others > 1)}, not timed"
        if total.label == "FASTER" and math.log(ratio) < -math.log1p(SLOWER):
            if not case.options.accept_slower_shapes:
                return failed(self, f"slower at a captured shape: {words}", shapes=shapes)
            words += " (accepted by the person)"
        return passed(self, words, shapes=shapes)
