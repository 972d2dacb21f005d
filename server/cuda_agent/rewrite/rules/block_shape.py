"""# 1 · block-shape: another block size for the same threads

Few large blocks leave multiprocessors idle; a warp of a block of 16 × 16 reads half lines, one of 8 × 8 × 4 quarter
lines. The block size is a number to try; where a launch has fewer blocks than the machine has multiprocessors, smaller
ones first.

Before: `k<<<(n + 255) / 256, 256>>>(x, n)` · After: `k<<<((n + 255) / 256) * 4, 64>>>(x, n)`

Legal when threads use their index only as a global index or a warp index (proved), there is no barrier and no shared
memory
(proved), and surplus threads are guarded, or the captured launches divide evenly (captured). Bit-exact.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, LaunchMap
from cuda_agent.rewrite import launches, syntax
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site, with_launch
from cuda_agent.rewrite.syntax import squeeze, text

_SHAPES = {
    1: ((64, 1, 1), (128, 1, 1), (256, 1, 1), (512, 1, 1), (32, 1, 1), (1024, 1, 1)),
    2: ((32, 8, 1), (32, 4, 1), (64, 4, 1), (128, 2, 1), (32, 16, 1), (256, 1, 1)),
    3: ((32, 8, 1), (32, 4, 2), (64, 4, 1), (32, 4, 1), (128, 2, 1), (16, 4, 4)),
}
# 32 blocks of 32 threads fill half of an SM.
_LARGER = ((256, 1, 1), (128, 1, 1), (512, 1, 1), (1024, 1, 1), (64, 1, 1))
_BUSY = 8  # blocks for each multiprocessor
_GRID_LIMIT = 65535  # blocks in y and z
_BLOCK_WIDE = re.compile(r"__syncthreads|__shared__|\bblock\.sync|\bcg::sync|\bcub::Block|grid\.sync|asm\b")


class BlockShape(Rule):
    name = "block-shape"
    number = 1

    def sites(self, context: Context) -> Iterator[Site]:
        axes = index_axes(context)
        if not axes or not context.shapes:
            return
        current = {s.block for s in context.launched}
        unused = [i for i, a in enumerate("xyz") if a not in axes]
        if any(b[i] != 1 for b in current for i in unused):
            return
        bound = _bound(context)
        small = axes == {"x"} and all(s.threads < 128 for s in context.shapes)
        # Blocks of 128 and more that keep every multiprocessor busy are rarely better of another size.
        sms = context.device.sms if context.device else 132
        minor = axes == {"x"} and not small and all(s.blocks >= _BUSY * sms for s in context.shapes)
        listed: Sequence[tuple[int, int, int]] = _SHAPES["xyz".index(max(axes)) + 1]
        if _few(context):
            listed = sorted(listed, key=math.prod)
        elif small:
            listed = _LARGER
        names = "xyz"[: 3 if "z" in axes else len(axes)]
        for shape in (s for s in listed if all(s[i] == 1 for i in unused)):
            if current != {shape} and math.prod(shape) <= bound:
                params = dict(zip(names, shape, strict=False))
                yield Site(self.name, context.kernel.name_span, params, minor=minor)

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        x, y, z = site.params["x"], site.params.get("y", 1), site.params.get("z", 1)
        assumptions = [Assumption("threads use only their global index", "proved")]
        threads = [[g * b for g, b in zip(s.grid, s.block, strict=True)] for s in context.launched]
        exact = all(t[0] % x == 0 and t[1] % y == 0 and t[2] % z == 0 for t in threads)
        if any(-(-t[1] // y) > _GRID_LIMIT or -(-t[2] // z) > _GRID_LIMIT for t in threads):
            raise RuleRefused(f"a grid has at most {_GRID_LIMIT} blocks in y and in z")
        if not context.kernel.guards and not _grid_stride(context):
            if not exact:
                raise RuleRefused("there is no guard for surplus threads")
            shape = f"{x} × {y}" + (f" × {z}" if "z" in site.params else "")
            assumptions.append(Assumption(f"the threads of every launch fill blocks of {shape}", "captured"))
        edits = []
        for one in launches.sites_of(context):
            gx, gy, gz = launches.axes(context, one.grid, one.span.start)
            bx, by, bz = launches.block_axes(context, one.block, one.span.start)
            grid = (
                launches.regrid(context, one, gx, bx, x),
                gy if y == 1 and by == "1" else launches.regrid(context, one, gy, by, y),
                gz if z == 1 and bz == "1" else launches.regrid(context, one, gz, bz, z),
            )
            edits += list(with_launch(one, launches.dims(grid), launches.dims((str(x), str(y), str(z)))))
        rows = f"ceil_div(gy * by, {y})" if y > 1 else "gy * by"
        slices = "gz" if "z" not in site.params else f"ceil_div(gz * bz, {z})" if z > 1 else "gz * bz"
        mapping = LaunchMap(grid=(f"ceil_div(gx * bx, {x})", rows, slices), block=(str(x), str(y), str(z)))
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


def _few(context: Context) -> bool:
    """Whether a launch leaves multiprocessors without a block: smaller blocks then reach more of them."""
    sms = context.device.sms if context.device else 132
    return any(math.prod(s.grid) < sms for s in context.shapes)


def _is_total(node: Node) -> bool:
    """Part of `gridDim.x * blockDim.x`, the number of threads, which a new shape keeps (up to surplus threads)."""
    above = node.parent
    product = above.parent if above is not None else None
    return product is not None and squeeze(text(product)) in {
        f"{a}.{axis}*{b}.{axis}" for axis in "xyz" for a, b in (("gridDim", "blockDim"), ("blockDim", "gridDim"))
    }


def _grid_stride(context: Context) -> bool:
    return "gridDim" in text(context.body)


def _bound(context: Context) -> int:
    bounds = context.kernel.launch_bounds
    return int(bounds[0]) if bounds and bounds[0].isdigit() else 1024
