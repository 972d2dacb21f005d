"""# 16 · tile-product: a matrix product over a flat thread index, in tiles

A kernel with one output a thread often finds its row and column in one index, by / and %, so that no block shape says
which threads share what they read: every thread reads a row and a column from memory, and pays for the divisions. A
block that computes a tile of rows and columns reads each operand once for all of them; threads with several rows and
columns each keep their sums in registers, and most of what they multiply is read from shared memory only once.

Before:

    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= M * N) return;
    int row = idx / N, col = idx % N;
    float sum = 0.0f;
    for (int k = 0; k < K; k++)
        sum += a[row * K + k] * b[k * N + col];
    c[idx] = sum;

After, in blocks of 16 × 16 (rows=4, cols=4):

    __shared__ float a_tile[16][68];
    __shared__ float b_tile[16][64];
    for (int tile = blockIdx.x; tile < tiles_col * tiles_row; tile += gridDim.x) {
        …
        float sums[4][4] = {0};
        for (int k0 = 0; k0 < K; k0 += 16) {
            // the block fills a_tile and b_tile, zeros for what is not there
            __syncthreads();
            for (int k = 0; k < 16; k++)
                sums[r][c] += a_tile[k][4 * threadIdx.y + r] * b_tile[k][threadIdx.x + 16 * c];  // for each r and c
            __syncthreads();
        }
        // for each r and c: what stands behind the loop, with sum = sums[r][c]
    }

The columns may also be a loop of the thread's own (out[row][i] for all i), the rows may have products of different
lengths (k <= row), and further digits of the index are batches. Blocks of which no output needs its products
(`if (col > row) … return;` before the loop) leave them out.

Legal when the thread's index is used only through its digits, and they are all of it (proved); the loop does nothing
but add up products of two elements, of which one does not depend on the column and one not on the row, and the kernel
writes neither array (proved); no captured launch has them overlap with what is written, and each has a thread for every
output (captured). Where outputs may be left out, their operands must lie in the arrays all the same (captured). What
else a thread does for its output it does behind the products. Every sum is made in the same order: bit-exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, LaunchMap
from cuda_agent.rewrite import launches, syntax
from cuda_agent.rewrite.analysis import carried, loops, products, trips
from cuda_agent.rewrite.analysis.coverage import covered
from cuda_agent.rewrite.analysis.iterations import independent
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.analysis.products import Operand, Product
from cuda_agent.rewrite.product_tiles import SIDE, Tiles
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site, with_launch
from cuda_agent.rewrite.rules.coalesce import check_axes_in_sight
from cuda_agent.rewrite.rules.interchange import Interchange

_TILES = ((8, 8), (8, 4), (4, 4), (4, 2))  # rows and columns of a thread
_LEAST = 16  # products that make a tile worth filling


@dataclass(frozen=True)
class _Found:
    """The product, in the kernel's own text or in that with its loops changed over."""

    context: Context
    product: Product
    assumptions: tuple[Assumption, ...] = ()


class TileProduct(Rule):
    name = "tile-product"
    number = 16

    def sites(self, context: Context) -> Iterator[Site]:
        if not context.numbers or "[" not in syntax.text(context.body):
            return
        found = _found(context)
        if found is None:
            return
        for rows, columns in _sizes(found):
            params = {"rows": rows, "cols": columns}
            yield Site(self.name, syntax.span(found.product.loop.loop), params, {"found": found})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        found: _Found = site.nodes["found"]
        product = found.product
        check_axes_in_sight(context)
        launches.check_bound(context, SIDE * SIDE)
        assumptions = [
            *found.assumptions,
            Assumption("threads find their output in digits of one index, and only add up products for it", "proved"),
            Assumption("what is multiplied never overlaps what the kernel writes", "captured"),
            covered(found.context, str(product.total), "x"),
        ]
        if product.columns.loop is not None:
            assumptions += _check_columns(found)
        if product.leaves:
            _check_inside(found)
            assumptions.append(Assumption("the operands of outputs that are left out lie in the arrays", "captured"))
        rows, columns = site.params["rows"], site.params["cols"]
        tiles = Tiles(found.context, product, rows, columns)
        body = tiles.edit()
        outputs = tiles.height * (tiles.width if product.columns.digit is not None else 1)
        edits = [Edit(context.kernel.body, body.text)]
        for one in launches.sites_of(context):
            gx = launches.axes(context, one.grid, one.span.start)[0]
            grid = launches.regrid(context, one, gx, launches.width(context, one), outputs)
            edits += with_launch(one, grid, f"dim3({SIDE}, {SIDE})")
        launch = LaunchMap(grid=(f"ceil_div(gx * bx, {outputs})", "gy", "gz"), block=(str(SIDE), str(SIDE), "1"))
        return Rewrite(tuple(edits), launch, tuple(assumptions))


def _found(context: Context) -> _Found | None:
    product = products.find(context)
    if product is not None:
        return _Found(context, product)
    try:
        other = Interchange()
        site = next(iter(other.sites(context)), None)
        done = other.rewrite(context, site) if site is not None else None
    except RuleRefused:
        return None  # it says so itself
    if done is None:
        return None
    changed = context.after(done.edits)
    product = products.find(changed)
    return _Found(changed, product, done.assumptions) if product is not None else None


# ---------------------------------------------------------------- how large the tiles are


def _sizes(found: _Found) -> Iterator[tuple[int, int]]:
    """Rows and columns of a thread, most promising first: many, but with tiles for every multiprocessor."""
    product, known = found.product, found.context.numbers
    extents = [_least(a.extent, known) for a in (product.rows, product.columns)]
    count = trips.of_induction(found.context, product.loop)
    if count is not None and (least := _least(count, known)) is not None and least < _LEAST:
        return
    sms = found.context.device.sms if found.context.device else 132
    wanted = 2 * sms if product.triangular else sms
    total = _least(product.total, known)
    fitting = [
        (rows, columns)
        for rows, columns in _TILES
        if all(n is None or SIDE * k < 2 * n for k, n in zip((rows, columns), extents, strict=True))
    ]

    def tiles(rows: int, columns: int) -> int:
        outputs = SIDE * rows * (SIDE * columns if product.columns.digit is not None else 1)
        return (total or 0) // outputs

    yield from sorted(fitting, key=lambda size: (tiles(*size) < wanted, -math.prod(size)))


def _least(value: Poly, known: list[dict[str, int]]) -> int | None:
    numbers = [trips.evaluate(value, numbers) for numbers in known]
    found = [n for n in numbers if n is not None]
    return min(found) if found and len(found) == len(numbers) else None


# ---------------------------------------------------------------- what must hold


def _check_columns(found: _Found) -> list[Assumption]:
    """RuleRefused unless the columns that a thread did one after the other may be done by several threads."""
    context, columns = found.context, found.product.columns
    assert columns.loop is not None
    loop = loops.counting(columns.loop.loop)
    if loop is None:
        raise RuleRefused("the loop over columns does not count")
    own = {found.product.loop.variable.name, found.product.sum.name}
    if any(r.name not in own for r in carried.reductions(context, loop)):
        raise RuleRefused("a value is carried from column to column")
    return [
        Assumption(f"different columns touch different elements of {name}", "assumed")
        for name in independent(context, loop)
    ]


def _check_inside(found: _Found) -> None:
    """RuleRefused unless the operands of every row and column lie in their arrays in every captured launch. Their
    indices are linear in each digit, so the corners tell."""
    context, product = found.context, found.product
    for at, numbers in enumerate(context.numbers):
        for operand in (product.row, product.column):
            size = _room(context, at, operand)
            if size is None or not all(0 <= i < size for i in _corners(product, operand, numbers)):
                raise RuleRefused("the operands of outputs that are left out may not be there")


def _room(context: Context, launch: int, operand: Operand) -> int | None:
    """Elements from where the operand's parameter points to the end of its buffer."""
    target = context.pointer_targets()[launch].get(operand.load.array)
    if target is None or context.workload is None or operand.load.bytes is None:
        return None
    buffer, offset = target
    return (context.workload.launches[launch].buffers[buffer].size - offset) // operand.load.bytes


def _corners(product: Product, operand: Operand, numbers: dict[str, int]) -> Iterator[int]:
    ends: dict[str, tuple[int, int]] = {}
    for digit in product.digits:
        radix = trips.evaluate(digit.view.radix, numbers) if digit.view.radix is not None else None
        if radix is None:
            raise RuleRefused("how many rows and columns there are is not known")
        ends[digit.symbol] = (0, max(0, radix - 1))
    last = product.bound if product.relation == "<=" else product.bound + -1
    for corner in itertools.product(*ends.values()):
        place = dict(numbers) | dict(zip(ends, corner, strict=True))
        bounds = [trips.evaluate(product.loop.start, place), trips.evaluate(last, place)]
        for step in bounds:
            index = trips.evaluate(operand.index, place | {product.loop.symbol: step}) if step is not None else None
            if index is None:
                raise RuleRefused("where an operand lies is not known")
            yield index
