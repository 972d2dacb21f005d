"""G7 on a GPU: one launch, original and candidate, under the four tools of compute-sanitizer.

Every tool is first shown a kernel with the fault that it is there for; one that does not name it has no say. What a
tool finds in the original is kept: a search judges many candidates against one. What does not depend on the candidate
may begin while earlier gates are asked (`ahead`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from cuda_agent.device import sanitizer
from cuda_agent.device.sanitizer import Checked, Finding, Sanitizer
from cuda_agent.errors import WorkloadError
from cuda_agent.judge.case import CANDIDATE, ORIGINAL, Case
from cuda_agent.judge.hidden import small
from cuda_agent.judge.tool_runs import BAD, Runs, missed

SMALL_BYTES, SMALL_THREADS = 16 << 20, 1 << 16  # of a launch that is derived for the tools


@dataclass(frozen=True, slots=True)
class Answer:
    """One tool about one launch."""

    tool: str
    state: Literal["clean", "as the original", "worse", "not run"]
    why: str = ""  # of a tool that did not run
    findings: tuple[Finding, ...] = ()  # of the candidate; of "worse" only those the original does not show
    own: tuple[Finding, ...] = ()  # of the original
    seconds: float = 0.0  # of its runs that were not over when the gate was asked

    def to_json(self) -> dict[str, Any]:
        kinds = sorted({finding.kind for finding in self.own})
        return {"status": self.state, "why": self.why, "seconds": round(self.seconds, 3), "original_shows": kinds}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The launch that the tools see: `case.launches[index]`."""

    case: Case
    index: int
    name: str
    derived: bool = False


def choose(case: Case) -> Chosen:
    """The judged launch with the fewest bytes, then the fewest threads. Under a tool each of its accesses costs a
    microsecond: where it is large, a small one that G5 derived and on which the original is clean takes its place, if
    there is one. Raises WorkloadError when there is none and it is above the limit."""
    captured, limit = small.captured(case), case.options.checker_bytes
    if is_quick(case):
        return Chosen(case, captured.index, captured.name)
    from cuda_agent.judge.hidden import trials  # numpy

    held = captured.launch.held_bytes
    if found := trials.clean(case, small.derived(case, min(limit, SMALL_BYTES), SMALL_THREADS)):
        name = f"{found.launch_name(0)} (derived: the smallest captured launch has {held:,} bytes)"
        return Chosen(found, 0, name, derived=True)
    if held <= limit:
        return Chosen(case, captured.index, captured.name)
    raise WorkloadError(
        f"the smallest captured launch has {held:,} bytes, the checkers take at most {limit:,}, and no smaller one "
        "could be derived from it: capture a smaller one too (smaller arguments, or --select smallest)"
    )


def is_quick(case: Case) -> bool:
    """Whether the smallest judged launch is small enough for the tools as it is."""
    return small.captured(case).launch.held_bytes <= min(case.options.checker_bytes, case.options.checker_quick_bytes)


@contextmanager
def ahead(case: Case) -> Iterator[None]:
    """The runs that `check` will need, the candidate's apart, begin in the background; those that are not over at the
    end are ended. What goes wrong happens to `check` again, which says so."""
    with closing(Runs(case, small.smallest(case))) as runs:
        case.checkers = runs
        runs.begin()
        yield


def check(case: Case, tool: Sanitizer, index: int) -> list[Answer]:
    """Every tool's answer, in the order of `sanitizer.TOOLS`. The candidate has half of the time. The original is asked
    at once where there is room for all, else afterwards, first under the tools that found something. Raises Cancelled,
    and what stops the whole gate: the known-bad kernels do not compile, a blob is missing."""
    started, limit = time.monotonic(), case.options.checkers_timeout_s
    runs, case.checkers = case.checkers or Runs(case, index), None
    with closing(runs):
        runs.take_over()
        shown = [(name, BAD) for name in runs.unproved()]
        theirs = [(name, ORIGINAL) for name in runs.unknown(tool)]
        first = [*shown, *((name, CANDIDATE) for name in sanitizer.TOOLS)]
        runs.start(tool, first, started + limit / 2)
        if runs.room_for(theirs):
            runs.start(tool, theirs, started + limit)
        done = runs.results(tool, first, started + limit / 2)
        asked = [run for run in theirs if run[0] in runs.proved and not done[run[0], CANDIDATE].why]
        asked.sort(key=lambda run: not done[run[0], CANDIDATE].findings)
        runs.start(tool, asked, started + limit)
        done |= runs.results(tool, asked, started + limit)
        kept = {name: runs.kept.get(runs.key(tool, name)) for name in sanitizer.TOOLS}
    answers = []
    for name in sanitizer.TOOLS:
        original = done.get((name, ORIGINAL)) or kept[name]
        made = _answer(name, done.get((name, BAD)), done[name, CANDIDATE], original)
        seconds = sum(checked.seconds for (of, _), checked in done.items() if of == name)
        answers.append(replace(made, seconds=seconds))
    return answers


def _answer(name: str, shown: Checked | None, candidate: Checked, original: Checked | None) -> Answer:
    """`shown`: the known-bad kernel, where this run had to show it. `original`: None where nobody needed it."""
    if shown is not None and (why := missed(name, shown)):
        return Answer(name, "not run", why)
    if candidate.why or original is None:
        return Answer(name, "not run", candidate.why)
    if not candidate.findings:
        return Answer(name, "clean", own=original.findings)
    if original.why:
        why = f"it finds {candidate.findings[0].kind} in the candidate, and of the original: {original.why}"
        return Answer(name, "not run", why, candidate.findings)
    worse = new_findings(candidate.findings, original.findings)
    return Answer(
        name,
        "worse" if worse else "as the original",
        findings=tuple(worse or candidate.findings),
        own=original.findings,
    )


def new_findings(candidate: Sequence[Finding], original: Sequence[Finding]) -> list[Finding]:
    """Findings of a kind and kernel that the original shows less often, or not at all."""
    ours, theirs = (Counter((finding.kind, finding.kernel) for finding in side) for side in (candidate, original))
    return [finding for finding in candidate if ours[key := (finding.kind, finding.kernel)] > theirs[key]]
