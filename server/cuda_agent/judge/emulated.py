"""The emulator's checkers (G7): proved on a known-bad kernel, and asked too where a candidate is judged on a GPU.

A GPU hides what is undefined: a shuffle whose mask does not name all its lanes mostly gives what was meant, a race in
global memory goes well for years, and no tool of compute-sanitizer sees either. So original and candidate are built for
the emulator as well and run there, traced, on one small launch, threads in several orders. What the original shows too
is the program's own. A kernel that the emulator cannot build or run says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from cuda_agent.device import Device, jobs, open_device
from cuda_agent.device.info import GPUS
from cuda_agent.errors import Cancelled, CudaAgentError, WorkerDied
from cuda_agent.judge import outcome as outcomes
from cuda_agent.judge.baseline import poison_of
from cuda_agent.judge.case import Case, Results
from cuda_agent.judge.hidden import small
from cuda_agent.judge.hidden.trial import Trial
from cuda_agent.model import Arg, Binary, Buffer, Build, Launch, Pointer

if TYPE_CHECKING:
    from cuda_agent.judge.hidden.trials import Hidden

KNOWN_BAD = """\
#include <cuda_runtime.h>
extern "C" __global__ void known_bad(float *x, int n)
{
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = s[63 - threadIdx.x];
    if (threadIdx.x == 0)
        x[n] = 1.0f;
}
"""
EXPECTED = frozenset(("shared-race", "out-of-bounds", "uninitialised"))
ZEROS = "5341e6b2646979a70e57653007a1f310169421ec9bdd9f1a5648f75ade005af1"  # sha256 of 256 zero bytes
SMALL_BYTES, SMALL_THREADS = 1 << 20, 1 << 14  # of a launch that is traced in a moment
LARGE_BYTES, LARGE_THREADS = 64 << 20, 1 << 20  # of a captured one that is tried where nothing smaller can be had
SEEDS = 3  # orders of threads: a barrier that some miss shows in one and not in another
# Of an emulated launch that did not end well: what no right kernel does, however it is run. Others may be the
# emulator's own limits.
FAULTS = ("barrier", "misaligned", "illegal address", "assertion", "__trap")
_proved: WeakKeyDictionary[Device, str] = WeakKeyDictionary()  # "" when the checkers work, else why not


def why_not(device: Device, build: Build) -> str:
    """Why the checkers of an emulator cannot be trusted; empty when they find the known-bad kernel's faults."""
    if device not in _proved:
        _proved[device] = _prove(device, build)
    return _proved[device]


def _prove(device: Device, build: Build) -> str:
    try:
        binary = device.compile(_plain(build), KNOWN_BAD)
        held = jobs.BlobSource(None, {ZEROS: bytes(256)}).add_binary(binary)
        poison = {0: [(0, 256, "ff")]}  # what nobody wrote, and it reads
        steps = [
            jobs.load_step(binary, "bad"),
            jobs.launch_step("bad", "bad", _bad_launch(binary), poison=poison, trace=True),
        ]
        *_, launched = device.run(jobs.Job(steps, 60.0, "known-bad kernel", frozenset({binary.sha256})), held)
    except Cancelled:
        raise
    except CudaAgentError as error:
        return str(error)
    missing = EXPECTED - {finding["kind"] for finding in launched.get("findings", ())}
    return f"missed {', '.join(sorted(missing))}" if missing else ""


def _bad_launch(binary: Binary) -> Launch:
    mangled = next(iter(binary.kernels))
    pointer = Arg(0, bytes(8), (Pointer(0, 0, 0),))
    count = Arg(8, (64).to_bytes(4, "little"))
    buffer = Buffer(0, 256, (ZEROS,), None)
    return Launch(mangled, "known_bad", (1, 1, 1), (64, 1, 1), 0, (pointer, count), (buffer,))


# ---------------------------------------------------------------- beside a GPU


@dataclass(frozen=True, slots=True)
class Look:
    """What the checkers said of one case. `why`: why they said nothing; then nothing else is there."""

    why: str = ""
    case: str = ""  # its name
    problem: str = ""  # the first new finding, or the fault, in words; empty when there is none
    findings: tuple[Mapping[str, Any], ...] = ()  # new ones
    own: tuple[str, ...] = ()  # kinds that the original shows

    @property
    def words(self) -> str:
        """Of a look without a problem."""
        if self.why:
            return f"the emulator's checkers were not asked: {self.why}"
        also = f" ({', '.join(self.own)} is the original's own)" if self.own else ""
        return f"the emulator's checkers find nothing{' new' * bool(self.own)} on {self.case}{also}"

    def to_json(self) -> dict[str, Any]:
        status = "not run" if self.why else "worse" if self.problem else "as the original" if self.own else "clean"
        return {"status": status, "why": self.why, "case": self.case, "original_shows": list(self.own)}


def cases(case: Case) -> list[Trial]:
    """The launches to try, in order: the smallest captured one where it is small, small ones that G5 derived, and at
    last the captured one all the same."""
    captured, derived = small.captured(case), small.derived(case, SMALL_BYTES, SMALL_THREADS)
    if small.fits(captured.launch, SMALL_BYTES, SMALL_THREADS):
        return [captured]
    return [*derived, captured] if small.fits(captured.launch, LARGE_BYTES, LARGE_THREADS) else derived


def look(case: Case, trials: Sequence[Trial]) -> Look:
    """Original and candidate on the first of `trials` on which the original ends well. Raises Cancelled only."""
    if case.options.emulator_s <= 0:
        return Look("it was not to be")
    if not trials:
        return Look("no launch is small enough for it, and none could be derived")
    until = time.monotonic() + case.options.emulator_s
    untrusted = case.candidate.by_model
    try:
        with open_device(_spec(case), untrusted=untrusted) as device:
            if why := why_not(device, case.build):
                return Look(f"they did not find a known-bad kernel's faults: {why}")
            return _on(_built(case, device, until, untrusted), case, trials, until)
    except Cancelled:
        raise
    except CudaAgentError as error:  # no g++, no sandbox, inline assembly, a library: it says nothing of the candidate
        return Look(str(error))


def _spec(case: Case) -> str:
    """An emulator with the GPU's limits, where there is one."""
    same = (key for key, info in GPUS.items() if info.arch == case.device.info.arch)
    return f"emulator:{next(same, 'h200')}"


def compilations(case: Case) -> Iterator[Callable[[], object]]:
    """What a look compiles, one call each; the results go into the cache."""
    from cuda_agent.device.emulator import build

    untrusted = case.candidate.by_model
    yield lambda: build.compile(case.build, case.original)
    yield lambda: build.compile(case.build, case.candidate.text, untrusted=untrusted)
    yield lambda: build.compile(_plain(case.build), KNOWN_BAD)


def _plain(build: Build) -> Build:
    return replace(build, flags=(), through=None)


def _built(case: Case, device: Device, until: float, untrusted: bool) -> Case:
    """The same judgement on the emulator, both sides compiled, at the same time."""
    from cuda_agent.device.emulator import build

    made = Case(
        device, case.build, case.workload, case.original, case.candidate,
        module=case.module, options=case.options, cancelled=case.cancelled,
    )  # fmt: skip

    def compiled(text: str, model: bool) -> Binary:
        return build.compile(case.build, text, untrusted=model, timeout=max(1.0, until - time.monotonic()))

    with ThreadPoolExecutor(2, "emulated") as pool:
        theirs, ours = (
            pool.submit(compiled, case.original, False),
            pool.submit(compiled, case.candidate.text, untrusted),
        )
        made.__dict__["original_binary"], made.__dict__["candidate_binary"] = theirs.result(), ours.result()
    case.check_cancelled()
    return made


def _on(made: Case, case: Case, trials: Sequence[Trial], until: float) -> Look:
    from cuda_agent.judge.hidden.trials import Hidden

    said = Look("no time was left")
    for trial in trials:
        left = until - time.monotonic()
        if left <= 0:
            break
        hidden = Hidden(made, [trial], case.plan.held)
        outputs = frozenset(b for b in case.baseline(trial.index).poisoned if trial.launch.buffers[b].size)
        try:
            results = hidden.run(_steps(hidden, outputs), deadline_s=left, tag=f"checking {trial.name}", candidate=True)
        except WorkerDied as error:
            if error.module == made.candidate_binary.sha256:
                return Look(f"the candidate did not end there on {trial.name}: {error}")
            said = Look(f"the original did not end there on {trial.name}: {error}")
            continue
        count = (len(results) - 2) // 2
        theirs, ours = results[2 : 2 + count], results[2 + count :]
        if bad := next((result for result in (*results[:2], *theirs) if not result["ok"]), None):
            said = Look(f"the original does not run there on {trial.name}: {bad['error']}")
            continue
        return _compared(hidden, theirs, ours)
    return said


def _steps(hidden: Hidden, outputs: frozenset[int]) -> list[jobs.Step]:
    """The original in every order of threads, then the candidate; a large launch in one order only."""
    poison = poison_of(hidden, 0, outputs, 0)
    sides = (("o", hidden.original_launch), ("c", hidden.candidate_launch))
    orders = SEEDS if small.fits(hidden.launches[0], SMALL_BYTES, SMALL_THREADS) else 1
    launches = [
        {**launched(f"{name}{seed}", 0, poison=poison, trace=True), "seed": seed}
        for name, launched in sides
        for seed in range(orders)
    ]
    return [*hidden.load_steps(), *launches]


def _compared(hidden: Hidden, theirs: Results, ours: Results) -> Look:
    name = hidden.launch_name(0)
    own = [finding for result in theirs for finding in result.get("findings", ())]
    kinds = {(finding["kind"], finding.get("buffer")) for finding in own}
    places = {outcomes.place(finding) for finding in own}
    shown = tuple(sorted({str(finding["kind"]) for finding in own}))
    found = [finding for result in ours for finding in result.get("findings", ())]
    new = [
        finding
        for finding in found
        if (
            outcomes.place(finding) not in places
            if finding["kind"] == "out-of-bounds"
            else (finding["kind"], finding.get("buffer")) not in kinds
        )
    ]
    ends = [str(result["error"]) for result in ours if not result["ok"]]
    fault = next((end for end in ends if end.partition(" failed: ")[2].startswith(FAULTS)), "")
    if new or fault:
        problem = outcomes.sentence(hidden, 0, new[0]) if new else fault
        return Look(case=name, problem=problem, findings=tuple(dict(one) for one in new[:20]), own=shown)
    return Look(f"the candidate does not run there on {name}: {ends[0]}") if ends else Look(case=name, own=shown)
