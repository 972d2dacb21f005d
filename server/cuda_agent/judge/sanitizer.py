"""G7 on a GPU: one captured launch, original and candidate, under the four tools of compute-sanitizer.

Every tool is first shown a kernel with the fault that it is there for; one that does not name it has no say. Each run
has a worker of its own, so a finding belongs to one kernel, and a tool that ends the context ends nothing else.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

from cuda_agent.device import Device, jobs, sanitizer
from cuda_agent.device.sanitizer import Checked, Finding, Sanitizer
from cuda_agent.errors import WorkloadError
from cuda_agent.judge.case import CANDIDATE, ORIGINAL, Case
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
UNWRITTEN = {"none": True}
THREADS = 64
_ZEROS = "zeros"
# A worker under a tool takes about a gigabyte of a GPU; small ones hold fewer at a time.
BYTES_A_WORKER = 4 << 30
WORKERS = 4
_proved: WeakKeyDictionary[Device, set[str]] = WeakKeyDictionary()  # tools that found their known-bad kernel


@dataclass(frozen=True, slots=True)
class Answer:
    """One tool about one launch."""

    tool: str
    state: Literal["clean", "as the original", "worse", "not run"]
    why: str = ""  # of a tool that did not run
    findings: tuple[Finding, ...] = ()  # of the candidate; of "worse" only those the original does not show
    own: tuple[Finding, ...] = ()  # of the original
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        kinds = sorted({finding.kind for finding in self.own})
        return {"status": self.state, "why": self.why, "seconds": round(self.seconds, 3), "original_shows": kinds}


def smallest(case: Case) -> int:
    """The judged launch with the fewest bytes, then the fewest threads. Raises WorkloadError when even that is above
    the limit."""

    def size(index: int) -> tuple[int, int]:
        launch = case.launches[index]
        threads = 1
        for extent in (*launch.grid, *launch.block):
            threads *= extent
        return sum(buffer.size for buffer in launch.buffers), threads

    index = min(range(len(case.launches)), key=size)
    held, limit = size(index)[0], case.options.checker_bytes
    if held > limit:
        raise WorkloadError(
            f"the smallest captured launch has {held:,} bytes, the checkers take at most {limit:,}: capture a smaller "
            "one too (smaller arguments, or --select smallest)"
        )
    return index


def check(case: Case, tool: Sanitizer, index: int) -> list[Answer]:
    """Every tool's answer, in the order of `sanitizer.TOOLS`. Raises Cancelled, and what stops the whole gate: the
    known-bad kernels do not compile, a blob is missing."""
    bad = case.device.compile(replace(case.build, flags=()), KNOWN_BAD)
    if case.device not in _proved:
        _proved[case.device] = set()
    sides = _sides(case, index)
    until = time.monotonic() + case.options.checkers_timeout_s
    at_once = max(1, min(WORKERS, case.device.info.memory_bytes // BYTES_A_WORKER))
    with ThreadPoolExecutor(at_once, thread_name_prefix="sanitizer") as pool:
        asked = [pool.submit(_ask, case, tool, name, bad, sides, until) for name in sanitizer.TOOLS]
        return [future.result() for future in asked]


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two kernels on the launch."""

    binary: Binary
    step: Mapping[str, Any]  # the launch, every buffer with its captured bytes
    unwritten: Mapping[str, Any]  # the same, with the pure outputs as they were allocated
    blobs: Mapping[str, bytes]


def _sides(case: Case, index: int) -> dict[str, _Side]:
    outputs = dict.fromkeys(case.baseline(index).poisoned, UNWRITTEN)
    store = bundle.BlobStore(case.workload.blobs)
    held = {name: store.get(name) for name in jobs.blob_names([case.original_launch("run", index)])}
    made = {}
    for name, binary in ((ORIGINAL, case.original_binary), (CANDIDATE, case.candidate_binary)):
        launch = case.original_launch if name == ORIGINAL else case.candidate_launch
        step = launch("run", index, canary=0)
        unwritten = launch("run", index, canary=0, inits=outputs)
        made[name] = _Side(binary, step, unwritten, {**held, binary.sha256: binary.data})
    return made


def _ask(case: Case, tool: Sanitizer, name: str, bad: Binary, sides: Mapping[str, _Side], until: float) -> Answer:
    started = time.monotonic()

    def run(binary: Binary, module: str, step: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Checked:
        job = jobs.Job(
            [jobs.load_step(binary, module), dict(step)], case.options.checkers_timeout_s, f"{name}: {module}"
        )
        left = min(case.options.checker_timeout_s, until - time.monotonic())
        if left <= 0:
            return Checked((), "no time was left for it", "", 0.0)
        return sanitizer.check(tool, name, case.device, job, blobs, left, case.cancelled)

    def side(module: str) -> Checked:
        it = sides[module]
        return run(it.binary, module, it.unwritten if name == "initcheck" else it.step, it.blobs)

    def answer(state: Literal["clean", "as the original", "worse", "not run"], **more: Any) -> Answer:
        return Answer(name, state, seconds=time.monotonic() - started, **more)

    if name not in _proved[case.device]:
        kernel, kind = SHOWN[name]
        shown = run(bad, "bad", bad_step(name), {bad.sha256: bad.data, _ZEROS: bytes(4 * THREADS)})
        if not any(kind in finding.kind and finding.kernel == kernel for finding in shown.findings):
            said = shown.why or ", ".join(sorted({finding.kind for finding in shown.findings})) or "nothing"
            return answer("not run", why=f"it did not find the {kind} of a known-bad kernel ({said})")
        _proved[case.device].add(name)
    candidate = side(CANDIDATE)
    if candidate.why:
        return answer("not run", why=candidate.why)
    original = side(ORIGINAL)
    if not candidate.findings:
        return answer("clean", own=original.findings)
    if original.why:
        found = candidate.findings[0].kind
        return answer("not run", why=f"it finds {found} in the candidate, and of the original: {original.why}")
    worse = new_findings(candidate.findings, original.findings)
    state: Literal["worse", "as the original"] = "worse" if worse else "as the original"
    return answer(state, findings=tuple(worse or candidate.findings), own=original.findings)


def new_findings(candidate: Sequence[Finding], original: Sequence[Finding]) -> list[Finding]:
    """Findings of a kind and kernel that the original shows less often, or not at all."""
    ours, theirs = (Counter((finding.kind, finding.kernel) for finding in side) for side in (candidate, original))
    return [finding for finding in candidate if ours[key := (finding.kind, finding.kernel)] > theirs[key]]


def bad_step(tool: str) -> jobs.Step:
    """The launch of the kernel that a tool must find fault with."""
    pointers = [Arg(8 * number, bytes(8), (Pointer(0, number, 0),)) for number in (0, 1)]
    buffers = (Buffer(0, 4 * THREADS, (_ZEROS,), None), Buffer(0, 4 * THREADS, (_ZEROS,), None))
    count = Arg(16, THREADS.to_bytes(4, "little"))
    launch = Launch(SHOWN[tool][0], "", (1, 1, 1), (THREADS, 1, 1), 0, (*pointers, count), buffers)
    return jobs.launch_step("run", "bad", launch, canary=0, inits={1: UNWRITTEN} if tool == "initcheck" else {})
