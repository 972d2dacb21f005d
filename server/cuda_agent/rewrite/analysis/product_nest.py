"""A kernel that adds up products, one output a thread: its declarations, the guard that bounds its threads, and the
loop that adds. Which output it is the digits of the thread's index say (`digits.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import affine, digits
from cuda_agent.rewrite.analysis.digits import Digit
from cuda_agent.rewrite.analysis.induction import Induction
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import ThreadId, text
from cuda_agent.source.tree import operator


@dataclass
class Body:
    """A kernel as `declarations; guard; work`."""

    top: list[Node] = field(default_factory=list)
    work: list[Node] = field(default_factory=list)
    guards: list[tuple[Node, bool]] = field(default_factory=list)  # (condition, whether it lets in)


def body(context: Context) -> Body | None:
    """The kernel's parts; None when it has others."""
    found = Body()
    pending = list(context.body.named_children)
    while pending:
        node = pending.pop(0)
        if node.type == "comment" or (node.type == "declaration" and not found.guards):
            found.top.append(node)
            continue
        last = not any(n.type != "comment" for n in pending)
        if node.type == "if_statement" and node.child_by_field_name("alternative") is None and not found.guards:
            condition = syntax.field(syntax.field(node, "condition"), "value")
            inner = syntax.field(node, "consequence")
            leaves = [s.type for s in syntax.statements(inner)] == ["return_statement"]
            if leaves or last:
                found.guards.append((condition, not leaves))
                if not leaves:
                    found.work = list(inner.named_children) if inner.type == "compound_statement" else [inner]
                    return found
                continue
        found.work = [node, *pending]
        return found if found.guards else None
    return None


def nest(context: Context, work: Sequence[Node]) -> tuple[Induction | None, Induction, list[Node]] | None:
    """(the loop over columns around the product, the product's loop, the statements beside it)."""
    for at, node in enumerate(work):
        outer = affine.induction(context, node) if node.type == "for_statement" else None
        if outer is None:
            continue
        if adds(context, node) is not None:
            return None, outer, list(work)
        last = not any(n.type != "comment" for n in work[at + 1 :])
        inside = syntax.statements(syntax.field(node, "body"))
        for one in inside if last else ():
            inner = affine.induction(context, one) if one.type == "for_statement" else None
            if inner is not None and adds(context, one) is not None:
                if any(n.type not in ("declaration", "comment") for n in work[:at]):
                    return None
                return outer, inner, inside
    return None


def adds(context: Context, loop: Node) -> syntax.Write | None:
    """The loop's `sum += e`, behind declarations only."""
    inside = syntax.statements(syntax.field(loop, "body"))
    if not inside or any(n.type != "declaration" for n in inside[:-1]) or inside[-1].type != "expression_statement":
        return None
    write = next(iter(syntax.writes(inside[-1])), None)
    if write is None or write.op not in ("+=", "-=") or write.name is None or write.value is None:
        return None
    return write if write.node == inside[-1].named_children[0] else None


def check_threads(context: Context, thread: ThreadId) -> None:
    inside = syntax.span(thread.value)
    for n in syntax.of_type(context.body, "identifier"):
        if text(n) in syntax.BUILTINS and not inside.holds(syntax.span(n)):
            raise RuleRefused(f"{text(n)} is used outside the thread's index")
    if [w.op for w in context.written.get(thread.name, ())] != ["init"]:
        raise RuleRefused(f"{thread.name} is changed after it was computed")
    for shape in context.launched:
        if shape.block[1:] != (1, 1) or shape.grid[1:] != (1, 1):
            raise RuleRefused("blocks and grids are not known to be one-dimensional")


def total(context: Context, index: Poly, kernel: Body) -> tuple[Poly | None, tuple[Digit, ...]]:
    """How many threads the guard lets in, and the digits of their index. It bounds the index, or its highest digit."""
    if len(kernel.guards) != 1:
        return None, ()
    condition, lets_in = kernel.guards[0]
    bounds: list[tuple[Poly, Poly]] = []
    for part in syntax.operands(condition, "&&" if lets_in else "||"):
        if part.type != "binary_expression" or operator(part) != ("<" if lets_in else ">="):
            return None, ()
        bounds.append((affine.of(context, syntax.field(part, "left")), affine.of(context, syntax.field(part, "right"))))
    if len(bounds) == 1 and bounds[0][0] == index:
        return bounds[0][1], digits.chain(context, index, bounds[0][1])
    for value, bound in bounds:
        seen = digits.view(value, index)
        if seen is not None and seen.radix is None and seen.below != digits.ONE:
            whole = seen.below * bound
            found = digits.chain(context, index, whole)
            others = [(v, b) for v, b in bounds if v != value]
            views = [(digits.view(v, index), b) for v, b in others]
            if all(w is not None and w.radix == b for w, b in views):
                return whole, found
    return None, ()
