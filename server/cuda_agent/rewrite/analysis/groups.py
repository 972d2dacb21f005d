"""How an expression changes over a group of neighbouring elements that starts at a multiple of the group's width.

With an index i at a multiple of 4 and C a multiple of 4, i / C is the same for the four neighbours and i % C grows by
one. What must be a multiple of the width is collected as it is used: a list of alternatives (sets of parameters, one
of which must be a multiple), all of which must hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from tree_sitter import Node

from cuda_agent.judge import launch_text
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.documents import read
from cuda_agent.source.symbols import Module
from cuda_agent.source.symbols import module as parse_module
from cuda_agent.source.tree import strip_parens

Needs = tuple[frozenset[str], ...]  # one of each set must be a multiple of the width
ALWAYS: Needs = ()


@dataclass(frozen=True)
class Value:
    """What an expression is for the elements of a group."""

    stride: int | None  # by how much it grows from one element to the next; None: not by one known number
    needs: Needs = ALWAYS  # for `stride` to be true
    multiple: Needs | None = None  # for the first element's value to be a multiple of the width; None: it may not be
    quotient: frozenset[str] | None = None  # it is the index divided by a product of these, and perhaps others

    @property
    def required(self) -> Needs:
        return self.needs if self.quotient is None else (*self.needs, self.quotient)

    @property
    def same(self) -> bool:
        return self.stride == 0


OPAQUE = Value(None)
SAME = Value(0)
_HEADER_BYTES = 200_000
_COMPARISONS = ("==", "!=", "<", ">", "<=", ">=", "&&", "||", "&", "|", "^", "<<", ">>")


class Groups:
    """Values of the expressions of one kernel over a group of `width` neighbours."""

    def __init__(self, names: Names, width: int, divisible: Iterable[str]) -> None:
        self.names, self.width = names, width
        self._functions: dict[str, tuple[list[str], Node] | None] = {}
        self.divisible = frozenset(divisible)  # integer parameters that were multiples of the width in some launch

    def value(self, node: Node, known: Mapping[str, Value], depth: int = 0) -> Value:
        """The value of `node` where `known` gives that of some names."""
        node = strip_parens(node)
        match node.type:
            case "number_literal":
                code = text(node).rstrip("uUlL")
                return Value(0, multiple=ALWAYS if code.isdigit() and int(code, 0) % self.width == 0 else None)
            case "identifier":
                return self._name(node, known, depth)
            case "cast_expression":
                return self.value(syntax.field(node, "value"), known, depth)
            case "binary_expression":
                left, right = (self.value(syntax.field(node, f), known, depth) for f in ("left", "right"))
                return self.binary(text(syntax.field(node, "operator")), left, right)
            case "conditional_expression":
                parts = [
                    self.value(syntax.field(node, f), known, depth) for f in ("condition", "consequence", "alternative")
                ]
                return self.merged(parts[1], parts[2]) if parts[0].same else OPAQUE
            case "call_expression":
                return self._call(node, known, depth)
            case "subscript_expression" | "pointer_expression" | "field_expression":
                parts = [self.value(n, known, depth) for n in node.named_children if n.type != "field_identifier"]
                return _joined(parts) if all(p.same for p in parts) else OPAQUE
            case "subscript_argument_list" | "unary_expression":
                parts = [self.value(n, known, depth) for n in node.named_children]
                return _joined(parts) if all(p.same for p in parts) else OPAQUE
        return SAME if not node.named_children and node.type != "identifier" else OPAQUE

    def merged(self, one: Value, other: Value) -> Value:
        """What is known of a variable that has one value or the other."""
        if one.stride is None or one.stride != other.stride:
            return OPAQUE
        both = None if one.multiple is None or other.multiple is None else (*one.multiple, *other.multiple)
        return Value(one.stride, (*one.required, *other.required), both)

    def _name(self, node: Node, known: Mapping[str, Value], depth: int) -> Value:
        name = text(node)
        if name in known:
            return known[name]
        if name in self.names.params:
            param = self.names.params[name]
            if param.pointer:
                return Value(0, multiple=ALWAYS)  # whether it is aligned is asked where it is used
            return Value(0, multiple=(frozenset((name,)),) if name in self.divisible else None)
        definition = self.names.definition(name, node)
        if definition is not None and depth < 12:
            return self.value(definition, {}, depth + 1)
        number = self.constant(name, node)
        return Value(0, multiple=ALWAYS if number is not None and number % self.width == 0 else None)

    def constant(self, name: str, at: Node) -> int | None:
        """The integer that a name stands for in this file or in a header beside it."""
        own = launch_text.constant(self.names.context.module, name, at.start_byte)
        if own is not None or name in self.names.params or name in self.names.writes:
            return own
        return next((n for m in self._headers if (n := launch_text.constant(m, name, m.own_end - 1)) is not None), None)

    def binary(self, op: str, left: Value, right: Value) -> Value:
        if left.stride is None or right.stride is None:
            return OPAQUE
        needs = (*left.required, *right.required)
        if op in ("+", "-"):
            both = None if left.multiple is None or right.multiple is None else (*left.multiple, *right.multiple)
            return Value(left.stride + right.stride if op == "+" else left.stride - right.stride, needs, both)
        if op == "*":
            return Value(0, needs, _either(left.multiple, right.multiple)) if left.same and right.same else OPAQUE
        if op in ("/", "%") and right.same:
            return self._divided(op, left, right, needs)
        return Value(0, needs) if op in _COMPARISONS and left.same and right.same else OPAQUE

    @staticmethod
    def _divided(op: str, left: Value, right: Value, needs: Needs) -> Value:
        if left.quotient is not None and op == "/":
            factors = right.multiple[0] if right.multiple and len(right.multiple) == 1 else frozenset()
            if right.multiple == ALWAYS:
                return Value(0, (*left.needs, *right.required))
            return Value(0, (*left.needs, *right.required), quotient=left.quotient | factors)
        if left.same:
            return Value(0, needs)
        if left.stride != 1 or left.multiple is None:
            return OPAQUE
        if op == "%":
            if right.multiple is None:
                return OPAQUE
            return Value(1, (*needs, *left.multiple, *right.multiple), (*left.multiple, *right.multiple))
        if right.multiple is None or len(right.multiple) > 1:
            return Value(0, (*needs, *left.multiple, *(right.multiple or ())), quotient=frozenset())
        return Value(0, (*needs, *left.multiple), quotient=right.multiple[0] if right.multiple else None)

    def _call(self, node: Node, known: Mapping[str, Value], depth: int) -> Value:
        function, arguments = syntax.field(node, "function"), syntax.field(node, "arguments").named_children
        values = [self.value(a, known, depth) for a in arguments]
        if squeeze(text(function)).startswith("static_cast<") and len(values) == 1:
            return values[0]
        returned = self.returned(text(function))
        if returned is not None and depth < 12:
            params, expression = returned
            if len(params) == len(values):
                return self.value(expression, dict(zip(params, values, strict=True)), depth + 1)
        return _joined(values) if all(v.same for v in values) else OPAQUE

    def returned(self, name: str) -> tuple[list[str], Node] | None:
        """Parameters and returned expression of a function that does nothing but return it, of this file or of a
        header beside it."""
        if name not in self._functions:
            modules = (self.names.context.module, *self._headers)
            self._functions[name] = next((f for m in modules if (f := _functions(m).get(name)) is not None), None)
        return self._functions[name]

    @cached_property
    def _headers(self) -> tuple[Module, ...]:
        context = self.names.context
        found = []
        for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', context.text, re.M):
            path = Path(context.module.document.path).parent / name
            if path.is_file() and path.stat().st_size < _HEADER_BYTES:
                found.append(parse_module(read(path)))
        return tuple(found)


@lru_cache(maxsize=32)
def _functions(module: Module) -> dict[str, tuple[list[str], Node]]:
    """Functions of a file that only return an expression: name → parameters and expression."""
    found: dict[str, tuple[list[str], Node]] = {}
    for definition in syntax.of_type(module.root, "function_definition"):
        declarator = next(syntax.of_type(definition, "function_declarator"), None)
        body = definition.child_by_field_name("body")
        if declarator is None or body is None:
            continue
        statements = syntax.statements(body)
        if len(statements) == 1 and statements[0].type == "return_statement" and statements[0].named_children:
            params = [
                text(syntax.field(p, "declarator"))
                for p in syntax.field(declarator, "parameters").named_children
                if p.type == "parameter_declaration" and p.child_by_field_name("declarator") is not None
            ]
            found.setdefault(text(syntax.field(declarator, "declarator")), (params, statements[0].named_children[0]))
    return found


def _joined(parts: Iterable[Value]) -> Value:
    return Value(0, tuple(n for p in parts for n in p.required))


def _either(one: Needs | None, other: Needs | None) -> Needs | None:
    """A product is a multiple when one of its factors is."""
    if one is None or other is None:
        return other if one is None else one
    if ALWAYS in (one, other):
        return ALWAYS
    return (one[0] | other[0],) if len(one) == len(other) == 1 else min(one, other, key=len)


def solve(needs: Needs) -> list[str] | None:
    """The fewest parameters found that, being multiples, meet all needs; None when one cannot be met."""
    chosen: list[str] = []
    for clause in sorted(dict.fromkeys(needs), key=len):
        if not clause:
            return None
        if not clause & set(chosen):
            rest = [n for n in needs if not n & set(chosen)]
            chosen.append(max(sorted(clause), key=lambda name: sum(name in n for n in rest)))
    return chosen


def divisible(context: Context, width: int) -> Iterator[str]:
    """Parameters that were a multiple of the width in some captured launch."""
    for p in context.kernel.params:
        if not p.pointer and any(v > 0 and v % width == 0 for v in context.captured(p.name)):
            yield p.name


def ever(context: Context, chosen: list[str], width: int) -> bool:
    """All of the chosen parameters were multiples of the width in one captured launch."""
    rows = zip(*(context.captured(name) for name in chosen), strict=True)
    return not chosen or any(all(v % width == 0 for v in row) for row in rows)
