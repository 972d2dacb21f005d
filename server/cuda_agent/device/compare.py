"""How two buffers differ, element by element, on whichever device they live (xp = numpy or cupy).

Work goes in chunks, so that a comparison needs little memory beside the buffers. `a` is the reference (expected), `b`
is under test. Equality is of bits: -0 differs from +0, and a NaN equals only the same NaN. Distances are over
elements finite on both sides:

    max_abs  max |a - b|                 max_rel  max |a - b| / max(|a|, |b|)
    rel_l2   ||a - b|| / ||a||           max_ulp  representable numbers between a and b
    nan_mismatch  elements where one side is NaN or an infinity and the other is not the same
    histogram  compared elements by distance (ulp of floats, |a - b| of integers): none, 1, 2, up to 4, up to 8, …;
               trailing empty bins are left out, and nan_mismatch elements are in none
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from cuda_agent.device import masks

CHUNK = 1 << 23  # elements
BIN_ENDS = (0, *(1 << power for power in range(64)))  # largest distance in each bin; the last bin has no end

# dtype name → (bytes an element, kind). "x" compares bits only.
DTYPES: dict[str, tuple[int, str]] = {
    "f64": (8, "f"),
    "f32": (4, "f"),
    "f16": (2, "f"),
    "bf16": (2, "f"),
    "i8": (1, "i"),
    "i16": (2, "i"),
    "i32": (4, "i"),
    "i64": (8, "i"),
    "u8": (1, "u"),
    "u16": (2, "u"),
    "u32": (4, "u"),
    "u64": (8, "u"),
    "bool": (1, "u"),
    "bytes": (1, "u"),
}
_NUMPY = {"f64": "float64", "f32": "float32", "f16": "float16", "bool": "uint8", "bytes": "uint8"}


def numpy_dtype(dtype: str) -> str:
    """The numpy type that holds the element's bits or value (bf16 as uint16)."""
    if dtype == "bf16":
        return "uint16"
    return _NUMPY.get(dtype) or {"i": "int", "u": "uint"}[dtype[0]] + dtype[1:]


def elements(xp: Any, data: Any, dtype: str) -> Any:
    """uint8 bytes as elements; copies where the address is not aligned to the element (a shifted buffer)."""
    size = DTYPES[dtype][0]
    whole = data[: data.size // size * size]
    pointer = whole.data.ptr if hasattr(whole.data, "ptr") else whole.ctypes.data
    if pointer % size:
        whole = xp.array(whole, copy=True)
    return whole.view(numpy_dtype(dtype))


def values(xp: Any, array: Any, dtype: str) -> Any:
    """Elements as float64; exact for every type but 64-bit integers (those are only reported, never judged, as
    floats)."""
    if dtype == "bf16":
        array = (array.astype(xp.uint32) << 16).view(xp.float32)
    return array.astype(xp.float64)


def ordered(xp: Any, array: Any, dtype: str) -> Any:
    """Float bits as unsigned 64-bit integers in the order of the numbers, so that a difference counts representable
    steps."""
    bits_of = 8 * DTYPES[dtype][0]
    bits = array.view(f"uint{bits_of}").astype(xp.uint64)
    sign = xp.uint64(1 << (bits_of - 1))
    everything = xp.uint64((1 << bits_of) - 1)
    return xp.where((bits & sign) != 0, bits ^ everything, bits | sign)


def python_value(array: Any, index: int, dtype: str, xp: Any) -> float | int | str:
    """One element for a sentence: a number, or "nan", "inf", "-inf"."""
    item = array[index : index + 1]
    if DTYPES[dtype][1] != "f":
        return int(item[0])
    value = float(values(xp, item, dtype)[0])
    return value if math.isfinite(value) else str(value)


@dataclass(slots=True)
class Tally:
    """Running totals over chunks of one buffer."""

    dtype: str
    compared: int = 0
    differing: int = 0
    outside: int = 0
    nan_mismatch: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: int = 0
    rel_l2: float = 0.0
    worst: dict[str, Any] | None = None
    worst_size: float = -1.0
    first: dict[str, Any] | None = None
    first_outside: dict[str, Any] | None = None
    tail: int = 0  # bytes beyond the last whole element that differ
    bins: list[int] = field(default_factory=lambda: [0] * (len(BIN_ENDS) + 1))  # of the elements that differ

    def result(self, tolerance: bool, brief: bool) -> dict[str, Any]:
        out: dict[str, Any] = {
            "dtype": self.dtype,
            "equal": self.differing == 0 and self.tail == 0,
            "compared": self.compared,
            "differing": self.differing + (1 if self.tail else 0),
            "max_abs": self.max_abs,
            "nan_mismatch": self.nan_mismatch,
            "first": self.first_outside if tolerance and self.first_outside else self.first,
        }
        if not brief:
            out |= {"max_rel": self.max_rel, "max_ulp": self.max_ulp, "rel_l2": self.rel_l2}
            out |= {"histogram": self.histogram(), "worst": self.worst}
        if tolerance:
            out["outside"] = self.outside + (1 if self.tail else 0)
            out["within"] = out["outside"] == 0
        return out

    def histogram(self) -> list[int]:
        counts = [self.bins[0] + self.compared - self.differing, *self.bins[1:]]
        return counts[: max((at + 1 for at, count in enumerate(counts) if count), default=0)]

    def count(self, xp: Any, distances: Any) -> None:
        """Add distances (uint64) to the bins."""
        places = xp.searchsorted(xp.asarray(BIN_ENDS, dtype=xp.uint64), distances)
        for at, number in enumerate(xp.bincount(places, minlength=len(self.bins)).tolist()):
            self.bins[at] += number


def compare(
    xp: Any,
    a: Any,
    b: Any,
    dtype: str,
    *,
    selected: Any | None = None,
    tolerance: Mapping[str, float] | None = None,
    brief: bool = False,
    chunk: int = CHUNK,
) -> dict[str, Any]:
    """Compare uint8 arrays of equal size. `selected` is a bool per element (None: all). `brief`: without max_rel,
    max_ulp, rel_l2, histogram and worst, which are most of the work where much differs. `tolerance` may hold abs,
    rel, scaled and ulp: a float element is within when |a - b| <= abs + rel*|a| + scaled*max|a|, or is at most `ulp`
    steps away; a NaN or infinity must be matched by the same. Integers are within only when equal."""
    if dtype not in DTYPES:
        dtype = "bytes"
    ea, eb = elements(xp, a, dtype), elements(xp, b, dtype)
    tally = Tally(dtype)
    parts = [slice(start, min(start + chunk, ea.size)) for start in range(0, ea.size, chunk)]
    with numpy.errstate(all="ignore"):  # infinities and signalling NaNs are data here
        limit = _scale(xp, ea, dtype, tolerance, chunk) if tolerance and DTYPES[dtype][1] == "f" else 0.0
        for part in parts:
            _add(xp, tally, ea[part], eb[part], part.start, _of(selected, part), tolerance, limit, brief)
        if tally.differing and not brief:
            tally.rel_l2 = _relative_l2(xp, ea, eb, dtype, selected, parts)
    rest = ea.size * DTYPES[dtype][0]
    if rest < a.size and selected is None:
        tally.tail = int(xp.count_nonzero(a[rest:] != b[rest:]))
        if tally.tail and tally.first is None:
            tally.first = {"index": int(ea.size), "expected": a[rest:].tolist(), "got": b[rest:].tolist()}
    return tally.result(tolerance is not None, brief)


def _of(selected: Any | None, part: slice) -> Any | None:
    return None if selected is None else selected[part]


def _relative_l2(xp: Any, a: Any, b: Any, dtype: str, selected: Any | None, parts: Sequence[slice]) -> float:
    """||a - b|| / ||a|| over elements finite on both sides; 1.0 where a is zero and b is not."""
    for scale in (1.0, 2.0**-600):  # the second time for squares beyond float64
        squares = norm = 0.0
        for part in parts:
            va, vb = values(xp, a[part], dtype) * scale, values(xp, b[part], dtype) * scale
            keep = xp.isfinite(va) & xp.isfinite(vb)
            if selected is not None:
                keep &= selected[part]
            squares += float(xp.sum(xp.where(keep, va - vb, 0.0) ** 2))
            norm += float(xp.sum(xp.where(keep, va, 0.0) ** 2))
        if math.isfinite(squares) and math.isfinite(norm):
            break
    if norm > 0:
        return math.sqrt(squares / norm)
    return 1.0 if squares > 0 else 0.0


def _scale(xp: Any, array: Any, dtype: str, tolerance: Mapping[str, float], chunk: int) -> float:
    """scaled * max|a| over the finite elements."""
    if not tolerance.get("scaled"):
        return 0.0
    top = 0.0
    for start in range(0, array.size, chunk):
        v = xp.abs(values(xp, array[start : start + chunk], dtype))
        top = max(top, float(xp.where(xp.isfinite(v), v, 0.0).max()))
    return tolerance["scaled"] * top


def _add(
    xp: Any,
    t: Tally,
    a: Any,
    b: Any,
    start: int,
    selected: Any | None,
    tolerance: Mapping[str, float] | None,
    limit: float,
    brief: bool,
) -> None:
    bits = f"uint{8 * DTYPES[t.dtype][0]}"
    differs = a.view(bits) != b.view(bits)
    if selected is not None:
        differs &= selected
    chosen = [] if selected is None else [masks.count(xp, selected)]
    count, *compared = xp.stack([masks.count(xp, differs), *chosen]).tolist()  # one look at the device's answer
    t.compared += compared[0] if compared else int(a.size)
    if count == 0:
        return
    t.differing += count
    where = xp.flatnonzero(differs)
    da, db = a[where], b[where]
    if t.first is None:
        t.first = _element(xp, da, db, where, 0, start, t.dtype)
    if DTYPES[t.dtype][1] == "f":
        _add_floats(xp, t, da, db, where, start, tolerance, limit, brief)
    else:
        _add_integers(xp, t, da, db, where, start, brief)


def _add_floats(
    xp: Any,
    t: Tally,
    a: Any,
    b: Any,
    where: Any,
    start: int,
    tolerance: Mapping[str, float] | None,
    limit: float,
    brief: bool,
) -> None:
    va, vb = values(xp, a, t.dtype), values(xp, b, t.dtype)
    finite = xp.isfinite(va) & xp.isfinite(vb)
    same = (va == vb) | (xp.isnan(va) & xp.isnan(vb))  # zeros of both signs, NaNs of any payload
    t.nan_mismatch += int(xp.count_nonzero(~finite & ~same))
    difference = xp.where(finite, xp.abs(va - vb), 0.0)
    t.max_abs = max(t.max_abs, float(difference.max()))
    near = tolerance.get("ulp", 0) if tolerance is not None else 0
    steps: Any = _steps(xp, a, b, finite, t.dtype) if near or not brief else None
    if not brief:
        larger = xp.maximum(xp.abs(va), xp.abs(vb))
        relative = xp.where(finite & (larger > 0), difference / xp.where(larger > 0, larger, 1.0), 0.0)
        t.max_rel = max(t.max_rel, float(relative.max()))
        t.max_ulp = max(t.max_ulp, int(steps.max()))
        t.count(xp, steps[finite | same])
        # A misplaced NaN is worse than any distance.
        _keep_worst(xp, t, a, b, where, start, xp.where(~finite & ~same, xp.inf, difference))
    if tolerance is not None:
        allowed = tolerance.get("abs", 0.0) + tolerance.get("rel", 0.0) * xp.abs(va) + limit
        close = difference <= allowed
        if near:
            close |= steps <= xp.uint64(int(near))
        outside = xp.flatnonzero(~(same | (finite & close)))
        t.outside += int(outside.size)
        if outside.size and t.first_outside is None:
            t.first_outside = _element(xp, a, b, where, int(outside[0]), start, t.dtype)


def _steps(xp: Any, a: Any, b: Any, finite: Any, dtype: str) -> Any:
    """Representable numbers between finite elements, 0 for the others."""
    oa, ob = ordered(xp, a, dtype), ordered(xp, b, dtype)
    return xp.where(finite, xp.maximum(oa, ob) - xp.minimum(oa, ob), xp.uint64(0))


def _add_integers(xp: Any, t: Tally, a: Any, b: Any, where: Any, start: int, brief: bool) -> None:
    unsigned = xp.where(a > b, a, b).astype(xp.uint64) - xp.where(a > b, b, a).astype(
        xp.uint64
    )  # wraps right for signed
    t.max_abs = max(t.max_abs, float(unsigned.max()))
    t.outside += int(a.size)
    if t.first_outside is None:
        t.first_outside = t.first
    if not brief:
        va, vb = values(xp, a, t.dtype), values(xp, b, t.dtype)
        larger = xp.maximum(xp.abs(va), xp.abs(vb))
        t.count(xp, unsigned)
        t.max_rel = max(t.max_rel, float((unsigned.astype(xp.float64) / xp.where(larger > 0, larger, 1.0)).max()))
        _keep_worst(xp, t, a, b, where, start, unsigned.astype(xp.float64))


def _keep_worst(xp: Any, t: Tally, a: Any, b: Any, where: Any, start: int, badness: Any) -> None:
    at = int(xp.argmax(badness))
    size = float(badness[at])
    if size > t.worst_size:
        t.worst_size, t.worst = size, _element(xp, a, b, where, at, start, t.dtype)


def _element(xp: Any, a: Any, b: Any, where: Any, at: int, start: int, dtype: str) -> dict[str, Any]:
    return {
        "index": start + int(where[at]),
        "expected": python_value(a, at, dtype, xp),
        "got": python_value(b, at, dtype, xp),
    }


def error(
    xp: Any, exact: Any, got: Any, dtype: str, *, selected: Any | None = None, chunk: int = CHUNK
) -> dict[str, Any]:
    """How far the float elements of `got` (uint8 bytes of `dtype`) lie from `exact`, the bytes of as many float64.

    `max_abs` and `rel_l2` (over the L2 norm of `exact`) are over elements finite on both sides, `magnitude` is
    max|exact| there, `max_rel` the largest error over |exact| where that is not zero, `nan_mismatch` counts elements
    finite on one side only."""
    wide, narrow = elements(xp, exact, "f64"), elements(xp, got, dtype)
    top = {"max_abs": 0.0, "max_rel": 0.0, "magnitude": 0.0}
    squares = norm = 0.0
    mismatch = 0
    with numpy.errstate(all="ignore"):
        for start in range(0, narrow.size, chunk):
            part = slice(start, min(start + chunk, narrow.size))
            we, ge = wide[part], values(xp, narrow[part], dtype)
            finite, seen = xp.isfinite(we) & xp.isfinite(ge), xp.isfinite(we) ^ xp.isfinite(ge)
            if selected is not None:
                finite, seen = finite & selected[part], seen & selected[part]
            mismatch += int(xp.count_nonzero(seen))
            magnitude = xp.where(finite, xp.abs(we), 0.0)
            distance = xp.where(finite, xp.abs(we - ge), 0.0)
            relative = xp.where(magnitude > 0, distance / xp.where(magnitude > 0, magnitude, 1.0), 0.0)
            for key, array in (("max_abs", distance), ("max_rel", relative), ("magnitude", magnitude)):
                top[key] = max(top[key], float(array.max()))
            squares += float(xp.sum(distance**2))
            norm += float(xp.sum(magnitude**2))
    rel_l2 = math.sqrt(squares / norm) if norm > 0 else (1.0 if squares > 0 else 0.0)
    return {**top, "rel_l2": rel_l2, "nan_mismatch": mismatch}


def perturbed(xp: Any, data: Any, dtype: str, change: str, seed: int) -> Any:
    """Other values for the bytes of a buffer, the same for the same seed on every device.

    `last-bit` flips the lowest bit of about half of the finite, nonzero floats: inputs as good as the old ones.
    `random` gives floats 0.5 to 1.5 times the old ones' root mean square (1 where that is zero), of both signs where
    the old ones hold a negative number; integers change places."""
    array = elements(xp, data, dtype)
    index = xp.arange(array.size, dtype=xp.uint64)
    noise = index * xp.uint64(0x9E3779B97F4A7C15) + xp.uint64((seed + 1) * 0xD1342543DE82EF95 % 2**64)
    noise = (noise ^ (noise >> xp.uint64(29))) * xp.uint64(0xBF58476D1CE4E5B9)
    noise = noise ^ (noise >> xp.uint64(32))
    if change == "random" and DTYPES[dtype][1] != "f":
        out = array[xp.argsort(noise)]
    elif change == "random":
        out = _random_floats(xp, array, dtype, noise)
    else:
        bits_of = 8 * DTYPES[dtype][0]
        bits = array.view(f"uint{bits_of}")
        numbers = values(xp, array, dtype)
        flip = (noise & xp.uint64(1)).astype(bits.dtype)
        out = xp.where(xp.isfinite(numbers) & (numbers != 0), bits ^ flip, bits)
    result = xp.array(data, copy=True)
    result[: array.size * DTYPES[dtype][0]] = xp.ascontiguousarray(out).view("uint8")
    return result


def _random_floats(xp: Any, array: Any, dtype: str, noise: Any) -> Any:
    numbers = values(xp, array, dtype)
    with numpy.errstate(all="ignore"):
        finite = xp.where(xp.isfinite(numbers), numbers, 0.0)
        scale = math.sqrt(float((finite**2).mean())) if array.size else 0.0
    scale = scale if scale > 0 and math.isfinite(scale) else 1.0
    unit = (noise >> xp.uint64(40)).astype(xp.float64) / 2.0**24
    signed = bool((finite < 0).any())
    new = scale * (0.5 + unit) * (xp.where((noise & xp.uint64(1)) == 1, -1.0, 1.0) if signed else 1.0)
    if dtype == "bf16":
        return (new.astype(xp.float32).view(xp.uint32) >> xp.uint32(16)).astype(xp.uint16)
    return new.astype(numpy_dtype(dtype))


def select(
    xp: Any, size: int, dtype: str, ranges: Sequence[Sequence[int]] | None, mask: Any | None, invert: bool
) -> Any | None:
    """Which elements to compare: those that touch a byte of `ranges` and of `mask` (a bool per byte); `invert` takes
    the others. None means all."""
    if ranges is None and mask is None:
        return None
    width = DTYPES.get(dtype, (1, "u"))[0]
    chosen = mask
    if ranges is not None:
        chosen = xp.zeros(size, dtype=bool)
        for low, high in ranges:
            chosen[low:high] = True
        if mask is not None:
            chosen &= mask
    per_element = masks.elements(xp, chosen, width)
    return ~per_element if invert else per_element
