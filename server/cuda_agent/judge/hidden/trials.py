"""Runs hidden cases: first the original alone, several cases a job; then the candidate beside it, by the rule of G3.

A case on which the original itself is not clean (a fault, an access out of bounds, a race, an answer that varies where
it may not) says nothing about a candidate and is left out, with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from cuda_agent.device import jobs
from cuda_agent.errors import DeadlineExceeded, WorkerDied, WorkloadError
from cuda_agent.judge import outcome as outcomes
from cuda_agent.judge.baseline import Baseline, dtypes, poison_of, spread_of, totals
from cuda_agent.judge.case import Case, Results
from cuda_agent.judge.digest import sha256
from cuda_agent.judge.gates.g03_outputs import wrong
from cuda_agent.judge.hidden.families import NOT_FINITE
from cuda_agent.judge.hidden.plan import Plan, drawn
from cuda_agent.judge.hidden.sensitivity import is_rounding
from cuda_agent.judge.hidden.trial import Kind, LeftOut, Trial, cost
from cuda_agent.model import Launch
from cuda_agent.workload.launch_map import Shape

if TYPE_CHECKING:
    from cuda_agent.device import Device

BATCH = 8  # cases a job
BATCH_COST = 1 << 24
SECONDS_A_BYTE = 2e-8  # redrawing, sending and comparing a buffer some ten times over
DEADLINE_S = {"emulator": 10.0, "cuda": 5.0}  # a job of the original on hidden cases
DEATHS = 2  # workers that the original may end before the kinds of case that ended them are left out
NO_TIME, DEADLY = "no time was left for it", "the original had ended too many workers"

_kept: WeakKeyDictionary[Device, dict[tuple[object, ...], Baseline | str]] = WeakKeyDictionary()


@dataclass(slots=True)
class Report:
    tried: list[Trial] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    failure: str | None = None
    deaths: list[Kind] = field(default_factory=list)  # of workers, by the original

    @property
    def deadly(self) -> frozenset[Kind]:
        """Kinds of case that are tried no more."""
        return frozenset(self.deaths if len(self.deaths) > DEATHS else ())


class Hidden(Case):
    """The case of a batch of trials: everything of the parent's, on other launches."""

    def __init__(self, parent: Case, trials: Sequence[Trial], held: dict[str, bytes]) -> None:
        super().__init__(
            parent.device,
            parent.build,
            parent.workload,
            parent.original,
            parent.candidate,
            module=parent.module,
            options=replace(parent.options, shadow="wide"),  # a shadow a case would cost more than the case
            cancelled=parent.cancelled,
        )
        self.parent, self.trials, self.held = parent, trials, held
        self.baselines: dict[int, Baseline] = {}
        # The parent's answers to what does not depend on the launch.
        self.__dict__["original_binary"] = parent.original_binary
        self.__dict__["candidate_binary"] = parent.candidate_binary
        self.__dict__["uses_atomics"] = parent.uses_atomics

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(trial.launch for trial in self.trials)

    def shape(self, index: int) -> Shape:
        return self.trials[index].shape

    def launch_name(self, index: int) -> str:
        return self.trials[index].name

    def baseline(self, index: int) -> Baseline:
        return self.baselines[index]

    def recorded(self, index: int) -> Baseline:
        """Of the launch that the trial comes from."""
        return self.parent.baseline(self.trials[index].index)


def run(case: Case, plan: Plan) -> Report:
    """Tries the plan's cases until one fails, all are done or the time is up."""
    report = Report(left_out=list(plan.left_out))
    until = time.monotonic() + _seconds(case)
    most = case.options.hidden_cases
    report.left_out += [LeftOut(trial.name, "enough cases") for trial in plan.trials[most:]]
    ended = _try(case, plan, plan.trials[:most], report, until)
    if ended and not any(trial.family for trial in report.tried):
        _try(case, plan, plan.instead, report, until)
    return report


def _try(case: Case, plan: Plan, waiting: Sequence[Trial], report: Report, until: float) -> bool:
    """False when a case failed or the time was over."""
    while waiting := [trial for trial in waiting if trial.kind not in report.deadly]:
        left = until - time.monotonic()
        batch = _batch(case, waiting, left) or ([] if report.tried else _one(case, waiting, left + _seconds(case)))
        if not batch:
            report.left_out += [LeftOut(trial.name, NO_TIME) for trial in waiting]
            return False
        held = dict(plan.held)  # redrawn values may be large: they go with the batch
        hidden = Hidden(case, [drawn(case, trial, held) for trial in batch], held)
        _measure(hidden, report)
        _compare(hidden, report)
        if report.failure is not None:
            return False
        waiting = [trial for trial in waiting if trial not in batch]
        report.left_out += [LeftOut(trial.name, DEADLY) for trial in waiting if trial.kind in report.deadly]
    return True


def clean(case: Case, trials: Sequence[Trial]) -> Hidden | None:
    """The case of the first trial on which the original is clean."""
    for trial in trials:
        held = dict(case.plan.held)
        hidden = Hidden(case, [drawn(case, trial, held)], held)
        _measure(hidden, Report())
        if hidden.baselines:
            return hidden
    return None


def _expected(case: Case, trial: Trial) -> float:
    """Seconds for a trial by what the recorded launch took: the original alone and beside the candidate with each
    poison, and the bytes moved and compared."""
    base, launch = case.baseline(trial.index), case.launches[trial.index]
    return (
        trial.cost / cost(launch) * (2 * base.traced_seconds + 4 * base.seconds)
        + trial.launch.held_bytes * SECONDS_A_BYTE
    )


def _batch(case: Case, waiting: Sequence[Trial], seconds: float) -> list[Trial]:
    """The next cases for one job; those that would take longer than what is left are passed over."""
    batch: list[Trial] = []
    total = 0
    for trial in waiting:
        if len(batch) == BATCH or (batch and total + trial.cost > BATCH_COST):
            break
        expected = _expected(case, trial)
        if expected <= seconds:
            seconds -= expected
            total += trial.cost
            batch.append(trial)
    return batch


def _one(case: Case, waiting: Sequence[Trial], seconds: float) -> list[Trial]:
    """Where all are too large: one other size all the same, in up to twice the time, or the cheapest of another kind.
    Without any the recorded sizes would be all that is known."""
    first = min(waiting, key=lambda trial: (trial.kind != "size", _expected(case, trial)))
    return [first] if _expected(case, first) <= seconds else []


def _seconds(case: Case) -> float:
    return case.options.hidden_budget_emulated_s if case.emulated else case.options.hidden_budget_s


# ---------------------------------------------------------------- the original alone


def _measure(hidden: Hidden, report: Report) -> None:
    """Baselines of the trials on which the original is clean; the others are left out."""
    known = _kept.setdefault(hidden.device, {})
    keys = [
        (sha256(hidden.original), hidden.original_binary.sha256, str(hidden.workload.root), trial.index, trial.launch)
        for trial in hidden.trials
    ]
    pending = [at for at, key in enumerate(keys) if key not in known]
    while pending:
        steps = hidden.load_steps(candidate=False)
        blocks = {}
        for at in pending:
            block = _steps(hidden, at)
            blocks[at] = (len(steps), block)
            steps += block
        try:
            tag = f"the original on {hidden.launch_name(pending[0])}"
            results = hidden.run(steps, deadline_s=DEADLINE_S[hidden.device.info.kind], tag=tag)
        except WorkerDied as error:
            started = [at for at in pending if blocks[at][0] <= (error.step or 0)]
            culprit = started[-1] if started else pending[0]
            report.deaths.append(hidden.trials[culprit].kind)
            how = "does not end" if isinstance(error, DeadlineExceeded) else "crashes"
            known[keys[culprit]] = f"the original itself {how} there"
            pending.remove(culprit)
            dropped = [at for at in pending if hidden.trials[at].kind in report.deadly]
            report.left_out += [LeftOut(hidden.trials[at].name, DEADLY) for at in dropped]
            pending = [at for at in pending if at not in dropped]
            continue
        for at in pending:
            start, block = blocks[at]
            known[keys[at]] = _baseline(hidden, at, results[start : start + len(block)])
        pending = []
    for at, key in enumerate(keys):
        found = known.get(key)
        if isinstance(found, str):
            report.left_out.append(LeftOut(hidden.trials[at].name, found))
        elif found is not None:
            hidden.baselines[at] = found


def _poisoned(hidden: Hidden, at: int) -> frozenset[int]:
    return frozenset(b for b in hidden.recorded(at).poisoned if hidden.launches[at].buffers[b].size)


def _entries(hidden: Hidden, at: int, changed: bool) -> list[dict[str, Any]]:
    """Written elements of pure outputs; of the other buffers everything, or with `changed` what the launch changed."""
    poisoned, count = _poisoned(hidden, at), len(hidden.launches[at].buffers)
    found = []
    for b, dtype in enumerate(dtypes(hidden, at)):
        mask = {"mask": "written"} if b in poisoned else {"mask": "changed"} if changed and b < count else {}
        found.append({"buffer": b, "dtype": dtype, **mask})
    return found


def _steps(hidden: Hidden, at: int) -> list[jobs.Step]:
    """The original twice; `_baseline` knows the order."""
    poison = poison_of(hidden, at, _poisoned(hidden, at), 0)
    zeros = [{**entry, "expected": {"fill": "00"}} for entry in _entries(hidden, at, True)]
    return [
        hidden.original_launch("first", at, poison=poison, trace=hidden.emulated and hidden.options.traffic),
        jobs.changed_step("first", "changed"),
        jobs.unpoisoned_step("first", "written"),
        {**hidden.original_launch("again", at, poison=poison), "seed": 1},
        jobs.compare_step("first", "again", _entries(hidden, at, False)),
        jobs.compare_step("first", "first", zeros),
        jobs.free_step("again"),
        jobs.free_step("first"),
    ]


def _baseline(hidden: Hidden, at: int, results: Results) -> Baseline | str:
    """The original on one trial, or why it says nothing."""
    launched, _, _, again, compared, zeros, *_ = results
    for result in (launched, again, compared, zeros):
        if not result["ok"]:
            return f"the original itself fails there: {result['error']}"
    if launched["canaries"] or again["canaries"]:
        return "the original itself writes out of bounds there"
    own = {(f["kind"], f.get("buffer")) for f in hidden.recorded(at).findings}
    new = [f for f in launched.get("findings", ()) if (f["kind"], f.get("buffer")) not in own]
    if new:
        return f"the original itself is not clean there: {outcomes.sentence(hidden, at, new[0])}"
    try:
        spread = spread_of(hidden, at, compared["buffers"])
    except WorkloadError as error:
        return str(error)
    pairs = zip(_entries(hidden, at, True), zeros["buffers"], strict=True)
    written = [row["compared"] if "mask" in entry else 0 for entry, row in pairs]
    return Baseline(
        seconds=min(launched["seconds"], again["seconds"]),
        traced_seconds=launched["seconds"],
        replay="derived",
        spread=spread,
        deterministic=all(row["equal"] for row in compared["buffers"]),
        written=tuple(written),
        poisoned=_poisoned(hidden, at),
        max_ref=tuple(row["max_abs"] if count else 0.0 for row, count in zip(zeros["buffers"], written, strict=True)),
        nulls={},
        findings=tuple(launched.get("findings", ())),
        traffic=totals(launched.get("traffic")),
        not_finite=sum(row["nan_mismatch"] for row in zeros["buffers"]),
    )


# ---------------------------------------------------------------- the candidate beside it


def _compare(hidden: Hidden, report: Report) -> None:
    """Judges the candidate on the trials that have a baseline; stops at the first that is wrong."""
    ready = []
    for at in sorted(hidden.baselines):
        trial = hidden.trials[at]
        if trial.family and trial.family not in NOT_FINITE and _overflows(hidden, at):
            why = "the original's own result is not finite there, and the candidate may round in another order"
            report.left_out.append(LeftOut(trial.name, why))
        else:
            ready.append(at)
    if not ready:
        return
    for outcome in outcomes.observe_all(hidden, ready):
        trial = hidden.trials[outcome.launch]
        report.tried.append(trial)
        sentence = problem(hidden, outcome)
        if sentence is not None and not is_rounding(hidden, outcome):
            report.failure = f"{trial.name}: {sentence}"
            return


def _overflows(hidden: Hidden, at: int) -> bool:
    """NaN or infinity where the recorded values give none: order matters there, and only equal orders agree."""
    return hidden.candidate.numeric != "bit-exact" and bool(hidden.baselines[at].not_finite)


def problem(hidden: Hidden, outcome: outcomes.Outcome) -> str | None:
    """What is wrong with the candidate on one trial, by the rules of G3, G4 and G7."""
    own = {outcomes.place(finding) for finding in outcome.original_findings}
    # What the checkers say of the candidate on the recorded launch too is G7's to judge.
    recorded = hidden.parent.outcome(hidden.trials[outcome.launch].index)
    kinds = {(f["kind"], f.get("buffer")) for f in (*outcome.original_findings, *recorded.findings)}
    for finding in outcome.findings:
        bounds = finding["kind"] == "out-of-bounds"
        if outcomes.place(finding) not in own if bounds else (finding["kind"], finding.get("buffer")) not in kinds:
            return outcomes.sentence(hidden, outcome.launch, finding)
    if sentence := wrong(outcome):
        return sentence
    for canary in outcome.canaries:
        name = hidden.slots(outcome.launch)[canary["buffer"]].name
        where = f"{canary['bytes']} bytes {canary['side']} {name}, the nearest at byte {canary['at']}"
        return f"the candidate writes out of bounds: {where}"
    return None
