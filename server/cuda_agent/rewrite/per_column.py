"""The text of a kernel whose thread takes several neighbouring columns: each run of statements goes through the columns
in a loop of its own, between the vectors that it reads and those that it writes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Edit, Span
from cuda_agent.rewrite import launches, layout, syntax
from cuda_agent.rewrite.analysis.column_moves import ColumnMoves, Move
from cuda_agent.rewrite.analysis.column_parts import Loop, Parts, Run
from cuda_agent.rewrite.analysis.neighbours import Access, tight
from cuda_agent.rewrite.either_size import either_size
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import text
from cuda_agent.rewrite.vectors import Vector, declarations, local_vector
from cuda_agent.source.tree import name_of

_BYTES = 16  # that one instruction moves at most


class PerColumn:
    """RuleRefused where names for the vectors run out, or the fewer blocks of other sizes cannot be told apart."""

    def __init__(self, context: Context, plan: ColumnMoves) -> None:
        self.context, self.plan = context, plan
        self.index, self.width, self.carried = plan.index, plan.width, plan.carried
        self.k = layout.unused_index(context)
        self.taken: dict[int, set[str]] = {}  # names of vectors in each block
        self.defined: dict[str, list[Span]] = {}  # structures, with the blocks that have them
        named: dict[Move, Vector] = {}
        self.vectors: dict[Access, Vector] = {}
        for access, move in plan.moves.items():
            if move not in named:
                run = next(r for r in plan.split.runs if r.holds(access.node))
                named[move] = self._named(self._vector(move.array, move.element, move.size), run)
            self.vectors[access] = named[move]

    def _vector(self, array: str, element: str, nbytes: int) -> Vector:
        """More than one instruction moves are a structure, which is moved by two."""
        vector = local_vector(self.context, array, element, nbytes, self.width)
        if vector.struct or vector.bytes <= _BYTES:
            return vector
        struct = self.context.unused(f"{re.sub(r'[^a-zA-Z0-9_]+', '_', element)}_x{self.width}")
        return Vector(vector.name, element, self.width, nbytes, struct)

    def _named(self, vector: Vector, run: Run) -> Vector:
        """With a name that no run of the same block has."""
        block = run.each[0].parent
        taken = self.taken.setdefault(block.id if block is not None else 0, set())
        names = (vector.name, *(vector.name + letter for letter in "bcdefgh"))
        name = next((n for n in names if n not in taken), None)
        if name is None:
            raise RuleRefused("the columns read many neighbours of each other: a tile is for such kernels")
        taken.add(name)
        return Vector(name, vector.element, vector.width, vector.size, vector.struct)

    def edits(self, *, changed: bool) -> tuple[Edit, ...]:
        inner = [self._opened(), *self._edits(self.plan.split.parts)]
        if not self.plan.chosen:
            return tuple(inner)
        start = min(e.span.start for e in inner)
        end = max(syntax.statements(self.context.body)[-1].end_byte, *(e.span.end for e in inner))
        return (either_size(self.context, self.plan, Span(start, end), inner, changed=changed),)

    def _opened(self) -> Edit:
        value = text(self.index.value)
        return Edit(syntax.span(self.index.value), f"{launches.paren(value)} * {self.width}")

    def _edits(self, parts: Parts) -> Iterator[Edit]:
        for part in parts:
            if isinstance(part, Loop):
                yield from self._edits(part.parts)
            else:
                yield self._run_edit(part)

    def _braced(self, run: Run, owner: Node) -> Edit:
        """The one statement of a loop or guard gets braces."""
        context, eol = self.context, self.context.eol
        indent, body = context.indent(owner.start_byte), run.each[0]
        before = body.prev_sibling
        start = before.end_byte if before is not None else body.start_byte
        inner = indent + layout.unit(context)
        code = "".join(f"{eol}{inner}{line}" if line else eol for line in self._lines(run))
        return Edit(Span(start, body.end_byte), f" {{{code}{eol}{indent}}}")

    def _run_edit(self, run: Run) -> Edit:
        owner = run.each[0].parent
        if owner is not None and owner.type != "compound_statement":
            return self._braced(run, owner)
        start = layout.start_with_pragma(self.context, run.each[0])
        indent = self.context.indent(start)
        lines = self._lines(run)
        first = [lines[0], *(indent + line if line else "" for line in lines[1:])]
        return Edit(Span(start, self._end(run)), self.context.eol.join(first))

    def _end(self, run: Run) -> int:
        """Where the run ends, with a comment behind it."""
        data, end = self.context.module.document.data, run.each[-1].end_byte
        line_end = data.find(b"\n", end)
        rest = data[end : line_end if line_end != -1 else len(data)].rstrip()
        return end + len(rest) if rest.lstrip().startswith(b"//") else end

    def _lines(self, run: Run) -> list[str]:
        context, k, step = self.context, self.k, layout.unit(self.context)
        mine = {a: v for a, v in self.vectors.items() if run.holds(a.node)}
        unique: dict[str, list[Access]] = {}
        for access, vector in mine.items():
            unique.setdefault(vector.name, []).append(access)
        vectors = {v.name: v for v in mine.values()}
        loaded = [n for n, some in unique.items() if self._read_first(some, run)]
        stored = [n for n, some in unique.items() if any(a.kind != "read" for a in some)]
        computed = self._computed(run, mine)
        braces = len(computed) > 1
        once = [context.slice(layout.line_of(context, syntax.span(s))).strip() for s in run.first]
        if not computed:
            return [*self._arrays(run), *once]
        return [
            *self._arrays(run),
            *once,
            *self._definitions(run, list(vectors.values())),
            *declarations(list(vectors.values())),
            *(vectors[n].load(unique[n][0].address, _hint(unique[n], "read")) for n in loaded),
            "#pragma unroll",
            f"for (int {k} = 0; {k} < {self.width}; {k}++)" + (" {" if braces else ""),
            *(step + line if line else "" for line in computed),
            *(["}"] if braces else []),
            *(vectors[n].store(unique[n][0].address, _hint(unique[n], "write")) for n in stored),
        ]

    def _read_first(self, accesses: list[Access], run: Run) -> bool:
        """Some access needs the element's old value."""
        stored = next((a for a in accesses if a.kind == "write" and self.plan.always([a], run)), None)
        end = syntax.statement_end(stored.node) if stored is not None else None
        return any(a.kind != "write" and (end is None or a.node.start_byte < end) for a in accesses)

    def _definitions(self, run: Run, vectors: list[Vector]) -> Iterator[str]:
        """Structures that no block around the run has yet."""
        block = run.each[0].parent
        assert block is not None
        for definition in dict.fromkeys(v.definition for v in vectors if v.definition):
            around = self.defined.setdefault(definition, [])
            if not any(other.holds(syntax.span(block)) for other in around):
                around.append(syntax.span(block))
                yield definition

    def _arrays(self, run: Run) -> list[str]:
        """Declarations of the arrays that hold a variable of every column."""
        lines = []
        for declaration in (s for s in run.each if s in self.carried.values()):
            declarators = declaration.children_by_field_name("declarator")
            names = [name_of(d) for d in declarators]
            kind = self.context.slice(Span(declaration.start_byte, declarators[0].start_byte)).strip()
            kind = re.sub(r"\b(const|constexpr)\b\s*", "", kind).strip()
            lines.append(f"{kind} {', '.join(f'{n}[{self.width}]' for n in names)};")
        return lines

    def _computed(self, run: Run, vectors: dict[Access, Vector]) -> list[str]:
        context = self.context
        edits = [Edit(syntax.span(a.node), v.at(self.k)) for a, v in vectors.items()]
        for statement in run.each:
            if statement in self.carried.values():
                edits += self._assigned(statement)
        done = [e.span for e in edits]
        for statement in run.each:
            for n in syntax.of_type(statement, "identifier"):
                if any(s.holds(syntax.span(n)) for s in done):
                    continue
                stride = run.known[text(n)].stride if text(n) in run.known else None
                if text(n) in self.carried:
                    edits.append(Edit(syntax.span(n), f"{text(n)}[{self.k}]"))
                elif stride:
                    more = self.k if stride == 1 else f"{stride} * {self.k}"
                    code = f"{text(n)} + {more}"
                    edits.append(Edit(syntax.span(n), f"({code})" if tight(n) else code))
        edits += [Edit(layout.line_of(context, syntax.span(s)), "") for s in run.first]
        start = layout.start_with_pragma(context, run.each[0])
        span = Span(start, self._end(run))
        within = [Edit(Span(max(start, e.span.start), min(span.end, e.span.end)), e.text) for e in edits]
        code = context.edited(span, within)
        return layout.dedented(code, len(context.indent(start)))

    def _assigned(self, declaration: Node) -> Iterator[Edit]:
        """`T a = x, b = y;` as `a[k] = x; b[k] = y;`."""
        declarators = declaration.children_by_field_name("declarator")
        if declarators[0].type == "identifier":
            yield Edit(layout.line_of(self.context, syntax.span(declaration)), "")
            return
        start = declaration.start_byte
        for n, declarator in enumerate(declarators):
            name = syntax.field(declarator, "declarator")
            yield Edit(Span(start, name.end_byte), f"{'; ' if n else ''}{text(name)}[{self.k}]")
            start = declarator.end_byte


def _hint(accesses: list[Access], kind: str) -> str:
    return next((a.hint for a in accesses if a.kind == kind), "")
