"""The text of a product that blocks compute in tiles: both operands go through shared memory, and a thread keeps the
sums of several rows and columns in registers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Edit
from cuda_agent.rewrite import layout, syntax
from cuda_agent.rewrite.analysis import affine, sizes
from cuda_agent.rewrite.analysis.digits import named
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.analysis.products import Axis, Operand, Product, mentioned
from cuda_agent.rewrite.guarded import shifted
from cuda_agent.rewrite.merged import in_parens
from cuda_agent.rewrite.mirror import replaced
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.style import negated
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import operator, strip_parens, walk

SIDE = 16  # threads of a block along each axis
DEPTH = 16  # products of a tile
PAD = 4  # columns more where a tile is filled along its columns: four banks further on, and still whole vectors
# Of a relation by which an output needs no products: the sign of left − right where it holds.
_SIGNS = {">": 1, ">=": 1, "<": -1, "<=": -1}
_ZEROS = {"float": "0.0f", "double": "0.0"}


class Tiles:
    """The kernel's body for blocks of SIDE × SIDE threads, of which each computes `rows` × `columns` outputs."""

    def __init__(self, context: Context, product: Product, rows: int, columns: int) -> None:
        self.context, self.product, self.rows, self.columns = context, product, rows, columns
        self.height, self.width = rows * SIDE, columns * SIDE
        self.unit, self.taken = layout.unit(context), layout.taken_names(context)
        p = product
        self.y, self.x, self.k = p.rows.variable.name, p.columns.variable.name, p.loop.variable.name
        self.a, self.b = self._name(f"{_base(p.row)}_tile"), self._name(f"{_base(p.column)}_tile")
        self.y0, self.x0, self.k0 = (self._name(_numbered(n, "0")) for n in (self.y, self.x, self.k))
        self.last = self._name(f"last_{self.y}")
        self.thread, self.row, self.col, self.tile = map(self._name, ("thread", "ty", "tx", "tile"))
        both = p.columns.digit is not None
        self.tiles_y = self._name(f"tiles_{self.y}" if both else "tiles")
        self.tiles_x = self._name(f"tiles_{self.x}")
        self.sums = self._name(f"{p.sum.name}s")
        self.r, self.c = self._name("r", "rr"), self._name("c", "s")
        self.e, self.step = self._name("e", "at"), self._name("k", "kk")
        self._check_names()

    def _name(self, wanted: str, *others: str) -> str:
        numbered = (f"{wanted}_{i}" for i in range(2, 100))
        found = next(n for n in (wanted, *others, *numbered) if n not in self.taken)
        self.taken.add(found)
        return found

    def _check_names(self) -> None:
        """RuleRefused where a loop's head names what is not there any more in front of the tiles."""
        p, context = self.product, self.context
        there = {v.symbol for v in (p.rows.variable, p.loop.variable, *(d.variable for d in p.batches))}
        kept = {n.id for n in (*p.top, *p.shared)}
        heads = [n for n in (p.loop.condition, syntax.field(p.loop.loop, "initializer")) if n is not None]
        if p.columns.loop is not None and p.columns.loop.condition is not None:
            heads.append(p.columns.loop.condition)
            there.add(p.columns.variable.symbol)
        for n in (n for head in heads for n in walk(head, "identifier")):
            v = affine.variable(context, n)
            statement = v.declarator if v is not None else None
            while statement is not None and statement.type != "declaration":
                statement = statement.parent
            known = v is None or v.param is not None or v.symbol in there
            if v is not None and not known and (statement is None or statement.id not in kept):
                raise RuleRefused(f"{v.name} is not known before the rows and columns are")

    # ------------------------------------------------------------ the whole

    def edit(self) -> Edit:
        context = self.context
        first = syntax.statements(context.body)[0]
        indent = context.indent(first.start_byte)
        lines = [line for n in _leading(first) for line in self._shifted(n)]
        lines += [f"__shared__ {_element(o)} {name}[{DEPTH}][{self._length(o, n)}];" for o, name, n in self._operands()]
        work = self._blocks()
        used = set(re.findall(r"\w+", "\n".join(work)))
        for node in self.product.top:
            if syntax.declared(node) & used:
                lines += self._shifted(node) if node == first else self._copied(node)
        out = [indent + line if line else "" for line in (*lines, *work)]
        end = context.indent(context.kernel.body.end - 1)
        return Edit(context.kernel.body, context.eol.join(["{", *out, f"{end}}}"]))

    def _operands(self) -> list[tuple[Operand, str, int]]:
        return [(self.product.row, self.a, self.height), (self.product.column, self.b, self.width)]

    def _length(self, operand: Operand, span: int) -> int:
        return span + PAD if self._by_loop(operand) else span

    def _by_loop(self, operand: Operand) -> bool:
        """Neighbouring products, not neighbouring rows or columns, are neighbours in memory."""
        step = operand.index.stride(self.product.loop.symbol)
        return step is not None and step.value == 1

    def _blocks(self) -> list[str]:
        """The loop over the tiles of a block."""
        p, u = self.product, self.unit
        both = p.columns.digit is not None
        counts = [self.tiles_x, self.tiles_y] if both else [self.tiles_y]
        known = [f"{self.tiles_y} = {_tiles(p.rows, self.height)}"]
        known = [f"{self.tiles_x} = {_tiles(p.columns, self.width)}", *known] if both else known
        whole = [*counts, *(_factor(_radix(d.view.radix)) for d in p.batches)]
        place = f"{self.tile} / {counts[0]} % {counts[1]}" if both else f"{self.tile} % {counts[0]}"
        place = place if p.batches else place.rpartition(" % ")[0]
        inside = [f"const int {self.x0} = {self.tile} % {counts[0]} * {self.width};"] if both else []
        inside.append(f"const int {self.y0} = {place} * {self.height};")
        over = " * ".join(counts)
        rest = f"{self.tile} / ({over})" if both else f"{self.tile} / {over}"
        for at, digit in enumerate(p.batches):
            radix = _factor(_radix(digit.view.radix))
            value = rest if at == len(p.batches) - 1 else f"{rest} % {radix}"
            inside.append(f"{_kind(digit.variable.type)} {digit.variable.name} = {value};")
            rest = f"{rest} / {radix}"
        for node in p.shared:
            inside += self._copied(node)
        if p.triangular:
            extent = _factor(self._extent(p.rows))
            inside.append(
                f"const int {self.last} = {self.y0} + {self.height} < {extent} ? "
                f"{self.y0} + {self.height - 1} : {extent} - 1;"
            )
        if both:
            inside += self._product()
        else:
            assert p.columns.loop is not None
            inside += [
                f"for ({_kind(p.columns.variable.type)} {self.x0} = 0; {self._where(p.columns, self.x0)}; "
                f"{self.x0} += {self.width}) {{",
                *(u + line for line in self._product()),
                "}",
            ]
        flat = not all(self._by_loop(o) for o in (p.row, p.column))
        return [
            *([f"const int {self.thread} = threadIdx.y * {SIDE} + threadIdx.x;"] if flat else []),
            f"const int {self.row} = threadIdx.y * {self.rows}, {self.col} = threadIdx.x;",
            f"const int {', '.join(known)};",
            f"for (int {self.tile} = blockIdx.x; {self.tile} < {' * '.join(whole)}; {self.tile} += gridDim.x) {{",
            *(u + line for line in inside),
            "}",
        ]

    # ------------------------------------------------------------ a tile

    def _product(self) -> list[str]:
        p, u = self.product, self.unit
        first, _ = _start(p)
        head = f"for ({_kind(p.loop.variable.type)} {self.k0} = {self.context.slice(syntax.span(first))}; "
        loop = [
            f"{head}{self._condition(self.k0, self.last)}; {self.k0} += {DEPTH}) {{",
            *(u + line for o, name, span in self._operands() for line in self._fill(o, name, span)),
            f"{u}__syncthreads();",
            *(u + line for line in self._add()),
            f"{u}__syncthreads();",
            "}",
        ]
        sum_at = p.sum.writes[0].node.parent
        comments = [*(_leading(sum_at) if sum_at is not None else ()), *_leading(p.loop.loop)]
        if wanted := self._wanted():
            loop = [f"if ({' && '.join(wanted)})", *(u + line for line in loop)]
        return [
            f"{_kind(p.sum.type)} {self.sums}[{self.rows}][{self.columns}] = {{0}};",
            *(line for n in comments for line in self._shifted(n)),
            *loop,
            *self._outputs(),
        ]

    def _fill(self, operand: Operand, name: str, span: int) -> list[str]:
        """The block brings DEPTH products of its rows or columns, neighbours in memory by neighbouring threads."""
        p, u, e = self.product, self.unit, self.e
        axis, first = (p.rows, self.y0) if operand is p.row else (p.columns, self.x0)
        if self._by_loop(operand):
            count, step, place, product = span, SIDE, f"threadIdx.y + {e}", "threadIdx.x"
        else:
            count, step = DEPTH, SIDE * SIDE // span
            place, product = f"{self.thread} % {span}", f"{self.thread} / {span} + {e}"
        kinds = [_kind(axis.variable.type), _kind(p.loop.variable.type)]
        values = [f"{axis.variable.name} = {first} + {place}", f"{self.k} = {self.k0} + {product}"]
        if kinds[0] == kinds[1]:
            declared = [f"{kinds[0]} {', '.join(values)};"]
        else:
            declared = [f"{kind} {value};" for kind, value in zip(kinds, values, strict=True)]
        ends = self._condition(self.k, self.y if operand is p.row else self.last)
        load = self.context.slice(syntax.span(operand.load.node))
        inside = f"{self._where(axis, axis.variable.name)} && {ends}"
        return [
            "#pragma unroll",
            f"for (int {e} = 0; {e} < {count}; {e} += {step}) {{",
            *(u + line for line in declared),
            *(u + line for node in operand.closure for line in self._copied(node)),
            f"{u}{name}[{product}][{place}] = {inside} ? {load} : {_zero(operand)};",
            "}",
        ]

    def _add(self) -> list[str]:
        """The products of a tile. Rows of different lengths are asked for theirs where not all of them have all."""
        p, r, c, u = self.product, self.r, self.c, self.unit
        assert p.add.value is not None
        pieces = [(n, f"{self.a}[{self.step}][{self.row} + {r}]") for n in p.row.uses]
        pieces += [(n, f"{self.b}[{self.step}][{self.col} + {c} * {SIDE}]") for n in p.column.uses]
        add = f"{self.sums}[{r}][{c}] {p.add.op} {replaced(self.context, p.add.value, pieces)};"

        def steps(inner: list[str]) -> list[str]:
            return self._each(self.step, DEPTH, self._each(r, self.rows, self._each(c, self.columns, inner)))

        if not p.triangular:
            return steps([add])
        whole = self._condition(f"{self.k0} + {DEPTH - 1}", self.y0)
        asked = self._condition(f"{self.k0} + {self.step}", f"{self.y0} + {self.row} + {r}")
        return [
            f"if ({whole}) {{",
            *(u + line for line in steps([add])),
            "} else {  // the last products of some rows",
            *(u + line for line in steps([f"if ({asked})", u + add])),
            "}",
        ]

    def _wanted(self) -> list[str]:
        """Conditions without which no output of the tile needs its products. What is linear in the row and the column
        holds somewhere in the tile only if it holds in the corner where it is nearest to that."""
        p = self.product
        found = []
        for node in p.leaves:
            inner = strip_parens(node)
            sign = operator(inner) if inner.type == "binary_expression" else ""
            if sign not in _SIGNS or next(walk(inner, ("subscript_expression", "call_expression")), None):
                continue
            left, right = (self._value(syntax.field(inner, side)) for side in ("left", "right"))
            corner = self._corner((left - right) * _SIGNS[sign])
            if corner is not None:
                found.append(negated(inner, partial(self._put, values=corner)))
        return found

    def _corner(self, difference: Poly) -> dict[str, str] | None:
        """The row and the column of the tile where the difference is least. None when that is not known."""
        p, corner = self.product, dict[str, str]()
        known = {d.symbol for d in p.batches} | {q.name for q in self.context.kernel.params}
        places = ((p.rows.variable, self.y0, self.height), (p.columns.variable, self.x0, self.width))
        for v, first, span in places:
            step, difference = difference.split(v.symbol)
            if step is None or step.value is None:
                return None
            corner[v.symbol] = first if step.value >= 0 else f"{first} + {span - 1}"
        return corner if mentioned(difference) <= known else None

    def _value(self, node: Node) -> Poly:
        return named(affine.of(self.context, node), self.product.index, self.product.digits)

    def _outputs(self) -> list[str]:
        """What a thread does for each of its outputs, with the sum that is ready."""
        p = self.product
        first = p.sum.writes[0].value
        assert first is not None
        y, x = self._where(p.rows, self.y, outside=True), self._where(p.columns, self.x, outside=True)
        lines = [*self._place(), f"if ({y} || {x})", f"{self.unit}continue;"]
        apart = all(d.variable.name != p.thread.name for d in p.digits)
        if apart and any(syntax.uses(n, p.thread.name) for n in self._kept()):
            lines.append(f"{self._type(p.thread.declaration)} {p.thread.name} = {self._index()};")
        for node in self._kept():
            pieces = [(n, "continue;") for n in walk(node, "return_statement")]
            if syntax.span(node).holds(syntax.span(first)):
                lines += self._shifted(node, [*pieces, (first, f"{self.sums}[{self.r}][{self.c}]")])
            else:
                lines += self._copied(node, pieces)
        return self._grid(lines)

    def _kept(self) -> list[Node]:
        """The work for an output without the loop, and without the declarations that only the loop needed."""
        kept: list[Node] = []
        used: set[str] = set()
        for node in reversed([n for n in self.product.work if n != self.product.loop.loop]):
            moved = node in (*self.product.row.closure, *self.product.column.closure)
            if not moved or syntax.declared(node) & used:
                kept.insert(0, node)
                used |= syntax.identifiers(node)
        return kept

    # ------------------------------------------------------------ pieces

    def _place(self) -> list[str]:
        """The row and the column of an output."""
        p = self.product
        kinds = [_kind(p.rows.variable.type), _kind(p.columns.variable.type)]
        y = f"{self.y} = {self.y0} + {self.row} + {self.r}"
        x = f"{self.x} = {self.x0} + {self.col} + {self.c} * {SIDE}"
        return [f"{kinds[0]} {y}, {x};"] if kinds[0] == kinds[1] else [f"{kinds[0]} {y};", f"{kinds[1]} {x};"]

    def _index(self) -> str:
        """The thread's index before, of the row and the column, in as many bits."""
        parts = list(reversed(self.product.digits))
        kind = self._type(self.product.thread.declaration)
        wide = sizes.size_of(kind) == 8 and sizes.size_of(_kind(parts[0].variable.type)) != 8
        code = f"({kind}){parts[0].variable.name}" if wide else parts[0].variable.name
        for at, digit in enumerate(parts[1:]):
            code = f"{code if at == 0 else f'({code})'} * {_factor(_radix(digit.view.radix))} + {digit.variable.name}"
        return code

    def _grid(self, inner: Sequence[str]) -> list[str]:
        return self._each(self.r, self.rows, self._each(self.c, self.columns, inner))

    def _each(self, counter: str, count: int, inner: Sequence[str]) -> list[str]:
        """An unrolled loop; braces where the body is more than one statement."""
        alone = len(inner) == 1 or (len(inner) == 2 and inner[0].startswith("if ("))
        head = f"for (int {counter} = 0; {counter} < {count}; {counter}++)"
        body = [self.unit + line for line in inner]
        return ["#pragma unroll", head, *body] if alone else ["#pragma unroll", f"{head} {{", *body, "}"]

    def _extent(self, axis: Axis) -> str:
        return _radix(axis.extent)

    def _where(self, axis: Axis, place: str, outside: bool = False) -> str:
        """Whether a row or column is there, or whether it is not."""
        if axis.loop is None:
            return f"{place} {'>=' if outside else '<'} {_factor(self._extent(axis))}"
        assert axis.loop.condition is not None
        code = self._put(axis.loop.condition, {axis.variable.symbol: place})
        return code.replace("<", ">=", 1) if outside else code

    def _condition(self, product: str, row: str) -> str:
        """Whether a product of a row is there."""
        p = self.product
        assert p.loop.condition is not None
        return self._put(p.loop.condition, {p.loop.symbol: product, p.rows.variable.symbol: row})

    def _put(self, node: Node, values: dict[str, str]) -> str:
        pieces = []
        for n in walk(node, "identifier"):
            v = affine.variable(self.context, n)
            if v is not None and v.symbol in values:
                code = values[v.symbol]
                pieces.append((n, in_parens(n, code) if " " in code else code))
        return replaced(self.context, node, pieces)

    def _type(self, declaration: Node) -> str:
        return _kind(text(syntax.field(declaration, "type")))

    def _copied(self, node: Node, pieces: Iterable[tuple[Node, str]] = ()) -> list[str]:
        """A statement as it stands, with its comments."""
        lines = [line for n in _leading(node) for line in self._shifted(n)]
        own = self._shifted(node, pieces)
        after = node.next_named_sibling
        if after is not None and after.type == "comment" and after.start_point[0] == node.end_point[0]:
            own[-1] += f" {text(after)}"
        return [*lines, *own]

    def _shifted(self, node: Node, pieces: Iterable[tuple[Node, str]] = ()) -> list[str]:
        code = replaced(self.context, node, pieces)
        old = self.context.indent(node.start_byte)
        first, *rest = code.splitlines()
        return [first, *(shifted(line, old, "") for line in rest)]


def _leading(node: Node) -> list[Node]:
    """The comments on lines of their own in front of a statement."""
    found: list[Node] = []
    above = node.prev_named_sibling
    while above is not None and above.type == "comment":
        before = above.prev_named_sibling
        if before is not None and before.type != "comment" and before.end_point[0] == above.start_point[0]:
            break
        found.insert(0, above)
        above = before
    return found


def _start(product: Product) -> tuple[Node, Node]:
    """The loop's first value, and its declaration. RuleRefused when it has none of its own."""
    counted = syntax.field(product.loop.loop, "initializer")
    declarators = counted.children_by_field_name("declarator") if counted.type == "declaration" else []
    value = declarators[0].child_by_field_name("value") if len(declarators) == 1 else None
    if value is None:
        raise RuleRefused("the loop over the products does not declare its own counter")
    return value, counted


def _base(operand: Operand) -> str:
    """The name of the pointer or array that the operand is read from."""
    found = next(walk(syntax.field(operand.load.node, "argument"), "identifier"), None)
    return text(found) if found is not None else operand.load.array


def _element(operand: Operand) -> str:
    return re.sub(r"\b(const|volatile)\b\s*", "", operand.load.element).strip()


def _zero(operand: Operand) -> str:
    return _ZEROS.get(_element(operand), f"{_element(operand)}(0)")


def _kind(spelled: str) -> str:
    return re.sub(r"\bconst\b\s*", "", spelled).strip()


def _numbered(name: str, number: str) -> str:
    return f"{name}_{number}" if name[-1:].isdigit() else f"{name}{number}"


def _radix(value: Poly | None) -> str:
    """A count as C. RuleRefused when it is more than a product of parameters and numbers."""
    if value is None or any(a.op or not re.fullmatch(r"\w+", a.name) for a in value.atoms):
        raise RuleRefused("how many rows there are has no simple spelling")
    return str(value).replace("*", " * ")


def _factor(code: str) -> str:
    return f"({code})" if "+" in code or "-" in code else code


def _tiles(axis: Axis, size: int) -> str:
    return f"({_radix(axis.extent)} + {size - 1}) / {size}"
