"""The column that a thread stands for: `x = blockIdx.x * blockDim.x + threadIdx.x`, declared once at the kernel's top
and guarded by `x < columns`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import affine
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import name_of


@dataclass(frozen=True)
class ColumnIndex:
    """`x = blockIdx.x * width + threadIdx.x`, and the guard that keeps threads beyond the last column out."""

    name: str
    declaration: Node
    value: Node
    width: str  # of a block, in the index's own words
    guard: Node
    bound: Node
    aliases: tuple[Node, ...]  # declarations of the names in `value` that stand for the thread's place
    rest: list[Node]  # what the guard lets in

    @property
    def returns(self) -> bool:
        return self.rest[0].start_byte > self.guard.end_byte


def of(context: Context) -> ColumnIndex | None:
    """The column index of the kernel, declared alone at its top, with its guard."""
    statements = syntax.statements(context.body)
    for at, declaration in enumerate(statements):
        declarators = declaration.children_by_field_name("declarator") if declaration.type == "declaration" else []
        if len(declarators) != 1 or declarators[0].type != "init_declarator":
            continue
        value = syntax.field(declarators[0], "value")
        width = _block_width(context, value)
        name = name_of(declarators[0])
        if width is None or name is None:
            continue
        for guard in (s for s in statements[at + 1 :] if s.type == "if_statement"):
            found = _guarded(guard, name, statements)
            if found is None:
                continue
            aliases = _aliases(context, value)
            return ColumnIndex(name, declaration, value, width, guard, found[0], aliases, found[1])
    return None


def _block_width(context: Context, value: Node) -> str | None:
    """The text of W in `blockIdx.x * W + threadIdx.x`."""
    if "threadIdx.x" not in text(value) and not syntax.identifiers(value):
        return None
    poly = affine.of(context, value)
    step, rest = poly.split("threadIdx.x")
    if step is None or step.value != 1:
        return None
    width, rest = rest.split("blockIdx.x")
    return str(width) if width is not None and rest.value == 0 and re.fullmatch(r"[\w.]+", str(width)) else None


def _guarded(guard: Node, name: str, statements: list[Node]) -> tuple[Node, list[Node]] | None:
    """The bound, and the statements that are for columns below it only."""
    if guard.child_by_field_name("alternative") is not None:
        return None
    body = syntax.field(guard, "consequence")
    leaves = squeeze(text(body)) in ("return;", "{return;}")
    joint, signs = ("||", (">=",)) if leaves else ("&&", ("<",))
    rest = statements[statements.index(guard) + 1 :] if leaves else syntax.statements(body)
    if not rest or (not leaves and guard != statements[-1]):
        return None
    parts = syntax.operands(syntax.field(guard, "condition"), joint)
    mine = [part for part in parts if syntax.uses(part, name)]
    if len(mine) != 1 or mine[0].type != "binary_expression" or text(syntax.field(mine[0], "operator")) not in signs:
        return None
    left, right = (syntax.field(mine[0], side) for side in ("left", "right"))
    return (right, rest) if text(left) == name and not syntax.uses(right, name) else None


def _aliases(context: Context, value: Node) -> tuple[Node, ...]:
    """Declarations of names that stand for the thread's place in x. RuleRefused when that place is used outside the
    index: another thread will compute the column."""
    names = Names(context)
    inside = [syntax.span(value)]
    found: list[Node] = []
    for n in (n for n in syntax.of_type(value, "identifier") if n.parent and n.parent.type != "field_expression"):
        definition = names.definition(text(n), n)
        if definition is None or not re.search(r"\b(threadIdx|blockIdx)\.x\b", text(definition)):
            continue
        declaration = syntax.enclosing_statement(definition)
        if any(not s.holds(syntax.span(u)) for u in _uses(context, text(n), declaration) for s in inside[:1]):
            raise RuleRefused(f"{text(n)} is used outside the thread's index")
        found.append(declaration)
        inside.append(syntax.span(definition))
    for n in syntax.of_type(context.body, "field_expression"):
        if squeeze(text(n)) in ("threadIdx.x", "blockIdx.x") and not any(s.holds(syntax.span(n)) for s in inside):
            raise RuleRefused(f"{text(n)} is used outside the thread's index")
    whole = [
        n
        for n in syntax.of_type(context.body, "identifier")
        if text(n) in ("threadIdx", "blockIdx", "cooperative_groups")
    ]
    if any(n.parent is None or n.parent.type != "field_expression" for n in whole):
        raise RuleRefused("the thread's place is passed on")
    return tuple(found)


def _uses(context: Context, name: str, declaration: Node) -> Iterator[Node]:
    for n in syntax.of_type(context.body, "identifier"):
        if text(n) == name and not syntax.span(declaration).holds(syntax.span(n)):
            yield n
