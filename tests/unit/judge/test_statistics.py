"""The statistics against a simulated device: what they call faster must be faster, whatever the clock does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cuda_agent.judge import statistics


@dataclass
class SimulatedDevice:
    """A GPU whose true times are known. Times in microseconds."""

    noise: float = 0.005  # log-normal sigma
    drift_per_minute: float = 0.0
    clock_steps: int = 0  # number of times the SM clock changes by ±7 %
    outliers: float = 0.0  # share of samples hit by something 1.2 to 5 times slower
    tick_us: float = 0.032
    pause_s: float = 0.05  # wall time between samples

    def samples(self, a_us: float, b_us: float, rounds: int, seed: int) -> list[dict[str, Any]]:
        random = np.random.default_rng(seed)
        taken: list[dict[str, Any]] = []
        total = rounds * 4
        steps = sorted(random.integers(0, total, self.clock_steps))
        clock = 1.0
        for index in range(rounds):
            order = "abba" if random.random() < 0.5 else "baab"
            for side in order:
                moment = len(taken)
                while steps and steps[0] <= moment:
                    steps.pop(0)
                    clock *= float(random.choice([0.93, 1.07]))
                drift = 1 + self.drift_per_minute * moment * self.pause_s / 60
                true = (a_us if side == "a" else b_us) * drift / clock
                seen = true * float(np.exp(random.normal(0, self.noise)))
                if random.random() < self.outliers:
                    seen *= float(random.uniform(1.2, 5))
                seen = max(self.tick_us, round(seen / self.tick_us) * self.tick_us)
                taken.append(
                    {"side": side, "us": seen, "cycles": seen * 1980 * clock, "clock_mhz": 1980 * clock, "batch": 1}
                )
            assert len(taken) == 4 * (index + 1)
        return taken


DEVICES = {
    "quiet": SimulatedDevice(),
    "drift": SimulatedDevice(drift_per_minute=0.05),
    "steps": SimulatedDevice(clock_steps=3),
    "outliers": SimulatedDevice(outliers=0.05),
    "all of it": SimulatedDevice(noise=0.01, drift_per_minute=0.05, clock_steps=2, outliers=0.05),
    "noisy": SimulatedDevice(noise=0.05),
}
RUNS = int(os.environ.get("CUDA_AGENT_STATISTICS_RUNS", "100"))  # 1000 is what docs/gates.md promises


def labels(device: SimulatedDevice, a_us: float, b_us: float, rounds: int = 40) -> list[str]:
    found = []
    for seed in range(RUNS):
        samples = device.samples(a_us, b_us, rounds, seed)
        floor = statistics.noise_floor(device.samples(a_us, a_us, 20, seed + 10_000))
        found.append(statistics.compare(samples, noise_floor=floor, seed=seed).label)
    return found


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("us", [2150.0, 33.0])
def test_the_same_kernel_is_not_called_faster(name: str, us: float) -> None:
    found = labels(DEVICES[name], us, us)
    assert found.count("FASTER") <= RUNS * 0.01
    assert found.count("SLOWER") <= RUNS * 0.01


@pytest.mark.parametrize("name", ["quiet", "drift", "steps", "outliers"])
def test_three_per_cent_is_found(name: str) -> None:
    found = labels(DEVICES[name], 103.0, 100.0)
    assert found.count("FASTER") >= RUNS * 0.95
    slower = labels(DEVICES[name], 100.0, 103.0)
    assert slower.count("SLOWER") >= RUNS * 0.95


def test_a_quiet_tie_is_called_the_same() -> None:
    found = labels(DEVICES["quiet"], 100.0, 100.0)
    assert found.count("SAME") >= RUNS * 0.95


def test_half_a_per_cent_is_below_the_margin() -> None:
    assert "FASTER" not in labels(DEVICES["quiet"], 100.5, 100.0)


def test_coarse_ticks_do_not_invent_a_difference() -> None:
    device = SimulatedDevice(noise=0.01)
    found = labels(device, 4.6, 4.6)  # 144 ticks of 32 ns
    assert found.count("FASTER") + found.count("SLOWER") <= RUNS * 0.01


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    device = SimulatedDevice(noise=0.02)
    held = 0
    for seed in range(RUNS):
        low, high = statistics.compare(device.samples(120.0, 100.0, 30, seed), seed=seed).ci
        held += low <= 1.2 <= high
    assert held >= RUNS * 0.91


def test_numbers_of_one_comparison() -> None:
    samples = SimulatedDevice(noise=0.001).samples(200.0, 100.0, 30, 1)
    timing = statistics.compare(samples, device="simulated", warm={"a_us": 150.0, "b_us": 50.0})
    assert timing.ratio == pytest.approx(2.0, rel=0.005)
    assert timing.cycles_ratio == pytest.approx(2.0, rel=0.005)
    assert timing.original_us == pytest.approx(200, rel=0.005)
    assert timing.candidate_us == pytest.approx(100, rel=0.005)
    assert timing.warm_ratio == 3.0
    assert timing.ci[0] < timing.ratio < timing.ci[1]
    assert timing.samples == 120
    assert timing.label == "FASTER"
    assert timing == statistics.compare(samples, device="simulated", warm={"a_us": 150.0, "b_us": 50.0})


def test_too_few_rounds_say_nothing() -> None:
    with pytest.raises(ValueError, match="at least 5"):
        statistics.compare(SimulatedDevice().samples(10, 10, 4, 0))


def test_a_round_with_a_hole_is_dropped_whole() -> None:
    samples = SimulatedDevice().samples(10, 10, 6, 0)
    samples[5]["us"] = 0.0
    a, b = statistics.rounds_of(samples)
    assert len(a) == len(b) == 5


def test_a_floor_above_the_gain_hides_it() -> None:
    assert statistics.label((1.02, 1.04)) == "FASTER"
    assert statistics.label((1.02, 1.04), noise_floor=0.03) == "AMBIGUOUS"
    assert statistics.label((0.90, 0.95)) == "SLOWER"
    assert statistics.label((0.98, 1.03)) == "AMBIGUOUS"


def test_several_launches_are_summed_up_by_the_geometric_mean() -> None:
    quiet = SimulatedDevice(noise=0.001)
    first = statistics.compare(quiet.samples(400, 100, 20, 1))
    second = statistics.compare(quiet.samples(100, 100, 20, 2))
    both = statistics.combine([("a", first), ("b", second)])
    assert both.ratio == pytest.approx(2.0, rel=0.01)
    assert both.per_launch[1][0] == "b"
    assert both.ci[0] < both.ratio < both.ci[1]
    assert both.original_us == pytest.approx(500, rel=0.01)
    with pytest.raises(ValueError, match="no launch"):
        statistics.combine([])
