"""Which expressions are zero where some of their operands are: what may be added for elements that are not there."""

from __future__ import annotations

import re
from collections.abc import Set

from tree_sitter import Node

from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import operator

_ZERO_AT_ZERO = {"sqrt", "sqrtf", "fabs", "fabsf", "__half2float", "__bfloat162float", "float", "double"}


def zero_with(context: Context, node: Node, zeros: Set[Node]) -> bool:
    """The expression is zero where these nodes are."""
    if node in zeros:
        return True
    parts = node.named_children
    match node.type:
        case "parenthesized_expression":
            return len(parts) == 1 and zero_with(context, parts[0], zeros)
        case "cast_expression":
            return zero_with(context, syntax.field(node, "value"), zeros)
        case "unary_expression":
            return operator(node) == "-" and zero_with(context, parts[-1], zeros)
        case "binary_expression" if operator(node) in ("*", "+", "-"):
            some = [zero_with(context, part, zeros) for part in parts]
            literal = [part.type == "number_literal" for part in parts]
            return all(some) or (operator(node) == "*" and any(some) and any(literal))
        case "call_expression":
            named = meanings(context, text(syntax.field(node, "function")))
            given = syntax.field(node, "arguments").named_children
            return named <= _ZERO_AT_ZERO and len(given) == 1 and zero_with(context, given[0], zeros)
    return False


def meanings(context: Context, name: str) -> set[str]:
    """What the file's macros and type names may make of a name: itself where it is none of them."""
    e = re.escape(name)
    defined = re.findall(rf"#[ \t]*define[ \t]+{e}\b(.*)|\btypedef\b(.*)\b{e}\s*;|\busing\s+{e}\s*=(.*);", context.text)
    found = {"".join(one).split("//")[0].strip() for one in defined}
    return found if found and all(re.fullmatch(r"\w+", one) for one in found) else {name}
