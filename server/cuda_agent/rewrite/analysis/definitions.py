"""The one value that a local name of a kernel stands for, and the array that a pointer comes from, as text.

By blocks: a name has a value where it is declared with it and never changed. `names.py` follows every write.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tree_sitter import Node

from cuda_agent.model import Param
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import Write, squeeze, text
from cuda_agent.source.tree import base, enclosing, name_of, strip_parens

_RANK = {"*": 2, "/": 2, "%": 2, "+": 1, "-": 1}
_SCOPES = ("compound_statement", "for_statement", "function_definition")


@dataclass(frozen=True)
class Named:
    """A write of a whole variable: its name, and the block in which the name is visible when this declares it."""

    name: str
    write: Write
    scope: Node | None


class Names:
    """The variables of one kernel: which value each has where."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.params: dict[str, Param] = {p.name: p for p in context.kernel.params}
        self._definitions: dict[tuple[str, int], Node | None] = {}

    @cached_property
    def writes(self) -> dict[str, list[Named]]:
        found: dict[str, list[Named]] = {}
        for write in syntax.writes(self.context.body):
            if write.op != "init" and write.target.type != "identifier":
                continue
            name = name_of(write.target)
            if name is not None:
                scope = enclosing(write.node, _SCOPES) if write.op == "init" else None
                found.setdefault(name, []).append(Named(name, write, scope))
        return found

    @cached_property
    def _bare(self) -> set[str]:
        """Variables declared without a value, or whose address is taken."""
        found = set()
        for n in syntax.of_type(self.context.body, "declaration"):
            found |= {text(c) for c in n.children_by_field_name("declarator") if c.type == "identifier"}
        for n in syntax.of_type(self.context.body, "pointer_expression"):
            if text(n).startswith("&") and (argument := n.child_by_field_name("argument")) is not None:
                found |= {text(argument)}
        return found

    @cached_property
    def _declarations(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = {}
        for n in syntax.of_type(self.context.body, "declaration"):
            for declarator in n.children_by_field_name("declarator"):
                name = name_of(declarator)
                if name is not None:
                    found.setdefault(name, []).append(n)
        return found

    def type_of(self, name: str) -> str | None:
        """The type that a parameter or local variable is declared with everywhere, without const."""
        if name in self.params:
            return None if self.params[name].pointer else self.params[name].element
        kinds = {text(syntax.field(n, "type")) for n in self._declarations.get(name, ())}
        return kinds.pop() if len(kinds) == 1 else None

    def definition(self, name: str, at: Node) -> Node | None:
        """The one value that `name` has at the node `at`: declared with it and never changed. None when unknown."""
        place = name, at.start_byte
        if place not in self._definitions:
            self._definitions[place] = self._definition(name, at)
        return self._definitions[place]

    def _definition(self, name: str, at: Node) -> Node | None:
        seen = [
            n
            for n in self.writes.get(name, ())
            if n.scope is not None and n.scope.start_byte <= at.start_byte < n.scope.end_byte
        ]
        if not seen or name in self._bare:
            return None
        found = max(seen, key=lambda n: (n.scope.start_byte if n.scope else 0, n.write.node.start_byte))
        assert found.scope is not None
        inside = [
            n for n in self.writes[name] if found.scope.start_byte <= n.write.node.start_byte < found.scope.end_byte
        ]
        return found.write.value if len(inside) == 1 else None

    def resolved(self, node: Node) -> str:
        """The expression without white space, casts of whole and unchanged local names."""
        node = _bare_value(node)
        if node.type == "identifier" and (value := self.definition(text(node), node)) is not None:
            return self.resolved(value)
        if node.type == "binary_expression":
            op = text(syntax.field(node, "operator"))
            left, right = (self._operand(syntax.field(node, f), op, f) for f in ("left", "right"))
            return f"{left}{op}{right}"
        return squeeze(text(node))

    def _operand(self, node: Node, outer: str, side: str) -> str:
        """One side of `outer`, in parentheses where it would be read otherwise without them."""
        code = self.resolved(node)
        inner = self._final(node)
        if inner.type != "binary_expression":
            return code
        op = text(syntax.field(inner, "operator"))
        first, second = _RANK.get(op, -1), _RANK.get(outer, -1)
        plain = first > second or (first == second and (side == "left" or op == outer == "+"))
        return code if plain else f"({code})"

    def _final(self, node: Node) -> Node:
        node = _bare_value(node)
        if node.type == "identifier" and (value := self.definition(text(node), node)) is not None:
            return self._final(value)
        return node

    def root(self, place: Node) -> str | None:
        """The parameter or shared array that holds a place in memory (`x[i]`, `*p`, `x[i].y`) or that a pointer points
        into; None when it cannot be told."""
        return self._pointer(base(_bare_value(place)))

    def _pointer(self, node: Node) -> str | None:
        node = _bare_value(node)
        if node.type == "cast_expression":
            return self._pointer(syntax.field(node, "value"))
        if node.type == "pointer_expression":
            return self.root(syntax.field(node, "argument")) if text(node).startswith("&") else None
        if node.type == "binary_expression" and text(syntax.field(node, "operator")) in "+-":
            return self._pointer(syntax.field(node, "left")) or self._pointer(syntax.field(node, "right"))
        if node.type != "identifier":
            return None
        name = text(node)
        if name in self.params:
            return name if self.params[name].pointer == 1 and name not in self.writes else None
        if any(s.name == name for s in self.context.kernel.shared):
            return name
        value = self.definition(name, node)
        return self._pointer(value) if value is not None else None

    def roots(self, place: Node) -> frozenset[str]:
        """As `root`, for a pointer that is set at several places: all it may point into; empty when it cannot be
        told."""
        one = self.root(place)
        if one is not None:
            return frozenset((one,))
        node = base(_bare_value(place))
        if node.type != "identifier" or text(node) in self.params:
            return frozenset()
        set_to = [n.write.value for n in self.writes.get(text(node), ()) if n.write.op in ("init", "=")]
        found = {self._pointer(value) if value is not None else None for value in set_to}
        return frozenset(n for n in found if n is not None) if None not in found else frozenset()

    def element(self, array: Node) -> str | None:
        """The element type of a pointer, as spelled where it was declared; None when it is not a plain pointer."""
        node = _bare_value(array)
        if node.type != "identifier":
            return None
        name = text(node)
        if name in self.params:
            return self.params[name].element if self.params[name].pointer == 1 else None
        shared = next((s for s in self.context.kernel.shared if s.name == name), None)
        if shared is not None:
            return shared.element if shared.dynamic or len(shared.extents) == 1 else None
        value = self.definition(name, node)
        for n in self._declarations.get(name, ()):
            for pointer in syntax.of_type(n, "pointer_declarator"):
                if name_of(pointer) == name and text(pointer).count("*") != 1:
                    return None
                if name_of(pointer) == name and (kind := text(syntax.field(n, "type"))) != "auto":
                    return kind
        return self._element_of(value) if value is not None else None

    def _element_of(self, value: Node) -> str | None:
        value = strip_parens(value)
        while value.type == "binary_expression":
            value = strip_parens(syntax.field(value, "left"))
        return self.element(value)


def _bare_value(node: Node) -> Node:
    """Without parentheses and casts to whole-number types."""
    while True:
        node = strip_parens(node)
        if node.type == "cast_expression" and "*" not in text(syntax.field(node, "type")):
            node = syntax.field(node, "value")
        else:
            return node
