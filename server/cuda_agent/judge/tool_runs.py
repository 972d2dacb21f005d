"""One launch under the tools of compute-sanitizer, several runs at once, some of them before G7 asks.

Each run is a process of its own, so a finding belongs to one kernel, and a tool that ends the context ends nothing
else. Its start takes seconds and its launch milliseconds.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from weakref import WeakKeyDictionary

from cuda_agent.device import Device, jobs, sanitizer
from cuda_agent.device.bare import Task
from cuda_agent.device.sanitizer import Checked, Sanitizer
from cuda_agent.errors import Cancelled, CudaAgentError
from cuda_agent.judge import baseline
from cuda_agent.judge.case import ORIGINAL, Case
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
ZEROS = "zeros"
BAD = "bad"  # module name, beside ORIGINAL and CANDIDATE
# A process under a tool takes about a gigabyte of a GPU; small ones hold fewer at a time.
BYTES_A_RUN = 4 << 30
RUNS = 12  # all: three sides, four tools
POLL_S = 0.1
INITCHECK = "initcheck"  # it gets the pure outputs as they were allocated, so they must be known
_proved: WeakKeyDictionary[Device, set[str]] = WeakKeyDictionary()  # tools that found their known-bad kernel
_originals: WeakKeyDictionary[Device, dict[tuple[object, ...], Checked]] = WeakKeyDictionary()

Run = tuple[str, str]  # a tool, and BAD, ORIGINAL or CANDIDATE


class Runs:
    """Runs of one launch under the tools, several at once. Each begins once; `close` ends those that are not over."""

    def __init__(self, case: Case, index: int) -> None:
        self.case, self.index = case, index
        at_once = min(RUNS, os.cpu_count() or 1, case.device.info.memory_bytes // BYTES_A_RUN)
        self.at_once = max(1, at_once)
        self.proved = _proved.setdefault(case.device, set())
        self.kept = _originals.setdefault(case.device, {})
        self._pools = [ThreadPoolExecutor(self.at_once, "sanitizer")]
        self._folder = tempfile.TemporaryDirectory(prefix="cuda-agent-launch-")
        self._begun: dict[Run, Future[Checked]] = {}
        self._early: frozenset[Run] = frozenset()  # begun before the gate
        self._beginning: threading.Thread | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()  # nothing begins, and the folder gets nothing, after the end

    def unproved(self) -> list[str]:
        """Tools that have yet to find their known-bad kernel."""
        return [name for name in sanitizer.TOOLS if name not in self.proved]

    def unknown(self, tool: Sanitizer) -> list[str]:
        """Tools that have yet to see the original."""
        return [name for name in sanitizer.TOOLS if self.key(tool, name) not in self.kept]

    def key(self, tool: Sanitizer, name: str) -> tuple[object, ...]:
        return tool.path, name, self.case.original_binary.sha256, self.case.launches[self.index]

    def room_for(self, runs: Sequence[Run]) -> bool:
        """Whether they and all that are not over can run at once."""
        under_way = sum(not future.done() for future in self._begun.values())
        return under_way + sum(run not in self._begun for run in runs) <= self.at_once

    def begin(self) -> None:
        """Begin, in a thread of its own, what is known to be needed before the candidate is."""
        self._beginning = threading.Thread(target=self._begin, name="sanitizer-ahead", daemon=True)
        self._beginning.start()

    def take_over(self) -> None:
        """From the thread that began. What follows does not wait for a place behind what it began."""
        if self._beginning is not None:
            self.case.baseline(self.index)  # it may wait for that
            self._beginning.join()
            self._early = frozenset(self._begun)
            self._pools.append(ThreadPoolExecutor(self.at_once, "sanitizer"))

    def _begin(self) -> None:
        limit = self.case.options.checkers_timeout_s
        with suppress(CudaAgentError):
            tool = sanitizer.find()
            self.start(tool, [(name, BAD) for name in self.unproved()], time.monotonic() + limit / 2)
            for name in sorted(self.unknown(tool), key=lambda name: name == INITCHECK):
                while name == INITCHECK and baseline.known(self.case, self.index) is None:
                    if self._ended.wait(POLL_S):  # for an earlier gate, which makes it: here it would be made twice
                        return
                self.start(tool, [(name, ORIGINAL)], time.monotonic() + limit)

    def start(self, tool: Sanitizer, runs: Sequence[Run], until: float) -> None:
        """Those of them that have not begun. Raises Cancelled after the end."""
        for run in runs:
            if run in self._begun:
                continue
            task, binary = self._task(*run)
            held = {**self.case.held, ZEROS: bytes(4 * THREADS), binary.sha256: binary.data}
            source = jobs.BlobSource(bundle.BlobStore(self.case.workload.blobs), held)
            with self._lock:
                if self._ended.is_set():
                    raise Cancelled("nobody waits for it")
                for name in (binary.sha256, *jobs.blob_names([task.launch])):
                    if not (task.blobs / name).exists():
                        (task.blobs / name).write_bytes(source[name])
                self._begun[run] = self._pools[-1].submit(self._one, tool, run, task, until)

    def results(self, tool: Sanitizer, runs: Sequence[Run], until: float) -> dict[Run, Checked]:
        """Of runs that have begun. One that went wrong before the gate began (earlier gates shared the GPU) is run
        again."""
        done = {run: self._begun[run].result() for run in runs}
        if again := [run for run in runs if run in self._early and done[run].why]:
            self._early = self._early.difference(again)
            for run in again:
                del self._begun[run]
            self.start(tool, again, until)
            done |= self.results(tool, again, until)
        return done

    def close(self) -> None:
        with self._lock:
            self._ended.set()
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)
        self._folder.cleanup()

    @cached_property
    def _bad(self) -> Binary:
        return self.case.device.compile(replace(self.case.build, flags=(), through=None), KNOWN_BAD)

    def _task(self, name: str, side: str) -> tuple[Task, Binary]:
        case, blobs = self.case, Path(self._folder.name)
        if side == BAD:
            return bad_task(name, self._bad, blobs), self._bad
        if side == ORIGINAL:
            binary, launch = case.original_binary, case.original_launch("run", self.index)
        else:
            binary, launch = case.candidate_binary, case.candidate_launch("run", self.index)
        unwritten = case.baseline(self.index).poisoned if name == INITCHECK else frozenset[int]()
        return Task(jobs.load_step(binary, side), launch, blobs, unwritten), binary

    def _one(self, tool: Sanitizer, run: Run, task: Task, until: float) -> Checked:
        name, side = run
        left = until - time.monotonic()
        if self._stopped():
            raise Cancelled("stopped by the person")
        if left <= 0:
            return Checked((), "no time was left for it", "", 0.0)
        checked = sanitizer.check(tool, name, self.case.device, task, left, self._stopped)
        if side == BAD and not missed(name, checked):
            self.proved.add(name)
        if side == ORIGINAL and not checked.why:
            self.kept[self.key(tool, name)] = checked
        return checked

    def _stopped(self) -> bool:
        return self._ended.is_set() or (self.case.cancelled is not None and self.case.cancelled())


def missed(tool: str, shown: Checked) -> str:
    """Empty when the tool found the fault of its known-bad kernel."""
    kernel, kind = SHOWN[tool]
    if any(kind in finding.kind and finding.kernel == kernel for finding in shown.findings):
        return ""
    said = shown.why or ", ".join(sorted({finding.kind for finding in shown.findings})) or "nothing"
    return f"it did not find the {kind} of a known-bad kernel ({said})"


def bad_task(tool: str, binary: Binary, blobs: Path) -> Task:
    """The launch of the kernel that a tool must find fault with. The folder holds the binary and ZEROS."""
    pointers = [Arg(8 * number, bytes(8), (Pointer(0, number, 0),)) for number in (0, 1)]
    buffers = (Buffer(0, 4 * THREADS, (ZEROS,), None), Buffer(0, 4 * THREADS, (ZEROS,), None))
    count = Arg(16, THREADS.to_bytes(4, "little"))
    launch = Launch(SHOWN[tool][0], "", (1, 1, 1), (THREADS, 1, 1), 0, (*pointers, count), buffers)
    unwritten = frozenset({1}) if tool == INITCHECK else frozenset[int]()
    return Task(jobs.load_step(binary, BAD), jobs.launch_step("run", BAD, launch), blobs, unwritten)
