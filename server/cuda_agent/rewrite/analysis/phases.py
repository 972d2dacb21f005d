"""Between two barriers lies a phase. What a thread may touch from a barrier back to the barriers before it, and on to
those after it, along every path of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tree_sitter import Node

from cuda_agent.rewrite import syntax

IsBarrier = Callable[[Node], bool]
_JUMPS = (b"break", b"continue", b"goto")


class Phases:
    """`is_barrier` says which statements stop a path. A part is an expression or a simple statement: the smallest
    pieces that run as a whole."""

    def __init__(self, body: Node, is_barrier: IsBarrier) -> None:
        self.body = body
        self.is_barrier = is_barrier

    def around(self, barrier: Node) -> tuple[list[Node], list[Node]]:
        """(parts that may run before the barrier, parts that may run after it) with no other barrier between."""
        return self._from(barrier, forward=False), self._from(barrier, forward=True)

    def _from(self, start: Node, forward: bool) -> list[Node]:
        found: list[Node] = []
        current = start
        while current != self.body and current.parent is not None:
            parent = current.parent
            blocked = False
            if parent.type == "compound_statement":
                rest = [s for s in syntax.statements(parent) if _beyond(s, current, forward)]
                blocked = self._through(rest, found, forward) and not _jumps(rest)
            elif parent.type in syntax.LOOPS:
                self._enter(parent, found, forward)  # the next turn, or the one before
            else:
                found += _heads(parent)
            if blocked and not (_jumps([parent]) and _in_loop(parent, self.body)):
                return found
            current = parent
        return found

    def _through(self, statements: Iterable[Node], found: list[Node], forward: bool) -> bool:
        """Collects the parts of these statements up to the first barrier; whether every path meets one."""
        ordered = list(statements)
        return any(self._enter(s, found, forward) for s in (ordered if forward else reversed(ordered)))

    def _enter(self, statement: Node, found: list[Node], forward: bool) -> bool:
        """As `_through`, of one statement."""
        if self.is_barrier(statement):
            return True
        if statement.type == "compound_statement":
            return self._through(syntax.statements(statement), found, forward)
        if statement.type == "if_statement":
            found += _heads(statement)
            taken = self._enter(syntax.field(statement, "consequence"), found, forward)
            other = statement.child_by_field_name("alternative")
            inside = syntax.statements(other.named_children[-1]) if other is not None else []
            return self._through(inside, found, forward) and taken and other is not None
        if statement.type in syntax.LOOPS:
            found += _heads(statement)
            body = syntax.field(statement, "body")
            if self._enter(body, found, forward) and _jumps([body]):
                found.append(body)  # a jump may lead past the barrier
            return False
        found.append(statement)
        return False


def _beyond(statement: Node, current: Node, forward: bool) -> bool:
    return statement.start_byte >= current.end_byte if forward else statement.end_byte <= current.start_byte


def _heads(statement: Node) -> list[Node]:
    fields = (statement.child_by_field_name(f) for f in ("initializer", "condition", "update"))
    return [node for node in fields if node is not None]


def _jumps(nodes: Iterable[Node]) -> bool:
    return any(word in (n.text or b"") for n in nodes for word in _JUMPS)


def _in_loop(node: Node, body: Node) -> bool:
    current: Node | None = node
    while current is not None and current != body:
        if current.type in syntax.LOOPS:
            return True
        current = current.parent
    return False
