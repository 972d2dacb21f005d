"""Every kernel of a file: searched in the order of what they cost in the program, each by itself.

The searches do not see each other's edits: each diff stands on its own, and a person takes the ones they want. Taken
together they are a new file, of which `together` says what is known: where the compiler makes of every kernel the
machine code that was judged, what was said of each stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cuda_agent.agent.loop import optimize
from cuda_agent.agent.memory import Memory
from cuda_agent.agent.opening import Opened, device_of, opened
from cuda_agent.agent.policies import Policy, asks_model
from cuda_agent.agent.request import OnEvent, Outcome, Request
from cuda_agent.device import Device
from cuda_agent.errors import Cancelled, CompileError, CudaAgentError
from cuda_agent.judge.case import Case
from cuda_agent.model import Build, Candidate, Edit, Verdict, Workload
from cuda_agent.source import edits
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module as parse_module
from cuda_agent.toolchain.build import find_build
from cuda_agent.workload import own

LITTLE = 0.01  # of the program's kernel time: such a kernel is not searched unless asked for


def optimize_all(
    request: Request,
    *,
    everything: bool = True,
    on_event: OnEvent | None = None,
    cancelled: Callable[[], bool] | None = None,
    device: Device | None = None,
    policy: Callable[[], Policy | None] = lambda: None,
) -> list[Outcome]:
    """Every captured kernel of the file that has a definition in it, one search each, the most costly first. Each gets
    its part of what is left of the budget: half of it shared equally, half by cost. Without `everything` kernels that
    cost less than `LITTLE` are left out, and said to be.

    A kernel that cannot be searched becomes an undecided outcome that says why; NoInputs when there is none at all.
    """
    say = on_event or (lambda event: None)
    file = opened(request)
    outcomes: list[Outcome] = []
    with device_of(request, device, untrusted=asks_model(policy())) as dev:
        workloads = file.workloads(dev.kind, say, cancelled)
        file = file.as_recorded()
        if len(workloads) > 1:
            say({"event": "phase", "message": f"measuring what {len(workloads)} kernels cost", "percentage": 4})
        costs = shares(dev, file, workloads)
        order = sorted(workloads, key=lambda workload: -costs.get(workload.kernel, 0.0))
        seconds, left = request.budget_s, 1.0
        for number, workload in enumerate(order):
            share = costs.get(workload.kernel)
            if not everything and dev.kind != "emulator" and share is not None and share < LITTLE:
                outcomes.append(_left_out(workload, share))
                continue
            part = part_of(share, left, len(order) - number)
            one = replace(request, kernel=workload.kernel, budget_s=max(1.0, seconds * part), text=file.text)
            try:
                found = optimize(one, on_event=say, cancelled=cancelled, device=dev, workload=workload, policy=policy())
                outcomes.append(replace(found, share=share))
            except Cancelled as error:
                if not outcomes:
                    raise
                outcomes.append(Outcome("undecided", workload.kernel, str(error), share=share))
                break
            except CudaAgentError as error:
                say({"event": "note", "message": f"{workload.kernel}: {error}"})
                outcomes.append(Outcome("undecided", workload.kernel, str(error), share=share))
                dev.restart()
            seconds, left = max(0.0, seconds - outcomes[-1].seconds), max(1e-9, left - (share or 0.0))
    return outcomes


def _left_out(workload: Workload, share: float) -> Outcome:
    why = f"takes {100 * share:.1f} % of the kernels' time in this program: not searched (--all: it too)"
    return Outcome("nothing", workload.kernel, f"{workload.kernel} {why}", share=share)


def part_of(share: float | None, left: float, kernels: int) -> float:
    """The part of the seconds left for the next of so many kernels: half of them are shared equally, half by cost.
    `share` is its part of the time of all kernels, `left` what those still to be searched have of it."""
    equal = 1 / kernels
    return equal if share is None else 0.5 * equal + 0.5 * min(1.0, share / left)


def shares(device: Device, file: Opened, workloads: Sequence[Workload]) -> dict[str, float]:
    """Kernel → its part of the time of all of them: seconds of a launch, by the worker's clock, times the launches
    seen. On the emulator that is its own time, good for an order only. A kernel that does not replay is not in it."""
    if len(workloads) < 2:
        return {}
    build, text, request = file.build, file.text, file.request
    costs: dict[str, float] = {}
    for workload in workloads:
        memory = Memory(device, build, workload, text, request.options, request.fresh)
        known = memory.seconds("launch")
        if known is None:
            try:
                known = _launch_seconds(Case(device, build, workload, text, _unchanged(workload, text)))
            except Cancelled:
                raise
            except CudaAgentError:
                continue  # its search says why
            memory.keep_seconds("launch", known)
        costs[workload.kernel] = known * max(workload.seen, len(workload.launches))
    whole = sum(costs.values())
    return {kernel: cost / whole for kernel, cost in costs.items()} if whole else {}


def _launch_seconds(case: Case) -> float:
    """Mean over the judged launches. The judge keeps these baselines, so the search does not make them again."""
    count = len(case.launches)
    return sum(case.baseline(index).seconds for index in range(count)) / count


def _unchanged(workload: Workload, text: str) -> Candidate:
    return Candidate(workload.kernel, text, text, (), "original")


def table(outcomes: Sequence[Outcome]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and cells for people: one row a kernel, in the order in which they were searched."""
    emulated = any(o.verdict is not None and o.verdict.level == "emulated" for o in outcomes)
    heads = ("kernel", "emulator's time" if emulated else "time", "result", "gain", "tried", "seconds", "rules")
    rows: list[tuple[str, ...]] = []
    for o in outcomes:
        won = o.verdict if o.status == "verified" else None
        rows.append(
            (
                o.kernel,
                f"{100 * o.share:.0f} %" if o.share is not None else "",
                o.status,
                _gain(won) if won else "",
                str(o.tried),
                f"{o.seconds:.0f}",
                o.candidate.origin.removeprefix("rule:") if o.candidate else "",
            )
        )
    return heads, rows


def _gain(verdict: Verdict) -> str:
    if verdict.timing is not None:
        low, high = verdict.timing.ci
        return f"{verdict.timing.ratio:.2f}× [{low:.2f}, {high:.2f}]"
    before, after = (verdict.traffic.get(f"sectors_{side}", 0.0) for side in ("before", "after"))
    return f"sectors {100 * (after / before - 1):+.0f} %".replace("-", "−") if before else ""


# ---------------------------------------------------------------- all edits in one file


@dataclass(frozen=True)
class Together:
    """The file with the verified edits of several kernels. `sentence` says what is known of it as a whole."""

    text: str
    kernels: tuple[str, ...]
    left_out: tuple[str, ...]  # verified too, but their edits touch lines that a better one changes
    sentence: str


def together(request: Request, outcomes: Sequence[Outcome], device: Device | None = None) -> Together | None:
    """All verified edits in one text, those with the larger share of the time first; None with fewer than two kernels.
    The file is compiled whole, and each kernel's machine code is held against what was judged."""
    won = [o for o in outcomes if o.status == "verified" and o.candidate is not None]
    if len(won) < 2:
        return None
    text = won[0].candidate.original if won[0].candidate else ""
    taken: list[Edit] = []
    kernels: list[str] = []
    left_out: list[str] = []
    for outcome in won:
        mine = list(outcome.candidate.edits) if outcome.candidate else []
        if any(_touch(one, other) for one in mine for other in taken):
            left_out.append(outcome.kernel)
            continue
        taken += mine
        kernels.append(outcome.kernel)
    whole = edits.apply(text, taken)
    with device_of(request, device) as dev:
        sentence = _known_of(dev, find_build(request.path), whole, [o for o in won if o.kernel in kernels])
    return Together(whole, tuple(kernels), tuple(left_out), sentence)


def _touch(one: Edit, other: Edit) -> bool:
    """They overlap, or insert at the same place."""
    a, b = one.span, other.span
    return (a.start < b.end and b.start < a.end) or a.start == b.start


def _known_of(device: Device, build: Build, text: str, won: Sequence[Outcome]) -> str:
    judged_alone = f"the edits of {len(won)} kernels were judged one by one"
    try:
        untrusted = any(outcome.candidate is not None and outcome.candidate.by_model for outcome in won)
        binary = device.compile(build, text, untrusted=untrusted)
    except CompileError as error:
        return f"{judged_alone}; together they do not compile: {error}"
    found = {name: facts.sass_hash for name, facts in binary.kernels.items()}
    judged = [pair for outcome in won for pair in _machine_code(outcome)]
    if judged and all(sass and found.get(name) == sass for name, sass in judged):
        return f"{judged_alone}; compiled together, each has the machine code that was judged"
    return f"{judged_alone}; the file with all of them compiles, and was not judged as a whole"


def _machine_code(outcome: Outcome) -> list[tuple[str, str]]:
    """The judged kernel's instantiations with the hash of their instructions."""
    record = outcome.verdict.record.get("candidate") if outcome.verdict else None
    sass = (record or {}).get("sass") or {}
    if outcome.candidate is None:
        return []
    module = parse_module(Document("", outcome.candidate.text))
    return [(name, value) for name, value in sass.items() if own.kernel_of(module, name) == outcome.kernel]
