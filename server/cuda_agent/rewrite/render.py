"""A loop body written out again, with other texts for some of its accesses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from tree_sitter import Node

from cuda_agent.model import Edit, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.neighbours import Access, Body
from cuda_agent.rewrite.layout import removed
from cuda_agent.rewrite.syntax import text


class Rendered(NamedTuple):
    lines: list[str]  # without the indentation that all of them share
    statements: int
    uses_variable: bool


def render(body: Body, places: Mapping[Access | Node, str]) -> Rendered:
    """The statements of the body with each access or expression in `places` replaced by its text. Index variables that
    nothing uses any more are left out."""
    context = body.context
    edits = _edits(places)
    statements = syntax.statements(body.body)
    dropped = [n for n in statements if _only_used_in(body, n, [e.span for e in edits])]
    kept = [n for n in statements if n not in dropped]
    inside = body.body.type == "compound_statement"
    whole = Span(body.body.start_byte + 1, body.body.end_byte - 1) if inside else syntax.span(body.body)
    for n in dropped:
        edits = [e for e in edits if not syntax.span(n).holds(e.span)]
        edits.append(Edit(removed(context, n), ""))
    code = context.edited(whole, edits)
    if not inside:
        code = context.indent(whole.start) + code
    left = re.compile(rf"(?<![\w.]){re.escape(body.variable)}(?!\w)")
    lines = [line.rstrip() for line in code.strip("\r\n").splitlines()]
    while lines and not lines[-1].strip():
        lines.pop()
    if lines and inside and context.slice(whole).strip("\r\n") == context.slice(whole):
        lines[0] = lines[0].strip()  # the whole body stands on one line
    depths = [len(line) - len(line.lstrip()) for line in lines if line.strip() and not line.startswith("#")]
    shared = min(depths, default=0)
    lines = [line if line.startswith("#") else line[shared:] for line in lines]
    single = len(kept) == 1 and kept[0].type != "declaration"
    return Rendered(lines, 1 if single and len(lines) == 1 else max(2, len(kept)), bool(left.search("\n".join(lines))))


def _edits(places: Mapping[Access | Node, str]) -> list[Edit]:
    edits: list[Edit] = []
    for access, place in places.items():
        if isinstance(access, Node):
            edits.append(Edit(syntax.span(access), place))
        elif access.value is not None:  # __stcs(x + i, value)
            edits.append(Edit(Span(access.node.start_byte, access.value.start_byte), f"{place} = "))
            edits.append(Edit(Span(access.value.end_byte, access.node.end_byte), ""))
        else:
            edits.append(Edit(syntax.span(access.node), place))
    return [e for e in edits if not any(o is not e and o.span != e.span and o.span.holds(e.span) for o in edits)]


def _only_used_in(body: Body, statement: Node, spans: list[Span]) -> bool:
    """A declaration of one variable all whose uses are replaced."""
    if statement.type != "declaration":
        return False
    names = syntax.declared(statement)
    if len(names) != 1:
        return False
    (name,) = names
    uses = [n for n in syntax.of_type(body.body, "identifier") if text(n) == name]
    outside = [n for n in uses if not syntax.span(statement).holds(syntax.span(n))]
    return bool(outside) and all(any(s.holds(syntax.span(n)) for s in spans) for n in outside)
