"""Text as a person would have written it: conditions turned round, statements taken out with their line."""

from __future__ import annotations

from collections.abc import Callable

from tree_sitter import Node

from cuda_agent.model import Span
from cuda_agent.rewrite.rule import Context
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


def removed(context: Context, statement: Node) -> Span:
    """The statement with its line, when it has the line for itself."""
    data = context.module.document.data
    start = data.rfind(b"\n", 0, statement.start_byte) + 1
    end = data.find(b"\n", statement.end_byte)
    alone = not data[start : statement.start_byte].strip() and end != -1 and not data[statement.end_byte : end].strip()
    return Span(start, end + 1) if alone else Span(statement.start_byte, statement.end_byte)
