"""Element types by their spelling: how many bytes one has, and whether it may hold an index."""

from __future__ import annotations

import re
from functools import lru_cache

from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.source.documents import decode
from cuda_agent.source.symbols import Module

_NAMES = {
    1: "char, signed char, unsigned char, uchar, int8_t, uint8_t, bool, std::int8_t, std::uint8_t",
    2: "short, unsigned short, ushort, int16_t, uint16_t, half, __half, __nv_bfloat16, nv_bfloat16",
    4: "float, int, unsigned, unsigned int, uint, int32_t, uint32_t, half2, __half2, __nv_bfloat162, uchar4, char4",
    8: "double, long long, unsigned long long, int64_t, uint64_t, long, unsigned long, size_t, float2, int2, uint2",
}
# Types of which several fit into one load or store of 16 bytes.
SMALL = {name: size for size, names in _NAMES.items() for name in names.split(", ")}
SIZES = {
    **SMALL,
    **dict.fromkeys(("short2",), 4),
    **dict.fromkeys(("ptrdiff_t",), 8),
    **dict.fromkeys(("float3", "int3", "uint3"), 12),
    **dict.fromkeys(("float4", "int4", "uint4", "double2", "longlong2"), 16),
    "double4": 32,
}
_INTEGER = re.compile(
    r"(?:const\s+)?(?:(?:unsigned|signed|long|int)(?:\s+(?:int|long))*|size_t|ssize_t|ptrdiff_t|u?int(?:32|64)_t|uint|ulong"
    r"|\w*[iI]ndex\w*|\w*[iI]dx_t|\w*IndexType)"
)


def integer_type(spelled: str) -> bool:
    """The type holds any index: an integer of 32 or 64 bits."""
    return _INTEGER.fullmatch(spelled.strip()) is not None


def size_of(element: str, module: Module | None = None) -> int | None:
    """Bytes of an element type, also of a name that the file gives to a known one; None of a template parameter or a
    struct."""
    bare = re.sub(r"\b(?:const|volatile)\b\s*", "", element).strip()
    return SIZES.get(bare if module is None else spelled_out(module, bare))


def spelled_out(module: Module, name: str) -> str:
    """The type that the file's own names for it lead to; the name itself where they lead nowhere."""
    for _ in range(4):
        if name in SIZES or not (meant := _alias(module, name)):
            break
        name = meant
    return name


@lru_cache(maxsize=1024)
def _alias(module: Module, name: str) -> str:
    """What `typedef T name;`, `using name = T;` or `#define name T` of the file stands for; "" of any other name, and
    of one with several meanings."""
    word = re.escape(name.encode("utf-8", "surrogateescape"))
    typedef = rb"\btypedef\s+([\w: ]+?)\s+" + word + rb"\s*;|\busing\s+" + word + rb"\s*=\s*([\w: ]+?)\s*;"
    macro = rb"^[ \t]*#[ \t]*define[ \t]+" + word + rb"[ \t]+([\w: ]+?)[ \t]*\r?$"
    found = [m[1] or m[2] for m in re.finditer(typedef, module.tree.lexed.code)]
    found += [m[1] for m in re.finditer(macro, module.document.data, re.M)]
    return decode(found[0]) if len(set(found)) == 1 else ""


def counts(variable: Variable) -> bool:
    """A loop may count with the variable: its type is an integer, or a name that may stand for one."""
    return (
        integer_type(variable.type)
        or variable.type in ("auto", "char", "short", "unsigned short")
        or _typename(variable)
    )


def _typename(variable: Variable) -> bool:
    return re.fullmatch(r"\w+", variable.type) is not None and size_of(variable.type) is None
