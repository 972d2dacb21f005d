"""The day's noise floor."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from cuda_agent.device.info import GPUS
from cuda_agent.judge import floor

GPU, DAY = GPUS["h200"], datetime.date(2026, 11, 30)


def test_three_runs_make_a_floor() -> None:
    for value in (0.01, 0.03):
        floor.remember(GPU, 50.0, value, DAY)
        assert floor.of_day(GPU, 50.0, DAY) is None
    floor.remember(GPU, 50.0, 0.002, DAY)
    assert floor.of_day(GPU, 50.0, DAY) == (0.01, 3)
    assert floor.of_day(GPU, 99.0, DAY) == (0.01, 3)


@pytest.mark.parametrize(
    ("gpu", "us", "day"),
    [
        (GPU, 16.0, DAY),
        (GPU, 151.0, DAY),
        (GPU, 2000.0, DAY),
        (GPU, 50.0, DAY + datetime.timedelta(1)),
        (GPUS["l4"], 50.0, DAY),
        (replace(GPU, index=1), 50.0, DAY),
        (replace(GPU, driver="13.1"), 50.0, DAY),
    ],
)
def test_other_lengths_days_and_gpus_have_their_own(gpu: object, us: float, day: datetime.date) -> None:
    for _ in range(3):
        floor.remember(GPU, 50.0, 0.01, DAY)
    assert floor.of_day(gpu, us, day) is None  # type: ignore[arg-type]


def test_the_newest_runs_are_kept() -> None:
    for value in [1.0] * floor.KEPT + [0.01] * floor.KEPT:
        floor.remember(GPU, 5.0, value, DAY)
    assert floor.of_day(GPU, 5.0, DAY) == (0.01, floor.KEPT)
