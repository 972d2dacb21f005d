"""Names of the device functions of cuda_fp16.h and cuda_bf16.h, by the families that the headers consist of.

Functions without side effects only: loads, stores, shuffles and atomics have their names elsewhere. `h2?tanh_approx` is
left out: it is fast-math.
"""

from __future__ import annotations

from itertools import product

_INTEGERS = ("short", "ushort", "int", "uint", "ll", "ull")
_ROUNDINGS = ("rn", "rz", "rd", "ru")


def _conversions(half: str) -> set[str]:
    """Of one type (half, bfloat16) and its pairs, from and to others and itself."""
    return {
        *(f"__{half}2{i}_{r}" for i, r in product(_INTEGERS, _ROUNDINGS)),
        *(f"__{i}2{half}_{r}" for i, r in product(_INTEGERS, _ROUNDINGS)),
        *(f"__float2{half}{r}" for r in ("", *(f"_{r}" for r in _ROUNDINGS))),
        *(f"__{half}2{sign}char_rz" for sign in ("", "u")),
        *(f"__{sign}short_as_{half}" for sign in ("", "u")),
        *(f"__{half}_as_{sign}short" for sign in ("", "u")),
        *(f"__{part}2{half}{width}" for part, width in product(("low", "high"), ("", "2"))),
        *(f"__{part}2{half}2" for part in (half, "halves", "lows", "highs")),
        *(f"__{floats}2{half}2_rn" for floats in ("float", "floats", "float2")),
        *(f"__double2{half}", f"__{half}2float", f"__{half}22float2", f"make_{half}2"),
    }


CONVERSIONS = frozenset(
    {*_conversions("half"), *_conversions("bfloat16"), "__low2float", "__high2float", "__lowhigh2highlow"}
)
_COMPARISONS = [f"{one}{unordered}" for one, unordered in product(("eq", "ne", "lt", "le", "gt", "ge"), ("", "u"))]
_FUNCTIONS = (
    "ceil",
    "cos",
    "exp",
    "exp10",
    "exp2",
    "floor",
    "log",
    "log10",
    "log2",
    "rcp",
    "rint",
    "rsqrt",
    "sin",
    "sqrt",
    "tanh",
    "trunc",
)

# Arithmetic in half precision; half and bfloat16 share the names.
ARITHMETIC = frozenset(
    {
        *(f"__h{op}{w}{how}" for op, w, how in product(("add", "sub", "mul"), ("", "2"), ("", "_rn", "_sat"))),
        *(f"__hfma{w}{how}" for w, how in product(("", "2"), ("", "_sat", "_relu"))),
        *(f"__h{op}{w}{how}" for op, w, how in product(("min", "max"), ("", "2"), ("", "_nan"))),
        *(f"__h{op}{w}" for op, w in product((*_COMPARISONS, "neg", "abs", "isnan"), ("", "2"))),
        *(f"__h{one}2_mask" for one in _COMPARISONS),
        *(f"__hb{one}2" for one in _COMPARISONS),
        *(f"h{w}{function}" for w, function in product(("", "2"), _FUNCTIONS)),
        *("__hdiv", "__h2div", "__hisinf", "__hcmadd"),
    }
)
