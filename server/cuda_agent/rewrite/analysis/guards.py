"""The guards around a loop, as far as they are `if (…) { … }` and `if (…) return;`: their conditions, and what stands
between them and the loop."""

from __future__ import annotations

from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.rule import Context
from cuda_agent.source.tree import strip_parens, walk


@dataclass(frozen=True)
class Condition:
    """One part of the guards' conjunction; `opposite`: it holds where the node's text does not."""

    node: Node
    opposite: bool


@dataclass(frozen=True)
class Frame:
    """The guards around and before a loop. `start` to `end` is the text that they cover; `before` and `after` are the
    statements in it on both sides of the loop. Without conditions start == end."""

    conditions: tuple[Condition, ...]
    before: tuple[Node, ...]
    after: tuple[Node, ...]
    returns: tuple[Node, ...]
    segments: tuple[Span, ...]  # the text of `before` and `returns`, without the braces between
    start: int
    end: int


def frame(context: Context, loop: Node) -> Frame:
    """The guards of a loop. RuleRefused when they are more than `if (…) { … }` and `if (…) return;`."""
    conditions: list[Condition] = []
    before: list[Node] = []
    after: list[Node] = []
    left: list[Node] = []
    segments: list[Span] = []
    start = end = loop.start_byte
    narrower = False  # an `if` around the loop: what follows it is run by more threads than the loop is
    node = loop
    while node != context.body:
        parent = node.parent
        if parent is None:
            raise RuleRefused("the loop is not in the kernel's body")
        if parent.type == "if_statement":
            if parent.child_by_field_name("alternative") is not None:
                raise RuleRefused("the loop is in one branch of two")
            conditions = [*_parts(syntax.field(syntax.field(parent, "condition"), "value"), False), *conditions]
            start, end = parent.start_byte, parent.end_byte
            narrower = True
        elif parent.type == "compound_statement":
            siblings = list(parent.named_children)
            place = siblings.index(node)
            returns = [s for s in siblings[:place] if _returns(s)]
            if returns:
                start, end = returns[0].start_byte, siblings[-1].end_byte
                parts = [p for r in returns for p in _parts(syntax.field(syntax.field(r, "condition"), "value"), True)]
                conditions = [*parts, *conditions]
            guarded = parent != context.body
            covered = [s for s in siblings[:place] if guarded or (returns and s.start_byte > returns[0].start_byte)]
            before = [s for s in covered if not _returns(s)] + before
            left = returns + left
            if covered or returns:
                first = siblings[0] if guarded or not returns else returns[0]
                segments.insert(0, Span(first.start_byte, node.start_byte))
            if guarded or returns:
                if (after or narrower) and siblings[place + 1 :]:
                    raise RuleRefused("statements follow on several levels of guards")
                after += siblings[place + 1 :]
        else:
            raise RuleRefused(f"the loop is inside a {parent.type.replace('_', ' ')}")
        node = parent
    if any(next(walk(s, ("return_statement", "goto_statement")), None) for s in before):
        raise RuleRefused("a thread may leave before the loop")
    if any(syntax.memory_writes(s) for s in before):
        raise RuleRefused("memory is written before the loop, behind a guard")
    if conditions and any(s.type == "preproc_call" for s in (*before, *after)):
        raise RuleRefused("a pragma stands behind the guard")
    return Frame(tuple(conditions), tuple(before), tuple(after), tuple(left), tuple(segments), start, end)


def _returns(node: Node) -> bool:
    if node.type != "if_statement" or node.child_by_field_name("alternative") is not None:
        return False
    return [s.type for s in syntax.statements(syntax.field(node, "consequence"))] == ["return_statement"]


def _parts(node: Node, opposite: bool) -> list[Condition]:
    """The conjunction's parts: `a && b`, or `!(a || b)`."""
    inner = strip_parens(node)
    sign = inner.child_by_field_name("operator")
    if inner.type == "binary_expression" and sign is not None and syntax.text(sign) == ("||" if opposite else "&&"):
        return [p for f in ("left", "right") for p in _parts(syntax.field(inner, f), opposite)]
    return [Condition(inner, opposite)]
