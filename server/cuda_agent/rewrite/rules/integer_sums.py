"""# 11 · integer-sums: a float that adds up bytes becomes an integer

Every byte that is added to a float is converted first, and conversions run at a half of the rate of additions. Bytes
added up as integers need one conversion, at the end.

Before:

    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int i = x - radius; i <= x + radius; i++) {
        sum.x += row[i].x;
        sum.y += row[i].y;
        …
    }
    out[x] = pack(sum, scale);

After:

    int4 sum_int = {0, 0, 0, 0};
    for (int i = x - radius; i <= x + radius; i++) {
        sum_int.x += row[i].x;
        sum_int.y += row[i].y;
        …
    }
    float4 sum = make_float4(sum_int.x, sum_int.y, sum_int.z, sum_int.w);
    out[x] = pack(sum, scale);

A float holds every integer up to 2^24 exactly (IEEE 754, 24 bits of significand), a double up to 2^53: below that no
addition of integers rounds, in whichever order. Legal when the sum starts at zero, the loop adds nothing else to it and
does not read it, and its elements are integers of 8 or 16 bits (proved); the loop ends before the sum can pass that
limit (proved by its bounds, captured where these are arguments). Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import access, names, sizes, trips
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site, changes
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import LOOPS, ancestors, strip_parens

# The largest magnitude of an element, by its type (of a vector type: of one component).
_LARGEST = {
    **dict.fromkeys(("char", "uchar", "unsigned char", "signed char", "int8_t", "uint8_t"), 255),
    **dict.fromkeys(("short", "ushort", "unsigned short", "int16_t", "uint16_t"), 65535),
}
_EXACT = {"float": 2**24, "double": 2**31 - 1}  # of a double more would be exact, but no int
_SUMS = re.compile(r"(float|double)([234]?)")
_ZERO = r"[+]?(?:0|0?\.0*|0\.0*)[fF]?"
_ZEROS = re.compile(
    rf"{_ZERO}|(?:make_(?:float|double)[234])?(?:\({_ZERO}(?:,{_ZERO})*\)|\{{(?:{_ZERO}(?:,{_ZERO})*)?\}})"
)


@dataclass(frozen=True)
class Fold:
    """`target += value;`: `value` is an integer of at most `largest`, without the casts around it."""

    target: Node
    assigned: Node  # with the casts
    value: Node
    largest: int


@dataclass(frozen=True)
class Sum:
    """`variable` starts at zero and adds up small integers in `loop`, which stands in the same block."""

    variable: Variable
    declaration: Node
    loop: Node
    folds: tuple[Fold, ...]

    @property
    def parts(self) -> str:
        """The number of its components, "" when it is a scalar."""
        return self.variable.type[-1] if self.variable.type[-1].isdigit() else ""


class IntegerSums(Rule):
    name = "integer-sums"
    number = 11

    def sites(self, context: Context) -> Iterator[Site]:
        found: dict[int, list[Sum]] = {}
        for one in _sums(context):
            found.setdefault(one.loop.start_byte, []).append(one)
        refused: RuleRefused | None = None
        for sums in found.values():
            try:
                known = [_check(context, one) for one in sums]
            except RuleRefused as error:
                refused = error
                continue
            params = {"sums": " ".join(one.variable.name for one in sums)}
            yield Site(self.name, syntax.span(sums[0].loop), params, {"sums": sums, "proved": all(known)})
        if refused is not None:
            raise refused

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        sums: list[Sum] = site.nodes["sums"]
        edits = [edit for one in sums for edit in _edits(context, one)]
        behind = "".join(context.eol + context.indent(one.loop.start_byte) + _converted(context, one) for one in sums)
        end = sums[0].loop.end_byte
        exact = f"{site.params['sums'].replace(' ', ', ')}: every sum is an integer that a float holds exactly"
        proved: bool = site.nodes["proved"]
        said = Assumption(
            exact if proved else f"{exact}, in {context.every_launch}", "proved" if proved else "captured"
        )
        return Rewrite((*edits, Edit(Span(end, end), behind)), assumptions=(said,))


def _sums(context: Context) -> Iterator[Sum]:
    starting = [(v, d) for v in names.of(context).variables if (d := _starts_at_zero(v)) is not None]
    if not starting:
        return
    loads = {one.node.id: one.element for one in access.of(context) if one.kind == "load"}
    for v, declaration in starting:
        uses = [u for u in v.uses if u.start_byte >= declaration.end_byte]
        loop = uses and _sibling_loop(declaration, uses[0])
        if not loop:
            continue
        folds = [_fold(context, use, loads) for use in uses if use.start_byte < loop.end_byte]
        if None not in folds:
            yield Sum(v, declaration, loop, tuple(f for f in folds if f is not None))


def _starts_at_zero(v: Variable) -> Node | None:
    """The declaration of a sum, alone in its statement."""
    if not _SUMS.fullmatch(v.type) or v.declarator is None or v.pointer or v.extents or v.shared:
        return None
    declaration = syntax.enclosing_statement(v.declarator)
    start = next((w.value for w in v.writes if w.op == "init"), None)
    alone = declaration.type == "declaration" and len(declaration.children_by_field_name("declarator")) == 1
    return declaration if alone and start is not None and _ZEROS.fullmatch(squeeze(text(start))) else None


def _sibling_loop(declaration: Node, use: Node) -> Node | None:
    """The outermost loop around the use that stands in the declaration's own block."""
    for loop in ancestors(use, LOOPS):
        if loop.parent == declaration.parent and loop.start_byte >= declaration.end_byte:
            return loop
    return None


def _fold(context: Context, use: Node, loads: Mapping[int, str]) -> Fold | None:
    """The statement `sum += element;` or `sum.x += element.x;` whose sum this use is."""
    target = use.parent if use.parent is not None and use.parent.type == "field_expression" else use
    write = target.parent
    if write is None or write.type != "assignment_expression" or write.child_by_field_name("left") != target:
        return None
    statement = write.parent
    if text(syntax.field(write, "operator")) != "+=" or statement is None or statement.type != "expression_statement":
        return None
    assigned = syntax.field(write, "right")
    value = strip_parens(assigned)
    while value.type == "cast_expression" and text(syntax.field(value, "type")) in ("float", "double", "int"):
        value = strip_parens(syntax.field(value, "value"))
    load, component = value, ""
    if value.type == "field_expression":
        load, component = syntax.field(value, "argument"), text(syntax.field(value, "field"))
    if load.id not in loads:
        return None
    element = sizes.spelled_out(context.module, re.sub(r"\b(?:const|volatile)\b\s*", "", loads[load.id]).strip())
    if component:
        vector = re.fullmatch(r"(u?char|u?short)[1234]", element)
        element = vector[1] if vector and component in "xyzw" else ""
    largest = _LARGEST.get(element)
    return Fold(target, assigned, value, largest) if largest is not None else None


def _check(context: Context, one: Sum) -> bool:
    """Whether the text proves the sum exact; False where the recorded launches do. RuleRefused where neither does."""
    shown = one.variable.name
    totals: dict[str, Poly] = {}
    for fold in one.folds:
        count = Poly.constant(fold.largest)
        for loop in ancestors(fold.target, LOOPS):
            if loop.start_byte < one.loop.start_byte:
                break
            steps = trips.trips(context, loop)
            if steps is None:
                raise RuleRefused(f"how many elements {shown} adds up is not known: it may be inexact")
            count = count * steps
        key = squeeze(text(fold.target))
        totals[key] = totals.get(key, Poly()) + count
    limit = _EXACT["double" if one.variable.type.startswith("double") else "float"]
    for total in totals.values():
        if varied := total.names & context.varied:
            raise RuleRefused(changes(varied))
        values = [trips.evaluate(total, numbers) for numbers in (context.launched_numbers or [{}])]
        if None in values:
            raise RuleRefused(f"how many elements {shown} adds up is not known: it may be inexact")
        if max(v for v in values if v is not None) > limit:
            raise RuleRefused(f"{shown} may pass {limit}: it is not exact")
    return all(total.value is not None for total in totals.values())


def _edits(context: Context, one: Sum) -> Iterator[Edit]:
    name = _name(context, one)
    zeros = f"{{{', '.join('0' * int(one.parts))}}}" if one.parts else "0"
    yield Edit(syntax.span(one.declaration), f"int{one.parts} {name} = {zeros};")
    for fold in one.folds:
        named = fold.target if fold.target.type == "identifier" else syntax.field(fold.target, "argument")
        yield Edit(syntax.span(named), name)
        if fold.assigned != fold.value:
            yield Edit(syntax.span(fold.assigned), context.slice(syntax.span(fold.value)))


def _converted(context: Context, one: Sum) -> str:
    name, type_ = _name(context, one), one.variable.type
    parts = ", ".join(f"{name}.{c}" for c in "xyzw"[: int(one.parts)]) if one.parts else ""
    return f"{type_} {one.variable.name} = {f'make_{type_}({parts})' if parts else name};"


def _name(context: Context, one: Sum) -> str:
    return context.unused_here(f"{one.variable.name}_int")
