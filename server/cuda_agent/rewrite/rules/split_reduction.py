"""# 3 · split-reduction: one thread's long sum → a sum by many threads of the block

A thread an output that runs a long loop alone leaves most of the machine idle when there are few outputs. The loop's
iterations are shared out along an axis of the block that the kernel does not use; the parts meet in shared memory.
Neighbouring threads still read neighbouring columns.

Before:

    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float sum = 0.0f;
    for (int row = 0; row < rows; row++)
        sum += in[row * cols + col];
    out[col] = sum;

After, with blocks of 32 × 16:

    int col = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    __shared__ float partial[16][32];
    if (col < cols)
        for (int row = threadIdx.y; row < rows; row += 16)
            sum += in[row * cols + col];
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || col >= cols) return;
    for (int y = 1; y < 16; y++)
        sum += partial[y][threadIdx.x];
    out[col] = sum;

Legal when threads use nothing but their global index (proved), the loop carries only sums, products, minima, maxima
or bit operations and stores nothing (proved), what stands before it stores nothing (proved), and the axis is unused
(proved, and captured: the launches have extent 1 there). Sums of floats change their order: class "reassociated";
otherwise bit-exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, LaunchMap, Span
from cuda_agent.rewrite import launches, layout, style, syntax
from cuda_agent.rewrite.analysis import statements
from cuda_agent.rewrite.analysis.carried import Reduction, dead_after, reductions, starts_neutral
from cuda_agent.rewrite.analysis.loops import Loop, counting, integral, trips, type_of
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site, with_launch
from cuda_agent.rewrite.rules.block_shape import index_axes
from cuda_agent.rewrite.spread import spread
from cuda_agent.rewrite.syntax import text

_ONE = ((32, 16), (32, 32), (32, 8), (64, 16))  # threads along x, parts
_FEW = ((8, 64), (8, 128))  # where outputs are few; eight floats still fill a sector of 32 bytes
_TWO = (4, 8)  # parts of a two-dimensional block
_FULL = 1024  # threads a multiprocessor that keep it busy
_SHORT = 16  # iterations that nobody waits for
_SHARED = 48 * 1024


@dataclass(frozen=True)
class Guard:
    """A condition under which a thread has an output: `if (in range) { … }` around the loop, or `if (out of range)
    return;` before it."""

    node: Node
    inside: str  # in range
    outside: str  # out of range


@dataclass(frozen=True)
class Plan:
    """A loop that all threads of a column can share. `before` and `after` are the statements around it in its block;
    with a block of its own, `around` is the guard of that block."""

    loop: Loop
    before: list[Node]
    after: list[Node]
    around: Guard | None
    returns: list[Guard]
    found: list[Reduction] = field(default_factory=list)

    @property
    def guarded(self) -> bool:
        """Whether threads without an output know it."""
        return self.around is not None or bool(self.returns)


class SplitReduction(Rule):
    name = "split-reduction"
    number = 3

    def sites(self, context: Context) -> Iterator[Site]:
        axes = {t.axis for t in syntax.thread_ids(context.body)}
        if axes not in ({"x"}, {"x", "y"}) or not context.shapes:
            return
        sms = context.device.sms if context.device else 132
        outputs = min(s.blocks * s.threads for s in context.shapes)
        if outputs >= sms * _FULL:
            return
        plans = [p for p in _plans(context) if trips(context, p.loop) is None or (trips(context, p.loop) or 0) >= 64]
        if not plans:
            return
        index_axes(context)
        narrow = _FEW if outputs * 32 < sms * _FULL else ()
        shapes = (*_ONE[:2], *narrow, *_ONE[2:]) if axes == {"x"} else tuple((None, parts) for parts in _TWO)
        for plan in plans:
            for width, parts in shapes:
                sizes = {"x": width, "parts": parts} if width else {"parts": parts}
                yield Site(self.name, syntax.span(plan.loop.node), sizes, {"plan": plan, "axes": axes})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        plan: Plan = site.nodes["plan"]
        axis = "y" if site.nodes["axes"] == {"x"} else "z"
        parts, block = site.params["parts"], _block(context, site)
        found = _check(context, plan)
        size = sum(8 * parts * block[0] * block[1] for _ in found)
        if size > _SHARED or parts * block[0] * block[1] > 1024:
            raise RuleRefused("the parts do not fit a block")
        launches.check_bound(context, parts * block[0] * block[1])
        writer = _Writer(context, plan, found, axis, parts, block[: 1 if axis == "y" else 2])
        new = (block[0], parts, 1) if axis == "y" else (block[0], block[1], parts)
        edits = [*writer.edits(), *_launch_edits(context, new)]
        grid = f"ceil_div(gx * bx, {block[0]})" if axis == "y" and _other_width(context, block[0]) else "gx"
        rounded = any(r.rounded and not integral(type_of(context, r.name)) for r in found)
        names = ", ".join(r.name for r in found)
        return Rewrite(
            tuple(edits),
            LaunchMap(grid=(grid, "gy", "gz"), block=(str(new[0]), str(new[1]), str(new[2]))),
            (
                Assumption(f"the loop carries nothing but {names}, which may be computed in parts", "proved"),
                Assumption(f"the launches have extent 1 along {axis}", "captured"),
                *(
                    ()
                    if plan.guarded or axis == "z"
                    else (Assumption(f"the threads of every launch fill blocks of {block[0]}", "captured"),)
                ),
                *statements.trusted(context, plan.loop.body),
            ),
            "reassociated" if rounded else "bit-exact",
        )


# ---------------------------------------------------------------- where


def _plans(context: Context) -> list[Plan]:
    """Loops of the kernel's own block, or of the block of a guard that ends it. RuleRefused when the only loops there
    carry something else."""
    block = statements.statements(context.body)
    found, said = [], None
    returns: list[Guard] = []
    for at, statement in enumerate(block):
        if (guard := statements.leaving(statement)) is not None:
            returns.append(Guard(statement, *guard))
            continue
        around, inner = None, [statement]
        if statement.type == "if_statement" and at == len(block) - 1 and not returns:
            condition = statements.condition(statement)
            if condition is not None:
                around = Guard(statement, condition, style.opposite(condition))
                inner = statements.statements(syntax.field(statement, "consequence"))
        for i, one in enumerate(inner):
            loop = counting(one)
            if loop is None:
                continue
            before, after = (inner[:i], inner[i + 1 :]) if around else (block[:at], block[at + 1 :])
            try:
                if folded := _folded(context, loop):
                    found.append(Plan(loop, before, after, around, list(returns), folded))
            except RuleRefused as error:
                said = error
    if said is not None and not found:
        raise said
    return found


def _folded(context: Context, loop: Loop) -> list[Reduction]:
    """The loop's reductions, none where it stores (then it is another rule's)."""
    if statements.stores(context, loop.body):
        return []
    if next(syntax.of_type(loop.body, "return_statement", "goto_statement"), None) or statements.breaks(loop.body):
        raise RuleRefused("the loop may end early")
    return reductions(context, loop)


def _check(context: Context, plan: Plan) -> list[Reduction]:
    if syntax.COOPERATION.search(text(context.body)):
        raise RuleRefused("threads of a block already work together here (barrier, shuffle or shared memory)")
    guards = {g.node.start_byte for g in plan.returns}
    before = [s for s in statements.statements(context.body) if s.start_byte < plan.loop.node.start_byte]
    for statement in (*before, *plan.before):
        whole = statement.start_byte in guards or (plan.around is not None and statement == plan.around.node)
        if not whole and next(syntax.of_type(statement, "return_statement", "goto_statement"), None):
            raise RuleRefused("some threads return before the loop: they would be missing at the barrier")
    for statement in before:
        for node in (statement,) if statement != (plan.around.node if plan.around else None) else plan.before:
            if statements.stores(context, node):
                raise RuleRefused("memory is written before the loop: every part would write it")
    if not dead_after(context, plan.loop, plan.loop.variable) and not plan.loop.type:
        raise RuleRefused(f"{plan.loop.variable} is read after the loop")
    for statement in (*plan.before, *plan.after):
        for node in syntax.of_type(statement, *syntax.LOOPS):
            other = counting(node)
            if other is None or (trips(context, other) or _SHORT + 1) > _SHORT:
                raise RuleRefused("another loop of the thread would still run in one part")
    for r in plan.found:
        type_ = type_of(context, r.name)
        if type_ is None:
            raise RuleRefused(f"{r.name} is not a plain variable of the kernel")
    return plan.found


def _block(context: Context, site: Site) -> tuple[int, int]:
    """Threads along x and y of the new blocks."""
    blocks = {s.block for s in context.shapes}
    plan: Plan = site.nodes["plan"]
    if "x" in site.params:
        if any(b[1:] != (1, 1) for b in blocks):
            raise RuleRefused("a captured launch has blocks of several rows already")
        if plan.guarded or _fill(context, site.params["x"]):
            return site.params["x"], 1
        raise RuleRefused("there is no guard for surplus threads")
    if len(blocks) != 1 or any(b[2] != 1 for b in blocks):
        raise RuleRefused("the captured launches have blocks of different shapes")
    one = blocks.pop()
    return one[0], one[1]


def _fill(context: Context, width: int) -> bool:
    """Whether the threads of every captured launch fill blocks of that width."""
    return all((s.grid[0] * s.block[0]) % width == 0 for s in context.shapes)


def _other_width(context: Context, width: int) -> bool:
    return {s.block[0] for s in context.shapes} != {width}


def _launch_edits(context: Context, block: tuple[int, int, int]) -> list[Edit]:
    edits: list[Edit] = []
    for one in launches.sites_of(context):
        gx, gy, gz = launches.axes(context, one.grid, one.span.start)
        bx = launches.width(context, one)
        new = launches.dims((str(block[0]), str(block[1]), str(block[2])))
        grid = launches.dims((launches.regrid(context, one, gx, bx, block[0]), gy, gz))
        edits += with_launch(one, grid if _other_width(context, block[0]) else None, new)
    return edits


# ---------------------------------------------------------------- the new text


class _Writer:
    """The edits inside the kernel."""

    def __init__(
        self, context: Context, plan: Plan, found: list[Reduction], axis: str, parts: int, block: tuple[int, ...]
    ) -> None:
        self.context, self.plan, self.found, self.parts = context, plan, found, parts
        self.axis = axis
        self.lane = f"threadIdx.{axis}"
        self.extent = "".join(f"[{n}]" for n in (parts, *reversed(block)))
        self.column = "".join(f"[threadIdx.{a}]" for a in reversed("xy"[: len(block)]))
        self.arrays = {
            r.name: context.unused_here("partial" if len(found) == 1 else f"partial_{r.name.replace('.', '_')}")
            for r in found
        }
        self.eol, self.step = context.eol, layout.unit(context)
        self.indent = context.indent(plan.loop.node.start_byte)

    def edits(self) -> list[Edit]:
        plan = self.plan
        loop = spread(self.context, plan.loop, self.lane, str(self.parts))
        if plan.around is not None:
            return [*loop, *self._guarded(plan.around)]
        return [*loop, *self._returning()]

    def _lines(self, lines: list[str], indent: str) -> str:
        return "".join(f"{self.eol}{indent}{line}" for line in lines)

    def _shared(self) -> list[str]:
        return [f"__shared__ {self._type(r.name)} {self.arrays[r.name]}{self.extent};" for r in self.found]

    def _type(self, name: str) -> str:
        type_ = type_of(self.context, name) or "auto"
        return f"decltype({name})" if type_ == "auto" else type_

    def _start(self) -> list[str]:
        """Parts beyond the first start from nothing."""
        lines = []
        for r in self.found:
            if r.neutral is not None and not starts_neutral(self.context, r):
                lines += [f"if ({self.lane} != 0)", f"{self.step}{r.name} = {r.neutral};"]
        return lines

    def _keep(self) -> list[str]:
        return [f"{self.arrays[r.name]}[{self.lane}]{self.column} = {r.name};" for r in self.found]

    def _combine(self) -> list[str]:
        v = self.context.unused_here(self.axis)
        head = f"for (int {v} = 1; {v} < {self.parts}; {v}++)"
        folds = [r.fold(f"{self.arrays[r.name]}[{v}]{self.column}") for r in self.found]
        if len(folds) == 1:
            return [head, self.step + folds[0]]
        return [f"{head} {{", *(self.step + f for f in folds), "}"]

    # ------------------------------------------------------------ `if (in range) { … }`

    def _guarded(self, guard: Guard) -> list[Edit]:
        context, plan = self.context, self.plan
        outer = context.indent(guard.node.start_byte)
        edits, hoisted, moved = self._hoist(plan.before)
        start = guard.node.start_byte
        edits.append(
            Edit(Span(start, start), "".join(f"{line}{self.eol}{outer}" for line in [*hoisted, *self._shared()]))
        )
        edits += self._before_loop()
        end = plan.loop.node.end_byte
        inside = self._lines(self._keep(), self.indent)
        condition = f"{self.lane} == 0 && {style.conjunct(guard.inside)}"
        brace = " {" if layout.same_line_brace(context, guard.node) else f"{self.eol}{outer}{{"
        between = self._lines(["}", "__syncthreads();", f"if ({condition}){brace}"], outer)
        lines = [*self._combine(), *moved]
        edits.append(Edit(Span(end, end), inside + between + self._lines(lines, self.indent)))
        return edits

    def _hoist(self, before: list[Node]) -> tuple[list[Edit], list[str], list[str]]:
        """Edits, lines before the guard and lines after the barrier. Declarations that the second part needs too stand
        before the guard: whole where they read no memory, else without their value. What only the second part needs
        goes there."""
        context, plan = self.context, self.plan
        edits: list[Edit] = []
        hoisted: list[str] = []
        moved: list[str] = []
        needed = set().union(*(syntax.identifiers(s) for s in plan.after)) | {r.variable for r in self.found}
        whole: set[int] = set()
        for statement in reversed(before):
            if statements.names(statement) & needed and statements.pure(context, statement):
                whole.add(statement.start_byte)
                needed |= syntax.identifiers(statement)
        first: set[str] = set()  # what the first part alone has
        split: set[str] = set()  # declared before, set in the first part
        second: set[str] = set()
        for at, statement in enumerate(before):
            span, names, uses = syntax.span(statement), statements.names(statement), syntax.identifiers(statement)
            if not names & needed:
                first |= {w.name for w in syntax.writes(statement) if w.name} | names
            elif statement.start_byte in whole and not uses & (first | split | second):
                hoisted.append(context.slice(span))
                edits.append(Edit(layout.line_of(context, span), ""))
            elif not self._needed_before(statement, before[at + 1 :]) and not uses & first:
                second |= names
                moved.append(context.slice(span))
                edits.append(Edit(layout.line_of(context, span), ""))
            else:
                kind, variables = statements.initialised(statement)
                if not variables or kind == "auto" or "const" in text(statement).partition("=")[0]:
                    raise RuleRefused(f"`{text(statement)}` is needed on both sides of the barrier")
                split |= names
                hoisted.append(f"{kind} {', '.join(n for n, _ in variables)};")
                values = [f"{n} = {context.slice(syntax.span(v))}" for n, v in variables]
                edits.append(Edit(span, f"{', '.join(values)};"))
        return edits, hoisted, moved

    def _needed_before(self, statement: Node, rest: list[Node]) -> bool:
        """Whether the loop, or what stays before it, uses what the statement sets, or changes what it reads."""
        written = {w.name for w in syntax.writes(statement) if w.name} | statements.names(statement)
        uses = set().union(syntax.identifiers(self.plan.loop.node), *(syntax.identifiers(s) for s in rest))
        changed = {w.name for s in rest for w in syntax.writes(s)} | {r.variable for r in self.found}
        return bool(written & uses or syntax.identifiers(statement) & changed)

    # ------------------------------------------------------------ `if (out of range) return;`

    def _returning(self) -> list[Edit]:
        context, plan = self.context, self.plan
        inside = " && ".join(style.conjunct(g.inside) for g in plan.returns)
        outside = " || ".join(style.disjunct(g.outside) for g in plan.returns)
        last = plan.returns[-1].node if plan.returns else None
        moved: list[str] = []
        edits: list[Edit] = []
        behind: list[Node] = []  # what reads memory for the loop
        for at, statement in enumerate(plan.before):
            if not plan.returns or statement.start_byte <= plan.returns[0].node.start_byte:
                continue
            if statements.leaving(statement) is not None or statements.pure(context, statement):
                continue
            if not self._needed_before(statement, plan.before[at + 1 :]):
                moved.append(context.slice(syntax.span(statement)))
                edits.append(Edit(layout.line_of(context, syntax.span(statement)), ""))
            else:
                behind.append(statement)
        if last is not None and behind:
            return self._wrapped(last, behind, inside, outside)
        edits += [Edit(layout.line_of(context, syntax.span(g.node)), "") for g in plan.returns]
        at = layout.start_with_pragma(context, plan.loop.node)
        before = "".join(f"{line}{self.eol}{self.indent}" for line in [*self._shared(), *self._start()])
        if inside:
            edits.append(Edit(Span(at, at), f"{before}if ({inside}){self.eol}{self.indent}{self.step}"))
            edits += layout.indented(context, Span(at, plan.loop.node.end_byte), self.step)
        else:
            edits.append(Edit(Span(at, at), before))
        return [*edits, self._end([*self._keep(), "__syncthreads();"], outside, moved)]

    def _end(self, lines: list[str], outside: str, moved: list[str]) -> Edit:
        """After the loop: one thread a column goes on."""
        end = self.plan.loop.node.end_byte
        leave = f"if ({self.lane} != 0{f' || {outside}' if outside else ''})"
        lines = [*lines, leave, f"{self.step}return;", *self._combine(), *moved]
        return Edit(Span(end, end), self._lines(lines, self.indent))

    def _wrapped(self, guard: Node, behind: list[Node], inside: str, outside: str) -> list[Edit]:
        """The loop and the reads before it go into a block of their own, which only threads with an output run."""
        context, plan = self.context, self.plan
        if any(s.start_byte < guard.start_byte for s in behind):
            raise RuleRefused(f"`{text(behind[0])}` reads memory between two guards")
        edits, hoisted, moved = self._hoist([s for s in plan.before if s.start_byte > guard.start_byte])
        gone = [layout.line_of(context, syntax.span(g.node)) for g in plan.returns if g.node != guard]
        edits += [Edit(span, "") for span in gone]
        opening = [*hoisted, *self._shared(), f"if ({inside}) {{"]
        edits.append(Edit(syntax.span(guard), f"{self.eol}{self.indent}".join(opening)))
        at = layout.start_with_pragma(context, plan.loop.node)
        indent = self.indent + self.step
        edits.append(Edit(Span(at, at), "".join(f"{line}{self.eol}{indent}" for line in self._start())))
        deleted = [e.span for e in edits if not e.text]
        edits += [
            e
            for e in layout.indented(context, Span(guard.end_byte, plan.loop.node.end_byte), self.step)
            if not any(d.start <= e.span.start < d.end for d in deleted)
        ]
        lines = [*(self.step + line for line in self._keep()), "}", "__syncthreads();"]
        return [*edits, self._end(lines, outside, moved)]

    def _before_loop(self) -> list[Edit]:
        at = layout.start_with_pragma(self.context, self.plan.loop.node)
        lines = self._start()
        return [Edit(Span(at, at), "".join(f"{line}{self.eol}{self.indent}" for line in lines))] if lines else []
