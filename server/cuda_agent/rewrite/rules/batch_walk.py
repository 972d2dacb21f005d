"""# 9 · batch-walk: a serial walk that writes where it reads loads several elements ahead

A recursive filter, a tridiagonal solver or a running sum reads an element, computes with the last result and writes the
element back. The next load waits for the store, because the compiler must believe that it may read what was stored: one
trip to memory an element.

Before:

    for (int n = 1; n < count; n++) {
        c = (float *)((char *)c + step);
        *c = last = gain * *c + pole * last;
    }

After:

    int n8 = 1;
    for (; n8 + 7 < count; n8 += 8) {
        float c8[8];
        float *ahead = c;
        #pragma unroll
        for (int k = 0; k < 8; k++) {
            ahead = (float *)((char *)ahead + step);
            c8[k] = *ahead;
        }
        #pragma unroll
        for (int k = 0; k < 8; k++) {
            c = (float *)((char *)c + step);
            *c = last = gain * c8[k] + pole * last;
        }
    }
    for (int n = n8; n < count; n++) {
        …
    }

Loops may count up or down, and walk by an index or by a pointer that they move on. Legal when every iteration makes
the load before it writes the same element, and nothing else in the loop writes the array (proved); the walk never
comes back to an element (proved by a constant distance, else captured or assumed); other arrays that the loop writes
do not overlap (captured). What a thread computes, and in which order, stays: bit-exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import trips
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.analysis.neighbours import Access
from cuda_agent.rewrite.analysis.strided import has_pragma
from cuda_agent.rewrite.analysis.walks import Load, Walk, walk_of
from cuda_agent.rewrite.layout import fresh, insert_before, unit, unused_index
from cuda_agent.rewrite.render import render
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.rules.restrict import check_disjoint
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.edits import apply
from cuda_agent.source.tree import operator

_FEW = 512  # threads an SM: with fewer, registers are no concern


class BatchWalk(Rule):
    name = "batch-walk"
    number = 9

    def sites(self, context: Context) -> Iterator[Site]:
        names = Names(context)
        walks: list[Walk] = []
        why = None
        for node in syntax.of_type(context.body, "for_statement"):
            if has_pragma(context, node):
                continue
            try:
                walk = walk_of(context, names, node)
            except RuleRefused as error:
                why = error
                continue
            if walk is not None and (_counts_down(walk) or any(l.in_place or l.advance for l in walk.loads)):
                walks.append(walk)
        if not walks and why is not None:
            raise why
        if not walks:
            return
        span = Span(walks[0].loop.node.start_byte, walks[-1].loop.node.end_byte)
        for elements in (16, 8, 32) if few_threads(context) else (8, 4, 16):
            long = [w for w in walks if trips.most(context, w.loop.node, context.numbers) >= 2 * elements]
            if long:
                yield Site(self.name, span, {"elements": elements}, {"walks": long})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        walks: list[Walk] = site.nodes["walks"]
        count: int = site.params["elements"]
        assumptions = [Assumption(said, how) for w in walks for said, how in w.known]
        if any(w.writes for w in walks):
            check_disjoint(context)
            overlap = "the pointers of one launch never overlap"
            assumptions.append(Assumption(overlap, "captured" if context.pointer_targets() else "assumed"))
        used: set[tuple[int, str]] = set()
        edits = [e for w in walks for e in _edits(context, w, count, used)]
        return Rewrite(tuple(edits), assumptions=tuple(dict.fromkeys(assumptions)))


def _counts_down(walk: Walk) -> bool:
    return walk.loop.step == "-1"


def few_threads(context: Context) -> bool:
    """Whether every captured launch is so small that a thread may have many registers."""
    sms = context.device.sms if context.device else 132
    threads = [math.prod(s.grid) * math.prod(s.block) for s in context.shapes]
    return bool(threads) and max(threads) < sms * _FEW


# ---------------------------------------------------------------- the text


def _edits(context: Context, walk: Walk, count: int, used: set[tuple[int, str]]) -> Iterator[Edit]:
    loop, k, step = walk.loop, unused_index(context), unit(context)
    down = _counts_down(walk)
    first = fresh(context, loop.node, f"{loop.variable}{count}", used)
    names = _named(context, walk, count)
    kinds: dict[str, list[str]] = {}
    for load in walk.loads:
        kinds.setdefault(load.element, []).append(f"{names[load.key]}[{count}]")
    at = f"{first} {'-' if down else '+'} {k}"
    lines = [
        f"{loop.type} {first} = {text(loop.start)};",
        f"for (; {_condition(context, walk, first, count - 1)}; {first} {'-' if down else '+'}= {count}) {{",
        *(f"{step}{kind} {', '.join(declared)};" for kind, declared in kinds.items()),
    ]
    ahead = _ahead(context, walk)
    lines += [f"{step}{a.split(' = ')[0]} = {p};" for p, a in ahead.items()]
    loads = []
    for place, line in _first(context, walk, {p: _name(a) for p, a in ahead.items()}, names, k, at):
        loads.append((place, line))
    lines += _unrolled([line for _, line in sorted(loads)], k, count, step)
    rendered = render(walk.body, _places(context, walk, names, k))
    own = [f"const {loop.type} {loop.variable} = {at};"] if rendered.uses_variable else []
    lines += _unrolled([*own, *rendered.lines], k, count, step, len(own) + rendered.statements)
    lines.append("}")
    yield from insert_before(context, loop.node, lines)
    yield Edit(syntax.span(loop.start), first)


def _condition(context: Context, walk: Walk, first: str, last: int) -> str:
    """The loop's condition for the last of the elements that are loaded together."""
    loop = walk.loop
    condition = syntax.field(loop.node, "condition")
    spot = next(n for n in syntax.of_type(condition, "identifier") if text(n) == loop.variable)
    value = f"{first} {'-' if _counts_down(walk) else '+'} {last}"
    start = condition.start_byte
    put = Edit(Span(spot.start_byte - start, spot.end_byte - start), value)
    return apply(context.slice(syntax.span(condition)), [put]).strip()


def _named(context: Context, walk: Walk, count: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for load in walk.loads:
        name = context.unused(f"{load.array}{count}")
        while name in found.values():
            name += "b"
        found[load.key] = name
    return found


def _ahead(context: Context, walk: Walk) -> dict[str, str]:
    """Pointer → declaration of the one that runs ahead."""
    moved = {l.advance.pointer.name: l.advance.pointer for l in walk.loads if l.advance is not None}
    single = len(moved) == 1
    return {
        name: f"{v.type} *{context.unused_here('ahead' if single else f'{name}_ahead')} = " for name, v in moved.items()
    }


def _name(declaration: str) -> str:
    return declaration.partition("*")[2].partition(" ")[0]


def _first(
    context: Context, walk: Walk, ahead: dict[str, str], names: dict[str, str], k: str, at: str
) -> Iterator[tuple[int, str]]:
    """(place in the body, line) of what is done ahead: loads, and the pointers that they go through."""
    advances = {l.advance.statement.start_byte: l.advance for l in walk.loads if l.advance is not None}
    for start, advance in advances.items():
        yield start, _with(context, advance.statement, ahead)
    for load in walk.loads:
        node = load.nodes[0]
        value = _with(context, node, ahead) if load.advance is not None else walk.body.expanded(node, at)
        yield node.start_byte, f"{names[load.key]}[{k}] = {value};"


def _with(context: Context, node: Node, renamed: dict[str, str]) -> str:
    edits = [
        Edit(Span(n.start_byte - node.start_byte, n.end_byte - node.start_byte), renamed[text(n)])
        for n in syntax.of_type(node, "identifier")
        if text(n) in renamed
    ]
    return apply(context.slice(syntax.span(node)), edits)


def _places(context: Context, walk: Walk, names: dict[str, str], k: str) -> dict[Access | Node, str]:
    """What stands in the body for each load: of `a[i] += x` the whole assignment, with what was loaded in it."""
    plain: dict[Access | Node, str] = {}
    updates: list[tuple[Node, Load]] = []
    for load in walk.loads:
        for node in load.nodes:
            above = node.parent
            if above is not None and above.type == "assignment_expression" and syntax.field(above, "left") == node:
                updates.append((above, load))
            else:
                plain[node] = f"{names[load.key]}[{k}]"
    for whole, load in updates:
        target, value = syntax.field(whole, "left"), syntax.field(whole, "right")
        start = value.start_byte
        inner = [
            Edit(Span(n.start_byte - start, n.end_byte - start), put)
            for n, put in plain.items()
            if isinstance(n, Node) and syntax.span(value).holds(syntax.span(n))
        ]
        code = apply(context.slice(syntax.span(value)), inner)
        sign = operator(whole).removesuffix("=")
        product = value.type == "binary_expression" and operator(value) in ("*", "/") and sign in ("+", "-")
        simple = product or value.type in ("identifier", "number_literal", "subscript_expression", "call_expression")
        put = f"{names[load.key]}[{k}] {sign} {code if simple else f'({code})'}"
        plain[whole] = f"{context.slice(syntax.span(target))} = {put}"
    return plain


def _unrolled(lines: list[str], k: str, count: int, step: str, statements: int = 0) -> list[str]:
    braces = (statements or len(lines)) > 1
    head = f"for (int {k} = 0; {k} < {count}; {k}++)" + (" {" if braces else "")
    inner = [step + line if line.strip() else line for line in lines]
    return [step + line for line in ("#pragma unroll", head, *inner, *(["}"] if braces else []))]
