"""The loop: propose → compile → drop what changes nothing → judge → learn → next; then the full judge on the winner.

A candidate scores its measured ratio's lower end on a GPU. The emulator measures no time: there the score is the
predicted drop in memory sectors (then in requests), and a candidate that changes neither keeps the score 1.0.

Everything that was judged before is remembered by content (`memory.py`): the same question is answered at once, and a
search that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cuda_agent import judge
from cuda_agent.agent import features
from cuda_agent.agent.budget import Budget
from cuda_agent.agent.compiler import Compiled, Compiler, compiler
from cuda_agent.agent.finalists import Finalists
from cuda_agent.agent.limiting import Limiting
from cuda_agent.agent.memory import Memory
from cuda_agent.agent.opening import Opened, device_of, opened
from cuda_agent.agent.policies import WORTH, Policy, State, Step, asks_model, choose, keeps_order
from cuda_agent.agent.policies.search import Search
from cuda_agent.agent.recording import Recording, start_of
from cuda_agent.agent.request import OnEvent, Outcome, Request
from cuda_agent.agent.telling import Telling, short, why_rejected
from cuda_agent.agent.trajectory import Trajectory
from cuda_agent.device import Device
from cuda_agent.errors import Cancelled, CudaAgentError, DeviceError, ModelError, SourceError
from cuda_agent.judge.evidence import headline, to_json
from cuda_agent.model import Binary, Candidate, Facts, Kernel, LaunchMap, Verdict, Workload
from cuda_agent.rewrite.order import rule_order
from cuda_agent.rewrite.rule import Context
from cuda_agent.source import joined
from cuda_agent.source.edits import unified_diff
from cuda_agent.toolchain import names

START_AFTER_S = 0.2  # so long a compilation is none that was remembered
TOLD_S = 3.0  # of waiting for others on the device
TIMES_QUICK = 5  # quick judgements in a full one on a GPU, beside a part that is the same for all kernels
FULL_TRIES = 5  # candidates that are judged in full, best first, until one holds


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
    file = opened(request)
    with device_of(request, device, untrusted=asks_model(policy)) as dev:
        if workload is None:
            say({"event": "phase", "message": f"looking for inputs for {dev.spec}", "percentage": 2})
            workload = file.workload(dev.kind, say, stop)
            file = file.as_recorded()
        kernel = file.module.kernel(request.kernel or workload.kernel)
        if kernel.has_error:
            raise SourceError(f"kernel {kernel.name} has a syntax error: mend it first")
        return _Search(file, dev, kernel, workload, say, stop).run(policy)


class _Search:
    """One run of the loop over one kernel."""

    def __init__(
        self,
        file: Opened,
        device: Device,
        kernel: Kernel,
        workload: Workload,
        say: OnEvent,
        stop: Callable[[], bool],
    ) -> None:
        request, build, text = file.request, file.build, file.text
        self.request, self.build, self.text, self.module = request, build, text, file.module
        self.device, self.kernel, self.workload, self.stop = device, kernel, workload, stop
        self.budget = Budget(
            request.budget_s,
            request.max_candidates,
            tokens=request.max_tokens,
            cost=request.max_cost,
            price=request.price,
        )
        self.record = Recording(Trajectory([request.trajectory], request.path.parent), self._features)
        self.memory = Memory(device, build, workload, text, request.options, request.fresh)
        self.state = State(
            self._context,
            self.budget,
            binary_of=self._binary,
            record=self.record.trajectory.append,
            cancelled=stop,
        )
        self.tell = Telling(say, kernel.name, self.state)
        self.state.say = self.tell.phase
        self.limiting = Limiting(device, build, workload, self.module, request.options, stop)
        self._marks: dict[str, Step | None] = {}  # machine code and launch → who had it first; None is the original
        self._compiling: Compiler | None = None  # while candidates are tried
        self._quick: list[float] = []  # seconds of the quick judgements
        self._refused: list[Candidate] = []  # by the full judge
        self._complete = False  # the policy has nothing more to propose
        self._hopeless = False  # no verdict is possible on these inputs, whatever the candidate
        self._broke = ""  # why the policy could not go on
        self._waited = device.waited  # before this search

    # ------------------------------------------------------------ the loop

    def run(self, policy: Policy | None) -> Outcome:
        self.original = self._compiled_original()
        name = (policy or Search).name
        asked = (self.kernel.id, name, self.request.budget_s, self.request.max_candidates)
        key = self.memory.answer(asked, self.original)
        known = self.memory.outcome(key, Outcome)
        if known is not None:
            return self._again(known, policy)
        self._marks[self._fingerprint(self.original, None)] = None
        self._start(policy, keep=self.request.recorded)
        try:
            outcome = self._search(policy)
        except CudaAgentError as error:
            self.record.broken(error, self.budget)
            raise
        self.record.end(outcome, self.state.steps, self.budget)
        if outcome.status == "verified" or (outcome.status == "nothing" and self._complete):
            self.memory.keep_outcome(key, outcome)
        return outcome

    def _compiled_original(self) -> Binary:
        """The worker starts meanwhile, unless the text was compiled before: there may be no need of it then."""
        start = threading.Timer(START_AFTER_S, self.device.prepare)
        start.daemon = True
        start.start()
        try:
            return self.device.compile(self.build, self.text)
        finally:
            start.cancel()

    def _search(self, policy: Policy | None) -> Outcome:
        try:
            with compiler(self.device, self.build, self.request.path.parent, self.stop) as compiling:
                self._compiling = compiling
                # The original runs for the first time now, and nothing needs the compilers meanwhile.
                compiling.guess(lambda: self._ahead(policy or Search(), None))
                limit = self.state.limit = self.limiting.ask()
                if limit is not None:
                    self.tell.phase(f"{limit.kind}: {limit.text}", 5)
                self.record.original(partial(self._features, None))
                self._try_all(policy or Search(rule_order(limit)), compiling)
            self._compiling = None
            return self._finish()
        except Cancelled:
            return self._stopped()

    def _start(self, policy: Policy | None, keep: bool) -> None:
        name = (policy or Search).name
        known = self.request, self.device, self.build, self.workload, self.module, self.kernel, self.original, name
        self.record.begin(partial(start_of, *known), self._fingerprint(self.original, None), asks_model(policy), keep)

    def _try_all(self, policy: Policy, compiling: Compiler) -> None:
        state = self.state
        while not (self.budget.exhausted or self._hopeless):
            try:
                proposals = list(policy.propose(state))
            except ModelError as error:
                if not (state.steps or self.budget.exhausted):
                    raise
                self._broke = str(error)
                self.tell.phase(self._broke)
                return
            if not proposals:
                self._complete = not self.budget.exhausted
                return
            self.record.proposed(proposals)
            proposals = [allowed for made in proposals if (allowed := self._allowed(made))]
            if not proposals:
                continue
            self.tell.phase(f"compiling {len(proposals)} candidates")
            for candidate, made in compiling.compiled(proposals, in_order=keeps_order(policy)):
                if self.budget.over or self._hopeless:
                    return
                best = state.best
                step = self._judge(candidate, made)
                self._seen(step)
                if state.best is not best and state.best is step:
                    compiling.guess(partial(self._ahead, policy, candidate))

    def _allowed(self, candidate: Candidate) -> Candidate | None:
        """Text from a model, or from a file that others may have written, is compiled only when the edit policy lets
        it; it is launched as it says."""
        if not (candidate.by_model or self.request.foreign):
            return candidate
        candidate, gate = judge.edit_policy(
            self.device, self.build, self.workload, self.text, candidate, self.request.options
        )
        if gate.status == "pass":
            return candidate
        self.budget.tried += 1
        verdict = Verdict("rejected", "none", (gate,), "none")
        self._seen(Step(candidate, verdict, None, why_rejected(verdict), at=self.budget.spent))
        return None

    def _seen(self, step: Step) -> None:
        self.state.steps.append(step)
        self.record.step(step, self.state.steps)
        self.tell.step(step)

    def _ahead(self, policy: Policy, candidate: Candidate | None) -> Sequence[Candidate]:
        return policy.ahead(self._context(candidate))

    def _judge(self, candidate: Candidate, made: Compiled) -> Step:
        if self.stop():
            raise Cancelled("stopped by the person")
        binary = made.binary
        if binary is None:
            return Step(candidate, None, None, made.note, at=self.budget.spent, log=made.log)
        mark = self._fingerprint(binary, candidate)
        if mark in self._marks:
            return replace(self._twin(candidate, self._marks[mark]), mark=mark, sass=self._codes(binary))
        self.budget.tried += 1
        self.tell.trying(candidate)
        began = time.monotonic()
        verdict, note = self._quickly(candidate, binary)
        score = self._score(verdict)
        note = note or (why_rejected(verdict) if verdict else "")
        seconds, at = time.monotonic() - began, self.budget.spent
        step = Step(candidate, verdict, score, note, False, seconds, "", at, mark, self._codes(binary))
        self._marks[mark] = step
        return step

    def _twin(self, candidate: Candidate, first: Step | None) -> Step:
        """Another text of the same machine code launched alike: judged once, and as good."""
        name = short(first.candidate) if first else "the original"
        note, at = f"same machine code as {name}", self.budget.spent
        if first is None or first.score is None:
            return Step(candidate, None, None, note, at=at)
        return Step(candidate, None, first.score, note, twin=True, at=at)

    def _quickly(self, candidate: Candidate, binary: Binary) -> tuple[Verdict | None, str]:
        key = self.memory.key("quick", candidate, self.original, binary)
        verdict = self.memory.verdict(key)
        if verdict is not None:
            return verdict, ""
        began = time.monotonic()
        try:
            verdict = self._asked(judge.quick, candidate)
        except DeviceError as error:
            self.device.restart()
            return None, str(error)
        self.memory.keep(key, verdict)
        if verdict.status == "verified":
            self._quick.append(time.monotonic() - began)
            self.budget.reserve = self._full_seconds()
        self._hopeless = any(
            gate.undecided and (gate.id == "G2" or gate.data.get("error") == "WorkloadError") for gate in verdict.gates
        )
        return verdict, ""

    def _full_seconds(self) -> float:
        """What a full verdict will take: what it took here before, else as many times a quick one as on the H200 and
        the emulator (docs/benchmarks.md), and what the last ones on this device took beside that. Too little stops no
        verdict: the first is always asked to its end. G13's build and run of the program come on top."""
        known = self.memory.seconds("full verdict")
        if known is not None:
            return 1.2 * known
        if self.device.kind == "emulator":
            return 4 + 8 * self._middle
        return self.memory.fixed_seconds(12.0) + TIMES_QUICK * self._middle

    @property
    def _middle(self) -> float:
        """Seconds of a quick judgement."""
        return sorted(self._quick)[len(self._quick) // 2] if self._quick else 0.0

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

    # ------------------------------------------------------------ the end

    def _finish(self) -> Outcome:
        """The full judge on the best candidates (`finalists.py`), until one holds or the time is over."""
        finalists = Finalists.of(self.state.steps, self._worth())
        refused: list[tuple[Step, Verdict]] = []
        won: Outcome | None = None
        for _ in range(FULL_TRIES):
            step = finalists.next()
            if step is None or (refused and self.budget.left < self._full_seconds()):
                break
            try:
                verdict = self._fully(step)
            except Cancelled:
                if won is not None:
                    return won
                raise
            if verdict.status == "verified" and (verdict.faster or self.device.kind == "emulator"):
                won = self._outcome(step, verdict)
                finalists.holds(step)
                continue
            refused.append((step, verdict))
            self._refused.append(step.candidate)
            (finalists.refused if verdict.status == "rejected" else finalists.no_win)(step)
        return won or self._nothing(refused)

    def _fully(self, step: Step) -> Verdict:
        candidate, began = step.candidate, time.monotonic()
        self.tell.full(candidate)
        binary = self._binary(candidate)
        key = self.memory.key("full", candidate, self.original, binary)
        verdict = self.memory.verdict(key)
        if verdict is None:
            verdict = self._asked(judge.judge, candidate, on_event=self.tell.late)
            self.memory.keep(key, verdict)
            if verdict.status == "verified":
                took = time.monotonic() - began
                self.memory.keep_seconds("full verdict", took)
                if self._quick and self.device.kind != "emulator":
                    self.memory.keep_fixed_seconds(took - TIMES_QUICK * self._middle)
        self.record.full(step, verdict, time.monotonic() - began, self.state.steps)
        return verdict

    def _nothing(self, refused: list[tuple[Step, Verdict]]) -> Outcome:
        """No candidate holds. What the full judge refused is counted, never shown as a proposal."""
        undecided = next(((s, v) for s, v in refused if v.status == "undecided"), None)
        if undecided is not None:
            return self._outcome(*undecided)
        seen = [s for s in self.state.steps if s.verdict is not None]
        weak = next((s for s in seen if s.verdict and s.verdict.status == "undecided"), None)
        if weak is not None and weak.verdict and not any(s.verdict and s.verdict.status == "verified" for s in seen):
            return replace(self._outcome(weak, weak.verdict), message=f"cannot decide: {weak.note}")
        message = f"nothing better found for {self.kernel.name} after {self.budget.tried} candidates"
        if self.budget.to_try <= 0:
            message += ", when its time was over"
            if (waited := self.device.waited - self._waited) >= TOLD_S:
                message += f" ({waited:.0f} s of it others had the device)"
        wrong = [verdict for _, verdict in refused if verdict.status == "rejected"]
        if wrong:
            message += f"; {len(wrong)} that looked better did not pass the full judge ({why_rejected(wrong[0])})"
        if self._broke:
            message += f"; {self._broke}"
        left = self.limiting.left(None, None, self.state.steps)
        return self._ended("nothing", f"{message}{f': {left}' if left else ''}", left=left)

    def _stopped(self) -> Outcome:
        """What a stopped search has: its best candidate, which passed the quick gates only. Raises Cancelled when there
        is none that is better than the original."""
        found = [s for s in self.state.steps if s.verdict is not None and s.candidate not in self._refused]
        best = choose(found)
        if best is None or best.verdict is None or (best.score or 0.0) < WORTH:
            raise Cancelled(f"stopped after {self.budget.tried} candidates: nothing better was found so far")
        outcome = self._outcome(best, replace(best.verdict, status="undecided"))
        message = (
            f"stopped after {self.budget.tried} candidates; the best so far, {best.candidate.origin}, passed the quick "
            "gates but has no full verdict"
        )
        return replace(outcome, message=message, evidence={**outcome.evidence, "headline": message})

    def _again(self, known: Outcome, policy: Policy | None) -> Outcome:
        """The answer of an earlier search, told as if it had just ended. Its record is in the cache already."""
        self._start(policy, keep=False)
        for step in known.steps:
            self.state.steps.append(step)
            self.budget.tried += step.verdict is not None
            self.record.step(step, self.state.steps)
            self.tell.step(step)
        date = known.verdict.record.get("date") if known.verdict else None
        when = f" of {str(date).replace('T', ' ').removesuffix('+00:00')} UTC" if date else ""
        self.tell.phase(f"{self.kernel.name} was searched before with the same inputs: this is the answer{when}", 100)
        self.record.end(known, self.state.steps, self.budget, remembered=True)
        return known

    def _outcome(self, step: Step, verdict: Verdict) -> Outcome:
        diff = unified_diff(self.text, step.candidate.text, joined.shown(self.request.path, self.text))
        return self._ended(
            verdict.status,
            headline(verdict),
            candidate=step.candidate,
            verdict=verdict,
            diff=diff,
            evidence=to_json(verdict, candidate=step.candidate, diff=diff),
            left=self.limiting.left(step.candidate, verdict.timing, ()) if verdict.status == "verified" else "",
        )

    def _ended(self, status: Any, message: str, **more: Any) -> Outcome:
        return Outcome(
            status,
            self.kernel.id,
            message,
            tried=self.budget.tried,
            source_hash=self.module.kernel_hash(self.kernel),
            steps=tuple(self.state.steps),
            refused=len(self._refused),
            seconds=self.budget.spent,
            limiter=self.limiting.before.kind if self.limiting.before else "",
            tokens=self.budget.used,
            cost=self.budget.paid,
            trajectory=self.record.id,
            **more,
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
            facts=self._facts(candidate),
        )

    def _binary(self, candidate: Candidate | None) -> Binary:
        if candidate is None:
            return self.original
        if self._compiling is not None:
            return self._compiling.binary(candidate)
        return self.device.compile(self.build, candidate.text, untrusted=candidate.by_model)

    def _facts(self, candidate: Candidate | None) -> Facts | None:
        """What the compiler made of the kernel; the emulator's counts nothing."""
        binary = self._binary(candidate)
        found = names.match(list(binary.kernels), self.workload.launches[0].mangled)
        return binary.kernels[found] if found and binary.kind == "cubin" else None

    def _features(self, candidate: Candidate | None) -> dict[str, float]:
        """Empty for a text of which nothing can be told."""
        try:
            context = self._context(candidate)
            return features.of(context, context.facts, self.state.limit if candidate is None else None)
        except CudaAgentError:
            return {}

    def _codes(self, binary: Binary) -> tuple[str, ...]:
        """Hashes of this kernel's instructions, one an instantiation that is launched; none on the emulator."""
        wanted = {launch.mangled for launch in self.workload.launches}
        found = [names.match(list(binary.kernels), name) for name in wanted]
        return tuple(sorted(code for name in found if name and (code := binary.kernels[name].sass_hash)))

    def _fingerprint(self, binary: Binary, candidate: Candidate | None) -> str:
        """What makes two candidates the same to the machine: this kernel's instructions and the launch shape."""
        shape = repr(candidate.launch if candidate else LaunchMap())
        code = "".join(self._codes(binary)) or binary.sha256
        return hashlib.sha256((code + shape).encode()).hexdigest()

    def _score(self, verdict: Verdict | None) -> float | None:
        if verdict is None or verdict.status != "verified":
            return None
        if self.device.kind != "emulator":
            return verdict.timing.ci[0] if verdict.timing is not None else None
        before, after = verdict.traffic.get("sectors_before", 0.0), verdict.traffic.get("sectors_after", 0.0)
        requests = verdict.traffic.get("requests_before", 0.0), verdict.traffic.get("requests_after", 0.0)
        if not before or not after:
            return 1.0
        return float((before / after) * (requests[0] / requests[1] if all(requests) else 1.0) ** 0.25)

    def _worth(self) -> float:
        return 1.0 if self.device.kind == "emulator" else WORTH
