"""# 7 · coarsen-window: one thread computes several windows of a row that its block shares

In a one-dimensional stencil or filter neighbours read nearly the same elements of shared memory. A thread that computes
four neighbouring windows reads each element once, into a register, and four at a time; filling the tile, it has four
loads from memory in flight.

Before, in blocks of 256:

    tile[threadIdx.x + R] = in[i];
    …
    __syncthreads();
    int sum = 0;
    for (int k = -R; k <= R; k++)
        sum += tile[threadIdx.x + R + k];
    out[i] = sum;

After, in blocks of 64:

    for (int r = 0; r < 4; r++) {
        tile[threadIdx.x + r * 64 + R] = in[i + r * 64];
        …
    }
    __syncthreads();

    // from here on thread i does the work of 4 neighbours, from 4 i on
    i += threadIdx.x * 3;
    __align__(16) int sum[4] = {0};
    for (int r = 0; r < 4; r++)
        for (int k = -R; k <= R; k++)
            sum[r] += tile[threadIdx.x * 4 + r + R + k];
    *reinterpret_cast<int4 *>(&out[i]) = *reinterpret_cast<int4 *>(sum);

Where the number of steps is not known to the compiler, or the results cannot be stored as a vector, a thread computes
windows that lie a quarter of the block apart (`apart=4`): the loads in flight remain, and what does not depend on the
thread is loaded once for all of them.

Legal when barriers and the loops around them do not depend on threadIdx.x, no thread leaves early, nothing depends on
warps, and for neighbours nothing that a thread computed before the last barrier is kept behind it but its indices
(proved); the block has the captured size, and what is stored as a vector is aligned (captured). Bit-exact.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.rewrite import merged, syntax
from cuda_agent.rewrite.analysis import access, trips
from cuda_agent.rewrite.analysis.induction import Induction
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import squeeze, text

_FEWEST = 32  # threads of a block
_MOST_STEPS = 32  # of a window that the compiler surely unrolls


class CoarsenWindow(Rule):
    name = "coarsen-window"
    number = 7

    def sites(self, context: Context) -> Iterator[Site]:
        code = text(context.body)
        if "__syncthreads" not in code or "threadIdx.y" in code or (block := merged.block_of(context)) is None:
            return
        windows = list(_windows(context))
        if not windows or block[1:] != (1, 1):
            return
        last = _last_barrier(context)
        steps = [trips.of_induction(context, loop) for _, loop in windows]
        short = all(n is not None and n.value is not None and n.value <= _MOST_STEPS for n in steps)
        behind = last is not None and all(one.node.start_byte > last for one, _ in windows)
        for n in (4, 2):
            if block[0] % n or block[0] // n < _FEWEST:
                continue
            if short and behind:
                yield Site(self.name, context.kernel.name_span, {"neighbours": n}, {"block": block, "near": last})
            yield Site(self.name, context.kernel.name_span, {"apart": n}, {"block": block, "near": None})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        (n,) = site.params.values()
        return merged.rewrite(context, "x", n, site.nodes["block"], site.nodes["near"])


def _windows(context: Context) -> Iterator[tuple[access.Access, Induction]]:
    """Loads from shared memory in a loop without a barrier, where the next thread reads in one step what this one reads
    in the next."""
    for one in access.of(context):
        loop = one.loops[0] if one.loops else None
        if one.space != "shared" or one.kind != "load" or loop is None or "__syncthreads" in text(loop.loop):
            continue
        lane, step = one.lane, one.stride(loop.symbol)
        if lane is not None and step is not None and lane.value in (1, -1) and step.value in (1, -1):
            yield one, loop


def _last_barrier(context: Context) -> int | None:
    """Where the last barrier ends, when it stands in the body itself and none stands elsewhere behind it."""
    found: Node | None = None
    for node in syntax.statements(context.body):
        if squeeze(text(node)) == "__syncthreads();":
            found = node
        elif "__syncthreads" in text(node):
            found = None
    return found.end_byte if found is not None else None
