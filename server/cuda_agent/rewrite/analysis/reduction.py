"""One statement that folds any value into a variable: sums, products, minima and maxima, bit operations. (A loop of
these: `carried.py`. Elements of a block's array folded into each other: `array_folds.py`.)"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import arguments, strip_parens

_EXTREMES = ("max", "fmaxf", "fmax", "min", "fminf", "fmin", "umax", "umin", "llmax", "llmin")
_FUSED = ("fma", "fmaf", "__fmaf_rn", "__fma_rn", "mad")


@dataclass(frozen=True)
class Fold:
    """`name`, a variable or a member of one, is folded by `op`, an operator or the name of a minimum or maximum
    function; the node holds every mention of it there."""

    name: str
    op: str
    node: Node


def folds(body: Node) -> Iterator[Fold]:
    """Statements that fold a value into a variable."""
    for node in syntax.of_type(body, "if_statement"):
        if (found := _conditional(node)) is not None:
            yield found
    for write in syntax.writes(body):
        above = write.node.parent
        alone = above is not None and (above.type == "expression_statement" or above.type == "for_statement")
        name, op = variable_of(write.target), operation(write)
        if alone and name is not None and op is not None:
            yield Fold(name, op, write.node)


def _conditional(node: Node) -> Fold | None:
    """`if (e > m) m = e;`"""
    if node.child_by_field_name("alternative") is not None:
        return None
    condition = strip_parens(syntax.field(node, "condition"))
    inside = syntax.statements(syntax.field(node, "consequence"))
    if condition.type != "binary_expression" or len(inside) != 1 or inside[0].type != "expression_statement":
        return None
    write = next(syntax.writes(inside[0]), None)
    if write is None or write.name is None or write.op != "=" or write.value is None:
        return None
    sides = [squeeze(text(strip_parens(syntax.field(condition, side)))) for side in ("left", "right")]
    value, relation = squeeze(text(strip_parens(write.value))), text(syntax.field(condition, "operator"))
    if relation not in ("<", "<=", ">", ">=") or sorted(sides) != sorted((value, write.name)):
        return None
    if syntax.uses(write.value, write.name) or next(syntax.of_type(write.value, "update_expression"), None):
        return None
    larger = relation[0] == ">"
    return Fold(write.name, "max" if (sides[0] == value) == larger else "min", node)


def operation(write: syntax.Write) -> str | None:
    """The fold that one assignment makes, None when it is none: `s += e`, `s = s + e`, `m = max(m, e)`, `m = m < e ?
    e : m`, `s = fma(a, b, s)`."""
    name, value = variable_of(write.target), write.value
    if name is None:
        return None
    if value is None:
        return "+" if write.op in ("++", "--") else None
    if write.op in ("+=", "-=", "*=", "|=", "&=", "^=") and not _mentions(name, value):
        return "+" if write.op == "-=" else write.op[0]
    return _assigned(name, strip_parens(value)) if write.op == "=" else None


def _assigned(name: str, value: Node) -> str | None:
    if value.type == "binary_expression":
        if [s for s, n in syntax.additive_terms(value) if squeeze(text(n)) == name] == [1] and _once(name, value):
            return "+"
        operator = text(syntax.field(value, "operator"))
        left, right = syntax.field(value, "left"), syntax.field(value, "right")
        alone = name in (squeeze(text(left)), squeeze(text(right))) and _once(name, value)
        return operator if alone and operator in ("*", "|", "&", "^", "||", "&&") else None
    if value.type == "call_expression":
        function = text(syntax.field(value, "function")).removeprefix("::").removeprefix("std::")
        given = arguments(value)
        if (
            function in _EXTREMES
            and len(given) == 2
            and name in (squeeze(text(a)) for a in given)
            and _once(name, value)
        ):
            return function
        if function in _FUSED and len(given) == 3 and squeeze(text(given[2])) == name and _once(name, value):
            return "+"
        return None
    return _ternary(name, value)


def variable_of(target: Node) -> str | None:
    """The name of a plain variable, or of a member x, y, z or w of one: `v`, `v.x`."""
    code = squeeze(text(target))
    return code if target.type == "identifier" or re.fullmatch(r"[A-Za-z_]\w*\.[xyzw]", code) else None


def _mentions(name: str, value: Node) -> int:
    """How often the variable is named, or the one that it is a member of."""
    root = name.partition(".")[0]
    return sum(text(n) == root for n in syntax.of_type(value, "identifier"))


def _once(name: str, value: Node) -> bool:
    return _mentions(name, value) == 1


def _ternary(name: str, value: Node) -> str | None:
    if value.type != "conditional_expression":
        return None
    code = squeeze(text(value)).replace("(", "").replace(")", "")
    n = re.escape(name)
    for pattern, op in (
        (rf"{n}<=?(.+)\?\1:{n}", "max"),
        (rf"(.+)>=?{n}\?\1:{n}", "max"),
        (rf"{n}>=?(.+)\?{n}:\1", "max"),
        (rf"(.+)<=?{n}\?{n}:\1", "max"),
        (rf"{n}>=?(.+)\?\1:{n}", "min"),
        (rf"(.+)<=?{n}\?\1:{n}", "min"),
        (rf"{n}<=?(.+)\?{n}:\1", "min"),
        (rf"(.+)>=?{n}\?{n}:\1", "min"),
    ):
        match = re.fullmatch(pattern, code)
        if match and not re.search(rf"\b{n}\b", match[1]):
            return op
    return None
