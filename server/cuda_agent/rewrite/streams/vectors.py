"""Vector types: how a few neighbours of one type are loaded and stored by one instruction."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cuda_agent.rewrite.rule import Context
from cuda_agent.toolchain import names

_SIZES = {
    1: "char, signed char, unsigned char, uchar, int8_t, uint8_t, bool, std::int8_t, std::uint8_t",
    2: "short, unsigned short, ushort, int16_t, uint16_t, half, __half, __nv_bfloat16, nv_bfloat16",
    4: "float, int, unsigned, unsigned int, uint, int32_t, uint32_t, half2, __half2, __nv_bfloat162, uchar4, char4",
    8: "double, long long, unsigned long long, int64_t, uint64_t, long, unsigned long, size_t, float2, int2, uint2",
}
SIZES = {name: size for size, text in _SIZES.items() for name in text.split(", ")}
_NATIVE = {"float": "float", "double": "double", "int": "int", "int32_t": "int"}


def element_size(context: Context, name: str, element: str) -> int | None:
    """Bytes of an array's element: from its spelling, a `typedef`, `using` or `#define` of this file, or from the
    instantiation that was captured."""
    own = next((p.element for p in context.kernel.params if p.name == name), None) == element
    for _ in range(4):
        if element in SIZES:
            return SIZES[element]
        name_of = re.escape(element)
        meant = re.search(
            rf"^[ \t]*#[ \t]*define[ \t]+{name_of}[ \t]+([\w: ]+?)[ \t]*$"
            rf"|\busing\s+{name_of}\s*=\s*([\w: ]+?)\s*;|\btypedef\s+([\w: ]+?)\s+{name_of}\s*;",
            context.text,
            re.M,
        )
        if meant is None:
            break
        element = next(g for g in meant.groups() if g)
    return _captured_size(context, name) if own else None


def _captured_size(context: Context, name: str) -> int | None:
    position = next((i for i, p in enumerate(context.kernel.params) if p.name == name), None)
    found = set()
    for launch in context.workload.launches if context.workload else ():
        types = names.param_types(launch.mangled)
        if position is None or position >= len(types):
            return None
        found.add(SIZES.get(names.element_type(types[position])))
    return found.pop() if len(found) == 1 else None


@dataclass(frozen=True)
class Vector:
    """`width` neighbours of `element`, held in the local variable `name`. A type whose size depends on the
    instantiation is moved as a structure (`struct`), others as CUDA's vector of the same bytes."""

    name: str
    element: str
    width: int
    size: int  # bytes of an element
    struct: str = ""

    @property
    def bytes(self) -> int:
        return self.width * self.size

    @property
    def type(self) -> str:
        if self.struct:
            return self.struct
        native = _NATIVE.get(self.element)
        if native and (self.width in (2, 4)) and self.bytes <= 16:
            return f"{native}{self.width}"
        return {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short"}[self.bytes]

    @property
    def definition(self) -> str:
        """The structure's own definition; "" when none is needed."""
        if not self.struct:
            return ""
        aligned = f"alignas({self.width} * sizeof({self.element}))"
        return f"struct {aligned} {self.struct} {{ {self.element} at[{self.width}]; }};"

    def load(self, address: str, hint: str = "") -> str:
        place = f"reinterpret_cast<const {self.type} *>({address})"
        value = f"{hint}({place})" if hint and not self.struct else f"*{place}"
        return f"{self._whole()} = {value};"

    def store(self, address: str, hint: str = "") -> str:
        place = f"reinterpret_cast<{self.type} *>({address})"
        return f"{hint}({place}, {self._whole()});" if hint and not self.struct else f"*{place} = {self._whole()};"

    def _whole(self) -> str:
        return self.name if self.struct else f"*reinterpret_cast<{self.type} *>({self.name})"

    def at(self, k: str) -> str:
        return f"{self.name}.at[{k}]" if self.struct else f"{self.name}[{k}]"

    @property
    def modulus(self) -> str:
        """What an address must be a multiple of."""
        return f"alignof({self.struct})" if self.struct else str(self.bytes)


def declarations(vectors: list[Vector]) -> list[str]:
    """The statements that declare them, those of one type together."""
    found: dict[str, list[str]] = {}
    for v in vectors:
        kind = v.struct or f"__align__({v.bytes}) {v.element}"
        found.setdefault(kind, []).append(v.name if v.struct else f"{v.name}[{v.width}]")
    return [f"{kind} {', '.join(declared)};" for kind, declared in found.items()]


def local_vector(context: Context, array: str, element: str, size: int, width: int) -> Vector:
    """The vector for an array's elements, named after it; of a template's own type it is a structure."""
    generic = any(re.search(rf"\b(typename|class)\s+{re.escape(element)}\b", p) for p in context.kernel.template_params)
    struct = context.unused(f"{element}{width}") if generic else ""
    return Vector(context.unused(f"{array}{width}"), element, width, size, struct)
