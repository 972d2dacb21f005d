"""One program of `hecbench.py` in a process of its own: built, captured or optimised. Started by it, not by hand.

usage: hecbench_program.py build|capture|optimize FOLDER JSON

FOLDER holds the program; JSON are the `Task`'s fields. Rows go to stdout, one JSON object a line, as soon as they are
known; progress goes to stderr. The GPU is the one that CUDA_VISIBLE_DEVICES leaves.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cuda_agent.agent.limiting import predicted
from cuda_agent.agent.loop import optimize
from cuda_agent.agent.request import Outcome, Request
from cuda_agent.capture import CaptureOptions, NothingCaptured, capture
from cuda_agent.device import Device, driver, jobs, open_device
from cuda_agent.device.turn import turn
from cuda_agent.errors import Cancelled, CudaAgentError
from cuda_agent.judge import JudgeOptions, limiter
from cuda_agent.judge.case import Case
from cuda_agent.judge.gates.g02_null_candidates import NullCandidates
from cuda_agent.judge.gates.g11_physics import original_floor
from cuda_agent.model import Candidate, Workload
from cuda_agent.source import documents
from cuda_agent.source.symbols import module as parse_module
from cuda_agent.toolchain.build import find_build
from cuda_agent.workload import bundle

SOURCES = (".cu", ".cuh", ".h", ".hpp")
REPORT = "bench-capture.json"
STARTED = time.monotonic()
SLACK, SLACK_S = 1.5, 90.0  # a kernel that takes longer than so many times its seconds and these is stopped
LEAST_SHARE = 0.1  # of a program's seconds, however little a kernel costs in it


@dataclass(frozen=True)
class Task:
    program: str
    device: str  # "cuda" or "emulator"
    arch: str = "sm_90"
    runs: tuple[str, ...] = ()  # arguments of `main`
    budget: float = 60.0  # seconds for all kernels of the program
    deadline: float = float("inf")  # of time.time(): then it stops with what it has
    capture_seconds: float = 120.0
    first: int = 1  # launches recorded, a kernel and run
    cap: int = 1 << 30  # bytes of the largest launch that is recorded
    known: tuple[str, ...] = ()  # kernels that have their row already


@dataclass
class Row:
    """One kernel of one program; what a search says of it is filled in as it is learned."""

    program: str
    kernel: str
    file: str
    launches: int = 0  # seen in the program's run
    captured: int = 0
    judged: bool = False  # its capture replays and its inputs can tell a wrong kernel from a right one
    why_not: str = ""  # not captured, or not judged
    original_us: float | None = None  # of one launch
    share: float | None = None  # of the time in this program's captured kernels
    floor_us: float | None = None  # bytes that must move / peak bandwidth
    limiter: str = ""
    left: str = ""  # the sentence about what limits it
    status: str = ""
    level: str = "none"
    ratio: float | None = None
    ci: tuple[float, float] | None = None
    label: str = ""
    rules: str = ""
    tried: int = 0
    seconds: float = 0.0
    message: str = ""
    full_failed: int = 0  # candidates that passed the quick judge and not the full one
    shown_failed: int = 0  # of those, offered to the person as verified
    steps: list[dict[str, Any]] = field(default_factory=list)
    diff: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    cut: bool = False  # the bench's time ended before its own
    device: str = ""
    date: str = ""


def emit(value: Any) -> None:
    print(json.dumps(value, default=lambda x: x.__dict__), flush=True)


def note(event: Any) -> None:
    if isinstance(event, dict) and event.get("message"):
        print(f"{time.monotonic() - STARTED:6.1f} s  {event['message']}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- build and capture


def build(folder: Path, task: Task) -> None:
    """`make`, with the compiler commands recorded. No GPU is needed: no program runs."""
    try:
        report = capture(["make", f"ARCH={task.arch}"], folder, CaptureOptions(device="cuda", timeout=300.0))
    except NothingCaptured as nothing:  # of course: only the compiler ran
        report = nothing.report
    errors = [line for line in report.output.splitlines() if "rror" in line] or report.output.splitlines()[-3:]
    built = (folder / "main").is_file()
    emit({"built": built, "why": "" if built else " ".join(errors[:3])[:400]})


def record(folder: Path, task: Task) -> None:
    """The program's own runs, under capture. The report goes into the folder and to stdout."""
    run = " && ".join(f"./main {arguments}".strip() for arguments in task.runs)
    if task.device == "emulator":
        run = f"make ARCH={task.arch} && {run}"
    options = CaptureOptions(device=task.device, first=task.first, cap=task.cap, timeout=task.capture_seconds)
    try:
        with turn("" if task.device == "emulator" else driver.uuid(0), alone=False):  # others may be timing
            report = capture(["sh", "-c", run], folder, options)
    except NothingCaptured as error:
        report, why = error.report, str(error)
    else:
        why = ""
    data = report.to_json() | {"why": why}
    (folder / REPORT).write_text(json.dumps(data))
    kernels = {k["kernel"]: f"{k['recorded']} of {k['launches']}" for k in data["kernels"]}
    emit({"captured": report.recorded, "kernels": kernels, "why": why, "seconds": report.seconds})


def kernels_of(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every kernel that the program's own files define."""
    for path in sorted(folder.iterdir()):
        if path.suffix in SOURCES and path.is_file():
            for kernel in parse_module(documents.read(path)).kernels:
                yield path, kernel.id


# ---------------------------------------------------------------- optimise


def optimise(folder: Path, task: Task, search: Callable[..., Outcome] = optimize) -> None:
    """Every kernel of the program, those that cost most first; one row each."""
    started = time.monotonic()
    report = json.loads((folder / REPORT).read_text())
    seen = {entry["kernel"]: entry for entry in report["kernels"]}
    with open_device("emulator" if task.device == "emulator" else "cuda:0") as device:
        found: list[tuple[Row, Path, Workload]] = []
        for path, kernel in kernels_of(folder):
            row = Row(task.program, kernel, path.name, device=device.info.name, date=time.strftime("%Y-%m-%d"))
            entry = next((seen[name] for name in seen if bundle.same_kernel(name, kernel)), None)
            row.launches, row.captured = (entry["launches"], entry["recorded"]) if entry else (0, 0)
            workload = bundle.find(path, kernel) if row.captured else None
            if workload is None:
                row.status, row.why_not = "not captured", why_not(entry, report["why"])
                if kernel not in task.known:
                    emit({"row": row})
                continue
            measure(device, path, workload, row)
            found.append((row, path, workload))
        searching = time.monotonic()  # the budget is for searches: measuring waits for others that use the GPU
        total = sum(cost(row) for row, _, _ in found) or 1.0
        for row, _, _ in found:
            row.share = cost(row) / total
        pending = sorted((one for one in found if one[0].kernel not in task.known), key=lambda item: -cost(item[0]))
        while pending:
            row, path, workload = pending[0]
            weights = [max(LEAST_SHARE, item[0].share or 0.0) for item in pending if item[0].judged]
            left = task.budget - (time.monotonic() - searching)
            seconds = max(0.0, left) * weights[0] / sum(weights) if row.judged else 0.0
            if row.judged:
                end = min(task.deadline, time.time() + SLACK * seconds + SLACK_S)
                one(device, path, workload, row, max(5.0, seconds), end, search)
                row.cut = time.time() > task.deadline
            emit({"row": row})
            pending.pop(0)
    emit({"done": True, "seconds": time.monotonic() - started})


def why_not(entry: dict[str, Any] | None, why: str) -> str:
    if entry is None:
        return f"not launched in this run{f': {why}' if why else ''}"
    return "; ".join(f"{skipped['launches']} × {skipped['why']}" for skipped in entry["skipped"]) or why or "no bundle"


def cost(row: Row) -> float:
    return (row.original_us or 0.0) * row.launches


def measure(device: Device, path: Path, workload: Workload, row: Row) -> None:
    """The original alone: does it replay, how long does it take, how near is that to the bytes that must move."""
    text, options = documents.read(path).text, JudgeOptions(mutants=0)
    same = Candidate(workload.kernel, text, text, (), "person", id="original")
    case = Case(device, find_build(path), workload, text, same, options=options)
    try:
        gate = NullCandidates().check(case)
        row.judged, row.why_not = gate.status == "pass", "" if gate.status == "pass" else gate.detail
        times = [microseconds(case, index) for index in range(len(case.launches))]
        row.original_us = statistics.fmean(times)
        found = limiter.of_original(case, predicted(case), None if case.emulated else row.original_us)
        row.limiter, row.left = (found.kind, found.left) if found is not None else ("", "")
        if device.info.kind == "cuda":
            row.floor_us = statistics.fmean(original_floor(case, index).us for index in range(len(case.launches)))
    except Cancelled:
        raise
    except CudaAgentError as error:
        row.judged, row.why_not = False, str(error)
        device.restart()
    row.status = "" if row.judged else "not judged"


def microseconds(case: Case, index: int) -> float:
    """A short measurement of the original, good enough to share seconds out by; the verdict measures again."""
    launch = case.launches[index]
    if case.emulated:
        return 1e6 * case.baseline(index).seconds
    side = jobs.launch_fields("original", launch, kernel=case.kernel_in(case.original_binary, launch))
    steps = [*case.load_steps(candidate=False), jobs.time_step(side, side, rounds=3, budget_s=1.0)]
    timed = case.run(steps, deadline_s=60.0, tag="timing the original")[-1]
    if not timed["ok"]:
        raise CudaAgentError(timed["error"])
    return statistics.median(sample["us"] for sample in timed["samples"])


def one(
    device: Device,
    path: Path,
    workload: Workload,
    row: Row,
    seconds: float,
    end: float,
    search: Callable[..., Outcome],
) -> None:
    """One search of so many seconds, its verdict until `end`. Whatever ends it ends in the row."""
    began = time.monotonic()
    request = Request(path, kernel=workload.kernel, device=device.info.kind, budget_s=seconds, max_candidates=10_000)
    try:
        outcome = search(request, on_event=note, cancelled=lambda: time.time() > end, device=device, workload=workload)
        fill(row, outcome)
    except Cancelled as error:
        row.status, row.message = "undecided", str(error)
    except CudaAgentError as error:
        row.status, row.message = "undecided", f"{type(error).__name__}: {error}"
        device.restart()
    row.seconds = time.monotonic() - began


def fill(row: Row, outcome: Outcome) -> None:
    verdict, candidate = outcome.verdict, outcome.candidate
    row.status, row.message, row.tried = outcome.status, outcome.message, outcome.tried
    row.left = outcome.left or row.left
    row.steps = [{"origin": s.candidate.origin, "score": s.score, "note": s.note} for s in outcome.steps]
    offered = outcome.status == "verified" and candidate is not None
    row.full_failed = outcome.refused
    if verdict is not None:
        row.shown_failed = int(offered and any(gate.status == "fail" for gate in verdict.gates))
    timings = [s.verdict.timing for s in outcome.steps if s.verdict and s.verdict.timing]
    if timings:
        row.original_us = timings[-1].original_us / limiter.timed(timings[-1])
    if offered and verdict is not None:
        row.level, row.rules, row.diff = verdict.level, candidate.origin.removeprefix("rule:"), outcome.diff
        row.evidence = dict(outcome.evidence)
        if verdict.timing is not None:
            row.ratio, row.ci, row.label = verdict.timing.ratio, verdict.timing.ci, verdict.timing.label
            row.original_us = verdict.timing.original_us / limiter.timed(verdict.timing)


def main() -> int:
    verb, folder, words = sys.argv[1:]
    fields = json.loads(words)
    task = replace(Task("", ""), **(fields | {name: tuple(fields[name]) for name in ("runs", "known")}))
    {"build": build, "capture": record, "optimize": optimise}[verb](Path(folder), task)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
