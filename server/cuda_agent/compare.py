"""`compare`: each kernel once with each policy, under equal budgets, and what came of it side by side.

Every search has a device and a cache of its own, so that none profits from what another compiled or found. Gains are
those of the full judgement; a kernel that was not made faster counts as 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cuda_agent import cache
from cuda_agent.agent.loop import optimize
from cuda_agent.agent.opening import opened
from cuda_agent.agent.policies import Policy, Step
from cuda_agent.agent.request import OnEvent, Outcome, Request
from cuda_agent.device import Device, open_device
from cuda_agent.errors import Cancelled, CudaAgentError
from cuda_agent.model import Verdict, Workload

Makers = Mapping[str, Callable[[], Policy | None]]
Open = Callable[[], AbstractContextManager[Device]]


@dataclass(frozen=True)
class CompareRequest:
    """`each` says how inputs are found and what one search may spend: its path and kernel are set for each search."""

    files: tuple[Path, ...]
    each: Request
    kernel: str | None = None


@dataclass(frozen=True)
class Search:
    """One policy on one kernel. `gain` is 1.0 where nothing was made faster (on the emulator: moves fewer sectors)."""

    file: str
    kernel: str
    policy: str
    status: str
    message: str
    gain: float = 1.0
    interval: tuple[float, float] | None = None
    tried: int = 0
    tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    origin: str = ""
    trajectory: str = ""
    course: tuple[tuple[float, float], ...] = ()  # (seconds, best gain so far by the quick judgement)

    @property
    def faster(self) -> bool:
        return self.gain > 1.0

    def to_json(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return found | {"course": [list(point) for point in self.course], "faster": self.faster}


@dataclass(frozen=True)
class Total:
    """One policy over all kernels that every policy finished."""

    policy: str
    kernels: int
    faster: int
    mean: float  # geometric, of the gains
    tried: int
    tokens: int
    cost: float
    seconds: float

    @property
    def share(self) -> float:
        return self.faster / self.kernels if self.kernels else 0.0

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"share": self.share}


@dataclass(frozen=True)
class Comparison:
    """`timed` is False on the emulator: gains are then predicted sectors before over after, and nothing is timed.
    `notes` name files and kernels that could not be searched, or not by all."""

    policies: tuple[str, ...]
    device: str
    timed: bool
    budget: Mapping[str, float]
    searches: tuple[Search, ...]
    notes: tuple[str, ...] = ()
    complete: bool = True

    @property
    def kernels(self) -> tuple[tuple[str, str], ...]:
        """(file, kernel) of those that every policy finished."""
        found = dict.fromkeys((one.file, one.kernel) for one in self.searches)
        return tuple(key for key in found if len(self.of(*key)) == len(self.policies))

    def of(self, file: str, kernel: str) -> list[Search]:
        return [one for one in self.searches if (one.file, one.kernel) == (file, kernel)]

    def by(self, policy: str) -> list[Search]:
        """Of the kernels that every policy finished."""
        kernels = set(self.kernels)
        return [one for one in self.searches if one.policy == policy and (one.file, one.kernel) in kernels]

    @property
    def totals(self) -> tuple[Total, ...]:
        return tuple(_total(policy, self.by(policy)) for policy in self.policies)

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "timed": self.timed,
            "gain": "times faster" if self.timed else "predicted sectors, before over after; nothing is timed",
            "budget": dict(self.budget),
            "complete": self.complete,
            "policies": [total.to_json() for total in self.totals],
            "searches": [one.to_json() for one in self.searches],
            "notes": list(self.notes),
        }


def _total(policy: str, searches: Sequence[Search]) -> Total:
    return Total(
        policy,
        len(searches),
        sum(one.faster for one in searches),
        mean([one.gain for one in searches]),
        sum(one.tried for one in searches),
        sum(one.tokens for one in searches),
        sum(one.cost for one in searches),
        sum(one.seconds for one in searches),
    )


def mean(gains: Sequence[float]) -> float:
    """Geometric; 1.0 of none."""
    return math.exp(sum(map(math.log, gains)) / len(gains)) if gains else 1.0


def compare(
    request: CompareRequest,
    policies: Makers,
    *,
    on_event: OnEvent | None = None,
    cancelled: Callable[[], bool] | None = None,
    open_: Open | None = None,
) -> Comparison:
    """Every kernel of the files that has inputs (or `kernel` alone), with every policy. `open_` makes the device of a
    search. Once `cancelled`, what is finished stays; raises what opening a device raises."""
    return _Run(request, policies, on_event or (lambda event: None), cancelled or (lambda: False), open_).run()


class _Run:
    def __init__(
        self,
        request: CompareRequest,
        policies: Makers,
        say: OnEvent,
        stop: Callable[[], bool],
        open_: Open | None,
    ) -> None:
        self.request, self.policies, self.say, self.stop = request, policies, say, stop
        self.open = open_ or (lambda: open_device(request.each.device, untrusted=self._untrusted, start=False))
        self.searches: list[Search] = []
        self.notes: list[str] = []

    @property
    def _untrusted(self) -> bool:
        return any(name != "search" for name in self.policies)

    def run(self) -> Comparison:
        each = self.request.each
        with self.open() as device:
            name, kind = device.info.name, device.kind
        complete = True
        try:
            for file in self.request.files:
                self._file(file, kind)
        except Cancelled:
            complete = False
            self.notes.append("stopped: what was finished by then is shown")
        return Comparison(
            tuple(self.policies),
            name,
            kind != "emulator",
            {"seconds": each.budget_s, "candidates": each.max_candidates, "tokens": each.max_tokens},
            tuple(self.searches),
            tuple(self.notes),
            complete,
        )

    def _file(self, file: Path, kind: str) -> None:
        request = replace(self.request.each, path=file)
        try:
            workloads = self._workloads(request, kind)
        except Cancelled:
            raise
        except CudaAgentError as error:
            self.notes.append(f"{file.name}: {error}")
            return
        for workload in workloads:
            for policy, make in self.policies.items():
                if self.stop():
                    raise Cancelled("stopped by the person")
                message = f"{workload.kernel} with {policy}"
                self.say({"event": "phase", "message": message, "percentage": 0})
                self.searches.append(self._search(replace(request, kernel=workload.kernel), workload, policy, make))

    def _workloads(self, request: Request, kind: str) -> list[Workload]:
        if self.request.kernel is not None:
            asked = replace(request, kernel=self.request.kernel)
            return [opened(asked).workload(kind, self.say, self.stop)]
        return opened(request).workloads(kind, self.say, self.stop)

    def _search(self, request: Request, workload: Workload, policy: str, make: Callable[[], Policy | None]) -> Search:
        """Raises Cancelled for one that is not finished."""
        with self._alone() as device:
            try:
                outcome = optimize(
                    replace(request, fresh=True),
                    on_event=self.say,
                    cancelled=self.stop,
                    device=device,
                    workload=workload,
                    policy=make(),
                )
            except Cancelled:
                raise
            except CudaAgentError as error:
                self.notes.append(f"{workload.kernel} with {policy}: {error}")
                return Search(request.path.name, workload.kernel, policy, "undecided", str(error))
        if self.stop():
            raise Cancelled("stopped by the person")
        return _searched(request.path.name, policy, outcome)

    @contextmanager
    def _alone(self) -> Iterator[Device]:
        with cache.apart(), self.open() as device:
            yield device


def _searched(file: str, policy: str, outcome: Outcome) -> Search:
    won = outcome.verdict if outcome.status == "verified" else None
    timing = won.timing if won is not None else None
    return Search(
        file,
        outcome.kernel,
        policy,
        outcome.status,
        outcome.message,
        gain_of(won),
        timing.ci if timing is not None else None,
        outcome.tried,
        outcome.tokens,
        outcome.cost,
        round(outcome.seconds, 2),
        outcome.candidate.origin if outcome.candidate else "",
        outcome.trajectory,
        tuple(_course(outcome.steps)),
    )


def gain_of(verdict: Verdict | None) -> float:
    """Of a full judgement: the ratio where it says faster; on the emulator predicted sectors before over after, where
    they are fewer; else 1."""
    if verdict is None or verdict.status != "verified":
        return 1.0
    if verdict.timing is not None:
        return verdict.timing.ratio if verdict.faster else 1.0
    return max(1.0, _sectors(verdict))


def _sectors(verdict: Verdict) -> float:
    before, after = (verdict.traffic.get(f"sectors_{side}", 0.0) for side in ("before", "after"))
    return before / after if before and after else 1.0


def _course(steps: Sequence[Step]) -> Iterator[tuple[float, float]]:
    """Each time the best so far grew."""
    best = 1.0
    for step in steps:
        if step.score is None or step.verdict is None:
            continue
        gain = step.verdict.timing.ratio if step.verdict.timing is not None else _sectors(step.verdict)
        if gain > best:
            best = gain
            yield round(step.at, 2), gain
