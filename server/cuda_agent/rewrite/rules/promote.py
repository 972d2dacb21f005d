"""# 9 · promote: a memory cell that a loop keeps using becomes a register

A sum that is kept in memory is loaded and stored in every step, and every other load of the loop has to wait for the
store, because the compiler must believe that it may have changed what is loaded.

Before:

    sums[tid] = 0;
    for (int i = tid; i < n; i += THREADS)
        if (mask[i])
            sums[tid] += x[i];

After:

    sums[tid] = 0;
    float sums_tid = sums[tid];
    for (int i = tid; i < n; i += THREADS)
        if (mask[i])
            sums_tid += x[i];
    sums[tid] = sums_tid;

Legal when the subscript stays the same in the loop and nothing else in it may touch the cell: the array is used with
this subscript only, no thread waits for others there, and the other pointers do not overlap it (proved by `__shared__`
or `__restrict__`; captured where the arrays are different allocations). Where the loop may run zero times and the cell
is not used next to it (assumed), the cell is read, and written back, all the same. Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import ancestors, base, field, is_written, name_of, operator

Known = Literal["proved", "captured"]
_WAITS = re.compile(r"__sync|__threadfence|__barrier|\bsync\s*\(|\.wait\s*\(|\basm\b|__nanosleep")
_CONDITIONAL = ("if_statement", "conditional_expression", "switch_statement", *syntax.LOOPS)


@dataclass
class Cell:
    """One subscript of an array in a loop."""

    loop: Node
    root: str  # the array
    key: str  # the subscript without blanks
    nodes: list[Node]  # its uses in the loop
    known: Known = "proved"  # that nothing else touches it
    certain: bool = True  # it is used next to the loop too

    @property
    def written(self) -> bool:
        return any(is_written(n) for n in self.nodes)


class Promote(Rule):
    name = "promote"
    number = 9

    def sites(self, context: Context) -> Iterator[Site]:
        memory = Memory(context)
        cells: list[Cell] = []
        refused: list[str] = []
        for loop in syntax.of_type(context.body, *syntax.LOOPS):
            for cell in memory.cells(loop):
                if any(c.key == cell.key and syntax.span(c.loop).holds(syntax.span(loop)) for c in cells):
                    continue  # a loop around this one has it
                try:
                    memory.check(cell)
                    cells.append(cell)
                except RuleRefused as error:
                    refused.append(str(error))
        if cells:
            yield Site(self.name, syntax.span(cells[0].loop), {}, {"cells": cells, "memory": memory})
        elif refused:
            raise RuleRefused(refused[0])

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        cells: list[Cell] = site.nodes["cells"]
        memory: Memory = site.nodes["memory"]
        edits: list[Edit] = []
        known: dict[str, Assumption] = {}
        names: set[str] = set()
        for cell in cells:
            name = _name(context, cell, names)
            names.add(name)
            edits += _edits(context, cell, name, memory.element(cell.root))
            shown = text(cell.nodes[0])
            said = f"nothing else in the loop touches {shown}"
            known[said] = Assumption(said, cell.known)
            if not cell.certain:
                said = f"{shown} may be read even where the loop runs zero times"
                known[said] = Assumption(said, "assumed")
        return Rewrite(tuple(edits), assumptions=tuple(known.values()))


class Memory:
    """The arrays and pointers of one kernel, and which of them may overlap."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.params = {p.name: p for p in context.kernel.params if p.pointer == 1}
        self.shared = {s.name: s for s in context.kernel.shared}
        self.targets = context.pointer_targets()

    @cached_property
    def pointers(self) -> dict[str, frozenset[str]]:
        """Local pointer → the parameters and shared arrays it may point into, or "?"; empty of an array in
        registers."""
        found: dict[str, frozenset[str]] = {}
        unknown: set[str] = set()
        for declaration in syntax.of_type(self.context.body, "declaration"):
            automatic = text(syntax.field(declaration, "type")) == "auto"
            for declarator in declaration.children_by_field_name("declarator"):
                name = name_of(declarator)
                value = field(declarator, "value") if declarator.type == "init_declarator" else None
                inner = field(declarator, "declarator") if declarator.type == "init_declarator" else declarator
                if name is None or inner is None or name in self.shared:
                    continue
                if inner.type in ("pointer_declarator", "reference_declarator"):
                    unknown.add(name)
                elif inner.type != "array_declarator" and not (automatic and value is not None and _is_address(value)):
                    continue
                found[name] = frozenset()
        for _ in range(3):  # pointers made of pointers
            for write in syntax.writes(self.context.body):
                name = name_of(write.target) if write.op == "init" else write.name
                if name in found and write.value is not None:
                    used = syntax.identifiers(write.value)
                    reached = used & (self.params.keys() | self.shared.keys())
                    found[name] |= reached.union(*(found[p] for p in used & found.keys()))
        return {name: to or frozenset("?" if name in unknown else "") for name, to in found.items()}

    def element(self, root: str) -> str:
        """The type of an element, as spelled; "auto" where the text does not say it in one place."""
        if root in self.params:
            return self.params[root].element
        return self.shared[root].element if root in self.shared else "auto"

    # ---------------------------------------------------------------- what a loop uses

    def cells(self, loop: Node) -> Iterator[Cell]:
        """Subscripts of memory that stay the same in the loop, one an array."""
        uses: dict[str, list[Node]] = {}
        for node in syntax.of_type(loop, "subscript_expression"):
            outer = node.parent
            if outer is not None and outer.type == "subscript_expression" and field(outer, "argument") == node:
                continue
            array = node
            while array.type == "subscript_expression":
                array = syntax.field(array, "argument")
            if array.type == "identifier" and self._is_memory(text(array)):
                uses.setdefault(text(array), []).append(node)
        changed = {w.name for w in syntax.writes(loop)} | syntax.declared(loop)
        for root, nodes in uses.items():
            for key in sorted({squeeze(text(n)) for n in nodes}):
                same = [n for n in nodes if squeeze(text(n)) == key]
                fixed = not syntax.identifiers(same[0]) & changed and not self._indirect(same[0])
                if fixed and (any(is_written(n) for n in same) or syntax.memory_writes(loop)):
                    yield Cell(loop, root, key, same)

    def _is_memory(self, name: str) -> bool:
        return name in self.params or name in self.shared or bool(self.pointers.get(name))

    def _indirect(self, node: Node) -> bool:
        """The subscript itself reads memory, or calls something that is no macro of the file."""
        index = [n for n in syntax.of_type(node, "subscript_expression", "pointer_expression") if n != node]
        chain = [n for n in index if base(n) == base(node) and node.start_byte == n.start_byte]
        if len(index) != len(chain):
            return True
        defined = re.findall(r"#\s*define\s+(\w+)\(", self.context.text)
        return any(name not in defined for name, _ in syntax.calls(node))

    # ---------------------------------------------------------------- legality

    def check(self, cell: Cell) -> None:
        """Sets what is known of the cell. RuleRefused where something else may touch it."""
        shown = text(cell.nodes[0])
        if cell.loop.parent is None or cell.loop.parent.type != "compound_statement":
            raise RuleRefused(
                "the loop is the whole body of an if or of another loop: there is no place for a register"
            )
        if _WAITS.search(text(cell.loop)):
            raise RuleRefused(f"threads wait for each other in the loop: another may use {shown}")
        if next(syntax.of_type(cell.loop, "return_statement", "goto_statement", "lambda_expression"), None):
            raise RuleRefused("the loop may be left without reaching its end")
        if cell.root in self.params and "volatile" in self.params[cell.root].type:
            raise RuleRefused(f"{cell.root} is volatile")
        condition = field(cell.loop, "condition")
        asked = syntax.identifiers(condition) if condition is not None else set()
        if cell.root in asked or (cell.loop.type != "for_statement" and any(self._is_memory(n) for n in asked)):
            raise RuleRefused("the loop goes on as long as memory says: it may wait for another thread")
        self._check_uses(cell, shown)
        self._check_views(cell)
        for other, stored in self._others(cell).items():
            if not (cell.written or stored):
                continue
            known = self._apart(cell.root, other)
            if known is None:
                raise RuleRefused(f"{other} may overlap {cell.root}")
            cell.known = "captured" if known == "captured" else cell.known
        self._check_ends(cell, shown)

    def _check_uses(self, cell: Cell, shown: str) -> None:
        """The array is only used with this subscript, as a value."""
        ids = {id_of(base(n)) for n in cell.nodes}
        for n in syntax.of_type(cell.loop, "identifier"):
            if text(n) == cell.root and id_of(n) not in ids:
                raise RuleRefused(f"{cell.root} is used with other subscripts in the loop too")
        for n in cell.nodes:
            parent = n.parent
            while parent is not None and parent.type == "parenthesized_expression":
                parent = parent.parent
            if parent is None or parent.type in ("field_expression", "subscript_expression"):
                raise RuleRefused(f"{shown} is used in parts")
            if parent.type == "pointer_expression" and text(parent).startswith("&"):
                raise RuleRefused(f"the address of {shown} is taken")
            if parent.type == "argument_list" and parent.parent is not None:
                called = (
                    text(syntax.field(parent.parent, "function")) if parent.parent.type == "call_expression" else ""
                )
                if not _takes_values(called):
                    raise RuleRefused(f"{called} may change {shown}")

    def _check_views(self, cell: Cell) -> None:
        """No object that may hold a pointer is used."""
        own = {p.name for p in self.context.kernel.params if p.name not in self.params} | syntax.declared(
            self.context.body
        )
        for n in syntax.of_type(cell.loop, "subscript_expression", "pointer_expression", "call_expression"):
            inner = base(syntax.field(n, "function") if n.type == "call_expression" else n)
            known = self._is_memory(text(inner)) or text(inner) in self.pointers
            if n.type == "pointer_expression" and inner.type != "identifier":
                continue  # *(p + i): p is among the loop's identifiers
            if inner.type == "identifier" and text(inner) in own and not known and not text(n).startswith("&"):
                raise RuleRefused(f"{text(inner)} may hold a pointer to {text(cell.nodes[0])}")

    def _others(self, cell: Cell) -> dict[str, bool]:
        """Other arrays and pointers that the loop uses, and whether it may write through them."""
        found: dict[str, bool] = {}
        for n in syntax.of_type(cell.loop, "identifier"):
            name = text(n)
            if name == cell.root or not self._is_memory(name):
                continue
            outer = n.parent
            while outer is not None and outer.type in (
                "subscript_expression",
                "parenthesized_expression",
                "cast_expression",
            ):
                n, outer = outer, outer.parent
            plain = n.type == "subscript_expression" and not is_written(n)
            constant = name in self.params and self.params[name].const
            found[name] = found.get(name, False) or not (plain or constant)
        return found

    def _apart(self, a: str, b: str) -> Known | None:
        """How it is known that two arrays do not overlap; None when it is not."""
        first, second = self._reaches(a), self._reaches(b)
        pairs = [(x, y) for x in first for y in second]
        found: list[Known | None] = [self._distinct(x, y) for x, y in pairs]
        if not found or None in found:
            return None
        return "captured" if "captured" in found else "proved"

    def _reaches(self, name: str) -> frozenset[str]:
        return self.pointers.get(name) or frozenset((name,))

    def _distinct(self, a: str, b: str) -> Known | None:
        if a == b:
            return None
        if a in self.shared or b in self.shared:
            dynamic = all(x in self.shared and self.shared[x].dynamic for x in (a, b))
            return None if dynamic else "proved"
        if self.params[a].restrict and self.params[b].restrict:
            return "proved"
        apart = self.targets and all(a in t and b in t and t[a][0] != t[b][0] for t in self.targets)
        return "captured" if apart else None

    def _check_ends(self, cell: Cell, shown: str) -> None:
        """The cell may be read before the loop, and written behind it."""
        near = list(_beside(cell.loop))
        used = [n for s in near for n in syntax.of_type(s, "subscript_expression") if squeeze(text(n)) == cell.key]
        first = min(cell.nodes, key=lambda n: n.start_byte)
        stored_before = any(n.start_byte < cell.loop.start_byte for n in used)
        store = first.parent if is_written(first) else None
        if store is not None and operator(store) == "=" and not stored_before:
            inside = [n for n in cell.nodes if n != first and syntax.span(store).holds(syntax.span(n))]
            if not inside:
                raise RuleRefused(f"{shown} is written before it is read: it may hold nothing before the loop")
        if used:
            return
        cell.certain = False
        if not any(_unconditional(n, cell.loop) for n in cell.nodes):
            raise RuleRefused(f"not every step of the loop uses {shown}: it may be no cell of this thread")


def _is_address(value: Node) -> bool:
    """Whether an initialiser of an `auto` variable looks like a pointer: `p`, `p + i`, `&x[i]`, a cast to one."""
    if value.type == "binary_expression":
        return operator(value) in ("+", "-") and any(n.type == "identifier" for n in value.children)
    if value.type == "pointer_expression":
        return text(value).startswith("&")
    return value.type == "identifier" or (value.type in ("cast_expression", "call_expression") and "*" in text(value))


def id_of(node: Node) -> tuple[int, int]:
    return node.start_byte, node.end_byte


def _takes_values(called: str) -> bool:
    """Casts and mathematical functions, which take what they are given by value."""
    return bool(
        re.match(
            r"static_cast\b|(?:float|double|int|unsigned|T|\w+_t)$|(?:std::)?(?:f?min|f?max|abs|fabs|sqrt|exp|log|pow|fma)f?$|__\w+",
            called,
        )
    )


def _beside(loop: Node) -> Iterator[Node]:
    """Statements that run whenever the loop is reached, without a barrier or a change of control between."""
    current: Node | None = loop
    while current is not None and current.parent is not None and current.type != "function_definition":
        if current.parent.type == "compound_statement":
            siblings = [n for n in syntax.statements(current.parent) if n.type != "preproc_call"]  # pragmas
            at = siblings.index(current)
            for statement in reversed(siblings[:at]):
                if _WAITS.search(text(statement)) or statement.type not in ("expression_statement", "declaration"):
                    break
                yield statement
            if current == loop:
                for statement in siblings[at + 1 :]:
                    if _WAITS.search(text(statement)) or statement.type not in ("expression_statement", "declaration"):
                        break
                    yield statement
        if current.parent.type in syntax.LOOPS or current.parent.type == "function_definition":
            return
        current = current.parent


def _unconditional(node: Node, loop: Node) -> bool:
    """Every step of the loop evaluates the node."""
    for above in ancestors(node, _CONDITIONAL):
        if above == loop:
            body = field(loop, "body")
            return body is not None and body.start_byte <= node.start_byte
        return False
    return False


# ---------------------------------------------------------------- text


def _name(context: Context, cell: Cell, taken: set[str]) -> str:
    index = re.fullmatch(r".*\[(\w+)\]", cell.key)
    wanted = f"{cell.root}_{index[1]}" if index and not index[1].isdigit() else f"{cell.root}_value"
    name = context.unused(wanted)
    return name if name not in taken else f"{name}_{len(taken) + 1}"


def _edits(context: Context, cell: Cell, name: str, element: str) -> list[Edit]:
    eol, indent = context.eol, context.indent(cell.loop.start_byte)
    shown = context.slice(syntax.span(cell.nodes[0]))
    edits = [Edit(syntax.span(n), name) for n in cell.nodes]
    declared = f"{'' if cell.written else 'const '}{element} {name} = {shown};"
    start = _first_pragma(context, cell.loop.start_byte)
    if start is None:
        at = cell.loop.start_byte
        edits.append(Edit(Span(at, at), f"{declared}{eol}{indent}"))
    else:
        edits.append(Edit(Span(start, start), f"{indent}{declared}{eol}"))
    if cell.written:
        edits.append(Edit(Span(cell.loop.end_byte, cell.loop.end_byte), f"{eol}{indent}{shown} = {name};"))
    return edits


def _first_pragma(context: Context, at: int) -> int | None:
    """The start of the first of the `#pragma` lines directly above."""
    data = context.module.document.data
    line, found = data.rfind(b"\n", 0, at) + 1, None
    while line > 0:
        above = data.rfind(b"\n", 0, line - 1) + 1
        if not data[above:line].lstrip().startswith(b"#pragma"):
            break
        line = found = above
    return found
