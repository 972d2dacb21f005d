"""From a kernel's signature to a launch's bytes: concrete types, the parameter block, a name, initial values.

Used by `spec` and `synthesize`, which make workloads without running a program. Only flat signatures: scalars and
pointers to scalars (CUDA's vector types count as scalars).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cuda_agent.errors import NoInputs
from cuda_agent.model import Kernel, Param
from cuda_agent.workload import elements
from cuda_agent.workload.elements import SIZES, ElementType

Values = Literal["normal", "uniform", "zeros", "ones", "arange", "integers", "constant"]

# Itanium C++ ABI codes of the builtin types.
_CODES = {
    "void": "v",
    "bool": "b",
    "char": "c",
    "signed char": "a",
    "unsigned char": "h",
    "short": "s",
    "unsigned short": "t",
    "int": "i",
    "unsigned int": "j",
    "unsigned": "j",
    "long": "l",
    "unsigned long": "m",
    "long long": "x",
    "unsigned long long": "y",
    "float": "f",
    "double": "d",
    "int8_t": "a",
    "uint8_t": "h",
    "int16_t": "s",
    "uint16_t": "t",
    "int32_t": "i",
    "uint32_t": "j",
    "int64_t": "l",
    "uint64_t": "m",
    "size_t": "m",
    "uint": "j",
    "uchar": "h",
    "ushort": "t",
    "ulong": "m",
}
_PACK: dict[ElementType, str] = {
    "f64": "d",
    "f32": "f",
    "f16": "e",
    "i8": "b",
    "u8": "B",
    "i16": "h",
    "u16": "H",
    "i32": "i",
    "u32": "I",
    "i64": "q",
    "u64": "Q",
}
_NUMPY: dict[ElementType, str] = {name: f"<{name[0]}{SIZES[name]}" for name in _PACK}


@dataclass(frozen=True, slots=True)
class Concrete:
    """One parameter of an instantiation. `width` is the components of a vector type (float4: 4), else 1."""

    name: str
    type: str  # element type, concrete, as C++ spells it
    element: ElementType
    width: int
    pointer: bool
    const: bool

    @property
    def size(self) -> int:
        """Bytes of the element (not of the pointer)."""
        return SIZES[self.element] * self.width


def concrete(kernel: Kernel, template: Sequence[str], text: str) -> tuple[Concrete, ...]:
    """The kernel's parameters with template parameters, typedefs and simple macros of the file replaced.

    Raises NoInputs, which names the first parameter that is no scalar and no pointer to scalars.
    """
    known = dict(zip(template_names(kernel), template, strict=False))
    if len(known) < len(kernel.template_params):
        missing = ", ".join(template_names(kernel)[len(template) :])
        raise NoInputs(f"{kernel.qualified_name} is a template; its arguments {missing} are not known")
    return tuple(_concrete(param, known, text) for param in kernel.params)


def template_names(kernel: Kernel) -> list[str]:
    """`typename T`, `int N = 4` → T, N."""
    found = (re.findall(r"[A-Za-z_]\w*", part.split("=")[0]) for part in kernel.template_params)
    return [words[-1] if words else "" for words in found]


def _concrete(param: Param, known: Mapping[str, str], text: str) -> Concrete:
    if param.pointer > 1 or "&" in param.type or "[" in param.type:
        raise NoInputs(
            f"the parameter {param.name} has the type {param.type}: only scalars and pointers to scalars can be made "
            "up; capture a run instead"
        )
    type_ = resolve_type(param.element, known, text)
    element = "i32" if _is_enum(type_, text) else elements.element_of(type_)
    if element == "bytes":
        raise NoInputs(
            f"the parameter {param.name} has the type {param.type}, which is no number: its values cannot be made up; "
            "capture a run instead"
        )
    return Concrete(param.name, type_, element, elements.width(type_), param.pointer == 1, param.const)


def _is_enum(type_: str, text: str) -> bool:
    """An unscoped or scoped enumeration of the file, of the default underlying type."""
    return bool(
        re.search(rf"\benum\s+(?:class\s+|struct\s+)?{type_}\s*\{{|\benum\b[^;{{}}]*\{{[^}}]*\}}\s*{type_}\s*;", text)
        if re.fullmatch(r"\w+", type_)
        else False
    )


def resolve_type(spelled: str, known: Mapping[str, str], text: str) -> str:
    """Follows template parameters, `typedef`, `using` and `#define` of the file to a type that C++ knows."""
    type_ = elements.plain(spelled)
    for _ in range(8):
        if type_ in known:
            type_ = elements.plain(known[type_])
        elif elements.element_of(type_) != "bytes" or not re.fullmatch(r"\w+", type_):
            break
        elif found := re.search(
            rf"\btypedef\s+([\w\s:<>]+?)\s+{type_}\s*;|\busing\s+{type_}\s*=\s*([\w\s:<>]+?)\s*;"
            rf"|^[ \t]*#[ \t]*define[ \t]+{type_}[ \t]+([\w ]+?)[ \t]*$",
            text,
            re.MULTILINE,
        ):
            type_ = elements.plain(next(group for group in found.groups() if group))
        else:
            break
    return type_


# ---------------------------------------------------------------- the parameter block


BASE = 1 << 40  # made-up addresses: apart from each other, never 0
_PAGE = 1 << 21


def spread(size: int) -> int:
    """From one made-up address to the next."""
    return (size // _PAGE + 2) * _PAGE


def offsets(params: Sequence[Concrete]) -> list[int]:
    """Where each argument lies in the parameter block: natural alignment (CUDA's vector types align to their size, up
    to 16; three-component types to the component)."""
    at, found = 0, []
    for param in params:
        size = 8 if param.pointer else param.size
        component = SIZES[param.element]
        align = 8 if param.pointer else component if param.width == 3 else min(size, 16)
        at = -(-at // align) * align
        found.append(at)
        at += size
    return found


def scalar(param: Concrete, value: float) -> bytes:
    """The bytes of a scalar argument, repeated over a vector type's components. ValueError when it does not fit."""
    whole = param.element not in ("f64", "f32", "f16", "bf16")
    if whole and value != int(value):
        raise ValueError(f"{param.name} is an integer and {value} is not")
    try:
        if param.element == "bf16":
            one = struct.pack("<f", value)[2:]
        else:
            one = struct.pack("<" + _PACK[param.element], int(value) if whole else value)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{value} does not fit {param.name} of type {param.type}") from error
    return one * param.width


# ---------------------------------------------------------------- values


def fill(element: ElementType, count: int, values: Values, seed: int, low: float, high: float) -> bytes:
    """`count` components. `normal`: mean 0, deviation 1 (integers: 100); `uniform`, `integers`: [low, high)."""
    rng = np.random.default_rng(seed)
    data: NDArray[np.float64]
    floating = element in ("f64", "f32", "f16", "bf16")
    match values:
        case "normal":
            data = rng.standard_normal(count) * (1.0 if floating else 100.0)
            if element.startswith("u"):
                data = np.abs(data)
        case "uniform":
            data = rng.uniform(low, high, count)
        case "integers":
            data = rng.integers(int(low), max(int(high), int(low) + 1), count).astype(np.float64)
        case "arange":
            data = np.arange(count, dtype=np.float64)
        case "zeros":
            data = np.zeros(count)
        case "ones":
            data = np.ones(count)
        case "constant":
            data = np.full(count, low)
    return encode(element, data)


def encode(element: ElementType, data: NDArray[np.float64]) -> bytes:
    """Numbers as the element's bytes; integers wrap as a C cast to the unsigned type would."""
    if element == "bf16":
        return (data.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    if element in ("f64", "f32", "f16"):
        with np.errstate(over="ignore"):
            return data.astype(_NUMPY[element]).tobytes()
    return np.trunc(data).astype("<i8").astype(_NUMPY[element]).tobytes()


# ---------------------------------------------------------------- names


def mangle(kernel: Kernel, params: Sequence[Concrete], template: Sequence[str]) -> str:
    """An Itanium name that demangles to this instantiation. The compiler's own may differ (it writes a template's
    parameter types through the template parameters), so look it up by what it demangles to (`names.match`)."""
    if kernel.extern_c:
        return kernel.name
    seen: list[str] = []  # substitution candidates
    parts = [part for part in kernel.qualified_name.split("::") if part != "(anonymous namespace)"]
    *scopes, name = [re.sub(r"<.*", "", part) for part in parts]
    text = ""
    for depth, scope in enumerate(scopes):
        text += f"{len(scope)}{scope}"
        seen.append("::".join(scopes[: depth + 1]))
    text += f"{len(name)}{name}"
    if template:
        seen.append("::".join([*scopes, name]))
        text += "I" + "".join(_template_code(argument, seen) for argument in template) + "E"
    text = f"N{text}E" if scopes else text
    codes = "".join(_type_code(param, seen) for param in params) or "v"
    return f"_Z{text}{'v' if template else ''}{codes}"


def _template_code(argument: str, seen: list[str]) -> str:
    argument = argument.strip()
    if argument in ("true", "false"):
        return f"Lb{int(argument == 'true')}E"
    if re.fullmatch(r"-?\d+", argument):
        return f"Li{argument.replace('-', 'n')}E"
    return _plain_code(elements.plain(argument), seen)


def _plain_code(type_: str, seen: list[str]) -> str:
    if type_ in _CODES:
        return _CODES[type_]
    if type_ in seen:
        return _substitution(seen.index(type_))
    seen.append(type_)
    return f"{len(type_)}{type_}"


def _type_code(param: Concrete, seen: list[str]) -> str:
    if not param.pointer:
        return _plain_code(param.type, seen)
    whole = f"{param.type} const*" if param.const else f"{param.type}*"
    if whole in seen:
        return _substitution(seen.index(whole))
    inner = _plain_code(param.type, seen)
    if param.const:
        constant = f"{param.type} const"
        if constant in seen:
            inner = _substitution(seen.index(constant))
        else:
            inner = "K" + inner
            seen.append(constant)
    seen.append(whole)
    return "P" + inner


def _substitution(index: int) -> str:
    if index == 0:
        return "S_"
    digits, index = "", index - 1
    while True:
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[index % 36] + digits
        index //= 36
        if index == 0:
            return f"S{digits}_"
