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
    """One level of the kernel's indentation."""
    outer = context.indent(context.kernel.body.start)
    if context.slice(context.kernel.body)[:1] == "{" and context.indent(context.kernel.span.start) < outer:
        outer = context.indent(context.kernel.span.start)  # the brace ends a line of parameters
    first = next((n for n in context.body.named_children if n.type != "comment"), None)
    inner = context.indent(first.start_byte) if first is not None else ""
    return inner[len(outer) :] if inner.startswith(outer) and len(inner) > len(outer) else "    "


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
    lines = [line.rstrip() for line in lines]
    if loop.parent is None or loop.parent.type == "compound_statement":
        at = start_with_pragma(context, loop)
        below = [*lines[1:], "the loop"]  # an empty line gets no indentation
        text = "".join(line + eol + (indent if next_ else "") for line, next_ in zip(lines, below, strict=True))
        yield Edit(Span(at, at), text)
        return
    before = loop.prev_sibling
    gap = Span(before.end_byte if before is not None else loop.start_byte, loop.start_byte)
    own_line = eol in context.slice(gap)
    inside = indent if own_line else indent + step
    yield Edit(gap, " {" + eol + "".join(f"{inside if line else ''}{line}{eol}" for line in lines) + inside)
    closing = indent.removesuffix(step) if own_line else indent
    yield Edit(Span(loop.end_byte, loop.end_byte), f"{eol}{closing}}}")


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


def removed(context: Context, statement: Node) -> Span:
    """The statement with its line, when it has the line for itself."""
    data = context.module.document.data
    start = data.rfind(b"\n", 0, statement.start_byte) + 1
    end = data.find(b"\n", statement.end_byte)
    alone = not data[start : statement.start_byte].strip() and end != -1 and not data[statement.end_byte : end].strip()
    return Span(start, end + 1) if alone else Span(statement.start_byte, statement.end_byte)


def taken_names(context: Context) -> set[str]:
    """Names that mean something inside the kernel: those in it, and the file's macros."""
    inside = set(re.findall(r"[A-Za-z_]\w*", context.code))
    return inside | set(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", context.text, re.M))


def dedented(code: str, depth: int) -> list[str]:
    """Lines without the indentation that the first one had."""
    first, *rest = code.splitlines() or [""]
    lines = [first, *(line[depth:] if not line[:depth].strip() else line for line in rest)]
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.rstrip() for line in lines]
