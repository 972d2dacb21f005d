"""G7, races and memory: the emulator's checkers, and compute-sanitizer on a GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

from cuda_agent.device import sanitizer as tools
from cuda_agent.errors import Cancelled, CudaAgentError
from cuda_agent.judge import emulated, sanitizer
from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, failed, not_run, passed
from cuda_agent.judge.outcome import sentence
from cuda_agent.model import GateResult


class RacesAndMemory:
    """On the emulator every access of the candidate's traced launch passes the checkers: races in shared and global
    memory, reads of memory that nobody wrote (shared memory, pure outputs), barriers that not all threads reach
    (accesses out of bounds are G4's). Threads run in one order there: a race is found by what is not ordered by a
    barrier, not by bad luck. On a GPU the smallest judged launch runs under compute-sanitizer's memcheck, racecheck,
    initcheck and synccheck, each time in a process of its own whose buffers are allocations of exactly their size: an
    access one byte beyond is seen, and initcheck finds the pure outputs as they were allocated. Where even that launch
    is above 32 MiB, a small case that G5 derived takes its place, and the sentence says so; where there is none, up to
    512 MiB are taken. Beside the tools the
    emulator runs original and candidate on one small launch, threads in three orders: it alone sees races in global
    memory and a shuffle whose mask does not name its lanes, which a GPU mostly forgives. What it cannot build or run
    (inline assembly, libraries, a model's text without a sandbox) is said, and is no failure. Every checker is first
    shown a known-bad kernel; one that passes it did not run. A finding of a kind that the original shows as often is
    the program's own; a new kind, or more of it, fails. Where a tool finds something and the original could not be
    asked, nothing can be decided. The same instructions in the same launches show the same and are not run. On a GPU it
    sees one launch only; a tool that has not ended after 30 s did not run, the emulator has 15 s."""

    id: ClassVar[str] = "G7"
    name: ClassVar[str] = "races and memory"
    cost: ClassVar[float] = 0.0
    needs: ClassVar[Needs] = "run"

    def check(self, case: Case) -> GateResult:
        if not case.emulated:
            try:
                return self._on_gpu(case)
            finally:  # nothing runs beside the timing gates
                if case.checkers is not None:
                    case.checkers.close()
        if not case.options.traffic:
            return not_run(self, "launches were not traced")
        if why := emulated.why_not(case.device, case.build):
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
            trials = emulated.cases(case)
        except Cancelled:
            raise
        except CudaAgentError as error:  # this machine, or the inputs: it says nothing about the candidate
            return not_run(self, str(error), error=type(error).__name__)
        with ThreadPoolExecutor(1, "emulated") as pool:  # both mostly wait for other processes
            beside = pool.submit(emulated.look, case, trials)
            result = self._sanitized(case)
            look = beside.result()
        data = {**result.data, "emulator": look.to_json()}
        if look.problem:
            said = f"on the emulator, {look.case}: {look.problem}; the original does not show that"
            data["findings"] = [*result.data.get("findings", ()), *look.findings]
            return failed(self, f"{result.detail}; {said}" if result.status == "fail" else said, **data)
        return replace(result, detail=f"{result.detail}; {look.words}", data=data)

    def _sanitized(self, case: Case) -> GateResult:
        try:
            tool = tools.find()
            chosen = sanitizer.choose(case)
            answers = sanitizer.check(chosen.case, tool, chosen.index)
        except Cancelled:
            raise
        except CudaAgentError as error:
            return not_run(self, str(error), error=type(error).__name__)
        data: dict[str, Any] = {
            "sanitizer": tool.version,
            "launch": None if chosen.derived else chosen.index,
            "tools": {answer.tool: answer.to_json() for answer in answers},
            "findings": [_finding(answer.tool, f) for answer in answers for f in answer.findings[:20]],
        }
        if worse := [answer for answer in answers if answer.state == "worse"]:
            said = [f"{a.tool}: {_sentence(a.findings[0])} ({len(a.findings):,} such reports)" for a in worse]
            return failed(self, f"{chosen.name}: {'; '.join(said)}; the original does not show that", **data)
        ran = [answer for answer in answers if answer.state != "not run"]
        own = sorted({f"{f.kind} ({a.tool})" for a in ran for f in a.own})
        also = f"; the original itself shows {', '.join(own)}" if own else ""
        names = ", ".join(answer.tool for answer in ran)
        if missing := [f"{a.tool} did not run: {a.why}" for a in answers if a.state == "not run"]:
            found = f"; nothing new from {names}{also}" if ran else ""
            undecided = any(a.state == "not run" and a.findings for a in answers)
            return not_run(self, f"{'; '.join(missing)}{found}", undecided=undecided, **data)
        found = "nothing new" if any(a.state == "as the original" for a in ran) else "nothing"
        return passed(self, f"compute-sanitizer's {names} find {found} on {chosen.name}{also}", **data)


def _finding(tool: str, finding: tools.Finding) -> dict[str, object]:
    """As docs/evidence.md has it."""
    place = {"line": finding.line, "block": finding.block, "thread": finding.thread}
    return {"kind": finding.kind, "tool": tool, "kernel": finding.kernel, **place, "text": finding.text}


def _sentence(finding: tools.Finding) -> str:
    line = f" at line {finding.line}" if finding.line else ""
    return f"{finding.kind} in {finding.kernel or 'the kernel'}{line}: {finding.text}"
