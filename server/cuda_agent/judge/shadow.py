"""A float64 shadow of the original kernel: the arbiter between original and candidate where their float bits differ.

The original's text in float64 (`widen.py`, `shadow_kernel.py`) is compiled like the original and launched on the same
inputs as float64. Its result counts as exact; how far the original is from it is the error that the person already
accepts. That error is the largest over the recorded inputs and over copies of them with last bits changed, because one
sum may be exact by luck. Nothing of this is made before a candidate differs in bits from the original.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from cuda_agent.device import jobs
from cuda_agent.errors import DeviceError, WorkerDied
from cuda_agent.judge import numeric
from cuda_agent.judge.baseline import dtypes, mask, poison_of
from cuda_agent.judge.digest import sha256
from cuda_agent.judge.shadow_kernel import SHADOW, NoShadow, binary, changed_inits, launch_step, remembered

if TYPE_CHECKING:
    from cuda_agent.device import Device
    from cuda_agent.judge.case import Case, Results

__all__ = ["NoShadow", "arguable", "compare", "unusual"]

SAMPLES = 3  # input sets with last bits changed, beside the recorded one
OTHER = 1000  # between the seeds of inputs changed alike
SLOW_S = 2.0  # an original that takes longer is sampled on the recorded inputs only


@dataclass(frozen=True, slots=True)
class _Own:
    """The original against its shadow on one launch, by buffer."""

    error: Mapping[int, numeric.Error]
    magnitude: Mapping[int, float]


_kept: WeakKeyDictionary[Device, dict[tuple[object, ...], _Own | NoShadow]] = WeakKeyDictionary()


def unusual(case: Case, index: int, buffer: int, max_abs: float) -> bool:
    """Whether a difference from the original is larger than any shadow could allow: then none is made."""
    base = case.baseline(index)
    own = max(numeric.PLAUSIBLE * base.max_ref[buffer], base.spread[buffer])
    return max_abs > (numeric.FACTOR + 1) * own


def arguable(case: Case, index: int, row: Mapping[str, Any]) -> bool:
    """Whether a shadow may decide on a comparison: float32 values differ, no tolerance of the person's holds for
    them, and no precision was given up by their word."""
    return (
        row["max_abs"] > 0
        and row["dtype"] == "f32"
        and not row["nan_mismatch"]
        and case.tolerance(index, row["buffer"]) is None
        and not case.options.allow
    )


def compare(
    case: Case, index: int, launched: jobs.Step, buffers: Sequence[int], *, change: Mapping[str, Any] | None = None
) -> dict[int, numeric.Shadowed]:
    """Original and candidate against the shadow, in float32 buffers of launch `index`.

    `launched` is the candidate's launch step; with `change` (see `jobs.values_init`) its inputs were changed so, and
    the original's own error is measured on such inputs. Raises NoShadow; WorkerDied where the candidate died."""
    steps = [
        *case.load_steps(),
        jobs.load_step(binary(case), SHADOW),
        {**launched, "run": "x"},
        *_exact(case, index, change or {}),
        jobs.error_step(SHADOW, ["x"], [entry for entry in _entries(case, index) if entry["buffer"] in buffers]),
    ]
    own = _own_error(case, index, change or {})
    rows = _run(case, index, steps, candidate=True)[-1]["buffers"]
    spread = case.baseline(index).spread
    return {
        row["buffer"]: numeric.Shadowed(
            own.error[row["buffer"]], numeric.Error.of(row), own.magnitude[row["buffer"]], spread[row["buffer"]]
        )
        for row in rows
    }


def _own_error(case: Case, index: int, change: Mapping[str, Any]) -> _Own:
    known = _kept.setdefault(case.device, {})
    original = (sha256(case.original), case.original_binary.sha256, str(case.workload.root))
    key = (*original, case.launches[index], index, *sorted(change.items()))
    return remembered(known, key, lambda: _measure(case, index, change))


def _measure(case: Case, index: int, change: Mapping[str, Any]) -> _Own:
    """The original's own error on the recorded inputs and on some with other last bits; of changed inputs on several
    changed alike."""
    samples = range(1, 1 + (SAMPLES if case.baseline(index).seconds < SLOW_S else 0))
    alike = [{**change, "seed": change["seed"] + OTHER * n} for n in samples] if change else []
    steps = [*case.load_steps(candidate=False), jobs.load_step(binary(case), SHADOW)]
    for made in (change, *(alike or ({"change": "last-bit", "seed": n} for n in samples))):
        steps += [
            *_exact(case, index, made),
            jobs.error_step(SHADOW, ["o"], _entries(case, index)),
            jobs.free_step("o"),
            jobs.free_step(SHADOW),
        ]
    results = _run(case, index, steps, candidate=False)
    return _own_of([result for step, result in zip(steps, results, strict=True) if step["op"] == "error"])


def _own_of(results: Results) -> _Own:
    """The largest errors over several inputs. Raises NoShadow when the shadow is not one of this kernel."""
    error: dict[int, numeric.Error] = {}
    magnitude: dict[int, float] = {}
    for result in results:
        for row in result["buffers"]:
            b, here = row["buffer"], numeric.Error.of(row)
            if row["nan_mismatch"]:
                raise NoShadow("in float64 other results are finite")
            if row["max_abs"] > numeric.PLAUSIBLE * row["magnitude"]:
                raise NoShadow(f"the original is {row['max_abs']:.3g} away from it, too far to tell right from wrong")
            error[b] = here.join(error.get(b, here))
            magnitude.setdefault(b, row["magnitude"])
    return _Own(error, magnitude)


def _exact(case: Case, index: int, change: Mapping[str, Any]) -> list[jobs.Step]:
    """The original and its shadow on the recorded inputs, or both on the same changed ones."""
    poison = poison_of(case, index, case.baseline(index).poisoned, 0)
    inits = changed_inits(case, index, change)
    return [
        case.original_launch("o", index, poison=poison, inits=inits),
        jobs.changed_step("o", "changed"),
        jobs.unpoisoned_step("o", "written"),
        launch_step(case, index, change),
    ]


def _entries(case: Case, index: int) -> list[dict[str, Any]]:
    """The float32 elements that the original writes."""
    base = case.baseline(index)
    return [
        {"buffer": b, "dtype": dtype, **mask(b, base.poisoned, base.written)}
        for b, dtype in enumerate(dtypes(case, index))
        if dtype == "f32" and base.written[b]
    ]


def _run(case: Case, index: int, steps: list[jobs.Step], candidate: bool) -> Results:
    """The job's results. Raises NoShadow for what the shadow did or the machine has no room for."""
    shadow = binary(case)
    launches = sum(step["op"] == "launch" for step in steps)
    tag = f"the float64 shadow on {case.launch_name(index)}"
    try:
        results = case.run(
            steps, deadline_s=case.deadline(index, 2 * launches), tag=tag, candidate=candidate, more=(shadow,)
        )
    except WorkerDied as error:
        if error.module == shadow.sha256:
            raise NoShadow(f"it did not end well: {error}") from error
        raise
    except DeviceError as error:  # out of memory, or nothing this device can run
        raise NoShadow(str(error)) from error
    for result in results:
        if not result["ok"]:
            raise NoShadow(str(result["error"]))
    return results
