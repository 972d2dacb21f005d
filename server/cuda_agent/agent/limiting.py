"""What limits the kernel of a search: asked before it, for the order of its rules, and at its end, for what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cuda_agent.agent.policies import Step
from cuda_agent.device import Device
from cuda_agent.errors import Cancelled, CudaAgentError
from cuda_agent.hints.limits import Limiter
from cuda_agent.judge import JudgeOptions, limiter
from cuda_agent.judge.case import Case
from cuda_agent.model import Build, Candidate, Timing, Workload
from cuda_agent.rewrite import predict
from cuda_agent.rewrite.rule import Context
from cuda_agent.source.symbols import Module

CLOCK_US = 100.0  # launches shorter than this are not timed well by the worker's own clock


def predicted(case: Case) -> Mapping[str, float]:
    """Counts of the candidate's accesses, as its text tells them."""
    candidate, path = case.candidate, case.build.file
    base = None if case.unchanged_text else candidate
    return predict.counts(
        Context.make(
            path, candidate.text, case.kernel.id, case.workload, case.device.info, original=case.original, base=base
        )
    )


class Limiting:
    """Of one kernel and its inputs."""

    def __init__(
        self,
        device: Device,
        build: Build,
        workload: Workload,
        module: Module,
        options: JudgeOptions,
        cancelled: Callable[[], bool],
    ) -> None:
        self.workload, self.module, self.text = workload, module, module.document.text
        self._of: Callable[[Candidate], Case] = lambda candidate: Case(
            device, build, workload, self.text, candidate, module=module, options=options, cancelled=cancelled
        )
        self.original = Candidate(workload.kernel, self.text, self.text, (), "original")
        self.before: Limiter | None = None

    def ask(self) -> Limiter | None:
        """Before anything was judged: by the worker's clock, where that is good enough. None where the original does
        not replay; its first verdict says why."""
        case = self._of(self.original)
        try:
            self._keep(limiter.of_original(case, predicted(case), self._clock(case)))
        except Cancelled:
            raise
        except CudaAgentError:
            return None
        return self.before

    @staticmethod
    def _clock(case: Case) -> float | None:
        """Microseconds of a launch, when they are known well enough. The emulator is not asked to run anything: it is
        slow, and its time means nothing."""
        if case.emulated:
            return None
        us = [1e6 * case.baseline(index).seconds for index in range(len(case.launches))]
        mean = sum(us) / len(us)
        return mean if mean >= CLOCK_US else None

    def left(self, candidate: Candidate | None, timing: Timing | None, steps: Sequence[Step]) -> str:
        """At the end, what limits the winner, or the original where nothing won; empty where that is not known. On the
        emulator nothing is known of a winner's time, and nothing is said of it."""
        if candidate is not None:
            if timing is None:
                return ""
            case = self._of(candidate)
            found = limiter.of_candidate(case, predicted(case), timing)
            return found.left if found is not None else ""
        case = self._of(self.original)
        measured = next((s.verdict.timing for s in reversed(steps) if s.verdict and s.verdict.timing), None)
        if measured is not None:
            us = measured.original_us / limiter.timed(measured)
            self._keep(limiter.of_original(case, predicted(case), us))
        elif case.emulated and any(step.score is not None for step in steps):  # the judge has traced it by now
            self._keep(limiter.of_original(case, limiter.traced(case)))
        return self.before.left if self.before is not None else ""

    def _keep(self, found: Limiter | None) -> None:
        self.before = found
        if found is not None:
            kernel = self.module.kernel(self.workload.kernel)
            limiter.remember(self.module.kernel_hash(kernel), self.workload, found)
