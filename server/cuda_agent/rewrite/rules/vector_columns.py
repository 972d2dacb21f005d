"""# 6 · vector-columns: a thread takes several neighbouring columns

A thread that walks down a column of a matrix moves one element a row: a warp reaches 128 bytes of each row, and rows
that start in the middle of a sector cost one more. With two or four neighbouring columns a thread, each row is moved by
vector instructions, in pieces that are as many times longer.

Before:

    int x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x >= N) return;
    float scale = s[x];
    for (int i = 0; i < rows; i++)
        y[i * N + x] = scale * a[i * N + x];

After, where N is a constant that four divides (and a quarter of the blocks):

    int x = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (x >= N) return;
    float scale[4];
    __align__(16) float s4[4];
    *reinterpret_cast<float4 *>(s4) = *reinterpret_cast<const float4 *>(&s[x]);
    #pragma unroll
    for (int k = 0; k < 4; k++)
        scale[k] = s4[k];
    for (int i = 0; i < rows; i++) {
        __align__(16) float y4[4], a4[4];
        *reinterpret_cast<float4 *>(a4) = *reinterpret_cast<const float4 *>(&a[i * N + x]);
        #pragma unroll
        for (int k = 0; k < 4; k++)
            y4[k] = scale[k] * a4[k];
        *reinterpret_cast<float4 *>(&y[i * N + x]) = *reinterpret_cast<float4 *>(y4);
    }

A kernel without a loop is taken likewise where its places are more than its own index, as those of a picture's row.
Where N is a parameter, what it was stands beside it, for sizes that are no multiple. A launch that may also start
another kernel keeps its blocks: those beyond the last column return at once.

Legal when the loop has as many iterations for every column, and what is written lies in the thread's own columns, at
multiples of the vector's width (proved); the pointers are aligned and do not overlap, and the launch has a thread for
every column (captured). Each column's own order of operations is kept: bit-exact.
"""

from __future__ import annotations

from collections.abc import Iterator

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, LaunchMap
from cuda_agent.rewrite import launches, syntax
from cuda_agent.rewrite.analysis import column_index
from cuda_agent.rewrite.analysis.column_index import ColumnIndex
from cuda_agent.rewrite.analysis.column_moves import ColumnMoves, has_loops
from cuda_agent.rewrite.analysis.coverage import covered
from cuda_agent.rewrite.per_column import PerColumn
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.rules.restrict import check_disjoint
from cuda_agent.rewrite.syntax import text
from cuda_agent.rewrite.vectors import sizes_seen

_LONG = 10_000  # bytes of a kernel that holds too much for several columns


class VectorColumns(Rule):
    name = "vector-columns"
    number = 6

    def sites(self, context: Context) -> Iterator[Site]:
        if not context.shapes:
            return
        if context.kernel.body.end - context.kernel.body.start > _LONG:
            return
        index = column_index.of(context)
        if index is None:
            return
        # Where nothing is indexed by more than the thread's own index, these take several elements a thread.
        instead = () if has_loops(context) else ("vectorize", "vector-inner")
        at, nodes = syntax.span(index.declaration), {"index": index}
        for width in (4, 2):
            yield Site(self.name, at, {"columns": width}, nodes, unless=instead)

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        index: ColumnIndex = site.nodes["index"]
        plan = ColumnMoves(context, index, site.params["columns"])
        reached = _covered(context, plan)
        check_disjoint(context)
        for name, nbytes in plan.aligned.items():
            if not context.aligned(name, nbytes):
                raise RuleRefused(f"{name} is not known to be aligned to {nbytes} bytes")
        launch, mapping = _fewer_blocks(context, plan.width)
        widest, writer = max(plan.aligned.values()), PerColumn(context, plan)
        return Rewrite(
            (*writer.edits(changed=bool(launch)), *launch),
            mapping,
            (
                Assumption(f"aligned to {widest} bytes at every launch: {', '.join(plan.aligned)}", "captured"),
                Assumption("the pointers of one launch never overlap", "captured"),
                reached,
                *sizes_seen(context, writer.vectors.values()),
            ),
        )


def _fewer_blocks(context: Context, width: int) -> tuple[tuple[Edit, ...], LaunchMap]:
    """A part of the blocks where every launch of them can be edited; else as many as before."""
    if "gridDim" in text(context.body):
        raise RuleRefused("the kernel asks for the number of blocks")
    try:
        return launches.fewer_blocks(context, width)
    except RuleRefused:
        if any(s.grid[0] * s.block[0] * width >= 2**31 for s in context.launched):
            raise
        return (), LaunchMap()


def _covered(context: Context, plan: ColumnMoves) -> Assumption:
    """That the threads of a launch reach every column."""
    index = plan.index
    if index.width != "blockDim.x":
        width = int(index.width) if index.width.isdigit() else plan.groups.constant(index.width, index.value)
        if any(s.block[0] != width for s in context.launched):
            raise RuleRefused(f"{index.width} is not known to be the block's width")
    bound = text(index.bound)
    number = plan.groups.constant(bound, index.bound) if bound.isidentifier() else None
    if number is None:
        return covered(context, bound, "x")
    if any(s.grid[0] * s.block[0] < number for s in context.launched):
        raise RuleRefused(f"a captured launch has fewer threads in x than {bound}: the rest is left alone")
    return Assumption(f"every launch has a thread for each x below {bound}", "captured")
