"""# 16 · stage: operands that a block shares go through shared memory

In a matrix product every element of a row is read by all threads of the row, in an n-body sum every body by all
threads. A block that first brings a piece of them into shared memory reads each from memory once.

Before:

    for (int k = 0; k < n; k++)
        sum += a[row * n + k] * b[k * n + col];

After:

    __shared__ float a_tile[16][16];
    __shared__ float b_tile[16][16];
    for (int k0 = 0; k0 < n; k0 += 16) {
        a_tile[threadIdx.y][threadIdx.x] = row < m && k0 + threadIdx.x < n ? a[row * n + k0 + threadIdx.x] : 0;
        b_tile[threadIdx.y][threadIdx.x] = col < n && k0 + threadIdx.y < n ? b[(k0 + threadIdx.y) * n + col] : 0;
        __syncthreads();
        for (int k = 0; k < 16; k++)
            sum += a_tile[threadIdx.y][k] * b_tile[k][threadIdx.x];
        __syncthreads();
    }

Where every thread walks a row of its own, the rows lie far apart and a warp's load touches 32 sectors; there the block
brings 32 columns of all its rows at a time, and each thread reads its row from the tile.

Neighbouring threads fill neighbouring elements, whichever way the operand lies. Threads outside the matrix stay to help
and for the barriers; only their results are not stored.

With `rows` and `cols` a thread of a product computes several outputs that lie a block's width apart, with their sums in
registers (here `rows=4`, and a quarter of the blocks in y). What it read from one tile serves all of them: a step of 16
× 16 tiles reads shared memory 1.25 times a multiplication, with four rows 0.5, with four rows of four columns 0.31
times; and a block brings the other operand once for all its rows:

    __shared__ float a_tile[64][16];
    __shared__ float b_tile[16][16];
    int row = blockIdx.y * blockDim.y * 4 + threadIdx.y;
    float sum[4] = {0};
    for (int k0 = 0; k0 < n; k0 += 16) {
        #pragma unroll
        for (int r = 0; r < 4; r++)
            a_tile[threadIdx.y + r * 16][threadIdx.x] = row + r * 16 < m && … ? a[(row + r * 16) * n + …] : 0;
        b_tile[threadIdx.y][threadIdx.x] = …;
        __syncthreads();
        for (int k = 0; k < 16; k++) {
            #pragma unroll
            for (int r = 0; r < 4; r++)
                sum[r] += a_tile[threadIdx.y + r * 16][k] * b_tile[k][threadIdx.x];
        }
        __syncthreads();
    }

Legal when all threads of a block run the loop alike and the kernel writes none of the staged arrays (proved), none of
them overlaps what it writes, and the block has the captured size (captured). Several outputs a thread besides: the
kernel asks for the block's place only in the index of the row, a guard bounds that index and covers whatever memory
depends on it (proved), and every launch has a thread for each row (captured). The order of each sum stays: bit-exact.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, LaunchMap
from cuda_agent.rewrite import blocked, launches, mirror, syntax
from cuda_agent.rewrite.analysis import access, affine, aliasing, sizes, trips, uniform, zeros
from cuda_agent.rewrite.analysis.guards import frame
from cuda_agent.rewrite.analysis.induction import Induction
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.mirror import X, Y
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.rules.coalesce import check_axes_in_sight
from cuda_agent.rewrite.staged import ROW, WARP, Operand, Plan, edits, guards
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import walk

_SHARED = 48 * 1024
_LEAST = 8  # threads that share an element
_AXES = {"rows": "y", "cols": "x"}
_NAMES = {axis: name for name, axis in _AXES.items()}
_BLOCKINGS = ({"rows": 4, "cols": 4}, {"rows": 8, "cols": 8}, {"rows": 4}, {"rows": 8}, {"rows": 2})
_SUMS = 256 * 64  # a block's sums of four bytes: a quarter of the registers


class Stage(Rule):
    name = "stage"
    number = 16

    def sites(self, context: Context) -> Iterator[Site]:
        if not context.numbers or "threadIdx" not in text(context.body):
            return
        if syntax.COOPERATION.search(text(context.body)):
            return
        for node in syntax.of_type(context.body, "for_statement"):
            loop = affine.induction(context, node)
            if loop is None or loop.step.value != 1:
                continue
            found = _operands(context, loop)
            if found:
                size = WARP if found[0].axis == ROW else _size(context)
                nodes = {"loop": loop, "operands": found}
                for counts in _counts(context, loop, found, size):
                    yield Site(self.name, syntax.span(node), {"size": size, **counts}, nodes)
                yield Site(self.name, syntax.span(node), {"size": size}, nodes)
                return

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        launches.check_one_block(context)
        counts = {axis: site.params[name] for name, axis in _AXES.items() if name in site.params}
        operands = [replace(o, times=counts.get(o.axis, 1)) for o in site.nodes["operands"]]
        plan = _plan(context, site.nodes["loop"], operands, site.params["size"])
        said = " × ".join(str(n) for n in _block(context) if n > 1)
        if counts:
            check_axes_in_sight(context)
        reached = blocked.check(context, plan.frame, plan.size, counts) if counts else []
        grid = [f"ceil_div(g{a}, {counts[a]})" if a in counts else f"g{a}" for a in "xyz"]
        return Rewrite(
            tuple(blocked.edits(context, plan, counts) if counts else edits(context, plan)),
            LaunchMap(grid=(grid[0], grid[1], grid[2])),
            (
                Assumption("all threads of a block run the loop alike, and the staged arrays are only read", "proved"),
                Assumption(f"blocks have {said} threads", "captured"),
                Assumption("the staged arrays never overlap what the kernel writes", "captured"),
                *reached,
            ),
        )


# ---------------------------------------------------------------- what can be staged


def _block(context: Context) -> tuple[int, int, int]:
    """The block of all launches. RuleRefused where they differ."""
    blocks = {shape.block for shape in context.launched}
    if len(blocks) != 1:
        raise RuleRefused("the block's size differs between launches")
    return blocks.pop()


def _size(context: Context) -> int:
    """Loop steps of a tile: the block's width. RuleRefused where the block's shape does not allow a tile."""
    x, y, z = _block(context)
    if z != 1 or (y not in (1, x)):
        raise RuleRefused(f"a block of {x} × {y} × {z} threads is neither a row nor a square")
    return x


def _counts(context: Context, loop: Induction, operands: list[Operand], size: int) -> Iterator[dict[str, int]]:
    """Outputs a thread along y ("rows") and x ("cols"), where enough blocks remain."""
    if (
        not context.sites
        or {o.axis for o in operands} != {"x", "y"}
        or not _adds_products(context, syntax.field(loop.loop, "body"), operands)
    ):
        return
    sms = context.device.sms if context.device else 132
    width = max(1, max(_bytes(context, o) or 8 for o in operands) // 4)
    blocks = min(s.blocks for s in context.shapes)
    for counts in _BLOCKINGS:
        outputs = math.prod(counts.values())
        deep = all(s.grid["xyz".index(_AXES[name])] >= n for s in context.shapes for name, n in counts.items())
        wide = [replace(o, times=counts.get(_NAMES[o.axis], 1)) for o in operands]
        fits = size * size * outputs * width <= _SUMS and _shared(context, wide, size) <= _SHARED
        if deep and fits and blocks // outputs >= sms:
            yield counts


def _shared(context: Context, operands: list[Operand], size: int) -> int:
    """Bytes of the tiles."""
    width = context.numbers[0]["blockDim.x"] if operands[0].axis == ROW else size
    shapes = [(o, width * o.times * (size + 1 if o.axis else 1)) for o in operands]
    return sum((_bytes(context, o) or 8) * elements for o, elements in shapes)


def _operands(context: Context, loop: Induction) -> list[Operand]:
    """What the loop reads and threads of a block share: in a square block at least one operand along each axis."""
    numbers = context.numbers[0]
    flat = numbers["blockDim.y"] == 1
    if numbers["blockDim.x"] < _LEAST:
        return []
    written = aliasing.effects(context).written
    body = syntax.span(syntax.field(loop.loop, "body"))
    found: dict[str, Operand] = {}
    rows: dict[str, Operand] = {}
    inside = [a for a in access.of(context).globals if a.index.depends(loop.symbol) and a.loops and a.loops[0] is loop]
    for one in inside:
        if one.kind != "load" or one.array in written or not body.holds(syntax.span(one.node)):
            continue
        if one.node.type != "subscript_expression":
            continue
        step, rest = one.index.split(loop.symbol)
        if step is None or not step.terms or step.names & {X, Y, "threadIdx.z"}:
            continue
        along = rest.stride(X)
        if flat and step.value == 1 and rest.depends(X) and along is not None and along.value not in (-1, 0, 1):
            key = f"{one.array}[{one.index}]"
            rows.setdefault(key, Operand([], ROW, True)).uses.append(one)
            continue
        axes = "".join(a for a in "xyz" if f"threadIdx.{a}" in rest.names)
        if uniform.of_poly(context, _without_threads(rest)) not in ("block", "grid"):
            continue
        if (flat and (axes or step.value != 1)) or (not flat and axes not in ("x", "y")):
            continue
        along = rest.stride(f"threadIdx.{axes}") if axes else None
        if axes and step.value != 1 and (along is None or along.value != 1):
            continue
        key = f"{one.array}[{one.index}]"
        found.setdefault(key, Operand([], axes, step.value == 1)).uses.append(one)
    if rows and numbers["blockDim.x"] % WARP == 0:
        found = rows
    operands = list(found.values())
    count = trips.of_induction(context, loop)
    known = [n for numbers in context.numbers if count and (n := trips.evaluate(count, numbers)) is not None]
    if any(n < (WARP if found is rows else numbers["blockDim.x"]) for n in known):
        return []  # less than one tile
    if found is rows:
        return operands
    own = {text(a.node) for a in inside if a.index.names & {X, Y}} if flat else set()
    if len(own) >= len(operands):
        return []  # most of what the loop reads stays as it is
    if not flat and {o.axis for o in operands} != {"x", "y"}:
        return []
    return operands


def _without_threads(poly: Poly) -> Poly:
    return poly.substitute({f"threadIdx.{a}": 0 for a in "xyz"})


def _plan(context: Context, loop: Induction, operands: list[Operand], size: int) -> Plan:
    effects = aliasing.effects(context)
    if effects.unknown:
        raise RuleRefused("the kernel stores through a pointer that is not followed")
    arrays = {o.uses[0].array for o in operands}
    if conflict := aliasing.conflicts(context, context.workload, arrays, set(effects.written)):
        raise RuleRefused(f"{conflict[0][0]} overlaps {conflict[0][1]} in a captured launch")
    body = syntax.field(loop.loop, "body")
    if next(walk(body, ("break_statement", "return_statement", "goto_statement")), None):
        raise RuleRefused("the loop may end early")
    if re.search(r"\bprintf\s*\(", text(body)):
        raise RuleRefused("the loop prints")
    limit = trips.limit(context, loop)
    if limit is None or limit[0] != "<":
        raise RuleRefused("the loop's bound is not of the form k < n")
    if any(uniform.of_poly(context, p) not in ("block", "grid") for p in (limit[1], loop.start)):
        raise RuleRefused("the loop's range differs between the threads of a block")
    around = frame(context, loop.loop)
    for write in (w for n in around.before for w in syntax.writes(n) if w.target.type == "identifier"):
        v = affine.variable(context, write.target)
        if v is not None and any(use.start_byte >= around.end for use in v.uses):
            raise RuleRefused(f"{v.name} is set behind the guard and used after it")
    for o in operands:
        if _bytes(context, o) is None:
            raise RuleRefused(f"the size of {o.uses[0].element} is not known")
        _check_unconditional(o, body)
    taken: set[str] = set()
    for o in operands:
        name = context.unused_here(f"{o.uses[0].array}_tile")
        o.tile = next(n for n in (name, *(f"{name}{i}" for i in range(2, 10))) if n not in taken)
        taken.add(o.tile)
    width = context.numbers[0]["blockDim.x"]
    rows = operands[0].axis == ROW
    if (total := _shared(context, operands, size)) > _SHARED:
        raise RuleRefused(f"the tiles need {total} bytes of shared memory")
    plan = Plan(loop, around, operands, size, width, not rows and _adds_products(context, body, operands))
    plan.row = context.unused_here("r") if rows else ""
    for c in around.conditions:
        on = affine.of(context, c.node).names
        if {X, Y} <= on and context.numbers[0]["blockDim.y"] > 1:
            raise RuleRefused(f"the guard {text(c.node)} mixes both thread axes")
    moved = [o for o in operands if o.mirrored or o.axis == ROW]
    nodes = [o.uses[0].node for o in moved]
    nodes += [c.node for c in around.conditions if any(guards(context, o, c.node) for o in moved)]
    plan.mirrored = mirror.variables(context, nodes, {loop.variable}) if nodes else []
    for v in plan.mirrored:
        plan.renamed[v.symbol] = mirror.clone(context, v, "in")
        if v.scope.start_byte > around.start and v.start > loop.loop.start_byte:
            raise RuleRefused(f"{v.name} is computed inside the loop")
    for o in operands:
        for n in syntax.of_type(o.uses[0].node, "identifier"):
            used = affine.variable(context, n)
            if used is not None and used is not loop.variable and used.start > loop.loop.start_byte:
                raise RuleRefused(f"{used.name} is computed inside the loop")
    return plan


def _template(context: Context, element: str) -> bool:
    return any(re.search(rf"\b{re.escape(element)}\b", p) for p in context.kernel.template_params)


def _check_unconditional(operand: Operand, body: Node) -> None:
    """Some use is done by every iteration: loading the element is what the loop does anyway."""
    for one in operand.uses:
        above, inside = one.node.parent, False
        while above is not None and above != body.parent:
            inside = inside or above.type in ("if_statement", "conditional_expression", "switch_statement")
            inside = inside or (above.type == "binary_expression" and re.search(r"&&|\|\|", text(above)) is not None)
            above = above.parent
        if not inside:
            return
    raise RuleRefused(f"{text(operand.uses[0].node)} is read under a condition only")


def _adds_products(context: Context, body: Node, operands: list[Operand]) -> bool:
    """The body is `sum += e` of staged elements, with an e like `a * b` that is zero where all of them are."""
    inside = syntax.statements(body)
    if len(inside) != 1 or inside[0].type != "expression_statement":
        return False
    write = next(iter(syntax.writes(inside[0])), None)
    if write is None or write.op not in ("+=", "-=") or write.name is None or write.value is None:
        return False
    staged = {u.node for o in operands for u in o.uses}
    return sum(n in staged for n in walk(write.value, "subscript_expression")) > 1 and zeros.zero_with(
        context, write.value, staged
    )


def _bytes(context: Context, operand: Operand) -> int | None:
    """Bytes of an element, the most that its type's name may mean; None where that is not known."""
    if (size := operand.uses[0].bytes) is not None:
        return size
    element = operand.uses[0].element
    if _template(context, element):
        return 8
    known = [sizes.size_of(meaning, context.module) for meaning in zeros.meanings(context, element)]
    return None if None in known else max(size for size in known if size is not None)
