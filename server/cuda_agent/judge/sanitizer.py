"""G7 on a GPU: one launch, original and candidate, under the four tools of compute-sanitizer.

Every tool is first shown a kernel with the fault that it is there for; one that does not name it has no say. Each run
is a process of its own, so a finding belongs to one kernel, and a tool that ends the context ends nothing else. What a
tool finds in the original is kept: a search judges many candidates against one.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

from cuda_agent.device import Device, jobs, sanitizer
from cuda_agent.device.bare import Task
from cuda_agent.device.sanitizer import Checked, Finding, Sanitizer
from cuda_agent.errors import WorkloadError
from cuda_agent.judge.case import CANDIDATE, ORIGINAL, Case
from cuda_agent.judge.hidden import small
from cuda_agent.model import Arg, Binary, Buffer, Launch, Pointer
from cuda_agent.workload import bundle

# y is never written by anybody: `reads_unwritten` reads it.
KNOWN_BAD = """\
extern "C" __global__ void writes_beyond(float *x, float *y, int n)
{
    if (threadIdx.x == 0)
        x[n] = 1.0f;
}
extern "C" __global__ void races(float *x, float *y, int n)
{
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = s[63 - threadIdx.x];
}
extern "C" __global__ void reads_unwritten(float *x, float *y, int n)
{
    x[threadIdx.x] = y[threadIdx.x] + 1.0f;
}
extern "C" __global__ void diverges(float *x, float *y, int n)
{
    if (threadIdx.x % 2)
        __syncthreads();
    x[threadIdx.x] = 1.0f;
}
"""
SHOWN = {  # tool → the kernel of KNOWN_BAD that it must find fault with, and what it must say
    "memcheck": ("writes_beyond", "out-of-bounds global write"),
    "racecheck": ("races", "shared race"),
    "initcheck": ("reads_unwritten", "uninitialised global read"),
    "synccheck": ("diverges", "divergent barrier"),
}
THREADS = 64
SMALL_BYTES, SMALL_THREADS = 16 << 20, 1 << 16  # of a launch that is derived for the tools
ZEROS = "zeros"
BAD = "bad"  # module name, beside ORIGINAL and CANDIDATE
# A process under a tool takes about a gigabyte of a GPU; small ones hold fewer at a time.
BYTES_A_RUN = 4 << 30
RUNS = 8
_proved: WeakKeyDictionary[Device, set[str]] = WeakKeyDictionary()  # tools that found their known-bad kernel
_originals: WeakKeyDictionary[Device, dict[tuple[object, ...], Checked]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Answer:
    """One tool about one launch."""

    tool: str
    state: Literal["clean", "as the original", "worse", "not run"]
    why: str = ""  # of a tool that did not run
    findings: tuple[Finding, ...] = ()  # of the candidate; of "worse" only those the original does not show
    own: tuple[Finding, ...] = ()  # of the original
    seconds: float = 0.0  # of all its runs

    def to_json(self) -> dict[str, Any]:
        kinds = sorted({finding.kind for finding in self.own})
        return {"status": self.state, "why": self.why, "seconds": round(self.seconds, 3), "original_shows": kinds}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The launch that the tools see: `case.launches[index]`."""

    case: Case
    index: int
    name: str
    derived: bool = False


def choose(case: Case) -> Chosen:
    """The judged launch with the fewest bytes, then the fewest threads; where even that is above the limit, a small one
    that G5 derived and on which the original is clean. Raises WorkloadError when there is none."""
    captured, limit = small.captured(case), case.options.checker_bytes
    held = sum(buffer.size for buffer in captured.launch.buffers)
    if held <= limit:
        return Chosen(case, captured.index, captured.name)
    from cuda_agent.judge.hidden import trials  # numpy

    if found := trials.clean(case, small.derived(case, min(limit, SMALL_BYTES), SMALL_THREADS)):
        name = f"{found.launch_name(0)} (derived: the smallest captured launch has {held:,} bytes)"
        return Chosen(found, 0, name, derived=True)
    raise WorkloadError(
        f"the smallest captured launch has {held:,} bytes, the checkers take at most {limit:,}, and no smaller one "
        "could be derived from it: capture a smaller one too (smaller arguments, or --select smallest)"
    )


Run = tuple[str, str]  # a tool, and BAD, ORIGINAL or CANDIDATE


def check(case: Case, tool: Sanitizer, index: int) -> list[Answer]:
    """Every tool's answer, in the order of `sanitizer.TOOLS`. The candidate has half of the time; the rest is the
    original's, first under the tools that found something. Raises Cancelled, and what stops the whole gate: the
    known-bad kernels do not compile, a blob is missing."""
    started, limit = time.monotonic(), case.options.checkers_timeout_s
    proved = _proved.setdefault(case.device, set())
    kept = _originals.setdefault(case.device, {})
    keys = {name: (tool.path, name, case.original_binary.sha256, case.launches[index]) for name in sanitizer.TOOLS}
    with _tasks(case, index) as tasks, _Runs(case, tool, tasks) as runs:
        shown = [(name, BAD) for name in sanitizer.TOOLS if name not in proved]
        done = runs([*shown, *((name, CANDIDATE) for name in sanitizer.TOOLS)], started + limit / 2)
        proved |= {name for name, _ in shown if not _missed(name, done[name, BAD])}
        asked = [
            name
            for name in sanitizer.TOOLS
            if name in proved and not done[name, CANDIDATE].why and keys[name] not in kept
        ]
        asked.sort(key=lambda name: not done[name, CANDIDATE].findings)
        done |= runs([(name, ORIGINAL) for name in asked], started + limit)
    kept |= {keys[name]: done[name, ORIGINAL] for name in asked if not done[name, ORIGINAL].why}
    answers = []
    for name in sanitizer.TOOLS:
        original = done.get((name, ORIGINAL)) or kept.get(keys[name])
        made = _answer(name, done.get((name, BAD)), done[name, CANDIDATE], original)
        seconds = sum(checked.seconds for (of, _), checked in done.items() if of == name)
        answers.append(replace(made, seconds=seconds))
    return answers


def _answer(name: str, shown: Checked | None, candidate: Checked, original: Checked | None) -> Answer:
    """`shown`: the known-bad kernel, where this run had to show it. `original`: None where nobody needed it."""
    if shown is not None and (why := _missed(name, shown)):
        return Answer(name, "not run", why)
    if candidate.why or original is None:
        return Answer(name, "not run", candidate.why)
    if not candidate.findings:
        return Answer(name, "clean", own=original.findings)
    if original.why:
        why = f"it finds {candidate.findings[0].kind} in the candidate, and of the original: {original.why}"
        return Answer(name, "not run", why, candidate.findings)
    worse = new_findings(candidate.findings, original.findings)
    return Answer(
        name,
        "worse" if worse else "as the original",
        findings=tuple(worse or candidate.findings),
        own=original.findings,
    )


def _missed(tool: str, shown: Checked) -> str:
    """Empty when the tool found the fault of its known-bad kernel."""
    kernel, kind = SHOWN[tool]
    if any(kind in finding.kind and finding.kernel == kernel for finding in shown.findings):
        return ""
    said = shown.why or ", ".join(sorted({finding.kind for finding in shown.findings})) or "nothing"
    return f"it did not find the {kind} of a known-bad kernel ({said})"


@contextmanager
def _tasks(case: Case, index: int) -> Iterator[dict[Run, Task]]:
    """Every run that may be asked for, its blobs on disk. initcheck gets the pure outputs as they were allocated."""
    bad = case.device.compile(replace(case.build, flags=(), through=None), KNOWN_BAD)
    binaries = (bad, case.original_binary, case.candidate_binary)
    launches = {ORIGINAL: case.original_launch("run", index), CANDIDATE: case.candidate_launch("run", index)}
    outputs = case.baseline(index).poisoned
    with tempfile.TemporaryDirectory(prefix="cuda-agent-launch-") as folder:
        blobs = Path(folder)
        held = {ZEROS: bytes(4 * THREADS), **{binary.sha256: binary.data for binary in binaries}}
        source = jobs.BlobSource(bundle.BlobStore(case.workload.blobs), {**case.held, **held})
        for name in [*held, *jobs.blob_names([launches[ORIGINAL]])]:
            (blobs / name).write_bytes(source[name])
        tasks = {(tool, BAD): bad_task(tool, bad, blobs) for tool in sanitizer.TOOLS}
        for side, binary in zip((ORIGINAL, CANDIDATE), binaries[1:], strict=True):
            load = jobs.load_step(binary, side)
            for tool in sanitizer.TOOLS:
                unwritten = outputs if tool == "initcheck" else frozenset[int]()
                tasks[tool, side] = Task(load, launches[side], blobs, unwritten)
        yield tasks


def bad_task(tool: str, binary: Binary, blobs: Path) -> Task:
    """The launch of the kernel that a tool must find fault with. The folder holds the binary and ZEROS."""
    pointers = [Arg(8 * number, bytes(8), (Pointer(0, number, 0),)) for number in (0, 1)]
    buffers = (Buffer(0, 4 * THREADS, (ZEROS,), None), Buffer(0, 4 * THREADS, (ZEROS,), None))
    count = Arg(16, THREADS.to_bytes(4, "little"))
    launch = Launch(SHOWN[tool][0], "", (1, 1, 1), (THREADS, 1, 1), 0, (*pointers, count), buffers)
    unwritten = frozenset({1}) if tool == "initcheck" else frozenset[int]()
    return Task(jobs.load_step(binary, BAD), jobs.launch_step("run", BAD, launch), blobs, unwritten)


class _Runs:
    """Runs tasks under tools, several at once."""

    def __init__(self, case: Case, tool: Sanitizer, tasks: Mapping[Run, Task]) -> None:
        self.case, self.tool, self.tasks = case, tool, tasks
        at_once = min(RUNS, os.cpu_count() or 1, case.device.info.memory_bytes // BYTES_A_RUN)
        self._pool = ThreadPoolExecutor(max(1, at_once), thread_name_prefix="sanitizer")

    def __enter__(self) -> _Runs:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __call__(self, runs: Iterable[Run], until: float) -> dict[Run, Checked]:
        asked = {run: self._pool.submit(self._one, run, until) for run in runs}
        return {run: future.result() for run, future in asked.items()}

    def _one(self, run: Run, until: float) -> Checked:
        self.case.check_cancelled()
        left = until - time.monotonic()
        if left <= 0:
            return Checked((), "no time was left for it", "", 0.0)
        return sanitizer.check(self.tool, run[0], self.case.device, self.tasks[run], left, self.case.cancelled)


def new_findings(candidate: Sequence[Finding], original: Sequence[Finding]) -> list[Finding]:
    """Findings of a kind and kernel that the original shows less often, or not at all."""
    ours, theirs = (Counter((finding.kind, finding.kernel) for finding in side) for side in (candidate, original))
    return [finding for finding in candidate if ours[key := (finding.kind, finding.kernel)] > theirs[key]]
