"""What a candidate did on one launch beside the original: outputs, untouched memory, canaries, checkers' findings.

Both run in one job from the same bytes, with every pure output poisoned; then again with the second poison pattern.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cuda_agent.device import jobs
from cuda_agent.errors import DeadlineExceeded, WorkerDied, WorkloadError
from cuda_agent.judge import numeric, shadow, vocabulary
from cuda_agent.judge.baseline import Baseline, buffer_name, dtypes, mask, poison_of, totals
from cuda_agent.model import NumericClass

if TYPE_CHECKING:
    from cuda_agent.judge.case import Case, Results


SLOW, SLOW_S = 4.0, 0.02  # a first launch may cost milliseconds more than the next one


@dataclass(frozen=True, slots=True)
class Outcome:
    """`fault` says why there is no result; then the lists below hold only what was seen before it."""

    launch: int
    fault: str | None = None
    crashed: bool = False  # the worker died or was killed: the device knows this binary as dangerous now
    compared: tuple[numeric.Compared, ...] = ()  # written buffers, worst of the patterns
    stray: tuple[str, ...] = ()  # sentences: an input or an element the original leaves alone was changed
    canaries: tuple[Mapping[str, Any], ...] = ()
    findings: tuple[Mapping[str, Any], ...] = ()
    traffic: Mapping[str, float] = field(default_factory=dict)
    original_findings: tuple[Mapping[str, Any], ...] = ()
    seconds: tuple[float, float] = (0.0, 0.0)  # of one launch by the worker's clock, the original's and its own

    @property
    def slow(self) -> bool:
        """Far slower than the original, without any timing: a launch alone shows it where both are long."""
        original, own = self.seconds
        return own > SLOW * original and own - original > SLOW_S

    def difference_allowed(self, buffer: int) -> float:
        """How far an output that a float64 shadow judged may be from the original; 0 where none did."""
        found = (row.shadow for row in self.compared if row.result["buffer"] == buffer)
        return max((arbiter.difference for arbiter in found if arbiter is not None), default=0.0)


def observe(case: Case, index: int) -> Outcome:
    """Run original and candidate on launch `index`. Raises what is not the candidate's doing (see `case.py`)."""
    return observe_all(case, [index])[0]


def observe_all(case: Case, indices: Sequence[int]) -> list[Outcome]:
    """The same for several launches in one job. When the candidate ends the worker, the list has that launch only."""
    steps = case.load_steps()
    blocks: dict[int, list[tuple[int, list[jobs.Step]]]] = {index: [] for index in indices}
    for index in indices:
        base = case.baseline(index)
        for pattern in range(case.options.poisons) if base.poisoned else (0,):
            trace = case.emulated and case.options.traffic and pattern == 0
            block = _block(case, index, base, pattern, trace)
            blocks[index].append((len(steps), block))
            steps += block
    try:
        results = case.run(
            steps,
            deadline_s=max(case.deadline(index, len(blocks[index])) for index in indices),
            tag=f"the candidate on {case.launch_name(indices[0])}",
            candidate=True,
        )
    except WorkerDied as error:
        if error.module != case.candidate_binary.sha256:  # the original's, or the machine's doing
            raise
        started = [index for index in indices if blocks[index][0][0] <= (error.step or 0)]
        index = started[-1] if started else indices[0]
        return [Outcome(index, _fault(case, index, error), crashed=True)]
    load = results[1]
    if not load["ok"]:
        return [Outcome(index, f"the candidate cannot be loaded: {load['error']}") for index in indices]
    return [
        _read(case, index, case.baseline(index), [results[at : at + len(block)] for at, block in blocks[index]])
        for index in indices
    ]


def _fault(case: Case, index: int, error: WorkerDied) -> str:
    if isinstance(error, DeadlineExceeded):
        return (
            f"the candidate did not end on {case.launch_name(index)}: {error} "
            f"(one launch of the original takes {case.baseline(index).seconds:.3g} s)"
        )
    return f"the candidate crashed on {case.launch_name(index)}: {error}"


def _block(case: Case, index: int, base: Baseline, pattern: int, trace: bool) -> list[jobs.Step]:
    """The steps of one poison pattern; `_read` knows their order. The candidate runs first: no memory of the worker
    holds the original's answer then."""
    poison = poison_of(case, index, base.poisoned, pattern)
    return [
        case.candidate_launch("c", index, poison=poison, trace=trace),
        case.original_launch("o", index, poison=poison),
        jobs.changed_step("o", "changed"),
        jobs.unpoisoned_step("o", "written"),
        jobs.compare_step("o", "c", _entries(case, index, base)),
        jobs.free_step("o"),
        jobs.free_step("c"),
    ]


def _entries(case: Case, index: int, base: Baseline) -> list[dict[str, Any]]:
    """For a written buffer its written elements, then all others; for any other buffer everything."""
    entries: list[dict[str, Any]] = []
    for b, dtype in enumerate(dtypes(case, index)):
        entry = {"buffer": b, "dtype": dtype, **mask(b, base.poisoned, base.written)}
        # With a tolerance the first element that is outside it is named, not the first that differs.
        limit = numeric.allowed(dtype, base.max_ref[b], case.tolerance(index, b), base.spread[b])
        entries.append({**entry, "tolerance": {"abs": limit}} if limit else entry)
        if "mask" in entry:
            entries.append({**entry, "invert": True})
    return entries


def _read(case: Case, index: int, base: Baseline, blocks: Sequence[Results]) -> Outcome:
    worst: dict[int, numeric.Compared] = {}
    stray: list[str] = []
    canaries: list[Mapping[str, Any]] = []
    for block in blocks:
        candidate, original, _, _, compared, *_ = block
        if not candidate["ok"]:
            what = "did not end well" if candidate.get("fault") else "cannot be launched"
            sentence = f"the candidate {what} on {case.shape(index).text()}: {candidate['error']}"
            return Outcome(
                index, sentence, findings=tuple(candidate.get("findings", ())), original_findings=base.findings
            )
        if not original["ok"] or not compared["ok"]:
            raise WorkloadError(
                f"the original failed beside the candidate: {(original if compared['ok'] else compared)['error']}"
            )
        canaries += candidate["canaries"]
        for entry, row in zip(_entries(case, index, base), compared["buffers"], strict=True):
            verdict = _classify(case, index, base, row)
            b = entry["buffer"]
            if "mask" in entry and "invert" not in entry:
                worst[b] = max(worst.get(b, verdict), verdict, key=_badness)
            elif not _left_alone(base, entry, verdict):
                stray.append(_stray(case, index, entry, row))
    first = blocks[0][0]
    own, original_s = (min(block[at]["seconds"] for block in blocks) for at in (0, 1))
    return Outcome(
        index,
        seconds=(original_s, own),
        compared=_arbitrated(case, index, base, [worst[b] for b in sorted(worst)]),
        stray=tuple(dict.fromkeys(stray)),
        canaries=tuple(canaries),
        findings=tuple(first.get("findings", ())),
        traffic=totals(first.get("traffic")),
        original_findings=base.findings,
    )


def _classify(
    case: Case,
    index: int,
    base: Baseline,
    row: Mapping[str, Any],
    why: str = "",
    arbiter: numeric.Shadowed | None = None,
) -> numeric.Compared:
    b = row["buffer"]
    return numeric.classify(
        index,
        buffer_name(case, index, b),
        row,
        declared=_declared(case),
        max_ref=base.max_ref[b],
        tolerance=case.tolerance(index, b),
        spread=base.spread[b],
        why=why,
        shadow=arbiter,
    )


def _declared(case: Case) -> NumericClass:
    """The class that a candidate claims. "fast-math" is its own only with such intrinsics in the text and the person's
    word: the scaled tolerance is enough then."""
    words = vocabulary.newly("fast-math", case.candidate.original, case.candidate.text)
    if words and "fast-math" in case.options.allow:
        return "fast-math"
    return "reassociated" if case.candidate.numeric == "fast-math" else case.candidate.numeric


def _arbitrated(
    case: Case, index: int, base: Baseline, rows: Sequence[numeric.Compared]
) -> tuple[numeric.Compared, ...]:
    """The rows whose float32 bits differ, judged by the float64 shadow where one can be had."""
    asked = [
        row.result["buffer"]
        for row in rows
        if shadow.arguable(case, index, row.result)
        and not shadow.unusual(case, index, row.result["buffer"], row.result["max_abs"])
        and not (row.within and (case.options.shadow == "wide" or _declared(case) == "fast-math"))
    ]
    if not asked:
        return tuple(rows)
    why = ""
    shadows: dict[int, numeric.Shadowed] = {}
    try:
        poison = poison_of(case, index, base.poisoned, 0)
        shadows = shadow.compare(case, index, case.candidate_launch("c", index, poison=poison), asked)
    except shadow.NoShadow as reason:
        why = str(reason)
    except WorkerDied as error:
        if error.module != case.candidate_binary.sha256:
            raise
        why = f"the candidate, run again, crashed: {error}"
    return tuple(
        _classify(case, index, base, row.result, why, shadows.get(row.result["buffer"]))
        if row.result["buffer"] in asked
        else row
        for row in rows
    )


def _badness(row: numeric.Compared) -> tuple[bool, int, float, int]:
    return (not row.within, row.result["nan_mismatch"], row.result["max_abs"], row.result["differing"])


def _left_alone(base: Baseline, entry: Mapping[str, Any], row: numeric.Compared) -> bool:
    """Elements the original does not write must keep their bits. In a buffer it reads and writes an element may have
    been written with the value it had: there the numeric rule holds too, because a reassociated sum may miss that
    value."""
    if row.result["equal"]:
        return True
    return "invert" in entry and entry["buffer"] not in base.poisoned and row.within


def _stray(case: Case, index: int, entry: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    name, wrong = buffer_name(case, index, entry["buffer"]), row["first"]
    where = f"{name}[{wrong['index']}]" if wrong else name
    values = f" (was {numeric.show(wrong['expected'])}, is {numeric.show(wrong['got'])})" if wrong else ""
    what = "which the original leaves alone" if "invert" in entry else "an input of the original"
    return f"the candidate writes {where}, {what}{values}{numeric.written_by(row)}; {row['differing']:,} such elements"


# ---------------------------------------------------------------- findings of the emulator's checkers


def place(finding: Mapping[str, Any]) -> tuple[object, ...]:
    """What makes two findings the same fault in original and candidate, whose lines and addresses differ: kind and
    place in a buffer; outside every buffer kind and line."""
    if finding.get("buffer") is None:
        return finding["kind"], None, finding.get("line")
    return finding["kind"], finding["buffer"], finding.get("at")


def sentence(case: Case, index: int, finding: Mapping[str, Any]) -> str:
    """One finding in words: kind, line, buffer by name, the checker's own text, and whose access it was."""
    line = f" at line {finding['line']}" if finding.get("line") else ""
    buffer = f" ({buffer_name(case, index, finding['buffer'])})" if finding.get("buffer") is not None else ""
    who = f" (thread {tuple(finding['thread'])} of block {tuple(finding['block'])})" if finding.get("thread") else ""
    return f"{finding['kind']}{line}{buffer}: {finding.get('text') or 'no detail'}{who}"
