"""# 1 · grid-size: fewer or more blocks for a grid-stride loop

In a grid-stride loop the number of blocks is free. Fewer blocks mean fewer partial results to combine (atomics,
barriers); where a launch has fewer blocks than the machine can hold, more fill it.

Before: `k<<<dim3(rows / 32, cols / 32), 256>>>(…)` · After: `k<<<dim3((rows / 32 + 3) / 4, cols / 32), 256>>>(…)`

Legal when gridDim.x appears only in the stride of a loop that starts at the thread's own index, and blockIdx.x says
nothing but where loops start (proved). With float atomics the order of a sum changes: class "reassociated"; else
bit-exact.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.model import Assumption, LaunchMap
from cuda_agent.rewrite import launches, syntax
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import squeeze, text

_DIVISORS = tuple(2**i for i in range(1, 13))
_TRIED = 6  # those first that leave about as many blocks as can be resident

BLOCKS_PER_SM = 8  # as many as can be resident with 256 threads each


class GridSize(Rule):
    name = "grid-size"
    number = 1

    def sites(self, context: Context) -> Iterator[Site]:
        if not context.shapes or not strides_by_grid(context) or not only_starts(context, "x"):
            return
        blocks = min(s.grid[0] for s in context.shapes)
        per_launch = min(s.blocks for s in context.shapes)
        sms = context.device.sms if context.device else 132
        fitting = [k for k in _DIVISORS if blocks // k >= 1 and per_launch // k >= sms]
        for k in sorted(fitting, key=lambda k: abs(math.log(per_launch / k / (BLOCKS_PER_SM * sms))))[:_TRIED]:
            yield Site(self.name, context.kernel.name_span, {"divide": k})
        if per_launch < BLOCKS_PER_SM * sms:
            for k in (2, 4, 8, 16):
                if per_launch * k <= 2 * BLOCKS_PER_SM * sms:
                    yield Site(self.name, context.kernel.name_span, {"multiply": k})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        more = "multiply" in site.params
        k: int = site.params["multiply" if more else "divide"]
        change = launches.times if more else launches.over
        edits = launches.change(context, (lambda x: change(x, k), launches.same, launches.same))
        atomics = re.search(r"\batomicAdd\s*\(", text(context.body)) is not None
        return Rewrite(
            edits,
            LaunchMap(grid=(f"gx * {k}" if more else f"ceil_div(gx, {k})", "gy", "gz")),
            (Assumption("gridDim.x is only the stride of the loop, so any number of blocks covers it", "proved"),),
            "reassociated" if atomics else "bit-exact",
        )


def strides_by_grid(context: Context) -> bool:
    """gridDim.x is used, and only inside loop updates or in variables that only loop updates use. A loop may stand in a
    macro of the file, `#define KERNEL_LOOP(i, n) for (…)`."""
    uses = [n for n in syntax.of_type(context.body, "identifier") if text(n) == "gridDim"]
    macros = [loop_macro(context, n) for n in syntax.of_type(context.body, "function_definition")]
    if not all(macros) or not (uses or macros):
        return False
    if re.search(r"gridDim\.[yz]|grid\.sync|cooperative_groups::this_grid", text(context.body)):
        return False
    names = set()
    for use in uses:
        holder = next(
            (
                w
                for w in syntax.writes(context.body)
                if w.value is not None and syntax.span(w.value).holds(syntax.span(use))
            ),
            None,
        )
        if holder is not None and holder.op == "init" and holder.target.type == "identifier":
            names.add(text(holder.target))
        elif not _in_update(use):
            return False
    return all(_in_update(n) or _is_declared(n) for n in syntax.of_type(context.body, "identifier") if text(n) in names)


def only_starts(context: Context, axes: str = "xyz") -> bool:
    """blockIdx, of these axes, only says where loops start (directly, or through a variable used for nothing else): a
    block too many finds nothing to do, and what fewer blocks leave the others take."""
    loops = syntax.of_type(context.body, "for_statement")
    starts = [syntax.span(n) for loop in loops if (n := loop.child_by_field_name("initializer")) is not None]
    names: set[str] = set()

    def inside(node: Node) -> bool:
        return any(s.holds(syntax.span(node)) for s in starts)

    def told(n: Node) -> bool:
        """Which block it is, or a variable of that."""
        above = n.parent
        if text(n) == "blockIdx":
            return above is None or above.type != "field_expression" or text(syntax.field(above, "field")) in axes
        return text(n) in names

    for write in syntax.writes(context.body):
        fixed = write.op == "init" and write.value is not None and not inside(write.node)
        if fixed and write.value is not None and any(told(n) for n in syntax.of_type(write.value, "identifier")):
            names.add(_declared(write.target))
    holders = [w.node for w in syntax.writes(context.body) if w.op == "init" and _declared(w.target) in names]
    return all(
        inside(n) or any(syntax.span(h).holds(syntax.span(n)) for h in holders)
        for n in syntax.of_type(context.body, "identifier")
        if told(n)
    )


def _declared(target: Node) -> str:
    """The name that a declarator declares, a pointer's too."""
    return next((text(n) for n in syntax.of_type(target, "identifier")), "")


def loop_macro(context: Context, node: Node) -> bool:
    """`KERNEL_LOOP(i, n) { … }` (a function's definition to the parser), where the macro is a loop over the grid."""
    declarator = node.child_by_field_name("declarator")
    name = re.match(r"\w+", text(declarator)) if declarator is not None else None
    if name is None:
        return False
    found = re.findall(rf"^[ \t]*#[ \t]*define[ \t]+{name[0]}\(([^)]*)\)((?:.*\\\r?\n)*.*)$", context.text, re.M)
    if len(found) != 1:
        return False
    variable = re.escape(found[0][0].split(",")[0].strip())
    loop = squeeze(found[0][1].replace("\\", ""))
    stride = r"(gridDim\.x\*blockDim\.x|blockDim\.x\*gridDim\.x)"
    parts = re.fullmatch(rf"for\(\w*?{variable}=([^;]*);{variable}<[^;]*;{variable}\+=\(?{stride}\)?\)", loop)
    return parts is not None and syntax.is_global_id(parts[1], "x")


def _in_update(node: Node) -> bool:
    current = node
    while current.parent is not None and current.parent.type not in ("compound_statement", "function_definition"):
        if current.parent.type == "for_statement":
            return bool(current.parent.child_by_field_name("update") == current)
        current = current.parent
    return False


def _is_declared(node: Node) -> bool:
    return (
        node.parent is not None
        and node.parent.type == "init_declarator"
        and node.parent.child_by_field_name("declarator") == node
    )
