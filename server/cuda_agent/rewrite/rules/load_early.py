"""# 9 · load-early: what the end of a block needs is loaded before its threads wait for each other

The compiler moves no load across a barrier. Where a block sums up, waits, and only then loads one number more to write
its result, it waits for memory twice, and a grid of many short blocks takes nearly twice as long.

Before:

    int sum = BlockReduce(storage).Sum(x[i]);
    if (threadIdx.x == 0)
        y[blockIdx.x] = sum / (float)family[blockIdx.x];

After:

    const int family_value = family[blockIdx.x];
    int sum = BlockReduce(storage).Sum(x[i]);
    if (threadIdx.x == 0)
        y[blockIdx.x] = sum / (float)family_value;

Legal when the element is loaded whatever the data are, by every thread, or by the first one from a place that is the
same for all threads of the block, the place is known ahead, and the kernel stores nothing to that array (proved; that
pointers do not overlap is captured). Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import access, aliasing, blocks, uniform
from cuda_agent.rewrite.analysis.functions import definitions
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import LOOPS, ancestors, callee

_WAITING = re.compile(r"__syncthreads|__syncwarp|__shfl|Block(?:Reduce|Scan)\w*\s*\(|\bsync\b|\bcg::reduce")
_DECIDING = (*LOOPS, "if_statement", "switch_statement", "conditional_expression", "lambda_expression")


@dataclass(frozen=True)
class _Early:
    """One element, and the places where it is read."""

    array: str
    element: str
    reads: tuple[Node, ...]


class LoadEarly(Rule):
    name = "load-early"
    number = 9

    def sites(self, context: Context) -> Iterator[Site]:
        waiting = [s for s in syntax.statements(context.body) if _waits(context, s)]
        if not waiting:
            return
        found = _found(context, waiting[0], waiting[-1])
        if found:
            params = {"from": ", ".join(dict.fromkeys(e.array for e in found))}
            yield Site(self.name, syntax.span(waiting[0]), params, {"before": waiting[0], "found": found})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        found: list[_Early] = site.nodes["found"]
        names: set[str] = set()
        edits: list[Edit] = []
        for one in found:
            base = f"{one.array}_value"
            name = next(n for n in (context.unused_here(base), *(f"{base}{i}" for i in range(2, 99))) if n not in names)
            names.add(name)
            place = _place(context, one, site.nodes["before"])
            line = context.eol + context.indent(place.start_byte)
            code = f"const {one.element} {name} = {context.slice(syntax.span(one.reads[0]))};{line}"
            edits += [Edit(Span(place.start_byte, place.start_byte), code)]
            edits += [Edit(syntax.span(read), name) for read in one.reads]
        known: Literal["captured", "assumed"] = "captured" if context.workload is not None else "assumed"
        arrays = ", ".join(dict.fromkeys(e.array for e in found))
        return Rewrite(
            tuple(edits),
            assumptions=(
                Assumption(f"every block loads these elements of {arrays}, whatever its data", "proved"),
                Assumption(f"nothing that the kernel stores to overlaps {arrays}", known),
            ),
        )


def _place(context: Context, one: _Early, first: Node) -> Node:
    """What the load goes in front of: as early as its names are known and every thread that leaves has left."""
    needed = syntax.identifiers(one.reads[0])
    anchor = None
    for statement in syntax.statements(context.body):
        if statement.start_byte >= first.start_byte:
            break
        declares = statement.type == "declaration" and syntax.declared(statement) & needed
        if declares or next(syntax.of_type(statement, "return_statement", "goto_statement"), None) is not None:
            anchor = statement
    if anchor is None:
        return next(n for n in context.body.named_children if n.start_point.row > context.body.start_point.row)
    after = anchor.next_named_sibling
    while after is not None and after.type == "comment" and after.start_point.row == anchor.end_point.row:
        after = after.next_named_sibling  # a remark behind the declaration
    return after if after is not None else first


def _waits(context: Context, statement: Node) -> bool:
    """Threads wait for each other in the statement."""
    for name, call in syntax.calls(statement):
        if _WAITING.search(name):
            return True
        known = definitions(context.module).get((callee(call) or "").rpartition("::")[2], ())
        if any(_WAITING.search(text(d)) for d in known):
            return True
    return False


def _found(context: Context, first: Node, last: Node) -> list[_Early]:
    """Loads behind the last place where threads wait, whose place is known in front of the first."""
    stored = aliasing.effects(context)
    groups: dict[str, tuple[str, list[Node]]] = {}
    for one in access.of(context):
        if one.kind != "load" or one.space != "global" or one.node.start_byte < last.end_byte:
            continue
        parameter = next((p for p in context.kernel.params if p.name == one.array and p.pointer == 1), None)
        if parameter is None or one.node.type != "subscript_expression" or not _always(context, one.node, first):
            continue
        guarded = next(ancestors(one.node, ("if_statement",)), None) is not None
        if guarded and uniform.of_poly(context, one.index) not in ("block", "grid"):
            continue
        if not _known_ahead(context, one.node, first):
            continue
        if stored.unknown:
            raise RuleRefused("it is not known what the kernel stores to: a load may not be made earlier")
        if one.array in stored.written:
            raise RuleRefused(f"the kernel stores to {one.array}, which is loaded at its end")
        meets = aliasing.conflicts(context, context.workload, {one.array}, set(stored.written))
        if meets:
            raise RuleRefused(f"{meets[0][0]} and {meets[0][1]} overlap in a captured launch")
        groups.setdefault(squeeze(text(one.node)), (parameter.element, []))[1].append(one.node)
    return [_Early(_array(nodes[0]), element, tuple(nodes)) for element, nodes in groups.values()]


def _array(node: Node) -> str:
    return text(syntax.field(node, "argument"))


def _always(context: Context, node: Node, first: Node) -> bool:
    """Every block comes to the node: nothing around it decides but that the thread is the first, and no thread leaves
    behind the place where the load goes."""
    for above in ancestors(node, _DECIDING):
        if not syntax.span(context.body).holds(syntax.span(above)):
            break
        condition = above.child_by_field_name("condition")
        if condition is not None and syntax.span(condition).holds(syntax.span(node)):
            continue
        if above.type != "if_statement" or condition is None or not blocks.is_first_thread(context, condition):
            return False
        if above.child_by_field_name("alternative") is not None:
            return False
    for around in ancestors(node, ("binary_expression",)):
        if text(syntax.field(around, "operator")) in ("&&", "||") and syntax.span(context.body).holds(
            syntax.span(around)
        ):
            return False
    leaves = syntax.of_type(context.body, "return_statement", "goto_statement")
    return all(n.start_byte < first.start_byte or n.start_byte > node.start_byte for n in leaves)


def _known_ahead(context: Context, node: Node, first: Node) -> bool:
    """Every name in the place means the same in front of `first`: a parameter or a variable of the kernel's own level
    that is set before and never again."""
    own = [n for s in syntax.statements(context.body) if s.start_byte < first.start_byte for n in [s]]
    declared = {name for s in own if s.type == "declaration" for name in syntax.declared(s)}
    parameters = {p.name for p in context.kernel.params}
    for name in syntax.identifiers(node) - set(syntax.BUILTINS):
        writes = context.written.get(name, [])
        if name in parameters and not writes:
            continue
        if name in declared and len(writes) == 1 and writes[0].op == "init":
            continue
        if name not in parameters and name not in syntax.declared(context.body) and re.fullmatch(r"[A-Z_0-9]+", name):
            continue  # a macro or a template argument
        return False
    return next(syntax.of_type(node, "call_expression", "update_expression", "assignment_expression"), None) is None
