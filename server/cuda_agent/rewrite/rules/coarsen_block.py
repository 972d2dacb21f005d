"""# 7 · coarsen-block: one thread does the work of several threads of its block

In a tiled matrix product every multiplication loads two elements from shared memory. A thread that computes several
rows keeps its element of the column in a register for all of them: fewer loads, more independent sums.

Before, in blocks of 16 × 16:

    float sum = 0.0f;
    for (int k0 = 0; k0 < n; k0 += 16) {
        a_tile[threadIdx.y][threadIdx.x] = a[row * n + k0 + threadIdx.x];
        …
        __syncthreads();
        for (int k = 0; k < 16; k++)
            sum += a_tile[threadIdx.y][k] * b_tile[k][threadIdx.x];

After, in blocks of 16 × 4:

    float sum[4] = {0.0f};
    for (int k0 = 0; k0 < n; k0 += 16) {
        for (int r = 0; r < 4; r++) {
            a_tile[threadIdx.y + r * 4][threadIdx.x] = a[(row + r * 4) * n + k0 + threadIdx.x];
            …
        }
        __syncthreads();
        for (int k = 0; k < 16; k++)
            for (int r = 0; r < 4; r++)
                sum[r] += a_tile[threadIdx.y + r * 4][k] * b_tile[k][threadIdx.x];

In blocks with one dimension (the n-body tile, whose elements all threads read) a thread does the work of threads that
lie a quarter of the block apart: `threads=4`.

Every thread runs, between two barriers, what the threads with its x and with y + r · (new height) ran before. Legal
when barriers and the loops around them do not depend on threadIdx.y, no thread leaves early, and nothing depends on
warps (proved); the block has the captured size (captured). Bit-exact.
"""

from __future__ import annotations

from collections.abc import Iterator

from cuda_agent.rewrite import merged, syntax
from cuda_agent.rewrite.analysis import access, affine
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import ancestors

_FEWEST = {"x": 32, "y": 64}  # threads of a block


class CoarsenBlock(Rule):
    name = "coarsen-block"
    number = 7

    def sites(self, context: Context) -> Iterator[Site]:
        code = text(context.body)
        if "__syncthreads" not in code or (block := merged.block_of(context)) is None:
            return
        axis, word = ("y", "rows") if "threadIdx.y" in code else ("x", "threads")
        if (axis == "x" and block[1] != 1) or not _shares(context, f"threadIdx.{axis}"):
            return
        extent = block["xy".index(axis)]
        for n in (8, 4, 2):
            if block[2] == 1 and extent % n == 0 and block[0] * block[1] // n >= _FEWEST[axis]:
                yield Site(self.name, context.kernel.name_span, {word: n}, {"axis": axis, "block": block})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        (n,) = site.params.values()
        return merged.rewrite(context, site.nodes["axis"], n, site.nodes["block"])


def _shares(context: Context, thread: str) -> bool:
    """Some loop without a barrier reads an element of shared memory that all threads along the axis read."""
    for one in access.of(context):
        if one.space == "shared" and one.kind == "load" and one.loops and one.loops[0] is not None:
            inner = one.loops[0]
            apart = not one.index.depends(thread) and one.index.depends(inner.symbol)
            if not apart or "__syncthreads" in text(inner.loop):
                continue
            guards = (syntax.field(a, "condition") for a in ancestors(inner.loop, {"if_statement"}))
            if not any(thread in affine.of(context, g).names for g in guards):
                return True
    return False
