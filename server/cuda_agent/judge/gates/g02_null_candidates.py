"""G2, null candidates fail: the inputs must be able to tell a kernel from nothing."""

from __future__ import annotations

from typing import Any, ClassVar

from cuda_agent.judge import mutation
from cuda_agent.judge.baseline import NULLS
from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, not_run, passed
from cuda_agent.model import GateResult


class NullCandidates:
    """On these inputs a kernel that does nothing, writes zeros, writes ones or copies an input must be rejected by
    the same rule as the candidate will be (G3); otherwise the inputs are too weak and nothing can be decided. The
    four results are made in the worker without compiling anything. The gate also finds out first whether the capture
    replays at all: the original, run again on the recorded bytes, must give the program's own result. A null that
    happens to be the right answer (a kernel whose job is to clear or copy memory) is never verified: that is the
    price. Other wrong kernels may still fit weak inputs; hidden sizes and values (G5) are for those."""

    id: ClassVar[str] = "G2"
    name: ClassVar[str] = "null candidates"
    cost: ClassVar[float] = 1.0
    needs: ClassVar[Needs] = "run"

    def check(self, case: Case) -> GateResult:
        baselines = [case.baseline(index) for index in range(len(case.launches))]
        if not any(base.outputs for base in baselines):
            return not_run(
                self, "the inputs are too weak: the original changes nothing that was recorded", undecided=True
            )
        accepted = [kind for kind in NULLS if all(base.nulls[kind] for base in baselines)]
        if accepted:
            return not_run(
                self,
                f"the inputs are too weak: a kernel that {accepted[0]} would be accepted; capture a run with "
                "other data",
                undecided=True,
                accepted=accepted,
            )
        replay = "; ".join(dict.fromkeys(base.replay for base in baselines))
        data: dict[str, Any] = {"replay": [base.replay for base in baselines]}
        detail = (
            f"a kernel that {', '.join(NULLS[:-1])} or {NULLS[-1]} is rejected on these inputs; the original "
            f"replays {replay}"
        )
        if not case.options.mutants or case.same_code:
            return passed(self, detail, **data)
        found = mutation.score(case)
        data["mutants"] = found.to_json()
        apart = mutation.parting(case, found)
        if apart is not None:
            weakness, where = apart
            return not_run(
                self,
                f"the inputs are too weak: they do not show a wrong kernel ({weakness.mutant.text()}); on random "
                f"values, which do, the candidate differs from the original: {where}; capture a run with other data",
                undecided=True,
                **data,
            )
        return passed(self, f"{detail}; {found.sentence()}", **data)
