"""The declarations of a kernel's variables: which statement makes a variable, what the statement needs, and whether it
may be made again elsewhere."""

from __future__ import annotations

from tree_sitter import Node

from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import affine, names
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.rule import Context
from cuda_agent.source.tree import walk


def statement_of(v: Variable) -> Node | None:
    """The statement that declares the variable."""
    node = v.declarator
    while node is not None and node.type != "declaration":
        node = node.parent
    return node


def made_by(context: Context, node: Node) -> list[Variable]:
    """The variables that a statement declares."""
    return [v for v in names.of(context).variables if v.param is None and statement_of(v) == node]


def once(v: Variable) -> bool:
    return [w.op for w in v.writes] == ["init"] and not v.escapes and not v.extents and not v.shared


def pure(node: Node) -> bool:
    """The declaration reads no memory and calls nothing but functions of values."""
    if next(walk(node, ("subscript_expression", "pointer_expression", "update_expression", "lambda_expression")), None):
        return False
    return all(names.by_value(name) for name, _ in syntax.calls(node))


def needs(context: Context, node: Node) -> frozenset[str]:
    """Variables and parameters that a statement reads, but pointers, by symbol; also names that are none."""
    found = set()
    for n in walk(node, "identifier"):
        v = affine.variable(context, n)
        if v is not None and not (v.param is not None and v.pointer) and statement_of(v) != node:
            found.add(v.symbol)
    return frozenset(found)
