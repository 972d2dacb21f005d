"""Vector types: how a few neighbours of one type are loaded and stored by one instruction."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from cuda_agent.model import Assumption
from cuda_agent.rewrite.analysis.sizes import SMALL, spelled_out
from cuda_agent.rewrite.rule import Context

_NATIVE = {"float": "float", "double": "double", "int": "int", "int32_t": "int"}


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


def sizes_seen(context: Context, vectors: Iterable[Vector]) -> tuple[Assumption, ...]:
    """What only the captured launches tell of the elements' sizes: of a name that the file gives several meanings, or
    that another file gives one. A structure asks the compiler."""
    seen = {v.element: v.size for v in vectors if not v.struct and spelled_out(context.module, v.element) not in SMALL}
    return tuple(Assumption(f"{element} has {seen[element]} bytes", "captured") for element in sorted(seen))


def local_vector(context: Context, array: str, element: str, size: int, width: int) -> Vector:
    """The vector for an array's elements, named after it; of a template's own type it is a structure."""
    generic = any(re.search(rf"\b(typename|class)\s+{re.escape(element)}\b", p) for p in context.kernel.template_params)
    struct = context.unused(f"{element}{width}") if generic else ""
    return Vector(context.unused(f"{array}{width}"), element, width, size, struct)
