"""compare.py against an element-by-element reading of its own definitions."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_agent.device.compare import compare, error, perturbed, select


def raw(values: list, dtype: str) -> numpy.ndarray:
    return numpy.array(values, dtype=dtype).view(numpy.uint8).copy()


def bf16(values: list[float]) -> numpy.ndarray:
    return (numpy.array(values, dtype="f4").view("u4") >> 16).astype("u2").view("u1").copy()


def test_equal_bits_are_equal() -> None:
    a = raw([1.0, math.nan, math.inf, -0.0], "f4")
    result = compare(numpy, a, a.copy(), "f32")
    assert result["equal"]
    assert result["compared"] == 4
    assert result["rel_l2"] == 0


def test_float_distances() -> None:
    a, b = [1.0, 2.0, 4.0, 3.0], [1.0, 2.5, 4.0, 3.0000002384185791]
    result = compare(numpy, raw(a, "f4"), raw(b, "f4"), "f32")
    assert result["differing"] == 2
    assert result["max_abs"] == 0.5
    assert result["max_rel"] == pytest.approx(0.2)
    assert result["max_ulp"] == 1 << 21
    assert result["rel_l2"] == pytest.approx(0.5 / math.sqrt(1 + 4 + 16 + 9))
    assert result["worst"] == {"index": 1, "expected": 2.0, "got": 2.5}
    assert result["first"]["index"] == 1


@pytest.mark.parametrize(
    ("dtype", "a", "b"), [("f4", 1.0, numpy.nextafter(numpy.float32(1), 2, dtype="f4")), ("f2", 1.0, 1.0009765625)]
)
def test_one_ulp(dtype: str, a: float, b: float) -> None:
    name = {"f4": "f32", "f2": "f16"}[dtype]
    assert compare(numpy, raw([a], dtype), raw([b], dtype), name)["max_ulp"] == 1
    assert compare(numpy, raw([-a], dtype), raw([-b], dtype), name)["max_ulp"] == 1


def test_ulp_across_zero_counts_both_sides() -> None:
    tiny = numpy.array([1, 0x80000001], dtype="u4").view("f4")
    result = compare(numpy, tiny[:1].view("u1"), tiny[1:].view("u1").copy(), "f32")
    assert result["max_ulp"] == 3  # +tiny, +0, -0, -tiny


def test_f64_extremes_do_not_overflow() -> None:
    result = compare(numpy, raw([1.7e308], "f8"), raw([-1.7e308], "f8"), "f64")
    assert result["max_ulp"] > 1 << 63
    assert result["nan_mismatch"] == 0


def test_zero_signs_differ_as_bits_and_are_within_any_tolerance() -> None:
    result = compare(numpy, raw([0.0], "f4"), raw([-0.0], "f4"), "f32", tolerance={})
    assert not result["equal"]
    assert result["within"]


def test_nan_and_infinity_must_sit_where_the_reference_has_them() -> None:
    a = raw([math.nan, 1.0, math.inf, math.inf, math.nan], "f4")
    b = raw([1.0, math.nan, math.inf, -math.inf, math.nan], "f4")
    result = compare(numpy, a, b, "f32", tolerance={"abs": 1e30, "rel": 1e30})
    assert result["nan_mismatch"] == 3
    assert result["outside"] == 3
    assert not result["within"]
    assert result["first"] == {"index": 0, "expected": "nan", "got": 1.0}


def test_nan_payloads_differ_as_bits_only() -> None:
    a = numpy.array([0x7FC00001], dtype="u4").view("u1")
    b = numpy.array([0x7FC00002], dtype="u4").view("u1")
    result = compare(numpy, a, b, "f32", tolerance={})
    assert not result["equal"]
    assert result["nan_mismatch"] == 0
    assert result["within"]


def test_scaled_tolerance_uses_the_largest_reference() -> None:
    a, b = raw([1000.0, 0.0], "f4"), raw([1000.0, 0.009], "f4")
    assert compare(numpy, a, b, "f32", tolerance={"scaled": 1e-5})["within"]
    assert not compare(numpy, a, b, "f32", tolerance={"scaled": 1e-6})["within"]


def test_first_with_a_tolerance_is_the_first_outside_it() -> None:
    a, b = raw([1.0, 1.0, 1.0], "f4"), raw([1.0 + 1e-6, 2.0, 3.0], "f4")
    assert compare(numpy, a, b, "f32", tolerance={"rel": 1e-5})["first"]["index"] == 1


def test_ulp_tolerance() -> None:
    a, b = raw([1.0], "f4"), raw([1.0 + 3 * 2**-23], "f4")
    assert compare(numpy, a, b, "f32", tolerance={"ulp": 3})["within"]
    assert not compare(numpy, a, b, "f32", tolerance={"ulp": 2})["within"]


def test_bf16() -> None:
    result = compare(numpy, bf16([1.0, 2.0]), bf16([1.0, 2.015625]), "bf16")
    assert result["max_ulp"] == 1
    assert result["worst"] == {"index": 1, "expected": 2.0, "got": 2.015625}


@pytest.mark.parametrize(
    ("dtype", "a", "b", "distance"),
    [
        ("i4", -(2**31), 2**31 - 1, 2.0**32 - 1),
        ("i8", -(2**63), 2**63 - 1, float(2**64 - 1)),
        ("u1", 0, 255, 255.0),
        ("u8", 2**64 - 1, 0, float(2**64 - 1)),
        ("i2", -1, 1, 2.0),
    ],
)
def test_integers(dtype: str, a: int, b: int, distance: float) -> None:
    name = f"{dtype[0]}{8 * int(dtype[1])}"
    result = compare(numpy, raw([a, 7], dtype), raw([b, 7], dtype), name, tolerance={"abs": 1e30})
    assert result["max_abs"] == distance
    assert result["differing"] == 1
    assert result["outside"] == 1  # a tolerance says nothing about integers
    assert result["first"] == {"index": 0, "expected": a, "got": b}


def test_unknown_types_are_bytes() -> None:
    assert compare(numpy, raw([1], "i4"), raw([2], "i4"), "struct foo")["dtype"] == "bytes"


def test_a_tail_that_is_no_element_counts() -> None:
    a = numpy.array([1, 2, 3, 4, 5], dtype="u1")
    b = a.copy()
    b[4] = 9
    result = compare(numpy, a, b, "f32")
    assert not result["equal"]
    assert result["first"] == {"index": 1, "expected": [5], "got": [9]}


def test_selection_by_ranges_mask_and_inverse() -> None:
    a, b = raw([1, 2, 3, 4], "i4"), raw([1, 9, 3, 9], "i4")
    mask = numpy.zeros(16, dtype=bool)
    mask[5] = True
    for ranges, use, invert, differing in [
        ([[4, 8]], None, False, 1),
        ([[0, 4]], None, False, 0),
        (None, mask, False, 1),
        (None, mask, True, 1),
        ([[4, 5]], mask, False, 0),
    ]:
        chosen = select(numpy, 16, "i32", ranges, use, invert)
        assert compare(numpy, a, b, "i32", selected=chosen)["differing"] == differing


def test_empty_buffers_are_equal() -> None:
    empty = numpy.empty(0, dtype="u1")
    assert compare(numpy, empty, empty, "f32", tolerance={"scaled": 1.0})["equal"]


def test_unaligned_data() -> None:
    base = numpy.zeros(13, dtype="u1")
    shifted = base[1:13]
    shifted[:] = raw([1.0, 2.0, 3.0], "f4")
    assert compare(numpy, raw([1.0, 2.0, 3.0], "f4"), shifted, "f32")["equal"]


floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(floats, floats, st.booleans()), min_size=1, max_size=24), st.integers(1, 7))
def test_chunks_do_not_change_the_answer(pairs: list[tuple[float, float, bool]], chunk: int) -> None:
    a = raw([p[0] for p in pairs], "f4")
    b = raw([p[0] if p[2] else p[1] for p in pairs], "f4")
    whole = compare(numpy, a, b, "f32", tolerance={"rel": 1e-3})
    parts = compare(numpy, a, b, "f32", tolerance={"rel": 1e-3}, chunk=chunk)
    for key in whole:
        if key == "rel_l2":
            assert parts[key] == pytest.approx(whole[key], rel=1e-9)
        elif key != "worst":
            assert parts[key] == whole[key]
    fa, fb = a.view("f4").astype("f8"), b.view("f4").astype("f8")
    finite = numpy.isfinite(fa) & numpy.isfinite(fb)
    with numpy.errstate(all="ignore"):
        assert whole["max_abs"] == max([0.0, *numpy.abs(fa - fb)[finite]])
    assert whole["differing"] == int((a.view("u4") != b.view("u4")).sum())


LEFT_OUT = {"max_rel", "max_ulp", "rel_l2", "histogram", "worst"}


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i32", "u8", "bytes"])
@pytest.mark.parametrize("tolerance", [None, {"abs": 1e-3}, {"rel": 1e-2, "ulp": 3}])
def test_what_is_said_in_brief_is_the_same(dtype: str, tolerance: dict[str, float] | None) -> None:
    """Random bits, so NaNs and infinities too, and small changes."""
    rng = numpy.random.default_rng(7)
    a = rng.integers(0, 256, 4099, dtype="u1")
    b = a.copy()
    b[::5] ^= 1
    b[rng.choice(a.size, 50, replace=False)] = 0xFF
    for other in (a, b):
        whole = compare(numpy, a, other, dtype, tolerance=tolerance)
        brief = compare(numpy, a, other, dtype, tolerance=tolerance, brief=True)
        assert brief == {key: value for key, value in whole.items() if key not in LEFT_OUT}
        assert whole.keys() >= LEFT_OUT


def test_the_histogram_bins_distances_by_powers_of_two() -> None:
    one = numpy.float32(1.0).view("u4")
    steps = [0, 0, 1, 2, 3, 4, 5, 8, 9, 1000]
    a = numpy.full(len(steps), one, dtype="u4")
    result = compare(numpy, a.view("u1"), (a + numpy.array(steps, dtype="u4")).view("u1"), "f32")
    # none, 1, 2, 3–4, 5–8, 9–16, 17–32, …, 513–1024
    assert result["histogram"] == [2, 1, 1, 2, 2, 1, 0, 0, 0, 0, 0, 1]
    assert sum(result["histogram"]) == result["compared"]


def test_the_histogram_of_integers_counts_differences_and_leaves_misplaced_nans_out() -> None:
    integers = compare(numpy, raw([7, 7, 7], "i4"), raw([7, 5, -1], "i4"), "i32")
    assert integers["histogram"] == [1, 0, 1, 0, 1]
    widest = compare(numpy, raw([-(1 << 63)], "i8"), raw([(1 << 63) - 1], "i8"), "i64")
    assert widest["histogram"][-1] == 1
    assert len(widest["histogram"]) == 66  # more than 2^63
    nans = compare(numpy, raw([math.nan, 1.0, 2.0], "f4"), raw([1.0, 1.0, 2.0], "f4"), "f32")
    assert (nans["histogram"], nans["nan_mismatch"]) == ([2], 1)


def test_the_histogram_of_one_selection() -> None:
    a, b = raw([1.0, 2.0, 3.0], "f4"), raw([1.0, 2.5, 3.5], "f4")
    chosen = select(numpy, a.size, "f32", [[0, 8]], None, False)
    assert sum(compare(numpy, a, b, "f32", selected=chosen)["histogram"]) == 2


def test_errors_against_exact_values() -> None:
    exact = raw([1.0, 2.0, -4.0, 8.0, math.nan], "f8")
    got = raw([1.0, 2.5, -4.0, math.inf, math.nan], "f4")
    found = error(numpy, exact, got, "f32")
    assert (found["max_abs"], found["max_rel"], found["magnitude"]) == (0.5, 0.25, 4.0)
    assert found["rel_l2"] == pytest.approx(0.5 / math.sqrt(1 + 4 + 16))
    assert found["nan_mismatch"] == 1
    chosen = numpy.array([True, False, True, False, True])
    assert error(numpy, exact, got, "f32", selected=chosen)["max_abs"] == 0


def test_errors_are_the_same_in_chunks() -> None:
    exact, got = raw([float(i) for i in range(1, 9)], "f8"), raw([i + 0.25 * (i % 3) for i in range(1, 9)], "f4")
    assert error(numpy, exact, got, "f32", chunk=3) == error(numpy, exact, got, "f32")


def test_last_bits_flip_and_nothing_else() -> None:
    values = numpy.array([1.0, -3.5, 0.0, math.inf, math.nan, 1e-30] * 50, dtype="f4")
    new = perturbed(numpy, values.view("u1"), "f32", "last-bit", 1).view("f4")
    same = new.view("u4") == values.view("u4")
    assert same[[2, 3, 4]].all()
    assert 60 < numpy.count_nonzero(~same) < 90  # half of 150
    assert numpy.max(numpy.abs(new[~same] / values[~same] - 1)) < 2.0**-22
    assert (perturbed(numpy, values.view("u1"), "f32", "last-bit", 1) == new.view("u1")).all()
    assert (perturbed(numpy, values.view("u1"), "f32", "last-bit", 2) != new.view("u1")).any()


@pytest.mark.parametrize(
    ("values", "low", "high"), [([0.0] * 8, 0.5, 1.5), ([2.0] * 8, 1.0, 3.0), ([-3.0, 3.0] * 4, -4.5, 4.5)]
)
def test_random_floats_keep_size_and_signs(values: list[float], low: float, high: float) -> None:
    new = perturbed(numpy, raw(values * 20, "f4"), "f32", "random", 7).view("f4")
    assert low <= new.min() < new.max() <= high
    assert len(set(new.tolist())) > 100
    assert (new.min() < 0) == (low < 0)


def test_random_integers_change_places() -> None:
    values = numpy.arange(100, dtype="i4")
    new = perturbed(numpy, values.view("u1"), "i32", "random", 7).view("i4")
    assert sorted(new.tolist()) == values.tolist()
    assert (new != values).sum() > 80


def test_a_tail_beyond_the_last_element_stays() -> None:
    data = numpy.arange(11, dtype="u1")
    assert perturbed(numpy, data, "f32", "random", 1)[8:].tolist() == [8, 9, 10]
