"""# 5 · pad: one column more in a shared array that is read by columns

Shared memory has 32 banks of four bytes. Where the lanes of a warp walk a column of an array whose rows are a multiple
of 32 words, all of them want the same bank and wait for one another. A row one element longer spreads a column over the
banks.

Before: `__shared__ float tile[32][32];` · After: `__shared__ float tile[32][32 + 1];`

Legal when every use of the array is a full subscript: nobody takes its address, copies it or reads it as another type
(proved). Which accesses conflict is computed for the captured block; the padded array must fit. Bit-exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import access, affine, names, sizes
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import strip_parens, subscript_parts

_BANKS, _WORD = 32, 4
_SHARED = 48 * 1024


class Pad(Rule):
    name = "pad"
    number = 5

    def sites(self, context: Context) -> Iterator[Site]:
        for v in names.of(context).variables:
            if not v.shared or len(v.extents) < 2 or v.pointer:
                continue
            size = sizes.size_of(v.type, context.module)
            if size not in (4, 8) or not context.numbers:
                continue
            before, after = _waits(context, v, size, 0), _waits(context, v, size, 1)
            if before is not None and after is not None and after * 2 <= before:
                yield Site(self.name, syntax.span(v.extents[-1]), {"array": v.name}, {"variable": v, "bytes": size})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        v: Variable = site.nodes["variable"]
        for use in v.uses:
            if use.start_byte != v.start and len(_subscripts(use)) != len(v.extents):
                raise RuleRefused(f"{v.name} is used as a whole: its rows must stay together")
        last = v.extents[-1]
        extents = [affine.of(context, e).value for e in v.extents]
        known = [e for e in extents if e is not None]
        total = site.nodes["bytes"] * (known[-1] + 1) if known else 0
        for e in known[:-1]:
            total *= e
        if len(known) != len(extents) or total + _others(context, v) > _SHARED:
            raise RuleRefused(f"{v.name} with one more column is not known to fit in shared memory")
        code = context.slice(syntax.span(last))
        simple = last.type in ("identifier", "number_literal", "parenthesized_expression", "binary_expression")
        new = f"{code} + 1" if simple and not (set(code) & set("?<>&|^")) else f"({code}) + 1"
        block = " × ".join(str(context.numbers[0][f"blockDim.{a}"]) for a in "xyz")
        return Rewrite(
            (Edit(Span(last.start_byte, last.end_byte), new),),
            assumptions=(
                Assumption(f"every use of {v.name} is a full subscript", "proved"),
                Assumption(f"{v.name}'s columns conflict for blocks of {block} threads", "captured"),
            ),
        )


def _subscripts(use: Node) -> list[Node]:
    """The subscripts of a use of an array, outermost dimension first; empty when its address is taken."""
    found: list[Node] = []
    node, above = use, use.parent
    while above is not None and above.type == "subscript_expression" and above.child_by_field_name("argument") == node:
        index = subscript_parts(above)[1]
        if index is None:
            return []
        found.append(index)
        node, above = above, above.parent
    while above is not None and above.type == "parenthesized_expression":
        node, above = above, above.parent
    address = above is not None and above.type == "pointer_expression" and text(above).startswith("&")
    return [] if address else found


def _waits(context: Context, v: Variable, size: int, pad: int) -> int | None:
    """Turns that the first warp's accesses of the array take, with rows longer by `pad`. None when it is not known."""
    total = 0
    extents = [affine.of(context, e) for e in v.extents]
    extents[-1] = extents[-1] + pad
    for use in v.uses:
        if use.start_byte == v.start:
            continue
        parts = _subscripts(use)
        if len(parts) != len(extents):
            continue  # refused in `rewrite`, with the reason
        index = Poly()
        for part, extent in zip(parts, extents, strict=True):
            index = index * extent + affine.of(context, part)
        loops = {l.symbol: l for l in access.loops_around(context, use) if l is not None}
        for symbol, loop in loops.items():
            index = index.substitute({symbol: loop.start})
        offsets = access.lanes(index, context.numbers[0])
        if offsets is None:
            return None
        total += turns(offsets, size)
    return total


def turns(offsets: tuple[int, ...], size: int) -> int:
    """How often shared memory must be asked for the lanes' elements: the most different words of one bank (elements of
    8 bytes go in two halves of a warp)."""
    half = len(offsets) if size <= _WORD else max(1, len(offsets) * _WORD // size)
    count = 0
    for start in range(0, len(offsets), half):
        words = {o * size // _WORD + w for o in offsets[start : start + half] for w in range(max(1, size // _WORD))}
        count += max(Counter(w % _BANKS for w in words).values(), default=0)
    return count


def _others(context: Context, v: Variable) -> int:
    """Bytes of the kernel's other static shared arrays, as far as their sizes are known."""
    total = 0
    for other in names.of(context).variables:
        if other.shared and other is not v:
            size = sizes.size_of(other.type, context.module) or 8
            for e in other.extents:
                size *= affine.of(context, strip_parens(e)).value or 1
            total += size
    return total
