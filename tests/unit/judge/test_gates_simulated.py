"""G8 to G12 on the simulated GPU: no way to look faster than one is gets through, and what is faster does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cuda_agent import judge
from cuda_agent.device.jobs import Job
from cuda_agent.judge import statistics
from cuda_agent.judge.gates.g10_above_the_noise import _doubt
from cuda_agent.model import Timing
from simulated import SimulatedDevice

from .scenarios import SCENARIOS, WEATHERS, WORK, Scenario, judged, search

ALL = WEATHERS["all of it"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_said_in_a_quiet_room(tmp_path: Path, name: str) -> None:
    expected = SCENARIOS[name]
    verdict = judged(tmp_path, expected, WEATHERS["quiet"], seed=3)
    stopped = next((g.id for g in verdict.gates if g.status == "fail" or g.undecided), "")
    assert verdict.faster == expected.faster, judge.headline(verdict)
    assert stopped == expected.gate, judge.headline(verdict)
    if expected.label:
        assert verdict.timing is not None
        assert verdict.timing.label == expected.label
    assert any(expected.words in g.detail for g in verdict.gates)


@pytest.mark.parametrize(
    "name", ["the same speed", "slightly slower clocks for the original", "quick only in a warm L2"]
)
def test_nothing_is_called_faster_in_bad_weather(tmp_path: Path, name: str) -> None:
    assert not any(judged(tmp_path, SCENARIOS[name], ALL, seed).faster for seed in range(10))


@pytest.mark.parametrize("name", ["3 % faster", "3 % faster, 5 µs, in batches"])
def test_three_per_cent_is_found_in_bad_weather(tmp_path: Path, name: str) -> None:
    found = [judged(tmp_path, SCENARIOS[name], ALL, seed) for seed in range(5)]
    assert sum(verdict.faster for verdict in found) >= 4, [judge.headline(v) for v in found]


def test_the_luckiest_of_forty_is_measured_again(tmp_path: Path) -> None:
    """The search's own number of its winner is above the noise, and luck; the fresh process does not bear it out."""
    lucky, verdict = search(tmp_path, WEATHERS["quiet"], seed=1)
    data = next(g.data for g in verdict.gates if g.id == "G10")
    assert lucky > 1.012
    assert data["first"]["label"] == "FASTER"
    assert verdict.timing is not None
    assert verdict.timing.ratio == data["again"]["ratio"] < 1.012
    assert verdict.timing.label == "AMBIGUOUS"
    assert not verdict.faster


@pytest.mark.parametrize(
    ("first", "again", "words"),
    [
        (2.0, 1.9, None),
        (1.02, 1.03, None),
        (1.03, 1.025, None),
        (1.025, 1.016, "the two differ by 0.9 %"),
        (1.05, 1.005, "no win"),
    ],
)
def test_what_the_second_falls_short_by_is_noise(first: float, again: float, words: str | None) -> None:
    def timing(ratio: float) -> Timing:
        ci = (ratio * 0.999, ratio * 1.001)
        return Timing(ratio, ci, 100, 100 / ratio, "x", statistics.label(ci))

    doubt = _doubt(timing(first), timing(again))
    assert (doubt is None) == (words is None)
    assert words is None or (doubt is not None and words in doubt)


def test_a_win_is_reported_by_its_second_measurement(tmp_path: Path) -> None:
    verdict = judged(tmp_path, SCENARIOS["3 % faster"], WEATHERS["quiet"], seed=1)
    data = next(g.data for g in verdict.gates if g.id == "G10")
    assert verdict.timing is not None
    assert data["again"]["ratio"] == verdict.timing.ratio != data["first"]["ratio"]


@pytest.mark.parametrize(("name", "processes"), [("3 % faster", 2), ("faster at one shape, slower at the other", 1)])
def test_a_small_gain_must_stand_in_two_fresh_processes(tmp_path: Path, name: str, processes: int) -> None:
    verdict = judged(tmp_path, SCENARIOS[name], WEATHERS["quiet"], seed=1)
    assert next(g.data["processes"] for g in verdict.gates if g.id == "G10") == processes


def test_luck_in_two_processes_is_not_enough_for_a_small_gain(tmp_path: Path) -> None:
    scenario = Scenario(WORK + "return 97.0 if process < 3 else 100.0")
    verdict = judged(tmp_path, scenario, WEATHERS["quiet"], seed=1)
    assert verdict.timing is not None
    assert verdict.timing.label == "AMBIGUOUS"
    assert verdict.timing.ratio == pytest.approx(1.0, abs=0.005)


def test_a_noisy_day_raises_the_floor_of_a_quiet_run(tmp_path: Path) -> None:
    """Three A/A runs that day reached 5 %: a gain of 3 % is not above this GPU's noise, however good this run was."""
    for seed in range(3):
        judged(tmp_path, SCENARIOS["the same speed"], WEATHERS["very noisy"], seed)
    verdict = judged(tmp_path, SCENARIOS["3 % faster"], WEATHERS["quiet"], seed=1)
    floors = next(g.data["floors"] for g in verdict.gates if g.id == "G10")
    assert floors[0]["day"] > floors[0]["own"]
    assert verdict.timing is not None
    assert verdict.timing.noise_floor == floors[0]["day"]
    assert verdict.timing.label == "AMBIGUOUS"


def test_a_search_takes_the_floor_of_the_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the fourth candidate on no time goes into an A/A run; a full judgement always makes its own."""
    timed: list[int] = []
    run = SimulatedDevice.run

    def counting(self: SimulatedDevice, job: Job, blobs: object = None) -> list[dict[str, Any]]:
        timed.append(sum(step["op"] == "time" for step in job.steps))
        return run(self, job, blobs)

    monkeypatch.setattr(SimulatedDevice, "run", counting)
    search(tmp_path, WEATHERS["quiet"], seed=2, tries=5)
    assert [count for count in timed if count][:5] == [2, 2, 2, 1, 1]
    assert set([count for count in timed if count][5:]) == {2}
