"""# 13 · block-table: a block counts in shared memory first

Blocks that add to one table in global memory wait for each other at its few addresses. Each block can add to a table of
its own in shared memory and hand over what it counted, once, at the end; where the loop goes over the grid, fewer
blocks then hand over fewer tables.

Before:

    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int bin = x[i] * bins;
        atomicAdd(&out[bin], 1);
    }

After (and a 32nd of the blocks):

    __shared__ int table[768];
    for (int k = threadIdx.x; k < 768; k += blockDim.x)
        table[k] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int bin = x[i] * bins;
        if ((unsigned int)bin < 768)
            atomicAdd(&table[bin], 1);
        else
            atomicAdd(&out[bin], 1);
    }
    __syncthreads();
    for (int k = threadIdx.x; k < 768; k += blockDim.x)
        if (table[k] != 0) atomicAdd(&out[k], table[k]);

The table has as many elements as were captured; a place beyond it is added to in global memory, as before, so a larger
table at another launch is right too. Its room is what the launches that come to the loop leave of a block's shared
memory: an instantiation whose template arguments drop the branch has no table (in a build without -G). Legal when the
loop only adds to the table, nobody uses what the atomics return or reads the table in this kernel, all threads of the
block come to the loop and none leaves the kernel in it (proved), and no pointer that is read overlaps the table
(captured). Integers: bit-exact. Sums of floats change their order: class "reassociated".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, LaunchMap, Span
from cuda_agent.rewrite import launches, layout, syntax
from cuda_agent.rewrite.analysis import aliasing, blocks, live, shared, uniform
from cuda_agent.rewrite.analysis.arithmetic import Types
from cuda_agent.rewrite.analysis.elements import element_size
from cuda_agent.rewrite.analysis.functions import definitions
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.rules.grid_size import BLOCKS_PER_SM, loop_macro, only_starts, strides_by_grid
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import LOOPS, ancestors, arguments, callee

_SHARED_BYTES = 48 << 10  # of a block, without opting in
_NEUTRAL_ZERO = ("atomicAdd", "atomicOr", "atomicXor")
_TALKS = re.compile(r"\bvolatile\b|__threadfence|\bgrid\.sync|this_grid|\b__nanosleep|\batomic(?:CAS|Exch)\b")
_LINEAR = (  # a thread's index and the number of threads, of blocks of one, two and three dimensions
    ("threadIdx.x", "blockDim.x"),
    ("threadIdx.y * blockDim.x + threadIdx.x", "blockDim.x * blockDim.y"),
    ("(threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x", "blockDim.x * blockDim.y * blockDim.z"),
)
_TURNS = 4  # of a block that clears and hands over a table without fewer blocks


@dataclass(frozen=True)
class _Add:
    """One atomic on the table, a statement of its own."""

    statement: Node
    call: Node
    index: Node


@dataclass(frozen=True)
class _Table:
    pointer: str
    element: str
    size: int  # elements in shared memory
    loop: Node  # the statement of which all atomics are part
    adds: tuple[_Add, ...]
    atomic: str  # atomicAdd …


class BlockTable(Rule):
    name = "block-table"
    number = 13

    def sites(self, context: Context) -> Iterator[Site]:
        if not context.shapes or "atomic" not in context.text:
            return
        table = _found(context)
        if table is None:
            return
        for divide in _divisors(context, table):
            params = {"table": table.pointer, "elements": table.size, "divide": divide}
            yield Site(self.name, syntax.span(table.loop), params, {"table": table})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        table: _Table = site.nodes["table"]
        divide: int = site.params["divide"]
        edits = list(_edits(context, table))
        assumptions = [
            Assumption(f"nothing in the kernel reads {table.pointer}: it may be added to later", "proved"),
            Assumption(f"{table.pointer} overlaps no array that the kernel reads", "captured"),
        ]
        if divide == 1:
            mapping = LaunchMap()
        else:
            fewer, mapping = launches.fewer_blocks(context, divide)
            edits += fewer
            said = "gridDim.x is only the stride of the loop, so any number of blocks covers it"
            assumptions.append(Assumption(said, "proved"))
        exact = table.atomic != "atomicAdd" or shared.is_integer(context, table.element)
        return Rewrite(tuple(edits), mapping, tuple(assumptions), "bit-exact" if exact else "reassociated")


# ---------------------------------------------------------------- what is found


def _found(context: Context) -> _Table | None:
    """The first parameter that a loop adds to at places that differ from thread to thread."""
    adds: dict[str, list[_Add]] = {}
    functions: dict[str, set[str]] = {}
    for call in syntax.of_type(context.body, "call_expression"):
        atomic, one = _atomic(context, call), _add(call)
        if atomic is None or one is None:
            continue
        pointer, add = one
        if _loops(context, call) and _varies(context, add):
            adds.setdefault(pointer, []).append(add)
            functions.setdefault(pointer, set()).add(atomic)
    pointers = {p.name: p for p in context.kernel.params if p.pointer == 1 and not p.const}
    for pointer, found in adds.items():
        if pointer in pointers and len(functions[pointer]) == 1:
            loop = _outermost_loop(context, found)
            if loop is None:
                raise RuleRefused(f"several loops add to {pointer}")
            _check(context, pointer, loop)
            element = pointers[pointer].element
            size = _size(context, pointer, element, loop)
            return _Table(pointer, element, size, loop, tuple(found), functions[pointer].pop())
    return None


def _atomic(context: Context, call: Node) -> str | None:
    """The atomic function that a call is: by its name, or because the function of this file that it calls does nothing
    but that with its own two parameters."""
    name = callee(call) or ""
    if name in _NEUTRAL_ZERO:
        return name
    known = definitions(context.module).get(name.rpartition("::")[2], ())
    if len(known) != 1 or "__device__" not in text(known[0]).partition("{")[0]:
        return None
    body = syntax.field(known[0], "body")
    inside = syntax.statements(body)
    parameters = next(syntax.of_type(known[0], "parameter_list")).named_children
    given = [next((text(n) for n in syntax.of_type(p, "identifier")), "") for p in parameters]
    if (
        len(inside) != 1
        or inside[0].type != "expression_statement"
        or len(given) != 2
        or "*" not in text(parameters[0])
    ):
        return None
    inner = next(syntax.of_type(inside[0], "call_expression"), None)
    if inner is None or inner.parent != inside[0] or callee(inner) not in _NEUTRAL_ZERO:
        return None
    return callee(inner) if [text(a) for a in arguments(inner)] == given else None


def _add(call: Node) -> tuple[str, _Add] | None:
    """`atomicAdd(&p[i], v);` or `atomicAdd(p + i, v);` as a statement: (p, the rest)."""
    statement, given = call.parent, arguments(call)
    if statement is None or statement.type != "expression_statement" or len(given) != 2:
        return None
    place = given[0]
    if place.type == "pointer_expression" and text(place).startswith("&"):
        element = syntax.field(place, "argument")
        found = next(syntax.subscripts(element), None) if element.type == "subscript_expression" else None
        if found is None or found[2] != element or not re.fullmatch(r"\w+", found[0]):
            return None
        return found[0], _Add(statement, call, found[1])
    if place.type == "binary_expression" and text(syntax.field(place, "operator")) == "+":
        left = syntax.field(place, "left")
        if left.type == "identifier":
            return text(left), _Add(statement, call, syntax.field(place, "right"))
    return None


def _varies(context: Context, add: _Add) -> bool:
    """Threads add at different places, and not each at its own: the place comes from what was loaded or computed."""
    index = squeeze(text(add.index))
    if re.fullmatch(r"\d+\w*", index) or blocks.is_thread_index(context, add.index):
        return False
    if _strided(context, add):
        return False
    in_macro = any(loop.type == "function_definition" for loop in _loops(context, add.call))  # its variable is unknown
    return in_macro or uniform.level(context, add.index) not in ("block", "grid")


def _strided(context: Context, add: _Add) -> bool:
    """The place is the variable of the loop around: every thread has places of its own."""
    around = next((a for a in ancestors(add.statement, LOOPS)), None)
    counted = syntax.counted_loop(around) if around is not None and around.type == "for_statement" else None
    update = around.child_by_field_name("update") if around is not None else None
    moved = {w.name for w in syntax.writes(update)} if update is not None else set()
    return squeeze(text(add.index)) in {*moved, counted.variable if counted is not None else ""}


def _loops(context: Context, node: Node) -> list[Node]:
    """The loops around a node, innermost first; a macro of the file may be one."""
    around = ancestors(node, (*LOOPS, "function_definition"))
    inside = (a for a in around if syntax.span(context.body).holds(syntax.span(a)))
    return [a for a in inside if a.type in LOOPS or loop_macro(context, a)]


def _outermost_loop(context: Context, adds: list[_Add]) -> Node | None:
    """The one loop of the kernel's own level, or of a branch of it, in which all the atomics stand."""
    loops = {_loops(context, one.call)[-1] for one in adds}
    return loops.pop() if len(loops) == 1 else None


def _size(context: Context, pointer: str, element: str, loop: Node) -> int:
    """As many elements as the pointer has in the captured launches, or as fit. Launches of instantiations that have no
    such loop have no table either."""
    size = element_size(context, pointer, element)
    if size not in (4, 8):
        raise RuleRefused(f"the size of {element} is not known, or no atomic of shared memory takes it")
    assert context.workload is not None
    comes = live.reached(context, loop)
    if not any(comes[: len(context.shapes)]):
        raise RuleRefused("no captured launch comes to the loop that adds: its template arguments decide so")
    room = _SHARED_BYTES - max(s.shared for s, here in zip(context.launched, comes, strict=True) if here)
    room -= context.facts.shared_bytes if context.facts is not None else 0
    most = 0
    for launch, targets, here in zip(context.workload.launches, context.pointer_targets(), comes, strict=False):
        if not here:
            continue
        if pointer not in targets:
            raise RuleRefused(f"where {pointer} points to was not captured")
        number, offset = targets[pointer]
        count = (launch.buffers[number].size - offset) // size
        most = max(most, count if count * size <= room else 0)
    if most == 0:
        raise RuleRefused(f"{pointer} has more elements than the shared memory of a block")
    return most


def _check(context: Context, pointer: str, loop: Node) -> None:
    if _TALKS.search(text(context.body)):
        raise RuleRefused("threads tell each other things by memory here: an atomic must not come later")
    if pointer in context.written:
        raise RuleRefused(f"{pointer} is moved")
    for use in (n for n in syntax.of_type(context.body, "identifier") if text(n) == pointer):
        call = next(ancestors(use, ("call_expression",)), None)
        if call is None or _atomic(context, call) is None or (found := _add(call)) is None or found[0] != pointer:
            raise RuleRefused(f"{pointer} is also used without an atomic")
    inside = next(syntax.of_type(loop, "return_statement"), None)
    if inside is not None or next(blocks.leaves(context, loop.end_byte), None) is not None:
        raise RuleRefused("some threads return before the end: they could not hand over the table")
    if next(syntax.of_type(context.body, "goto_statement"), None) is not None:
        raise RuleRefused("the kernel jumps")
    if loop.parent is None or loop.parent.type != "compound_statement" or not uniform.reached_together(context, loop):
        raise RuleRefused("not all threads of a block come to the loop that adds")
    others = {p.name for p in context.kernel.params if p.pointer and p.name != pointer}
    if meets := aliasing.conflicts(context, context.workload, others, {pointer}):
        raise RuleRefused(f"{meets[0][0]} and {pointer} overlap in a captured launch")


def _divisors(context: Context, table: _Table) -> Iterator[int]:
    """Of the number of blocks: some that leave every multiprocessor its fill, with a table's cost in mind; 1 where
    blocks are few already, or a table takes few turns."""
    threads, blocks_ = min(s.threads for s in context.shapes), min(s.blocks for s in context.shapes)
    sms = context.device.sms if context.device else 132
    if strides_by_grid(context) and only_starts(context, "x"):
        fewest = min(s.grid[0] for s in context.shapes)
        fitting = [k for k in (2**i for i in range(1, 13)) if blocks_ // k >= BLOCKS_PER_SM * sms and fewest // k >= 1]
        if fitting:
            yield from (k for k in (fitting[-1], 4 * fitting[-1], 2 * fitting[-1]) if fewest // k >= 1)
            return
    if table.size <= _TURNS * threads or blocks_ <= 2 * BLOCKS_PER_SM * sms:
        yield 1


# ---------------------------------------------------------------- the new text


def _edits(context: Context, table: _Table) -> Iterator[Edit]:
    step = layout.unit(context)
    axes = max(3 if s.block[2] > 1 else 2 if s.block[1] > 1 else 1 for s in context.launched)
    thread, threads = _LINEAR[axes - 1]
    taken = layout.taken_names(context)
    name = next(n for n in ("table", f"{table.pointer}_table", *(f"table{i}" for i in range(2, 99))) if n not in taken)
    k = layout.unused_index(context)
    head = f"for (int {k} = {thread}; {k} < {table.size}; {k} += {threads})"
    yield from layout.insert_before(
        context,
        table.loop,
        [f"__shared__ {table.element} {name}[{table.size}];", head, f"{step}{name}[{k}] = 0;", "__syncthreads();"],
    )
    types = Types(context.kernel, context.body)
    for one in table.adds:
        yield from _choice(context, table, one, name, types)
    end = table.loop.end_byte
    line = context.eol + context.indent(table.loop.start_byte)
    give = f"if ({name}[{k}] != 0) {table.atomic}(&{table.pointer}[{k}], {name}[{k}]);"
    yield Edit(Span(end, end), f"{line}__syncthreads();{line}{head}{line}{step}{give}")


def _choice(context: Context, table: _Table, one: _Add, name: str, types: Types) -> Iterator[Edit]:
    """The atomic on the block's table where the place is in it, else as it was."""
    step = layout.unit(context)
    function = text(syntax.field(one.call, "function"))
    value = context.slice(syntax.span(arguments(one.call)[1]))
    index = context.slice(syntax.span(one.index))
    wide = {"unsigned": "unsigned int", "uint64": "size_t", "int64": "size_t"}.get(types.of(one.index), "unsigned int")
    lines = []
    if not re.fullmatch(r"\w+", index):
        place = context.unused_here("bin")
        kind = {"int": "int", "unsigned": "unsigned int", "uint64": "size_t", "int64": "long long"}
        lines.append(f"const {kind.get(types.of(one.index), 'auto')} {place} = {index};")
        if types.of(one.index) not in kind:
            wide = "size_t"
        index = place
    elif types.of(one.index) not in ("int", "unsigned", "uint64", "int64"):
        wide = "size_t"
    small = index if types.of(one.index) in ("unsigned", "uint64") else f"({wide}){index}"
    lines += [
        f"if ({small} < {table.size})",
        f"{step}{function}(&{name}[{index}], {value});",
        "else",
        f"{step}{function}(&{table.pointer}[{index}], {value});",
    ]
    statement, above = one.statement, one.statement.parent
    indent = context.indent(statement.start_byte)
    if above is None or above.type == "compound_statement" or len(lines) == 4:
        yield Edit(syntax.span(statement), (context.eol + indent).join(lines))
        return
    before = statement.prev_sibling
    start = before.end_byte if before is not None else statement.start_byte
    outer = context.indent(above.start_byte)
    inside = "".join(f"{context.eol}{outer}{step}{code}" for code in lines)
    yield Edit(Span(start, statement.end_byte), f" {{{inside}{context.eol}{outer}}}")
