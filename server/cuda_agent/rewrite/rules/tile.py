"""# 5 · tile: transpose through shared memory

A transpose reads rows and writes columns: one of the two touches a sector for every lane. A tile of shared memory lets
a block read rows and write rows; one column more than the tile needs keeps its columns in different banks.

Before:

    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height)
        out[x * height + y] = in[y * width + x];

After:

    __shared__ float tile[32][33];
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height)
        tile[threadIdx.y][threadIdx.x] = in[y * width + x];
    __syncthreads();
    int x_out = blockIdx.x * blockDim.x + threadIdx.y;
    int y_out = blockIdx.y * blockDim.y + threadIdx.x;
    if (x_out < width && y_out < height)
        out[x_out * height + y_out] = tile[threadIdx.x][threadIdx.y];

Legal when every thread stores one element (or a column of them, in a loop) and does nothing else (proved), and blocks
cover square tiles (captured). The barrier is outside the guards. Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import launches, mirror, syntax
from cuda_agent.rewrite.analysis import access, affine, aliasing, trips
from cuda_agent.rewrite.analysis.access import Access
from cuda_agent.rewrite.analysis.induction import Induction
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.layout import removed
from cuda_agent.rewrite.mirror import X, Y
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.style import negated
from cuda_agent.rewrite.syntax import text

_SHARED = 48 * 1024


@dataclass
class Shape:
    """The kernel as `declarations; guards; [for] store`. `guards` are conditions under which the store is done."""

    before: list[Node] = field(default_factory=list)  # declarations that stay where they are
    inside: list[Node] = field(default_factory=list)  # declarations and comments behind a guard
    returns: list[Node] = field(default_factory=list)  # conditions of `if (…) return;`
    guards: list[Node] = field(default_factory=list)  # conditions of `if (…)`
    loop: Induction | None = None
    first: Node | None = None  # where the guarded part begins
    store: Node | None = None  # the assignment


class Tile(Rule):
    name = "tile"
    number = 5

    def sites(self, context: Context) -> Iterator[Site]:
        code = text(context.body)
        if X not in code or Y not in code or syntax.COOPERATION.search(code):
            return
        shape = _shape(context)
        moved = _strided(context, shape) if shape is not None and shape.store is not None else None
        if shape is None or moved is None:
            return
        size = _tile(context, shape)
        yield Site(
            self.name, syntax.span(shape.store or context.body), {"size": size}, {"shape": shape, "moved": moved}
        )

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        shape: Shape = site.nodes["shape"]
        moved: Access = site.nodes["moved"]
        launches.check_one_block(context)
        assert shape.store is not None
        size: int = site.params["size"]
        if moved.kind == "load" and moved.array in _stored(context):
            raise RuleRefused(f"{moved.array} is also stored: another block may read what this one has stored")
        if moved.kind == "load" and aliasing.conflicts(context, context.workload, {moved.array}, _stored(context)):
            raise RuleRefused(f"{moved.array} overlaps what is stored in a captured launch")
        if (moved.bytes or 8) * size * (size + 1) > _SHARED:
            raise RuleRefused(f"a tile of {size} × {size} does not fit in shared memory")
        writer = _Writer(context, shape, moved)
        height = context.numbers[0]["blockDim.y"]
        rows = f" and loop over {size} rows" if shape.loop is not None else ""
        return Rewrite(
            writer.edits(size),
            assumptions=(
                Assumption("every thread only stores its own elements", "proved"),
                Assumption(f"blocks have {size} × {height} threads{rows}", "captured"),
            ),
        )


# ---------------------------------------------------------------- what is there


def _shape(context: Context) -> Shape | None:
    shape = Shape()
    pending = list(context.body.named_children)
    while pending:
        node = pending.pop(0)
        last = not any(n.type != "comment" for n in pending)
        if node.type in ("declaration", "comment", "using_declaration", "type_definition"):
            (shape.inside if shape.first is not None else shape.before).append(node)
        elif node.type == "if_statement" and node.child_by_field_name("alternative") is None:
            condition = syntax.field(syntax.field(node, "condition"), "value")
            consequence = syntax.field(node, "consequence")
            leaves = [s.type for s in syntax.statements(consequence)] == ["return_statement"]
            if not (leaves or last) or shape.loop is not None:
                return None
            shape.first = shape.first or node
            (shape.returns if leaves else shape.guards).append(condition)
            if not leaves:
                pending = _inner(consequence)
        elif node.type == "for_statement" and last and shape.loop is None:
            shape.loop = affine.induction(context, node)
            if shape.loop is None:
                return None
            shape.first = shape.first or node
            pending = _inner(syntax.field(node, "body"))
            if len(pending) != 1:
                return None
        elif node.type == "compound_statement" and last:
            pending = _inner(node)
        elif node.type == "expression_statement" and last and node.named_child_count == 1:
            store = node.named_children[0]
            operator = store.child_by_field_name("operator")
            if store.type != "assignment_expression" or operator is None or text(operator) != "=":
                return None
            shape.first, shape.store = shape.first or node, store
        else:
            return None
    plain = all(not syntax.memory_writes(n) for n in (*shape.before, *shape.inside))
    return shape if plain and shape.store is not None else None


def _inner(node: Node) -> list[Node]:
    return list(node.named_children) if node.type == "compound_statement" else [node]


def _strided(context: Context, shape: Shape) -> Access | None:
    """The access that walks a column, when the others walk rows: the store or one load."""
    accesses = access.of(context)
    if accesses.unknown or any(a.kind == "atomic" for a in accesses):
        return None
    assert shape.store is not None
    columns, rows = [], []
    for one in accesses.globals:
        dx, dy = one.stride(X), one.stride(Y)
        if dx is None or dy is None:
            return None
        if dx.value == 1:
            rows.append(one)
        elif dy.value == 1 and dx.value != 0:
            columns.append(one)
    stores = [a for a in accesses.globals if a.kind == "store"]
    if len(stores) != 1 or len({text(a.node) for a in columns}) != 1 or not rows:
        return None
    moved = columns[0]
    if stores[0] is not moved and stores[0] not in rows:
        return None
    return moved if len(columns) == 1 else None


def _stored(context: Context) -> set[str]:
    return {a.array for a in access.of(context) if a.kind == "store"}


def _tile(context: Context, shape: Shape) -> int:
    """Rows and columns of the tile that a block covers. RuleRefused when it is not a known square."""
    blocks = {one.block for one in context.launched}
    if len(blocks) != 1:
        raise RuleRefused("the block's size is not known, or differs between launches")
    width, height, depth = blocks.pop()
    rows = height
    if shape.loop is not None:
        count = trips.of_induction(context, shape.loop)
        counts = {trips.evaluate(count, n) for n in context.launched_numbers} if count is not None else set()
        number = counts.pop() if len(counts) == 1 else None
        if shape.loop.start.value != 0 or number is None or (count is not None and count.names & context.varied):
            raise RuleRefused("how many rows a thread moves is not known")
        if trips.evaluate(shape.loop.step, context.numbers[0]) != height:
            raise RuleRefused("the loop over rows does not step by the block's height")
        rows = height * number
    if depth != 1 or width != rows or width < 8:
        raise RuleRefused(f"a block covers {width} × {rows} elements, not a square tile")
    return width


# ---------------------------------------------------------------- the new text


class _Writer:
    """Writes both phases. In the phase of the moved access a thread stands at the mirrored place of the tile: its x
    is the other's y."""

    def __init__(self, context: Context, shape: Shape, moved: Access) -> None:
        self.context, self.shape, self.moved = context, shape, moved
        conditions = [*shape.returns, *shape.guards]
        used = [moved.node, *conditions]
        if any(affine.of(context, c).names & _stored(context) for c in conditions):
            raise RuleRefused("a guard reads what the kernel stores: it cannot be asked again after the barrier")
        loop = {shape.loop.variable} if shape.loop is not None else set()
        self.mirrored = mirror.variables(context, used, loop)
        if shape.loop is not None:
            thread = {X, Y}
            if any(affine.of(context, c).names & thread for c in conditions):
                raise RuleRefused("a guard inside a tile that a thread walks in several steps")
            if shape.inside:
                raise RuleRefused("declarations inside the loop over rows")
        self.alone = self._alone()
        self.renamed = {v.symbol: self._clone(v) for v in self.mirrored}

    def edits(self, size: int) -> tuple[Edit, ...]:
        c, shape, moved = self.context, self.shape, self.moved
        assert shape.first is not None
        assert shape.store is not None
        indent = c.indent(shape.first.start_byte)
        step = indent[len(c.indent(c.kernel.body.start)) :] or "    "
        tile = c.unused_here("tile")
        loop = shape.loop
        row = f"{Y} + {loop.variable.name}" if loop is not None else Y
        written, read = f"{tile}[{row}][{X}]", f"{tile}[{X}][{row}]"
        left, right = syntax.field(shape.store, "left"), syntax.field(shape.store, "right")
        if moved.kind == "store":
            first = f"{written} = {c.slice(syntax.span(right))};"
            second = f"{self._moved_text()} = {read};"
        else:
            first = f"{written} = {self._moved_text()};"
            value = mirror.replaced(c, right, [(moved.node, read)])
            second = f"{c.slice(syntax.span(left))} = {value};"
        mirrored_first = moved.kind == "load"
        clones = [mirror.declaration(c, v, self.renamed) for v in self.mirrored]
        halves = [
            self._phase(first, indent, step, mirrored_first, clones if mirrored_first else []),
            self._phase(second, indent, step, not mirrored_first, [] if mirrored_first else clones),
        ]
        body = [*halves[0], f"{indent}__syncthreads();", *halves[1]]
        declaration = f"__shared__ {moved.element} {tile}[{size}][{size + 1}];"
        top = next(iter(syntax.statements(c.body)))
        edits = [Edit(Span(top.start_byte, top.start_byte), f"{declaration}{c.eol}{indent}")]
        end = _last(c.body).end_byte
        edits.append(Edit(Span(shape.first.start_byte, end), c.eol.join(body).lstrip()))
        for declaration_node in self._dropped():
            edits.append(Edit(removed(c, declaration_node), ""))
        if top == shape.first:
            edits = [Edit(Span(top.start_byte, end), f"{declaration}{c.eol}{indent}{edits[1].text}")]
        return tuple(edits)

    def _phase(self, statement: str, indent: str, step: str, mirrored: bool, clones: list[str]) -> list[str]:
        shape, lines = self.shape, [indent + line for line in clones]
        condition = self._condition(mirrored)
        kept = [] if mirrored else [n for n in shape.inside if n not in self._dropped()]
        deeper = indent + step if condition or shape.loop is not None else indent
        if condition:
            lines.append(f"{indent}if ({condition}){' {' if kept else ''}")
        if shape.loop is not None:
            head = self.context.slice(
                Span(shape.loop.loop.start_byte, syntax.field(shape.loop.loop, "body").start_byte)
            ).rstrip()
            lines.append(f"{indent}{step if condition else ''}{head}")
            deeper += step if condition else ""
        lines += [deeper + self.context.slice(syntax.span(n)) for n in kept]
        lines.append(deeper + statement)
        if condition and kept:
            lines.append(f"{indent}}}")
        return lines

    def _condition(self, mirrored: bool) -> str:
        put = self._mirror if mirrored else lambda n: self.context.slice(syntax.span(n))
        parts = [negated(n, put) for n in self.shape.returns] + [put(n) for n in self.shape.guards]
        if len(parts) > 1:
            parts = [f"({p})" if "||" in p else p for p in parts]
        return " && ".join(parts)

    # ------------------------------------------------------------ mirrored names

    def _dropped(self) -> list[Node]:
        """Declarations that only the moved access uses: they move with it."""
        return list(self.alone.values())

    def _alone(self) -> dict[str, Node]:
        """The mirrored variables that nothing but the moved access uses, with their declarations."""
        found: dict[str, Node] = {}
        moving = [syntax.span(self.moved.node)]
        for v in reversed(self.mirrored):  # a variable is used below its declaration only
            declaration = v.writes[0].node.parent
            if declaration is None or len(declaration.children_by_field_name("declarator")) != 1:
                continue
            uses = [syntax.span(u) for u in v.uses if not syntax.span(declaration).holds(syntax.span(u))]
            if all(any(m.holds(u) for m in moving) for u in uses):
                found[v.symbol] = declaration
                moving.append(syntax.span(declaration))
        return found

    def _clone(self, v: Variable) -> str:
        if v.symbol in self.alone:
            return v.name
        return mirror.clone(self.context, v, "out" if self.moved.kind == "store" else "in")

    def _mirror(self, node: Node) -> str:
        return mirror.text_of(self.context, node, self.renamed)

    def _moved_text(self) -> str:
        """The moved access in its mirrored place. The rows that a loop walks become columns: i · (one row) is added."""
        node, loop = self.moved.node, self.shape.loop
        if loop is None:
            return self._mirror(node)
        if node.type != "subscript_expression":
            raise RuleRefused("the strided access is not a subscript")
        index = self.moved.index
        dx, dy, di = (index.stride(s) for s in (X, Y, loop.symbol))
        if dx is None or dy is None or di != dy:
            raise RuleRefused("the loop over rows does not continue the threads' rows")
        _, at, _ = next(syntax.subscripts(node))
        rest = self._without(at, loop.variable.name)
        array = self.context.slice(Span(node.start_byte, syntax.field(node, "argument").end_byte))
        return f"{array}[{rest or '0'} + {loop.variable.name} * {_spelled(dx)}]"

    def _without(self, node: Node, name: str) -> str | None:
        """The mirrored text with `name` = 0; None when nothing is left."""
        if not syntax.uses(node, name):
            return self._mirror(node)
        if node.type == "identifier":
            return None
        if node.type == "parenthesized_expression" and node.named_child_count == 1:
            inner = self._without(node.named_children[0], name)
            return inner if inner is None or re.fullmatch(r"\w+", inner) else f"({inner})"
        operator = node.child_by_field_name("operator")
        if node.type == "binary_expression" and operator is not None and text(operator) in "+*":
            left, right = (self._without(syntax.field(node, f), name) for f in ("left", "right"))
            if text(operator) == "*":
                return None if left is None or right is None else f"{left} * {right}"
            return left if right is None else right if left is None else f"{left} + {right}"
        raise RuleRefused(f"{name} is not simply added to the index")


def _spelled(poly: Poly) -> str:
    """A polynomial over visible names as C."""
    if any(a.op or not re.fullmatch(r"[\w.]+", a.name) for a in poly.atoms):
        raise RuleRefused("the distance between two rows has no simple spelling")
    code = str(poly).replace("*", " * ")
    return code if len(poly.terms) == 1 else f"({code})"


def _last(body: Node) -> Node:
    return syntax.statements(body)[-1]
