"""What the traced build sees: exact findings and traffic that can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from .conftest import Kernels, aligned, line_of


@pytest.fixture
def traced(build: Callable[[str, bool], Kernels]) -> Kernels:
    return build("traced", True)


def floats(count: int, value: float = 0) -> np.ndarray:
    return aligned(np.full(count, value, np.float32))


def found(findings: list[dict[str, Any]]) -> set[tuple[str, int]]:
    return {(f["kind"], f["line"]) for f in findings}


def test_a_correct_reduction_is_clean(traced: Kernels) -> None:
    data, out = floats(2048, 1), floats(8)
    outcome = traced.run("_Z4treePKfPf", 8, 256, data, out, trace=True)
    assert (outcome.error, outcome.findings, outcome.notes) == (None, [], [])
    assert (out == 256).all()
    assert outcome.written == [[], [(0, 32)]]


@pytest.mark.parametrize("seed", [0, 3])
def test_a_missing_barrier_is_a_race_on_its_line(traced: Kernels, seed: int) -> None:
    outcome = traced.run("tree_without_barrier", 1, 256, floats(256, 1), floats(1), trace=True, seed=seed)
    line = line_of("traced", "// tree race")
    assert ("shared-race", line) in found(outcome.findings)
    assert {kind for kind, _ in found(outcome.findings)} == {"shared-race"}


def test_warp_synchronous_code_needs_syncwarp(traced: Kernels) -> None:
    clean = traced.run("warp_tree", 1, 32, floats(32, 1), floats(32), np.int32(1), trace=True)
    assert clean.findings == []
    racy = traced.run("warp_tree", 1, 32, floats(32, 1), floats(32), np.int32(0), trace=True)
    lines = {line_of("traced", text) for text in ("// warp fill", "// warp race read", "s[t] += v;  // warp race")}
    assert {kind for kind, _ in found(racy.findings)} == {"shared-race", "uninitialised"}
    assert {line for kind, line in found(racy.findings) if kind == "shared-race"} <= lines


def test_sectors_of_unit_and_strided_access(traced: Kernels) -> None:
    def by_line(step: int) -> dict[int, dict[str, int]]:
        outcome = traced.run("stride", 4, 256, floats(1024 * step), floats(1024), np.int32(step), trace=True)
        assert outcome.findings == []
        lines: dict[int, dict[str, int]] = outcome.traffic["by_line"]
        return lines

    strided, unit = line_of("traced", "// strided"), line_of("traced", "// unit")
    for step, sectors in ((1, 4), (2, 8), (8, 32), (32, 32)):
        lines = by_line(step)
        assert set(lines) == {strided, unit}
        assert (lines[strided]["requests"], lines[strided]["sectors"], lines[strided]["bytes"]) == (
            32,
            32 * sectors,
            4096,
        )
        assert (lines[unit]["requests"], lines[unit]["sectors"], lines[unit]["store_sectors"]) == (32, 128, 128)


def test_a_16_byte_vector_is_one_request(traced: Kernels) -> None:
    data, out = aligned(np.arange(4096, dtype=np.float32)), floats(4096)
    outcome = traced.run("copy4", 4, 256, data, out, trace=True)
    np.testing.assert_array_equal(out, 2 * data)
    for text in ("// load 16", "// store 16"):
        line = outcome.traffic["by_line"][line_of("traced", text)]
        assert (line["requests"], line["sectors"], line["bytes"]) == (32, 32 * 16, 16384)
    assert (outcome.traffic["requests"], outcome.traffic["sectors"]) == (64, 1024)


def test_a_16_byte_vector_at_a_float_is_misaligned(traced: Kernels) -> None:
    data, out = floats(132)[1:], floats(128)
    outcome = traced.run("copy4", 1, 32, data, out, trace=True)
    (finding,) = (f for f in outcome.findings if f["kind"] == "misaligned")
    assert (finding["line"], finding["buffer"]) == (line_of("traced", "// load 16"), 0)
    assert finding["text"] == "a read of 16 bytes at an address that is no multiple of 16"


@pytest.mark.parametrize(("step", "ways"), [(1, 1), (2, 2), (4, 4), (32, 32), (33, 1)])
def test_bank_conflicts(traced: Kernels, step: int, ways: int) -> None:
    outcome = traced.run("banks", 1, 32, floats(32), np.int32(step), trace=True)
    for text in ("// banks store", "// banks load"):
        line = outcome.traffic["by_line"][line_of("traced", text)]
        distinct = len({i * step % 1024 for i in range(32)})
        assert (line["shared_requests"], line["wavefronts"]) == (1, min(ways, distinct))
        assert line["bank_conflicts"] == min(ways, distinct) - 1
        assert line["lanes"] == 32 * (line["requests"] + line["shared_requests"])


def test_out_of_bounds_by_one(traced: Kernels) -> None:
    data, out = floats(100, 1), floats(100)
    outcome = traced.run("past_end", 1, 128, data, out, np.int32(100), trace=True)
    by_line = {f["line"]: f for f in outcome.findings if f["kind"] == "out-of-bounds"}
    assert set(by_line) == {line_of("traced", "// write past"), line_of("traced", "// read past")}
    write, read = by_line[line_of("traced", "// write past")], by_line[line_of("traced", "// read past")]
    assert (write["buffer"], write["at"], write["thread"], write["block"]) == (1, 400, [100, 0, 0], [0, 0, 0])
    assert (read["buffer"], read["at"], read["thread"]) == (0, 400, [99, 0, 0])
    assert "beyond the buffer of 400 bytes" in write["text"]
    written = outcome.traffic["by_line"][line_of("traced", "// write past")]
    assert (written["requests"], written["lanes"]) == (4, 101)


def test_a_stray_write_stops_before_it_happens(traced: Kernels) -> None:
    outcome = traced.run("far_off", 1, 32, floats(16), trace=True)
    assert ("out-of-bounds", line_of("traced", "// far")) in found(outcome.findings)
    assert outcome.error is not None
    assert outcome.error.startswith("illegal address")


def test_shared_bounds_and_initialisation(traced: Kernels) -> None:
    outcome = traced.run("shared_past", 1, 32, floats(32), trace=True)
    assert found(outcome.findings) == {
        ("out-of-bounds", line_of("traced", "// shared past")),
        ("uninitialised", line_of("traced", "// unwritten")),
    }


def test_reads_of_memory_that_held_nothing(traced: Kernels) -> None:
    def reads(n: int, *unwritten: tuple[int, int, int]) -> list[tuple[object, ...]]:
        data, out = aligned(np.zeros(64, np.int32)), aligned(np.zeros(64, np.int32))
        outcome = traced.run("reads_back", 1, 64, data, out, np.int32(n), trace=True, unwritten=unwritten)
        assert outcome.written == [[], [(0, 256)]]
        return [(f["kind"], f["line"], f["buffer"], f["at"], f["thread"][0]) for f in outcome.findings]

    first_read = line_of("traced", "// adds to what is there")
    assert reads(64, (1, 0, 256)) == []
    assert reads(60) == []
    assert reads(60, (1, 0, 256)) == [("uninitialised", first_read, 1, 240, 60)]
    assert reads(60, (1, 0, 240), (1, 254, 255)) == [("uninitialised", first_read, 1, 252, 63)]


def test_global_races(traced: Kernels) -> None:
    out = aligned(np.zeros(64, np.int32))
    assert found(traced.run("same_place", 1, 64, out, trace=True).findings) == {
        ("global-race", line_of("traced", "// same place"))
    }
    assert found(traced.run("same_place", 1, 1, out, trace=True).findings) == set()
    assert found(traced.run("between_blocks", 4, 64, out, trace=True).findings) == {
        ("global-race", line_of("traced", "// between blocks"))
    }


def test_races_are_exact_to_the_byte(traced: Kernels) -> None:
    out = aligned(np.zeros(64, np.uint8))
    outcome = traced.run("bytes", 1, 64, out, trace=True)
    assert (outcome.findings, outcome.written) == ([], [[(0, 64)]])
    words = aligned(np.zeros(4, np.uint32))
    outcome = traced.run("byte_in_word", 1, 64, words, trace=True)
    (finding,) = outcome.findings
    lines = {line_of("traced", "// byte race"), line_of("traced", "// word race")}  # whichever came second is reported
    assert (finding["kind"], {finding["line"], finding["other_line"]}) == ("global-race", lines)


def test_atomics_do_not_race(traced: Kernels) -> None:
    data, out = aligned(np.arange(1024, dtype=np.int32) % 3), aligned(np.zeros(8, np.int32))
    outcome = traced.run("histogram", 4, 256, data, out, trace=True)
    assert outcome.findings == []
    line = outcome.traffic["by_line"][line_of("traced", "// atomic")]
    assert (line["atomics"], line["requests"], line["load_sectors"]) == (32, 64, 128)
    assert outcome.written == [[], [(0, 12)]]


def test_fence_and_atomic_order_blocks(traced: Kernels) -> None:
    data, part, out = floats(8, 2), floats(8), floats(1)
    outcome = traced.run("last_block", 8, 64, data, part, out, aligned(np.zeros(1, np.uint32)), trace=True)
    assert (outcome.findings, out[0]) == ([], 16)


def test_divergent_barriers_are_named(traced: Kernels) -> None:
    outcome = traced.run("two_barriers", 1, 64, aligned(np.zeros(64, np.int32)), trace=True)
    (finding,) = outcome.findings
    lines = {line_of("traced", "// first barrier"), line_of("traced", "// second barrier")}
    assert finding["kind"] == "barrier-divergence"
    assert {finding["line"], finding["other_line"]} == lines


def test_a_million_traced_threads(traced: Kernels) -> None:
    n = 1 << 20
    a, b, out = floats(n, 2), floats(n, 3), floats(n)
    outcome = traced.run("heavy", n // 256, 256, a, b, out, np.int32(n), trace=True)
    assert (outcome.error, outcome.findings) == (None, [])
    assert outcome.seconds < 15
    assert outcome.traffic["sectors"] == 3 * n * 4 // 32
    assert outcome.written == [[], [], [(0, 4 * n)]]
