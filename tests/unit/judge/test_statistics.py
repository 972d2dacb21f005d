"""The statistics against a simulated device: what they call faster must be faster, whatever the clock does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from cuda_agent.judge import statistics
from simulated import WEATHERS, Weather, samples

ALL = "all of it"
# A thousand runs of the weather that holds everything, a hundred of each alone; tests/bench/timing_statistics.py makes
# a thousand of all.
RUNS = {ALL: 1000}


@cache
def labels(weather: Weather, a_us: float, b_us: float, runs: int = 100, batch: int = 1) -> Counter[str]:
    """The words for `runs` comparisons, each with a noise floor of its own, as in a judgement: 30 rounds and 20."""
    found: Counter[str] = Counter()
    for seed in range(runs):
        floor = statistics.noise_floor(samples(weather, a_us, a_us, 20, seed + 10_000_000, batch))
        taken = samples(weather, a_us, b_us, 30, seed, batch)
        found[statistics.compare(taken, noise_floor=floor, seed=seed).label] += 1
    return found


@pytest.mark.parametrize("name", WEATHERS)
def test_the_same_kernel_is_not_called_faster(name: str) -> None:
    runs = RUNS.get(name, 100)
    found = labels(WEATHERS[name], 100.0, 100.0, runs)
    assert found["FASTER"] <= runs * 0.01
    assert found["SLOWER"] <= runs * 0.01


@pytest.mark.parametrize("name", [name for name in WEATHERS if name != "very noisy"])
def test_three_per_cent_is_found(name: str) -> None:
    runs = RUNS.get(name, 100)
    assert labels(WEATHERS[name], 103.0, 100.0, runs)["FASTER"] >= runs * 0.95
    assert labels(WEATHERS[name], 100.0, 103.0)["SLOWER"] >= 95


@pytest.mark.parametrize("us", [0.9, 4.6, 12.0])
def test_batches_and_coarse_ticks_do_not_invent_or_hide_a_difference(us: float) -> None:
    batch = round(20 / us)
    weather = WEATHERS[ALL]
    found = labels(weather, us, us, batch=batch)
    assert found["FASTER"] + found["SLOWER"] <= 1
    assert labels(weather, us * 1.03, us, batch=batch)["FASTER"] >= 95


def test_buffer_addresses_and_places_in_the_round_favour_no_side() -> None:
    """Each side is timed once on each buffer set of a round, and as often in the middle of a round as at its ends."""
    rough = Weather(address=0.10, place=(0.02, 0.0, 0.0, 0.0), noise=0.001)
    ratios = [statistics.compare(samples(rough, 100, 100, 30, seed)).ratio for seed in range(100)]
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.0005)
    assert max(ratios) < 1.005
    assert min(ratios) > 0.995


def test_a_difference_that_only_the_clock_made_is_not_called_one() -> None:
    taken = samples(Weather(), 101.6, 100.0, 30, 1)
    assert statistics.compare(taken).label == "FASTER"
    for sample in taken:  # the same cycles at 1.6 % fewer MHz
        sample["cycles"] = sample["us"] * (1980.0 / 1.016 if sample["side"] == "a" else 1980.0)
    timing = statistics.compare(taken)
    assert timing.cycles_ci is not None
    assert timing.cycles_ci[0] < 1 < timing.cycles_ci[1]
    assert timing.label == "AMBIGUOUS"
    assert statistics.label((0.97, 0.98), cycles=(0.99, 1.01)) == "AMBIGUOUS"
    assert statistics.label((0.97, 0.98), cycles=(0.96, 0.99)) == "SLOWER"


def test_the_interval_in_cycles_sees_through_clock_steps() -> None:
    stormy = replace(WEATHERS["quiet"], clock_steps=0.2)
    widths = []
    for seed in range(20):
        timing = statistics.compare(samples(stormy, 110.0, 100.0, 30, seed))
        assert timing.cycles_ci is not None
        widths.append((timing.ci[1] - timing.ci[0], timing.cycles_ci[1] - timing.cycles_ci[0]))
    assert np.mean([cycles for _, cycles in widths]) < 0.7 * np.mean([time for time, _ in widths])


def test_a_quiet_tie_is_called_the_same() -> None:
    assert labels(WEATHERS["quiet"], 100.0, 100.0)["SAME"] >= 95


def test_half_a_per_cent_is_below_the_margin() -> None:
    assert "FASTER" not in labels(WEATHERS["quiet"], 100.5, 100.0)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    weather = Weather(noise=0.02)
    held = 0
    for seed in range(200):
        low, high = statistics.compare(samples(weather, 120.0, 100.0, 30, seed), seed=seed).ci
        held += low <= 1.2 <= high
    assert held >= 200 * 0.91


def test_numbers_of_one_comparison() -> None:
    taken = samples(Weather(noise=0.001), 200.0, 100.0, 30, 1)
    timing = statistics.compare(taken, device="simulated", warm={"a_us": 150.0, "b_us": 50.0})
    assert timing.ratio == pytest.approx(2.0, rel=0.005)
    assert timing.cycles_ratio == pytest.approx(2.0, rel=0.005)
    assert timing.original_us == pytest.approx(200, rel=0.005)
    assert timing.candidate_us == pytest.approx(100, rel=0.005)
    assert timing.warm_ratio == 3.0
    assert timing.ci[0] < timing.ratio < timing.ci[1]
    assert timing.samples == 120
    assert timing.label == "FASTER"
    assert timing == statistics.compare(taken, device="simulated", warm={"a_us": 150.0, "b_us": 50.0})


def test_too_few_rounds_say_nothing() -> None:
    with pytest.raises(ValueError, match="at least 5"):
        statistics.compare(samples(Weather(), 10, 10, 4, 0))


@pytest.mark.parametrize("hole", [{"us": 0.0}, {"us": None}, {"us": float("nan")}, {"late": True}])
def test_a_round_with_a_hole_is_dropped_whole(hole: dict[str, object]) -> None:
    taken = samples(Weather(), 10, 10, 6, 0)
    taken[5] |= hole
    a, b = statistics.rounds_of(taken)
    assert len(a) == len(b) == 5


def test_a_floor_above_the_gain_hides_it() -> None:
    assert statistics.label((1.02, 1.04)) == "FASTER"
    assert statistics.label((1.02, 1.04), noise_floor=0.03) == "AMBIGUOUS"
    assert statistics.label((0.90, 0.95)) == "SLOWER"
    assert statistics.label((0.98, 1.03)) == "AMBIGUOUS"
    assert statistics.label((0.995, 1.005)) == "SAME"
    assert statistics.label((1.02, 1.025), noise_floor=0.05) == "AMBIGUOUS"  # a noisy GPU cannot say "the same" either


def test_several_launches_are_summed_up_by_the_geometric_mean() -> None:
    quiet = Weather(noise=0.001)
    first = statistics.compare(samples(quiet, 400, 100, 20, 1))
    second = statistics.compare(samples(quiet, 100, 100, 20, 2))
    both = statistics.combine([("a", first), ("b", second)])
    assert both.ratio == pytest.approx(2.0, rel=0.01)
    assert both.per_launch[1][0] == "b"
    assert both.ci[0] < both.ratio < both.ci[1]
    assert both.original_us == pytest.approx(500, rel=0.01)
    with pytest.raises(ValueError, match="no launch"):
        statistics.combine([])
