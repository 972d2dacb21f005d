"""G13, in the program: the person's own program, rebuilt with the edit, does what it did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy
from numpy.typing import NDArray

from cuda_agent.device import compare as devices
from cuda_agent.errors import Cancelled, CompileError, CudaAgentError, WorkloadError
from cuda_agent.judge import numeric, printed
from cuda_agent.judge.case import Case, slots_of
from cuda_agent.judge.gate import Gate, Needs, failed, not_run, passed
from cuda_agent.judge.program import LINES, Program, Ran
from cuda_agent.model import GateResult, Launch

Bytes = NDArray[numpy.uint8]
SLACK_S = 30.0  # the edited program may take this much longer, and `slower_deadline` times the original's time
TOO_MUCH = 100  # two runs of the original this many times the rule apart say nothing about the edit


class InProgram:
    """The recorded launches are not the program: a launch site may be edited wrongly, another kernel may live from
    what this one leaves. So the project is copied, rebuilt with the edit and run with the recorded command,
    twice as it was and once edited; a command that is the built program itself is preceded by the compiler
    commands that captures in its folder recorded. Exit code, output and every launch that a capture would
    record must be the same. In the output, numbers that vary between the two runs of the original and numbers
    that are times are left out; where results differ within the numeric rule, printed fractions may differ as
    much, and the verdict says so. A launch's buffers are compared under the numeric rule, where the two runs of
    the original wrote them. It runs the whole program three times and more, so it is asked for with
    --in-program. Files that the program writes are not compared, and text from a model is not built: that needs
    a sandbox around the whole build."""

    id: ClassVar[str] = "G13"
    name: ClassVar[str] = "in the program"
    cost: ClassVar[float] = 60.0
    needs: ClassVar[Needs] = "run"

    def check(self, case: Case) -> GateResult:
        if not case.options.in_program:
            return not_run(self, "not asked for: add --in-program")
        if case.candidate.by_model:
            return not_run(self, "text from a model is compiled only in the sandbox, where no whole program is built")
        try:
            with Program(case) as program:
                return _check(self, case, program)
        except Cancelled:
            raise
        except CudaAgentError as error:  # the original, or this machine: it says nothing about the candidate
            return not_run(self, str(error), error=type(error).__name__)


def _check(gate: Gate, case: Case, program: Program) -> GateResult:
    limit = case.options.program_timeout_s
    first, second = (_original(program, name, case.original, limit) for name in ("first", "second"))
    template = printed.learn(first.lines, second.lines)
    if first.exit_code != second.exit_code:
        raise WorkloadError(f"two runs of your program end with exit code {first.exit_code} and {second.exit_code}")
    # A slower kernel is allowed, an endless program is not.
    own = min(limit, SLACK_S + case.options.slower_deadline * max(first.took, second.took))
    try:
        edited = program.run("edited", case.candidate.text, own)
    except CompileError as error:
        return failed(gate, f"your program does not build with the edit: {error}")
    if edited.timed_out:
        return failed(
            gate, f"your program with the edit did not end within {own:.0f} s (without it: {first.took:.1f} s)"
        )
    wrong: list[str] = []
    if edited.exit_code != first.exit_code:
        wrong.append(f"it ends with exit code {edited.exit_code} instead of {first.exit_code}")
    if first.seen == second.seen and edited.seen != first.seen:
        wrong.append(f"it launches {case.kernel.name} {edited.seen} times instead of {first.seen} times")
    elif len(edited.launches) < min(len(first.launches), len(second.launches)):
        wrong.append(f"{len(edited.launches)} of its launches can be recorded instead of {len(first.launches)}")
    rows = _launches(case, first, second, edited)
    if bad := next((row for row in rows if not row.within), None):
        wrong.append(f"launch {bad.launch + 1} of {case.kernel.name} in it: {bad.sentence()}")
    line, rounded = printed.compare(template, edited.lines, closeness(rows))
    wrong += [line] if line else []
    data: dict[str, Any] = {
        "exit_code": edited.exit_code,
        "lines": len(first.lines),
        "left_out": template.left_out,
        "rounded": rounded,
        "launches": len(first.launches),
        "seconds_before": second.seconds,
        "seconds_after": edited.seconds,
    }
    if wrong:
        return failed(gate, f"your program with the edit: {'; '.join(wrong)}", **data)
    return passed(gate, _detail(first, rounded, template.left_out, second.seconds, edited.seconds), **data)


def _original(program: Program, name: str, text: str, limit: float) -> Ran:
    ran = program.run(name, text, limit)
    if ran.timed_out:
        raise WorkloadError(f"your program did not end within {limit:g} s: give it more with --timeout")
    if not ran.launches:
        last = f": {ran.lines[-1].strip()}" if ran.lines else ""
        raise WorkloadError(
            f"your program, rebuilt without the edit in a copy of its folder, ended with exit code {ran.exit_code} and "
            f"showed no launch that can be recorded{last}"
        )
    return ran


def _detail(first: Ran, rounded: int, left_out: int, before: float | None, after: float | None) -> str:
    lines = "nothing printed" if not first.lines else f"{_some(len(first.lines), 'line')} of output unchanged"
    notes = [f"{_some(left_out, 'number')} left out that vary or are times"] * (left_out > 0)
    notes += [f"{_some(rounded, 'number')} rounded otherwise"] * (rounded > 0)
    notes += ["later lines not compared"] * (len(first.lines) >= LINES)
    noted = f" ({', '.join(notes)})" if notes else ""
    said = (
        f"your program with the edit: exit code {first.exit_code}, {lines}{noted}, "
        f"{_some(len(first.launches), 'launch', 'es')} equal"
    )
    return f"{said}; the whole program took {before:.2f} s → {after:.2f} s" if before and after else said


def _some(count: int, noun: str, plural: str = "s") -> str:
    return f"{count:,} {noun}{plural if count != 1 else ''}"


def closeness(rows: Sequence[numeric.Compared]) -> printed.Close:
    """What printed fractions may differ by: as much as the buffers they come from may, where these differ at all. A
    number below one counts as one: the error that a program prints of its own results is a difference of two of them,
    so rounding changes all of it."""
    differing = [row for row in rows if row.klass != "bit-exact"]
    absolute = max((row.allowed for row in differing), default=0.0)
    relative = max((numeric.RULE.get(str(row.result["dtype"]), 0.0) for row in differing), default=0.0)

    def close(a: float, b: float) -> bool:
        return bool(differing) and abs(a - b) <= max(absolute, relative * max(abs(a), abs(b), 1.0))

    return close


# ---------------------------------------------------------------- launches


def _launches(case: Case, first: Ran, second: Ran, edited: Ran) -> list[numeric.Compared]:
    """A row for each buffer that differs from the first run's. Raises WorkloadError where two runs of the original
    differ so much that nothing can be compared."""
    rows = []
    for number, (one, new) in enumerate(zip(first.launches, edited.launches, strict=False)):
        two = second.launches[number] if number < len(second.launches) else None
        if two is None or _sizes(one) != _sizes(two):
            raise WorkloadError(f"two runs of your program launch {case.kernel.name} on other buffers")
        if _sizes(one) != _sizes(new):
            rows.append(_other_buffers(number, one, new))
            continue
        for index, slot in enumerate(slots_of(one, case.kernel)):
            if new.buffers[index].after != one.buffers[index].after:
                tolerance = case.workload.tolerance.get(slot.name)
                arrays = [
                    (_read(ran, launch.buffers[index].before), _read(ran, launch.buffers[index].after))
                    for ran, launch in ((first, one), (second, two), (edited, new))
                ]
                row = _buffer(case, number, slot.name, str(slot.dtype), arrays, tolerance)
                rows += [row] if row else []
    return rows


def _sizes(launch: Launch) -> list[tuple[int, bool]]:
    return [(buffer.size, buffer.after is None) for buffer in launch.buffers]


def _read(ran: Ran, names: tuple[str, ...] | None) -> Bytes:
    return numpy.frombuffer(ran.blobs.get(names or ()), dtype=numpy.uint8)


def _buffer(
    case: Case, launch: int, name: str, dtype: str, arrays: Sequence[tuple[Bytes, Bytes]], tolerance: float | None
) -> numeric.Compared | None:
    """One buffer of one launch after three runs: (before, after) of the original twice, then of the edited program.
    None when no element that somebody wrote, and that the original leaves the same way, differs."""
    (before1, after1), (before2, after2), (before, after) = arrays
    written1, written2, written = before1 != after1, before2 != after2, before != after
    same = _elements(after1 == after2, dtype, every=True)
    touched = _elements(written1 | written2, dtype)
    if dtype not in numeric.RULE and bool((touched & ~same).any()):
        raise WorkloadError(f"two runs of your program leave other values in {name}: there is no one right result")
    # What nobody wrote holds what was there before, and memory that varies unwritten was never initialised.
    chosen = (touched | _elements(written, dtype)) & (touched | same)
    own = devices.compare(numpy, after1, after2, dtype, selected=chosen)
    values = numpy.abs(devices.values(numpy, devices.elements(numpy, after1, dtype), dtype)[chosen])
    top = float(numpy.max(values, where=numpy.isfinite(values), initial=0.0))
    rule = numeric.RULE.get(dtype, 0.0)
    if own["nan_mismatch"] or own["max_abs"] > TOO_MUCH * rule * top:
        raise WorkloadError(
            f"two runs of your program differ by up to {own['max_abs']:.3g} in {name}: too much to compare"
        )
    result = devices.compare(numpy, after1, after, dtype, selected=chosen)
    if result["equal"]:
        return None
    # What the float64 shadow allowed on the captured launches: here there is none to ask. `classify` doubles a spread.
    spread = max(float(own["max_abs"]), _shadowed(case, name) * top / 2)
    declared = case.candidate.numeric
    return numeric.classify(launch, name, result, declared=declared, max_ref=top, tolerance=tolerance, spread=spread)


def _shadowed(case: Case, name: str) -> float:
    """How far a buffer may be from the original's by its float64 shadow, relative to its magnitude; 0 without one."""
    rows = [row for outcome in case.outcomes() for row in outcome.compared if row.buffer == name]
    arbiters = [row.shadow for row in rows if row.shadow is not None and row.shadow.magnitude]
    return max((arbiter.difference / arbiter.magnitude for arbiter in arbiters), default=0.0)


def _elements(bytes_: NDArray[numpy.bool_], dtype: str, *, every: bool = False) -> NDArray[numpy.bool_]:
    """A flag an element from one a byte: any of its bytes, or all of them."""
    width = devices.DTYPES[dtype][0]
    table = bytes_[: bytes_.size // width * width].reshape(-1, width)
    return numpy.asarray(table.all(axis=1) if every else table.any(axis=1))


def _other_buffers(launch: int, one: Launch, new: Launch) -> numeric.Compared:
    """The edited program gives the kernel other memory: there is nothing to compare, and that is wrong."""
    sizes = [" ".join(f"{buffer.size:,}" for buffer in which.buffers) for which in (one, new)]
    first = {"index": 0, "expected": f"buffers of {sizes[0]} bytes", "got": f"buffers of {sizes[1]} bytes"}
    result = {"dtype": "bytes", "equal": False, "compared": 1, "differing": 1, "nan_mismatch": 0, "first": first}
    return numeric.Compared(launch, "its memory", "tolerance", False, 0.0, {**result, "worst": first, "max_abs": 0.0})
