"""Conditions turned round, as a person would have written them."""

from __future__ import annotations

from collections.abc import Callable

from tree_sitter import Node

from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.declared import expression
from cuda_agent.source.tree import field, operator, strip_parens

_OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}


def negated(node: Node, put: Callable[[Node], str]) -> str:
    """The text of `!condition`, relations turned round; `put` spells the parts."""
    inner = strip_parens(node)
    left, right = field(inner, "left"), field(inner, "right")
    if inner.type == "binary_expression" and left is not None and right is not None:
        sign = operator(inner)
        if sign == "||":
            return f"{negated(left, put)} && {negated(right, put)}"
        if sign in _OPPOSITE:
            return f"{put(left)} {_OPPOSITE[sign]} {put(right)}"
    if (
        inner.type == "unary_expression"
        and operator(inner) == "!"
        and (argument := field(inner, "argument")) is not None
    ):
        return put(argument)
    simple = inner.type in ("identifier", "call_expression", "field_expression", "subscript_expression")
    return f"!{put(inner)}" if simple else f"!({put(inner)})"


def opposite(code: str) -> str:
    """The opposite condition, in the words a person would choose."""
    node = expression(code)
    if node.type == "binary_expression":
        operator = text(syntax.field(node, "operator"))
        left, right = syntax.field(node, "left"), syntax.field(node, "right")
        if operator in _OPPOSITE:
            return f"{text(left)} {_OPPOSITE[operator]} {text(right)}"
        if operator in ("||", "&&"):
            one, other = opposite(text(left)), opposite(text(right))
            if operator == "&&":
                return f"{one} || {other}"
            return f"{conjunct(one)} && {conjunct(other)}"
    if node.type == "unary_expression" and text(syntax.field(node, "operator")) == "!":
        return text(strip_parens(syntax.field(node, "argument")))
    return f"!({code})"


def conjunct(code: str) -> str:
    """The condition as a part of an `&&`."""
    node = expression(code)
    operator = text(syntax.field(node, "operator")) if node.type == "binary_expression" else ""
    return f"({code})" if operator == "||" or node.type == "conditional_expression" else code


def disjunct(code: str) -> str:
    """The condition as a part of an `||`."""
    return f"({code})" if expression(code).type == "conditional_expression" else code
