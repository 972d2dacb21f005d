"""tests/bench/ladders.py without a GPU: a shell script is the program, its text the kernels, a function the search."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_agent.agent.request import Outcome
from cuda_agent.errors import DeviceError
from cuda_agent.judge.statistics import combine
from cuda_agent.model import Timing, Verdict
from cuda_agent.workload import bundle

from .conftest import candidate

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import ladders
from ladders import Climbed, Ladder, Version

FIRST, EXPERT = 8000.0, 1000.0
SCRIPT = """#!/bin/sh
case "$1" in 1) ms=8.0;; *) ms=1.0;; esac
echo "All results match"
echo "block_size   32 | time 9.9 ms | per token"
echo "block_size   64 | time $ms ms | per token"
"""
LADDER = Ladder(
    "toy",
    "llm.c",
    "dev",
    "toy.sh",
    "cp toy.sh toy && chmod +x toy",
    ("k",),
    Version("kernel 1", "./toy 1", ladders.BLOCK_SIZES),
    (Version("kernel 2", "./toy 2", ladders.BLOCK_SIZES),),
)


def timed(ratio: float) -> Timing:
    one = Timing(ratio, (ratio, ratio), ratio, 1.0, "GPU", "FASTER")
    return combine([("1 × 1", one)])


def search(text: str | None, ratio: float = 2.0) -> Any:
    """A search whose winner is `text`; None: it finds nothing."""

    def run(request: Any, **_: Any) -> Outcome:
        if text is None:
            return Outcome("nothing", "k", "nothing better found")
        made = candidate(text, request.path.read_text())
        return Outcome(
            "verified", "k", "", made, Verdict("verified", "replayed", (), "", timing=timed(ratio)), "-a\n+b\n"
        )

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "llm.c" / "dev"
    made.mkdir(parents=True)
    (made / "toy.sh").write_text(SCRIPT)
    ladders.build(LADDER, made, "sm_90")
    monkeypatch.setattr(ladders, "capture", lambda *_: None)
    monkeypatch.setattr(bundle, "find", lambda file, kernel: SimpleNamespace(kernel=kernel))
    return made


def climb(folder: Path, find: Any, ladder: Ladder = LADDER) -> Climbed:
    device: Any = SimpleNamespace(restart=lambda: None, uuid="")
    return ladders.climb(ladder, folder, device, "sm_90", 10.0, find)


def test_half_of_the_way_on_a_logarithmic_scale(folder: Path) -> None:
    climbed = climb(folder, search(SCRIPT.replace("1) ms=8.0", "1) ms=2.8284271")))
    assert (climbed.first, climbed.best, climbed.best_name, climbed.error) == (FIRST, EXPERT, "kernel 2", "")
    assert climbed.recovered == pytest.approx(0.5)
    assert climbed.ratios == {"k": 2.0}
    row = ladders.table([climbed]).splitlines()[2]
    shown = row.split(" | ")
    assert shown[:-1] == ["| toy", "8,000.0 µs", "2,828.4 µs", "1,000.0 µs", "kernel 2", "2.83×", "8.00×", "50%"]
    assert re.fullmatch(r"k: test \(2\.00×\) \[[67] s given, 0 s taken, 0 tried\] \|", shown[-1])
    assert climbed.turns == ladders.TURNS


def test_nothing_found_recovers_nothing_and_says_why(folder: Path) -> None:
    climbed = climb(folder, search(None))
    assert climbed.recovered == 0
    assert climbed.rules == {"k": "nothing: nothing better found"}
    assert "geometric mean of 1 of 1 ladders: 0%" in ladders.table([climbed])


def test_an_edit_that_fails_the_program_s_own_check_is_an_error(folder: Path) -> None:
    climbed = climb(folder, search(SCRIPT.replace("All results match", "Mismatch")))
    assert climbed.recovered is None
    assert "did not pass its own check" in climbed.error
    assert "geometric mean" not in ladders.table([climbed])


def test_a_search_that_breaks_leaves_the_first_version(folder: Path) -> None:
    def broken(*_: Any, **__: Any) -> Outcome:
        raise DeviceError("the GPU fell off the bus")

    climbed = climb(folder, broken)
    assert climbed.recovered == 0
    assert "fell off the bus" in climbed.rules["k"]


def test_the_kernel_that_costs_most_is_searched_first_and_longest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []

    def slow(request: Any, **_: Any) -> Outcome:
        asked.append((request.kernel, request.budget_s))
        return Outcome("nothing", request.kernel, "nothing better found")

    monkeypatch.setattr(ladders, "shares", lambda *_: {"little": 0.1, "much": 0.9})
    climb(folder, slow, replace(LADDER, kernels=("little", "much")))
    assert [kernel for kernel, _ in asked] == ["much", "little"]
    much, little = (seconds for _, seconds in asked)
    assert much == pytest.approx(0.7 * ladders.SEARCHED * 10, rel=0.1)
    assert little == pytest.approx(ladders.SEARCHED * 10, rel=0.1)  # the first one took none of its time


def test_the_race_keeps_its_time(folder: Path) -> None:
    def asked(request: Any, cancelled: Any, **_: Any) -> Outcome:
        return Outcome("nothing", "k", "stopped" if cancelled() else "went on")

    device: Any = SimpleNamespace(restart=lambda: None, uuid="")
    climbed = ladders.climb(LADDER, folder, device, "sm_90", 0.0, asked)
    assert climbed.rules == {"k": "no time was left"}
    assert (climbed.recovered, climbed.turns) == (0, 1)


OUTPUTS = {
    "transpose": "transpose naive             , Throughput = 437.6 GB/s, Time = 0.29 ms, Size = 1\n"
    "transpose coalesced         , Throughput = 1.0 GB/s, Time = 0.10 ms, Size = 1\n"
    "transpose optimized         , Throughput = 1.0 GB/s, Time = 0.07 ms, Size = 1\n"
    "transpose diagonal          , Throughput = 1.0 GB/s, Time = 0.08 ms, Size = 1\nTest passed\n",
    "reduction": "Reduction, Throughput = 403.5 GB/s, Time = 0.00017 s, Size = 16777216 Elements\nTest passed\n",
    "layernorm_forward": "All results match.\nblock_size   32 | time 0.2140 ms | bandwidth 235.1 GB/s\n",
    "softmax_forward": "All results match.\nblock_size 1024 | time 3.4900 ms | per token 0.43 µs\n",
    "attention_forward": "All results match.\nblock_size  512 | time 1.107000 ms\n",
}


@pytest.mark.parametrize("ladder", ladders.LADDERS, ids=lambda ladder: ladder.name)
def test_the_times_that_the_programs_print(ladder: Ladder, tmp_path: Path) -> None:
    printed = OUTPUTS[ladder.name]
    (tmp_path / "out").write_text(printed)
    for version in (ladder.first, *ladder.experts):
        stand_in = Version(version.name, "cat out", version.pattern, version.work)
        assert 50 < ladders.measure(stand_in, tmp_path, ladder.passed) < 4000
    assert ladders.mean([0.5, 0.98], 5).endswith("ladders: 70% (arithmetic 74%).")
