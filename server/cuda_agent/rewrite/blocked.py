"""Register blocking of a staged loop: a thread computes several outputs that lie a block's width apart, along one or
both thread axes, so that what it read from a tile serves all of them."""

from __future__ import annotations

from collections.abc import Mapping

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit
from cuda_agent.rewrite import launches, staged, syntax
from cuda_agent.rewrite.analysis import access, affine, names
from cuda_agent.rewrite.analysis.coverage import check_index_only, covered
from cuda_agent.rewrite.analysis.guards import Condition, Frame
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.per_row import PerRow
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import operator, walk

_COUNTERS = {"y": "rp", "x": "sq"}


def check(context: Context, around: Frame, size: int, counts: Mapping[str, int]) -> list[Assumption]:
    """RuleRefused unless the grid may shrink along these axes: blocks are counted for one index only, which a guard
    bounds, and every launch reaches that bound."""
    if any(text(n) == "gridDim" for n in walk(context.body, "identifier")):
        raise RuleRefused("the kernel asks how many blocks there are")
    found = []
    for axis in counts:
        index, value = _index(context, axis, size)
        check_index_only(context, value, axis)
        bound = next((b for c in around.conditions if (b := _bound(context, c, index)) is not None), None)
        if bound is None:
            raise RuleRefused(f"no guard bounds {index.name}")
        found.append(covered(context, text(bound), axis))
    own = {f"{place}.{axis}" for place in ("threadIdx", "blockIdx") for axis in counts}
    for one in access.of(context).globals:
        if one.index.names & own and not around.start <= one.node.start_byte < around.end:
            raise RuleRefused(f"{text(one.node)} is used outside the guard: it may not be there")
    return found


def edits(context: Context, plan: staged.Plan, counts: Mapping[str, int]) -> list[Edit]:
    """The kernel's body where a thread computes `counts[axis]` outputs along each axis, and its launches with fewer
    blocks."""
    for operand in plan.operands:
        operand.times = counts.get(operand.axis, 1)
    now = context.after(staged.edits(context, plan))
    for axis, rows in counts.items():
        fills = {o.tile: ("y" if o.by_loop else "x") if o.axis == axis else "" for o in plan.operands}
        writer = PerRow(now, axis, rows, plan.size, fills, _COUNTERS[axis])
        now = now.after([writer.edit()])
    grid = [_fewer(counts.get(axis, 1)) for axis in "xyz"]
    changed = launches.change(context, (grid[0], grid[1], grid[2]))
    return [Edit(context.kernel.body, now.slice(now.kernel.body)), *changed]


def _fewer(k: int) -> launches.AxisText:
    return lambda extent: launches.over(extent, k)


def _index(context: Context, axis: str, size: int) -> tuple[Variable, Node]:
    """The variable that holds the thread's place along the axis in the whole grid, and its value's text."""
    wanted = Poly.symbol(f"blockIdx.{axis}") * size + Poly.symbol(f"threadIdx.{axis}")
    for v in names.of(context).variables:
        if v.escapes or v.extents or v.pointer or [w.op for w in v.writes] != ["init"]:
            continue
        value = v.writes[0].value
        if value is None or value.type == "initializer_list":
            continue
        if affine.of(context, value).substitute({f"blockDim.{axis}": size}) == wanted:
            return v, value
    raise RuleRefused(f"no variable holds blockIdx.{axis} * {size} + threadIdx.{axis}")


def _bound(context: Context, condition: Condition, index: Variable) -> Node | None:
    """The bound of a condition `index < bound`, which does not depend on the thread's place."""
    node = condition.node
    if node.type != "binary_expression" or operator(node) != (">=" if condition.opposite else "<"):
        return None
    left, right = syntax.field(node, "left"), syntax.field(node, "right")
    if left.type != "identifier" or affine.variable(context, left) is not index:
        return None
    return None if any(n.startswith("threadIdx") for n in affine.of(context, right).names) else right
