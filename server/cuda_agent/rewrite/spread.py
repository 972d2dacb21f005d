"""Edits that spread a loop's iterations over lanes or blocks."""

from __future__ import annotations

import re

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Edit
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.loops import Loop, type_of
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import text
from cuda_agent.source import declared
from cuda_agent.source.tree import strip_parens

# Types in which `start + blockIdx.y`, an unsigned int, is right for any start: 32 bits wrap around to it, and a
# variable that is unsigned starts from no negative value.
_NARROW = re.compile(
    r"unsigned|signed|int|uint|short|char|u?int(?:8|16|32)_t|uint64_t|size_t|unsigned (?:int|long|long long)"
)
_SIGNED = re.compile(r"int|long|long long|short|long int|int(?:16|32|64)_t|ptrdiff_t|ssize_t")
_TIGHT = frozenset(("+", "-", "*", "/", "%"))


def paren(code: str, node: Node | None = None) -> str:
    """The code as one operand of a sum: in parentheses when it binds less tightly."""
    node = declared.expression(code) if node is None else node
    loose = node.type in ("conditional_expression", "assignment_expression", "comma_expression") or (
        node.type == "binary_expression" and text(syntax.field(node, "operator")) not in _TIGHT
    )
    return f"({code})" if loose else code


def factor(code: str) -> str:
    """The code as a factor of a product."""
    return code if re.fullmatch(r"[\w.]+", code) else f"({code})"


def spread(context: Context, loop: Loop, lane: str, lanes: str) -> list[Edit]:
    """Edits by which lane `lane` of `lanes` runs every `lanes`-th iteration, from its own one on. RuleRefused for an
    unsigned variable that counts down: it would step over zero."""
    if not loop.up and not _SIGNED.fullmatch(_type(context, loop)):
        raise RuleRefused(f"{loop.variable} counts down and may wrap around below zero")
    start, sign = context.slice(syntax.span(loop.start)), "+" if loop.up else "-"
    own = lane if loop.step == "1" else f"{lane} * {factor(loop.step)}"
    if start == "0" and loop.up:
        first = own
    else:
        signed = re.fullmatch(r"\w+", lane) or _NARROW.fullmatch(_type(context, loop)) or start.isdigit()
        first = f"{paren(start, strip_parens(loop.start))} {sign} {own if signed else f'(int){own}'}"
    by = lanes if loop.step == "1" else f"{lanes} * {factor(loop.step)}"
    return [
        Edit(syntax.span(loop.start), first),
        Edit(syntax.span(loop.update), f"{loop.variable} {sign}= {by}"),
    ]


def _type(context: Context, loop: Loop) -> str:
    return loop.type or type_of(context, loop.variable) or ""
