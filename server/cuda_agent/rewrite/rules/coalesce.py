"""# 4 · coalesce: swap the roles of two thread axes

Threads that are neighbours in x belong to one warp. Where x walks the slow dimension of an array and y the fast one,
every load of a warp touches 32 sectors; with the axes swapped it touches four.

Before:

    int row = blockIdx.x * blockDim.x + threadIdx.x;
    int col = blockIdx.y * blockDim.y + threadIdx.y;
    c[row * n + col] = a[row * n + col];

After (grid and block with x and y swapped too):

    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    c[row * n + col] = a[row * n + col];

A renaming of the axes: the same blocks of the same threads, only the order in which threads form warps changes. Legal
when nothing depends on that order: no shuffle, vote, warp or lane (proved). Bit-exact, unless floats are summed by
atomics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, LaunchMap
from cuda_agent.rewrite import launches, syntax
from cuda_agent.rewrite.analysis import access, trips
from cuda_agent.rewrite.analysis.access import Access
from cuda_agent.rewrite.analysis.dependence import AXES
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site, with_launch
from cuda_agent.rewrite.syntax import squeeze, text

SECTOR = 32  # bytes that memory moves at least
_ENOUGH = 0.7  # of the sectors before
_USUAL_TRIPS = 16  # of a loop whose trip count is not known
# Names whose meaning depends on which threads form a warp, or that read the axes where the rule cannot see it.
_WARPS = re.compile(
    r"__shfl|__ballot|__any|__all|__match|__reduce_|__syncwarp|__activemask|warpSize|cooperative_groups|\bcg::|\bcub::|asm\b"
)
_GRID_LIMIT = 65535  # blocks in y and z

_DEFINED = re.compile(r"#\s*define\s+(\w+)(.*)", re.S)


class Coalesce(Rule):
    name = "coalesce"
    number = 4

    def sites(self, context: Context) -> Iterator[Site]:
        used = _axes(context)
        if "x" not in used or len(used) == 1 or not any(s.block[1:] != (1, 1) for s in context.shapes):
            return
        weights = [[_times(context, one, n) for one in access.of(context).globals] for n in context.numbers]
        found = []
        for other in "yz":
            if {"x", other} <= used and any(s.block["xyz".index(other)] > 1 for s in context.shapes):
                before, after = _sectors(context, weights, "x"), _sectors(context, weights, other)
                if before and after < _ENOUGH * before:
                    found.append((after, other))
        for _, other in sorted(found):
            yield Site(self.name, context.kernel.name_span, {"swap": f"x{other}"})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        other = site.params["swap"][1]
        _check(context, other)
        edits = _renamed(context, other)
        order = [1, 0, 2] if other == "y" else [2, 1, 0]
        for one in launches.sites_of(context):
            grid = launches.axes(context, one.grid, one.span.start)
            block = launches.axes(context, one.block, one.span.start)
            said = launches.block_axes(context, one.block, one.span.start)
            square = squeeze(said[0]) == squeeze(said[order[0]])
            edits += with_launch(one, _swapped(grid, order), one.block if square else _swapped(block, order))
        names = [(f"g{a}", f"b{a}") for a in ("xyz"[i] for i in order)]
        mapping = LaunchMap(grid=(names[0][0], names[1][0], names[2][0]), block=(names[0][1], names[1][1], names[2][1]))
        known = Assumption("nothing depends on which threads form a warp", "proved")
        atomics = re.search(r"\batomic(Add|Sub)\s*\(", text(context.body)) is not None
        return Rewrite(tuple(edits), mapping, (known,), "reassociated" if atomics else "bit-exact")


def _axes(context: Context) -> set[str]:
    """The axes of threadIdx that the kernel reads."""
    fields = (squeeze(text(n)) for n in syntax.of_type(context.body, "field_expression"))
    return {f[-1] for f in fields if f in AXES and f.startswith("threadIdx")}


def _check(context: Context, other: str) -> None:
    code = text(context.body)
    if found := _WARPS.search(code):
        raise RuleRefused(f"{found.group().strip(':_')} depends on which threads form a warp")
    check_axes_in_sight(context)
    if any(s.grid[0] > _GRID_LIMIT for s in context.launched):
        raise RuleRefused(f"more than {_GRID_LIMIT} blocks in x cannot become blocks in {other}")
    if other == "z" and any(s.block[0] > 64 for s in context.launched):
        raise RuleRefused("a block has at most 64 threads in z")
    if context.kernel.launch_bounds and len(context.kernel.launch_bounds) > 2:
        raise RuleRefused("the kernel bounds its cluster")


def check_axes_in_sight(context: Context) -> None:
    """RuleRefused when the thread axes are read where a rule cannot see or rename it: as a whole, in a helper, or in a
    macro."""
    for n in syntax.of_type(context.body, "identifier"):
        whole = n.parent is None or n.parent.type != "field_expression" or squeeze(text(n.parent)) not in AXES
        if text(n) in syntax.BUILTINS and whole:
            raise RuleRefused(f"{text(n)} is used as a whole")
    for name in {callee.split("<")[0] for callee, _ in syntax.calls(context.body)}:
        if re.search(rf"\b{re.escape(name)}\s*\([^;{{]*\)\s*\{{[^}}]*\b({'|'.join(syntax.BUILTINS)})\b", context.text):
            raise RuleRefused(f"{name} reads the thread axes itself")
    if hidden := syntax.identifiers(context.body) & _macros_of_axes(context):
        raise RuleRefused(f"{min(hidden)} reads the thread axes itself")


def _macros_of_axes(context: Context) -> set[str]:
    """Macros of the file that name a thread axis, also through other macros."""
    bodies: dict[str, str] = {}
    for directive in context.module.tree.lexed.directives:
        if directive.keyword == "define" and (found := _DEFINED.match(context.slice(directive.span))):
            bodies[found[1]] = bodies.get(found[1], "") + found[2]
    named: set[str] = set(syntax.BUILTINS)
    while grown := {m for m, body in bodies.items() if m not in named and named & set(re.findall(r"\w+", body))}:
        named |= grown
    return named - set(syntax.BUILTINS)


def _renamed(context: Context, other: str) -> list[Edit]:
    """x and the other axis swapped in every threadIdx, blockIdx, blockDim and gridDim."""
    edits = []
    for n in syntax.of_type(context.body, "field_expression"):
        name = n.child_by_field_name("field")
        if squeeze(text(n)) in AXES and name is not None and text(name) in ("x", other):
            edits.append(Edit(syntax.span(name), other if text(name) == "x" else "x"))
    return edits


def _swapped(parts: tuple[str, str, str], order: list[int]) -> str:
    x, y, z = (parts[i] for i in order)
    return launches.dims((x, y, z))


# ---------------------------------------------------------------- is it worth it?


def _sectors(context: Context, weights: list[list[float]], first: str) -> float:
    """Sectors that one warp moves in the captured launches, with the axis `first` in the place of x. 0 when nothing is
    known about any access. `weights`: how often each access is done, per launch."""
    total = 0.0
    for numbers, times in zip(context.numbers, weights, strict=True):
        for one, often in zip(access.of(context).globals, times, strict=True):
            total += (_requested(one, numbers, first) or 0) * often
    return total


def _requested(one: Access, numbers: Mapping[str, int], first: str) -> int | None:
    here, index = dict(numbers), one.at_start
    if first != "x":
        swap = {f"{b}.{a}": f"{b}.{c}" for b in syntax.BUILTINS for a, c in (("x", first), (first, "x"))}
        here |= {swap[name]: value for name, value in numbers.items() if name in swap}
        index = index.substitute({old: Poly.symbol(new) for old, new in swap.items()})
    offsets = access.lanes(index, here)
    if offsets is None:
        return None
    size = one.bytes or 4
    return len({(o * size) // SECTOR for o in offsets})


def _times(context: Context, one: Access, numbers: Mapping[str, int]) -> float:
    """How often a thread does the access, loops around it multiplied."""
    times = 1.0
    for loop in one.loops:
        count = trips.of_induction(context, loop) if loop is not None else None
        known = {f"{b}.{a}": 0 for b in ("threadIdx", "blockIdx") for a in "xyz"} | dict(numbers)
        number = trips.evaluate(count, known) if count is not None else None
        times *= _USUAL_TRIPS if number is None else max(number, 1)
    return times
