"""From interleaved time samples to a ratio with an interval and a word.

The device times the original (A) and the candidate (B) in rounds, each round `A B B A` or `B A A B` at random. One
round gives one number, `ln min(A, A') − ln min(B, B')`: interference only ever adds time, so the smaller of two is the
cleaner one; drift is at most one sample's worth and the random order gives it either sign; a step in the clock spoils
one round only. The estimate is the trimmed mean over rounds (Tukey 1962; a quarter of them may be outliers on either
side), the interval its percentile bootstrap over rounds (Efron & Tibshirani 1993, ch. 13), seeded.

Times are microseconds; ratios are original ÷ candidate, so above one is faster; margins are relative (0.01 is 1 %).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..model import Timing

Floats = npt.NDArray[np.float64]
Label = Literal["FASTER", "SLOWER", "SAME", "AMBIGUOUS"]

TRIM = 0.25  # of the rounds, on each side
MARGIN = 0.01  # below one per cent nothing is called a difference, however tight the interval
MINIMUM_ROUNDS = 5
RESAMPLES = 2000
LEVEL = 0.95


def rounds_of(samples: Sequence[Mapping[str, Any]], field: str = "us") -> tuple[Floats, Floats]:
    """Log of the smaller `field` of each side in each round: two arrays, A's and B's, shape (rounds,).

    A round is four consecutive samples holding two of each side; a round with a missing or non-positive number is
    dropped whole.
    """
    a: list[float] = []
    b: list[float] = []
    for start in range(0, len(samples) - 3, 4):
        block = samples[start : start + 4]
        values: dict[str, list[float]] = {"a": [], "b": []}
        for sample in block:
            number = sample.get(field)
            if number is not None and float(number) > 0 and math.isfinite(float(number)):
                values[str(sample["side"])].append(math.log(float(number)))
        if len(values["a"]) == 2 and len(values["b"]) == 2:
            a.append(min(values["a"]))
            b.append(min(values["b"]))
    return np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)


def trimmed_mean(values: Floats, axis: int = -1) -> Floats:
    """Mean without the lowest and highest `TRIM` of the values along `axis`."""
    ordered = np.sort(values, axis=axis)
    count = ordered.shape[axis]
    cut = int(count * TRIM)
    kept = np.take(ordered, range(cut, count - cut), axis=axis)
    return np.asarray(kept.mean(axis=axis), dtype=np.float64)


def bootstrap(
    log_ratios: Floats, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> tuple[float, float]:
    """Percentile interval of the trimmed mean of `log_ratios` (shape (rounds,)), in logs.

    With few rounds percentile intervals are too short: half-widths are stretched by sqrt(n / (n − 1)) and by Student's
    t over the normal quantile (approximated to 1 % for n ≥ 5 by 1 + 1.25 / (n − 1)).
    """
    count = len(log_ratios)
    generator = np.random.default_rng(seed)
    picks = generator.integers(0, count, size=(resamples, count))
    means = trimmed_mean(log_ratios[picks], axis=1)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    centre = float(trimmed_mean(log_ratios))
    stretch = math.sqrt(count / (count - 1)) * (1 + 1.25 / (count - 1))
    return centre + (float(low) - centre) * stretch, centre + (float(high) - centre) * stretch


def label(interval: tuple[float, float], noise_floor: float = 0.0) -> Label:
    """The word for an interval of the ratio.

    FASTER needs its lower end above 1 + max(floor, 1 %), SLOWER the mirror image, SAME the whole interval between the
    two; what straddles a border is AMBIGUOUS and claims nothing.
    """
    edge = 1 + max(noise_floor, MARGIN)
    low, high = interval
    if low > edge:
        return "FASTER"
    if high < 1 / edge:
        return "SLOWER"
    if low >= 1 / edge and high <= edge:
        return "SAME"
    return "AMBIGUOUS"


def noise_floor(samples: Sequence[Mapping[str, Any]], seed: int = 0) -> float:
    """Relative floor from an A/A run: how far from 1 the interval of a kernel against itself reaches.

    Raises ValueError with fewer than `MINIMUM_ROUNDS` whole rounds.
    """
    low, high = _interval(*rounds_of(samples), seed)
    return math.exp(max(abs(low), abs(high))) - 1


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
    low, high = _interval(a, b, seed)
    interval = (math.exp(low), math.exp(high))
    cycles_a, cycles_b = rounds_of(samples, "cycles")
    warm_ratio = warm["a_us"] / warm["b_us"] if warm and warm.get("b_us") else None
    return Timing(
        ratio=math.exp(float(trimmed_mean(a - b))),
        ci=interval,
        original_us=math.exp(float(trimmed_mean(a))),
        candidate_us=math.exp(float(trimmed_mean(b))),
        device=device,
        label=label(interval, noise_floor),
        noise_floor=noise_floor,
        warm_ratio=warm_ratio,
        cycles_ratio=math.exp(float(trimmed_mean(cycles_a - cycles_b))) if len(cycles_a) >= MINIMUM_ROUNDS else None,
        samples=2 * (len(a) + len(b)),
    )


def combine(timings: Sequence[tuple[str, Timing]]) -> Timing:
    """One headline for several launches: geometric mean of the ratios, times summed, label of the combined interval.

    The log ratios of different launches are independent: half-widths add in quadrature. Raises ValueError on none.
    """
    if not timings:
        raise ValueError("no launch was timed")
    parts = [timing for _, timing in timings]
    count = len(parts)
    ratio = math.exp(sum(math.log(part.ratio) for part in parts) / count)
    down = math.sqrt(sum(math.log(part.ratio / part.ci[0]) ** 2 for part in parts)) / count
    up = math.sqrt(sum(math.log(part.ci[1] / part.ratio) ** 2 for part in parts)) / count
    interval = (ratio * math.exp(-down), ratio * math.exp(up))
    floor = max(part.noise_floor for part in parts)
    return Timing(
        ratio=ratio,
        ci=interval,
        original_us=sum(part.original_us for part in parts),
        candidate_us=sum(part.candidate_us for part in parts),
        device=parts[0].device,
        label=label(interval, floor),
        noise_floor=floor,
        warm_ratio=_geometric([part.warm_ratio for part in parts]),
        cycles_ratio=_geometric([part.cycles_ratio for part in parts]),
        samples=sum(part.samples for part in parts),
        per_launch=tuple((shape, part.ratio, part.ci[0], part.ci[1]) for shape, part in timings),
    )


def _interval(a: Floats, b: Floats, seed: int) -> tuple[float, float]:
    if len(a) < MINIMUM_ROUNDS:
        raise ValueError(f"{len(a)} whole rounds were timed, at least {MINIMUM_ROUNDS} are needed")
    return bootstrap(a - b, seed)


def _geometric(ratios: Sequence[float | None]) -> float | None:
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < len(ratios):
        return None
    return math.exp(sum(math.log(ratio) for ratio in known) / len(known))
