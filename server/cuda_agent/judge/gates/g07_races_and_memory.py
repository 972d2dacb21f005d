"""G7, races and memory: the emulator's checkers, or compute-sanitizer on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from cuda_agent.device import Device, jobs
from cuda_agent.device import sanitizer as tools
from cuda_agent.errors import Cancelled, CudaAgentError
from cuda_agent.judge import sanitizer
from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, failed, not_run, passed
from cuda_agent.judge.outcome import sentence
from cuda_agent.model import Arg, Binary, Buffer, Build, GateResult, Launch, Pointer

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
    Threads run in one order there: a race is found by what is not ordered by a barrier, not by bad luck. On a GPU the
    smallest judged launch runs under compute-sanitizer's memcheck, racecheck, initcheck and synccheck, each time in a
    process of its own whose buffers are allocations of exactly their size: an access one byte beyond is seen, and
    initcheck finds the pure outputs as they were allocated. Every checker is first shown a known-bad kernel; one that
    passes it did not run. A finding of a kind that the original shows as often is the program's own; a new kind, or
    more of it, fails. Where a tool finds something and the original could not be asked, nothing can be decided. The
    same instructions in the same launches show the same and are not run. It sees one launch, no races in global memory
    on a GPU, and nothing in launches above 256 MiB; a tool that has not ended after 30 s did not run."""

    id: ClassVar[str] = "G7"
    name: ClassVar[str] = "races and memory"
    cost: ClassVar[float] = 0.0
    needs: ClassVar[Needs] = "run"

    def check(self, case: Case) -> GateResult:
        if not case.emulated:
            return self._on_gpu(case)
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

    def _on_gpu(self, case: Case) -> GateResult:
        try:
            if case.same_code:
                return passed(self, "the same instructions, launched alike: they show what the original shows")
            tool = tools.find()
            index = sanitizer.smallest(case)
            answers = sanitizer.check(case, tool, index)
        except Cancelled:
            raise
        except CudaAgentError as error:  # this machine, or the inputs: it says nothing about the candidate
            return not_run(self, str(error), error=type(error).__name__)
        shape = case.launch_name(index)
        data: dict[str, Any] = {
            "sanitizer": tool.version,
            "launch": index,
            "tools": {answer.tool: answer.to_json() for answer in answers},
            "findings": [_finding(answer.tool, f) for answer in answers for f in answer.findings[:20]],
        }
        if worse := [answer for answer in answers if answer.state == "worse"]:
            said = [f"{a.tool}: {_sentence(a.findings[0])} ({len(a.findings):,} such reports)" for a in worse]
            return failed(self, f"launch {shape}: {'; '.join(said)}; the original does not show that", **data)
        ran = [answer for answer in answers if answer.state != "not run"]
        own = sorted({f"{f.kind} ({a.tool})" for a in ran for f in a.own})
        also = f"; the original itself shows {', '.join(own)}" if own else ""
        names = ", ".join(answer.tool for answer in ran)
        if missing := [f"{a.tool} did not run: {a.why}" for a in answers if a.state == "not run"]:
            found = f"; nothing new from {names}{also}" if ran else ""
            undecided = any(a.state == "not run" and a.findings for a in answers)
            return not_run(self, f"{'; '.join(missing)}{found}", undecided=undecided, **data)
        found = "nothing new" if any(a.state == "as the original" for a in ran) else "nothing"
        return passed(self, f"compute-sanitizer's {names} find {found} on launch {shape}{also}", **data)


def _finding(tool: str, finding: tools.Finding) -> dict[str, object]:
    """As docs/evidence.md has it."""
    place = {"line": finding.line, "block": finding.block, "thread": finding.thread}
    return {"kind": finding.kind, "tool": tool, "kernel": finding.kernel, **place, "text": finding.text}


def _sentence(finding: tools.Finding) -> str:
    line = f" at line {finding.line}" if finding.line else ""
    return f"{finding.kind} in {finding.kernel or 'the kernel'}{line}: {finding.text}"


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
