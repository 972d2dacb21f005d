"""Do the inputs notice a wrong kernel? One-token mutants of the original (`mutants.py`) are run on them.

A mutant is noticed when its result is not accepted beside the original's, or it faults. One that is not may be
harmless (a maximum that softmax only subtracts for safety, a term that is lost in rounding) or the inputs may be too
weak to show it (a bias of zeros, a constant vector). Other values tell the two apart: the same launches with random
floats of the same size and with integers that changed places. What they do not show either is held to be harmless;
what they show, and the recorded inputs do not, is a weakness of these inputs.

Made once for an original and its launches, whatever the candidates are.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from cuda_agent import cache
from cuda_agent.device import jobs
from cuda_agent.errors import CompileError, Unsupported, WorkerDied
from cuda_agent.judge import numeric, shadow
from cuda_agent.judge.baseline import buffer_name, dtypes, mask, need, poison_of
from cuda_agent.judge.digest import sha256
from cuda_agent.judge.mutants import EXTENTS, NUMBER, PARAMETERS, Mutant, Schema
from cuda_agent.judge.shadow_kernel import changed_inits
from cuda_agent.model import Binary, Dim3

if TYPE_CHECKING:
    from cuda_agent.device import Device
    from cuda_agent.judge.case import Case

MODULE = "mutants"  # its name in a job
OTHER_VALUES = (1, 2)  # seeds of the made inputs, of the launch with the least memory and of the next one
LARGE = 16 << 20  # bytes of the smallest launch: above it, that launch and one seed must do
EACH_S = 0.1  # one mutant's launch
TRIES = 3  # compilations: each leaves out the lines that the last one complained about


@dataclass(frozen=True, slots=True)
class Weakness:
    """A mutant that the recorded inputs do not show, and the made ones that do."""

    mutant: Mutant
    launch: int
    seed: int


@dataclass(frozen=True, slots=True)
class Score:
    """What became of the mutants of one kernel on its recorded launches."""

    noticed: tuple[Mutant, ...] = ()
    harmless: tuple[Mutant, ...] = ()
    weak: tuple[Weakness, ...] = ()
    none: str = ""  # why there are no mutants

    def sentence(self) -> str:
        if self.none:
            return f"no mutants of the original: {self.none}"
        count = len(self.noticed) + len(self.harmless) + len(self.weak)
        text = f"{len(self.noticed)} of {count} one-token mutants of it are noticed"
        if self.weak:
            text += (
                f", {len(self.weak)} only on random values, where the candidate agrees with the original (first "
                f"{self.weak[0].mutant.text()})"
            )
        if self.harmless:
            text += f", {len(self.harmless)} change{'s' * (len(self.harmless) == 1)} no result on any values tried"
        return text

    def to_json(self) -> dict[str, Any]:
        return {
            "noticed": [mutant.text() for mutant in self.noticed],
            "harmless": [mutant.text() for mutant in self.harmless],
            "weak": [weakness.mutant.text() for weakness in self.weak],
        }


_kept: WeakKeyDictionary[Device, dict[tuple[object, ...], Score]] = WeakKeyDictionary()


def score(case: Case) -> Score:
    """The score of the original's inputs, made on first use."""
    known = _kept.setdefault(case.device, {})
    key = (
        sha256(case.original),
        case.original_binary.sha256,
        str(case.workload.root),
        case.launches,
        case.options.mutants,
        case.options.seed,
    )
    if key not in known:
        known[key] = _make(case)
    return known[key]


def parting(case: Case, found: Score) -> tuple[Weakness, str] | None:
    """Where the candidate and the original part on the made inputs that show what the recorded ones do not: one such
    weakness, and the first wrong element in words. None when they agree on all of them."""
    told: dict[tuple[int, int], str | None] = {}
    for weakness in found.weak:
        at = (weakness.launch, weakness.seed)
        if at not in told:
            told[at] = _part(case, *at)
        sentence = told[at]
        if sentence is not None:
            return weakness, sentence
    return None


def _part(case: Case, launch: int, seed: int) -> str | None:
    """The first buffer of the candidate that is not accepted beside the original's on made inputs."""
    change = {"change": "random", "seed": seed}
    base, inits = case.baseline(launch), changed_inits(case, launch, change)
    poison = poison_of(case, launch, base.poisoned, 0)
    launched = case.candidate_launch("x", launch, poison=poison, inits=inits)
    everything = [{"buffer": b, "dtype": dtype} for b, dtype in enumerate(dtypes(case, launch))]
    steps = [
        *case.load_steps(),
        launched,
        case.original_launch("o", launch, poison=poison, inits=inits),
        *_zeros(case, launch, "o"),
        jobs.compare_step("o", "x", everything),
    ]
    try:
        results = case.run(steps, deadline_s=case.deadline(launch, 2), tag="other values", candidate=True)
    except WorkerDied as error:
        if error.module != case.candidate_binary.sha256:
            raise
        return f"the candidate did not end well there: {error}"
    if not results[2]["ok"]:
        return f"the candidate failed there: {results[2]['error']}"
    need(results, "the original failed on other values")
    limits, rows = _limits(case, launch, results[-2]["buffers"]), results[-1]["buffers"]
    asked = [row["buffer"] for row in rows if shadow.arguable(case, launch, row)]
    shadows: dict[int, numeric.Shadowed] = {}
    if asked:
        with contextlib.suppress(shadow.NoShadow):
            shadows = shadow.compare(case, launch, launched, asked, change=change)
    for row in rows:
        b = row["buffer"]
        arbiter = shadows.get(b)
        within = numeric.accepts(row, limits.get(b, 0.0)) if arbiter is None else arbiter.within
        if not within:
            tops = {zero["buffer"]: zero["max_abs"] for zero in results[-2]["buffers"]}
            compared = numeric.classify(
                launch,
                buffer_name(case, launch, b),
                row,
                declared="reassociated",
                max_ref=tops.get(b, 0.0),
                shadow=arbiter,
            )
            return compared.sentence()
    return None


# ---------------------------------------------------------------- making the score


def _make(case: Case) -> Score:
    built = _build(case)
    if isinstance(built, str):
        return Score(none=built)
    schema, binary = built
    asked = repr((case.launches, sorted(case.workload.tolerance.items())))
    here = (case.device.info.name, binary.sha256, hashlib.sha256(asked.encode()).hexdigest())
    found = cache.default().memo("mutants", here, lambda: _run(case, schema, binary))
    assert isinstance(found, Score)
    return found


def _run(case: Case, schema: Schema, binary: Binary) -> Score:
    """The recorded launches first, the smallest before the others; then other values for what they do not show."""
    alive = {mutant.number: mutant for mutant in schema.mutants}
    noticed: list[Mutant] = []
    weak: list[Weakness] = []
    cheap = sorted(range(len(case.launches)), key=lambda launch: (case.launches[launch].held_bytes, launch))
    large = case.launches[cheap[0]].held_bytes > LARGE
    try:
        for launch in cheap[:1] if large else cheap:
            seen = _seen(case, launch, binary, sorted(alive), {})
            noticed += [alive.pop(number) for number in sorted(seen)]
        for seed in OTHER_VALUES[:1] if large else OTHER_VALUES:
            launch = cheap[(seed - 1) % len(cheap)]
            seen = _seen(case, launch, binary, sorted(alive), {"change": "random", "seed": seed})
            weak += [Weakness(alive.pop(number), launch, seed) for number in sorted(seen)]
    except _DoesNotRun as error:
        return Score(none=str(error))
    return Score(tuple(sorted(noticed, key=lambda m: m.number)), tuple(alive.values()), tuple(weak))


def compile_mutants(case: Case) -> None:
    """Into the cache, where `score` finds them."""
    _build(case)


class _DoesNotRun(Exception):
    """The original with its mutants in it does not run to its end."""


def _build(case: Case) -> tuple[Schema, Binary] | str:
    """The schema and its binary, or why there is none."""
    if case.kernel.has_error:
        return "its text is not understood"
    without: frozenset[int] = frozenset()
    for _ in range(TRIES):
        schema = Schema(case.module, case.kernel, case.options.mutants, case.options.seed, without)
        if not schema.mutants:
            return "it computes nothing from the data it loads"
        try:
            return schema, case.device.compile(case.build, schema.text)
        except Unsupported as error:
            return str(error)
        except CompileError as error:
            lines = {int(line) for line in re.findall(r"[:(](\d+)[:)]", error.diagnostics + str(error))}
            wrong = lines & {mutant.line for mutant in schema.mutants}
            if not wrong:
                return "its mutants do not compile"
            without |= wrong
    return "its mutants do not compile"


def _seen(case: Case, launch: int, binary: Binary, numbers: Sequence[int], change: Mapping[str, Any]) -> set[int]:
    """Which of the mutants are told from the original on one launch, its values changed by `change`."""
    seen: set[int] = set()
    todo = list(numbers)
    while todo:
        head = [
            jobs.load_step(binary, MODULE),
            _launch(case, launch, binary, 0, change),
            *_zeros(case, launch, "m0"),
        ]
        blocks = [step for number in todo for step in _block(case, launch, binary, number, change)]
        each = len(blocks) // len(todo)
        tag = f"mutants of the original on {case.launch_name(launch)}"
        try:
            results = case.run(
                [*head, *blocks], deadline_s=case.deadline(launch, len(todo) + 1), tag=tag, more=(binary,)
            )
        except WorkerDied as error:
            at = ((error.step or 0) - len(head)) // each
            if error.module != binary.sha256:
                raise
            if at < 0 and change:  # values that the original itself does not take
                return seen
            if at < 0:
                raise _DoesNotRun(f"with them in it, it does not run: {error}") from error
            seen.add(todo.pop(at))  # it is noticed, and the others run again without it
            continue
        if not results[1]["ok"] or not results[len(head) - 1]["ok"]:
            if change:
                return seen
            raise _DoesNotRun(f"with them in it, it does not run: {results[1].get('error')}")
        limits = _limits(case, launch, results[len(head) - 1]["buffers"])
        for number, start in zip(todo, range(len(head), len(results), each), strict=True):
            launched, compared = results[start], results[start + 1]
            same = launched["ok"] and all(
                numeric.accepts(row, limits.get(row["buffer"], 0.0)) for row in compared["buffers"]
            )
            seen |= set() if same else {number}
        break
    return seen


def _launch(case: Case, launch: int, binary: Binary, number: int, change: Mapping[str, Any]) -> jobs.Step:
    """The original's launch with mutant `number`, 0 for none."""
    recorded = case.launches[launch]
    step = jobs.launch_step(
        f"m{number}",
        MODULE,
        recorded,
        kernel=case.kernel_in(binary, recorded),
        poison=poison_of(case, launch, case.baseline(launch).poisoned, 0),
        inits=changed_inits(case, launch, change),
        grid=_grid(recorded.grid, case.baseline(launch).seconds),
    )
    extents = b"".join(
        struct.pack("<qq", *_extent(case, launch, at)) for at in range(min(PARAMETERS, len(recorded.args)))
    )
    extents += bytes(16 * PARAMETERS - len(extents))
    step["globals"].append([NUMBER, {"fill": struct.pack("<i", number).hex()}])
    if EXTENTS.encode() in binary.data:  # a compiler drops what no mutant reads
        step["globals"].append([EXTENTS, {"fill": extents.hex()}])
    return step


def _grid(grid: Dim3, seconds: float) -> Dim3:
    """So few of the launch's blocks, along its longest axis, that one mutant takes about `EACH_S`: what some blocks
    show is enough."""
    longest = max(grid)
    axis = grid.index(longest)
    few = max(min(longest, 2), math.ceil(longest * min(1.0, EACH_S / seconds))) if seconds > 0 else longest
    x, y, z = (few if number == axis else extent for number, extent in enumerate(grid))
    return x, y, z


def _extent(case: Case, launch: int, at: int) -> tuple[int, int]:
    """Bytes of its buffer before and after where parameter `at` points; (0, 0) for what is no pointer to one."""
    arg = sorted(case.launches[launch].args, key=lambda arg: arg.offset)[at]
    if len(arg.pointers) != 1 or arg.pointers[0].at:
        return 0, 0
    pointer = arg.pointers[0]
    return pointer.offset, case.launches[launch].buffers[pointer.buffer].size - pointer.offset


def _block(case: Case, launch: int, binary: Binary, number: int, change: Mapping[str, Any]) -> list[jobs.Step]:
    everything = [{"buffer": b, "dtype": dtype} for b, dtype in enumerate(dtypes(case, launch))]
    return [
        _launch(case, launch, binary, number, change),
        jobs.compare_step("m0", f"m{number}", everything),
        jobs.free_step(f"m{number}"),
    ]


def _zeros(case: Case, launch: int, run: str) -> list[jobs.Step]:
    """The written elements of a run, compared with zeros: their largest magnitude."""
    base = case.baseline(launch)
    entries = [
        {"buffer": b, "dtype": dtype, **mask(b, base.poisoned, base.written), "expected": {"fill": "00"}}
        for b, dtype in enumerate(dtypes(case, launch))
        if base.written[b]
    ]
    return [
        jobs.changed_step(run, "changed"),
        jobs.unpoisoned_step(run, "written"),
        jobs.compare_step(run, run, entries),
    ]


def _limits(case: Case, launch: int, zeros: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """By buffer the largest difference that passes for the same result."""
    spread = case.baseline(launch).spread
    return {
        row["buffer"]: numeric.allowed(
            row["dtype"], row["max_abs"], case.tolerance(launch, row["buffer"]), spread[row["buffer"]]
        )
        for row in zeros
    }
