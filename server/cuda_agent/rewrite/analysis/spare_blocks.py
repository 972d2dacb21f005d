"""What the blocks do that are too many when a block does the work of several and their number is no multiple: nothing,
where everything is guarded by the index; or there are none, where the grid is a constant of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused, WorkloadError
from cuda_agent.model import Assumption, Span
from cuda_agent.rewrite import launches, syntax
from cuda_agent.rewrite.analysis import affine, names, trips
from cuda_agent.rewrite.analysis import statements as touching
from cuda_agent.rewrite.analysis.block_sums import WAITS, Plan, is_shared
from cuda_agent.rewrite.analysis.linear import ZERO
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source import declared
from cuda_agent.source.tree import base, callee, name_of, strip_parens, walk
from cuda_agent.workload import launch_map


def spare(context: Context, plan: Plan, axis: str) -> tuple[Assumption, int | None]:
    """Why the blocks that fill up the last round do no harm, and the extent of the grid that the rounds must divide
    where there may be none."""
    try:
        return _guarded(context, plan, axis), None
    except RuleRefused as error:
        count = _constant_extent(context, axis)
        if count is None:
            raise error
        return Assumption(f"the grid has {count} blocks in {axis}, by constants of the file", "proved"), count


def _constant_extent(context: Context, axis: str) -> int | None:
    """The extent of the grid that the text of every launch gives, when it is that of the captured launches."""
    found = {s.grid["xyz".index(axis)] for s in context.launched}
    for site in launches.sites_of(context):
        code = launches.block_axes(context, site.grid, site.span.start)["xyz".index(axis)]
        try:
            found.add(launch_map.evaluate(_spelled(context, code, site.span.start), {}))
        except WorkloadError:
            return None
    return found.pop() if len(found) == 1 else None


def _spelled(context: Context, code: str, at: int, depth: int = 0) -> str:
    """The expression with the names of macros and unchanged variables spelled out."""

    def value(match: re.Match[str]) -> str:
        found = declared.declared(context.module, match[0], at)
        if found.value is None or depth > 4:
            return match[0]
        return f"({_spelled(context, text(found.value), found.at, depth + 1)})"

    return re.sub(r"[A-Za-z_]\w*", value, code)


def _guarded(context: Context, plan: Plan, axis: str) -> Assumption:
    """Every load, store and value of the work stands behind `index < bound`, which no block beyond the grid passes."""
    scope = names.of(context)
    bounds: dict[str, bool] = {}  # → whether it is seen in every captured launch
    safe: list[Span] = []
    for node in (n for one in plan.work for n in walk(one)):
        passed = {
            "if_statement": ("condition", "consequence"),
            "conditional_expression": ("condition", "consequence"),
            "binary_expression": ("left", "right"),
        }.get(node.type)
        if passed is None or (node.type == "binary_expression" and text(syntax.field(node, "operator")) != "&&"):
            continue
        for part in _conjuncts(syntax.field(node, passed[0])):
            bound = _bound(context, part, axis)
            if bound is not None:
                bounds[bound[0]] = bounds.get(bound[0], True) and bound[1]
                safe.append(syntax.span(syntax.field(node, passed[1])))

    def idle(node: Node) -> bool:
        return any(s.holds(syntax.span(node)) for s in safe)

    for node in (n for one in plan.work for n in walk(one)):
        if _touches(context, scope, node) and not idle(node):
            raise RuleRefused(f"{text(node)} would be done by a block too many as well")
    values = [w.value for v in plan.sums for w in v.writes if syntax.span(plan.work[0]).start <= w.node.start_byte]
    values += [plan.last.value] if plan.last is not None else []
    for value in values:
        if value is None or value.start_byte >= plan.work[-1].end_byte:
            continue
        inner = strip_parens(value)
        if inner.type == "conditional_expression" and idle(syntax.field(inner, "consequence")):
            inner = syntax.field(inner, "alternative")
        if not idle(inner) and not ZERO.fullmatch(squeeze(text(inner))):
            raise RuleRefused(f"{text(value)} would be added by a block too many as well")
    sentence = f"every launch has a thread for each {axis} below {' and '.join(bounds)}"
    return Assumption(sentence, "captured" if all(bounds.values()) else "assumed")


def _conjuncts(node: Node) -> Iterator[Node]:
    node = strip_parens(node)
    if node.type == "binary_expression" and text(syntax.field(node, "operator")) == "&&":
        yield from _conjuncts(syntax.field(node, "left"))
        yield from _conjuncts(syntax.field(node, "right"))
    else:
        yield node


def _bound(context: Context, node: Node, axis: str) -> tuple[str, bool] | None:
    """The bound of `index < bound`, where no block beyond the grid has an index below it, and whether all captured
    launches tell."""
    if node.type != "binary_expression" or text(syntax.field(node, "operator")) != "<":
        return None
    block = f"blockIdx.{axis}"
    index, bound = (affine.of(context, syntax.field(node, part)) for part in ("left", "right"))
    step = index.stride(block)
    if step is None or any(n.startswith(("blockIdx", "threadIdx")) or n in ("memory", "call") for n in bound.names):
        return None
    known = [f"threadIdx.{a}" for a in "xyz"]
    rest = index.substitute({block: 0, **dict.fromkeys(known, 0)})
    if any((d.startswith(("blockIdx", "gridDim")) and d != block) or d in ("memory", "call") for d in index.names):
        return None
    if any(not _grows(context, index.stride(t)) for t in known if index.depends(t)):
        return None
    told = not (index.names | bound.names) & context.varied
    for i, (numbers, shape) in enumerate(zip(context.launched_numbers, context.launched, strict=True)):
        each, least, end = (trips.evaluate(p, numbers) for p in (step, rest, bound))
        if i >= len(context.shapes) and None in (each, least):
            told = False  # by what is not known of a launch that was not recorded
            continue
        if each is None or least is None or each <= 0 or least < 0:
            return None
        if end is None:
            told = False
        elif each * shape.grid["xyz".index(axis)] + least < end:
            return None
    return text(syntax.field(node, "right")), told


def _grows(context: Context, step: Poly | None) -> bool:
    values = [trips.evaluate(step, n) if step is not None else None for n in context.launched_numbers]
    return None not in values[: len(context.shapes)] and all(value is None or value >= 0 for value in values)


def _touches(context: Context, scope: names.Names, node: Node) -> bool:
    """A load or store of memory beyond the block's own, or a call that may do either."""
    if node.type == "subscript_expression":
        v = scope.resolve(name_of(base(node)) or "", node.start_byte)
        return v is None or not (v.is_array or is_shared(v))
    if node.type == "pointer_expression":
        return text(node).startswith("*")
    if node.type == "call_expression":
        return not touching.pure(context, node) and not WAITS.fullmatch(callee(node) or "")
    return node.type == "field_expression" and "->" in text(node)
