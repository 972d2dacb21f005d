"""# 7 · coarsen-rows: several rows a thread in kernels with a two-dimensional grid

One pixel a thread computes everything that depends on the column alone once a pixel. Several rows a thread compute it
once, start fewer blocks and keep more loads in flight.

Before:

    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    out[y * width + x] = f(in, x, y);

After (and a quarter of the blocks in y):

    int x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x >= width) return;
    for (int y = blockIdx.y * blockDim.y + threadIdx.y; y < height; y += gridDim.y * blockDim.y) {
        out[y * width + x] = f(in, x, y);
    }

Legal when threads do not work together and the row index is not changed (proved). Elements must not depend on each
other: they are run by different threads already, in any order (proved). The launch has a thread for every row
(captured): one with fewer means to leave rows alone. Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, LaunchMap, Span
from cuda_agent.rewrite import launches, syntax
from cuda_agent.rewrite.analysis.coverage import check_index_only, covered
from cuda_agent.rewrite.layout import indented, unit
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import ThreadId, squeeze, text


@dataclass(frozen=True)
class Guard:
    """`if (x >= w || y >= h) return;` ("return") or `if (x < w && y < h) body` at the end of the kernel ("body")."""

    kind: str
    node: Node
    comparisons: tuple[Node, ...]
    row: Node  # the comparison of the row index

    @property
    def bound(self) -> str:
        return text(syntax.field(self.row, "right"))


class CoarsenRows(Rule):
    name = "coarsen-rows"
    number = 7

    def sites(self, context: Context) -> Iterator[Site]:
        if not context.shapes:
            return
        blocks, sms = min(s.blocks for s in context.shapes), context.device.sms if context.device else 132
        for axis in "yz":
            found = _guarded(context, axis)
            if found is None:
                continue
            row, guard = found
            deep = min(s.grid["xyz".index(axis)] for s in context.shapes)
            for k in (2, 4, 8):
                if deep >= k and blocks // k >= sms:
                    nodes = {"row": row, "guard": guard}
                    yield Site(self.name, syntax.span(guard.node), {"axis": axis, "rows": k}, nodes)

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        row: ThreadId = site.nodes["row"]
        guard: Guard = site.nodes["guard"]
        k, axis = site.params["rows"], site.params["axis"]
        if syntax.COOPERATION.search(text(context.body)):
            raise RuleRefused("threads of a block work together: they must all stay in step")
        if next(syntax.of_type(context.body, "goto_statement"), None):
            raise RuleRefused("the kernel jumps")
        if any(w.name == row.name and w.op != "init" for w in syntax.writes(context.body)):
            raise RuleRefused(f"{row.name} is changed after it was computed")
        check_index_only(context, row.value, axis)
        reached = covered(context, guard.bound, axis)
        edits = _edits(context, row, guard, axis)
        fewer = (lambda e: launches.over(e, k), launches.same)
        edits += launches.change(context, (launches.same, fewer[axis != "y"], fewer[axis != "z"]))
        grid = [f"ceil_div(g{a}, {k})" if a == axis else f"g{a}" for a in "xyz"]
        return Rewrite(
            tuple(edits),
            LaunchMap(grid=(grid[0], grid[1], grid[2])),
            (Assumption("each element is computed on its own", "proved"), reached),
        )


def _guarded(context: Context, axis: str) -> tuple[ThreadId, Guard] | None:
    """The index of that axis, declared alone at the top of the kernel, and the guard that bounds it."""
    statements = syntax.statements(context.body)
    row = next((t for t in syntax.thread_ids(context.body) if t.axis == axis), None)
    if row is None or row.declaration not in statements or "gridDim" in text(context.body):
        return None
    if len(row.declaration.children_by_field_name("declarator")) != 1:
        return None
    for at, statement in enumerate(statements):
        if statement.start_byte < row.declaration.start_byte or statement.type != "if_statement":
            continue
        if statement.child_by_field_name("alternative") is not None:
            return None
        leaves = squeeze(text(syntax.field(statement, "consequence"))) in ("return;", "{return;}")
        joint, sign = ("||", ">=") if leaves else ("&&", "<")
        parts = syntax.operands(syntax.field(statement, "condition"), joint)
        mine = [p for p in parts if _compares(p, row.name, sign)]
        if len(mine) != 1 or (not leaves and at + 1 < len(statements)):
            return None
        return row, Guard("return" if leaves else "body", statement, tuple(parts), mine[0])
    return None


def _compares(node: Node, name: str, sign: str) -> bool:
    return (
        node.type == "binary_expression"
        and text(syntax.field(node, "operator")) == sign
        and text(syntax.field(node, "left")) == name
        and not syntax.uses(syntax.field(node, "right"), name)
    )


def _edits(context: Context, row: ThreadId, guard: Guard, axis: str) -> list[Edit]:
    declaration = row.declaration
    kind = text(syntax.field(declaration, "type"))
    stride = f"gridDim.{axis} * blockDim.{axis}"
    head = f"for ({kind} {row.name} = {text(row.value)}; {row.name} < {guard.bound}; {row.name} += {stride})"
    others = [p for p in guard.comparisons if p != guard.row]
    if any(syntax.uses(p, row.name) for p in others):
        raise RuleRefused("another bound depends on the row")
    between = [
        s for s in syntax.statements(context.body) if declaration.end_byte <= s.start_byte < guard.node.start_byte
    ]
    condition = (" || " if guard.kind == "return" else " && ").join(text(p) for p in others)
    edits = _continues(context, declaration, guard)
    if any(syntax.uses(s, row.name) for s in between):
        return edits + _loop_at_declaration(context, declaration, guard, head, condition, between)
    edits.append(Edit(_line(context, declaration), ""))
    return edits + _loop_at_guard(context, guard, head, condition)


def _continues(context: Context, declaration: Node, guard: Guard) -> list[Edit]:
    """A return from one element's work goes on with the next element."""
    inside = [
        n
        for n in syntax.of_type(context.body, "return_statement")
        if n.start_byte > declaration.start_byte
        and not (guard.kind == "return" and syntax.span(guard.node).holds(syntax.span(n)))
    ]
    if not all(_leaves_iteration(n, context.body) for n in inside):
        raise RuleRefused("a loop inside returns early")
    return [Edit(syntax.span(n), "continue;") for n in inside]


def _line(context: Context, node: Node) -> Span:
    """The node's line, when nothing else stands on it."""
    data = context.module.document.data
    low, high = data.rfind(b"\n", 0, node.start_byte) + 1, data.find(b"\n", node.end_byte)
    alone = not data[low : node.start_byte].strip() and not data[node.end_byte : high].strip()
    return Span(low, high + 1) if alone else syntax.span(node)


def _loop_at_declaration(
    context: Context, declaration: Node, guard: Guard, head: str, condition: str, between: list[Node]
) -> list[Edit]:
    """The loop takes the place of the declaration: what stands before the guard depends on the row."""
    declared = {n for s in between for n in syntax.declared(s)}
    if any({w.name for w in syntax.writes(s)} - declared - {None} for s in between):
        raise RuleRefused("something is changed before the guard")
    if syntax.identifiers(syntax.field(guard.row, "right")) & declared:
        raise RuleRefused("the bound is computed after the row")
    if not condition:
        raise RuleRefused("the row alone is bounded, after it was used")
    indent, end = context.indent(declaration.start_byte), syntax.statements(context.body)[-1].end_byte
    return [
        Edit(syntax.span(declaration), head + " {"),
        Edit(syntax.span(syntax.field(guard.node, "condition")), f"({condition})"),
        *indented(context, Span(declaration.end_byte, end), unit(context)),
        Edit(Span(end, end), f"{context.eol}{indent}}}"),
    ]


def _loop_at_guard(context: Context, guard: Guard, head: str, condition: str) -> list[Edit]:
    """The loop begins at the guard, which keeps its other comparisons."""
    eol, step, indent = context.eol, unit(context), context.indent(guard.node.start_byte)
    bounds = syntax.span(syntax.field(guard.node, "condition"))
    if guard.kind == "body":
        consequence = syntax.field(guard.node, "consequence")
        outer = f"if ({condition}){eol}{indent}{step}" if condition else ""
        gap = context.slice(Span(bounds.end, consequence.start_byte))
        deeper = indented(context, syntax.span(consequence), step) if outer else []
        if outer and consequence.type != "compound_statement":
            gap += step
        return [Edit(Span(guard.node.start_byte, consequence.start_byte), outer + head + gap), *deeper]
    rest = [s for s in syntax.statements(context.body) if s.start_byte >= guard.node.end_byte]
    if not rest:
        raise RuleRefused("nothing follows the guard")
    start, end = guard.node.end_byte, rest[-1].end_byte
    blank = len(eol) if context.slice(Span(start, rest[0].start_byte)).startswith(eol + eol) else 0
    opening = f"{eol}{indent}{head} {{" if condition else f"{head} {{"
    kept = Edit(bounds, f"({condition})") if condition else None
    first = Span(start, start + blank) if condition else Span(guard.node.start_byte, start + blank)
    return [
        *([kept] if kept else []),
        Edit(first, opening),
        *indented(context, Span(start + blank, end), step),
        Edit(Span(end, end), f"{eol}{indent}}}"),
    ]


def _leaves_iteration(node: Node, body: Node) -> bool:
    """A `return;` that ends this element's work and is in no inner loop: it can go on with the next one."""
    if re.sub(r"\s", "", text(node)) != "return;":
        return False
    current = node.parent
    while current is not None and current != body:
        if current.type in (*syntax.LOOPS, "switch_statement", "lambda_expression"):
            return False
        current = current.parent
    return True
