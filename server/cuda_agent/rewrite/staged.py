"""The text of a loop over tiles: a block's threads fill shared arrays together, then each runs the tile's steps."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Edit, Span
from cuda_agent.rewrite import guarded, layout, mirror, syntax
from cuda_agent.rewrite.analysis import affine
from cuda_agent.rewrite.analysis.access import Access
from cuda_agent.rewrite.analysis.guards import Frame
from cuda_agent.rewrite.analysis.induction import Induction
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.mirror import X, Y
from cuda_agent.rewrite.rule import Context

WARP = 32
ROW = "row"  # the axis of an operand whose rows belong to one thread each


@dataclass
class Operand:
    """An array element that the threads along an axis share, at one index. `axis`: the thread axis that it depends on,
    "" when on none. `by_loop`: neighbouring loop steps, not neighbouring threads, are neighbours in memory."""

    uses: list[Access]
    axis: str
    by_loop: bool
    tile: str = ""
    times: int = 1  # outputs of a thread along the axis, a tile's width apart

    @property
    def threads(self) -> str:
        """The thread axis that the operand depends on; "" for none."""
        return "x" if self.axis == ROW else self.axis

    @property
    def mirrored(self) -> bool:
        """Filled by the thread whose x and y are exchanged."""
        return (self.axis == "x" and self.by_loop) or (self.axis == "y" and not self.by_loop)

    def element(self, step: str) -> str:
        """The element of this thread at a loop step counted from the tile's first."""
        if not self.axis:
            return f"{self.tile}[{step}]"
        if self.axis == ROW:
            return f"{self.tile}[{X}][{step}]"
        own = X if self.axis == "x" else Y
        return f"{self.tile}[{own}][{step}]" if self.by_loop else f"{self.tile}[{step}][{own}]"

    def declaration(self, size: int, width: int) -> str:
        padded = size + 1 if self.axis in ("x", ROW) and self.by_loop else size
        rows = width if self.axis == ROW else size
        if self.by_loop:
            rows *= self.times
        else:
            padded *= self.times
        extents = f"[{rows}][{padded}]" if self.axis else f"[{size}]"
        return f"__shared__ {self.uses[0].element} {self.tile}{extents};"


@dataclass
class Plan:
    loop: Induction
    frame: Frame
    operands: list[Operand]
    size: int
    width: int  # threads of the block along x
    product: bool  # the loop only adds products of staged elements: zeros stand for what is out of range
    renamed: dict[str, str] = field(default_factory=dict)
    mirrored: list[Variable] = field(default_factory=list)
    row: str = ""  # the row that a thread fills, where rows belong to threads


def edits(context: Context, plan: Plan) -> list[Edit]:
    """The shared arrays at the kernel's start, and the loop over tiles in place of the old one."""
    around = plan.frame
    indent = context.indent(plan.loop.loop.start_byte) if around.start == around.end else context.indent(around.start)
    step = layout.unit(context)
    top = [o.declaration(plan.size, plan.width) for o in plan.operands]
    clones = [] if plan.row else plan.mirrored
    lines = [indent + mirror.declaration(context, v, plan.renamed) for v in clones]
    middle = _loop(context, plan, indent, step)
    if not around.conditions:
        lines += middle
        span = syntax.span(plan.loop.loop)
    else:
        before, after = guarded.prologue(context, around, indent), guarded.epilogue(context, around, indent, step)
        lines = [*before, *lines, *middle, *after]
        span = Span(around.start, around.end)
    first = next(iter(syntax.statements(context.body)))
    head = f"{context.eol}{context.indent(first.start_byte)}".join(top)
    code = context.eol.join(lines).lstrip()
    if first.start_byte == span.start:
        return [Edit(span, f"{head}{context.eol}{indent}{code}")]
    start = Span(first.start_byte, first.start_byte)
    return [Edit(start, f"{head}{context.eol}{context.indent(first.start_byte)}"), Edit(span, code)]


def _loop(context: Context, plan: Plan, indent: str, step: str) -> list[str]:
    node, k = plan.loop.loop, plan.loop.variable.name
    size = plan.size
    first = context.unused_here(f"{k}0")
    counted = syntax.counted_loop(node)
    if counted is None:
        raise RuleRefused("the loop does not declare its own counter")
    kind, start, bound = counted.type, context.slice(syntax.span(counted.start)), counted.bound
    limit = context.slice(syntax.span(bound))
    one, two = indent + step, indent + 2 * step
    lines = [f"{indent}for ({kind} {first} = {start}; {first} < {limit}; {first} += {size}) {{"]
    lines += [one + line for line in _fills(context, plan, first, limit, step)]
    lines.append(f"{one}__syncthreads();")
    update = context.slice(syntax.span(counted.update))
    body = syntax.field(node, "body")
    if plan.product:
        lines.append(f"{one}for ({kind} {k} = 0; {k} < {size}; {update})")
        lines.append(f"{two}{_body(context, plan, syntax.statements(body)[0], k)}")
    else:
        end = context.unused_here(f"{k}1")
        lines.append(f"{one}const {kind} {end} = {first} + {size} < {limit} ? {first} + {size} : {limit};")
        deeper = one
        if plan.frame.conditions:
            lines.append(f"{one}if ({guarded.condition(context, plan.frame)})")
            deeper = two
        lines.append(f"{deeper}for ({kind} {k} = {first}; {k} < {end}; {update}) {{")
        old = context.indent(syntax.statements(body)[0].start_byte)
        code = _body(context, plan, body, f"{k} - {first}").strip()
        if body.type == "compound_statement":
            code = code[1:-1].strip("\r\n").rstrip()
        lines += [guarded.shifted(line, old, deeper + step) for line in code.splitlines()]
        lines.append(f"{deeper}}}")
    return [*lines, f"{one}__syncthreads();", f"{indent}}}"]


def _fills(context: Context, plan: Plan, first: str, limit: str, step: str) -> list[str]:
    """The statements with which the block brings its tiles."""
    filled = [_fill(context, plan, o, first, limit) for o in plan.operands]
    if plan.product:
        zeros = (_zero(o) for o in plan.operands)
        return [f"{place} = {inside} ? {value} : {z};" for (inside, place, value), z in zip(filled, zeros, strict=True)]
    lines = [mirror.declaration(context, v, plan.renamed, {X: plan.row}) for v in plan.mirrored if plan.row]
    for inside in dict.fromkeys(f[0] for f in filled):
        same = [f"{step}{place} = {value};" for test, place, value in filled if test == inside]
        lines += [f"if ({inside})", *same] if len(same) == 1 else [f"if ({inside}) {{", *same, "}"]
    if plan.row:
        stride = plan.width // WARP
        head = f"for (int {plan.row} = {X} / {WARP}; {plan.row} < {plan.width}; {plan.row} += {stride}) {{"
        return [head, *(step + line for line in lines), "}"]
    return lines


def _fill(context: Context, plan: Plan, operand: Operand, first: str, limit: str) -> tuple[str, str, str]:
    """(condition, element of the tile, element of the array) that a thread brings."""
    lane = X if operand.by_loop or not operand.axis else Y
    at = f"{first} + {X} % {WARP}" if operand.axis == ROW else f"{first} + {lane}"
    node, k = operand.uses[0].node, plan.loop.variable.name

    def spell(part: Node) -> str:
        if operand.axis == ROW:
            return mirror.text_of(context, part, plan.renamed, {X: plan.row})
        return mirror.text_of(context, part, plan.renamed) if operand.mirrored else context.slice(syntax.span(part))

    conditions = [c for c in plan.frame.conditions if guards(context, operand, c.node)]
    inside = " && ".join([*(guarded.spelled(context, c, spell) for c in conditions), f"{at} < {limit}"])
    source = _counter(spell(node), k, at)
    place = f"{operand.tile}[{Y}][{X}]" if operand.axis else f"{operand.tile}[{X}]"
    if operand.axis == ROW:
        place = f"{operand.tile}[{plan.row}][{X} % {WARP}]"
    return inside, place, source


def _zero(operand: Operand) -> str:
    return {"float": "0.0f", "double": "0.0"}.get(operand.uses[0].element, f"{operand.uses[0].element}(0)")


def _counter(code: str, k: str, at: str) -> str:
    """The text with the loop's counter replaced, in parentheses where it is a factor."""

    def one(match: re.Match[str]) -> str:
        before, after = code[: match.start()].rstrip()[-1:], code[match.end() :].lstrip()[:1]
        return at if before in ("[", "+", "(") and after in ("]", "+", ")", "-") else f"({at})"

    return re.sub(rf"(?<![\w.]){re.escape(k)}(?!\w)", one, code)


def _body(context: Context, plan: Plan, node: Node, step: str) -> str:
    inside = syntax.span(node)
    pieces = [(u.node, o.element(step)) for o in plan.operands for u in o.uses if inside.holds(syntax.span(u.node))]
    return mirror.replaced(context, node, pieces)


def guards(context: Context, operand: Operand, condition: Node) -> bool:
    """The condition says whether the operand's element is there: it depends on the operand's axis, or on none."""
    on = affine.of(context, condition).names & {X, Y}
    return not on or (operand.axis != "" and on == {f"threadIdx.{operand.threads}"})
