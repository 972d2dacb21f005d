"""What the original kernel does on one launch, found by running it: does the capture replay, which buffers it writes,
which of those it never reads, how much its answer varies, and what a null result would score.

Kept for each device, text and launch: a search judges many candidates against one original.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from cuda_agent.device import jobs
from cuda_agent.errors import WorkerDied, WorkloadError
from cuda_agent.judge import numeric
from cuda_agent.judge.digest import sha256
from cuda_agent.model import Buffer
from cuda_agent.workload.elements import SIZES, ElementType

if TYPE_CHECKING:
    from cuda_agent.device import Device
    from cuda_agent.judge.case import Case, Results

# Two patterns a float type, little-endian: a quiet NaN with a payload, then 2^100 (f16: 32,768). An element the
# kernel leaves alone keeps both; an element computed from one that nobody wrote shows it. Integers get two bit
# patterns. (`poison_of` adds a plain number to the second.)
PATTERNS: dict[str, tuple[str, str]] = {
    "f64": ("efbeaddeefbefc7f", "0000000000003046"),
    "f32": ("efbecd7f", "00008071"),
    "f16": ("ad7e", "0078"),
    "bf16": ("cd7f", "8071"),
}
INTEGER_PATTERNS = ("a5", "5a")
ONES = {"f64": "000000000000f03f", "f32": "0000803f", "f16": "003c", "bf16": "803f"}
RUNS, ATOMIC_RUNS = 2, 4  # of the original, to see its spread
NULLS = ("does nothing", "writes zeros", "writes ones", "copies an input")


@dataclass(frozen=True, slots=True)
class Baseline:
    """The original on one launch. Tuples have an entry a buffer, then one a global."""

    seconds: float  # of one launch, by the worker's clock
    traced_seconds: float  # the same with tracing, on the emulator
    replay: str  # how the program's own result came out again, in words
    spread: tuple[float, ...]  # largest absolute difference between two runs
    deterministic: bool
    written: tuple[int, ...]  # elements it writes (pure outputs) or changes
    poisoned: frozenset[int]  # pure outputs: written, never read
    max_ref: tuple[float, ...]  # largest finite magnitude among the written elements
    nulls: Mapping[str, bool]  # null candidate → would be accepted on this launch
    findings: tuple[Mapping[str, Any], ...] = ()  # the emulator's checkers on the original
    traffic: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)  # all that the emulator counted in this launch
    not_finite: int = 0  # written float elements that are NaN or infinite (hidden cases only)

    @property
    def outputs(self) -> tuple[int, ...]:
        return tuple(buffer for buffer, count in enumerate(self.written) if count)


_kept: WeakKeyDictionary[Device, dict[tuple[object, ...], Baseline]] = WeakKeyDictionary()


def of(case: Case, index: int) -> Baseline:
    """The baseline of launch `index`, made on first use. Raises WorkloadError when the capture does not replay."""
    if (found := known(case, index)) is None:
        found = _kept.setdefault(case.device, {})[_key(case, index)] = _make(case, index)
    return found


def known(case: Case, index: int) -> Baseline | None:
    """The baseline, where it has been made."""
    return _kept.get(case.device, {}).get(_key(case, index))


def _key(case: Case, index: int) -> tuple[object, ...]:
    return (
        sha256(case.original),
        case.original_binary.sha256,
        str(case.workload.root),
        case.launches[index],
        index,
        case.options.traffic,
    )


def _make(case: Case, index: int) -> Baseline:
    replayed = _replay(case, index)
    roles = _roles(case, index, replayed)
    return Baseline(
        seconds=replayed.seconds,
        replay=replayed.how,
        **roles,
    )


# ---------------------------------------------------------------- does it replay


@dataclass(frozen=True, slots=True)
class _Replayed:
    seconds: float
    how: str
    spread: tuple[float, ...]
    deterministic: bool
    changed: tuple[int, ...]  # bytes changed, a buffer


def dtypes(case: Case, index: int) -> list[ElementType]:
    """Element types of the buffers, then "bytes" for every global."""
    return [slot.dtype for slot in case.slots(index)] + ["bytes"] * len(case.launches[index].globals)


def _replay(case: Case, index: int) -> _Replayed:
    launch, kinds = case.launches[index], dtypes(case, index)
    everything = [{"buffer": number, "dtype": dtype, "brief": True} for number, dtype in enumerate(kinds)]
    repeats = ATOMIC_RUNS if case.uses_atomics else RUNS
    steps = [
        *case.load_steps(candidate=False),
        case.original_launch("first", index),
        *repeat_steps(case, index, repeats - 1, everything, {}),
        jobs.compare_after_step("first", launch, kinds),
        jobs.compare_step("first", "first", [{**entry, "expected": {"fill": "00"}} for entry in everything]),
        jobs.changed_step("first"),
    ]
    try:
        results = case.run(steps, deadline_s=case.options.deadline_s, tag=f"replaying {case.launch_name(index)}")
    except WorkerDied as error:
        raise WorkloadError(f"the original kernel cannot be replayed on {case.launch_name(index)}: {error}") from error
    need(results, "the original kernel cannot be replayed")
    rows = [
        row
        for step, result in zip(steps, results, strict=True)
        if step.get("b") == "again"
        for row in result["buffers"]
    ]
    spread = spread_of(case, index, rows)
    *_, after, zeros, changed = results
    beyond = next(result for result in results if "canaries" in result)["canaries"]
    how = _check_after(case, index, after["buffers"], spread, [row["max_abs"] for row in zeros["buffers"]], beyond)
    return _Replayed(
        seconds=min(result["seconds"] for result in results if "seconds" in result),
        how=how,
        spread=spread,
        deterministic=all(row["equal"] for row in rows),
        changed=tuple(row["bytes"] for row in changed["buffers"]),
    )


def repeat_steps(
    case: Case, index: int, count: int, entries: Sequence[Mapping[str, Any]], poison: Mapping[int, Any], seed: int = 1
) -> list[jobs.Step]:
    """`count` more runs of the original, each compared with the run `first`; on the emulator in other thread orders."""
    return [
        step
        for turn in range(count)
        for step in (
            {**case.original_launch("again", index, poison=poison), "seed": seed + turn},
            jobs.compare_step("first", "again", entries),
            jobs.free_step("again"),
        )
    ]


def spread_of(case: Case, index: int, rows: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """Largest absolute difference between runs of the original, a buffer. Raises WorkloadError where what differs is
    not a float: then there is no one right result."""
    spread = [0.0] * len(dtypes(case, index))
    for row in rows:
        if not row["equal"] and (row["dtype"] not in numeric.RULE or row["nan_mismatch"]):
            raise WorkloadError(
                f"two runs of the original kernel differ in {buffer_name(case, index, row['buffer'])}, which holds no "
                "plain floats: there is no one right result to compare with"
            )
        if row["dtype"] in numeric.RULE:
            spread[row["buffer"]] = max(spread[row["buffer"]], row["max_abs"])
    return tuple(spread)


def _check_after(
    case: Case,
    index: int,
    rows: Sequence[Mapping[str, Any]],
    spread: Sequence[float],
    magnitude: Sequence[float],
    beyond: Sequence[Mapping[str, Any]],
) -> str:
    """The program's own result against the replay's: bit-equal, within the spread, or, captured on another device,
    within ten times the numeric rule (two math libraries may differ in the last places). `beyond`: canaries that the
    replay damaged. Raises WorkloadError otherwise."""
    if not rows:
        return "the program's own result was not recorded"
    if all(row["equal"] for row in rows):
        return "bit-equal to the program's own result"
    here, there = case.device.info.name, case.workload.device
    elsewhere = not (here.startswith(there) or there.startswith(here))
    for row in rows:
        limit, rule = 2 * spread[row["buffer"]], numeric.allowed(row["dtype"], magnitude[row["buffer"]])
        if elsewhere:
            limit = max(limit, 10 * rule)
        elif limit or case.uses_atomics:  # a few runs show only part of what float atomics can do
            limit = max(limit, rule)
        if not numeric.accepts(row, limit):
            wrong = row["first"] or {}
            raise WorkloadError(
                f"the capture does not replay: {buffer_name(case, index, row['buffer'])}[{wrong.get('index')}] was "
                f"{numeric.show(wrong.get('expected'))} in the program and is {numeric.show(wrong.get('got'))} here "
                f"({row['differing']:,} elements differ); {_why_not(case, index, beyond)}"
            )
    return f"within {'ten times the numeric rule' if elsewhere else 'its own spread'} of the program's own result"


def _why_not(case: Case, index: int, beyond: Sequence[Mapping[str, Any]]) -> str:
    if beyond:
        canary = beyond[0]
        return (
            f"the kernel itself writes out of bounds ({canary['bytes']} bytes {canary['side']} "
            f"{buffer_name(case, index, canary['buffer'])}), in the program perhaps into other memory: mend that, "
            "then capture again"
        )
    return (
        "the kernel reads memory that was not recorded, or it was captured with another text or other flags: capture "
        "again"
    )


# ---------------------------------------------------------------- which buffers are pure outputs


def _roles(case: Case, index: int, replayed: _Replayed) -> dict[str, Any]:
    """Poison what may be a pure output and run the original again: where its results come out the same it never reads
    them.

    A float buffer that a kernel can write is tried even when its bytes did not change (the capture may hold the right
    answer already); an integer buffer only when they did, because a poisoned index can fault.
    """
    slots = case.slots(index)
    writable = [number for number, slot in enumerate(slots) if slot.writable]
    tried = [number for number in writable if slots[number].dtype in numeric.RULE or replayed.changed[number]]
    if not tried and not any(replayed.changed):
        tried = writable
    tried = [number for number in tried if case.launches[index].buffers[number].size >= SIZES[slots[number].dtype]]
    answer = _try(case, index, replayed, tried)
    # Where the answer is there already, a kernel that only moves data leaves poison of its input on that of its output.
    seen = answer is not None and all(answer["written"][number] for number in tried)
    if not seen and len(tried) > 1:
        alone = [number for number in tried if _try(case, index, replayed, [number]) is not None]
        answer = _try(case, index, replayed, alone)
    if answer is None:
        answer = _try(case, index, replayed, [])
    assert answer is not None  # without poison there is nothing to refuse
    return answer


def _try(case: Case, index: int, replayed: _Replayed, tried: Sequence[int]) -> dict[str, Any] | None:
    """Roles when `tried` are all pure outputs (or untouched); None when poisoning them changes a result."""
    kinds = dtypes(case, index)
    # Poison that reaches a result is a NaN there, whatever the limit; a few runs show only part of the own spread.
    limits = [8 * spread for spread in replayed.spread]
    poison = poison_of(case, index, tried, 0)
    outputs = [b for b in range(len(case.slots(index))) if b in tried or replayed.changed[b]]
    # Compared where the poison is gone or the plain run changed bytes: poison that went through a sum is poison again.
    masks = [
        {
            "buffer": b,
            "dtype": dtype,
            "brief": True,
            **({"mask": "either"} if b in tried else mask(b, tried, replayed.changed)),
        }
        for b, dtype in enumerate(kinds)
    ]
    nulls = [(kind, b, entry) for b in outputs for kind, entry in _null_entries(case, index, b, tried, replayed)]
    steps = [
        *case.load_steps(candidate=False),
        case.original_launch("plain", index),
        jobs.changed_step("plain", "changed"),
        case.original_launch("poisoned", index, poison=poison, trace=case.emulated and case.options.traffic),
        jobs.unpoisoned_step("poisoned", "written"),
        jobs.changed_step("plain", "either"),
        jobs.unpoisoned_step("poisoned", "either", join="or"),
        jobs.compare_step("plain", "poisoned", masks),
        jobs.compare_step("poisoned", "poisoned", [entry for _, _, entry in nulls]),
    ]
    try:
        results = case.run(steps, deadline_s=case.options.deadline_s, tag=f"poisoning {case.launch_name(index)}")
    except WorkerDied as error:
        if tried:  # a poisoned index faults: then it is no pure output
            return None
        raise WorkloadError(f"the original kernel crashed on {case.launch_name(index)} after running twice") from error
    _, _, _, launched, *_, compared, null = need(results, "the original kernel cannot be replayed")
    if tried and not all(numeric.accepts(row, limits[row["buffer"]]) for row in compared["buffers"]):
        return None
    own = spread_of(case, index, compared["buffers"])
    rows = [(kind, b, row) for (kind, b, _), row in zip(nulls, null["buffers"], strict=True)]
    written = [0] * len(kinds)
    max_ref = [0.0] * len(kinds)
    for kind, b, row in rows:
        if kind == "writes zeros":  # the distance from zero is the magnitude
            written[b], max_ref[b] = row["compared"], row["max_abs"]
    return {
        "spread": tuple(max(pair) for pair in zip(replayed.spread, own, strict=True)),
        "deterministic": replayed.deterministic and all(row["equal"] for row in compared["buffers"]),
        "traced_seconds": launched["seconds"],
        "written": tuple(written),
        "poisoned": frozenset(b for b in tried if written[b]),
        "max_ref": tuple(max_ref),
        "nulls": _accepted(case, index, rows, max_ref, [b for b in outputs if written[b]], replayed),
        "findings": tuple(launched.get("findings", ())),
        "traffic": totals(launched.get("traffic")),
        "counts": {k: float(v) for k, v in launched.get("traffic", {}).items() if isinstance(v, int | float)},
    }


def poison_of(case: Case, index: int, buffers: Iterable[int], pattern: int) -> dict[int, list[tuple[int, int, str]]]:
    """Poison the whole of each buffer with pattern 0 or 1 of its element type. Pattern 1 changes with a number that
    looks like any result and that a candidate cannot know: one that works only where it sees poison fails there."""
    all_, slots = case.launches[index].buffers, case.slots(index)
    return {b: [(0, all_[b].size, _pattern(case, all_[b], slots[b].dtype, pattern))] for b in buffers}


def _pattern(case: Case, buffer: Buffer, dtype: ElementType, pattern: int) -> str:
    known = PATTERNS.get(dtype, INTEGER_PATTERNS)[pattern]
    if pattern == 0:
        return known
    plain = plain_number(dtype, sha256(case.candidate.text))
    one_element = buffer.size < 2 * SIZES[dtype]
    return plain if one_element else known * (len(plain) // len(known)) + plain


def plain_number(dtype: ElementType, digest: str) -> str:
    """An element, in hex, made of the digits of a hash: a float has a magnitude from 0.5 to 2."""
    data = bytearray.fromhex(digest)[: SIZES[dtype]]
    if dtype in PATTERNS:
        sign = data[-1] & 0x80
        data[-1] = sign | (0x38 | data[-1] & 0x07 if dtype == "f16" else 0x3F)
        if dtype == "f64":
            data[-2] |= 0xE0
    return data.hex()


def mask(buffer: int, poisoned: Iterable[int], changed: Sequence[int]) -> dict[str, Any]:
    """The written elements of a buffer: where the poison is gone, else where the bytes changed, else all (an input)."""
    if buffer in poisoned:
        return {"mask": "written"}
    return {"mask": "changed"} if buffer < len(changed) and changed[buffer] else {}


# ---------------------------------------------------------------- null candidates


def _null_entries(
    case: Case, index: int, b: int, tried: Sequence[int], replayed: _Replayed
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Comparisons of one output buffer with what each null candidate would leave there."""
    launch, slots = case.launches[index], case.slots(index)
    size, dtype = launch.buffers[b].size, slots[b].dtype
    entry = {"buffer": b, "dtype": dtype, "brief": True, **mask(b, tried, replayed.changed)}
    integer = "01" + "00" * (SIZES[dtype] - 1)
    yield "writes zeros", {**entry, "expected": {"fill": "00"}}
    yield "writes ones", {**entry, "expected": {"fill": ONES.get(dtype, integer)}}
    if b not in tried:  # a poisoned buffer left alone keeps its poison and is always seen
        yield "does nothing", {**entry, "expected": {"blobs": list(launch.buffers[b].before)}}
    for other, slot in enumerate(slots):
        if other != b and slot.dtype == dtype and launch.buffers[other].size == size:
            yield "copies an input", {**entry, "expected": {"blobs": list(launch.buffers[other].before)}}


def _accepted(
    case: Case,
    index: int,
    rows: Sequence[tuple[str, int, Mapping[str, Any]]],
    max_ref: Sequence[float],
    outputs: Sequence[int],
    replayed: _Replayed,
) -> dict[str, bool]:
    """A null candidate is accepted on this launch when it is within the limit in every output."""

    def fits(kind: str, b: int) -> bool:
        limit = numeric.allowed(case.slots(index)[b].dtype, max_ref[b], case.tolerance(index, b), replayed.spread[b])
        return any(numeric.accepts(row, limit) for what, at, row in rows if what == kind and at == b)

    return {kind: all(fits(kind, b) for b in outputs) for kind in NULLS}


# ---------------------------------------------------------------- small helpers


def need(results: Results, what: str) -> Results:
    """The results when every step was done. Raises WorkloadError with the first that was not."""
    for result in results:
        if not result["ok"]:
            raise WorkloadError(f"{what}: {result['error']}")
    return results


def totals(traffic: Mapping[str, Any] | None) -> dict[str, float]:
    return {key: float(traffic[key]) for key in ("requests", "sectors", "bytes") if key in traffic} if traffic else {}


def buffer_name(case: Case, index: int, buffer: int) -> str:
    slots = case.slots(index)
    return slots[buffer].name if buffer < len(slots) else case.launches[index].globals[buffer - len(slots)][0]
