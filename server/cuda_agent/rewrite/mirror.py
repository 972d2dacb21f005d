"""A square block seen from the mirrored thread, whose threadIdx.x is the other's threadIdx.y: what moves when a block
reads rows where its threads own columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import affine, names
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text

X, Y = "threadIdx.x", "threadIdx.y"
MIRRORED = {X: Y, Y: X}


def variables(context: Context, nodes: Iterable[Node], known: set[Variable] | None = None) -> list[Variable]:
    """The local variables that depend on the thread's place and that the nodes use, directly or not, in order of
    declaration; `known` ones are left alone. RuleRefused when one cannot be computed for another thread."""
    scope, found = names.of(context), dict[str, Variable]()
    pending = list(nodes)
    while pending:
        for n in syntax.of_type(pending.pop(), "identifier"):
            v = scope.resolve(text(n), n.start_byte)
            if v is None or v.symbol in found or v.param is not None or v in (known or ()):
                continue
            on = affine.depends(context, v)
            if not on & {X, Y}:
                continue
            if on & {"memory", "call"} or v.pointer or v.escapes or [w.op for w in v.writes] != ["init"]:
                raise RuleRefused(f"{v.name} cannot be computed for the mirrored thread")
            found[v.symbol] = v
            pending += [w.value for w in v.writes if w.value is not None]
    return sorted(found.values(), key=lambda v: v.start)


def clone(context: Context, v: Variable, suffix: str) -> str:
    """A name for the variable's mirrored twin, in the file's way of naming."""
    camel = re.search(r"[a-z][A-Z]", v.name) is not None
    return context.unused_here(v.name + suffix.capitalize() if camel else f"{v.name}_{suffix}")


def declaration(context: Context, v: Variable, renamed: Mapping[str, str], places: Mapping[str, str] = MIRRORED) -> str:
    """The variable's declaration as the mirrored thread has it, alone in a statement."""
    node = v.writes[0].node.parent
    value = v.writes[0].value
    if node is None or value is None:
        raise RuleRefused(f"{v.name} has no initialiser")
    first = node.children_by_field_name("declarator")[0]
    kind = context.slice(Span(node.start_byte, first.start_byte)).strip()
    inner = value.named_children[0] if value.type in ("argument_list", "initializer_list") else value
    return f"{kind} {renamed[v.symbol]} = {text_of(context, inner, renamed, places)};"


def text_of(context: Context, node: Node, renamed: Mapping[str, str], places: Mapping[str, str] = MIRRORED) -> str:
    """The text of another thread: `places` says what stands for threadIdx.x and threadIdx.y, `renamed` (by symbol) for
    variables."""
    scope = names.of(context)
    pieces = []
    for n in syntax.of_type(node, "field_expression", "identifier"):
        code = squeeze(text(n))
        if n.type == "field_expression" and code in places:
            pieces.append((n, places[code]))
        elif n.type == "identifier":
            v = scope.resolve(code, n.start_byte)
            if v is not None and v.symbol in renamed:
                pieces.append((n, renamed[v.symbol]))
    return replaced(context, node, pieces)


def replaced(context: Context, node: Node, pieces: Iterable[tuple[Node, str]]) -> str:
    """The node's text with parts of it replaced."""
    code, at = "", node.start_byte
    for n, new in sorted(pieces, key=lambda p: p[0].start_byte):
        code += context.slice(Span(at, n.start_byte)) + new
        at = n.end_byte
    return code + context.slice(Span(at, node.end_byte))
