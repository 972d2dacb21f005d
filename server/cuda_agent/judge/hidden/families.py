"""Value families: other float data of the same size, drawn from what the recorded data show.

`permuted`, `sorted`, `constant` and `normal` stay inside the recorded range; the others leave it on purpose, and keep
its sign where the recorded data have only one. Integers change places, and bytes become any byte: what a wider integer
may be, nobody knows but the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuda_agent.workload.elements import SIZES, ElementType
from cuda_agent.workload.layout import encode

Floats = NDArray[np.float64]
FLOATS: tuple[ElementType, ...] = ("f64", "f32", "f16", "bf16")
_NUMPY = {"f64": "<f8", "f32": "<f4", "f16": "<f2"}
# Far out, with room for a square and a sum before the type overflows; and well inside the denormal numbers.
_HUGE = {"f64": 1e100, "f32": 1e15, "f16": 100.0, "bf16": 1e15}
_TINY = {"f64": 1e-310, "f32": 1e-40, "f16": 1e-6, "bf16": 1e-39}
ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
Draw = Callable[[Floats, ElementType, np.random.Generator], Floats]


def decode(data: bytes, dtype: ElementType) -> Floats:
    """The numbers in a buffer of floats; bytes after the last whole element are left out."""
    whole = data[: len(data) // SIZES[dtype] * SIZES[dtype]]
    if dtype == "bf16":
        return (np.frombuffer(whole, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    return np.frombuffer(whole, _NUMPY[dtype]).astype(np.float64)


def redraw(data: bytes, dtype: ElementType, family: str, seed: int) -> bytes:
    """`data` with every element replaced by one of the family; integers by one of `ORDERS`, bytes also of `BYTES`."""
    count, rng = len(data) // SIZES[dtype], np.random.default_rng(seed)
    if not count:
        return data
    rest = data[count * SIZES[dtype] :]
    if dtype in FLOATS:
        return encode(dtype, FAMILIES[family](decode(data, dtype), dtype, rng)) + rest
    numbers = np.frombuffer(data[: count * SIZES[dtype]], f"<{dtype[0]}{SIZES[dtype]}")
    return (BYTES.get(family) or ORDERS[family])(numbers, rng).tobytes() + rest


def _finite(old: Floats) -> Floats:
    kept = old[np.isfinite(old)]
    return kept if kept.size else np.zeros(1)


def _signed(old: Floats, values: Floats) -> Floats:
    """Without the sign that the recorded data never have."""
    kept = _finite(old)
    if kept.min() >= 0:
        return np.abs(values)
    return -np.abs(values) if kept.max() <= 0 else values


def _normal(old: Floats, dtype: ElementType, rng: np.random.Generator) -> Floats:
    kept = _finite(old)
    return np.clip(rng.normal(kept.mean(), kept.std() or 1e-3, old.size), kept.min(), kept.max())


def _heavy(old: Floats, dtype: ElementType, rng: np.random.Generator) -> Floats:
    scale = float(np.abs(_finite(old)).max()) or 1.0
    limit = min(1e4 * scale, _HUGE[dtype])
    return _signed(old, np.clip(rng.standard_cauchy(old.size) * scale / 4, -limit, limit))


def _zeros(old: Floats, dtype: ElementType, rng: np.random.Generator) -> Floats:
    return np.zeros(old.size)


def _ones(old: Floats, dtype: ElementType, rng: np.random.Generator) -> Floats:
    return np.ones(old.size)


def _denormal(old: Floats, dtype: ElementType, rng: np.random.Generator) -> Floats:
    return _signed(old, rng.uniform(-1, 1, old.size) * _TINY[dtype])


def _negative_zero(old: Floats, dtype: ElementType, rng: np.random.Generator) -> Floats:
    return np.where(rng.random(old.size) < 0.5, -0.0, old)


def _huge(old: Floats, dtype: ElementType, rng: np.random.Generator) -> Floats:
    return _signed(old, rng.uniform(-1, 1, old.size) * _HUGE[dtype])


def _sorted(old: Floats, dtype: ElementType, rng: np.random.Generator) -> Floats:
    return np.sort(old)


def _descending(old: Floats, dtype: ElementType, rng: np.random.Generator) -> Floats:
    return np.sort(old)[::-1].copy()


def _constant(old: Floats, dtype: ElementType, rng: np.random.Generator) -> Floats:
    kept = _finite(old)
    return np.full(old.size, np.sort(kept)[kept.size // 2])


def _permuted(old: Floats, dtype: ElementType, rng: np.random.Generator) -> Floats:
    return rng.permutation(old)


def _sprinkled(value: float) -> Draw:
    """A few elements, never the first, become NaN or infinite; at least one of a small buffer."""

    def draw(old: Floats, dtype: ElementType, rng: np.random.Generator) -> Floats:
        new = old.copy()
        if old.size > 1:
            new[rng.choice(np.arange(1, old.size), max(1, min(old.size // 50, 64)), replace=False)] = value
        return new

    return draw


FAMILIES: dict[str, Draw] = {
    "a few NaN": _sprinkled(float("nan")),
    "permuted": _permuted,
    "heavy tail": _heavy,
    "constant": _constant,
    "sorted": _sorted,
    "zeros": _zeros,
    "negative zeros": _negative_zero,
    "normal": _normal,
    "sorted downwards": _descending,
    "a few infinities": _sprinkled(float("inf")),
    "huge": _huge,
    "ones": _ones,
    "denormal": _denormal,
}
Integers = NDArray[Any]


def _any_byte(old: Integers, rng: np.random.Generator) -> Integers:
    """Any number of the type, none below 0 where there is none; two numbers alone are a mask and stay one."""
    if np.unique(old).size <= 2:
        return rng.permutation(old)
    least, most = np.iinfo(old.dtype).min, np.iinfo(old.dtype).max
    return rng.integers(least if old.min() < 0 else 0, most, old.size, old.dtype, endpoint=True)


# What integers may become: the same ones in another order.
ORDERS: dict[str, Callable[[Integers, np.random.Generator], Integers]] = {
    "permuted": lambda old, rng: rng.permutation(old),
    "sorted": lambda old, rng: np.sort(old),
    "sorted downwards": lambda old, rng: np.sort(old)[::-1],
}
BYTES: dict[str, Callable[[Integers, np.random.Generator], Integers]] = {"any bytes": _any_byte}
NAMES = tuple(dict.fromkeys(("a few NaN", "permuted", *BYTES, *FAMILIES)))  # in the order in which they find most
REPEATED = frozenset(("constant", "ones"))
NOT_FINITE = frozenset(("a few NaN", "a few infinities"))


def nudge(data: bytes, dtype: ElementType, seed: int, ulps: int) -> bytes:
    """Every finite element that is not zero moved by up to `ulps` representable numbers, up or down."""
    unsigned = np.dtype(f"<u{SIZES[dtype]}")
    count = len(data) // SIZES[dtype]
    bits = np.frombuffer(data[: count * SIZES[dtype]], unsigned).copy()
    numbers = decode(data, dtype)
    rng = np.random.default_rng(seed)
    step = rng.integers(-ulps, ulps + 1, count)
    magnitude = bits & unsigned.type((1 << (8 * SIZES[dtype] - 1)) - 1)
    movable = np.isfinite(numbers) & (magnitude > ulps)
    moved = np.where(movable, bits.astype(np.int64) + step if SIZES[dtype] < 8 else bits.view(np.int64) + step, 0)
    new = np.where(movable, moved.astype(unsigned), bits)
    new = np.where(np.isfinite(decode(new.astype(unsigned).tobytes(), dtype)), new, bits)
    return new.astype(unsigned).tobytes() + data[count * SIZES[dtype] :]
