"""Time original and candidate on every timed launch, and the original against itself for the noise floor (a search
takes the day's floor instead, once it is known).

Both are loaded in one worker; the worker draws the order, restores and cools the buffers, and compares the outputs of
random timed samples with the original's (`device/timing.py`). What the numbers mean is decided here and in
`statistics.py`.
"""

from __future__ import annotations

import statistics as middle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from cuda_agent.device import jobs
from cuda_agent.errors import DeadlineExceeded, DeviceError, WorkerDied
from cuda_agent.judge import floor as floors
from cuda_agent.judge import numeric, statistics
from cuda_agent.judge.baseline import mask, need, poison_of
from cuda_agent.judge.case import ORIGINAL
from cuda_agent.model import Launch, Timing

if TYPE_CHECKING:
    from cuda_agent.device import Device
    from cuda_agent.judge.case import Case

FLOOR_ROUNDS = 20
# After so many rounds a search need not know by how much more than a tenth a candidate is slower, nor a ratio better
# than to half a per cent, if no two rounds are further apart. (Fewer whole rounds give no interval.)
GIVE_UP = {"rounds": 6, "below": 0.9, "spread": 0.005}
CLOCK = 0.02  # relative difference of two SM clocks that is still the same clock
# Microseconds of an original's launch in its A/A run: what the worker's clock says of one launch is mostly the host.
_lengths: WeakKeyDictionary[Device, dict[tuple[str, Launch], float]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class LaunchTime:
    index: int
    shape: str
    timing: Timing
    raw: Mapping[str, Any]  # the `time` step's result, samples included
    clock_mhz: tuple[float, float] | None  # median SM clock during A's and B's samples
    unsteady: int = 0  # rounds during which the SM clock changed
    floors: Mapping[str, float] = field(default_factory=dict)  # "own": this kernel's A/A run, "day", "day_runs"

    @property
    def limits(self) -> dict[str, int]:
        """Why the clocks were held down, and in how many rounds."""
        return dict(self.raw.get("limits") or {})


@dataclass(frozen=True, slots=True)
class Times:
    """One measurement of all timed launches in one worker process."""

    seed: int
    launches: tuple[LaunchTime, ...]
    fault: str | None = None  # the candidate crashed or never ended while it was launched again and again

    @property
    def total(self) -> Timing:
        return statistics.combine([(launch.shape, launch.timing) for launch in self.launches])


def measure(case: Case, seed: int | None = None) -> Times:
    """Measure on the device as it is now. Raises DeviceError when the device cannot measure or time ran out."""
    seed = case.options.seed if seed is None else seed
    found: list[LaunchTime] = []
    for index in range(min(len(case.launches), case.options.max_timed)):
        try:
            found.append(_measure(case, index, seed))
        except DeadlineExceeded as error:
            raise DeviceError(f"timing {case.launch_name(index)} did not end: {error}") from error
        except WorkerDied as error:
            if error.module != case.candidate_binary.sha256:
                raise
            return Times(seed, tuple(found), f"launched again and again, the candidate crashed: {error}")
        case.ran["timed"].add(case.candidate_binary.sha256)
    return Times(seed, tuple(found))


def _measure(case: Case, index: int, seed: int) -> LaunchTime:
    base, options = case.baseline(index), case.options
    poison = poison_of(case, index, base.poisoned, 0)
    launch = case.launches[index]
    original = case.kernel_in(case.original_binary, launch)
    a = jobs.launch_fields(ORIGINAL, launch, kernel=original, poison=poison)
    b = jobs.launch_fields("candidate", launch, poison=poison, **case.candidate_fields(index))
    # Long kernels still need enough rounds for an interval: five of four samples, and the candidate may be slower.
    budget = max(options.timing_budget_s, 60 * base.seconds)
    common: dict[str, Any] = {"min_us": options.min_us, "cold": True, "budget_s": budget, "warm": not options.brief}
    give_up = GIVE_UP if options.brief else None
    lengths = _lengths.setdefault(case.device, {})
    name = (case.original_binary.sha256, launch)
    floor = _day(case, lengths[name]) if options.floor_of_day and name in lengths else {}
    steps = [
        *case.load_steps(),
        case.original_launch("o", index, poison=poison),
        jobs.changed_step("o", "changed"),
        jobs.unpoisoned_step("o", "written"),
        jobs.time_step(a, b, rounds=options.rounds, seed=seed, check=_check(case, index), give_up=give_up, **common),
    ]
    if not floor:
        itself = jobs.time_step(a, a, rounds=min(FLOOR_ROUNDS, options.rounds), seed=seed + 7919, **common)
        steps.insert(-1, itself)
    tag = f"timing {case.launch_name(index)}"
    results = case.run(steps, deadline_s=options.deadline_s + 4 * budget, tag=tag, candidate=True)
    *_, before, raw = need(results, f"{tag} failed")
    try:
        if not floor:
            own = statistics.noise_floor(before["samples"], seed)
            us = lengths[name] = middle.median(sample["us"] for sample in before["samples"])
            floors.remember(case.device.info, us, own)
            floor = {"own": own, **_day(case, us)}
        timing = statistics.compare(
            raw["samples"],
            device=case.device.info.name,
            noise_floor=max(floor.get("own", 0.0), floor.get("day", 0.0)),
            seed=seed,
            warm=raw.get("warm"),
        )
    except ValueError as error:
        raise DeviceError(f"{tag}: {error}; give it more time (timing budget) or a smaller launch") from error
    rest = {key: value for key, value in raw.items() if key not in ("order", "ok")}
    clocks, unsteady = _clocks(raw["samples"]), _unsteady(raw["samples"])
    return LaunchTime(index, case.launch_name(index), timing, rest, clocks, unsteady, floor)


def _day(case: Case, us: float) -> dict[str, float]:
    """Today's floor on this GPU for launches about as long."""
    known = floors.of_day(case.device.info, us)
    return {"day": known[0], "day_runs": known[1]} if known is not None else {}


def _check(case: Case, index: int) -> dict[str, Any]:
    """Outputs of timed samples are held against the original's run under the numeric rule."""
    base = case.baseline(index)
    slots = case.slots(index)
    entries = []
    for b in base.outputs:
        if b >= len(slots):
            continue
        entry = {"buffer": b, "dtype": slots[b].dtype, **mask(b, base.poisoned, base.written)}
        limit = numeric.allowed(slots[b].dtype, base.max_ref[b], case.tolerance(index, b), base.spread[b])
        limit = max(limit, case.outcome(index).difference_allowed(b))
        entries.append({**entry, "tolerance": {"abs": limit}} if limit else entry)
    return {"run": "o", "buffers": entries}


def _clocks(samples: list[dict[str, Any]]) -> tuple[float, float] | None:
    sides = {side: [s["clock_mhz"] for s in samples if s["side"] == side and s.get("clock_mhz")] for side in "ab"}
    if not sides["a"] or not sides["b"]:
        return None
    return middle.median(sides["a"]), middle.median(sides["b"])


def _unsteady(samples: list[dict[str, Any]]) -> int:
    """Rounds in which one side's samples were not all at one SM clock: the GPU was throttled, or woke up. (That the two
    sides' clocks differ is told from their medians.)"""
    clocks: dict[tuple[int, str], list[float]] = {}
    for sample in samples:
        if sample.get("clock_mhz"):
            clocks.setdefault((sample["round"], sample["side"]), []).append(sample["clock_mhz"])
    return len({round_ for (round_, _), seen in clocks.items() if max(seen) > min(seen) * (1 + CLOCK)})
