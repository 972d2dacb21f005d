"""From interleaved time samples to a ratio with an interval and a word.

The device times the original (A) and the candidate (B) in rounds, each round `A B B A` or `B A A B` at random. One
round gives one number, `ln min(A, A') − ln min(B, B')`: interference only ever adds time, so the smaller of two is the
cleaner one; drift is at most one sample's worth and the random order gives it either sign; a step in the clock spoils
one round only. The estimate is the trimmed mean over rounds (Tukey 1962; a quarter of them may be outliers on either
side), the interval its percentile bootstrap over rounds (Efron & Tibshirani 1993, ch. 13), seeded. Time and cycles
(time × the SM clock beside the sample) are treated alike, with the same resamples; a difference in time that is none
in cycles is the clock's doing and is not called one.

Times are microseconds; ratios are original ÷ candidate, so above one is faster; margins are relative (0.01 is 1 %).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cuda_agent.model import Timing

Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]
Label = Literal["FASTER", "SLOWER", "SAME", "AMBIGUOUS"]

TRIM = 0.25  # of the rounds, on each side
MARGIN = 0.01  # below one per cent nothing is called a difference, however tight the interval
MINIMUM_ROUNDS = 5
RESAMPLES = 2000
LEVEL = 0.95


def rounds_of(samples: Sequence[Mapping[str, Any]], field: str = "us") -> tuple[Floats, Floats]:
    """Log of the smaller `field` of each side in each round: two arrays, A's and B's, shape (rounds,).

    A round is four consecutive samples holding two of each side; a round with a missing or non-positive number, or
    with a sample that the host queued too late, is dropped whole.
    """
    a: list[float] = []
    b: list[float] = []
    for start in range(0, len(samples) - 3, 4):
        block = samples[start : start + 4]
        values: dict[str, list[float]] = {"a": [], "b": []}
        for sample in block:
            number = sample.get(field)
            if number is not None and not sample.get("late") and 0 < float(number) < math.inf:
                values[str(sample["side"])].append(math.log(float(number)))
        if len(values["a"]) == 2 and len(values["b"]) == 2:
            a.append(min(values["a"]))
            b.append(min(values["b"]))
    return np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)


def trimmed_mean(values: Floats) -> float:
    """Mean without the lowest and highest `TRIM` of the values."""
    cut = int(len(values) * TRIM)
    return float(np.sort(values)[cut : len(values) - cut].mean())


def bootstrap(
    log_ratios: Floats, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> tuple[float, float]:
    """Percentile interval of the trimmed mean of `log_ratios` (shape (rounds,)), in logs.

    With few rounds percentile intervals are too short: half-widths are stretched by sqrt(n / (n − 1)) and by Student's
    t over the normal quantile (approximated to 1 % for n ≥ 5 by 1 + 1.25 / (n − 1)).
    """
    count = len(log_ratios)
    generator = np.random.default_rng(seed)
    # Sorting small ranks is several times faster than sorting the values that they stand for.
    picks = generator.integers(0, count, size=(resamples, count), dtype=np.uint16)
    picks.sort(axis=1, kind="stable")
    cut = int(count * TRIM)
    means = np.sort(log_ratios)[picks[:, cut : count - cut]].mean(axis=1)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    centre = trimmed_mean(log_ratios)
    stretch = math.sqrt(count / (count - 1)) * (1 + 1.25 / (count - 1))
    return centre + (float(low) - centre) * stretch, centre + (float(high) - centre) * stretch


def label(interval: Interval, noise_floor: float = 0.0, cycles: Interval | None = None) -> Label:
    """The word for an interval of the ratio.

    FASTER needs its lower end above 1 + max(floor, 1 %), SLOWER the mirror image, SAME the whole interval within 1 %;
    anything else is AMBIGUOUS and claims nothing. Where there are cycles, their interval must lie on the same side
    of 1.
    """
    edge = 1 + max(noise_floor, MARGIN)
    low, high = interval
    if low > edge:
        return "FASTER" if cycles is None or cycles[0] > 1 else "AMBIGUOUS"
    if high < 1 / edge:
        return "SLOWER" if cycles is None or cycles[1] < 1 else "AMBIGUOUS"
    return "SAME" if low >= 1 / (1 + MARGIN) and high <= 1 + MARGIN else "AMBIGUOUS"


def noise_floor(samples: Sequence[Mapping[str, Any]], seed: int = 0) -> float:
    """Relative floor from an A/A run: how far from 1 the interval of a kernel against itself reaches.

    Raises ValueError with fewer than `MINIMUM_ROUNDS` whole rounds.
    """
    low, high = _interval(*rounds_of(samples), seed)
    return max(1 / low, high) - 1


def compare(
    samples: Sequence[Mapping[str, Any]],
    *,
    device: str = "",
    noise_floor: float = 0.0,
    seed: int = 0,
    warm: Mapping[str, float] | None = None,
) -> Timing:
    """Timing of one launch from the samples of one `time` step, in the order they were taken.

    `samples`: `{side: "a" | "b", us, cycles?, clock_mhz?, batch}`; `warm`: `{a_us, b_us}` of the same launch with a
    warm L2.
    Raises ValueError with fewer than `MINIMUM_ROUNDS` whole rounds: nothing can be said then.
    """
    a, b = rounds_of(samples)
    interval = _interval(a, b, seed)
    cycles_a, cycles_b = rounds_of(samples, "cycles")
    known = len(cycles_a) >= MINIMUM_ROUNDS
    cycles = _interval(cycles_a, cycles_b, seed) if known else None
    return Timing(
        ratio=math.exp(trimmed_mean(a - b)),
        ci=interval,
        original_us=math.exp(trimmed_mean(a)),
        candidate_us=math.exp(trimmed_mean(b)),
        device=device,
        label=label(interval, noise_floor, cycles),
        noise_floor=noise_floor,
        warm_ratio=warm["a_us"] / warm["b_us"] if warm and warm.get("b_us") else None,
        cycles_ratio=math.exp(trimmed_mean(cycles_a - cycles_b)) if known else None,
        cycles_ci=cycles,
        samples=2 * (len(a) + len(b)),
    )


def combine(timings: Sequence[tuple[str, Timing]]) -> Timing:
    """One headline for several launches: geometric mean of the ratios, times summed, label of the combined interval.

    The log ratios of different launches are independent: half-widths add in quadrature. Raises ValueError on none.
    """
    if not timings:
        raise ValueError("no launch was timed")
    parts = [timing for _, timing in timings]
    ratio, interval = _together([(part.ratio, part.ci) for part in parts])
    cycles = [(p.cycles_ratio, p.cycles_ci) for p in parts if p.cycles_ratio is not None and p.cycles_ci is not None]
    cycles_ratio, cycles_ci = _together(cycles) if len(cycles) == len(parts) else (None, None)
    warm = [part.warm_ratio for part in parts if part.warm_ratio is not None]
    floor = max(part.noise_floor for part in parts)
    return Timing(
        ratio=ratio,
        ci=interval,
        original_us=sum(part.original_us for part in parts),
        candidate_us=sum(part.candidate_us for part in parts),
        device=parts[0].device,
        label=label(interval, floor, cycles_ci),
        noise_floor=floor,
        warm_ratio=math.exp(sum(map(math.log, warm)) / len(warm)) if len(warm) == len(parts) else None,
        cycles_ratio=cycles_ratio,
        cycles_ci=cycles_ci,
        samples=sum(part.samples for part in parts),
        per_launch=tuple((shape, part.ratio, part.ci[0], part.ci[1]) for shape, part in timings),
    )


def _together(parts: Sequence[tuple[float, Interval]]) -> tuple[float, Interval]:
    """Geometric mean of ratios with the interval of independent errors."""
    count = len(parts)
    ratio = math.exp(sum(math.log(one) for one, _ in parts) / count)
    down = math.sqrt(sum(math.log(one / low) ** 2 for one, (low, _) in parts)) / count
    up = math.sqrt(sum(math.log(high / one) ** 2 for one, (_, high) in parts)) / count
    return ratio, (ratio * math.exp(-down), ratio * math.exp(up))


def _interval(a: Floats, b: Floats, seed: int) -> Interval:
    """Of the ratio (not its log). Raises ValueError with too few rounds."""
    if len(a) < MINIMUM_ROUNDS:
        raise ValueError(f"{len(a)} whole rounds were timed, at least {MINIMUM_ROUNDS} are needed")
    low, high = bootstrap(a - b, seed)
    return math.exp(low), math.exp(high)
