"""The text of a loop that becomes two: one that moves vectors, and one that takes what is left, element by element."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tree_sitter import Node

from cuda_agent.model import Edit
from cuda_agent.rewrite import launches, syntax
from cuda_agent.rewrite.analysis.neighbours import Access, Body
from cuda_agent.rewrite.analysis.strided import Lanes, StridedLoop
from cuda_agent.rewrite.layout import fresh, fresh_text, insert_before, unit, unused_index
from cuda_agent.rewrite.render import Rendered, render
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.rewrite.vectors import Vector, declarations
from cuda_agent.source.tree import name_of

_LONG = 110  # characters of a line, without its indentation


@dataclass(frozen=True)
class Stream:
    """Accesses to the same element of an iteration, and the vector that stands for them."""

    vector: Vector
    accesses: list[Access]
    base: str  # address of element 0
    check: bool  # the address must be looked at when the kernel runs

    @property
    def hint(self) -> str:
        return self.accesses[0].hint

    @property
    def loaded(self) -> bool:
        """Something is read before a statement has stored the element."""
        stored = min((syntax.statement_end(a.node) for a in self.accesses if a.kind == "write"), default=None)
        return any(a.kind != "write" and (stored is None or a.node.start_byte < stored) for a in self.accesses)

    @property
    def stored(self) -> bool:
        return any(a.kind != "read" for a in self.accesses)


@dataclass(frozen=True)
class Plan:
    """One loop and how it becomes two."""

    loop: StridedLoop
    lanes: Lanes | None
    body: Body
    streams: list[Stream]
    roots: dict[str, bool]  # what the body touches → whether it writes there
    ops: dict[str, str]  # what lanes accumulate → the operation
    known: Literal["proved", "assumed"]  # … and that it is combined over all of them

    @property
    def width(self) -> int:
        return self.streams[0].vector.width

    @property
    def divisors(self) -> list[str]:
        """What must be a multiple of the width, as the variable is taken modulo it."""
        indices = [a.index or a.array for s in self.streams for a in s.accesses]
        return list(dict.fromkeys(d for n in indices for d in self.body.divisors(n)))


def edits(context: Context, plans: list[Plan]) -> Iterator[Edit]:
    """The edits of all loops; loops of one block share what says how far vectors go, where they can."""
    used: set[tuple[int, str]] = set()
    done: list[tuple[list[Plan], str]] = []
    for plan in plans:
        shared = next((name for group, name in done if plan in group), None)
        head: list[str] = []
        if shared is None:
            group = [p for p in plans if _sharable(context, plan, p)]
            shared = fresh(context, plan.loop.node, "whole", used)
            done.append((group, shared))
            definitions = dict.fromkeys(s.vector.definition for p in group for s in p.streams if s.vector.struct)
            head = [d for d in definitions if fresh_text(plan.loop.node, d, used)]
            head += _limit(context, plan, group, shared, used)
        yield from _split(context, plan, head, shared)


def _sharable(context: Context, first: Plan, other: Plan) -> bool:
    """One limit serves both loops: same block, bound and width, and nothing of its text changes between them."""
    if other is first:
        return True
    a, b = first.loop, other.loop
    if a.node.parent != b.node.parent or a.node.start_byte > b.node.start_byte or first.width != other.width:
        return False
    if squeeze(text(a.bound)) != squeeze(text(b.bound)) or a.type != b.type or a.node.parent is None:
        return False
    bases = [s.base for s in other.streams]
    words = syntax.identifiers(a.bound) | {w for base in bases for w in re.findall(r"\w+", base)}
    if any("[" in base for base in bases) or a.node.parent.type != "compound_statement":
        return False
    return not any(
        a.node.start_byte <= w.node.start_byte < b.node.start_byte
        and w.target.type != "subscript_expression"
        and name_of(w.target) in words
        for w in syntax.writes(a.node.parent)
    )


def _limit(context: Context, plan: Plan, group: list[Plan], name: str, used: set[tuple[int, str]]) -> list[str]:
    """The statement that says how far vectors go: all the way when the rows start at whole vectors, else not at
    all."""
    bound = launches.paren(text(plan.loop.bound))
    fours = f"{bound} / {plan.width} * {plan.width}"
    if bound.isdigit():
        fours = str(int(bound) // plan.width * plan.width)
    moduli: dict[str, list[str]] = {}
    for stream in (s for p in group for s in p.streams if s.check):
        bases = moduli.setdefault(stream.vector.modulus, [])
        if stream.base not in bases:
            bases.append(stream.base)
    parts = [f"{launches.paren(d)} % {plan.width} == 0" for d in dict.fromkeys(d for p in group for d in p.divisors)]
    for modulus, bases in moduli.items():
        addresses = [f"reinterpret_cast<size_t>({b})" for b in bases]
        joined = f"({' | '.join(addresses)})" if len(addresses) > 1 else addresses[0]
        parts.append(f"{joined} % {modulus} == 0")
    if not parts:
        return [f"const {plan.loop.type} {name} = {fours};"]
    condition = " && ".join(parts)
    line = f"const {plan.loop.type} {name} = {condition} ? {fours} : 0;"
    if len(line) <= _LONG:
        return [line]
    aligned = fresh(context, plan.loop.node, "aligned", used)
    more = unit(context)
    whole = f"const bool {aligned} = {condition};"
    lines = [whole]
    if len(whole) > _LONG:
        pieces = whole.removeprefix(f"const bool {aligned} = ").split(" | ")
        lines = [f"const bool {aligned} ="]
        lines += [f"{more}{piece}{' |' if n + 1 < len(pieces) else ''}" for n, piece in enumerate(pieces)]
    return [*lines, f"const {plan.loop.type} {name} = {aligned} ? {fours} : 0;"]


def _split(context: Context, plan: Plan, head: list[str], limit: str) -> Iterator[Edit]:
    loop, width = plan.loop, plan.width
    step = unit(context)
    fours, k = context.unused(f"{loop.variable}{width}"), unused_index(context)
    start = loop.lane or text(loop.start)
    lanes = plan.lanes is not None
    inner = _inner(context, plan, fours, k, step)
    first = launches.times(start, width) if lanes else "0"
    lines = [
        *head,
        f"for ({loop.type} {fours} = {first}; {fours} < {limit}; {fours} += {launches.times(loop.step, width)}) {{",
        *(step + line if line.strip() else line for line in inner),
        "}",
    ]
    yield from insert_before(context, loop.node, lines)
    yield Edit(syntax.span(loop.start), f"{limit} + {start}" if lanes and not loop.lane else limit)


def _inner(context: Context, plan: Plan, fours: str, k: str, step: str) -> list[str]:
    body = plan.body
    places: dict[Access | Node, str] = {}
    for stream in plan.streams:
        for access in stream.accesses:
            places[access] = stream.vector.at(k)
    rendered: Rendered = render(body, places)
    lines = declarations([s.vector for s in plan.streams])
    lines += [
        s.vector.load(_address(body, s.accesses[0], fours), s.hint if s.accesses[0].kind == "read" else "")
        for s in plan.streams
        if s.loaded
    ]
    lines.append("#pragma unroll")
    own = [f"const {plan.loop.type} {plan.loop.variable} = {fours} + {k};"] if rendered.uses_variable else []
    braces = len(own) + rendered.statements > 1
    lines.append(f"for (int {k} = 0; {k} < {plan.width}; {k}++)" + (" {" if braces else ""))
    lines += [step + line if line.strip() else line for line in (*own, *rendered.lines)]
    if braces:
        lines.append("}")
    for s in plan.streams:
        if s.stored:
            last = next(a for a in reversed(s.accesses) if a.kind != "read")
            lines.append(s.vector.store(_address(body, last, fours), last.hint))
    return lines


def _address(body: Body, access: Access, value: str) -> str:
    if access.index is None:
        return body.expanded(access.array, value)
    place = body.expanded(access.index, value)
    return f"{access.name} + {place}" if access.node.type != "subscript_expression" else f"&{access.name}[{place}]"
