"""Where an extent is no constant: the text for sizes that are multiples of a width, and beside it what it was, for all
others."""

from __future__ import annotations

import re

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Edit, Span
from cuda_agent.rewrite import layout, syntax
from cuda_agent.rewrite.analysis.column_index import ColumnIndex
from cuda_agent.rewrite.analysis.column_moves import ColumnMoves
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import text


def either_size(context: Context, plan: ColumnMoves, span: Span, inner: list[Edit], *, changed: bool) -> Edit:
    """The text with the edits `inner` where all extents are multiples of the width; else what it was. `changed`: the
    launch has fewer blocks. RuleRefused where these cannot do what it was."""
    eol, step = context.eol, layout.unit(context)
    data = context.module.document.data
    first = data.rfind(b"\n", 0, span.start) + 1
    span = Span(first + len(context.indent(span.start)), span.end)
    indent = context.indent(span.start)
    depth = len(indent)
    vectors = layout.dedented(context.edited(span, inner), depth)
    if not changed:
        scalar = layout.dedented(context.slice(span), depth)
    else:
        scalar = _grid_stride(context, plan.index, span, depth)
    condition = " && ".join(f"{name} % {plan.width} == 0" for name in plan.chosen)
    lines = [
        f"if ({condition}) {{",
        *(step + line if line else "" for line in vectors),
        "} else {",
        *(step + line if line else "" for line in scalar),
        "}",
    ]
    return Edit(span, (eol + indent).join(lines).replace(indent + eol, eol))


def _grid_stride(context: Context, index: ColumnIndex, span: Span, depth: int) -> list[str]:
    """What it was, for all columns by the fewer threads."""
    kind = context.slice(Span(index.declaration.start_byte, index.value.start_byte)).rstrip().removesuffix("=")
    kind = re.sub(r"\bconst\b\s*", "", kind).strip()
    own = {n for s in syntax.statements(context.body) if s.start_byte >= span.start for n in syntax.declared(s)}
    if own & (syntax.identifiers(index.value) | syntax.identifiers(index.bound)):
        raise RuleRefused("the bound is computed after the index")
    if any(w.name == index.name for w in syntax.writes(context.body) if w.op != "init"):
        raise RuleRefused(f"{index.name} is changed")
    name, bound = index.name, text(index.bound)
    head = f"for ({kind} = {text(index.value)}; {name} < {bound}; {name} += gridDim.x * {index.width})"
    gone = [layout.line_of(context, syntax.span(index.declaration))]
    edits = []
    alone = len(syntax.operands(syntax.field(index.guard, "condition"), "||" if index.returns else "&&")) == 1
    consequence = syntax.field(index.guard, "consequence")
    if index.returns and alone:
        gone.append(layout.line_of(context, syntax.span(index.guard)))
    elif index.returns:
        edits.append(Edit(syntax.span(consequence), "continue;"))
    elif alone and index.declaration.next_named_sibling == index.guard and span.start >= gone[0].start:
        body = layout.dedented(context.slice(syntax.span(consequence)), len(context.indent(index.guard.start_byte)))
        return [f"{head} {body[0]}", *body[1:]] if body[0] == "{" else [head, *(layout.unit(context) + b for b in body)]
    edits += [Edit(Span(max(s.start, span.start), s.end), "") for s in gone]
    lines = layout.dedented(context.edited(span, edits), depth)
    lines[0] = lines[0].strip()
    step = layout.unit(context)
    return [f"{head} {{", *(step + line if line else "" for line in lines), "}"]
