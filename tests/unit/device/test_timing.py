"""The time step over a clock whose time is exactly what the kernels say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from cuda_agent.device.backend import Sample
from cuda_agent.device.interpreter import Interpreter
from cuda_agent.device.timing import Timer

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
        self.late: set[int] = set()  # numbers of the samples that the host queues too slowly, -1 for all
        self.held: list[Sequence[str]] = []

    def sample(self, launches: Sequence[Any]) -> Sample:
        self.log.append("sample")
        self.batches.append(list(launches))
        taken = super().sample(launches)
        late = len(self.batches) in self.late or -1 in self.late
        return replace(taken, late=late)

    def limits(self) -> Sequence[str]:
        return self.held.pop() if self.held else ()


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


def test_of_two_rounds_one_begins_with_each_side(bench: Any) -> None:
    for seed in range(8):
        order = time(bench, "slow", "slow", rounds=12, seed=seed)["order"]
        assert all(set(order[i : i + 2]) == {"abba", "baab"} for i in range(0, 12, 2))


@pytest.mark.parametrize("kernel", ["slow", "quick"])  # alone and in batches
def test_both_sides_of_a_round_use_the_same_buffers(bench: Any, kernel: str) -> None:
    samples = time(bench, kernel, kernel, rounds=12)["samples"]
    used = {(side, n): sorted(s["set"] for s in samples if s["side"] == side and s["round"] == n)
            for side in "ab" for n in range(12)}  # fmt: skip
    assert all(used["a", n] == used["b", n] and len(set(used["a", n])) == 2 for n in range(12))
    assert all(used["a", n] == used["a", n + 1] != used["a", (n + 2) % 12] for n in range(0, 12, 2))
    in_turn = [sample["set"] for sample in samples]
    assert all(one != other for one, other in pairwise(in_turn))


def test_a_late_sample_is_taken_again(bench: Any) -> None:
    _, _, clock = bench
    plain = time(bench, "slow", "slow")
    taken = len(clock.batches)
    clock.late = {taken + 30, taken + 31}
    result = time(bench, "slow", "slow")
    assert len(clock.batches) == 2 * taken + 2
    assert result["late"] == 0
    assert [s["side"] for s in result["samples"]] == [s["side"] for s in plain["samples"]]


def test_a_host_that_is_always_late_is_told(bench: Any) -> None:
    bench[2].late = {-1}
    result = time(bench, "slow", "slow")
    assert result["late"] == 24
    assert all(sample["late"] for sample in result["samples"])


def test_what_held_the_clocks_down_is_counted_by_round(bench: Any) -> None:
    bench[2].held = [("thermal", "power cap"), ("thermal",), ()]
    assert time(bench, "slow", "slow")["limits"] == {"thermal": 2, "power cap": 1}
    assert time(bench, "slow", "slow")["limits"] == {}


def test_the_sample_after_a_comparison_is_taken_twice(bench: Any) -> None:
    program, interpreter, clock = bench
    interpreter.step(program.launch("ref", "slow"))
    without = time(bench, "slow", "slow", rounds=20)
    taken = len(clock.batches)
    check = {"run": "ref", "buffers": [{"buffer": 1, "dtype": "f32"}]}
    result = time(bench, "slow", "slow", rounds=20, check=check)
    compared = result["checked"]["count"]
    assert compared > 2
    assert len(clock.batches) - taken - taken == compared - 2  # the last one of each side comes after the rounds
    assert len(result["samples"]) == len(without["samples"])


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


def test_no_warm_times_where_nobody_asks(bench: Any) -> None:
    _, _, clock = bench
    time(bench, "slow", "adds")
    taken = len(clock.batches)
    assert time(bench, "slow", "adds", warm=False)["warm"] is None
    assert len(clock.batches) - taken == taken - 14


def test_long_kernels_are_launched_for_their_rounds_alone(bench: Any) -> None:
    """At 90 ms a launch, each one that tells nothing costs a search as much as one that does."""
    _, _, clock = bench
    result = time(bench, "slow", "adds", min_us=5.0, warm=False, rounds=10)
    assert result["batch"] == 1
    extra = 2 + 4 + 2  # is it long, clocks settle, each side's output is checked
    assert sum(map(len, clock.batches)) == 40 + extra


@pytest.mark.parametrize(
    ("a", "b", "rounds"), [("adds", "slow", 6), ("slow", "adds", 12), ("slow", "slow", 12)]
)  # 30 µs and 50 µs
def test_what_loses_by_far_is_given_up(bench: Any, a: str, b: str, rounds: int) -> None:
    rule = {"rounds": 6, "below": 0.9}
    assert time(bench, a, b, rounds=12, give_up=rule)["rounds"] == rounds
    assert time(bench, a, b, rounds=12, give_up={**rule, "below": 0.5})["rounds"] == 12
    bench[2].late = {-1}
    assert time(bench, a, b, rounds=12, give_up=rule)["rounds"] == 12  # late samples tell nothing


def test_rounds_that_all_say_the_same_ratio_are_enough(bench: Any) -> None:
    rule = {"rounds": 6, "below": 0.9, "spread": 0.005}
    assert time(bench, "slow", "adds", rounds=12, give_up=rule)["rounds"] == 6
    samples = time(bench, "slow", "adds", rounds=12, give_up=rule)["samples"]
    timer = Timer.__new__(Timer)
    timer.step = {"give_up": rule}
    assert timer._given_up(samples, 6)
    apart = [{**one, "us": one["us"] * (1.01 if one["round"] == 3 and one["side"] == "b" else 1)} for one in samples]
    assert not timer._given_up(apart, 6)
    assert not timer._given_up(samples, 5)


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
