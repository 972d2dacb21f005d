"""# 3 · split-independent: one thread's long loop → a loop shared by many blocks

A thread that runs a long loop alone leaves the machine idle when there are few threads. Where the iterations do not
depend on each other, blocks along a grid axis that the kernel does not use share them out.

Before:

    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    for (int row = 0; row < rows; row++)
        out[row * cols + col] = scale[col] * in[row * cols + col];

After, with a grid of (…, 16):

    for (int row = blockIdx.y; row < rows; row += gridDim.y)
        out[row * cols + col] = scale[col] * in[row * cols + col];

Legal when the loop carries no value (proved); no iteration touches what another one writes (proved where an array has
one index that grows with the loop, else assumed: an in-place rotation reads and writes four places); nothing outside
the loop touches what it writes (proved); the axis is unused (proved, and captured: the launches have extent 1 there).
Stores outside the loop are made by the first blocks only. Bit-exact, but for sums of floats by atomics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, LaunchMap, Span
from cuda_agent.rewrite import launches, syntax
from cuda_agent.rewrite.analysis import names, statements
from cuda_agent.rewrite.analysis.calls import effect
from cuda_agent.rewrite.analysis.carried import dead_after, reductions
from cuda_agent.rewrite.analysis.iterations import accesses, independent
from cuda_agent.rewrite.analysis.loops import Loop, counting, trips
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.spread import spread
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import callee

_FULL = 1024  # threads a multiprocessor that keep it busy
_SHORT = 16  # iterations that every block may repeat
_FEW = 32  # iterations that are not worth sharing
_MOST = 1024  # parts


class SplitIndependent(Rule):
    name = "split-independent"
    number = 3

    def sites(self, context: Context) -> Iterator[Site]:
        loops = [l for l in _loops(context.body) if not syntax.COOPERATION.search(text(l.node))]
        loops = [l for l in loops if statements.stores(context, l.body) and not _by_grid(context, l)]
        axis = _free_axis(context)
        if len(loops) != 1 or axis is None:
            return
        sms = context.device.sms if context.device else 132
        threads = min(s.blocks * s.threads for s in context.shapes)
        count = trips(context, loops[0])
        if threads >= sms * _FULL or (count is not None and count < _worth(loops[0])):
            return
        _check(context, loops[0])
        nodes = {
            "loop": loops[0],
            "axis": axis,
            "assumed": independent(context, loops[0]),
            "once": _guard_stores(context, loops[0], axis),
        }
        full = max(2, 1 << (sms * _FULL // threads - 1).bit_length())
        for parts in dict.fromkeys(min(_MOST, count or _MOST, k) for k in (full, full * 4, max(2, full // 4))):
            yield Site(self.name, syntax.span(loops[0].node), {"parts": parts}, nodes)

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        loop, axis, parts = site.nodes["loop"], site.nodes["axis"], site.params["parts"]
        edits = [*spread(context, loop, f"blockIdx.{axis}", f"gridDim.{axis}"), *site.nodes["once"]]
        where = "xyz".index(axis)
        change: list[launches.AxisText] = [launches.same] * 3
        change[where] = lambda x: launches.times(x, parts)
        grid = ["gx", "gy", "gz"]
        grid[where] += f" * {parts}"
        return Rewrite(
            (*edits, *launches.change(context, (change[0], change[1], change[2]))),
            LaunchMap(grid=(grid[0], grid[1], grid[2])),
            (
                Assumption("the loop carries no value from one iteration to the next", "proved"),
                Assumption(f"the launches have extent 1 along {axis}", "captured"),
                *(
                    Assumption(f"different iterations of the loop touch different elements of {name}", "assumed")
                    for name in site.nodes["assumed"]
                ),
                *statements.trusted(context, loop.body),
            ),
            "reassociated" if "atomicAdd" in text(loop.body) else "bit-exact",
        )


# ---------------------------------------------------------------- where


def _loops(block: Node) -> Iterator[Loop]:
    """Counting loops that run once a thread."""
    for statement in statements.statements(block):
        if statement.type == "if_statement":
            for part in ("consequence", "alternative"):
                inner = statement.child_by_field_name(part)
                if inner is not None:
                    yield from _loops(inner.named_children[-1] if inner.type == "else_clause" else inner)
        elif statement.type == "compound_statement":
            yield from _loops(statement)
        elif (loop := counting(statement)) is not None:
            yield loop


def _worth(loop: Loop) -> int:
    """The least iterations that are worth sharing: each may be a loop itself."""
    return 2 if next(syntax.of_type(loop.body, *syntax.LOOPS), None) is not None else _FEW


def _by_grid(context: Context, loop: Loop) -> bool:
    """A grid-stride loop: more blocks along its own axis are the way to share it."""
    words = set(re.findall(r"[A-Za-z_]\w*", loop.step))
    values = [w.value for name in words for w in context.written.get(name, []) if w.value is not None]
    return "gridDim" in words or any("gridDim" in syntax.identifiers(value) for value in values)


def _free_axis(context: Context) -> str | None:
    """A grid axis that the kernel does not use and every captured launch has extent 1 along."""
    code = squeeze(text(context.body))
    for number, axis in ((1, "y"), (2, "z")):
        unused = f"blockIdx.{axis}" not in code and f"gridDim.{axis}" not in code
        if unused and context.shapes and all(s.grid[number] == 1 for s in context.launched):
            return axis
    return None


# ---------------------------------------------------------------- what must hold


def _check(context: Context, loop: Loop) -> None:
    if statements.breaks(loop.body) or next(syntax.of_type(loop.body, "return_statement", "goto_statement"), None):
        raise RuleRefused("the loop may end early")
    if not loop.type and not dead_after(context, loop, loop.variable):
        raise RuleRefused(f"{loop.variable} is read after the loop")
    if found := reductions(context, loop):
        raise RuleRefused(f"{found[0].name} is carried from one iteration to the next")
    for call in syntax.of_type(loop.body, "call_expression"):
        said, above = effect(context, call), call.parent
        alone = above is not None and above.type == "expression_statement"
        if said is not None and not (alone and (callee(call) or "").startswith(("atomic", "__st"))):
            raise RuleRefused(f"in the loop {said}")
    inside = syntax.span(loop.node)
    for node in syntax.of_type(context.body, *syntax.LOOPS):
        other = counting(node)
        if inside.holds(syntax.span(node)) or syntax.span(node).holds(inside):
            continue
        if other is None or (trips(context, other) or _SHORT + 1) > _SHORT:
            raise RuleRefused("every block would repeat another loop of the thread")
    found_all = accesses(context, context.body)
    written = {a.root for a in accesses(context, loop.body) if a.store}
    shared = {v.name for v in names.of(context).variables if v.shared}
    if written & shared:
        raise RuleRefused("the loop writes shared memory, which other blocks do not see")
    outside = {a.root for a in found_all if not inside.holds(syntax.span(a.node))}
    if both := written & outside:
        raise RuleRefused(f"what the loop writes is touched outside it too: {_said(both)}")


def _said(roots: set[str]) -> str:
    return ", ".join(sorted(r if not r.startswith("#") else f"buffer {r[1:]}" for r in roots))


def _guard_stores(context: Context, loop: Loop, axis: str) -> list[Edit]:
    """Stores outside the loop are made once. RuleRefused where a block that comes late would read what they wrote."""
    inside = syntax.span(loop.node)
    everything = accesses(context, context.body)
    effects = statements.side_effects(context, context.body)
    shared = {v.name for v in names.of(context).variables if v.shared}
    edits: list[Edit] = []
    done: set[int] = set()
    for node in effects:
        statement = syntax.enclosing_statement(node)
        whole = syntax.span(statement)
        if inside.holds(syntax.span(node)) or whole.start in done:
            continue
        mine = {a.root for a in everything if a.store and whole.holds(syntax.span(a.node))}
        if node.type == "call_expression" and syntax.COOPERATION.search(callee(node) or ""):
            continue  # a barrier: every block has its own
        if mine and mine <= shared:
            continue
        if statement.type != "expression_statement" or any(w.name for w in syntax.writes(statement)):
            raise RuleRefused("a store outside the loop is not a plain statement")
        if any(not a.store and a.root in mine and not whole.holds(syntax.span(a.node)) for a in everything):
            raise RuleRefused("what is stored outside the loop is read elsewhere in the kernel")
        done.add(whole.start)
        edits.append(Edit(Span(whole.start, whole.start), f"if (blockIdx.{axis} == 0) "))
    return edits
