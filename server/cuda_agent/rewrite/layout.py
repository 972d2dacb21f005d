"""Where new lines go and how they are indented."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tree_sitter import Node

from cuda_agent.model import Edit, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import text


def unit(context: Context) -> str:
    """One step of the file's indentation."""
    statements = syntax.statements(context.body)
    first = context.indent(statements[0].start_byte) if statements else ""
    return first[len(context.indent(context.kernel.body.start)) :] or "    "


def unused_index(context: Context) -> str:
    """A short name for an inner loop's variable that the kernel does not have yet."""
    taken = set(re.findall(r"[A-Za-z_]\w*", context.code))
    return next(n for n in ("k", "u", "e", *(f"k{i}" for i in range(2, 100))) if n not in taken)


def fresh(context: Context, loop: Node, name: str, used: set[tuple[int, str]]) -> str:
    """`name`, or `name2` …, for a variable in front of the loop: neither in the file nor given away in this block."""
    block = loop.parent.id if loop.parent is not None else 0
    tries = (context.unused(name if i == 1 else f"{name}{i}") for i in range(1, 100))
    found = next(n for n in tries if (block, n) not in used)
    used.add((block, found))
    return found


def fresh_text(loop: Node, code: str, used: set[tuple[int, str]]) -> bool:
    """Whether a definition has not been written in front of another loop of this block."""
    place = (loop.parent.id if loop.parent is not None else 0, code)
    if place in used:
        return False
    used.add(place)
    return True


def insert_before(context: Context, loop: Node, lines: Sequence[str]) -> Iterator[Edit]:
    """`lines` in front of the loop (and of its `#pragma`), in its indentation. A loop that is the one statement of an
    `if` or loop gets braces around both."""
    eol, indent, step = context.eol, context.indent(loop.start_byte), unit(context)
    if loop.parent is None or loop.parent.type == "compound_statement":
        at = pragma_start(context, loop)
        yield Edit(Span(at, at), "".join(f"{line}{eol}{indent}" for line in lines))
        return
    before = loop.prev_sibling
    gap = Span(before.end_byte if before is not None else loop.start_byte, loop.start_byte)
    own_line = eol in context.slice(gap)
    inside = indent if own_line else indent + step
    yield Edit(gap, " {" + eol + "".join(f"{inside}{line}{eol}" for line in lines) + inside)
    closing = indent.removesuffix(step) if own_line else indent
    yield Edit(Span(loop.end_byte, loop.end_byte), f"{eol}{closing}}}")


def pragma_start(context: Context, loop: Node) -> int:
    """Where the loop begins, with the `#pragma` on the line before it."""
    data = context.module.document.data
    line = data.rfind(b"\n", 0, loop.start_byte) + 1
    above = data.rfind(b"\n", 0, max(line - 1, 0)) + 1
    if not data[line : loop.start_byte].strip() and data[above:line].lstrip().startswith(b"#pragma"):
        return above + len(data[above:line]) - len(data[above:line].lstrip())
    return loop.start_byte


def unused(context: Context, name: str) -> str:
    """`name`, or `name` with a number when the kernel or a macro has it already."""
    taken = (
        syntax.identifiers(context.module.node(context.kernel.span))
        | syntax.identifiers(context.body)
        | {p.name for p in context.kernel.params}
    )
    code = context.module.document.text
    free = (n for n in (name, *(f"{name}{i}" for i in range(2, 100))) if n not in taken)
    return next(n for n in free if not re.search(rf"#\s*define\s+{n}\b", code))


def line_of(context: Context, span: Span) -> Span:
    """The span with its line's indentation and end, where nothing else stands on its lines; a comment at the end goes
    with it."""
    data = context.module.document.data
    start = data.rfind(b"\n", 0, span.start) + 1
    end = data.find(b"\n", span.end)
    if end == -1 or data[start : span.start].strip():
        return span
    rest = data[span.end : end].strip()
    return Span(start, end + 1) if not rest or rest.startswith(b"//") else span


def start_with_pragma(context: Context, node: Node) -> int:
    """Where the statement starts, or the `#pragma` in front of it."""
    above = node.prev_named_sibling
    while above is not None and above.type.startswith("preproc") and "pragma" in text(above):
        node, above = above, above.prev_named_sibling
    return node.start_byte


def same_line_brace(context: Context, statement: Node) -> bool:
    """Whether the block's brace stands on the line of its `if`."""
    block = syntax.field(statement, "consequence")
    return b"\n" not in context.module.document.data[statement.start_byte : block.start_byte]


def indented(context: Context, span: Span, by: str) -> list[Edit]:
    """One step more in front of every line that starts inside the span and is not empty."""
    data = context.module.document.data
    edits = []
    at = data.find(b"\n", span.start)
    while at != -1 and at + 1 < span.end:
        line_end = data.find(b"\n", at + 1)
        line = data[at + 1 : line_end if line_end != -1 else len(data)]
        if line.strip() and not line.startswith(b"#"):
            edits.append(Edit(Span(at + 1, at + 1), by))
        at = line_end
    return edits
