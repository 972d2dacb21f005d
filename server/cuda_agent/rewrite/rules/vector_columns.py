"""# 6 · vector-columns: a thread takes several neighbouring columns

A thread that walks down a column of a matrix moves one element a row: a warp reaches 128 bytes of each row, and rows
that start in the middle of a sector cost one more. With two or four neighbouring columns a thread, each row is moved by
vector instructions, in pieces that are as many times longer.

Before:

    int x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x >= N) return;
    float scale = s[x];
    for (int i = 0; i < rows; i++)
        y[i * N + x] = scale * a[i * N + x];

After, where N is a constant that four divides (and a quarter of the blocks):

    int x = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (x >= N) return;
    float scale[4];
    __align__(16) float s4[4];
    *reinterpret_cast<float4 *>(s4) = *reinterpret_cast<const float4 *>(&s[x]);
    #pragma unroll
    for (int k = 0; k < 4; k++)
        scale[k] = s4[k];
    for (int i = 0; i < rows; i++) {
        __align__(16) float y4[4], a4[4];
        *reinterpret_cast<float4 *>(a4) = *reinterpret_cast<const float4 *>(&a[i * N + x]);
        #pragma unroll
        for (int k = 0; k < 4; k++)
            y4[k] = scale[k] * a4[k];
        *reinterpret_cast<float4 *>(&y[i * N + x]) = *reinterpret_cast<float4 *>(y4);
    }

A kernel without a loop is taken likewise where its places are more than its own index, as those of a picture's row.
Where N is a parameter, what it was stands beside it, for sizes that are no multiple. A launch that may also start
another kernel keeps its blocks: those beyond the last column return at once.

Legal when the loop has as many iterations for every column, and what is written lies in the thread's own columns, at
multiples of the vector's width (proved); the pointers are aligned and do not overlap, and the launch has a thread for
every column (captured). Each column's own order of operations is kept: bit-exact.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, LaunchMap, Span
from cuda_agent.rewrite import launches, layout, syntax
from cuda_agent.rewrite.analysis import column_index
from cuda_agent.rewrite.analysis.column_index import ColumnIndex
from cuda_agent.rewrite.analysis.column_parts import ColumnParts, Loop, Parts, Run
from cuda_agent.rewrite.analysis.coverage import covered
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.analysis.effects import macros, touched
from cuda_agent.rewrite.analysis.elements import largest_element
from cuda_agent.rewrite.analysis.groups import Groups, Needs, divisible, ever, solve
from cuda_agent.rewrite.analysis.neighbours import Access, Body, tight
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.rules.restrict import check_disjoint
from cuda_agent.rewrite.rules.vector_inner import VectorInner
from cuda_agent.rewrite.rules.vectorize import Vectorize
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.rewrite.vectors import Vector, declarations, local_vector
from cuda_agent.source.edits import apply
from cuda_agent.source.tree import name_of

_BYTES = 16  # that one instruction moves at most
_LONG = 10_000  # bytes of a kernel that holds too much for several columns


class VectorColumns(Rule):
    name = "vector-columns"
    number = 6

    def sites(self, context: Context) -> Iterator[Site]:
        if not context.shapes:
            return
        if context.kernel.body.end - context.kernel.body.start > _LONG:
            return
        index = column_index.of(context)
        if index is None or (not _loops(context) and _elsewhere(context)):
            return
        for width in (4, 2):
            yield Site(self.name, syntax.span(index.declaration), {"columns": width}, {"index": index})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        index: ColumnIndex = site.nodes["index"]
        plan = _Plan(context, index, site.params["columns"])
        reached = _covered(context, plan)
        check_disjoint(context)
        for name, nbytes in plan.aligned.items():
            if not context.aligned(name, nbytes):
                raise RuleRefused(f"{name} is not known to be aligned to {nbytes} bytes")
        launch, mapping = _fewer_blocks(context, plan.width)
        widest = max(plan.aligned.values())
        return Rewrite(
            (*plan.edits(changed=bool(launch)), *launch),
            mapping,
            (
                Assumption(f"aligned to {widest} bytes at every launch: {', '.join(plan.aligned)}", "captured"),
                Assumption("the pointers of one launch never overlap", "captured"),
                reached,
            ),
        )


def _fewer_blocks(context: Context, width: int) -> tuple[tuple[Edit, ...], LaunchMap]:
    """A part of the blocks where every launch of them can be edited; else as many as before."""
    if "gridDim" in text(context.body):
        raise RuleRefused("the kernel asks for the number of blocks")
    try:
        return launches.fewer_blocks(context, width)
    except RuleRefused:
        if any(s.grid[0] * s.block[0] * width >= 2**31 for s in context.launched):
            raise
        return (), LaunchMap()


# ---------------------------------------------------------------- what the columns share, and what is moved together


def _loops(context: Context) -> bool:
    return next(syntax.of_type(context.body, *syntax.LOOPS), None) is not None


def _elsewhere(context: Context) -> bool:
    """Another rule takes several elements a thread where nothing is indexed by more than the thread's own index."""
    for rule in (Vectorize(), VectorInner()):
        with contextlib.suppress(RuleRefused):
            for site in rule.sites(context):
                rule.rewrite(context, site)
                return True
    return False


class _Plan:
    """The kernel in parts, with the vectors of each run. RuleRefused where a thread may not take several columns."""

    def __init__(self, context: Context, index: ColumnIndex, width: int) -> None:
        self.context, self.index, self.width = context, index, width
        self.names = Names(context)
        self.groups = Groups(self.names, width, divisible(context, width))
        self.body = Body(self.names, context.body, index.name)
        _check(context, index)
        roots, loose = touched(self.names, self.body)
        written = frozenset(r for r, w in roots.items() if w)
        if loose & written:
            raise RuleRefused(f"{min(loose & written)} is written at places that are not one element each")
        before = [s for s in syntax.statements(context.body) if s.start_byte < index.guard.start_byte]
        before = [s for s in before if s not in index.aliases]
        self.split = ColumnParts(self.groups, index.name, (before, index.rest), written)
        if index.name in self.split.varying:
            raise RuleRefused(f"{index.name} is changed")
        early = [r for r in self.split.runs if r.each[0].start_byte < index.guard.start_byte]
        if any(not _plain(s) for r in early for s in r.each):
            raise RuleRefused("each column has work of its own before the guard")
        if _loops(context) and not any(isinstance(p, Loop) for p in self.split.parts):
            raise RuleRefused("no loop has as many iterations for every column")
        self.k = layout.unused_index(context)
        self.needs: Needs = self._bound()
        self.roots = {a: self.names.roots(a.array) for a in self.body.accesses}
        self.keys = {a: self._key(a) for a in self.body.accesses}
        self.vectors: dict[Access, Vector] = {}
        self.aligned: dict[str, int] = {}
        self.taken: dict[int, set[str]] = {}  # names of vectors in each block
        self.defined: dict[str, list[Span]] = {}  # structures, with the blocks that have them
        self._own_columns(written)
        for run in self.split.runs:
            self._vectors(run)
        if not any(self._in_loop(a) for a in self.vectors) and (_loops(context) or not self.vectors):
            raise RuleRefused("no array is read or written at neighbouring places in the loop")
        self.carried = self._carried()
        chosen = solve(self.needs)
        if chosen is None or not ever(context, chosen, width):
            raise RuleRefused(f"no captured launch has extents that are multiples of {width}")
        if set(chosen) & {w.name for w in syntax.writes(context.body)}:
            raise RuleRefused("an extent is changed")
        self.chosen = chosen

    def _bound(self) -> Needs:
        bound = self.groups.value(self.index.bound, {})
        if not bound.same or bound.multiple is None:
            raise RuleRefused("the number of columns may not be a whole number of vectors")
        return (*bound.required, *bound.multiple)

    def _place(self, access: Access, run: Run) -> Needs | None:
        """What must hold for the access to be to neighbours from a multiple of the width on; None when they are not."""
        if self._cast(access.array):
            return None
        place = self.groups.value(access.array, run.known)
        if access.index is not None:
            place = self.groups.binary("+", place, self.groups.value(access.index, run.known))
        if place.stride != 1 or place.multiple is None:
            return None
        return (*place.required, *place.multiple)

    def _cast(self, pointer: Node, depth: int = 0) -> bool:
        """The pointer was cast on its way: its steps may be other elements'."""
        if any("*" in text(n) for n in syntax.of_type(pointer, "cast_expression", "type_descriptor")) or depth > 4:
            return True
        values = [
            w.write.value
            for n in syntax.of_type(pointer, "identifier")
            if text(n) not in self.names.params
            for w in self.names.writes.get(text(n), ())
        ]
        return any(v is not None and self._cast(v, depth + 1) for v in values)

    def _own_columns(self, written: frozenset[str]) -> None:
        """Columns of a thread never meet in what is written: all of it is reached at multiples of the width, so that
        each column has places of its own."""
        inside = {a: run for run in self.split.runs for a in self.body.accesses if run.holds(a.node)}
        for access in self.body.accesses:
            held = self.roots[access] & written
            if not held:
                continue
            needs = self._place(access, inside[access]) if access in inside else None
            if needs is None:
                raise RuleRefused(f"{text(access.node)} may be another column's")
            self.needs = (*self.needs, *needs)

    def _vectors(self, run: Run) -> None:
        made: dict[str, Vector] = {}
        mine = [a for a in self.body.accesses if run.holds(a.node)]
        stored = {r for a in mine if a.kind != "read" for r in self.roots[a]}
        for access in mine:
            held, element = self.roots[access], self.names.element(access.array)
            if len(held) != 1 or element is None or not held <= self.names.params.keys():
                continue
            if (needs := self._place(access, run)) is None:
                continue
            root = next(iter(held))
            key = self.keys[access]
            same_root = [a for a in mine if self.roots[a] == held]
            if root in stored and len({self.keys[a] for a in same_root}) > 1:
                continue
            together = [a for a in same_root if self.keys[a] == key]
            if not self._always([a for a in together if a.kind != "read" or root not in stored], run):
                continue
            nbytes = largest_element(self.context, root, element)
            if nbytes is None or nbytes * self.width > 2 * _BYTES:
                continue  # one by one
            if key not in made:
                made[key] = self._named(self._vector(access.name, element, nbytes), run)
            self.vectors[access] = made[key]
            self.aligned[root] = max(self.aligned.get(root, 0), made[key].bytes)
            self.needs = (*self.needs, *needs)

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

    @staticmethod
    def _key(access: Access) -> str:
        return squeeze(text(access.array)) + "@" + squeeze(text(access.index) if access.index is not None else "")

    def _always(self, accesses: list[Access], run: Run) -> bool:
        """Whether the run comes to one of the accesses, whatever its conditions are."""
        nodes = {a.node.id for a in accesses}
        return any(_comes_to(nodes, statement) for statement in run.each)

    def _in_loop(self, access: Access) -> bool:
        loops = [p for p in self.split.parts if isinstance(p, Loop)]
        return any(syntax.span(p.node).holds(syntax.span(access.node)) for p in loops)

    # ------------------------------------------------------------ variables that live from one run to another

    def _carried(self) -> dict[str, Node]:
        """Variables of a column that more than one run needs → their declaration. They become arrays."""
        found: dict[str, Node] = {}
        held: set[str] = set()
        uses: dict[str, list[Node]] = {}
        for n in syntax.of_type(self.context.body, "identifier"):
            uses.setdefault(text(n), []).append(n)
        count = Counter(n for d in syntax.of_type(self.context.body, "declaration") for n in syntax.declared(d))
        for run in self.split.runs:
            for declaration in (s for s in run.each if s.type == "declaration"):
                block = declaration.parent
                assert block is not None
                for name in syntax.declared(declaration):
                    held.add(name)
                    later = (n for n in uses.get(name, ()) if declaration.start_byte < n.start_byte < block.end_byte)
                    if any(not run.holds(n) for n in later):
                        found[name] = declaration
        for declaration in list(found.values()):
            found |= dict.fromkeys(syntax.declared(declaration), declaration)
        for name, declaration in found.items():
            if count[name] > 1:
                raise RuleRefused(f"{name} is declared more than once")
            self._check_plain(declaration)
        for run in self.split.runs:
            for s in run.each:
                for write in syntax.writes(s):
                    name_ = write.name if write.op != "init" else None
                    if name_ is not None and name_ not in held and not self._nested(name_, s):
                        raise RuleRefused(f"{name_} is one for all columns, and each would change it")
        return found

    @staticmethod
    def _nested(name: str, statement: Node) -> bool:
        return any(name in syntax.declared(n) for n in syntax.of_type(statement, "declaration"))

    def _check_plain(self, declaration: Node) -> None:
        kind = text(syntax.field(declaration, "type"))
        declarators = declaration.children_by_field_name("declarator")
        values = [d.type == "init_declarator" for d in declarators]
        plain = all(d.type == "identifier" or syntax.field(d, "declarator").type == "identifier" for d in declarators)
        equals = all(b"=" in (d.text or b"") for d, v in zip(declarators, values, strict=True) if v)
        if kind == "auto" or not plain or not equals or len(set(values)) != 1 or "static" in text(declaration).split():
            raise RuleRefused(f"`{text(declaration)}` cannot become an array")

    # ------------------------------------------------------------ the edits

    def edits(self, *, changed: bool) -> tuple[Edit, ...]:
        inner = [self._opened(), *self._edits(self.split.parts)]
        if not self.chosen:
            return tuple(inner)
        start = min(e.span.start for e in inner)
        end = max(syntax.statements(self.context.body)[-1].end_byte, *(e.span.end for e in inner))
        return (self._both(Span(start, end), inner, changed=changed),)

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

    def _applied(self, span: Span, edits: list[Edit]) -> str:
        moved = [Edit(Span(e.span.start - span.start, e.span.end - span.start), e.text) for e in edits]
        return apply(self.context.slice(span), moved)

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
        stored = next((a for a in accesses if a.kind == "write" and self._always([a], run)), None)
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
        code = self._applied(span, within)
        return _dedented(code, len(context.indent(start)))

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

    def _both(self, span: Span, inner: list[Edit], *, changed: bool) -> Edit:
        """The new text where all extents are multiples of the width; else what it was."""
        context, eol, step = self.context, self.context.eol, layout.unit(self.context)
        data = context.module.document.data
        first = data.rfind(b"\n", 0, span.start) + 1
        span = Span(first + len(context.indent(span.start)), span.end)
        indent = context.indent(span.start)
        depth = len(indent)
        vectors = _dedented(self._applied(span, inner), depth)
        if not changed:
            scalar = _dedented(context.slice(span), depth)
        else:
            scalar = self._grid_stride(span, depth)
        condition = " && ".join(f"{name} % {self.width} == 0" for name in self.chosen)
        lines = [
            f"if ({condition}) {{",
            *(step + line if line else "" for line in vectors),
            "} else {",
            *(step + line if line else "" for line in scalar),
            "}",
        ]
        return Edit(span, (eol + indent).join(lines).replace(indent + eol, eol))

    def _grid_stride(self, span: Span, depth: int) -> list[str]:
        """What it was, for all columns by the fewer threads."""
        context, index = self.context, self.index
        kind = context.slice(Span(index.declaration.start_byte, index.value.start_byte)).rstrip().removesuffix("=")
        kind = re.sub(r"\bconst\b\s*", "", kind).strip()
        own = {n for s in syntax.statements(context.body) if s.start_byte >= span.start for n in syntax.declared(s)}
        if own & (syntax.identifiers(index.value) | syntax.identifiers(index.bound)):
            raise RuleRefused("the bound is computed after the index")
        if any(w.name == index.name for w in syntax.writes(context.body) if w.op != "init"):
            raise RuleRefused(f"{index.name} is changed")
        name, bound = index.name, text(index.bound)
        head = f"for ({kind} = {text(index.value)}; {name} < {bound}; {name} += gridDim.x * {index.width})"
        gone = [layout.line_of(context, syntax.span(index.declaration))]
        edits = []
        alone = len(syntax.operands(syntax.field(index.guard, "condition"), "||" if index.returns else "&&")) == 1
        consequence = syntax.field(index.guard, "consequence")
        if index.returns and alone:
            gone.append(layout.line_of(context, syntax.span(index.guard)))
        elif index.returns:
            edits.append(Edit(syntax.span(consequence), "continue;"))
        elif alone and index.declaration.next_named_sibling == index.guard and span.start >= gone[0].start:
            body = _dedented(context.slice(syntax.span(consequence)), len(context.indent(index.guard.start_byte)))
            return (
                [f"{head} {body[0]}", *body[1:]]
                if body[0] == "{"
                else [head, *(layout.unit(context) + b for b in body)]
            )
        edits += [Edit(Span(max(s.start, span.start), s.end), "") for s in gone]
        lines = _dedented(self._applied(span, edits), depth)
        lines[0] = lines[0].strip()
        step = layout.unit(context)
        return [f"{head} {{", *(step + line if line else "" for line in lines), "}"]


def _dedented(code: str, depth: int) -> list[str]:
    """Lines without the indentation that the first one had."""
    first, *rest = code.splitlines() or [""]
    lines = [first, *(line[depth:] if not line[:depth].strip() else line for line in rest)]
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.rstrip() for line in lines]


def _comes_to(nodes: set[int], within: Node) -> bool:
    """Whether who runs `within` comes to one of these nodes."""
    if within.id in nodes:
        return True
    if within.type in ("if_statement", "conditional_expression"):
        first, *branches = (within.child_by_field_name(f) for f in ("condition", "consequence", "alternative"))
        both = all(b is not None and _comes_to(nodes, b) for b in branches)
        return both or (first is not None and _comes_to(nodes, first))
    if within.type == "binary_expression" and text(syntax.field(within, "operator")) in ("&&", "||"):
        return _comes_to(nodes, syntax.field(within, "left"))
    if within.type in ("switch_statement", *syntax.LOOPS):
        return False
    return any(_comes_to(nodes, n) for n in within.named_children)


def _hint(accesses: list[Access], kind: str) -> str:
    return next((a.hint for a in accesses if a.kind == kind), "")


def _plain(statement: Node) -> bool:
    """It reads no memory and calls nothing: it may stand before the guard for every column."""
    return (
        next(syntax.of_type(statement, "subscript_expression", "pointer_expression", "call_expression"), None) is None
    )


def _check(context: Context, index: ColumnIndex) -> None:
    if context.kernel.shared or re.search(r"\basm\b|\bvolatile\b", text(context.body)):
        raise RuleRefused("the kernel has shared memory, assembly or volatile variables")
    if next(syntax.of_type(context.body, "lambda_expression"), None):
        raise RuleRefused("the kernel has a lambda")
    if syntax.COOPERATION.search(text(context.body)):
        raise RuleRefused("threads of a block work together: they must all stay in step")
    if any(next(syntax.of_type(n, "return_statement", "goto_statement"), None) for n in index.rest):
        raise RuleRefused("the guarded part may return early")
    words = set(re.findall(r"[A-Za-z_]\w*", context.slice(syntax.span(context.body))))
    own = syntax.declared(context.body) | {"threadIdx", "blockIdx"}
    for name, parameters, code in macros(context):
        hidden = own & set(re.findall(r"\w+", code)) - set(re.findall(r"\w+", parameters))
        if name in words and (hidden or re.search(r"\[|(?<![=!<>])=(?!=)|\+\+|--", code)):
            raise RuleRefused(f"the macro {name} may hide what the kernel does")


def _covered(context: Context, plan: _Plan) -> Assumption:
    """That the threads of a launch reach every column."""
    index = plan.index
    if index.width != "blockDim.x":
        width = int(index.width) if index.width.isdigit() else plan.groups.constant(index.width, index.value)
        if any(s.block[0] != width for s in context.launched):
            raise RuleRefused(f"{index.width} is not known to be the block's width")
    bound = text(index.bound)
    number = plan.groups.constant(bound, index.bound) if bound.isidentifier() else None
    if number is None:
        return covered(context, bound, "x")
    if any(s.grid[0] * s.block[0] < number for s in context.launched):
        raise RuleRefused(f"a captured launch has fewer threads in x than {bound}: the rest is left alone")
    return Assumption(f"every launch has a thread for each x below {bound}", "captured")
