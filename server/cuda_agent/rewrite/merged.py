"""The body of a kernel in which one thread does the work of several threads of its block.

Between two barriers the threads of a block run in any order, so one thread may do the work of several one after the
other. It takes threads that lie `step` apart, and behind `near` (an offset in the text) neighbours, whose results are
stored as one vector: there, what a thread kept of its own must be computable from its index.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, LaunchMap, Span
from cuda_agent.rewrite import launches, layout, syntax
from cuda_agent.rewrite.analysis import access, affine, names, sizes
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.guarded import shifted
from cuda_agent.rewrite.rule import Context, Rewrite
from cuda_agent.rewrite.rules.coalesce import check_axes_in_sight
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.rewrite.vectors import Vector, declarations
from cuda_agent.source import declared
from cuda_agent.source.tree import LOOPS, ancestors, walk

_WARPS = re.compile(
    r"__syncwarp|__shfl|__ballot|__any|__all|__match|__reduce_|__activemask|__syncthreads_|cooperative_groups|\bcg::|\bcub::"
    r"|warpSize|\basm\b"
)
_BARRIER = "__syncthreads();"
_BRACKETS = ("subscript_argument_list", "argument_list", "parenthesized_expression")


def block_of(context: Context) -> tuple[int, int, int] | None:
    """The block that all launches have."""
    blocks = {shape.block for shape in context.launched}
    return blocks.pop() if len(blocks) == 1 else None


def rewrite(context: Context, axis: str, n: int, block: tuple[int, int, int], near: int | None = None) -> Rewrite:
    """The kernel in blocks with 1/n of the threads along the axis. RuleRefused."""
    launches.check_one_block(context)
    _check_same_block(context)
    check_axes_in_sight(context)
    body = Merged(context, axis, n, block["xy".index(axis)], near)
    fewer = [str(e // n if a == axis else e) for a, e in zip("xyz", block, strict=True)]
    new = fewer[0], fewer[1], fewer[2]
    threads = f"{block[0]} × {block[1]}" if axis == "y" else str(block[0])
    assumptions = [
        Assumption(f"barriers and the loops around them do not depend on {body.thread}", "proved"),
        Assumption(f"blocks have {threads} threads", "captured"),
    ]
    if body.vectors:
        largest = max(one.bytes for one in body.vectors.values())
        arrays = ", ".join(sorted({one.array for one in body.vectors.values()}))
        verb = "are" if "," in arrays else "is"
        assumptions.append(Assumption(f"{arrays} {verb} aligned to {largest} bytes at every launch", "captured"))
    edits = (body.edit(), *launches.change(context, block=launches.dims(new)))
    return Rewrite(edits, LaunchMap(block=new), tuple(assumptions))


def _check_same_block(context: Context) -> None:
    """RuleRefused where a loop around a launch changes what its block is computed from: only some were recorded."""
    for site in launches.sites_of(context):
        launch = context.module.node(site.span)
        extents = launches.block_axes(context, site.block, site.span.start)
        used = {text(n) for extent in extents for n in walk(declared.expression(extent), "identifier")}
        for loop in ancestors(launch, LOOPS):
            changed = {w.name for w in syntax.writes(loop)} & used
            if changed:
                raise RuleRefused(f"{min(filter(None, changed))} changes from launch to launch")


@dataclass(frozen=True)
class Stored:
    """`target = value;` for `rows` neighbours at once; `variable` when the value is one that a thread keeps."""

    array: str
    element: str
    size: int  # bytes of an element
    rows: int
    target: Node
    value: Node
    variable: Variable | None

    @property
    def bytes(self) -> int:
        return self.size * self.rows


class Merged:
    """`axis` of the block had `extent` threads and keeps every `rows`-th: `x` or `y`. RuleRefused by `edit` where the
    text does not allow it."""

    pragmas: tuple[str, ...] = ()  # of the loops over rows

    def __init__(self, context: Context, axis: str, rows: int, extent: int, near: int | None = None) -> None:
        self.context, self.rows, self.extent, self.near = context, rows, extent, near
        self.axis, self.thread = axis, f"threadIdx.{axis}"
        self.scope = names.of(context)
        self.step = extent // rows
        self.r = context.unused_here("r")
        self.unit = layout.unit(context)
        self.arrays: set[str] = set()  # variables that become one value a row
        self.vectors = self._vectors()  # by the statement's offset
        self.stored = {v.symbol: one.bytes for one in self.vectors.values() if (v := one.variable) is not None}

    def edit(self) -> Edit:
        self._check()
        first, *_ = nodes = list(self.context.body.named_children)
        lines = self._level(nodes, self.context.indent(first.start_byte))
        return Edit(Span(first.start_byte, nodes[-1].end_byte), self.context.eol.join(lines).lstrip())

    def _check(self) -> None:
        """RuleRefused where threads of a block are not free to run one after the other between barriers."""
        if found := _WARPS.search(text(self.context.body)):
            raise RuleRefused(f"{found.group().strip(':_')} depends on which threads form a warp")
        if next(walk(self.context.body, ("goto_statement", "return_statement")), None):
            raise RuleRefused("a thread may leave early")
        if changed := next((v.name for v in self.scope.variables if v.param is not None and v.writes), None):
            raise RuleRefused(f"the kernel changes its parameter {changed}")
        if self.axis == "x" and re.search(r"\bvolatile\b", text(self.context.body)):
            raise RuleRefused("volatile memory: threads of a warp may work together without a barrier")

    # ------------------------------------------------------------ statements

    def _level(self, nodes: list[Node], indent: str) -> list[str]:
        """The statements of a block that all threads run alike: barriers and uniform loops stay, what is between them
        is done for every row."""
        lines: list[str] = []
        group: list[Node] = []  # statements for every row
        ahead: list[Node] = []  # comments and pragmas that belong to the next statement
        moved = False  # whether what follows is done for neighbours

        def flush() -> None:
            if lines and group and self._after_blank(group[0]):
                lines.append("")
            lines.extend(self._rows(group, indent))
            group.clear()

        for node in nodes:
            if node.type == "comment" and self._same_line(node):
                if group or ahead:
                    (ahead or group).append(node)
                elif lines:
                    lines[-1] += self._before(node) + self.context.slice(syntax.span(node))
                continue
            if self._is_near(node) and not self._is_near(nodes[0]) and not moved:
                flush()
                lines += self._moved(indent)
                moved = True
            if node.type in ("comment", "preproc_call"):
                ahead.append(node)
                continue
            loop, barrier = self._uniform_loop(node), squeeze(text(node)) == _BARRIER
            stays = node.type == "declaration" and self._stays(node)
            plain = node.type == "declaration" and not group and self._starts_plain(node)
            vector = self.vectors.get(node.start_byte) if node.type == "expression_statement" else None
            once = self._assigns_uniform(node) or self._done_once(node)
            if not (loop or barrier or stays or plain or vector or once):
                if "__syncthreads" in text(node):
                    raise RuleRefused(f"a barrier stands in a {node.type.replace('_', ' ')}")
                group += [*ahead, node]
                ahead.clear()
                continue
            ahead_of_group = stays and not self._reads_memory(node)
            if not ahead_of_group:
                flush()
            if stays:
                self._check_one_value(node)
            for n in (*ahead, node):
                if (lines or n is not nodes[0]) and self._after_blank(n) and not (ahead_of_group and group):
                    lines.append("")
                if n is not node:
                    lines.append(indent + self.context.slice(syntax.span(n)).strip())
            ahead.clear()
            if loop:
                lines += self._loop(node, indent)
            elif vector is not None:
                lines += [indent + line for line in self._as_vector(vector)]
            elif plain and not stays:
                lines += [indent + line for line in self._as_arrays(node)[0]]
            else:
                code = self._text(node, None, indent) + self._tail(node)
                changes = stays and any(v.name in self._changed for v in self._declared(node))
                lines.append(indent + (code.removeprefix("const ") if changes else code))
        group += ahead
        flush()
        return lines

    def _done_once(self, node: Node) -> bool:
        """Another statement that is done once for all rows."""
        return False

    def _same_line(self, node: Node) -> bool:
        before = node.prev_named_sibling
        return before is not None and before.end_point[0] == node.start_point[0]

    def _before(self, node: Node) -> str:
        """The white space in front of a node, on its line."""
        data = self.context.module.document.data[: node.start_byte]
        return data[len(data.rstrip(b" \t")) :].decode()

    def _tail(self, node: Node) -> str:
        """White space at the end of the node's line: a line that does not change stays as it is."""
        rest = self.context.module.document.data[node.end_byte :].split(b"\n", 1)[0].rstrip(b"\r")
        return rest.decode() if not rest.strip() else ""

    def _assigns_uniform(self, node: Node) -> bool:
        """`v = e;` of a variable that is the same for all rows."""
        write = next(iter(syntax.writes(node)), None) if node.type == "expression_statement" else None
        if write is None or write.node != node.named_children[0] or write.target.type != "identifier":
            return False
        v = affine.variable(self.context, write.target)
        return v is not None and self._uniform(v)

    def _uniform(self, v: Variable) -> bool:
        """One value for all rows, which only statements that are run once for all rows change."""
        if v.extents or v.escapes or affine.depends(self.context, v) & {self.thread, "memory", "call"}:
            return False
        return v.param is None and all(self._once(w.node) for w in v.writes)

    def _once(self, node: Node) -> bool:
        """The write stands directly in a block of the level that all threads run alike, or in such a loop's head."""
        above = node.parent
        while above is not None and above != self.context.body:
            if above.type == "for_statement":
                if not self._uniform_loop(above):
                    return False
            elif above.type not in ("compound_statement", "declaration", "expression_statement", "comma_expression"):
                return False
            above = above.parent
        return above is not None

    def _after_blank(self, node: Node) -> bool:
        before = self.context.module.document.data[: node.start_byte]
        return re.search(rb"\n[ \t]*\r?\n[ \t]*\Z", before) is not None

    def _uniform_loop(self, node: Node) -> bool:
        if node.type != "for_statement" or next(walk(node, ("break_statement", "continue_statement")), None):
            return False
        loop = affine.induction(self.context, node)
        if loop is None or loop.condition is None:
            return False
        on = affine.of(self.context, loop.condition).names | loop.start.names | loop.step.names
        return not on & {self.thread, "memory", "call"}

    def _loop(self, node: Node, indent: str) -> list[str]:
        body = syntax.field(node, "body")
        for part in ("initializer", "condition", "update"):
            for n in syntax.of_type(syntax.field(node, part), "identifier"):
                v = affine.variable(self.context, n)
                if v is not None and v.param is None and not self._uniform(v):
                    raise RuleRefused(f"{v.name} in a loop's head differs from row to row")
        head = self._head(node, body)
        inner = list(body.named_children) if body.type == "compound_statement" else [body]
        lines = self._level(inner, indent + self.unit)
        simple = body.type != "compound_statement" or (len(inner) == 1 and "__syncthreads" not in text(body))
        if simple and not lines[0].lstrip().startswith("#"):
            return [indent + head, *lines]
        return [f"{indent}{head} {{", *lines, f"{indent}}}"]

    def _head(self, loop: Node, body: Node) -> str:
        """A loop up to its body."""
        code, at = "", loop.start_byte
        for n in walk(loop, "field_expression"):
            if n.start_byte < body.start_byte and squeeze(text(n)) == f"blockDim.{self.axis}":
                code += self.context.slice(Span(at, n.start_byte)) + self._spelled_extent(n)
                at = n.end_byte
        return (code + self.context.slice(Span(at, body.start_byte))).rstrip()

    def _spelled_extent(self, node: Node) -> str:
        return str(self.extent) if _stays_unsigned(node) else f"{self.extent}u"

    def _rows(self, group: list[Node], indent: str) -> list[str]:
        """The statements once for every row."""
        if not group:
            return []
        whole = Span(group[0].start_byte, group[-1].end_byte)
        lines: list[str] = []
        inside: list[str] = []
        deeper = indent + self.unit
        for node in group:
            if node.type == "comment" and self._same_line(node) and inside:
                inside[-1] += self._before(node) + self.context.slice(syntax.span(node))
                continue
            inside += [""] if inside and self._after_blank(node) else []
            if node.type == "declaration" and any(not self._local(v, whole) for v in self._declared(node)):
                ahead, assigned = self._as_arrays(node)
                lines += [indent + line for line in ahead]
                inside += [deeper + line for line in assigned]
            elif node.type == "preproc_call":
                inside.append(deeper + self.context.slice(syntax.span(node)).strip())
            else:
                inside.append(deeper + self._text(node, self.r, deeper))
        if not inside:
            return lines
        lines += [indent + line for line in self.pragmas]
        head = f"{indent}for (int {self.r} = 0; {self.r} < {self.rows}; {self.r}++)"
        one = len([n for n in group if n.type != "comment"]) == 1 and not (group[0].type == "declaration" and not lines)
        one = one and not any(line.lstrip().startswith(("/", "#")) for line in inside)
        return [*lines, *([head, *inside] if one else [f"{head} {{", *inside, f"{indent}}}"])]

    def _local(self, v: Variable, group: Span) -> bool:
        return all(group.holds(syntax.span(u)) for u in v.uses)

    def _as_arrays(self, node: Node) -> tuple[list[str], list[str]]:
        """(declarations of one value a row, assignments of the initial values)."""
        first = node.children_by_field_name("declarator")[0]
        kind = self.context.slice(Span(node.start_byte, first.start_byte)).strip()
        if "static" in kind or "constexpr" in kind:
            raise RuleRefused(f"{text(node)} cannot be one value a row")
        ahead, assigned = [], []
        for v in self._declared(node):
            write = next((w for w in v.writes if w.op == "init"), None)
            if v.escapes or v.declarator is None:
                raise RuleRefused(f"{v.name} cannot be one value a row")
            self.arrays.add(v.symbol)
            bare = kind if v.pointer else kind.removeprefix("const ")
            code = "" if write is None or write.value is None else text(write.value)
            zero = _is_zero(code)
            self._check_side(v, zero or not code)
            bare = f"__align__({self.stored[v.symbol]}) {bare}" if v.symbol in self.stored else bare
            if kind.removeprefix("const ") == "auto":
                raise RuleRefused(f"{v.name} cannot be one value a row")
            if v.extents and code and not zero:
                raise RuleRefused(f"{v.name} cannot be one value a row")
            start = f" = {{{code.strip('{}')}}}" if zero else ""
            extents = "".join(f"[{text(e)}]" for e in v.extents)
            ahead.append(f"{bare} {'*' * v.pointer}{v.name}{self._extents(extents)}{start};")
            if write is not None and write.value is not None and not zero:
                assigned.append(f"{v.name}[{self.r}] = {self._text(write.value, self.r, '')};")
        return ahead, assigned

    def _extents(self, own: str) -> str:
        """The extents of what is kept for every row and had extents of its own."""
        return f"[{self.rows}]{own}"

    # ------------------------------------------------------------ neighbours

    def _is_near(self, node: Node) -> bool:
        return self.near is not None and node.start_byte >= self.near

    @cached_property
    def _changed(self) -> dict[str, str]:
        """Indices that are declared before `near` and used behind it, and what they grow by."""
        found = {}
        for v in self.scope.variables:
            if self.near is None or v.declarator is None or self._is_near(v.declarator) or v.shared:
                continue
            even = self._even(v) if any(map(self._is_near, v.uses)) and not self._uniform(v) else None
            if even not in (None, "0"):
                found[v.name] = str(even)
        return found

    def _moved(self, indent: str) -> list[str]:
        """Indices that were computed for the thread itself become those of its first neighbour."""
        lines = []
        for name, even in self._changed.items():
            factors = [self.thread, *(f for f in (str(self.rows - 1), even) if f != "1")]
            lines.append(f"{indent}{name} += {' * '.join(factors)};")
        if not lines:
            return []
        return [
            "",
            f"{indent}// thread t now does the work of threads {self.rows} t to {self.rows} t + {self.rows - 1}",
            *lines,
        ]

    def _check_side(self, v: Variable, plain: bool) -> None:
        """What a thread keeps for others is theirs before `near`, or behind it."""
        later = [
            self._is_near(u)
            for u in v.uses
            if v.declarator is None or not syntax.span(v.declarator).holds(syntax.span(u))
        ]
        early = v.declarator is not None and not self._is_near(v.declarator)
        if self.near is not None and early and any(later) and not (plain and all(later)):
            raise RuleRefused(f"{v.name} is kept by a thread across the barrier")

    def _vectors(self) -> dict[int, Stored]:
        """Stores that neighbours make together. RuleRefused where memory would be touched by neighbours alone."""
        found: dict[int, Stored] = {}
        if self.near is None:
            return found
        seen = access.of(self.context)
        if seen.unknown:
            raise RuleRefused(f"{text(seen.unknown[0])} is passed on: where it is used is not seen")
        for one in seen.globals:
            if not self._is_near(one.node):
                continue
            if one.kind == "load" and not one.index.depends(self.thread):
                continue
            shown = text(one.node)
            statement = syntax.enclosing_statement(one.node)
            write = next(iter(syntax.writes(statement)), None)
            if (
                one.kind != "store"
                or write is None
                or write.target != one.node
                or statement.parent != self.context.body
            ):
                raise RuleRefused(f"neighbours would touch {shown} one by one")
            if write.op != "=" or write.value is None or write.node.parent != statement:
                raise RuleRefused(f"neighbours would touch {shown} one by one")
            found[statement.start_byte] = self._stored(one, write)
        return found

    def _stored(self, one: access.Access, write: syntax.Write) -> Stored:
        shown, size = text(one.node), one.bytes
        if size is None or size * self.rows not in (8, 16) or not re.fullmatch(r"[\w ]+", one.element):
            raise RuleRefused(f"{self.rows} neighbours of {shown} are no vector")
        lane, rest = one.index.substitute({f"blockDim.{self.axis}": self.extent}).split(self.thread)
        if lane is None or lane.value != 1 or any(c % self.rows for _, c in rest.terms):
            raise RuleRefused(f"{shown} is not known to start at a multiple of {self.rows}")
        if not self.context.aligned(one.array, size * self.rows):
            raise RuleRefused(f"{one.array} is not known to be aligned to {size * self.rows} bytes")
        assert write.value is not None
        v = affine.variable(self.context, write.value) if write.value.type == "identifier" else None
        own = v is not None and v.param is None and not v.is_array and v.type == one.element and not self._stays_so(v)
        return Stored(one.array, one.element, size, self.rows, write.target, write.value, v if own else None)

    def _stays_so(self, v: Variable) -> bool:
        return self._uniform(v) or self._even(v) is not None

    def _as_vector(self, one: Stored) -> list[str]:
        address = f"&{self._text(one.target, None, '')}"
        if one.variable is not None:
            return [Vector(one.variable.name, one.element, self.rows, one.size).store(address)]
        vector = Vector(self.context.unused_here(f"{one.array}{self.rows}"), one.element, self.rows, one.size)
        value = self._text(one.value, self.r, "")
        return [
            *declarations([vector]),
            f"for (int {self.r} = 0; {self.r} < {self.rows}; {self.r}++)",
            f"{self.unit}{vector.at(self.r)} = {value};",
            vector.store(address),
        ]

    # ------------------------------------------------------------ variables

    def _declared(self, node: Node) -> list[Variable]:
        inside = syntax.span(node)
        return [v for v in self.scope.variables if v.declarator is not None and v.start in inside]

    def _stays(self, node: Node) -> bool:
        """A declaration whose variables have one value for all rows, or a value that grows evenly from row to row."""
        return all(v.shared or self._uniform(v) or self._even(v) is not None for v in self._declared(node))

    def _reads_memory(self, node: Node) -> bool:
        return any(affine.depends(self.context, v) & {"memory", "call"} for v in self._declared(node))

    def _check_one_value(self, node: Node) -> None:
        """RuleRefused where the declaration, made once, reads what is kept for every row."""
        for n in syntax.of_type(node, "identifier"):
            v = self.scope.resolve(text(n), n.start_byte)
            if v is not None and v.symbol in self.arrays:
                raise RuleRefused(f"{v.name} is read where one value a row cannot be")

    def _starts_plain(self, node: Node) -> bool:
        """The declaration gives its variables zero or nothing."""
        values = [w.value for v in self._declared(node) for w in v.writes if w.op == "init"]
        return all(value is None or _is_zero(text(value)) for value in values)

    def _even(self, v: Variable) -> str | None:
        """What the variable grows by from one row to the next: "0", a number or a name. None when it must be kept for
        every row."""
        if v.pointer or v.extents or v.escapes or [w.op for w in v.writes] != ["init"]:
            return None
        if not affine.depends(self.context, v) & {self.thread, "memory", "call"}:
            return "0"
        value = v.writes[0].value
        if value is None or not sizes.integer_type(v.type):
            return None
        inner = value.named_children[0] if value.type in ("argument_list", "initializer_list") else value
        step = affine.of(self.context, inner).stride(self.thread)
        spelled = str(step) if step is not None else ""
        return spelled if re.fullmatch(r"\w+", spelled) else None

    def _text(self, node: Node, row: str | None, indent: str) -> str:
        """The node's text for row `row`; with None for all rows."""
        code, at = "", node.start_byte
        for n, new in sorted(self._pieces(node, row), key=lambda p: p[0].start_byte):
            code += self.context.slice(Span(at, n.start_byte)) + new
            at = n.end_byte
        code += self.context.slice(Span(at, node.end_byte))
        old = self.context.indent(node.start_byte)
        first, *rest = code.splitlines()
        return self.context.eol.join([first, *(shifted(line, old, indent) for line in rest)])

    def _pieces(self, node: Node, row: str | None) -> list[tuple[Node, str]]:
        """What changes in the node's text, with its new text."""
        pieces: list[tuple[Node, str]] = []
        for n in walk(node, ("field_expression", "identifier")):
            code = squeeze(text(n))
            if n.type == "field_expression" and code == f"blockDim.{self.axis}":
                pieces.append((n, self._spelled_extent(n)))
            elif n.type == "field_expression" and code == self.thread:
                if self._is_near(n):
                    first = f"{self.thread} * {self.rows}"
                    pieces.append((n, first if row is None else in_parens(n, f"{first} + {row}")))
                elif row is not None:
                    pieces.append((n, in_parens(n, f"{self.thread} + {row} * {self.step}")))
            elif n.type == "identifier" and row is not None:
                v = self.scope.resolve(code, n.start_byte)
                if v is None or v.param is not None:
                    continue
                if v.symbol in self.arrays:
                    pieces.append((n, f"{code}[{row}]"))
                elif v.start < node.start_byte and not self._uniform(v) and (even := self._even(v)) not in (None, "0"):
                    step = "" if self._is_near(n) else f" * {self.step}"
                    times = f"{row}{step}" if even == "1" else f"{row}{step} * {even}"
                    pieces.append((n, in_parens(n, f"{code} + {times}")))
        return pieces


def _is_zero(code: str) -> bool:
    return re.fullmatch(r"0(\.0*)?f?|\.0+f?|\{(0(\.0*)?f?|\.0+f?)?\}", squeeze(code)) is not None


def in_parens(node: Node, code: str) -> str:
    """The sum, in parentheses unless it stands alone or in a sum."""
    above = node.parent
    if above is None or above.type in (*_BRACKETS, "init_declarator", "assignment_expression"):
        return code
    sign = above.child_by_field_name("operator")
    loose = above.type == "binary_expression" and sign is not None and text(sign) in ("+", "<", ">", "<=", ">=")
    loose = loose or (text(sign) == "-" and above.child_by_field_name("left") == node if sign is not None else False)
    return code if loose else f"({code})"


def _stays_unsigned(node: Node) -> bool:
    """A signed number in place of the unsigned extent means the same: it is added to, or multiplied by, what is
    unsigned itself, or only assigned."""
    above = node.parent
    if above is None or above.type == "cast_expression":
        return True
    if above.type == "init_declarator" and above.parent is not None:
        return text(syntax.field(above.parent, "type")) != "auto"
    sign = above.child_by_field_name("operator")
    if above.type == "assignment_expression":
        return sign is None or text(sign) in ("=", "+=", "-=")
    if above.type != "binary_expression" or sign is None or text(sign) not in ("+", "*"):
        return False
    other = syntax.field(above, "right" if above.child_by_field_name("left") == node else "left")
    return re.fullmatch(r"(?:blockIdx|threadIdx|gridDim)\.[xyz]", squeeze(text(other))) is not None
