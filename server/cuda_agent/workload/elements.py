"""What a buffer's bytes are: the element type of the pointer that reaches it, by the instantiation's parameters."""

from __future__ import annotations

import re
from typing import Literal, get_args

from cuda_agent.errors import NoInputs
from cuda_agent.model import Launch

ElementType = Literal[
    "f64", "f32", "f16", "bf16", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bytes"
]  # fmt: skip

SIZES: dict[ElementType, int] = {
    name: (1 if name == "bytes" else 2 if name == "bf16" else int(name[1:]) // 8) for name in get_args(ElementType)
}

_SCALARS: dict[str, ElementType] = {
    "double": "f64",
    "float": "f32",
    "__half": "f16",
    "half": "f16",
    "__nv_bfloat16": "bf16",
    "nv_bfloat16": "bf16",
    "bool": "u8",
    "char": "i8",
    "signed char": "i8",
    "unsigned char": "u8",
    "short": "i16",
    "unsigned short": "u16",
    "int": "i32",
    "unsigned int": "u32",
    "unsigned": "u32",
    "long": "i64",
    "unsigned long": "u64",
    "long long": "i64",
    "unsigned long long": "u64",
    "int8_t": "i8",
    "uint8_t": "u8",
    "int16_t": "i16",
    "uint16_t": "u16",
    "int32_t": "i32",
    "uint32_t": "u32",
    "int64_t": "i64",
    "uint64_t": "u64",
    "size_t": "u64",
    "ptrdiff_t": "i64",
    "uchar": "u8",
    "ushort": "u16",
    "uint": "u32",
    "ulong": "u64",
}

# CUDA's vector types: the comparison works on their components.
_VECTORS: dict[str, ElementType] = {
    "double": "f64",
    "float": "f32",
    "char": "i8",
    "uchar": "u8",
    "short": "i16",
    "ushort": "u16",
    "int": "i32",
    "uint": "u32",
    "long": "i64",
    "ulong": "u64",
    "longlong": "i64",
    "ulonglong": "u64",
}
_PAIRS: dict[str, ElementType] = {
    "__half2": "f16",
    "half2": "f16",
    "__nv_bfloat162": "bf16",
    "nv_bfloat162": "bf16",
    "cuComplex": "f32",
    "cuFloatComplex": "f32",
    "cuDoubleComplex": "f64",
}


def plain(type_: str) -> str:
    """The type without cv-qualifiers, `__restrict__`, `std::` and needless spaces: `float const *` → `float*`."""
    text = re.sub(r"\b(const|volatile|__restrict__|__restrict|restrict|struct|typename)\b", " ", type_)
    text = re.sub(r"\bstd::", "", text)
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"\s*([*&])\s*", r"\1", text)


def element_of(type_: str) -> ElementType:
    """Element type of a scalar, vector or complex type (not a pointer), as C++ spells it; else `bytes`."""
    text = plain(type_)
    words = text.split()
    if set(words) <= {"unsigned", "signed", "long", "short", "int"} and words:
        text = _integer(words)
    if text in _SCALARS:
        return _SCALARS[text]
    if text in _PAIRS:
        return _PAIRS[text]
    if match := re.fullmatch(r"(u?[a-z]+)[1-4](?:_(?:16|32)a)?", text):
        return _VECTORS.get(match[1], "bytes")
    if match := re.fullmatch(r"(?:[\w]+::)*complex<(.+)>", text):
        return element_of(match[1])
    return "bytes"


def width(type_: str) -> int:
    """Components of a scalar (1), vector or complex type."""
    if type_ in ("half2", "__half2", "nv_bfloat162", "__nv_bfloat162") or "omplex" in type_:
        return 2
    match = re.fullmatch(r"u?(?:char|short|int|long|longlong|float|double)([1-4])(?:_(?:16|32)a)?", type_)
    return int(match[1]) if match else 1


def sizeof(type_: str) -> int:
    """Bytes of a scalar or vector type. Raises NoInputs for any other."""
    element = element_of(type_)
    if element == "bytes":
        raise NoInputs(f"the size of {type_} is not known")
    return SIZES[element] * width(type_)


def _integer(words: list[str]) -> str:
    """One spelling for `long unsigned int`, `unsigned`, `long int` …"""
    sign = "unsigned " if "unsigned" in words else ""
    if "short" in words:
        return sign + "short"
    longs = words.count("long")
    return sign + ("long " * longs).strip() if longs else sign + "int"


def pointee(type_: str) -> str | None:
    """`float const*` → `float`; None when the type is no pointer or a pointer to a pointer."""
    text = plain(type_)
    return text[:-1] if text.endswith("*") and not text[:-1].endswith("*") and text.count("*") == 1 else None


def signature(launch: Launch, param_types: tuple[str, ...]) -> tuple[ElementType, ...]:
    """Element type of every buffer of the launch, by the parameters that reach it.

    A buffer reached through a struct, through pointers of different types, or by no argument is `bytes` (compared
    exactly).
    """
    found: list[set[ElementType]] = [set() for _ in launch.buffers]
    args = sorted(launch.args, key=lambda arg: arg.offset)
    known = len(args) == len(param_types)
    for index, arg in enumerate(args):
        target = pointee(param_types[index]) if known else None
        for pointer in arg.pointers:
            direct = target is not None and pointer.at == 0 and len(arg.data) == 8
            found[pointer.buffer].add(element_of(target) if direct and target is not None else "bytes")
    return tuple(next(iter(types)) if len(types) == 1 else "bytes" for types in found)
