"""What limits a kernel: one row a case, the sentence as a person reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cuda_agent.hints import limits
from cuda_agent.hints.limits import Limiter, Machine, Work, limiter, moved
from cuda_agent.hints.occupancy import limits as of_arch
from cuda_agent.model import Buffer, Facts, Launch, LineFacts
from cuda_agent.rewrite.order import rule_order
from cuda_agent.rewrite.rules import RULES

H200 = Machine(132, 4800.0, 60 << 20, 1980.0, of_arch("sm_90"))
FACTS = Facts("k", "k", "sm_90", 32, 0, 0, 0, 0, 0, "", 100, (LineFacts(1, 100, 6, 2, 0),))
MB = 1_000_000
FULL = Work((4096, 1, 1), (256, 1, 1), facts=FACTS, read=480 * MB)  # 100 µs at the peak
TRACED = {"requests": 100.0, "sectors": 400.0, "bytes": 12800.0, "lanes": 3200.0, "atomics": 0.0}
SHARED = {"shared_requests": 100.0, "wavefronts": 800.0, "bank_conflicts": 700.0, "lanes": 6400.0}

# What is known → kind, sentence, headroom, what is said when a search stops.
CASES: dict[str, tuple[dict[str, Any], tuple[str, str, float, str]]] = {
    "near the peak": (
        {"us": 110.0},
        ("bandwidth", "at 91% of memory bandwidth", 1.1, "at 91% of memory bandwidth: nothing left to gain here"),
    ),
    "not measured": (
        {},
        (
            "bandwidth",
            "480 MB take at least 100 µs at 4,800 GB/s; not measured yet",
            1.0,
            "480 MB take at least 100 µs at 4,800 GB/s; not measured yet",
        ),
    ),
    "writes that the L2 keeps": (
        {"us": 100.0, "written": 48 * MB},
        ("bandwidth", "at 100% of memory bandwidth", 1.0, "at 100% of memory bandwidth: nothing left to gain here"),
    ),
    "few blocks": (
        {"grid": (40, 1, 1)},
        (
            "latency",
            "40 blocks on 132 SMs: most of the GPU is idle",
            3.3,
            "40 blocks on 132 SMs: most of the GPU is idle; up to 3.3× may be left",
        ),
    ),
    "few blocks, measured": (
        {"grid": (100, 1, 1), "block": (512, 1, 1), "us": 1000.0},
        (
            "latency",
            "100 blocks on 132 SMs: part of the GPU is idle (at 10% of memory bandwidth)",
            10.0,
            "100 blocks on 132 SMs: part of the GPU is idle (at 10% of memory bandwidth); up to 10× left",
        ),
    ),
    "small blocks, few of them": (
        {"grid": (264, 1, 1), "block": (32, 1, 1)},
        (
            "latency",
            "2 of 64 warps on an SM, bound by the grid: too few to hide the latency of memory",
            8.0,
            "2 of 64 warps on an SM, bound by the grid: too few to hide the latency of memory; up to 8.0× may be left",
        ),
    ),
    "many registers": (
        {"facts": replace(FACTS, registers=255)},
        (
            "latency",
            "8 of 64 warps on an SM, bound by registers: too few to hide the latency of memory",
            2.0,
            "8 of 64 warps on an SM, bound by registers: too few to hide the latency of memory; up to 2.0× may be left",
        ),
    ),
    "as short as a launch": (
        {"read": 1000, "us": 2.1},
        (
            "latency",
            "2.1 µs is about as short as a launch can be",
            1.0,
            "2.1 µs is about as short as a launch can be: nothing left to gain here",
        ),
    ),
    "hardly any bytes": (
        {"read": 1000, "us": 25.0, "grid": (1, 1, 1)},
        (
            "latency",
            "1 block on 132 SMs: most of the GPU is idle",
            10.0,
            "1 block on 132 SMs: most of the GPU is idle; up to 10× left",
        ),
    ),
    "hardly any bytes and not much longer than a launch": (
        {"read": 1000, "us": 3.0},
        (
            "issue",
            "instructions, or waiting for their results, limit it",
            1.2,
            "instructions, or waiting for their results, limit it: nothing left to gain here",
        ),
    ),
    "strided": (
        {"counts": {**TRACED, "sectors": 3200.0}},
        (
            "uncoalesced",
            "a warp's access moves 32.0 sectors of 32 bytes where 4.0 would hold it",
            8.0,
            "a warp's access moves 32.0 sectors of 32 bytes where 4.0 would hold it; up to 8.0× may be left",
        ),
    ),
    "coalesced": ({"counts": TRACED, "us": 105.0}, ("bandwidth", "at 95% of memory bandwidth", 1.05, "")),
    "atomics": (
        {"counts": {**TRACED, "atomics": 50.0}},
        (
            "atomics",
            "50% of the accesses to memory are atomics",
            2.0,
            "50% of the accesses to memory are atomics; up to 2.0× may be left",
        ),
    ),
    "nothing but atomics": (
        {"counts": {**TRACED, "atomics": 100.0}},
        ("atomics", "100% of the accesses to memory are atomics", 32.0, ""),
    ),
    "bank conflicts": (
        {"counts": {**TRACED, **SHARED}},
        ("shared conflicts", "shared memory takes 8.0 passes an access: bank conflicts", 8.0, ""),
    ),
    "divergence": (
        {"counts": {**TRACED, "lanes": 400.0}},
        ("divergence", "4 of 32 lanes of a warp are active on average", 8.0, ""),
    ),
    "long arithmetic": (
        {"facts": replace(FACTS, instructions=446)},
        ("issue", "56 instructions for each access to memory, where 28 keep up with its bandwidth", 2.0, ""),
    ),
    "nothing explains it": (
        {"us": 400.0},
        (
            "issue",
            "at 25% of memory bandwidth: instructions, or waiting for their results, limit it",
            4.0,
            "at 25% of memory bandwidth: instructions, or waiting for their results, limit it; up to 4.0× left",
        ),
    ),
    "one atomic a block explains nothing": (
        {"us": 400.0, "atomics": True, "counts": {**TRACED, "atomics": 1.0}},
        ("issue", "at 25% of memory bandwidth: instructions, or waiting for their results, limit it", 4.0, ""),
    ),
    "nothing but the text's atomics": (
        {"us": 400.0, "atomics": True},
        ("atomics", "at 25% of memory bandwidth: atomics limit it", 4.0, ""),
    ),
    "more bytes than can have moved": (
        {"us": 50.0, "grid": (66, 1, 1)},
        ("latency", "66 blocks on 132 SMs: part of the GPU is idle", 2.0, ""),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_limiter(name: str) -> None:
    known, (kind, text, headroom, left) = CASES[name]
    found = limiter(replace(FULL, **known), H200)
    assert found is not None
    assert (found.kind, found.text) == (kind, text)
    assert found.headroom == pytest.approx(headroom, rel=0.02)
    assert found.measured is ("us" in known and name != "more bytes than can have moved")
    assert not left or found.left == left


def test_where_nothing_is_known_nothing_is_said() -> None:
    assert limiter(Work((4096, 1, 1), (256, 1, 1)), H200) is None
    assert limiter(replace(FULL, us=10.0), replace(H200, bandwidth_gbs=0.0)) is None


def test_a_factor_alone_decides_and_not_the_order_of_the_causes() -> None:
    counts = {**TRACED, "sectors": 800.0, "lanes": 1600.0, "atomics": 90.0}
    found = limiter(replace(FULL, counts=counts, grid=(66, 1, 1)), H200)
    assert found is not None
    assert (found.kind, found.headroom) == ("atomics", pytest.approx(10.0))


def buffer(size: int, before: tuple[str, ...], after: tuple[str, ...] | None) -> Buffer:
    return Buffer(0, size, before, after)


@pytest.mark.parametrize(
    ("buffers", "bytes_"),
    [
        ([buffer(4096, ("a",), ("a",))], (4096, 0)),
        ([buffer(4096, ("a",), ("b",))], (0, 4096)),
        ([buffer(4096, ("a",), None)], (4096, 0)),  # the launch did not finish: nothing is known of what it wrote
        ([buffer(200_000, ("a", "b", "c", "d"), ("a", "x", "c", "y"))], (0, 100_000)),
        ([buffer(8, ("a",), ("a",)), buffer(16, ("a",), ("b",))], (8, 16)),
        ([], (0, 0)),
    ],
)
def test_bytes_of_a_capture(buffers: list[Buffer], bytes_: tuple[int, int]) -> None:
    assert moved(Launch("k", "k", (1, 1, 1), (1, 1, 1), 0, (), tuple(buffers))) == bytes_


@pytest.mark.parametrize("kind", limits.RULES)
def test_rules_that_lift_the_limit_come_first(kind: limits.Kind) -> None:
    names = rule_order(Limiter(kind, "", 2.0))
    assert sorted(names) == sorted(rule.name for rule in RULES)
    numbers = {rule.name: rule.number for rule in RULES}
    place = [limits.RULES[kind].index(numbers[n]) if numbers[n] in limits.RULES[kind] else 99 for n in names]
    assert place == sorted(place)


def test_without_a_limit_the_catalogue_s_order_stands() -> None:
    assert rule_order(None) == tuple(rule.name for rule in RULES)
