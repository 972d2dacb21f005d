"""Ask the gates in order and sum them up.

`verified`: every built gate that applies passed. `rejected`: some gate failed. `undecided`: the inputs are missing or
too weak, or this machine cannot run the kernel. A correct candidate that is not faster is verified too: "faster" is
`Verdict.faster`, and nothing else may be called so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cuda_agent.errors import Cancelled, CudaAgentError
from cuda_agent.judge import ahead, numeric, record
from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import NO_TIME, Gate, not_run
from cuda_agent.judge.gates import GATES, QUICK
from cuda_agent.judge.launches_said import launches_said
from cuda_agent.judge.options import JudgeOptions
from cuda_agent.model import Build, Candidate, EvidenceLevel, GateResult, NumericClass, Verdict, VerdictStatus, Workload

if TYPE_CHECKING:
    from cuda_agent.device import Device
    from cuda_agent.source.symbols import Module

OnEvent = Callable[[Mapping[str, Any]], None]
QUICK_ROUNDS, QUICK_BUDGET_S = 10, 2.0


def judge(
    device: Device,
    build: Build,
    workload: Workload,
    original: str,
    candidate: Candidate,
    *,
    options: JudgeOptions | None = None,
    on_event: OnEvent | None = None,
    cancelled: Callable[[], bool] | None = None,
    module: Module | None = None,
) -> Verdict:
    """The full judgement. `on_event` gets `{"event": "gate", "id", "name", "status", "detail", "message",
    "percentage"}` after each gate. Raises Cancelled when `cancelled()` turns true; the worker is killed then.
    Everything else ends in the verdict."""
    case = _case(device, build, workload, original, candidate, options, cancelled, module)
    with nullcontext() if case.emulated else ahead.begun(case):
        results = _ask(case, GATES, on_event, quick=False)
    return _sum_up(case, results, quick=False)


def quick(
    device: Device,
    build: Build,
    workload: Workload,
    original: str,
    candidate: Candidate,
    *,
    options: JudgeOptions | None = None,
    on_event: OnEvent | None = None,
    cancelled: Callable[[], bool] | None = None,
    module: Module | None = None,
) -> Verdict:
    """For a search: G0 to G4 with one poison pattern and, on a GPU, a short timing. Its record says so (`quick`), and
    it is not for showing: the gates it leaves out are `not-run`."""
    base = options or JudgeOptions()
    short = replace(
        base,
        rounds=min(base.rounds, QUICK_ROUNDS),
        timing_budget_s=min(base.timing_budget_s, QUICK_BUDGET_S),
        poisons=1,
        floor_of_day=True,
        brief=True,
        mutants=0,
        shadow="wide",  # the full judgement of the winner asks the shadow about every difference
    )
    case = _case(device, build, workload, original, candidate, short, cancelled, module)
    results = _ask(case, GATES, on_event, quick=True)
    return _sum_up(case, results, quick=True)


def edit_policy(
    device: Device, build: Build, workload: Workload, original: str, candidate: Candidate, options: JudgeOptions
) -> tuple[Candidate, GateResult]:
    """G0 alone, which reads texts and compiles nothing: for text from a model, which may not be compiled before it
    passed. The candidate comes back launched as its text says."""
    case = _case(device, build, workload, original, candidate, options, None, None)
    result = _check(GATES[0], case)
    if result.status == "pass" or (said := launches_said(case)) == candidate.launch:
        return candidate, result
    candidate = replace(candidate, launch=said)
    return candidate, _check(GATES[0], _case(device, build, workload, original, candidate, options, None, None))


def _case(
    device: Device,
    build: Build,
    workload: Workload,
    original: str,
    candidate: Candidate,
    options: JudgeOptions | None,
    cancelled: Callable[[], bool] | None,
    module: Module | None,
) -> Case:
    return Case(device, build, workload, original, candidate, module=module, options=options, cancelled=cancelled)


def _ask(case: Case, gates: tuple[Gate, ...], on_event: OnEvent | None, *, quick: bool) -> list[GateResult]:
    results: list[GateResult] = []
    stopped: GateResult | None = None

    def tell(result: GateResult) -> None:
        if on_event is not None:
            on_event(
                {
                    "event": "gate",
                    "id": result.id,
                    "name": result.name,
                    "status": result.status,
                    "detail": result.detail,
                    "message": f"{result.id} {result.name}: {result.status.replace('-', ' ')}",
                    "percentage": round(100 * len(results) / len(gates)),
                }
            )

    for gate in gates:
        started, damage = time.monotonic(), len(case.damage)
        result = _skip(case, gate, stopped, quick) or _check(gate, case)
        result = replace(result, seconds=time.monotonic() - started)
        results.append(result)
        tell(result)
        if len(case.damage) > damage and stopped is None:  # what a later gate's launches did is G4's to tell
            for at, bounds in enumerate(gates[: len(results)]):
                if bounds.id == "G4":
                    results[at] = replace(_check(bounds, case), seconds=results[at].seconds)
                    tell(results[at])
            stopped = next((one for one in results if one.status == "fail"), None)
        if stopped is None and (result.status == "fail" or result.undecided):
            stopped = result
    return results


def _skip(case: Case, gate: Gate, stopped: GateResult | None, quick: bool) -> GateResult | None:
    """A reason not to ask the gate at all."""
    if stopped is not None:
        # A gate without cost reads what earlier gates ran: after wrong outputs it can still name the access behind
        # them.
        explains = not quick and stopped.id == "G3" and gate.id in ("G4", "G7") and case.observed
        why = "failed" if stopped.status == "fail" else "could not be decided"
        return None if explains else not_run(gate, f"an earlier gate {why} ({stopped.id})")
    if gate.needs == "gpu":
        if case.emulated:
            return not_run(gate, NO_TIME)
        if case.same_code:
            return not_run(
                gate, "the compiler makes the same instructions of both, launched alike: there is nothing to time"
            )
        slow = next((o for o in case.outcomes() if o.slow), None) if quick else None
        if slow is not None:
            original, own = (f"{1000 * seconds:.0f} ms" for seconds in slow.seconds)
            return not_run(gate, f"not timed: a launch takes {own} where the original's takes {original}")
    if quick and gate.id not in QUICK | {"G8", "G9"}:
        return not_run(gate, "left to the full judgement")
    return None


def _check(gate: Gate, case: Case) -> GateResult:
    try:
        return gate.check(case)
    except Cancelled:
        raise
    except CudaAgentError as error:  # what the candidate did is a result; this is the inputs or the machine
        return not_run(gate, str(error), undecided=True, error=type(error).__name__)


def _sum_up(case: Case, results: list[GateResult], *, quick: bool) -> Verdict:
    status: VerdictStatus = "verified"
    if any(result.undecided for result in results):
        status = "undecided"
    if any(result.status == "fail" for result in results):
        status = "rejected"
    judged = case.observed if case.workload.launches else False
    level: EvidenceLevel = ("emulated" if case.emulated else "replayed") if judged else "none"
    if judged and any(result.id == "G13" and result.status == "pass" for result in results):
        level = "in-program"
    return Verdict(
        status=status,
        level=level,
        gates=tuple(results),
        inputs=inputs(case.workload),
        numeric=_numeric(case) if judged else None,
        timing=case.timing if case.timed else None,
        traffic=_traffic(case) if judged else {},
        record=record.make(case, quick=quick),
    )


def inputs(workload: Workload) -> str:
    """`captured: 2 launches of NVIDIA H200`."""
    count = len(workload.launches)
    if not count:
        return "none"
    where = f" of {workload.device}" if workload.device else ""
    return f"{workload.origin}: {count} launch{'es' * (count > 1)}{where if workload.origin == 'captured' else ''}"


def _numeric(case: Case) -> NumericClass | None:
    """The worst class; None where there is none to speak of, or where a difference has no class because it is wrong."""
    rows = [row for outcome in case.outcomes() if outcome.fault is None for row in outcome.compared]
    return numeric.worst(row.klass for row in rows) if rows and all(row.within for row in rows) else None


def _traffic(case: Case) -> dict[str, float]:
    """Predicted memory traffic of all judged launches; empty where nothing was traced."""
    total: dict[str, float] = {}
    for index, outcome in enumerate(case.outcomes()):
        for side, counts in (("before", case.baseline(index).traffic), ("after", outcome.traffic)):
            for key, value in counts.items():
                total[f"{key}_{side}"] = total.get(f"{key}_{side}", 0.0) + value
    return total
