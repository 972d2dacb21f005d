"""# 16 · stage: operands that a block shares go through shared memory

In a matrix product every element of a row is read by all threads of the row, in an n-body sum every body by all
threads. A block that first brings a piece of them into shared memory reads each from memory once.

Before:

    for (int k = 0; k < n; k++)
        sum += a[row * n + k] * b[k * n + col];

After:

    __shared__ float a_tile[16][16];
    __shared__ float b_tile[16][16];
    for (int k0 = 0; k0 < n; k0 += 16) {
        a_tile[threadIdx.y][threadIdx.x] = row < m && k0 + threadIdx.x < n ? a[row * n + k0 + threadIdx.x] : 0;
        b_tile[threadIdx.y][threadIdx.x] = col < n && k0 + threadIdx.y < n ? b[(k0 + threadIdx.y) * n + col] : 0;
        __syncthreads();
        for (int k = 0; k < 16; k++)
            sum += a_tile[threadIdx.y][k] * b_tile[k][threadIdx.x];
        __syncthreads();
    }

Where every thread walks a row of its own, the rows lie far apart and a warp's load touches 32 sectors; there the block
brings 32 columns of all its rows at a time, and each thread reads its row from the tile.

Neighbouring threads fill neighbouring elements, whichever way the operand lies. Threads outside the matrix stay to help
and for the barriers; only their results are not stored.

Legal when all threads of a block run the loop alike and the kernel writes none of the staged arrays (proved), none of
them overlaps what it writes, and the block has the captured size (captured). The order of the sum stays: bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import guarded, launches, layout, mirror, syntax
from cuda_agent.rewrite.analysis import access, affine, aliasing, trips, uniform
from cuda_agent.rewrite.analysis.access import Access
from cuda_agent.rewrite.analysis.guards import Frame, frame
from cuda_agent.rewrite.analysis.induction import Induction
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.mirror import X, Y
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import walk

_SHARED = 48 * 1024
_LEAST = 8  # threads that share an element
_WARP = 32
_ROW = "row"  # the axis of an operand whose rows belong to one thread each


@dataclass
class Operand:
    """An array element that the threads along an axis share, at one index. `axis`: the thread axis that it depends on,
    "" when on none. `by_loop`: neighbouring loop steps, not neighbouring threads, are neighbours in memory."""

    uses: list[Access]
    axis: str
    by_loop: bool
    tile: str = ""

    @property
    def threads(self) -> str:
        """The thread axis that the operand depends on; "" for none."""
        return "x" if self.axis == _ROW else self.axis

    @property
    def mirrored(self) -> bool:
        """Filled by the thread whose x and y are exchanged."""
        return (self.axis == "x" and self.by_loop) or (self.axis == "y" and not self.by_loop)

    def element(self, step: str) -> str:
        """The element of this thread at a loop step counted from the tile's first."""
        if not self.axis:
            return f"{self.tile}[{step}]"
        if self.axis == _ROW:
            return f"{self.tile}[{X}][{step}]"
        own = X if self.axis == "x" else Y
        return f"{self.tile}[{own}][{step}]" if self.by_loop else f"{self.tile}[{step}][{own}]"

    def declaration(self, size: int, width: int) -> str:
        padded = size + 1 if self.axis in ("x", _ROW) and self.by_loop else size
        extents = f"[{width if self.axis == _ROW else size}][{padded}]" if self.axis else f"[{size}]"
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


class Stage(Rule):
    name = "stage"
    number = 16

    def sites(self, context: Context) -> Iterator[Site]:
        if not context.numbers or "threadIdx" not in text(context.body):
            return
        if syntax.COOPERATION.search(text(context.body)):
            return
        for node in syntax.of_type(context.body, "for_statement"):
            loop = affine.induction(context, node)
            if loop is None or loop.step.value != 1:
                continue
            found = _operands(context, loop)
            if found:
                size = _WARP if found[0].axis == _ROW else _size(context)
                yield Site(self.name, syntax.span(node), {"size": size}, {"loop": loop, "operands": found})
                return

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        launches.check_one_block(context)
        plan = _plan(context, site.nodes["loop"], site.nodes["operands"], site.params["size"])
        block = tuple(context.numbers[0][f"blockDim.{a}"] for a in "xyz")
        said = " × ".join(str(n) for n in block if n > 1)
        return Rewrite(
            tuple(_edits(context, plan)),
            assumptions=(
                Assumption("all threads of a block run the loop alike, and the staged arrays are only read", "proved"),
                Assumption(f"blocks have {said} threads", "captured"),
                Assumption("the staged arrays never overlap what the kernel writes", "captured"),
            ),
        )


# ---------------------------------------------------------------- what can be staged


def _size(context: Context) -> int:
    """Loop steps of a tile: the block's width. RuleRefused where the block's shape does not allow a tile."""
    blocks = {tuple(n[f"blockDim.{a}"] for a in "xyz") for n in context.numbers}
    if len(blocks) != 1:
        raise RuleRefused("the block's size differs between launches")
    x, y, z = blocks.pop()
    if z != 1 or (y not in (1, x)):
        raise RuleRefused(f"a block of {x} × {y} × {z} threads is neither a row nor a square")
    return x


def _operands(context: Context, loop: Induction) -> list[Operand]:
    """What the loop reads and threads of a block share: in a square block at least one operand along each axis."""
    numbers = context.numbers[0]
    flat = numbers["blockDim.y"] == 1
    if numbers["blockDim.x"] < _LEAST:
        return []
    written = aliasing.effects(context).written
    body = syntax.span(syntax.field(loop.loop, "body"))
    found: dict[str, Operand] = {}
    rows: dict[str, Operand] = {}
    inside = [a for a in access.of(context).globals if a.index.depends(loop.symbol) and a.loops and a.loops[0] is loop]
    for one in inside:
        if one.kind != "load" or one.array in written or not body.holds(syntax.span(one.node)):
            continue
        if one.node.type != "subscript_expression":
            continue
        step, rest = one.index.split(loop.symbol)
        if step is None or not step.terms or step.names & {X, Y, "threadIdx.z"}:
            continue
        along = rest.stride(X)
        if flat and step.value == 1 and rest.depends(X) and along is not None and along.value not in (-1, 0, 1):
            key = f"{one.array}[{one.index}]"
            rows.setdefault(key, Operand([], _ROW, True)).uses.append(one)
            continue
        axes = "".join(a for a in "xyz" if f"threadIdx.{a}" in rest.names)
        if uniform.of_poly(context, _without_threads(rest)) not in ("block", "grid"):
            continue
        if (flat and (axes or step.value != 1)) or (not flat and axes not in ("x", "y")):
            continue
        along = rest.stride(f"threadIdx.{axes}") if axes else None
        if axes and step.value != 1 and (along is None or along.value != 1):
            continue
        key = f"{one.array}[{one.index}]"
        found.setdefault(key, Operand([], axes, step.value == 1)).uses.append(one)
    if rows and numbers["blockDim.x"] % _WARP == 0:
        found = rows
    operands = list(found.values())
    count = trips.of_induction(context, loop)
    known = [n for numbers in context.numbers if count and (n := trips.evaluate(count, numbers)) is not None]
    if any(n < (_WARP if found is rows else numbers["blockDim.x"]) for n in known):
        return []  # less than one tile
    if found is rows:
        return operands
    own = {text(a.node) for a in inside if a.index.names & {X, Y}} if flat else set()
    if len(own) >= len(operands):
        return []  # most of what the loop reads stays as it is
    if not flat and {o.axis for o in operands} != {"x", "y"}:
        return []
    return operands


def _without_threads(poly: Poly) -> Poly:
    return poly.substitute({f"threadIdx.{a}": 0 for a in "xyz"})


def _plan(context: Context, loop: Induction, operands: list[Operand], size: int) -> Plan:
    effects = aliasing.effects(context)
    if effects.unknown:
        raise RuleRefused("the kernel stores through a pointer that is not followed")
    arrays = {o.uses[0].array for o in operands}
    if conflict := aliasing.conflicts(context, context.workload, arrays, set(effects.written)):
        raise RuleRefused(f"{conflict[0][0]} overlaps {conflict[0][1]} in a captured launch")
    body = syntax.field(loop.loop, "body")
    if next(walk(body, ("break_statement", "return_statement", "goto_statement")), None):
        raise RuleRefused("the loop may end early")
    if re.search(r"\bprintf\s*\(", text(body)):
        raise RuleRefused("the loop prints")
    limit = trips.limit(context, loop)
    if limit is None or limit[0] != "<":
        raise RuleRefused("the loop's bound is not of the form k < n")
    if any(uniform.of_poly(context, p) not in ("block", "grid") for p in (limit[1], loop.start)):
        raise RuleRefused("the loop's range differs between the threads of a block")
    around = frame(context, loop.loop)
    for o in operands:
        if o.uses[0].bytes is None and not _template(context, o.uses[0].element):
            raise RuleRefused(f"the size of {o.uses[0].element} is not known")
        _check_unconditional(o, body)
    taken: set[str] = set()
    for o in operands:
        name = context.unused_here(f"{o.uses[0].array}_tile")
        o.tile = next(n for n in (name, *(f"{name}{i}" for i in range(2, 10))) if n not in taken)
        taken.add(o.tile)
    width = context.numbers[0]["blockDim.x"]
    rows = operands[0].axis == _ROW
    total = sum((o.uses[0].bytes or 8) * (width if rows else size) * (size + 1 if o.axis else 1) for o in operands)
    if total > _SHARED:
        raise RuleRefused(f"the tiles need {total} bytes of shared memory")
    plan = Plan(loop, around, operands, size, width, not rows and _adds_products(body, operands))
    plan.row = context.unused_here("r") if rows else ""
    for c in around.conditions:
        on = affine.of(context, c.node).names
        if {X, Y} <= on and context.numbers[0]["blockDim.y"] > 1:
            raise RuleRefused(f"the guard {text(c.node)} mixes both thread axes")
    moved = [o for o in operands if o.mirrored or o.axis == _ROW]
    nodes = [o.uses[0].node for o in moved]
    nodes += [c.node for c in around.conditions if any(_guards(context, o, c.node) for o in moved)]
    plan.mirrored = mirror.variables(context, nodes, {loop.variable}) if nodes else []
    for v in plan.mirrored:
        plan.renamed[v.symbol] = mirror.clone(context, v, "in")
        if v.scope.start_byte > around.start and v.start > loop.loop.start_byte:
            raise RuleRefused(f"{v.name} is computed inside the loop")
    for o in operands:
        for n in syntax.of_type(o.uses[0].node, "identifier"):
            used = affine.variable(context, n)
            if used is not None and used is not loop.variable and used.start > loop.loop.start_byte:
                raise RuleRefused(f"{used.name} is computed inside the loop")
    return plan


def _template(context: Context, element: str) -> bool:
    return any(re.search(rf"\b{re.escape(element)}\b", p) for p in context.kernel.template_params)


def _check_unconditional(operand: Operand, body: Node) -> None:
    """Some use is done by every iteration: loading the element is what the loop does anyway."""
    for one in operand.uses:
        above, inside = one.node.parent, False
        while above is not None and above != body.parent:
            inside = inside or above.type in ("if_statement", "conditional_expression", "switch_statement")
            inside = inside or (above.type == "binary_expression" and re.search(r"&&|\|\|", text(above)) is not None)
            above = above.parent
        if not inside:
            return
    raise RuleRefused(f"{text(operand.uses[0].node)} is read under a condition only")


def _adds_products(body: Node, operands: list[Operand]) -> bool:
    """The body is `sum += a * b` of staged elements."""
    inside = syntax.statements(body)
    if len(inside) != 1 or inside[0].type != "expression_statement":
        return False
    write = next(iter(syntax.writes(inside[0])), None)
    if write is None or write.op not in ("+=", "-=") or write.name is None or write.value is None:
        return False
    staged = {u.node for o in operands for u in o.uses}
    factors, pending = [], [write.value]
    while pending:
        n = pending.pop()
        if n.type == "parenthesized_expression" and n.named_child_count == 1:
            pending.append(n.named_children[0])
        elif n.type == "binary_expression" and text(n.children[1]) == "*":
            pending += [syntax.field(n, "left"), syntax.field(n, "right")]
        else:
            factors.append(n)
    return len(factors) > 1 and all(f in staged for f in factors)


def _guards(context: Context, operand: Operand, condition: Node) -> bool:
    """The condition says whether the operand's element is there: it depends on the operand's axis, or on none."""
    on = affine.of(context, condition).names & {X, Y}
    return not on or (operand.axis != "" and on == {f"threadIdx.{operand.threads}"})


# ---------------------------------------------------------------- the new text


def _edits(context: Context, plan: Plan) -> list[Edit]:
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
        stride = plan.width // _WARP
        head = f"for (int {plan.row} = {X} / {_WARP}; {plan.row} < {plan.width}; {plan.row} += {stride}) {{"
        return [head, *(step + line for line in lines), "}"]
    return lines


def _fill(context: Context, plan: Plan, operand: Operand, first: str, limit: str) -> tuple[str, str, str]:
    """(condition, element of the tile, element of the array) that a thread brings."""
    lane = X if operand.by_loop or not operand.axis else Y
    at = f"{first} + {X} % {_WARP}" if operand.axis == _ROW else f"{first} + {lane}"
    node, k = operand.uses[0].node, plan.loop.variable.name

    def spell(part: Node) -> str:
        if operand.axis == _ROW:
            return mirror.text_of(context, part, plan.renamed, {X: plan.row})
        return mirror.text_of(context, part, plan.renamed) if operand.mirrored else context.slice(syntax.span(part))

    conditions = [c for c in plan.frame.conditions if _guards(context, operand, c.node)]
    inside = " && ".join([*(guarded.spelled(context, c, spell) for c in conditions), f"{at} < {limit}"])
    source = _counter(spell(node), k, at)
    place = f"{operand.tile}[{Y}][{X}]" if operand.axis else f"{operand.tile}[{X}]"
    if operand.axis == _ROW:
        place = f"{operand.tile}[{plan.row}][{X} % {_WARP}]"
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
