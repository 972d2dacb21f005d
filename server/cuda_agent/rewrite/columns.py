"""The text of a kernel whose threads become columns of a block: all of a column share the loop, then one goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Edit, Span
from cuda_agent.rewrite import layout, style, syntax
from cuda_agent.rewrite.analysis import statements
from cuda_agent.rewrite.analysis.carried import Reduction, starts_neutral
from cuda_agent.rewrite.analysis.loops import Loop, type_of
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.spread import spread
from cuda_agent.rewrite.syntax import text


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


class Columns:
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
