"""# 12 · sum-blocks: a block does the work of several before it sums

A block that computes one element a thread, sums over its threads and adds the sum to one place spends most of its time
in the sum: barriers, shuffles and an atomic that all blocks wait for. Where a thread first adds up the values of
several blocks there are fewer of all these.

Before:

    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    if (i < n)
        sum = x[i] * y[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        atomicAdd(out, sum);

After (and an eighth of the blocks):

    float sum = 0.0f;
    for (int r = 0; r < 8; r++) {
        int i = (blockIdx.x * 8 + r) * blockDim.x + threadIdx.x;
        if (i < n)
            sum += x[i] * y[i];
    }
    sum = block_sum(sum);
    …

Legal when everything behind the sum only adds (proved: sums, multiples by what is the same for all blocks, shuffles,
tree reductions, block sums of cub, functions of the file that do no more), does not ask which block it is, and is
written nowhere but by atomicAdd; when no thread leaves early; and when the work in front keeps nothing from one block
to the next. Where that work uses shared memory, a barrier ends each round. The blocks that are too many in the last
round have nothing to do because everything is guarded by the index (proved; that the launch reaches the bound is
captured), or there are none because the grid is a constant of the file (proved). Reassociated for floats.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, LaunchMap, Span
from cuda_agent.rewrite import launches, layout, syntax
from cuda_agent.rewrite.analysis import names, shared
from cuda_agent.rewrite.analysis.block_sums import Plan, is_shared, may_lead, taken_apart
from cuda_agent.rewrite.analysis.linear import ZERO
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.analysis.spare_blocks import spare
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import callee, walk

_SUMS = re.compile(r"\batomicAdd\s*\(")
_COMBINES = re.compile(r"__syncthreads|__shfl|[rR]educe|\.Sum\b")
_ROUNDS = (2, 4, 8, 16, 32)
_TRIED = 3
_BLOCKS_PER_SM = 8


class SumBlocks(Rule):
    name = "sum-blocks"
    number = 12

    def sites(self, context: Context) -> Iterator[Site]:
        code = text(context.body)
        if not context.shapes or not (_SUMS.search(code) and _COMBINES.search(code)) or "gridDim" in code:
            return  # the number of blocks of a loop over the grid is for grid-size
        sms = context.device.sms if context.device else 132
        blocks = min(s.blocks for s in context.shapes)
        refused: RuleRefused | None = None
        for axis in "yxz":
            deep = min(s.grid["xyz".index(axis)] for s in context.shapes)
            fitting = [k for k in _ROUNDS if k <= deep and blocks // k >= sms]
            if f"blockIdx.{axis}" not in squeeze(code) or not fitting:
                continue
            try:
                plan = taken_apart(context, axis)
                why, exact = spare(context, plan, axis)
            except RuleRefused as error:
                refused = refused or error
                continue
            fitting = [k for k in fitting if exact is None or exact % k == 0]
            for k in sorted(fitting, key=lambda k: abs(math.log(blocks / k / (_BLOCKS_PER_SM * sms))))[:_TRIED]:
                nodes = {"plan": plan, "spare": why}
                yield Site(self.name, context.kernel.name_span, {"axis": axis, "blocks": k}, nodes)
            return
        if refused is not None:
            raise refused

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        plan: Plan = site.nodes["plan"]
        axis, k = site.params["axis"], site.params["blocks"]
        fewer = [(lambda code: launches.over(code, k)) if a == axis else launches.same for a in "xyz"]
        grid = [f"ceil_div(g{a}, {k})" if a == axis else f"g{a}" for a in "xyz"]
        edits = [*_edits(context, plan, axis, k), *launches.change(context, (fewer[0], fewer[1], fewer[2]))]
        return Rewrite(
            tuple(edits),
            LaunchMap(grid=(grid[0], grid[1], grid[2])),
            (Assumption("what a block adds is linear in what its threads bring", "proved"), site.nodes["spare"]),
            "bit-exact" if shared.is_integer(context, plan.kind) else "reassociated",
        )


# ---------------------------------------------------------------- text


def _edits(context: Context, plan: Plan, axis: str, k: int) -> list[Edit]:
    eol, step, r = context.eol, layout.unit(context), context.unused_here("r")
    work = list(plan.work)
    while work and any(n == work[0] for n in plan.ahead) and not _valued(plan, work[0]):
        work.pop(0)  # stays where it is, in front of the loop
    start, end = work[0].start_byte, _line_end(context, work[-1])
    indent = context.indent(start)
    edits: list[Edit] = []
    lines: list[str] = []
    gone: list[Span] = []
    for declaration in (n for n in plan.ahead if n.start_byte >= start):
        if (given := _valued(plan, declaration)) is not None:
            v, value = given
            lines.append(f"{plan.kind} {v.name} = {_zero(plan.kind)};")
            edits.append(Edit(Span(declaration.start_byte, value.start_byte), f"{v.name} += "))
        else:
            lines.append(text(declaration))
            gone.append(_line(context, declaration))
    edits += [Edit(span, "") for span in gone]
    for w in (w for v in plan.sums for w in v.writes if w.op == "=" and start <= w.node.start_byte < end):
        edits.append(Edit(syntax.span(syntax.field(w.node, "operator")), "+="))
    after = ""
    if plan.last is not None:
        name = context.unused_here("sum")
        assert plan.last.value is not None
        lines.append(f"{plan.kind} {name} = {_zero(plan.kind)};")
        edits.append(Edit(Span(plan.last.node.start_byte, plan.last.value.start_byte), f"{name} += "))
        after = f"{eol}{indent}{text(plan.last.target)} = {name};"
    for n in (n for one in work for n in walk(one, "field_expression")):
        if squeeze(text(n)) == f"blockIdx.{axis}" and not any(s.holds(syntax.span(n)) for s in gone):
            edits.append(Edit(syntax.span(n), f"(blockIdx.{axis} * {k} + {r})"))
    head = f"for (int {r} = 0; {r} < {k}; {r}++) {{"
    edits.append(Edit(Span(start, start), "".join(line + eol + indent for line in (*lines, head)) + step))
    inner = layout.indented(context, Span(start, end), step)
    edits += [e for e in inner if not any(s.start <= e.span.start < s.end for s in gone)]
    barrier = f"{eol}{indent}{step}__syncthreads();" if _works_together(context, plan) else ""
    edits.append(Edit(Span(end, end), f"{barrier}{eol}{indent}}}{after}"))
    return edits


def _valued(plan: Plan, declaration: Node) -> tuple[Variable, Node] | None:
    """The sum that a declaration gives its first value."""
    for v in plan.sums:
        start = next(w for w in v.writes if w.op == "init")
        if start.value is not None and syntax.span(declaration).holds(syntax.span(start.node)):
            return None if ZERO.fullmatch(squeeze(text(start.value))) else (v, start.value)
    return None


def _line(context: Context, node: Node) -> Span:
    """The statement's line; with the blank line behind it where there is one in front of it too."""
    span, data = layout.removed(context, node), context.module.document.data
    blank = re.match(rb"[ \t]*\r?\n", data[span.end :])
    doubled = re.search(rb"\n[ \t]*\r?\n\Z", data[: span.start]) is not None and data[span.end - 1 : span.end] == b"\n"
    return Span(span.start, span.end + blank.end()) if blank is not None and doubled else span


def _line_end(context: Context, node: Node) -> int:
    """Behind the statement and a comment on its line."""
    after = node.next_named_sibling
    same = after is not None and after.type == "comment" and after.start_point[0] == node.end_point[0]
    return after.end_byte if same and after is not None else node.end_byte


def _zero(kind: str) -> str:
    return {"float": "0.0f", "double": "0.0"}.get(kind, "0")


def _works_together(context: Context, plan: Plan) -> bool:
    """Whether the work uses shared memory, which the next round writes again."""
    scope = names.of(context)
    for node in (n for one in plan.work for n in walk(one, ("identifier", "call_expression"))):
        if node.type == "call_expression":
            name = re.escape((callee(node) or "").split("<")[0])
            shares = rf"\b{name}\s*\([^;{{}}]*\)\s*\{{[^}}]*__(sync|shared)"
            if name.startswith("__sync") or re.search(shares, context.text):
                return True
            continue
        v = scope.resolve(text(node), node.start_byte)
        mine = plan.last is not None and syntax.span(plan.last.target).holds(syntax.span(node))
        if v is not None and not mine and (is_shared(v) or may_lead(context, v)):
            return True
    return False
