"""Pointers as places in an array: which array, and which element as a polynomial."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from tree_sitter import Node

from cuda_agent.rewrite.analysis.inline import global_array
from cuda_agent.rewrite.analysis.names import Names, Variable
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.analysis.sizes import size_of
from cuda_agent.source.tree import arguments, field, masked, operator, strip_parens, subscript_parts, walk

_DEPTH = 40


@dataclass(frozen=True)
class Place:
    """An element of an array: `index` counts elements of type `element` from where `base` points. `base` is a
    parameter, an array of the kernel, or a global. `inner` are the extents still to be subscripted."""

    base: str
    index: Poly
    element: str
    inner: tuple[Poly, ...] = ()

    def moved(self, by: Poly) -> Place:
        return replace(self, index=self.index + by)


class Places:
    """The pointers of one kernel; `poly` reads an expression of it, `depends` what a variable depends on."""

    def __init__(
        self, scope: Names, poly: Callable[[Node], Poly], depends: Callable[[Variable], frozenset[str]]
    ) -> None:
        self.names, self.poly, self.depends = scope, poly, depends
        self.module = scope.module
        self._pointing: set[int] = set()

    def place(self, node: Node) -> Place | None:
        node = strip_parens(node)
        if node.type == "subscript_expression":
            array, index = subscript_parts(node)
            found = self.pointer(array) if array is not None else None
            if found is None or index is None:
                return None
            by = self.poly(index)
            for extent in found.inner[1:]:
                by = by * extent
            return replace(found.moved(by), inner=found.inner[1:])
        if node.type == "pointer_expression" and operator(node) == "*":
            argument = field(node, "argument")
            return self.pointer(argument) if argument is not None else None
        if node.type == "field_expression":
            argument = field(node, "argument")
            if argument is not None and masked(node)[len(masked(argument)) :].lstrip().startswith("->"):
                return self.pointer(argument)
            return self.place(argument) if argument is not None else None
        return None

    def pointer(self, node: Node, depth: int = 0) -> Place | None:
        node = strip_parens(node)
        if depth > _DEPTH:
            return None
        match node.type:
            case "identifier":
                return self._named(node, depth)
            case "subscript_expression":  # a row of an array of arrays
                found = self.place(node)
                return found if found is not None and found.inner else None
            case "pointer_expression" if operator(node) == "&":
                argument = field(node, "argument")
                found = self.place(argument) if argument is not None else None
                if argument is not None and argument.type == "field_expression":
                    return None
                return found
            case "binary_expression" if operator(node) in ("+", "-"):
                left, right = field(node, "left"), field(node, "right")
                if left is None or right is None:
                    return None
                for one, other in ((left, right), (right, left)):
                    found = self.pointer(one, depth + 1)
                    if found is not None and not found.inner[1:] and (one is left or operator(node) == "+"):
                        by = self.poly(other)
                        return found.moved(by if operator(node) == "+" else -by)
                return None
            case "cast_expression":
                value, kind = field(node, "value"), field(node, "type")
                return self._cast(value, masked(kind), depth) if value is not None else None
            case "call_expression":
                given = arguments(node)
                cast = re.fullmatch(
                    r"(?:reinterpret|static|const)_cast\s*<(.*)>", masked(field(node, "function")), re.S
                )
                if cast and len(given) == 1:
                    return self._cast(given[0], cast[1], depth)
        return None

    def _cast(self, value: Node, kind: str, depth: int) -> Place | None:
        found = self.pointer(value, depth + 1)
        element = re.sub(r"\b(?:const|volatile|__restrict__|restrict)\b", "", kind.split("*")[0]).strip()
        if found is None or kind.count("*") != 1:
            return None
        if found.element == element:
            return replace(found, inner=())
        if found.index == Poly():
            return replace(found, element=element, inner=())
        old, new = size_of(found.element), size_of(element)
        if old is None or new is None:
            return None
        if (old % new) == 0:
            return replace(found, element=element, index=found.index * (old // new), inner=())
        scaled = Poly.operation("/", found.index * old, Poly.constant(new))
        return replace(found, element=element, index=scaled, inner=())

    def _named(self, node: Node, depth: int) -> Place | None:
        if node.id in self._pointing:
            return None  # a pointer that is made from itself
        self._pointing.add(node.id)
        try:
            return self._pointed(node, depth)
        finally:
            self._pointing.discard(node.id)

    def _pointed(self, node: Node, depth: int) -> Place | None:
        variable = self.names.resolve(masked(node), node.start_byte)
        if variable is None:
            element = global_array(self.module, masked(node))
            return Place(masked(node), Poly(), element) if element is not None else None
        if variable.is_array:
            extents = tuple(self.poly(e) for e in variable.extents)
            return Place(variable.symbol, Poly(), variable.type, extents or (Poly(),))
        if variable.param is not None and self.names.initial(variable, node):
            return Place(variable.symbol, Poly(), variable.type) if variable.pointer == 1 else None
        if variable.pointer != 1 and variable.type != "auto":
            return None
        write = self.names.reaching(variable, node)
        if write is not None:
            if write.op in ("init", "=") and write.value is not None:
                value = write.value
                if value.type in ("argument_list", "initializer_list") and value.named_child_count == 1:
                    value = value.named_children[0]
                found = self.pointer(value, depth + 1)
                return replace(found, inner=found.inner[1:] and found.inner) if found is not None else None
            if write.op in ("+=", "-=") and write.value is not None:
                before = self._named(write.target, depth + 1)
                by = self.poly(write.value)
                return before.moved(by if write.op == "+=" else -by) if before is not None else None
        return self._moving(variable, node, depth)

    def _moving(self, variable: Variable, read: Node, depth: int) -> Place | None:
        """A pointer that changes: within one array still, where every value comes from that array."""
        roots = set()
        element = variable.type
        for w in variable.writes:
            if w.op in ("+=", "-=", "++", "--"):
                continue
            if w.value is None:
                return None
            if variable.name in {masked(n) for n in walk(w.value, "identifier")}:
                continue  # p = p + n
            found = self.pointer(w.value, depth + 1)
            if found is None:
                return None
            roots.add(found.base)
        if variable.param is not None:
            roots.add(variable.symbol)
        if len(roots) != 1 or variable.escapes:
            return None
        index = Poly.symbol(self.names.version(variable, read), self.depends(variable))
        return Place(roots.pop(), index, element)
