"""The gate protocol: one class a gate, one file a class in `gates/`.

A gate's docstring is its page: one paragraph on why it exists and what it cannot see. `check` answers in one sentence
and never raises for what a candidate did; errors of this package that come out of `check` are turned into a result by
`verdict.py`: what the candidate did is a failure, what the inputs or the machine did is "could not decide".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from cuda_agent.model import GateResult

if TYPE_CHECKING:
    from cuda_agent.judge.case import Case

Needs = Literal["text", "binary", "run", "gpu"]
NO_TIME = "the emulator does not measure time"


class Gate(Protocol):
    id: ClassVar[str]
    name: ClassVar[str]
    cost: ClassVar[float]  # typical seconds, for the order and for estimates
    needs: ClassVar[Needs]  # what must exist before it can run: the text, two binaries, runs on a device, a GPU

    def check(self, case: Case) -> GateResult: ...


def passed(gate: Gate, detail: str, **data: Any) -> GateResult:
    return GateResult(gate.id, gate.name, "pass", detail, data=data)


def failed(gate: Gate, detail: str, **data: Any) -> GateResult:
    return GateResult(gate.id, gate.name, "fail", detail, data=data)


def not_run(gate: Gate, detail: str, *, undecided: bool = False, **data: Any) -> GateResult:
    """`undecided`: this gap stops the verdict."""
    return GateResult(gate.id, gate.name, "not-run", detail, data=data, undecided=undecided)
