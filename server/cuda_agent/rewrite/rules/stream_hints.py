"""# 17 · stream-hints: memory that is touched once does not stay in the cache

What a kernel reads once or writes once pushes out of L2 what it, or the next kernel, needs again. The streaming hints
`__ldcs` and `__stcs` mark such lines as the first to go.

Before: `y[i] = x[i] * scale[c];` · After: `__stcs(&y[i], __ldcs(&x[i]) * scale[c]);`

A hint changes no result, so it is always legal; it is given where it may help: the launch moves more than the L2 holds
(captured), the array is only stored or only loaded, at one place, and that place is another one in every block, thread
and iteration (proved), so that nothing is read twice. Bit-exact.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Edit, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import access
from cuda_agent.rewrite.analysis.access import Access
from cuda_agent.rewrite.analysis.elements import element_size
from cuda_agent.rewrite.analysis.names import iterates
from cuda_agent.rewrite.analysis.sizes import SMALL
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import LOOPS, ancestors

# Types with overloads of __ldcs and __stcs (CUDA C++ Programming Guide, load and store functions using cache hints).
_KINDS = ("float", "int", "uint", "char", "uchar", "short", "ushort")
_VECTORS = frozenset(f"{kind}{n}" for kind in _KINDS for n in (2, 4))
_HINTED = (frozenset(SMALL) - {"bool"}) | _VECTORS | {"double2"}


class StreamHints(Rule):
    name = "stream-hints"
    number = 17

    def sites(self, context: Context) -> Iterator[Site]:
        if not _exceeds_cache(context):
            return
        arrays = [p.name for p in context.kernel.params if p.pointer == 1]
        once = {a: found for a in arrays if (found := _once(context, a))}
        stores = [x for found in once.values() for x in found if x.kind == "store"]
        loads = [x for found in once.values() for x in found if x.kind == "load"]
        if not once:
            return
        span = syntax.span(context.body)
        if stores and loads:
            yield Site(self.name, span, {"what": "both"}, {"accesses": stores + loads}, minor=True)
        what = "stores" if stores else "loads"
        yield Site(self.name, span, {"what": what}, {"accesses": stores or loads}, minor=True)

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        edits = [e for one in site.nodes["accesses"] for e in _hint(one)]
        if not edits:
            raise RuleRefused("nothing can take a hint")
        return Rewrite(tuple(edits))


def _exceeds_cache(context: Context) -> bool:
    """The buffers of some captured launch are together larger than the L2 (unknown: assumed so)."""
    if context.workload is None:
        return False
    if context.device is None:
        return True
    return any(one.held_bytes > context.device.l2_bytes for one in context.workload.launches)


def _once(context: Context, array: str) -> list[Access]:
    """The accesses to an array all of whose elements are touched once; empty when they may be touched again."""
    found = list(access.of(context).of(array))
    kinds = {x.kind for x in found}
    if len(kinds) != 1 or "atomic" in kinds or len({x.element for x in found}) < len(found):
        return []
    wide = {f"blockIdx.{a}" for s in context.shapes for a, n in zip("xyz", s.grid, strict=True) if n > 1}
    wide |= {f"threadIdx.{a}" for s in context.shapes for a, n in zip("xyz", s.block, strict=True) if n > 1}
    for one in found:
        if not _typed(context, array, one.element) or not _plain(one.node, one.kind):
            return []
        if not wide <= one.index.names or not _moves(one):
            return []
    return found


def _moves(one: Access) -> bool:
    """Every loop around the access takes it to another place."""
    loops = [l for l in ancestors(one.node, LOOPS) if iterates(l, one.node)]
    for loop, counted in zip(loops, one.loops, strict=True):
        changed = {w.name for w in syntax.writes(loop)} & syntax.identifiers(one.node)
        if not changed and (counted is None or counted.symbol not in one.index.names):
            return False
    return True


def _typed(context: Context, array: str, element: str) -> bool:
    """The hint exists for the element's type, also for a template's own type as captured."""
    return element in _HINTED or (element not in SMALL and element_size(context, array, element) is not None)


def _plain(node: Node, kind: str) -> bool:
    """A subscript or dereference that is read, or that a statement stores by `=`."""
    if node.type not in ("subscript_expression", "pointer_expression") or node.parent is None:
        return False
    above = node.parent
    if kind == "load":
        return above.type not in ("pointer_expression", "field_expression", "subscript_expression")
    return (
        above.type == "assignment_expression"
        and text(syntax.field(above, "operator")) == "="
        and above.child_by_field_name("left") == node
        and above.parent is not None
        and above.parent.type == "expression_statement"
    )


def _hint(one: Access) -> Iterator[Edit]:
    node = one.node
    start, end = node.start_byte, node.end_byte
    pointer = node.type == "pointer_expression"
    opened = Span(start, syntax.field(node, "argument").start_byte) if pointer else Span(start, start)
    address = "" if pointer else "&"
    if one.kind == "load":
        yield Edit(opened, f"__ldcs({address}")
        yield Edit(Span(end, end), ")")
        return
    assert node.parent is not None
    value = syntax.field(node.parent, "right")
    yield Edit(opened, f"__stcs({address}")
    yield Edit(Span(end, value.start_byte), ", ")
    yield Edit(Span(node.parent.end_byte, node.parent.end_byte), ")")
