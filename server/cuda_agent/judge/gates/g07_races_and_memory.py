"""G7, races and memory: the emulator's checkers."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar
from weakref import WeakKeyDictionary

from ...device import Device, jobs
from ...errors import CudaAgentError
from ...model import Arg, Binary, Buffer, Build, GateResult, Launch, Pointer
from ..case import Case
from ..gate import Needs, failed, not_run, passed
from ..outcome import sentence

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
EXPECTED = frozenset(("shared-race", "out-of-bounds"))
_proved: WeakKeyDictionary[Device, str] = WeakKeyDictionary()  # "" when the checkers work, else why not


class RacesAndMemory:
    """On the emulator every access of the candidate's traced launch passes the checkers: races in shared and global
    memory, reads of memory that nobody wrote, barriers that not all threads reach (accesses out of bounds are G4's).
    The checkers are first shown a known-bad kernel; if they pass it, this gate did not run. A finding of a kind that
    the original's own launch also shows in the same place is the program's. Threads run in one order there: a race is
    found by what is not ordered by a barrier, not by bad luck. On a GPU this needs compute-sanitizer, which is not
    built in yet."""

    id: ClassVar[str] = "G7"
    name: ClassVar[str] = "races and memory"
    cost: ClassVar[float] = 0.0
    needs: ClassVar[Needs] = "run"

    def check(self, case: Case) -> GateResult:
        if not case.emulated:
            return not_run(self, "compute-sanitizer is not built in yet; judge on the emulator for its checkers")
        if not case.options.traffic:
            return not_run(self, "launches were not traced")
        if why := _why_not(case.device, case.build):
            return not_run(
                self, f"the emulator's checkers did not find a known-bad kernel's faults: {why}", undecided=True
            )
        for outcome in case.outcomes():
            own = {(f["kind"], f.get("buffer")) for f in outcome.original_findings}
            new = [
                f for f in outcome.findings if f["kind"] != "out-of-bounds" and (f["kind"], f.get("buffer")) not in own
            ]
            if new:
                shape = case.launch_name(outcome.launch)
                return failed(
                    self,
                    f"launch {shape}: {sentence(case, outcome.launch, new[0])}",
                    findings=[dict(finding) for finding in new[:20]],
                )
        shown = {str(f["kind"]) for outcome in case.outcomes() for f in outcome.original_findings}
        also = f"; the original itself shows {', '.join(sorted(shown))}" if shown else ""
        return passed(self, f"no race, no uninitialised read, no divergent barrier in the traced launches{also}")


def _why_not(device: Device, build: Build) -> str:
    if device not in _proved:
        _proved[device] = _prove(device, build)
    return _proved[device]


def _prove(device: Device, build: Build) -> str:
    """Run the known-bad kernel; empty when every expected kind was found."""
    try:
        binary = device.compile(replace(build, flags=()), KNOWN_BAD)
        held = jobs.BlobSource(None, {ZEROS: bytes(256)}).add_binary(binary)
        steps = [jobs.load_step(binary, "bad"), jobs.launch_step("bad", "bad", _launch(binary), trace=True)]
        *_, launched = device.run(jobs.Job(steps, 60.0, "known-bad kernel", frozenset({binary.sha256})), held)
    except CudaAgentError as error:
        return str(error)
    missing = EXPECTED - {finding["kind"] for finding in launched.get("findings", ())}
    return f"missed {', '.join(sorted(missing))}" if missing else ""


ZEROS = "5341e6b2646979a70e57653007a1f310169421ec9bdd9f1a5648f75ade005af1"  # sha256 of 256 zero bytes


def _launch(binary: Binary) -> Launch:
    mangled = next(iter(binary.kernels))
    pointer = Arg(0, bytes(8), (Pointer(0, 0, 0),))
    count = Arg(8, (64).to_bytes(4, "little"))
    buffer = Buffer(0, 256, (ZEROS,), None)
    return Launch(mangled, "known_bad", (1, 1, 1), (64, 1, 1), 0, (pointer, count), (buffer,))
