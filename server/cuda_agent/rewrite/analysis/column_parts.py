"""The statements of a kernel whose thread is to take several neighbouring columns: those that only find places, made
once for all columns; loops that all columns go through together; and runs of statements that each column does for
itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.groups import OPAQUE, SAME, Groups, Value
from cuda_agent.rewrite.analysis.names import by_reference, by_value
from cuda_agent.rewrite.analysis.once import finds_places
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import arguments, callee, name_of, strip_parens

_ROUNDS = 12  # each adds a variable that the columns do not share


@dataclass
class Run:
    """Statements that follow each other and that each column does for itself. `first`: statements between them that
    find places, and can stand before them all."""

    each: list[Node] = field(default_factory=list)
    first: list[Node] = field(default_factory=list)
    known: dict[str, Value] = field(default_factory=dict)

    def holds(self, node: Node) -> bool:
        return any(syntax.span(s).holds(syntax.span(node)) for s in self.each)


@dataclass
class Loop:
    """A loop that has as many iterations for every column, in step."""

    node: Node
    parts: list[Run | Loop]


Parts = list["Run | Loop"]


class ColumnParts:
    """The parts of some `sections` of statements along the variable `index`; `written` are the arrays that the kernel
    writes."""

    def __init__(self, groups: Groups, index: str, sections: Sequence[Sequence[Node]], written: frozenset[str]) -> None:
        self.groups, self.index, self.written = groups, index, written
        self.varying: set[str] = set()
        for _ in range(_ROUNDS):
            before = set(self.varying)
            self.known: dict[str, Value] = {}
            self.parts = [part for section in sections for part in self._parts(section)]
            if before == self.varying:
                return
        raise RuleRefused("it cannot be told what the columns share")

    @property
    def runs(self) -> list[Run]:
        return list(_runs(self.parts))

    def _parts(self, statements: Sequence[Node]) -> Parts:
        parts: Parts = []
        open_: Run | None = None
        for statement in statements:
            if statement.type.startswith("preproc") or statement.type == ";":
                continue
            if self._own(statement):
                self.known[self.index] = Value(1, multiple=())
                open_ = None
                continue
            if (loop := self._loop(statement)) is not None:
                parts.append(loop)
                open_ = None
                continue
            after = self._once(statement)
            if after is None:
                if open_ is None:
                    open_ = Run()
                    parts.append(open_)
                open_.each.append(statement)
                changed = set(changes(self.groups, statement))
                self.varying |= changed
                self.known |= dict.fromkeys(changed, OPAQUE)
                open_.known = dict(self.known)
                continue
            self.known = after
            if open_ is not None:
                used = set().union(*(syntax.identifiers(s) for s in open_.each))
                if statement.type == "declaration" and not syntax.declared(statement) & used:
                    open_.first.append(statement)
                    open_.known = dict(self.known)
                else:
                    open_ = None
        for run in (p for p in parts if isinstance(p, Run)):
            last = run.each[-1].start_byte
            run.first = [s for s in run.first if s.start_byte < last]
        return parts

    def _own(self, statement: Node) -> bool:
        """The declaration of the column's index."""
        return statement.type == "declaration" and self.index in syntax.declared(statement)

    def _once(self, statement: Node) -> dict[str, Value] | None:
        if set(changes(self.groups, statement)) & self.varying or self._reads_written(statement):
            return None
        if any(not self._computes(call) for call in syntax.of_type(statement, "call_expression")):
            return None
        return finds_places(self.groups, statement, self.known)

    def _computes(self, call: Node) -> bool:
        """The call does nothing but compute a value."""
        name = callee(call) or ""
        if by_value(name) or name.startswith("static_cast"):
            return True
        returned = self.groups.returned(name)
        return (
            returned is not None
            and not syntax.COOPERATION.search(text(returned[1]))
            and all(by_value(callee(inner) or "") for inner in syntax.of_type(returned[1], "call_expression"))
        )

    def _reads_written(self, node: Node) -> bool:
        names = self.groups.names
        places = syntax.of_type(node, "subscript_expression", "pointer_expression")
        return any(names.roots(n) & self.written or not names.roots(n) for n in places)

    def _loop(self, node: Node) -> Loop | None:
        """The loop, if the columns go through it in step."""
        if node.type != "for_statement" or _leaves(node):
            return None
        entry, varying = dict(self.known), set(self.varying)
        heads = [node.child_by_field_name(f) for f in ("initializer", "condition", "update")]
        body = node.child_by_field_name("body")
        if body is None or any(h is not None and self._reads_written(h) for h in heads):
            return None
        for write in syntax.writes(body):
            if write.op != "init" and write.name is not None and write.name not in entry:
                entry[write.name] = self.groups.value(write.target, entry)
        for _ in range(4):
            self.known = dict(entry)
            counted = self._head(heads)
            parts = self._parts(syntax.statements(body)) if counted else []
            if not counted or set(counted) & self.varying:
                self.known, self.varying = entry, varying
                return None
            merged = {n: self._merged(entry[n], self.known.get(n, OPAQUE)) for n in entry}
            if merged == entry:
                self.known = dict(entry)
                return Loop(node, parts) if any(True for _ in _runs(parts)) else None
            entry = merged
        self.known, self.varying = entry, varying
        return None

    def _merged(self, one: Value, other: Value) -> Value:
        if one == other:
            return one
        value = self.groups.merged(one, other)
        multiple = None if value.multiple is None else tuple(dict.fromkeys(value.multiple))
        return Value(value.stride, tuple(dict.fromkeys(value.needs)), multiple)

    def _head(self, heads: Sequence[Node | None]) -> set[str]:
        """The variables that the loop counts with; empty when the columns may not do so together."""
        init, condition, update = heads
        if condition is None or update is None:
            return set()
        counted: set[str] = set()
        for write in syntax.writes(init) if init is not None else ():
            name = write.name if write.op != "init" else name_of(write.target)
            if name is None or write.value is None or not self.groups.value(write.value, self.known).same:
                return set()
            counted.add(name)
        self.known |= dict.fromkeys(counted, SAME)
        for write in syntax.writes(update):
            value = self._stepped(write)
            if write.name is None or value.stride is None:
                return set()
            counted.add(write.name)
            self.known[write.name] = value
        return counted if self.groups.value(strip_parens(condition), self.known).same else set()

    def _stepped(self, write: syntax.Write) -> Value:
        """What a variable is in every iteration, where each ends with this step."""
        first = self.groups.value(write.target, self.known)
        more = SAME if write.value is None else self.groups.value(write.value, self.known)
        if write.op in ("++", "--", "+=", "-="):
            return self._merged(first, self.groups.binary(write.op[0], first, more))
        return SAME if first.same and more.same else OPAQUE


def _runs(parts: Parts) -> Iterator[Run]:
    for part in parts:
        yield from [part] if isinstance(part, Run) else _runs(part.parts)


def changes(groups: Groups, node: Node) -> Iterator[str]:
    """The variables that a statement declares or may change."""
    module = groups.names.context.module
    yield from syntax.declared(node)
    for write in syntax.writes(node):
        target = write.target
        while target.type not in ("identifier", "pointer_expression") and (
            inner := target.child_by_field_name("argument") or target.child_by_field_name("declarator")
        ):
            target = inner
        name = name_of(target) if target.type != "pointer_expression" else None
        if name is not None and not _pointer(groups, name, write.target):
            yield name
    for n in syntax.of_type(node, "pointer_expression"):
        inner = n.child_by_field_name("argument")
        if text(n).startswith("&") and inner is not None and inner.type == "identifier":
            yield text(inner)
    for call in syntax.of_type(node, "call_expression"):
        function = callee(call) or ""
        if by_value(function) or by_reference(module, function) is False:
            continue
        for n in arguments(call):
            if n.type == "identifier" and text(n) not in groups.names.params and not groups.names.roots(n):
                yield text(n)


def _pointer(groups: Groups, name: str, target: Node) -> bool:
    """`name[…] = value` stores where a pointer points, and leaves the pointer alone."""
    return target.type in ("subscript_expression", "field_expression") and bool(
        name in groups.names.params or groups.names.roots(target)
    )


def _leaves(loop: Node) -> bool:
    """A `break` or `continue` of the loop itself, or a jump out of it."""
    for n in syntax.of_type(loop, "break_statement", "continue_statement", "return_statement", "goto_statement"):
        around = n.parent
        while around is not None and around.type not in (*syntax.LOOPS, "switch_statement"):
            around = around.parent
        inner = around is not None and around.id != loop.id
        if not inner or n.type in ("return_statement", "goto_statement"):
            return True
        if n.type == "continue_statement" and around is not None and around.type == "switch_statement":
            return True
    return False
