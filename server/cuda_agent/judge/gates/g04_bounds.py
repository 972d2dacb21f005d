"""G4, bounds: nothing beside the buffers is touched."""

from __future__ import annotations

from typing import ClassVar

from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, failed, passed
from cuda_agent.judge.outcome import place, sentence
from cuda_agent.model import GateResult


class Bounds:
    """Every buffer lies alone between two canaries of 4 KiB; one changed byte there is a write out of bounds, with
    its distance from the buffer. The emulator also sees every single access with its source line, reads included. On
    a GPU a read beside a buffer is not seen (the canaries read as NaN, so it shows when its value is used), nor a
    write that jumps over the canary, unless it lands in a copy of a launch's inputs that the worker keeps: each has a
    digest, which is looked at after every launch, those of the timing together. Several binaries that ran between two
    looks are all named, and none of them is rejected for it. compute-sanitizer (G7) is for the rest. An access that
    the original makes too is the program's own."""

    id: ClassVar[str] = "G4"
    name: ClassVar[str] = "bounds"
    cost: ClassVar[float] = 0.0
    needs: ClassVar[Needs] = "run"

    def check(self, case: Case) -> GateResult:
        outcomes = case.outcomes()
        for outcome in outcomes:
            shape = case.launch_name(outcome.launch)
            own = {place(finding) for finding in outcome.original_findings}
            for finding in outcome.findings:
                if finding["kind"] == "out-of-bounds" and place(finding) not in own:
                    return failed(
                        self, f"launch {shape}: {sentence(case, outcome.launch, finding)}", findings=[dict(finding)]
                    )
            for canary in outcome.canaries:
                name = case.slots(outcome.launch)[canary["buffer"]].name
                where = f"{canary['bytes']} bytes {canary['side']} {name}, the nearest at byte {canary['at']}"
                return failed(self, f"launch {shape}: the candidate writes out of bounds: {where}", canary=dict(canary))
        alike = [case.original_binary.sha256] in case.damage
        if case.candidate_binary.sha256 in case.device.overwrote and not alike:
            return failed(
                self,
                "the candidate wrote over memory that is not its own: a copy of a launch's inputs, kept elsewhere on "
                "the device, was another one after its launch",
                damage=case.damage,
            )
        how = (
            "no access out of bounds"
            if case.emulated and case.options.traffic
            else "canaries around every buffer are intact"
        )
        if any(finding["kind"] == "out-of-bounds" for outcome in outcomes for finding in outcome.original_findings):
            how += "; the original itself reads out of bounds here"
        if alike:
            how += "; the original itself writes over memory that is not its own"
        if others := [ran for ran in case.damage if ran != [case.original_binary.sha256]]:
            names = ", ".join(dict.fromkeys(one[:12] for ran in others for one in ran))
            how += (
                f"; a copy of a launch's inputs kept on the device was overwritten, by one of these binaries: {names}"
            )
        return passed(self, how, **({"damage": case.damage} if case.damage else {}))
