"""Where new lines go and how they are indented."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tree_sitter import Node

from cuda_agent.model import Edit, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.rule import Context


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
