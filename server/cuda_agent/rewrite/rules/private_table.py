"""# 13 · private-table: a block counts in shared memory, not in global memory

Atomics in global memory go to the L2 cache one by one; those in shared memory stay on the multiprocessor. A block that
clears a table of its own in global memory and then only adds to it can keep the table in shared memory and store it
once, at the end.

Before:

    unsigned int *bins = out + blockIdx.x * 768;
    for (int i = t; i < 768; i += nt) bins[i] = 0;
    __syncthreads();
    …
    atomicAdd(&bins[value], 1);

After:

    unsigned int *bins = out + blockIdx.x * 768;
    __shared__ unsigned int table[768];
    for (int i = t; i < 768; i += nt) table[i] = 0;
    __syncthreads();
    …
    atomicAdd(&table[value], 1);
    …
    __syncthreads();
    for (int i = t; i < 768; i += nt) bins[i] = table[i];

Legal when: the whole block clears the table, its size is fixed when the kernel is compiled, and after a barrier it is
touched by atomics alone whose results nobody uses (proved); no thread has left the kernel before the end (proved); no
index is beyond the size (assumed; the judge checks bounds). Integers: bit-exact. Sums of floats change their order:
class "reassociated".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import layout, syntax
from cuda_agent.rewrite.analysis import blocks, shared
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import strip_parens

_SHARED_BYTES = 48 << 10  # of a block, without opting in
_COMMUTATIVE = ("atomicAdd", "atomicSub", "atomicMin", "atomicMax", "atomicAnd", "atomicOr", "atomicXor")
_BYTES = {"double": 8, "unsigned long long": 8, "long long": 8, "unsigned long long int": 8, "uint64_t": 8}


class PrivateTable(Rule):
    name = "private-table"
    number = 13

    def sites(self, context: Context) -> Iterator[Site]:
        if not context.shapes or "atomic" not in text(context.body):
            return
        for loop in syntax.of_type(context.body, "for_statement"):
            table = _cleared(context, loop)
            if table is not None:
                _check(context, table)
                yield Site(self.name, syntax.span(loop), {"table": table.pointer}, {"table": table})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        table: _Table = site.nodes["table"]
        name = next(n for n in ("table", f"{table.pointer}_table") if n not in layout.taken_names(context))
        indent = context.indent(table.clear.start_byte)
        line = context.eol + indent
        start, end = table.clear.start_byte, table.last.end_byte
        edits = [Edit(Span(start, start), f"__shared__ {table.element} {name}[{table.size}];{line}")]
        edits += [Edit(syntax.span(use), name) for use in table.uses]
        clear = context.slice(syntax.span(table.clear))
        at, length = table.store.start_byte - start, table.store.end_byte - table.store.start_byte
        stored = clear.encode("utf-8", "surrogateescape")
        copy = f"{table.pointer}[{table.variable}] = {name}[{table.variable}]".encode()
        loop = (stored[:at] + copy + stored[at + length :]).decode("utf-8", "surrogateescape")
        edits.append(Edit(Span(end, end), f"{line}{table.barrier}{line}{loop}"))
        exact = shared.is_integer(context, table.element)
        return Rewrite(
            tuple(edits),
            assumptions=(
                Assumption(f"the block touches {table.pointer} by atomics alone, after clearing it", "proved"),
                Assumption(f"no index of {table.pointer} is beyond {table.size}", "assumed"),
            ),
            numeric="bit-exact" if exact else "reassociated",
        )


@dataclass(frozen=True)
class _Table:
    """A table in global memory that one block clears and then adds to."""

    pointer: str
    element: str
    size: str  # text of the number of elements
    variable: str  # of the loop that clears
    clear: Node  # that loop
    store: Node  # the assignment of zero
    barrier: str
    uses: tuple[Node, ...]  # the pointer's name where it becomes the table's
    last: Node  # the statement of the kernel's body after which nothing touches the table


def _cleared(context: Context, loop: Node) -> _Table | None:
    """`for (int i = t; i < size; i += threads) p[i] = 0;` on the kernel's own level, with a barrier after it."""
    body = loop.child_by_field_name("body")
    inside = syntax.statements(body) if body is not None else []
    if loop.parent != context.body or len(inside) != 1 or inside[0].type != "expression_statement":
        return None
    write = next(syntax.writes(inside[0]), None)
    if write is None or write.op != "=" or write.value is None or not re.fullmatch(r"0u?", squeeze(text(write.value))):
        return None
    head = _strided(context, loop)
    found = [(a, i) for a, i, n in syntax.subscripts(write.target) if n == write.target]
    if head is None or not found or squeeze(text(found[0][1])) != head[0]:
        return None
    pointer = found[0][0]
    if not re.fullmatch(r"\w+", pointer) or pointer in {s.name for s in context.kernel.shared}:
        return None
    statements = syntax.statements(context.body)
    after = statements[statements.index(loop) + 1 :]
    barrier = blocks.barrier(after[0], context.body) if after else None
    touching = [s for s in after if syntax.uses(s, pointer)]
    if barrier is None or not touching:
        return None
    uses = [n for n in syntax.of_type(write.target, "identifier") if text(n) == pointer]
    uses += [n for s in touching for n in syntax.of_type(s, "identifier") if text(n) == pointer]
    element = _element(context, pointer)
    return _Table(pointer, element, head[1], head[0], loop, write.node, barrier, tuple(uses), touching[-1])


def _strided(context: Context, loop: Node) -> tuple[str, str] | None:
    """(variable, text of the bound) of a loop that deals its turns out to all threads of the block."""
    init, condition, update = (loop.child_by_field_name(f) for f in ("initializer", "condition", "update"))
    if init is None or condition is None or update is None:
        return None
    first = next(syntax.writes(init), None)
    step = next(syntax.writes(update), None)
    if first is None or step is None or first.name is None or first.value is None or step.value is None:
        return None
    if step.name != first.name or step.op != "+=" or not blocks.is_thread_index(context, first.value):
        return None
    for shape, templates in blocks.shapes(context):
        if blocks.value(context, step.value, shape, templates) != shape.threads:
            return None
    node = strip_parens(condition)
    if node.type != "binary_expression" or not squeeze(text(node)).startswith(f"{first.name}<"):
        return None
    return first.name, text(syntax.field(node, "right"))


def _element(context: Context, pointer: str) -> str:
    """The type of what a parameter or a local pointer points to."""
    parameter = next((p for p in context.kernel.params if p.name == pointer), None)
    if parameter is not None:
        return parameter.element
    for declaration in syntax.of_type(context.body, "declaration"):
        for declarator in declaration.children_by_field_name("declarator"):
            inner = declarator.child_by_field_name("declarator")
            kind = declaration.child_by_field_name("type")
            if inner is not None and kind is not None and squeeze(text(inner)) == f"*{pointer}":
                return text(kind)
    raise RuleRefused(f"the type of {pointer} is not known")


def _check(context: Context, table: _Table) -> None:
    if not blocks.is_constant(context, table.size):
        raise RuleRefused(f"the size of {table.pointer}, {table.size}, is not fixed when the kernel is compiled")
    if len(context.written.get(table.pointer, ())) > 1:
        raise RuleRefused(f"{table.pointer} is moved")
    node = next(n for n in syntax.walk(table.clear) if n.is_named and text(n) == table.size)
    for shape, templates in blocks.shapes(context):
        count = blocks.value(context, node, shape, templates)
        if count is None:
            raise RuleRefused(f"the size of {table.pointer}, {table.size}, is not known")
        if count * _BYTES.get(table.element, 4) + shape.shared > _SHARED_BYTES:
            raise RuleRefused(f"{count} elements of {table.pointer} do not fit into a block's shared memory")
    for use in table.uses[1:]:
        if not _is_atomic(use):
            raise RuleRefused(f"{table.pointer} is also touched without an atomic")
    if any(n.end_byte <= table.clear.start_byte for n in _all_uses(context, table.pointer) if not _declares(n)):
        raise RuleRefused(f"{table.pointer} is used before it is cleared")
    if next(blocks.leaves(context, table.last.end_byte), None) is not None:
        raise RuleRefused("some threads return before the end: they could not store the table")
    if next(syntax.of_type(context.body, "goto_statement"), None) is not None:
        raise RuleRefused("the kernel jumps")


def _all_uses(context: Context, name: str) -> list[Node]:
    return [n for n in syntax.of_type(context.body, "identifier") if text(n) == name]


def _declares(n: Node) -> bool:
    statement = syntax.enclosing_statement(n)
    return statement.type == "declaration" and next(syntax.of_type(statement, "identifier"), None) == n


def _is_atomic(use: Node) -> bool:
    """`atomicAdd(&p[i], v);` or `atomicAdd(p + i, v);`, its result unused."""
    current = use
    while current.parent is not None and current.parent.type != "argument_list":
        if current.parent.type not in ("subscript_expression", "pointer_expression", "binary_expression"):
            return False
        if current.parent.children[0] != current and current.parent.type != "pointer_expression":
            return False
        current = current.parent
    arguments = current.parent
    call = arguments.parent if arguments is not None else None
    if arguments is None or call is None or call.type != "call_expression" or arguments.named_children[0] != current:
        return False
    address = current.type == "pointer_expression" and text(current).startswith("&")
    sum_ = current.type == "binary_expression" and text(syntax.field(current, "operator")) == "+"
    unused = call.parent is not None and call.parent.type == "expression_statement"
    return (address or sum_) and unused and text(syntax.field(call, "function")) in _COMMUTATIVE
