"""# 1 · block-shape: another block size for the same threads

Few large blocks leave multiprocessors idle; blocks of 16 × 16 read half a line a warp. The block size is a number to
try.

Before: `k<<<(n + 255) / 256, 256>>>(x, n)` · After: `k<<<((n + 255) / 256) * 4, 64>>>(x, n)`

Legal when threads use their index only as a global index or a warp index (proved), there is no barrier and no shared
memory
(proved), and surplus threads are guarded, or the captured launches divide evenly (captured). Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, LaunchMap
from cuda_agent.rewrite import launches, syntax
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site, with_launch
from cuda_agent.rewrite.syntax import squeeze, text

_ONE = ((64, 1), (128, 1), (256, 1), (512, 1), (32, 1), (1024, 1))
_ONE_OF_SMALL = ((256, 1), (128, 1), (512, 1), (1024, 1), (64, 1))  # 32 blocks of 32 threads fill half of an SM
_TWO = ((32, 8), (32, 4), (64, 4), (128, 2), (32, 16), (256, 1))
_BUSY = 8  # blocks for each multiprocessor
_BLOCK_WIDE = re.compile(r"__syncthreads|__shared__|\bblock\.sync|\bcg::sync|\bcub::Block|grid\.sync|asm\b")


class BlockShape(Rule):
    name = "block-shape"
    number = 1

    def sites(self, context: Context) -> Iterator[Site]:
        axes = index_axes(context)
        if not axes or not context.shapes:
            return
        current = {s.block for s in context.shapes}
        if any(b[2] != 1 for b in current) or (axes == {"x"} and any(b[1] != 1 for b in current)):
            return
        bound = _bound(context)
        small = all(s.threads < 128 for s in context.shapes)
        # Blocks of 128 and more that keep every multiprocessor busy are rarely better of another size.
        sms = context.device.sms if context.device else 132
        minor = axes == {"x"} and not small and all(s.blocks >= _BUSY * sms for s in context.shapes)
        for x, y in _TWO if axes != {"x"} else _ONE_OF_SMALL if small else _ONE:
            if current != {(x, y, 1)} and x * y <= bound:
                params = {"x": x} if axes == {"x"} else {"x": x, "y": y}
                yield Site(self.name, context.kernel.name_span, params, minor=minor)

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        x, y = site.params["x"], site.params.get("y", 1)
        assumptions = [Assumption("threads use only their global index", "proved")]
        exact = all((s.grid[0] * s.block[0]) % x == 0 and (s.grid[1] * s.block[1]) % y == 0 for s in context.shapes)
        if not context.kernel.guards and not _grid_stride(context):
            if not exact:
                raise RuleRefused("there is no guard for surplus threads")
            assumptions.append(Assumption(f"the threads of every launch fill blocks of {x} × {y}", "captured"))
        edits = []
        for one in launches.sites_of(context):
            gx, gy, gz = launches.axes(context, one.grid, one.span.start)
            bx, by, _ = launches.block_axes(context, one.block, one.span.start)
            grid = (
                launches.regrid(context, one, gx, bx, x),
                gy if y == 1 and by == "1" else launches.regrid(context, one, gy, by, y),
                gz,
            )
            edits += list(with_launch(one, launches.dims(grid), launches.dims((str(x), str(y), "1"))))
        rows = f"ceil_div(gy * by, {y})" if y > 1 else "gy * by"
        mapping = LaunchMap(grid=(f"ceil_div(gx * bx, {x})", rows, "gz"), block=(str(x), str(y), "1"))
        return Rewrite(tuple(edits), mapping, tuple(assumptions))


def index_axes(context: Context) -> set[str]:
    """The axes in which the kernel is a plain grid of threads; empty when the block shape means more than that.
    RuleRefused when the pattern is there but blocks work together."""
    ids = syntax.thread_ids(context.body)
    warps = re.search(
        r"blockIdx\.x\s*\*\s*\w+\.meta_group_size\(\)\s*\+\s*\w+\.meta_group_rank\(\)", text(context.body)
    )
    if not ids and not warps:
        return set()
    if _BLOCK_WIDE.search(text(context.body)):
        raise RuleRefused("the block shares memory or a barrier: its size is part of the algorithm")
    helpers = {name.split("<")[0] for name, _ in syntax.calls(context.body)}
    for helper in helpers:
        if re.search(
            rf"\b{re.escape(helper)}\s*\([^;{{]*\)\s*\{{[^}}]*\b(threadIdx|blockDim|__syncthreads)\b", context.text
        ):
            raise RuleRefused(f"{helper} depends on the shape of the block")
    allowed = [syntax.span(t.value) for t in ids]
    for n in syntax.of_type(context.body, "identifier"):
        if text(n) not in syntax.BUILTINS or any(s.holds(syntax.span(n)) for s in allowed):
            continue
        if warps and text(n) == "blockIdx":
            continue
        if text(n) in ("gridDim", "blockDim") and _is_total(n):
            continue
        raise RuleRefused(f"{text(n)} is used by itself: the block shape means something")
    return {t.axis for t in ids} or {"x"}


def _is_total(node: Node) -> bool:
    """Part of `gridDim.x * blockDim.x`, the number of threads, which a new shape keeps (up to surplus threads)."""
    above = node.parent
    product = above.parent if above is not None else None
    return product is not None and squeeze(text(product)) in {
        f"{a}.{axis}*{b}.{axis}" for axis in "xy" for a, b in (("gridDim", "blockDim"), ("blockDim", "gridDim"))
    }


def _grid_stride(context: Context) -> bool:
    return "gridDim" in text(context.body)


def _bound(context: Context) -> int:
    bounds = context.kernel.launch_bounds
    return int(bounds[0]) if bounds and bounds[0].isdigit() else 1024
