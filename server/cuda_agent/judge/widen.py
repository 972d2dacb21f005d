"""A file's text with float64 where it says float32: the kernel that the numeric rule's shadow runs.

Types (`float`, `float4`, `make_float4`), math functions (`expf` → `exp`, `__expf` → `exp`), arithmetic and conversions
with a rounding mode (`__fadd_rn` → `__dadd_rn`) are spelled for double in the whole file, host code and macro bodies
included, so that launches still fit their kernels. A literal keeps the value it has as a float (`0.1f` →
`double(0.1f)`): constants are inputs, and only the arithmetic is to be exact. What looks at the bits of a float has no
float64 counterpart: `refusal` names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from cuda_agent.device.emulator.tokens import Token, tokenize

_MATH = """acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi cyl_bessel_i0 cyl_bessel_i1 erf erfc
erfcinv erfcx erfinv exp exp10 exp2 expm1 fabs fdim floor fma fmax fmin fmod frexp hypot ilogb j0 j1 ldexp lgamma llrint
llround log log10 log1p log2 logb lrint lround modf nearbyint nextafter norm3d norm4d normcdf normcdfinv pow rcbrt
remainder remquo rhypot rint rnorm3d rnorm4d round rsqrt scalbln scalbn sin sincos sincospi sinh sinpi sqrt tan tanh
tgamma trunc y0 y1"""
_INTRINSICS = {
    "__expf": "exp", "__exp10f": "exp10", "__exp2f": "exp2", "__logf": "log", "__log2f": "log2", "__log10f": "log10",
    "__powf": "pow", "__sinf": "sin", "__cosf": "cos", "__tanf": "tan", "__tanhf": "tanh", "__sincosf": "sincos",
    "__fdividef": "__ddiv_rn", "fdividef": "__ddiv_rn", "__frsqrt_rn": "rsqrt",
}  # fmt: skip
_FUNCTIONS: dict[str, str] = {f"{name}f": name for name in re.findall(r"\w+", _MATH)} | _INTRINSICS
_ROUNDED = re.compile(
    r"__(f(?:add|sub|mul|div|rcp|sqrt)|fmaf|float2u?(?:int|ll)|float2ull|u?(?:int|ll)2float)_(r[nzud])"
)
_VECTOR = re.compile(r"(make_)?float([1-4]?)")
_LITERAL = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?f", re.IGNORECASE)
# What reads or makes the bits of a float, or computes in a type that is no float32 at all.
_BITS = re.compile(
    r"__(float|int|uint)_as_(int|uint|float)|(__builtin_)?bit_cast|union|asm|__asm__|memcpy|wmma|mma_sync|"
    r"(__)?half2?|__nv_bfloat162?|nv_bfloat162?|__half2?float\w*|__float2half\w*|__saturatef|tex\w+|surf\w+"
)
_CAST = re.compile(r"(?:\(\s*|reinterpret_cast\s*<\s*)((?:const\s+|volatile\s+)*[\w:]+(?:\s+\w+)*?)\s*\*")
_FLOATS = re.compile(r"(const\s+|volatile\s+|\s)*(float[1-4]?|double[1-4]?|T|scalar_t|void)(\s+const)?")


def widen(text: str) -> str:
    """The text in float64. It never fails; what it cannot mean is `refusal`'s to say."""
    tokens = tokenize(text)
    out: list[str] = []
    at = 0
    for i, token in enumerate(tokens):
        new = _replacement(tokens, i)
        if new is not None:
            out += (text[at : token.start], new)
            at = token.end
    return "".join([*out, text[at:]])


def _replacement(tokens: Sequence[Token], i: int) -> str | None:
    token = tokens[i]
    if token.kind == "number":
        return f"double({token.text})" if _LITERAL.fullmatch(token.text) else None
    if token.kind != "word":
        return None
    if vector := _VECTOR.fullmatch(token.text):
        if i >= 2 and tokens[i - 1].text == "<" and tokens[i - 2].text == "numeric_limits":
            return None  # a constant: it keeps its value
        return f"{vector[1] or ''}double{vector[2]}"
    if token.text in _FUNCTIONS:
        return _FUNCTIONS[token.text]
    if token.text == "__double2float_rn":  # the rounding that the shadow is to be without
        return "(double)"
    if rounded := _ROUNDED.fullmatch(token.text):
        name, mode = rounded[1], rounded[2]
        if "2float" in name:
            return f"__{name.replace('float', 'double')}_rn"
        if name == "fmaf":
            return f"__fma_{mode}"
        return f"__{name.replace('float', 'double') if 'float' in name else 'd' + name[1:]}_{mode}"
    return None


def refusal(words: Iterable[str], code: str, params: Iterable[tuple[str, str]]) -> str | None:
    """Why code that only a device runs has no float64 version, in a sentence; None when it has.

    `words` are its identifiers, `code` its text, `params` (name, type) of the kernel."""
    for word in words:
        if _BITS.fullmatch(word):
            return f"it uses {word}"
    integers = {name for name, type_ in params if "*" in type_ and not re.search(r"\b(float|T|void)", type_)}
    for match in _CAST.finditer(code):
        if _FLOATS.fullmatch(match[1]) or not _is_cast(code, match):
            continue
        operand = re.match(r"[\s*>)(&]*(\w+)", code[match.end() :])
        if operand is None or operand[1] not in integers:
            return f"it reinterprets memory as {' '.join(match[1].split())}"
    return None


def _is_cast(code: str, match: re.Match[str]) -> bool:
    """`(int *)x` and `reinterpret_cast<int *>(x)`; not a product `(a * b)` nor a parameter list `(int *a, …)`."""
    if match[0].startswith("reinterpret"):
        return True
    return re.match(r"[\s*]*(const\s*|__restrict__\s*)?\)", code[match.end() :]) is not None
