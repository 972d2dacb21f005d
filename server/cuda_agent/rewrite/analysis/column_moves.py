"""What a thread that takes several neighbouring columns reads and writes together, and what must hold for it: the
columns go through the loops in step, what is written lies in places of their own, and neighbours begin at multiples of
the width."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.column_index import ColumnIndex
from cuda_agent.rewrite.analysis.column_parts import ColumnParts, Loop, Run
from cuda_agent.rewrite.analysis.column_variables import carried
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.analysis.effects import macros, touched
from cuda_agent.rewrite.analysis.elements import largest_element
from cuda_agent.rewrite.analysis.groups import Groups, Needs, divisible, ever, solve
from cuda_agent.rewrite.analysis.neighbours import Access, Body
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text

_BYTES = 32  # that two instructions move at most


@dataclass(frozen=True, eq=False)
class Move:
    """Neighbours in one array, of a run's accesses at the same place."""

    array: str
    element: str
    size: int  # bytes of an element


class ColumnMoves:
    """The kernel in parts, with what each run moves. RuleRefused where a thread may not take several columns.
    `chosen`: the extents that must be multiples of the width; `aligned`: bytes that an array's pointer must be aligned
    to; `carried`: variables that become arrays, with their declarations."""

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
        if has_loops(context) and not any(isinstance(p, Loop) for p in self.split.parts):
            raise RuleRefused("no loop has as many iterations for every column")
        self.needs: Needs = self._bound()
        self.roots = {a: self.names.roots(a.array) for a in self.body.accesses}
        self.keys = {a: self._key(a) for a in self.body.accesses}
        self.moves: dict[Access, Move] = {}
        self.aligned: dict[str, int] = {}
        self._own_columns(written)
        for run in self.split.runs:
            self._moves(run)
        if not any(self._in_loop(a) for a in self.moves) and (has_loops(context) or not self.moves):
            raise RuleRefused("no array is read or written at neighbouring places in the loop")
        self.carried = carried(context, self.split.runs)
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

    def _moves(self, run: Run) -> None:
        made: dict[str, Move] = {}
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
            if not self.always([a for a in together if a.kind != "read" or root not in stored], run):
                continue
            nbytes = largest_element(self.context, root, element)
            if nbytes is None or nbytes * self.width > _BYTES:
                continue  # one by one
            self.moves[access] = made.setdefault(key, Move(access.name, element, nbytes))
            self.aligned[root] = max(self.aligned.get(root, 0), nbytes * self.width)
            self.needs = (*self.needs, *needs)

    @staticmethod
    def _key(access: Access) -> str:
        return squeeze(text(access.array)) + "@" + squeeze(text(access.index) if access.index is not None else "")

    def always(self, accesses: list[Access], run: Run) -> bool:
        """Whether the run comes to one of the accesses, whatever its conditions are."""
        nodes = {a.node.id for a in accesses}
        return any(_comes_to(nodes, statement) for statement in run.each)

    def _in_loop(self, access: Access) -> bool:
        loops = [p for p in self.split.parts if isinstance(p, Loop)]
        return any(syntax.span(p.node).holds(syntax.span(access.node)) for p in loops)


def has_loops(context: Context) -> bool:
    return next(syntax.of_type(context.body, *syntax.LOOPS), None) is not None


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
