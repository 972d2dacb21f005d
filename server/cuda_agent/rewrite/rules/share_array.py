"""# 9 · share-array: a table that every thread makes for itself is made once a block

An array of a thread's own that is indexed by a value lies in memory: every thread stores the whole table there before
it reads two or three elements. Where all threads make the same table, one of them can make it for the block, in shared
memory.

Before:

    int wheel[55][3];
    for (int i = 0; i < 55; i++)
        set(wheel, i, 255 * i / 55);
    out[x] = wheel[shade(x, y)][0];

After:

    __shared__ int wheel[55][3];
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        for (int i = 0; i < 55; i++)
            set(wheel, i, 255 * i / 55);
    }
    __syncthreads();
    …
    out[x] = wheel[shade(x, y)][0];

The table is made at the kernel's start, before any guard. Legal when what makes it uses constants, the launch's
parameters, blockIdx and variables of its own only, reads no memory, and nothing writes the array afterwards (proved).
Bit-exact.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import layout, syntax
from cuda_agent.rewrite.analysis import affine, names, sizes, trips
from cuda_agent.rewrite.analysis.calls import unknown
from cuda_agent.rewrite.analysis.functions import definitions
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import arguments, base, callee, enclosing, is_written, walk

_LEAST = 8  # elements; smaller tables are kept in registers
_MOST = 16 * 1024  # bytes
_EFFECTS = re.compile(
    r"__syncthreads|__syncwarp|__shfl|__ballot|__any|__all|atomic|printf|asm\b|cooperative_groups|\bcg::"
)


@dataclass(frozen=True)
class Table:
    """An array, its declaration, and the statements that make it: all of them move to the kernel's start."""

    array: Variable
    declaration: Node
    makers: tuple[Node, ...]  # in text order, without the array's declaration
    extents: tuple[str, ...]
    values: Node | None  # the initialiser


class ShareArray(Rule):
    name = "share-array"
    number = 9

    def sites(self, context: Context) -> Iterator[Site]:
        if context.facts is not None and context.facts.registers and not context.facts.stack_bytes:
            return  # the compiler keeps every array in registers
        why = None
        found = []
        for variable in names.of(context).variables:
            if variable.declarator is None or "[" not in text(variable.declarator) or variable.shared:
                continue
            try:
                table = _table(context, variable)
            except RuleRefused as error:
                why = error
                continue
            if table is not None:
                found.append(table)
        if not found and why is not None:
            raise why
        for table in found:
            yield Site(self.name, syntax.span(table.declaration), {"array": table.array.name}, {"table": table})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        known = Assumption("every thread makes the same table", "proved")
        return Rewrite(tuple(_edits(context, site.nodes["table"])), assumptions=(known,))


# ---------------------------------------------------------------- is it the same for all?


def _table(context: Context, array: Variable) -> Table | None:
    """None where the array is no table: small, never indexed by a value, or without elements that are made first."""
    assert array.declarator is not None
    declaration = enclosing(array.declarator, "declaration")
    if declaration is None or len(declaration.children_by_field_name("declarator")) != 1:
        return None
    block = declaration.parent
    if block is None or block.type != "compound_statement" or re.search(r"\bstatic\b|constexpr", text(declaration)):
        return None
    values = declaration.children_by_field_name("declarator")[0].child_by_field_name("value")
    extents = _extents(context, array, values)
    if extents is None or not any(_by_value(context, u) for u in array.uses):
        return None
    if any(node.type in syntax.LOOPS for node in _above(block, context.body)):
        raise RuleRefused(f"{array.name} is made again in every iteration of a loop")
    statements = [s for s in syntax.statements(block) if s.start_byte > declaration.start_byte]
    writers = [s for s in statements if _writes(context, s, array)]
    if values is None and not writers:
        return None
    makers = _slice(context, array, statements[: statements.index(writers[-1]) + 1]) if writers else ()
    _check(context, array, declaration, makers)
    return Table(array, declaration, makers, extents, values)


def _above(node: Node, top: Node) -> Iterator[Node]:
    current: Node | None = node
    while current is not None and current != top:
        yield current
        current = current.parent


def _extents(context: Context, array: Variable, values: Node | None) -> tuple[str, ...] | None:
    """The extents as text; None where they are not known, or too few or too many elements."""
    if array.extents:
        numbers = [affine.of(context, e).value for e in array.extents]
        spelled = tuple(context.slice(syntax.span(e)) for e in array.extents)
    elif values is not None and values.type == "initializer_list":
        items = [n for n in values.named_children if n.type != "comment"]
        if any(n.type in ("initializer_list", "initializer_pair") for n in items):
            return None
        numbers, spelled = [len(items)], (str(len(items)),)
    else:
        return None
    size = sizes.size_of(array.type, context.module)
    known = [n for n in numbers if n is not None]
    if len(known) != len(numbers) or size is None or array.pointer:
        return None
    if math.prod(known) < _LEAST:
        return None
    if math.prod(known) * size > _MOST:
        raise RuleRefused(f"{array.name} would take more than {_MOST // 1024} KiB of shared memory")
    return spelled


def _by_value(context: Context, use: Node) -> bool:
    """A read at an index that is not known when the kernel is compiled: such an array cannot be kept in registers."""
    above = use.parent
    while above is not None and above.type == "subscript_expression":
        indices = above.child_by_field_name("indices")
        for n in syntax.of_type(indices, "identifier") if indices is not None else ():
            variable = affine.variable(context, n)
            if variable is not None and affine.of(context, n).value is None and not _counts(context, variable):
                return True
        above = above.parent
    return False


def _counts(context: Context, variable: Variable) -> bool:
    """The variable of a loop that the compiler can unroll whole."""
    for loop in syntax.of_type(context.body, "for_statement"):
        counted = affine.induction(context, loop)
        if counted is not None and counted.variable is variable:
            count = trips.of_induction(context, counted)
            return count is not None and count.value is not None
    return False


def _writes(context: Context, statement: Node, array: Variable) -> bool:
    """Whether the statement may write the array: an assignment to an element, or its address handed on."""
    for use in array.uses:
        if not syntax.span(statement).holds(syntax.span(use)):
            continue
        top = use
        while top.parent is not None and top.parent.type in ("subscript_expression", "field_expression"):
            if top.parent.child_by_field_name("argument") != top:
                break
            top = top.parent
        if is_written(top) or top == use or (top.parent is not None and top.parent.type == "pointer_expression"):
            return True
        whole = len(array.extents) > 1 and text(top).count("[") < len(array.extents)
        if whole:
            return True
    return False


def _slice(context: Context, array: Variable, statements: list[Node]) -> tuple[Node, ...]:
    """The statements that the array's elements come from, going back from the last one that writes it."""
    needed = {array.name}
    found = []
    for statement in reversed(statements):
        touched = {w.name for w in syntax.writes(statement) if w.name} | syntax.declared(statement)
        if touched & needed or _writes(context, statement, array):
            found.append(statement)
            needed |= syntax.identifiers(statement)
    return tuple(reversed(found))


def _check(context: Context, array: Variable, declaration: Node, makers: tuple[Node, ...]) -> None:
    """RuleRefused unless the makers give every thread the same elements, and nothing else uses what they compute."""
    scope = names.of(context)
    spans = [syntax.span(m) for m in makers]
    own = {
        v.name
        for v in scope.variables
        if v.declarator is not None and any(s.holds(syntax.span(v.declarator)) for s in spans)
    }
    for node in (declaration, *makers):
        code = text(node)
        if found := _EFFECTS.search(code):
            raise RuleRefused(f"{found.group()} stands where {array.name} is made")
        if next(walk(node, ("return_statement", "goto_statement", "lambda_expression")), None) is not None:
            raise RuleRefused(f"what makes {array.name} may leave the kernel")
        if re.search(r"\bthreadIdx\b|\blaneid\b|\bclock\w*\s*\(", code):
            raise RuleRefused(f"{array.name} differs from thread to thread")
        for n in syntax.of_type(node, "identifier"):
            variable = affine.variable(context, n)
            if variable is None or variable is array or variable.name in own:
                continue
            if variable.param is None or variable.writes or variable.pointer or variable.escapes:
                raise RuleRefused(f"{array.name} is made of {variable.name}, which may differ from thread to thread")
        for n in walk(node, ("subscript_expression", "pointer_expression")):
            root = base(n)
            local = affine.variable(context, root) if root.type == "identifier" else None
            if (
                n.type != "subscript_expression"
                or local is None
                or local.shared
                or not (local is array or local.is_array)
            ):
                raise RuleRefused(f"{array.name} is made of {text(n)}")
        for call in syntax.of_type(node, "call_expression"):
            _check_call(context, array, call)
    for name in own:
        uses = [u for v in scope.variables if v.name == name for u in v.uses]
        if any(not any(s.holds(syntax.span(u)) for s in spans) for u in uses):
            raise RuleRefused(f"{name}, which {array.name} is made with, is used elsewhere")
    last = max((s.end for s in spans), default=declaration.end_byte)
    for use in array.uses:
        inside = any(s.holds(syntax.span(use)) for s in spans) or syntax.span(declaration).holds(syntax.span(use))
        if not inside and (use.start_byte < last or _writes(context, syntax.enclosing_statement(use), array)):
            raise RuleRefused(f"{array.name} may be written after it was made")


def _check_call(context: Context, array: Variable, call: Node) -> None:
    """RuleRefused for a function that may do more than compute, and write the array that it is given."""
    name = callee(call) or ""
    if next(unknown(context, call), None) is not None:
        raise RuleRefused(f"it is not known what {name} does")
    for definition in definitions(context.module).get(name, ()):
        code = text(definition)
        inner = [n for n in syntax.of_type(definition, "call_expression") if callee(n) in definitions(context.module)]
        if inner or _EFFECTS.search(code) or re.search(r"\b(threadIdx|static)\b", code):
            raise RuleRefused(f"it is not known what {name} does")
        listed = next(syntax.of_type(definition, "parameter_list"), None)
        taken = syntax.of_type(listed, "parameter_declaration") if listed is not None else iter(())
        pointers = {
            text(n)
            for p, given in zip(taken, arguments(call), strict=False)
            if text(given) == array.name
            for n in list(syntax.of_type(p, "identifier"))[:1]
        }
        for write in syntax.memory_writes(definition):
            if text(base(write.target)) not in pointers | syntax.declared(definition):
                raise RuleRefused(f"{name} writes {text(write.target)}")


# ---------------------------------------------------------------- the text


def _edits(context: Context, table: Table) -> Iterator[Edit]:
    eol, step = context.eol, layout.unit(context)
    indent = context.indent(context.kernel.body.start) + step
    element = re.sub(r"\bconst\s+", "", table.array.type)
    extents = "".join(f"[{e}]" for e in table.extents)
    lines = [f"__shared__ {element} {table.array.name}{extents};", f"if ({_first_thread(context)}) {{"]
    if table.values is not None:
        lines += _filled(context, table, step)
    said = _comments(table)
    for node in sorted((*table.makers, *said), key=lambda n: n.start_byte):
        if node in said and node.start_point[0] == table.declaration.end_point[0]:
            lines[0] += f"  {context.slice(syntax.span(node))}"
        else:
            lines += _lines(context, node, step)
    lines += ["}", "__syncthreads();"]
    gone = sorted((table.declaration, *table.makers, *said), key=lambda n: n.start_byte)
    head = (eol + indent).join(lines)
    top = context.body.named_children[0]
    if top not in gone:
        yield Edit(Span(top.start_byte, top.start_byte), head + eol + indent)
    for span in _runs(gone):
        yield Edit(span, head) if span.start == top.start_byte else Edit(layout.line_of(context, span), "")


def _runs(nodes: list[Node]) -> Iterator[Span]:
    """Spans of neighbours that leave nothing between them."""
    start = end = nodes[0]
    for node in nodes[1:]:
        if end.next_named_sibling != node:
            yield Span(start.start_byte, end.end_byte)
            start = node
        end = node
    yield Span(start.start_byte, end.end_byte)


def _comments(table: Table) -> list[Node]:
    """The comments between the array's declaration and its last maker that belong to what moves."""
    found: list[Node] = []
    pending: list[Node] = []
    last = max((m.end_byte for m in table.makers), default=table.declaration.end_byte)
    node = table.declaration.next_named_sibling
    while node is not None:
        if node.type == "comment":
            own = node.prev_named_sibling
            same_line = own is not None and own.end_point[0] == node.start_point[0]
            if same_line and (own == table.declaration or own in table.makers):
                found.append(node)
            elif not same_line:
                pending.append(node)
        elif node.start_byte >= last:
            break
        else:
            found += pending if node in table.makers else []
            pending = []
        node = node.next_named_sibling
    return found


def _first_thread(context: Context) -> str:
    blocks = [s.block for s in context.launched] or [(2, 2, 2)]
    axes = [a for i, a in enumerate("xyz") if a == "x" or any(b[i] != 1 for b in blocks)]
    return " && ".join(f"threadIdx.{a} == 0" for a in axes)


def _filled(context: Context, table: Table, step: str) -> list[str]:
    """The initialiser as an array of the one thread, and a loop that copies it."""
    assert table.values is not None
    if len(table.extents) != 1:
        raise RuleRefused(f"{table.array.name} has an initialiser of several dimensions")
    name, k = context.unused_here("values"), layout.unused_index(context)
    element = re.sub(r"\bconst\s+", "", table.array.type)
    value = context.slice(syntax.span(table.values)).splitlines()
    (extent,) = table.extents
    return [
        f"{step}const {element} {name}[{extent}] = {value[0]}",
        *value[1:-1],
        *([value[-1] + ";"] if len(value) > 1 else []),
        f"{step}for (int {k} = 0; {k} < {extent}; {k}++)",
        f"{step}{step}{table.array.name}[{k}] = {name}[{k}];",
    ]


def _lines(context: Context, node: Node, step: str) -> list[str]:
    outer = context.indent(node.start_byte)
    code = context.slice(syntax.span(node)).splitlines()
    return [step + code[0], *(step + line.removeprefix(outer) if line.strip() else "" for line in code[1:])]
