"""Integer buffers that are data and not indices: their numbers may be put in another order.

By the names in the kernel's text, so more is taken for an index than is one: what reaches a subscript, a loop's head,
a dereference, a divisor or an argument of another function, directly or through variables and arrays.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from cuda_agent.model import Kernel
from cuda_agent.source.symbols import Module
from cuda_agent.source.tree import (
    arguments,
    assignments,
    callee,
    calls,
    identifiers,
    operator,
    subscripts,
    target_name,
    walk,
)

# Functions whose arguments are values; the pointers among them are subscripts or addresses of their own.
_VALUES = re.compile(
    r"atomic\w+|__ld\w+|(u|f|ll)?(min|max)f?|(l|ll|f)?absf?|__(shfl|all|any|ballot|popc|clz)\w*|sqrtf?|expf?|logf?"
)
_LOOPS = ("for_statement", "while_statement", "do_statement")


def data_parameters(module: Module, kernel: Kernel) -> frozenset[str]:
    """Pointer parameters whose numbers stay data."""
    body = module.node(kernel.body)
    indices = _indices(body)
    flows = [(target_name(one), identifiers(value)) for one in assignments(body) if (value := _value(one)) is not None]
    size = -1
    while size != len(indices):
        size = len(indices)
        for name, sources in flows:
            if name in indices:
                indices |= sources
    return frozenset(param.name for param in kernel.params if param.pointer == 1) - indices


def _value(assignment: Node) -> Node | None:
    return assignment.child_by_field_name("right") or assignment.child_by_field_name("value")


def _indices(body: Node) -> set[str]:
    found: set[str] = set()
    for _, _, index in subscripts(body):
        found |= identifiers(index)
    for node in walk(body, "pointer_expression"):
        argument = node.child_by_field_name("argument")
        if argument is not None and operator(node) == "*":
            found |= identifiers(argument)
    for node in walk(body, _LOOPS):
        for part in ("initializer", "condition", "update"):
            head = node.child_by_field_name(part)
            found |= identifiers(head) if head is not None else set()
    for node in walk(body, ("binary_expression", "assignment_expression")):
        right = node.child_by_field_name("right")
        if right is not None and operator(node).rstrip("=") in ("/", "%", "<<", ">>"):
            found |= identifiers(right)
    for call in calls(body):
        if not _VALUES.fullmatch(callee(call) or ""):
            for argument in arguments(call):
                found |= identifiers(argument)
    return found
