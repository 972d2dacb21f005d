"""Loops that walk through memory: what can be loaded several iterations ahead, though the loop may write where it
reads.

A load may be made ahead when its place follows from the loop's variable, or from a pointer that the loop moves on by
the same distance each time, and no iteration writes what a later one loads: the loop writes elsewhere, or exactly where
it has loaded, and then never comes back there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import affine, names, sizes, trips
from cuda_agent.rewrite.analysis.calls import HINTED_LOADS, effect
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.analysis.effects import check_body
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.analysis.neighbours import Access, Body
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.analysis.strided import StridedLoop
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import callee, operator, strip_parens, walk

_BYTES = re.compile(r"(?:const\s+)?(?:unsigned\s+)?(?:char|uchar|uint8_t|int8_t|std::byte)\s*(?:const\s*)?\*")


@dataclass(frozen=True)
class Advance:
    """`p += step`, `p = (T *)((char *)p + step)`, `p++` as a statement of its own, once an iteration. `bytes`:
    how far."""

    statement: Node
    pointer: Variable
    bytes: Poly | None


@dataclass(frozen=True)
class Load:
    """Equal loads of one element; `key`: its text. `in_place`: the loop writes it afterwards."""

    nodes: tuple[Node, ...]
    key: str
    array: str
    element: str
    advance: Advance | None
    in_place: bool


@dataclass(frozen=True)
class Stored:
    """What the loop writes beyond the thread's own variables. `roots`: the arrays that it may lie in, empty when that
    is not known."""

    node: Node  # what is written
    whole: Node  # the assignment
    roots: frozenset[str]
    access: Access | None


@dataclass(frozen=True)
class Walk:
    """`loop.step` is "1" or "-1". `known`: what must hold where the loop writes in place, and how it is known.
    `advances`: every pointer that moves on, by name."""

    loop: StridedLoop
    body: Body
    loads: tuple[Load, ...]
    stored: tuple[Stored, ...]
    advances: Mapping[str, Advance]
    writes: bool  # through a pointer that is none of the loads': they must not overlap
    known: tuple[tuple[str, Literal["captured", "assumed"]], ...]


def counting_loop(context: Context, node: Node) -> StridedLoop | None:
    """A `for` that counts by one, up or down, to a bound that it does not change."""
    counted = affine.induction(context, node)
    found = trips.limit(context, counted) if counted is not None else None
    if counted is None or found is None or counted.step.value not in (1, -1):
        return None
    if found[0] not in (("<", "<=") if counted.step.value == 1 else (">", ">=")):
        return None
    if counted.step.value == -1 and re.search(r"\bunsigned\b|\bu\w+|\bsize_t\b", counted.variable.type):
        return None
    initial, update, body = (node.child_by_field_name(f) for f in ("initializer", "update", "body"))
    condition = strip_parens(counted.condition) if counted.condition is not None else None
    if initial is None or update is None or body is None or condition is None:
        return None
    if update.type not in ("update_expression", "assignment_expression"):
        return None  # it changes something else, too
    name = counted.variable.name
    sides = [strip_parens(syntax.field(condition, f)) for f in ("left", "right")]
    bound = next((s for s in sides if not syntax.uses(s, name)), None)
    if bound is None or not any(s.type == "identifier" and text(s) == name for s in sides):
        return None
    written = {w.name for w in syntax.writes(body)} | syntax.declared(body)
    if next(walk(bound, ("call_expression", "subscript_expression", "pointer_expression")), None) is not None:
        return None
    if syntax.identifiers(bound) & written:
        return None
    start = next((w.value for w in syntax.writes(initial) if text(w.target) == name and w.value is not None), None)
    declares = initial.type == "declaration"
    alone = (
        len(initial.children_by_field_name("declarator")) == 1 if declares else initial.type == "assignment_expression"
    )
    if start is None or not alone:
        return None
    return StridedLoop(node, name, counted.variable.type, declares, start, bound, str(counted.step.value), update, body)


def walk_of(context: Context, known: Names, node: Node, *, quietly: bool = False) -> Walk | None:
    """The loads of a loop that can be made ahead; None when the loop does not count. RuleRefused when it writes what
    later iterations read, or does more than load, compute and store. `quietly`: a loop without any such load, too."""
    loop = counting_loop(context, node)
    if loop is None or next(syntax.of_type(loop.body, *syntax.LOOPS), None) is not None:
        return None
    check_body(context, loop)
    if next(syntax.of_type(loop.body, "continue_statement"), None) is not None:
        raise RuleRefused("an iteration may end early")
    for call in syntax.of_type(loop.body, "call_expression"):
        if callee(call) not in HINTED_LOADS and (said := effect(context, call)) is not None:
            raise RuleRefused(said)
    body = Body.of(known, loop)
    advances = {a.pointer.name: a for a in _advances(context, loop.body)}
    writes = list(_writes(context, known, body))
    found: dict[str, Load] = {}
    others = False
    sentences: dict[str, Literal["captured", "assumed"]] = {}
    why = None
    for access in body.accesses:
        if access.kind == "write" or access.array.type != "identifier" or not body.unconditional(access.node):
            continue
        try:
            load = _load(context, known, body, access, advances, writes)
        except RuleRefused as error:
            why = error
            continue
        if load is None:
            continue
        before = found.get(load.key)
        found[load.key] = load if before is None else _both(before, load)
        others = others or any(not _same(body, access, w) for w in writes)
        if load.in_place:
            sentence, how = _distance(context, load, access)
            if sentence:
                sentences[sentence] = how
    if not found and not quietly:
        if why is not None:
            raise why
        return None
    return Walk(loop, body, tuple(found.values()), tuple(writes), advances, others, tuple(sentences.items()))


def _both(one: Load, other: Load) -> Load:
    nodes = (*one.nodes, *other.nodes)
    return Load(nodes, one.key, one.array, one.element, one.advance, one.in_place or other.in_place)


# ---------------------------------------------------------------- pointers that move on


def _advances(context: Context, body: Node) -> Iterator[Advance]:
    """The pointers that the body moves on once, in a statement of its own that every iteration runs."""
    scope = names.of(context)
    inside = syntax.span(body)
    for statement in syntax.statements(body):
        if statement.type != "expression_statement" or statement.named_child_count != 1:
            continue
        written = [w for w in syntax.writes(statement) if w.node == statement.named_children[0]]
        if not written or written[0].name is None:
            continue
        write = written[0]
        pointer = scope.resolve(write.name or "", write.target.start_byte)
        if pointer is None or pointer.pointer != 1 or pointer.escapes or "volatile" in pointer.type:
            continue
        if sum(inside.holds(syntax.span(w.node)) for w in pointer.writes) != 1:
            continue
        step = _step(context, pointer, write)
        if step is not None:
            yield Advance(statement, pointer, step)


def _step(context: Context, pointer: Variable, write: syntax.Write) -> Poly | None:
    """By how many bytes the write moves the pointer. None when that may differ from one iteration to the next."""
    size = sizes.size_of(pointer.type.replace("const", "").strip(), context.module)
    if size is None:
        return None
    if write.op in ("++", "--"):
        return Poly.constant(size if write.op == "++" else -size)
    if write.value is None:
        return None
    if write.op in ("+=", "-="):
        by, sign, unit = write.value, 1 if write.op == "+=" else -1, size
    else:
        value, unit = _uncast(write.value), size
        if write.op != "=" or value.type != "binary_expression" or operator(value) not in ("+", "-"):
            return None
        first = strip_parens(syntax.field(value, "left"))
        if first.type == "cast_expression":
            if not _BYTES.fullmatch(text(syntax.field(first, "type")).strip()):
                return None
            unit = 1
        if text(_uncast(first)) != pointer.name:
            return None
        by, sign = syntax.field(value, "right"), 1 if operator(value) == "+" else -1
    if next(walk(by, ("call_expression", "subscript_expression", "pointer_expression", "assignment_expression")), None):
        return None
    body = next(n for n in _ancestors(write.node) if n.type in syntax.LOOPS)
    changed = {w.name for w in syntax.writes(body)} | syntax.declared(body)
    return None if syntax.identifiers(by) & changed else affine.of(context, by) * (sign * unit)


def _ancestors(node: Node) -> Iterator[Node]:
    above = node.parent
    while above is not None:
        yield above
        above = above.parent


def _uncast(node: Node) -> Node:
    node = strip_parens(node)
    while node.type == "cast_expression":
        node = strip_parens(syntax.field(node, "value"))
    return node


# ---------------------------------------------------------------- loads and what is written


def _writes(context: Context, known: Names, body: Body) -> Iterator[Stored]:
    """What the body writes beyond the thread's own variables."""
    accesses = {a.node.id: a for a in body.accesses}
    local = {v.name for v in names.of(context).variables if v.is_array and not v.shared}
    for write in syntax.writes(body.body):
        target = strip_parens(write.target)
        if write.op == "init" or target.type == "identifier":
            continue
        first = next(syntax.of_type(target, "identifier"), None)
        plain = target.type == "field_expression" and not re.search(r"->|\[|\*", text(target))
        if plain or (first is not None and text(first) in local and target.type == "subscript_expression"):
            continue
        access = accesses.get(target.id)
        roots = roots_of(context, known, access.array if access is not None else target)
        yield Stored(target, write.node, roots, access)


def roots_of(context: Context, known: Names, place: Node) -> frozenset[str]:
    """The arrays that a pointer may point into; empty when that is not known."""
    found = known.roots(place)
    variable = affine.variable(context, place) if place.type == "identifier" else None
    if found or variable is None or variable.param is not None:
        return found
    roots = []
    for write in variable.writes:
        if write.op in ("++", "--", "+=", "-=") or (
            write.value is not None and syntax.uses(write.value, variable.name)
        ):
            continue
        roots.append(known.root(write.value) if write.value is not None else None)
    return frozenset(r for r in roots if r is not None) if None not in roots else frozenset()


def _same(body: Body, access: Access, write: Stored) -> bool:
    """The write goes to the very element that the access reads."""
    at = squeeze(body.expanded(access.node, body.variable))
    return squeeze(body.expanded(write.node, body.variable)) == at


def _load(
    context: Context, known: Names, body: Body, access: Access, advances: dict[str, Advance], writes: list[Stored]
) -> Load | None:
    name = access.name
    advance = advances.get(name)
    if advance is not None:
        if access.index is not None and not _invariant(body, access.index):
            return None
        element = advance.pointer.type.replace("const", "").strip()
    else:
        if name in body.written or name in body.declared or access.index is None:
            return None
        if body.coefficient(access.index) == 0 or not _ahead(body, access.index):
            return None
        element = known.element(access.array) or ""
        if not element or "volatile" in element:
            return None
    roots = roots_of(context, known, access.array)
    in_place = False
    for write in writes:
        if _same(body, access, write) and write.access is not None:
            if advance is not None and not _one_side(advance, access.node, write.node):
                raise RuleRefused(f"{name} moves on between a load and a store")
            if not _before(access.node, write):
                return None  # a value of this iteration
            in_place = True
        elif not roots or not write.roots:
            raise RuleRefused(
                f"it cannot be told whether {text(write.node)} writes what {text(access.node)} reads later"
            )
        elif roots & write.roots:
            raise RuleRefused(f"the loop writes {text(write.node)}: {text(access.node)} may read that later")
    key = squeeze(body.expanded(access.node, body.variable))
    if advance is not None:
        key += "@" + str(access.node.start_byte < advance.statement.start_byte)
    return Load((access.node,), key, name, element, advance, in_place)


def _one_side(advance: Advance, *nodes: Node) -> bool:
    return len({n.start_byte < advance.statement.start_byte for n in nodes}) == 1


def _before(node: Node, write: Stored) -> bool:
    """The iteration reads at the node before it writes."""
    if syntax.span(write.whole).holds(syntax.span(node)):
        return True  # a value is computed before it is stored
    first, second = syntax.enclosing_statement(node), syntax.enclosing_statement(write.whole)
    return first != second and node.start_byte < write.whole.start_byte


def _invariant(body: Body, node: Node) -> bool:
    used = syntax.identifiers(node)
    memory = next(walk(node, ("call_expression", "subscript_expression", "pointer_expression")), None)
    return memory is None and not used & (body.written | body.declared | {body.variable})


def _ahead(body: Body, node: Node) -> bool:
    """The expression follows from the loop's variable and from what the body leaves alone."""
    if next(walk(node, ("call_expression", "subscript_expression", "pointer_expression")), None) is not None:
        return False
    for n in syntax.of_type(node, "identifier"):
        if text(n) == body.variable:
            continue
        local = body.local(n)
        if local is not None:
            if not _ahead(body, local):
                return False
        elif text(n) in body.written or text(n) in body.declared:
            return False
    return True


# ---------------------------------------------------------------- does it come back?


def _distance(context: Context, load: Load, access: Access) -> tuple[str, Literal["captured", "assumed"]]:
    """What must hold so that an iteration does not load what an earlier one has written, and how it is known; "" where
    it is proved. RuleRefused when a captured launch comes back to the same element."""
    size = sizes.size_of(load.element, context.module) or 1
    if load.advance is not None:
        step, least = load.advance.bytes, size
        said = f"{load.array} moves on by at least one element"
    else:
        assert access.index is not None
        loop = next(n for n in _ancestors(access.node) if n.type in syntax.LOOPS)
        counted = affine.induction(context, loop)
        step = affine.of(context, access.index).stride(counted.symbol) if counted is not None else None
        least, said = 1, f"{text(access.node)} is another element in each iteration"
    if step is None:
        raise RuleRefused(f"it cannot be told whether {text(access.node)} is another element in each iteration")
    if step.value is not None:
        if abs(step.value) < least:
            raise RuleRefused(f"{text(access.node)} is the same element in several iterations")
        return "", "captured"
    values = [trips.evaluate(step, numbers) for numbers in context.launched_numbers]
    if any(v is not None and abs(v) < least for v in values):
        raise RuleRefused(f"{text(access.node)} is the same element in several iterations of a captured launch")
    told = values and None not in values and not step.names & context.varied
    return said, "captured" if told else "assumed"
