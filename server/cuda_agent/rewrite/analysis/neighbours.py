"""What a loop reads and writes at neighbouring places, one iteration after the other.

Unlike `access.py` it knows one variable only, and keeps the text: address and element can be written out again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tree_sitter import Node

from cuda_agent.model import Edit
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.calls import HINTED_LOADS, HINTED_STORES
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.analysis.strided import StridedLoop
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import enclosing, is_written, operator, strip_parens

_UNSIGNED = re.compile(r"\b(?:threadIdx|blockIdx|blockDim|gridDim)\b")
_SIGN_MATTERS = frozenset(("-", "/", "%", ">>", "<", "<=", ">", ">="))
_NARROW = frozenset(("char", "unsigned char", "uchar", "short", "unsigned short", "ushort", "bool", "float", "half"))


@dataclass(frozen=True)
class Access:
    """One element of memory that an iteration touches: `array[index]`, `*(array + index)`, `__ldcs(array + index)`."""

    node: Node  # what stands for the element: the subscript, the dereference, the whole call of a hint
    array: Node
    index: Node | None  # None: the pointer itself
    kind: Literal["read", "write", "update"]
    hint: str = ""  # name of the cache hint around it
    value: Node | None = None  # what a store with a hint stores

    @property
    def name(self) -> str:
        return text(self.array)

    @property
    def address(self) -> str:
        """The text of where the element is."""
        if self.index is None:
            return self.name
        if self.node.type == "subscript_expression":
            return f"&{self.name}[{text(self.index)}]"
        return f"{self.name} + {text(self.index)}"


class Body:
    """The accesses of one loop body (or of the part of a kernel that runs once a thread) along one variable."""

    def __init__(self, names: Names, body: Node, variable: str) -> None:
        self.names, self.body, self.variable = names, body, variable
        self.context: Context = names.context

    @classmethod
    def of(cls, names: Names, loop: StridedLoop) -> Body:
        return cls(names, loop.body, loop.variable)

    @cached_property
    def accesses(self) -> list[Access]:
        found: list[Access] = []
        hinted: set[int] = set()
        for name, call in syntax.calls(self.body):
            arguments = syntax.field(call, "arguments").named_children
            if len(arguments) == (1 if name in HINTED_LOADS else 2 if name in HINTED_STORES else -1):
                place = _pointed(arguments[0])
                if place is not None:
                    stored = arguments[1] if name in HINTED_STORES else None
                    found.append(Access(call, *place, "write" if name in HINTED_STORES else "read", name, stored))
                    hinted |= {n.id for n in syntax.walk(arguments[0])}
        for n in syntax.of_type(self.body, "subscript_expression", "pointer_expression"):
            if n.id in hinted:
                continue
            place = _element(n)
            if place is not None:
                found.append(Access(n, *place, _kind(n)))
        return sorted(found, key=lambda a: a.node.start_byte)

    @cached_property
    def written(self) -> set[str]:
        """Names of variables that the body changes, and of those it declares."""
        return {n for w in syntax.writes(self.body) if (n := w.name)}

    @cached_property
    def declared(self) -> set[str]:
        return syntax.declared(self.body)

    def coefficient(self, node: Node) -> int | None:
        """By how much the expression grows from one value of the variable to the next; None when that is not one
        known number."""
        node = strip_parens(node)
        if node.type == "identifier":
            return self._of_name(node)
        if node.type == "cast_expression":
            return self.coefficient(syntax.field(node, "value"))
        if node.type == "binary_expression":
            left, right = (self.coefficient(syntax.field(node, f)) for f in ("left", "right"))
            if left is None or right is None:
                return None
            op = text(syntax.field(node, "operator"))
            if op in "+-":
                return left + right if op == "+" else left - right
            if left == right == 0:
                return 0
            if op == "%" and right == 0 and self._is_variable(syntax.field(node, "left")):
                return 1  # where the divisor is a multiple of the vector's width: see `divisors`
            factor = strip_parens(syntax.field(node, "right" if left else "left"))
            if op == "*" and not (left and right) and factor.type == "number_literal" and text(factor).isdigit():
                return (left or right) * int(text(factor))
            return None
        return 0 if all(self.coefficient(n) == 0 for n in node.named_children) else None

    def _is_variable(self, node: Node) -> bool:
        """The loop's variable itself, perhaps under a name of the body's own."""
        node = strip_parens(node)
        local = self.local(node) if node.type == "identifier" and text(node) != self.variable else None
        return self._is_variable(local) if local is not None else text(node) == self.variable

    def divisors(self, node: Node) -> list[str]:
        """Every E of a `variable % E` in the expression: it grows by one within a group of neighbours that starts at
        a multiple of the group's size, if E is a multiple, too."""
        found = []
        for n in syntax.of_type(node, "binary_expression", "identifier"):
            if n.type == "identifier":
                local = self.local(n) if text(n) != self.variable else None
                found += self.divisors(local) if local is not None else []
            elif text(syntax.field(n, "operator")) == "%" and self._is_variable(syntax.field(n, "left")):
                found.append(text(syntax.field(n, "right")))
        return list(dict.fromkeys(found))

    def coefficient_of(self, access: Access) -> int | None:
        """By how many elements the access moves from one iteration to the next."""
        array = self.coefficient(access.array)
        index = 0 if access.index is None else self.coefficient(access.index)
        return None if array is None or index is None else array + index

    def _of_name(self, node: Node) -> int | None:
        name = text(node)
        if name == self.variable:
            return 1
        local = self.local(node)
        if local is not None:
            return self.coefficient(local)
        return None if name in self.written or name in self.declared else 0

    def local(self, node: Node) -> Node | None:
        """The value of a name that the body declares once and never changes."""
        value = self.names.definition(text(node), node)
        if value is None or not syntax.span(self.body).holds(syntax.span(value)):
            return None
        declaration = enclosing(value, "declaration")
        kind = declaration.child_by_field_name("type") if declaration is not None else None
        return None if kind is None or text(kind) in _NARROW else value

    def unconditional(self, node: Node, *, through_loops: bool = False) -> bool:
        """Whether every iteration reaches the node; with `through_loops`, if the loops around it run at all."""
        skip = next((n.start_byte for n in syntax.of_type(self.body, "continue_statement")), None)
        if skip is not None and node.start_byte > skip:
            return False
        current = node
        while current != self.body:
            above = current.parent
            if above is None or above.type in ("lambda_expression", "switch_statement", "else_clause"):
                return False
            if above.type in syntax.LOOPS and not through_loops:
                return False
            if not self.unconditional_in(current, above):
                return False
            current = above
        return True

    @staticmethod
    def unconditional_in(node: Node, above: Node) -> bool:
        """Whether what is directly around the node always comes to it."""
        always = None
        if above.type in ("if_statement", "conditional_expression"):
            always = above.child_by_field_name("condition")
        elif above.type == "binary_expression" and text(syntax.field(above, "operator")) in ("&&", "||"):
            always = above.child_by_field_name("left")
        return always in (None, node)

    def expanded(self, node: Node, value: str) -> str:
        """The expression's text with the body's own names spelled out and `value` for the variable."""
        edits = []
        for n in syntax.of_type(node, "identifier"):
            if text(n) == self.variable:
                edits.append(Edit(syntax.span(n), f"({value})" if " " in value and tight(n) else value))
            elif (local := self.local(n)) is not None:
                inner = self.expanded(local, value)
                cast = _cast(local, inner, n, node)
                edits.append(Edit(syntax.span(n), f"{cast}({inner})" if cast or _parenthesised(local, n) else inner))
        return self.context.edited(syntax.span(node), edits)

    def base(self, access: Access) -> str:
        """The text of the address where the variable is 0: `x + row * cols`."""
        if access.index is None:
            return self.expanded(access.array, "0")
        rest = self._rest(access.index)
        return f"{access.name} + {rest}" if rest else access.name

    def _rest(self, index: Node) -> str:
        """A sum without the variable; "" when nothing is left."""
        terms = [(s, n) for s, n in self._terms(index) if not self._is_variable(_undivided(n))]
        kept = [(s, self.expanded(n, "0")) for s, n in terms]
        code = "".join(f" {'+' if s > 0 else '-'} {t}" for s, t in kept)
        return code.removeprefix(" + ").strip() if not code.startswith(" -") else code.strip()

    def _terms(self, node: Node) -> Iterator[tuple[int, Node]]:
        for sign, term in syntax.additive_terms(node):
            term = strip_parens(term)
            local = self.local(term) if term.type == "identifier" and text(term) != self.variable else None
            if local is not None:
                yield from ((sign * s, n) for s, n in self._terms(local))
            else:
                yield sign, term

    def key(self, access: Access) -> str:
        """Equal for accesses to the same element."""
        return squeeze(self.base(access))


def _undivided(node: Node) -> Node:
    """`v` of `v % E`."""
    node = strip_parens(node)
    if node.type == "binary_expression" and text(syntax.field(node, "operator")) == "%":
        return syntax.field(node, "left")
    return node


def _cast(local: Node, inner: str, name: Node, within: Node) -> str:
    """`(int)` where the value of `int name = threadIdx.x` stands in the place of `name`, and an operator around it
    gives something else without a sign; else ""."""
    declaration = enclosing(local, "declaration")
    kind = text(syntax.field(declaration, "type")) if declaration is not None else ""
    if kind not in ("int", "long", "long long", "int64_t") or not _UNSIGNED.search(inner):
        return ""
    node: Node | None = name
    while node is not None and node != within:
        node = node.parent
        if node is not None and operator(node) in _SIGN_MATTERS:
            return f"({kind})"
    return ""


def _parenthesised(value: Node, place: Node) -> bool:
    """Whether the value needs parentheses in that place."""
    value = strip_parens(value)
    if value.type == "binary_expression" and text(syntax.field(value, "operator")) in ("+", "-", "*", "/", "%"):
        return tight(place)
    return value.type in ("binary_expression", "conditional_expression", "assignment_expression")


def tight(node: Node) -> bool:
    """A sum in place of the node needs parentheses: it is a factor, is subtracted or cast."""
    above = node.parent
    if above is None:
        return False
    if above.type != "binary_expression":
        pointed = above.type in ("subscript_expression", "field_expression", "call_expression")
        inner = above.child_by_field_name("argument") or above.child_by_field_name("function")
        return above.type in ("cast_expression", "unary_expression", "pointer_expression") or (
            pointed and inner == node
        )
    return text(syntax.field(above, "operator")) != "+"


def _kind(node: Node) -> Literal["read", "write", "update"]:
    if not is_written(node):
        return "read"
    above = node.parent
    while above is not None and above.type == "parenthesized_expression":
        above = above.parent
    assert above is not None
    plain = above.type == "assignment_expression" and text(syntax.field(above, "operator")) == "="
    return "write" if plain else "update"


def _element(node: Node) -> tuple[Node, Node | None] | None:
    """(array, index) of a subscript or a dereference."""
    if node.type == "subscript_expression":
        indices, array = node.child_by_field_name("indices"), node.child_by_field_name("argument")
        if indices is None or array is None or indices.named_child_count != 1:
            return None
        return (array, indices.named_children[0])
    argument = node.child_by_field_name("argument")
    return _pointed(argument) if argument is not None and not text(node).startswith("&") else None


def _pointed(node: Node) -> tuple[Node, Node | None] | None:
    """(array, index) that a pointer expression points at: `x + i`, `&x[i]`, `x`."""
    node = strip_parens(node)
    if node.type == "pointer_expression" and text(node).startswith("&"):
        inner = strip_parens(syntax.field(node, "argument"))
        return _element(inner) if inner.type == "subscript_expression" else None
    if node.type == "binary_expression" and text(syntax.field(node, "operator")) == "+":
        left, right = strip_parens(syntax.field(node, "left")), syntax.field(node, "right")
        if left.type == "identifier":
            return left, right
        if left.type == "binary_expression" and re.match(r"\w+\s*\+", text(left)):
            return None  # x + a + b: written as a chain, the index is not one node
    return (node, None) if node.type == "identifier" else None
