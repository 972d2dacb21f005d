"""# 2 · row-per-warp: one row a thread → one row a warp

A kernel where a thread owns a row and walks it reads memory with a stride of a whole row between lanes: every load of
a warp
touches 32 sectors. Giving the row to a warp makes the lanes neighbours.

Before:

    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int c = 0; c < cols; c++) sum += in[row * cols + c];

After:

    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int c = lane; c < cols; c += 32) sum += in[row * cols + c];
    for (int offset = 16; offset > 0; offset /= 2)  // sum over the warp
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);

The launch gets 32 times the blocks.

Legal when: the thread index is used for nothing else (proved); every value carried out of a loop is a sum, product,
minimum or
maximum (proved); an array that is both read and written is always indexed the same way (proved); the block is
one-dimensional
and a multiple of 32 (captured). Sums change their order: class "reassociated"; with minimum and maximum only,
"bit-exact".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, LaunchMap, Span
from cuda_agent.rewrite import launches, syntax
from cuda_agent.rewrite.analysis.reduction import Reduction, needs_partial, reductions
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import CountedLoop, ThreadId, squeeze, text

WARP = 32


class RowPerWarp(Rule):
    name = "row-per-warp"
    number = 2

    def sites(self, context: Context) -> Iterator[Site]:
        ids = [t for t in syntax.thread_ids(context.body) if t.axis == "x"]
        if len(ids) != 1:
            return
        row = ids[0]
        loops = [l for s in _row_statements(context.body) if (l := syntax.counted_loop(s))]
        if not any(_walks_row(l, row.name, context.body) for l in loops):
            return
        _check_threads(context, row)
        yield Site(self.name, syntax.span(row.declaration), {"lanes": WARP}, {"row": row, "loops": loops})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        row: ThreadId = site.nodes["row"]
        loops: list[CountedLoop] = site.nodes["loops"]
        _check_flow(context, row, loops)
        folds = [r for loop in loops for r in reductions(loop)]
        edits = _edit_row(context, row)
        for loop in loops:
            edits += _edit_loop(context, loop, [r for r in folds if r.loop is loop])
        edits += _guard_stores(context, loops)
        edits += list(launches.change(context, (lambda x: launches.times(x, WARP), launches.same, launches.same)))
        return Rewrite(
            tuple(edits),
            LaunchMap(grid=(f"gx * {WARP}", "gy", "gz")),
            (
                Assumption(
                    f"blocks are one-dimensional and a multiple of {WARP} threads",
                    "captured" if context.shapes else "assumed",
                ),
                Assumption("nothing but the rows' own loops depends on the thread index", "proved"),
            ),
            "reassociated" if any(r.op in "+*" for r in folds) else "bit-exact",
        )


# ---------------------------------------------------------------- what must hold


def _row_statements(block: Node) -> Iterator[Node]:
    """The statements that run once a row: those of the body, and of `if`s without `else` around them (their
    conditions
    hold for the whole warp once the warp owns the row)."""
    for statement in syntax.statements(block):
        if statement.type == "if_statement" and statement.child_by_field_name("alternative") is None:
            yield from _row_statements(syntax.field(statement, "consequence"))
        else:
            yield statement


def _walks_row(loop: CountedLoop, row: str, body: Node) -> bool:
    """Some subscript in the loop is contiguous in the loop variable and starts at a multiple of the row."""
    bases = {
        w.name for w in syntax.writes(body) if w.op == "init" and w.value is not None and syntax.uses(w.value, row)
    }
    pointers = {
        text(w.target).lstrip("* ")
        for w in syntax.writes(body)
        if w.op == "init" and w.value is not None and syntax.uses(w.value, row)
    }
    for array, index, _ in syntax.subscripts(loop.body):
        if syntax.unit_stride(index, loop.variable):
            names = syntax.identifiers(index)
            if row in names or names & bases or array in pointers:
                return True
    return False


def _check_threads(context: Context, row: ThreadId) -> None:
    inside = syntax.span(row.value)
    for n in syntax.of_type(context.body, "identifier"):
        if text(n) in syntax.BUILTINS and not inside.holds(syntax.span(n)):
            raise RuleRefused(f"{text(n)} is used outside the row index: threads already share the work")
    if syntax.COOPERATION.search(text(context.body)):
        raise RuleRefused("threads of a block already work together here (barrier, shuffle or shared memory)")
    for shape in context.shapes:
        if shape.block[1:] != (1, 1) or shape.block[0] % WARP:
            raise RuleRefused(
                f"a captured launch has blocks of {shape.block}: they must be one-dimensional and a multiple of {WARP}"
            )


def _check_flow(context: Context, row: ThreadId, loops: list[CountedLoop]) -> None:
    for n in syntax.of_type(context.body, *syntax.LOOPS):
        if not any(syntax.span(l.node).holds(syntax.span(n)) for l in loops):
            raise RuleRefused("a loop of the row does not count upward by one")
    for loop in loops:
        if next(syntax.of_type(loop.body, "break_statement", "return_statement", "goto_statement"), None):
            raise RuleRefused("a loop of the row may end early")
        if syntax.uses(loop.start, row.name) or syntax.uses(loop.bound, row.name):
            raise RuleRefused("a loop's range depends on the row")
        if re.search(r"\batomic\w+\s*\(", text(loop.body)):
            raise RuleRefused("a loop of the row updates memory atomically")
    if any(w.name == row.name and w.op != "init" for w in syntax.writes(context.body)):
        raise RuleRefused(f"{row.name} is changed after it was computed")
    for n in syntax.of_type(context.body, "array_declarator"):
        if not any(syntax.span(l.body).holds(syntax.span(n)) for l in loops):
            raise RuleRefused("a local array may hold the row: it would have to be shared between lanes")
    stored = {a for w in syntax.memory_writes(context.body) for a, _, n in syntax.subscripts(w.target) if n == w.target}
    for w in syntax.memory_writes(context.body):
        if w.target.type == "pointer_expression":
            raise RuleRefused("a store through a moving pointer cannot be given to lanes")
    inside: dict[str, set[str]] = {}
    for loop in loops:
        for array, index, _ in syntax.subscripts(loop.body):
            if array in stored:
                inside.setdefault(array, set()).add(squeeze(text(index)).replace(loop.variable, "@"))
    for array, forms in inside.items():
        if len(forms) > 1:
            raise RuleRefused(f"{array} is written and read at different places of the row: lanes would need a barrier")


# ---------------------------------------------------------------- edits


def _edit_row(context: Context, row: ThreadId) -> list[Edit]:
    indent = context.indent(row.declaration.start_byte)
    lane = lane_name(context)
    value = syntax.span(row.value)
    whole = text(row.value)
    opened = whole if whole.startswith("(") and whole.endswith(")") and syntax._balanced(whole[1:-1]) else f"({whole})"
    end = row.declaration.end_byte
    return [
        Edit(value, f"{opened} / {WARP}"),
        Edit(Span(end, end), f"{context.eol}{indent}const int {lane} = threadIdx.x % {WARP};"),
    ]


def lane_name(context: Context) -> str:
    return context.unused("lane")


def _edit_loop(context: Context, loop: CountedLoop, folds: list[Reduction]) -> list[Edit]:
    lane = lane_name(context)
    start = text(loop.start)
    first = lane if start == "0" else f"{start} + {lane}"
    edits = [Edit(syntax.span(loop.start), first), Edit(syntax.span(loop.update), f"{loop.variable} += {WARP}")]
    indent = context.indent(loop.node.start_byte)
    step = _step(context)
    end = loop.node.end_byte
    after = ""
    for r in folds:
        if needs_partial(context.body, r):
            raise RuleRefused(f"{r.name} does not start from {'0' if r.op == '+' else '1'} before the loop")
        offset = context.unused("offset")
        head = f"{context.eol}{indent}for (int {offset} = {WARP // 2}; {offset} > 0; {offset} /= 2)"
        other = f"__shfl_xor_sync(0xffffffffu, {r.name}, {offset})"
        fold = f"{r.name} {r.op}= {other};" if r.op in "+*" else f"{r.name} = {r.op}({r.name}, {other});"
        after += f"{head}{context.eol}{indent}{step}{fold}"
    if after:
        edits.append(Edit(Span(end, end), after))
    return edits


def _step(context: Context) -> str:
    """One indentation step of the file."""
    body = context.indent(next(iter(syntax.statements(context.body))).start_byte)
    outer = context.indent(context.kernel.body.start)
    return body[len(outer) :] or "    "


def _guard_stores(context: Context, loops: list[CountedLoop]) -> list[Edit]:
    """Stores outside the loops are the row's own: one lane makes them."""
    edits = []
    lane = lane_name(context)
    done: set[int] = set()
    side_effects = [w.node for w in syntax.memory_writes(context.body)]
    side_effects += [n for name, n in syntax.calls(context.body) if name.startswith(("atomic", "__st"))]
    for node in side_effects:
        if any(syntax.span(l.node).holds(syntax.span(node)) for l in loops):
            continue
        statement = syntax.enclosing_statement(node)
        if statement.start_byte in done:
            continue
        done.add(statement.start_byte)
        if statement.type != "expression_statement":
            raise RuleRefused("a store outside the row's loops is not a plain statement")
        at = statement.start_byte
        edits.append(Edit(Span(at, at), f"if ({lane} == 0) "))
    return edits
