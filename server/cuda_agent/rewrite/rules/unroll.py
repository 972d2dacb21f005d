"""# 9 · unroll: `#pragma unroll` on loops

A loop that waits for one load at a time leaves memory idle; unrolled, several loads are in flight.

Before: `for (int i = threadIdx.x; i < n; i += blockDim.x)` · After: the same loop below `#pragma unroll 8`

Always legal; the order of operations stays, so bit-exact. The compiler unrolls short loops by itself: then the
machine code
is the same and the candidate is dropped before it runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.model import Edit, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site


class Unroll(Rule):
    name = "unroll"
    number = 9

    def sites(self, context: Context) -> Iterator[Site]:
        loops = [
            n for n in syntax.of_type(context.body, "for_statement") if _innermost(n) and not _has_pragma(context, n)
        ]
        if not loops:
            return
        whole = Span(loops[0].start_byte, loops[-1].end_byte)
        for factor in (4, 8, 16):
            yield Site(self.name, whole, {"factor": factor}, {"loops": loops}, minor=True)

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        edits = []
        for loop in site.nodes["loops"]:
            at = Span(loop.start_byte, loop.start_byte)
            indent = context.indent(loop.start_byte)
            edits.append(Edit(at, f"#pragma unroll {site.params['factor']}{context.eol}{indent}"))
        return Rewrite(tuple(edits))


def _innermost(loop: Node) -> bool:
    body = loop.child_by_field_name("body")
    return body is not None and next(syntax.of_type(body, *syntax.LOOPS), None) is None


def _has_pragma(context: Context, loop: Node) -> bool:
    """A pragma in front, or no place for one: the loop does not start its own line, or it is the one statement of a
    loop or an `if` without braces."""
    if loop.parent is None or loop.parent.type != "compound_statement":
        return True
    lines = context.slice(Span(0, loop.start_byte)).splitlines()
    if not lines or lines[-1].strip():
        return True
    return len(lines) > 1 and lines[-2].lstrip().startswith("#pragma")
