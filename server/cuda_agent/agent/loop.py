"""The loop: propose → compile → drop what changes nothing → judge → learn → next; then the full judge on the winner.

A candidate scores its measured ratio's lower end on a GPU. The emulator measures no time: there the score is the
predicted drop in memory sectors (then in requests), and a candidate that changes neither keeps the score 1.0.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cuda_agent import judge
from cuda_agent.agent.budget import Budget
from cuda_agent.agent.policies import Policy, State, Step
from cuda_agent.agent.policies.search import GAIN, Search
from cuda_agent.agent.trajectory import Trajectory
from cuda_agent.device import Device, open_device
from cuda_agent.errors import Cancelled, CompileError, CudaAgentError, DeviceError, SourceError
from cuda_agent.inputs import RUN_TIMEOUT_S, find_or_make, find_or_make_all, read_source
from cuda_agent.judge import JudgeOptions
from cuda_agent.judge.evidence import headline, to_json, traffic_sentence
from cuda_agent.model import Binary, Build, Candidate, Facts, Kernel, Verdict, Workload
from cuda_agent.rewrite.rule import Context
from cuda_agent.source.documents import Document
from cuda_agent.source.edits import unified_diff
from cuda_agent.source.symbols import module as parse_module
from cuda_agent.toolchain import names
from cuda_agent.toolchain.build import find_build

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class Request:
    """What to optimise and what may be spent. `args` run a file that has a main; `run_command` any other program."""

    path: Path
    text: str | None = None  # the editor's text, when it differs from the file
    kernel: str | None = None
    device: str = "auto"
    budget_s: float = 300.0
    max_candidates: int = 60
    args: tuple[str, ...] = ()
    run_command: tuple[str, ...] | None = None
    trajectory: Path | None = None
    options: JudgeOptions = field(default_factory=JudgeOptions)
    timeout_s: float = RUN_TIMEOUT_S  # for a run of the program


@dataclass(frozen=True)
class Outcome:
    """The end of one search. `verified` has a candidate with a full verdict; `nothing` found no better kernel."""

    status: Literal["verified", "rejected", "undecided", "nothing"]
    kernel: str
    message: str
    candidate: Candidate | None = None
    verdict: Verdict | None = None
    diff: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    tried: int = 0
    source_hash: str = ""
    steps: tuple[Step, ...] = ()


def optimize(
    request: Request,
    *,
    on_event: OnEvent | None = None,
    cancelled: Callable[[], bool] | None = None,
    device: Device | None = None,
    workload: Workload | None = None,
    policy: Policy | None = None,
) -> Outcome:
    """Optimise one kernel. Raises the errors of `errors.py`; `Cancelled` only before a first acceptable candidate."""
    say = on_event or (lambda event: None)
    stop = cancelled or (lambda: False)
    text = request.text if request.text is not None else read_source(request.path)
    module = parse_module(Document(str(request.path), text))
    build = find_build(request.path)
    with _opened(request.device, device) as dev:
        say({"event": "phase", "message": f"looking for inputs on {dev.info.name}", "percentage": 2})
        if workload is None:
            workload = find_or_make(
                request.path,
                module,
                request.kernel,
                build,
                dev.info.kind,
                args=request.args,
                run_command=request.run_command,
                timeout_s=request.timeout_s,
                on_event=say,
                cancelled=stop,
            )
        kernel = module.kernel(request.kernel or workload.kernel)
        if kernel.has_error:
            raise SourceError(f"kernel {kernel.name} has a syntax error: mend it first")
        search = _Search(request, dev, build, text, kernel, workload, say, stop)
        return search.run(policy or Search())


@contextmanager
def _opened(name: str, device: Device | None) -> Iterator[Device]:
    if device is not None:
        yield device
        return
    with open_device(name) as opened:
        yield opened


class _Search:
    """One run of the loop over one kernel."""

    def __init__(
        self,
        request: Request,
        device: Device,
        build: Build,
        text: str,
        kernel: Kernel,
        workload: Workload,
        say: OnEvent,
        stop: Callable[[], bool],
    ) -> None:
        self.request, self.device, self.build, self.text = request, device, build, text
        self.kernel, self.workload, self.say, self.stop = kernel, workload, say, stop
        self.budget = Budget(request.budget_s, request.max_candidates)
        self.trajectory = Trajectory(request.trajectory, request.path.parent)
        self.seen: set[str] = set()
        self._refused: set[str] = set()  # candidates that the full judge did not accept
        self._hopeless = False  # no verdict is possible on these inputs, whatever the candidate

    # ------------------------------------------------------------ the loop

    def run(self, policy: Policy) -> Outcome:
        original = self.device.compile(self.build, self.text)
        self.seen.add(self._fingerprint(original, None))
        state = State(self._context, self.budget)
        self.trajectory.append(
            "start",
            kernel=self.kernel.id,
            file=self.request.path.name,
            device=self.device.info.name,
            policy=policy.name,
            inputs=self.workload.origin,
            launches=len(self.workload.launches),
        )
        try:
            while not (self.budget.exhausted or self._hopeless):
                proposals = list(policy.propose(state))
                if not proposals:
                    break
                for candidate, binary, note in self._compile_all(proposals):
                    if self.budget.exhausted or self._hopeless:
                        break
                    state.steps.append(self._judge(candidate, binary, note))
            return self._finish(state)
        except Cancelled:
            return self._stopped(state)

    def _compile_all(self, proposals: Sequence[Candidate]) -> Iterator[tuple[Candidate, Binary | None, str]]:
        """Compiles ahead in parallel, yields in the policy's order."""
        self.say({"event": "phase", "message": f"compiling {len(proposals)} candidates", "percentage": self._percent()})
        workers = max(1, min(8, (os.cpu_count() or 2)))
        with ThreadPoolExecutor(workers, "compile") as pool:
            futures = [pool.submit(self._compile, c) for c in proposals]
            try:
                for candidate, future in zip(proposals, futures, strict=True):
                    binary, note = future.result()
                    yield candidate, binary, note
            finally:
                for future in futures:
                    future.cancel()

    def _compile(self, candidate: Candidate) -> tuple[Binary | None, str]:
        if self.stop():
            return None, "stopped"
        try:
            return self.device.compile(self.build, candidate.text), ""
        except CompileError as error:
            line = first_line(error.diagnostics or str(error))
            return None, f"does not compile: {line.replace(f'{self.request.path.parent}{os.sep}', '')}"

    def _judge(self, candidate: Candidate, binary: Binary | None, note: str) -> Step:
        if self.stop():
            raise Cancelled("stopped by the person")
        verdict, score = None, None
        if binary is not None:
            mark = self._fingerprint(binary, candidate)
            if mark in self.seen:
                note = "same machine code as one already tried"
            else:
                self.seen.add(mark)
                self.budget.tried += 1
                verdict, note = self._quick(candidate)
                score = self._score(verdict)
        step = Step(candidate, verdict, score, note or (why_rejected(verdict) if verdict else ""))
        self.trajectory.candidate(candidate, verdict, score, step.note)
        self.say(self._describe(step))
        return step

    def _quick(self, candidate: Candidate) -> tuple[Verdict | None, str]:
        try:
            verdict = self._asked(judge.quick, candidate)
        except DeviceError as error:
            self.device.restart()
            return None, str(error)
        self._hopeless = any(
            gate.undecided and (gate.id == "G2" or gate.data.get("error") == "WorkloadError") for gate in verdict.gates
        )
        return verdict, ""

    def _asked(self, ask: Callable[..., Verdict], candidate: Candidate, **more: Any) -> Verdict:
        """A verdict. Where a worker ended under it and nothing was decided it is asked for once more: the worker may
        have been killed for memory, or by a person."""
        for _ in range(2):
            worker = self.device.pid
            verdict = ask(
                self.device,
                self.build,
                self.workload,
                self.text,
                candidate,
                options=self.request.options,
                cancelled=self.stop,
                **more,
            )
            if verdict.status != "undecided" or self.device.pid == worker:
                break
        return verdict

    def _finish(self, state: State) -> Outcome:
        """The full judge on the best candidates, best first, until one holds."""
        ranked = sorted(
            (s for s in state.steps if s.score is not None and s.score >= self._worth()), key=lambda s: -(s.score or 0)
        )
        rejected: Outcome | None = None
        smallest = (self._smallest(step, state) for step in ranked[:5])
        for step in {step.candidate.id: step for step in smallest}.values():
            self.say(
                {
                    "event": "phase",
                    "message": f"full verdict on {step.candidate.origin.removeprefix('rule:')}",
                    "percentage": 92,
                }
            )
            verdict = self._asked(judge.judge, step.candidate, on_event=self._late)
            outcome = self._outcome(step, verdict, state)
            holds = verdict.faster or self.device.info.kind == "emulator"
            if verdict.status == "verified" and holds:
                return outcome
            self._refused.add(step.candidate.id)
            rejected = rejected or outcome
        if rejected is not None and rejected.status != "verified":
            return rejected
        message = f"nothing better found for {self.kernel.name} after {self.budget.tried} candidates"
        undecided = [s for s in state.steps if s.verdict and s.verdict.status == "undecided"]
        if undecided and not any(s.verdict and s.verdict.status == "verified" for s in state.steps):
            outcome = self._outcome(undecided[0], undecided[0].verdict, state)
            return replace(outcome, message=f"cannot decide: {undecided[0].note}")
        self.trajectory.append("end", status="nothing", tried=self.budget.tried)
        return Outcome(
            "nothing",
            self.kernel.id,
            message,
            tried=self.budget.tried,
            source_hash=self._hash(),
            steps=tuple(state.steps),
        )

    def _stopped(self, state: State) -> Outcome:
        """What a stopped search has: its best candidate, which passed the quick gates only. Raises Cancelled when there
        is none that is better than the original."""
        found = [s for s in state.steps if s.score is not None and s.candidate.id not in self._refused]
        best = max(found, key=lambda s: s.score or 0.0, default=None)
        if best is None or best.verdict is None or (best.score or 0.0) < GAIN:
            raise Cancelled(f"stopped after {self.budget.tried} candidates: nothing better was found so far")
        best = self._smallest(best, state)
        assert best.verdict is not None
        outcome = self._outcome(best, replace(best.verdict, status="undecided"), state)
        message = (
            f"stopped after {self.budget.tried} candidates; the best so far, {best.candidate.origin}, passed the quick "
            "gates but has no full verdict"
        )
        return replace(outcome, message=message, evidence={**outcome.evidence, "headline": message})

    @staticmethod
    def _smallest(step: Step, state: State) -> Step:
        """The candidate without the last edits that gave less than `GAIN` each: a shorter diff for the same speed."""
        by_id = {s.candidate.id: s for s in state.steps}
        while (parent := by_id.get(step.candidate.parent or "")) is not None:
            if parent.score is None or (step.score or 0.0) >= GAIN * parent.score:
                break
            step = parent
        return step

    def _outcome(self, step: Step, verdict: Verdict | None, state: State) -> Outcome:
        assert verdict is not None
        diff = unified_diff(self.text, step.candidate.text, self.request.path.name)
        evidence = to_json(verdict, candidate=step.candidate, diff=diff)
        self.trajectory.append("end", status=verdict.status, candidate=step.candidate.id, tried=self.budget.tried)
        return Outcome(
            verdict.status,
            self.kernel.id,
            headline(verdict),
            step.candidate,
            verdict,
            diff,
            evidence,
            self.budget.tried,
            self._hash(),
            tuple(state.steps),
        )

    # ------------------------------------------------------------ helpers

    def _context(self, candidate: Candidate | None) -> Context:
        return Context.make(
            self.request.path,
            candidate.text if candidate else self.text,
            self.kernel.id,
            self.workload,
            self.device.info,
            original=self.text,
            base=candidate,
            facts=self._facts(candidate.text if candidate else self.text),
        )

    def _facts(self, text: str) -> Facts | None:
        """What the compiler made of the kernel of a text that was compiled before; the emulator's counts nothing."""
        binary = self.device.compile(self.build, text)
        found = names.match(list(binary.kernels), self.workload.launches[0].mangled)
        return binary.kernels[found] if found and binary.kind == "cubin" else None

    def _fingerprint(self, binary: Binary, candidate: Candidate | None) -> str:
        """What makes two candidates the same to the machine: this kernel's instructions and the launch shape."""
        wanted = {launch.mangled for launch in self.workload.launches}
        codes = sorted(
            binary.kernels[found].sass_hash
            for found in (names.match(list(binary.kernels), name) for name in wanted)
            if found and binary.kernels[found].sass_hash
        )
        shape = repr(candidate.launch) if candidate else repr(Candidate("", "", "", (), "").launch)
        code = "".join(codes) or binary.sha256
        return hashlib.sha256((code + shape).encode()).hexdigest()

    def _score(self, verdict: Verdict | None) -> float | None:
        if verdict is None or verdict.status != "verified":
            return None
        if verdict.timing is not None:
            return verdict.timing.ci[0]
        before, after = verdict.traffic.get("sectors_before", 0.0), verdict.traffic.get("sectors_after", 0.0)
        requests = verdict.traffic.get("requests_before", 0.0), verdict.traffic.get("requests_after", 0.0)
        if not before or not after:
            return 1.0
        return float((before / after) * (requests[0] / requests[1] if all(requests) else 1.0) ** 0.25)

    def _worth(self) -> float:
        return 1.0 if self.device.info.kind == "emulator" else 1.01

    def _describe(self, step: Step) -> Event:
        gain = self._gain(step)
        name = step.candidate.origin.removeprefix("rule:")
        return {
            "event": "candidate",
            "origin": step.candidate.origin,
            "score": step.score,
            "candidate": step.candidate,  # with its quick verdict: what a cancelled search has so far
            "verdict": step.verdict,
            "note": step.note,
            "tried": self.budget.tried,
            "percentage": self._percent(),
            "gain": gain,
            "message": f"{name}: {step.note or gain or 'rejected'}",
        }

    def _gain(self, step: Step) -> str:
        """What may be said of a candidate that passed the quick gates: a time on a GPU, predicted sectors elsewhere."""
        if step.verdict is None or step.score is None:
            return ""
        if step.verdict.timing is not None:
            return f"{step.verdict.timing.ratio:.2f}×"
        return traffic_sentence(step.verdict.traffic) or "same results"

    def _late(self, event: Event) -> None:
        """A full verdict's own 0 to 100 % are the last of ours."""
        own = event.get("percentage")
        self.say({**event, "percentage": 92 + 8 * own // 100} if isinstance(own, int) else event)

    def _percent(self) -> int:
        return 5 + int(85 * self.budget.share)

    def _hash(self) -> str:
        return parse_module(Document(str(self.request.path), self.text)).kernel_hash(self.kernel)


def first_line(text: str) -> str:
    """The first line that is an error (g++, nvcc, ptxas), else the first line."""
    errors = [line for line in text.splitlines() if re.search(r"\berror\b( #?[\w-]+)?\s*:", line)]
    return (errors or text.splitlines() or [""])[0].strip()[:300]


def why_rejected(verdict: Verdict) -> str:
    """The sentence of the first gate that failed or could not decide, empty when none did."""
    for gate in verdict.gates:
        if gate.status == "fail" or gate.undecided:
            return f"{gate.id} {gate.name}: {gate.detail}"
    return ""


def optimize_all(
    request: Request, *, on_event: OnEvent | None = None, cancelled: Callable[[], bool] | None = None
) -> list[Outcome]:
    """Every captured kernel of the file that has a definition in it, one search each, the budget shared equally.

    A kernel that cannot be searched becomes an undecided outcome that says why; NoInputs when there is none at all.
    """
    say = on_event or (lambda event: None)
    text = request.text if request.text is not None else read_source(request.path)
    module = parse_module(Document(str(request.path), text))
    build = find_build(request.path)
    outcomes: list[Outcome] = []
    with open_device(request.device) as device:
        workloads = find_or_make_all(
            request.path,
            module,
            build,
            device.info.kind,
            args=request.args,
            run_command=request.run_command,
            timeout_s=request.timeout_s,
            on_event=say,
            cancelled=cancelled,
        )
        share = request.budget_s / len(workloads)
        for workload in workloads:
            one = replace(request, kernel=workload.kernel, budget_s=share, text=text)
            try:
                outcomes.append(optimize(one, on_event=say, cancelled=cancelled, device=device, workload=workload))
            except Cancelled as error:
                if not outcomes:
                    raise
                outcomes.append(Outcome("undecided", workload.kernel, str(error)))
                break
            except CudaAgentError as error:
                outcomes.append(Outcome("undecided", workload.kernel, str(error)))
                device.restart()
    return outcomes
