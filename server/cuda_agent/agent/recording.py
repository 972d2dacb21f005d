"""What a search writes down as it goes: who searches what with which means, each candidate with its features and its
reward, and the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent import __version__, cache, config
from cuda_agent.agent import memory, prompts, recorded, reward
from cuda_agent.agent.budget import Budget
from cuda_agent.agent.policies import Step
from cuda_agent.agent.trajectory import SCHEMA, Trajectory
from cuda_agent.judge import record
from cuda_agent.judge.digest import sha256
from cuda_agent.model import Candidate, Kernel, Verdict, Workload
from cuda_agent.source.symbols import Module

if TYPE_CHECKING:
    from cuda_agent.agent.request import Outcome, Request
    from cuda_agent.device import Device
    from cuda_agent.model import Binary, Build


def start_of(
    request: Request,
    device: Device,
    build: Build,
    workload: Workload,
    module: Module,
    kernel: Kernel,
    original: Binary,
    policy: str,
) -> dict[str, Any]:
    """The fields of a `start`."""
    text = module.document.text
    file = Path(os.path.abspath(request.path))
    project = record.project_of(file)
    model = policy.partition(":")[2]
    return {
        "schema": SCHEMA,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": kernel.id,
        "file": file.relative_to(project).as_posix(),
        "source_hash": module.kernel_hash(kernel),
        "text": text,
        "text_sha256": sha256(text),
        "build": build.origin,
        "flags_sha256": flags_sha256(build),
        "inputs": workload.origin,
        "inputs_sha256": inputs_sha256(workload),
        "inputs_device": workload.device,
        "launches": len(workload.launches),
        "device": device.info.name,
        "device_kind": device.kind,
        "arch": device.info.arch,
        "policy": policy,
        "model": model or None,
        "prompts": prompts.digest() if model else None,
        "versions": {"cuda_agent": __version__, "program": memory.program(), "compiler": original.compiler},
        "budget": {
            "seconds": request.budget_s,
            "candidates": request.max_candidates,
            "tokens": request.max_tokens,
            "cost": request.max_cost,
            "price": list(request.price),
        },
        "options": asdict(request.options) | {"allow": sorted(request.options.allow)},
        "fresh": request.fresh,
    }


def flags_sha256(build: Build) -> str:
    """The project's folder is spelled `.`: a copy of it elsewhere has the same."""
    return cache.digest(record.flags(build.flags, record.project_of(Path(os.path.abspath(build.file)))))


def inputs_sha256(workload: Workload) -> str:
    """Of the launches and the bytes they start from, wherever those lay."""
    return cache.digest(memory.inputs(workload, after=False))


@dataclass
class Recording:
    """Of one search. `features` are computed only while something is recorded."""

    trajectory: Trajectory
    features: Callable[[Candidate], Mapping[str, float]]
    id: str = ""  # of the record in the cache; empty without one
    models: bool = False  # a model proposes: it is held against the best rules
    known: reward.Rules | None = None  # the best rule search before this one
    _rewards: dict[str, int | None] = field(default_factory=dict)  # by a candidate's mark

    def begin(self, make: Callable[[], Mapping[str, Any]], mark: str, models: bool, keep: bool) -> None:
        """`make` gives the start; `mark` is the original's. `keep`: in the cache, too."""
        self._rewards[mark] = reward.CORRECT
        self.models = models
        keep = keep and config.current().trajectories
        if not keep and not self.trajectory.files:
            return
        start = make()
        if keep:
            path = recorded.new(str(start["kernel"]))
            self.trajectory.also(path)
            self.id = path.stem if path is not None else ""
        if models and start["device_kind"] != "emulator":
            self.known = recorded.best_rules(start)
        self.trajectory.append("start", **start)

    def original(self, features: Callable[[], Mapping[str, float]]) -> None:
        if self.trajectory.files:
            self.trajectory.append("features", features=dict(features()))

    def proposed(self, candidates: Sequence[Candidate]) -> None:
        """A round. What a model does it tells itself."""
        rules = [one.id for one in candidates if not one.by_model]
        if rules:
            self.trajectory.append("action", by="rules", name="propose", candidates=rules)

    def step(self, step: Step, steps: Sequence[Step]) -> None:
        """`steps`: all up to this one."""
        rules = self.rules(steps) if step.candidate.by_model else None
        if step.verdict is None and step.mark:
            earned = self._rewards.get(step.mark)  # of the first with this machine code
        elif step.verdict is None:
            earned = reward.FAILED  # it does not compile
        else:
            earned = reward.of_verdict(step.verdict, rules)
        self._rewards.setdefault(step.mark, earned)
        if self.trajectory.files:
            self.trajectory.candidate(step, self.features(step.candidate) if step.mark else {}, earned)

    def rules(self, steps: Sequence[Step]) -> reward.Rules | None:
        return reward.best_rules(steps, self.known) if self.models else None

    def full(self, step: Step, verdict: Verdict, seconds: float, steps: Sequence[Step]) -> None:
        model = step.candidate.by_model
        earned = reward.of_verdict(verdict, self.rules(steps) if model else None)
        self.trajectory.full(step.candidate.id, verdict, seconds, earned)

    def end(self, outcome: Outcome, steps: Sequence[Step], budget: Budget, **more: Any) -> None:
        """Of a search that came to an end, also one that was stopped."""
        verdict, rules = outcome.verdict, self.rules(steps)
        mine = outcome.candidate is not None and outcome.candidate.by_model
        self._end(
            budget,
            status=outcome.status,
            message=outcome.message,
            candidate=outcome.candidate.id if outcome.candidate else None,
            tried=outcome.tried,
            faster=verdict is not None and verdict.faster,
            timing=asdict(verdict.timing) if verdict and verdict.timing else None,
            traffic=dict(verdict.traffic) if verdict else {},
            reward=_of_search(outcome, steps, rules if mine else None),
            rules={"ratio": rules.ratio, "from": rules.source} if rules else None,
            **more,
        )

    def broken(self, error: Exception, budget: Budget) -> None:
        """Of a search that has no outcome."""
        self._end(
            budget,
            status="stopped",
            message=str(error),
            candidate=None,
            tried=budget.tried,
            faster=False,
            timing=None,
            traffic={},
            reward=None,
            rules=None,
        )

    def _end(self, budget: Budget, **fields: Any) -> None:
        spent = {"seconds": round(budget.spent, 3), "tokens": [budget.read, budget.written], "cost": budget.paid}
        self.trajectory.append("end", **fields, **spent)


def _of_search(outcome: Outcome, steps: Sequence[Step], rules: reward.Rules | None) -> int | None:
    """A search that ended without a winner has made something correct or failed."""
    if outcome.status in ("verified", "rejected"):
        return reward.of_verdict(outcome.verdict, rules)
    if outcome.status == "undecided":
        return None
    right = sum(step.score is not None for step in steps)
    return reward.CORRECT if right > outcome.refused else reward.FAILED
