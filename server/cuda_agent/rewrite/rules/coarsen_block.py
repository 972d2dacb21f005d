"""# 7 · coarsen-block: one thread does the work of several rows of its block

In a tiled matrix product every multiplication loads two elements from shared memory. A thread that computes several
rows keeps its element of the column in a register for all of them: fewer loads, more independent sums.

Before, in blocks of 16 × 16:

    float sum = 0.0f;
    for (int k0 = 0; k0 < n; k0 += 16) {
        a_tile[threadIdx.y][threadIdx.x] = a[row * n + k0 + threadIdx.x];
        …
        __syncthreads();
        for (int k = 0; k < 16; k++)
            sum += a_tile[threadIdx.y][k] * b_tile[k][threadIdx.x];

After, in blocks of 16 × 4:

    float sum[4] = {0.0f};
    for (int k0 = 0; k0 < n; k0 += 16) {
        for (int r = 0; r < 4; r++) {
            a_tile[threadIdx.y + r * 4][threadIdx.x] = a[(row + r * 4) * n + k0 + threadIdx.x];
            …
        }
        __syncthreads();
        for (int k = 0; k < 16; k++)
            for (int r = 0; r < 4; r++)
                sum[r] += a_tile[threadIdx.y + r * 4][k] * b_tile[k][threadIdx.x];

Every thread runs, between two barriers, what the threads with its x and with y + r · (new height) ran before. Legal
when barriers and the loops around them do not depend on threadIdx.y, no thread leaves early, and nothing depends on
warps (proved); the block has the captured size (captured). Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, LaunchMap, Span
from cuda_agent.rewrite import launches, layout, syntax
from cuda_agent.rewrite.analysis import access, affine, names, sizes
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.guarded import shifted
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.rules.coalesce import check_axes_in_sight
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import ancestors, walk

_Y = "threadIdx.y"
_WARPS = re.compile(
    r"__syncwarp|__shfl|__ballot|__any|__all|__match|__reduce_|__activemask|__syncthreads_|cooperative_groups|\bcg::|\bcub::"
    r"|warpSize|\basm\b"
)
_BARRIER = "__syncthreads();"
_FEWEST = 64  # threads of a block


class CoarsenBlock(Rule):
    name = "coarsen-block"
    number = 7

    def sites(self, context: Context) -> Iterator[Site]:
        code = text(context.body)
        if "__syncthreads" not in code or _Y not in code or not context.numbers or not _shares(context):
            return
        blocks = {tuple(n[f"blockDim.{a}"] for a in "xyz") for n in context.numbers}
        if len(blocks) != 1:
            return
        x, y, z = blocks.pop()
        for rows in (8, 4, 2):
            if z == 1 and y % rows == 0 and x * y // rows >= _FEWEST:
                yield Site(self.name, context.kernel.name_span, {"rows": rows}, {"block": (x, y)})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        rows: int = site.params["rows"]
        width, height = site.nodes["block"]
        if found := _WARPS.search(text(context.body)):
            raise RuleRefused(f"{found.group().strip(':_')} depends on which threads form a warp")
        if next(walk(context.body, ("goto_statement", "return_statement")), None):
            raise RuleRefused("a thread may leave early")
        launches.check_one_block(context)
        check_axes_in_sight(context)
        edits = [_Writer(context, rows, height).edit()]
        block = launches.dims((str(width), str(height // rows), "1"))
        edits += launches.change(context, block=block)
        return Rewrite(
            tuple(edits),
            LaunchMap(block=(str(width), str(height // rows), "1")),
            (
                Assumption("barriers and the loops around them do not depend on threadIdx.y", "proved"),
                Assumption(f"blocks have {width} × {height} threads", "captured"),
            ),
        )


def _shares(context: Context) -> bool:
    """Some loop without a barrier reads an element of shared memory that all rows of the block read."""
    for one in access.of(context):
        if one.space == "shared" and one.kind == "load" and one.loops and one.loops[0] is not None:
            inner = one.loops[0]
            apart = not one.index.depends(_Y) and one.index.depends(inner.symbol)
            if not apart or "__syncthreads" in text(inner.loop):
                continue
            guards = (syntax.field(a, "condition") for a in ancestors(inner.loop, {"if_statement"}))
            if not any(_Y in affine.of(context, g).names for g in guards):
                return True
    return False


class _Writer:
    def __init__(self, context: Context, rows: int, height: int) -> None:
        self.context, self.rows, self.height = context, rows, height
        self.scope = names.of(context)
        self.step = height // rows
        self.r = context.unused_here("r")
        self.unit = layout.unit(context)
        self.arrays: set[str] = set()  # variables that become one value a row

    def edit(self) -> Edit:
        first, *_ = nodes = list(self.context.body.named_children)
        lines = self._level(nodes, self.context.indent(first.start_byte))
        return Edit(Span(first.start_byte, nodes[-1].end_byte), self.context.eol.join(lines).lstrip())

    # ------------------------------------------------------------ statements

    def _level(self, nodes: list[Node], indent: str) -> list[str]:
        """The statements of a block that all threads run alike: barriers and uniform loops stay, what is between them
        is done for every row."""
        lines: list[str] = []
        group: list[Node] = []  # statements for every row
        ahead: list[Node] = []  # comments and pragmas that belong to the next statement

        def flush() -> None:
            lines.extend(self._rows(group, indent))
            group.clear()

        for node in nodes:
            if node.type == "comment" and self._same_line(node):
                if group or ahead:
                    (ahead or group).append(node)
                elif lines:
                    lines[-1] += self._before(node) + self.context.slice(syntax.span(node))
                continue
            if node.type in ("comment", "preproc_call"):
                ahead.append(node)
                continue
            loop, barrier = self._uniform_loop(node), squeeze(text(node)) == _BARRIER
            stays = node.type == "declaration" and self._stays(node)
            plain = node.type == "declaration" and not group and self._starts_plain(node)
            if not (loop or barrier or stays or plain or self._assigns_uniform(node)):
                if "__syncthreads" in text(node):
                    raise RuleRefused(f"a barrier stands in a {node.type.replace('_', ' ')}")
                group += [*ahead, node]
                ahead.clear()
                continue
            if not stays:
                flush()
            for n in (*ahead, node):
                if (lines or n is not nodes[0]) and self._after_blank(n) and not (stays and group):
                    lines.append("")
                if n is not node:
                    lines.append(indent + self.context.slice(syntax.span(n)).strip())
            ahead.clear()
            if loop:
                lines += self._loop(node, indent)
            elif plain and not stays:
                lines += [indent + line for line in self._as_arrays(node)[0]]
            else:
                lines.append(indent + self._text(node, None, indent) + self._tail(node))
        group += ahead
        flush()
        return lines

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
        if v.extents or v.escapes or affine.depends(self.context, v) & {_Y, "memory", "call"}:
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
        return not on & {_Y, "memory", "call"}

    def _loop(self, node: Node, indent: str) -> list[str]:
        body = syntax.field(node, "body")
        for part in ("initializer", "condition", "update"):
            for n in syntax.of_type(syntax.field(node, part), "identifier"):
                v = affine.variable(self.context, n)
                if v is not None and v.param is None and not self._uniform(v):
                    raise RuleRefused(f"{v.name} in a loop's head differs from row to row")
        head = self.context.slice(Span(node.start_byte, body.start_byte)).rstrip()
        inner = list(body.named_children) if body.type == "compound_statement" else [body]
        lines = self._level(inner, indent + self.unit)
        simple = body.type != "compound_statement" or (len(inner) == 1 and "__syncthreads" not in text(body))
        if simple:
            return [indent + self._plain(head), *lines]
        return [f"{indent}{self._plain(head)} {{", *lines, f"{indent}}}"]

    def _plain(self, code: str) -> str:
        return re.sub(r"\bblockDim\s*\.\s*y\b", str(self.height), code)

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
            if v.escapes or v.extents or v.declarator is None:
                raise RuleRefused(f"{v.name} cannot be one value a row")
            self.arrays.add(v.symbol)
            bare = kind if v.pointer else kind.removeprefix("const ")
            code = "" if write is None or write.value is None else text(write.value)
            zero = _is_zero(code)
            if kind.removeprefix("const ") == "auto":
                raise RuleRefused(f"{v.name} cannot be one value a row")
            start = f" = {{{code}}}" if zero else ""
            ahead.append(f"{bare} {'*' * v.pointer}{v.name}[{self.rows}]{start};")
            if write is not None and write.value is not None and not zero:
                assigned.append(f"{v.name}[{self.r}] = {self._text(write.value, self.r, '')};")
        return ahead, assigned

    # ------------------------------------------------------------ variables

    def _declared(self, node: Node) -> list[Variable]:
        inside = syntax.span(node)
        return [v for v in self.scope.variables if v.declarator is not None and v.start in inside]

    def _stays(self, node: Node) -> bool:
        """A declaration whose variables have one value for all rows, or a value that grows evenly from row to row."""
        return all(v.shared or self._uniform(v) or self._even(v) is not None for v in self._declared(node))

    def _starts_plain(self, node: Node) -> bool:
        """The declaration gives its variables zero or nothing."""
        values = [w.value for v in self._declared(node) for w in v.writes if w.op == "init"]
        return all(value is None or _is_zero(text(value)) for value in values)

    def _even(self, v: Variable) -> str | None:
        """What the variable grows by from one row to the next: "0", a number or a name. None when it must be kept for
        every row."""
        if v.pointer or v.extents or v.escapes or [w.op for w in v.writes] != ["init"]:
            return None
        if not affine.depends(self.context, v) & {_Y, "memory", "call"}:
            return "0"
        value = v.writes[0].value
        if value is None or not sizes.integer_type(v.type):
            return None
        inner = value.named_children[0] if value.type in ("argument_list", "initializer_list") else value
        step = affine.of(self.context, inner).stride(_Y)
        spelled = str(step) if step is not None else ""
        return spelled if re.fullmatch(r"\w+", spelled) else None

    def _text(self, node: Node, row: str | None, indent: str) -> str:
        """The node's text for row `row`; with None for all rows."""
        pieces: list[tuple[Node, str]] = []
        for n in walk(node, ("field_expression", "identifier")):
            code = squeeze(text(n))
            if n.type == "field_expression" and code == "blockDim.y":
                pieces.append((n, str(self.height)))
            elif n.type == "field_expression" and code == _Y and row is not None:
                pieces.append((n, _in_parens(n, f"{_Y} + {row} * {self.step}")))
            elif n.type == "identifier" and row is not None:
                v = self.scope.resolve(code, n.start_byte)
                if v is None or v.param is not None:
                    continue
                if v.symbol in self.arrays:
                    pieces.append((n, f"{code}[{row}]"))
                elif v.start < node.start_byte and not self._uniform(v) and (even := self._even(v)) not in (None, "0"):
                    times = f"{row} * {self.step}" if even == "1" else f"{row} * {self.step} * {even}"
                    pieces.append((n, _in_parens(n, f"{code} + {times}")))
        code, at = "", node.start_byte
        for n, new in sorted(pieces, key=lambda p: p[0].start_byte):
            code += self.context.slice(Span(at, n.start_byte)) + new
            at = n.end_byte
        code += self.context.slice(Span(at, node.end_byte))
        old = self.context.indent(node.start_byte)
        first, *rest = code.splitlines()
        return self.context.eol.join([first, *(shifted(line, old, indent) for line in rest)])


def _is_zero(code: str) -> bool:
    return re.fullmatch(r"0(\.0*)?f?|\.0+f?", squeeze(code)) is not None


def _in_parens(node: Node, code: str) -> str:
    """The sum, in parentheses unless it stands alone or in a sum."""
    above = node.parent
    if above is None or above.type in ("subscript_argument_list", "argument_list", "parenthesized_expression"):
        return code
    sign = above.child_by_field_name("operator")
    loose = above.type == "binary_expression" and sign is not None and text(sign) in ("+", "<", ">", "<=", ">=")
    return code if loose else f"({code})"
