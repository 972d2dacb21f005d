"""The time step over a clock whose time is exactly what the kernels say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from cuda_agent.device.backend import Sample
from cuda_agent.device.interpreter import Interpreter

from .host_worker import HostBackend, HostClock
from .kernels import PRELUDE, Program

TEXT = (
    PRELUDE
    + """
calls = []
def quick(c, x, y, n):
    calls.append(pointer(x))
    floats(y, number(n))[:] = 2 * floats(x, number(n))
    return 2.0
def slow(c, x, y, n):
    floats(y, number(n))[:] = 2 * floats(x, number(n))
    return 50.0
def adds(c, x, y, n):
    floats(y, number(n))[:] += floats(x, number(n))
    return 30.0
cache = {}
def replays(c, x, y, n):
    # the first call does the work, later ones do nothing
    if cache.setdefault("seen", 0) < 4:
        floats(y, number(n))[:] = 2 * floats(x, number(n))
    cache["seen"] += 1
    return 1.0
"""
)


class Watch(HostClock):
    """Notes what happens between samples."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Any]] = []

    def sample(self, launches: Sequence[Any]) -> Sample:
        self.log.append("sample")
        self.batches.append(list(launches))
        return super().sample(launches)


@pytest.fixture
def bench() -> Any:
    program = Program(TEXT)
    backend = HostBackend()
    backend.clock = Watch()
    interpreter = Interpreter(backend, program.blobs)
    interpreter.step(program.load())
    return program, interpreter, backend.clock


def time(bench: Any, a: str, b: str, **more: Any) -> dict[str, Any]:
    program, interpreter, _ = bench
    poison = more.pop("poison", "ff")
    step = {
        "op": "time",
        "a": program.fields(a, poison=poison),
        "b": program.fields(b, poison=poison),
        "rounds": 6,
        "seed": 1,
    }
    return interpreter.step({**step, **more}).result


def test_rounds_are_abba_or_baab_and_both_occur(bench: Any) -> None:
    result = time(bench, "slow", "adds", rounds=12)
    assert result["ok"], result
    assert set(result["order"]) == {"abba", "baab"}
    assert [s["side"] for s in result["samples"]] == list("".join(result["order"]))
    assert Counter(s["side"] for s in result["samples"]) == {"a": 24, "b": 24}
    assert {s["us"] for s in result["samples"] if s["side"] == "a"} == {50.0}
    assert {s["us"] for s in result["samples"] if s["side"] == "b"} == {30.0}
    assert result["samples"][0]["cycles"] == result["samples"][0]["us"] * 1500


def test_the_seed_decides_the_order(bench: Any) -> None:
    orders = [time(bench, "slow", "slow", rounds=16, seed=seed)["order"] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_every_cold_sample_follows_a_flush(bench: Any) -> None:
    log = bench[2].log
    time(bench, "slow", "slow")
    followed = [log[i - 1] for i, what in enumerate(log) if what == "sample"]
    assert followed.count("flush") >= 24
    log.clear()
    time(bench, "slow", "slow", cold=False)
    assert "flush" not in log


def test_short_kernels_are_batched_over_sets_of_their_own(bench: Any) -> None:
    _, interpreter, clock = bench
    result = time(bench, "quick", "quick", min_us=20.0)
    assert result["batch"] == 10
    assert result["sets"] >= 10
    assert len(set(interpreter.modules["m"].space["calls"])) > 2 * result["batch"]
    cold = [batch for batch in clock.batches if len(batch) == 10][: len(result["samples"])]
    assert len(cold) == 24
    assert all(len({id(launch) for launch in batch}) == 10 for batch in cold)
    warm = clock.batches[-1]
    assert len({id(launch) for launch in warm}) == 1  # `quick` may be repeated on the same buffers
    assert time(bench, "adds", "adds", poison="", min_us=90.0)["batch"] == 3
    assert len({id(launch) for launch in clock.batches[-1]}) == 3  # `adds` may not


def test_buffers_are_fresh_for_every_sample(bench: Any) -> None:
    """`adds` is only right on restored buffers: y += x from y = 0."""
    program, interpreter, _ = bench
    assert interpreter.step(program.launch("ref", "adds", poison="")).result["ok"]
    check = {"run": "ref", "buffers": [{"buffer": 1, "dtype": "f32"}]}
    result = time(bench, "adds", "adds", poison="", check=check, rounds=20)
    assert result["checked"]["equal"], result["checked"]
    assert result["checked"]["count"] >= 2


def test_a_kernel_that_only_works_at_first_is_caught(bench: Any) -> None:
    program, interpreter, _ = bench
    interpreter.step(program.launch("ref", "slow"))
    check = {"run": "ref", "buffers": [{"buffer": 1, "dtype": "f32"}]}
    result = time(bench, "slow", "replays", check=check)
    assert not result["checked"]["equal"]
    assert result["checked"]["failures"][0]["side"] == "b"


def test_the_budget_ends_it(bench: Any) -> None:
    result = time(bench, "slow", "slow", rounds=100000, budget_s=0.2)
    assert 3 <= result["rounds"] < 100000
    assert result["seconds"] < 5


def test_warm_times_beside_the_cold_ones(bench: Any) -> None:
    assert time(bench, "slow", "adds")["warm"] == {"a_us": 50.0, "b_us": 30.0}


def test_sets_are_shared_only_when_both_start_alike(bench: Any) -> None:
    program, interpreter, _ = bench
    other = program.fields("slow")
    other["buffers"][1]["poison"] = []
    result = interpreter.step({"op": "time", "a": program.fields("slow"), "b": other, "rounds": 2}).result
    assert result["ok"]
    assert result["sets"] >= 2


def test_too_little_memory_is_a_sentence(bench: Any) -> None:
    program, interpreter, _ = bench
    big = program.fields("slow")
    big["buffers"] = [{"size": 100 << 20, "init": {"fill": "00"}}] * 2
    result = interpreter.step({"op": "time", "a": big, "b": big}).result
    assert not result["ok"]
    assert "out of device memory in time" in result["error"]


def test_no_clock_no_time(bench: Any) -> None:
    bench[1].backend.clock = None
    assert time(bench, "slow", "slow") == {"ok": False, "error": "the emulator does not measure time"}
