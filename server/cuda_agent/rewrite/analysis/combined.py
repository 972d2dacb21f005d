"""What threads that share a loop accumulate, and whether it is put together afterwards. Only then does it not matter
which of them took which element: a partial sum that a thread keeps for itself is a result of its own elements."""

from __future__ import annotations

import re
from typing import Literal

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.reduction import operation
from cuda_agent.rewrite.analysis.strided import StridedLoop
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import LOOPS, ancestors

_FAMILY = {"max": "max", "fmaxf": "max", "fmax": "max", "min": "min", "fminf": "min", "fmin": "min", "+": "+", "*": "*"}
_ATOMICS = {"+": "atomicAdd", "max": "atomicMax", "min": "atomicMin"}
_KINDS = {"+": r"sum|add|plus|reduce", "max": r"max|greater|reduce", "min": r"min|less|reduce", "*": r"mul|prod|reduce"}


def accumulated(loop: StridedLoop) -> dict[str, str]:
    """What a shared loop accumulates → the operation. RuleRefused when something but a sum, product, minimum or maximum
    is carried from one element to the next."""
    local = syntax.declared(loop.body)
    ops: dict[str, str] = {}
    for write in syntax.writes(loop.body):
        name = write.name
        if write.op == "init" or (name is not None and name in local):
            continue
        if name is None:
            array = write.target
            while (inner := array.child_by_field_name("argument")) is not None:
                array = inner
            if array.type == "identifier" and _is_local_array(array, loop):
                raise RuleRefused(f"{text(array)} is carried from one element to the next")
            continue
        op = operation(write)
        if op is None or ops.get(name, op) != op:
            raise RuleRefused(f"{name} is carried from one element to the next")
        ops[name] = op
    for name in ops:
        reads = sum(1 for n in syntax.of_type(loop.body, "identifier") if text(n) == name)
        own = sum(
            sum(1 for n in syntax.of_type(w.node, "identifier") if text(n) == name)
            for w in syntax.writes(loop.body)
            if w.name == name
        )
        if reads != own:
            raise RuleRefused(f"{name} is read inside the loop that accumulates it")
    return ops


def _is_local_array(name: Node, loop: StridedLoop) -> bool:
    """Declared as an array of the thread's own, outside the loop."""
    current: Node | None = loop.node
    while current is not None and current.type != "function_definition":
        for n in current.named_children if current.type == "compound_statement" else ():
            if n.type == "declaration" and "__shared__" not in text(n):
                for d in syntax.of_type(n, "array_declarator"):
                    if text(syntax.field(d, "declarator")) == text(name):
                        return True
        current = current.parent
    return False


def combined(context: Context, loop: StridedLoop, ops: dict[str, str]) -> Literal["proved", "assumed"]:
    """How it is known that every accumulator (→ its operation) of the loop goes into a combination over the threads
    before anything else uses it: a shuffle or an atomic of the same operation shows it; a function that is called a
    reduction, or a shared array, is taken at its word. RuleRefused for any other use."""
    known: Literal["proved", "assumed"] = "proved"
    for name, op in ops.items():
        use = _next_use(context, loop, name)
        if use is None:
            continue  # nothing comes of it
        if _proves(use, name, _FAMILY[op]):
            continue
        if not _suggests(context, use, name, _FAMILY[op]):
            raise RuleRefused(f"every thread keeps {name} of its own elements: `{squeeze(text(use))[:60]}`")
        known = "assumed"
    return known


def _next_use(context: Context, loop: StridedLoop, name: str) -> Node | None:
    """The first statement that reads the accumulator after the loop, or again from the top of an enclosing loop; other
    loops that only add to it are passed over."""
    uses = [n for n in syntax.of_type(context.body, "identifier") if text(n) == name]
    after = [n for n in uses if n.start_byte >= loop.node.end_byte]
    around = list(ancestors(loop.node, LOOPS))
    again = [
        n
        for n in uses
        if n.end_byte <= loop.node.start_byte and any(syntax.span(a).holds(syntax.span(n)) for a in around)
    ]
    for n in [*after, *again]:
        statement = _statement(n)
        write = next((w for w in syntax.writes(statement) if w.name == name), None)
        value = write.value if write is not None else None
        if write is not None and write.op in ("init", "=") and value is not None and not syntax.uses(value, name):
            return None  # begins anew
        if statement.type == "declaration" and statement.start_byte < loop.node.start_byte:
            return None
        if write is not None and write.op != "=" and value is not None and not _joins(value):
            continue  # adds to it
        return statement
    return None


def _statement(node: Node) -> Node:
    while node.parent is not None and not node.type.endswith(("_statement", "declaration")):
        node = node.parent
    return node


def _joins(value: Node) -> bool:
    return "__shfl" in text(value) or "reduce" in text(value).lower()


def _proves(use: Node, name: str, family: str) -> bool:
    """`s += __shfl…(…, s, …)`, `m = max(m, __shfl…(…, m, …))`, `cg::reduce(warp, s, cg::plus…)`, `atomicAdd(&x, s)`."""
    code = squeeze(text(use))
    shuffled = rf"__shfl_(?:xor|down|up)_sync\([^;]*\b{name}\b"
    if re.search(shuffled, code):
        write = next((w for w in syntax.writes(use) if w.name == name), None)
        if write is None:
            return False
        if family in "+*":
            return (
                write.op == f"{family}="
                or re.search(rf"\b{name}{re.escape(family)}|{re.escape(family)}{name}\b", code) is not None
            )
        return re.search(rf"\bf?{family}f?\(", code) is not None
    functions = {"+": "plus", "max": "greater", "min": "less"}
    if family in functions and re.search(rf"\breduce\(\w+,{name},\w*(::)?\w*(::)?{functions[family]}<", code):
        return True
    atomic = _ATOMICS.get(family)
    return atomic is not None and re.search(rf"\b{atomic}\([^;]*,{name}\)", code) is not None


def _suggests(context: Context, use: Node, name: str, family: str) -> bool:
    """A function called a reduction takes the accumulator, or a shared array keeps it for the other threads."""
    for called, call in syntax.calls(use):
        named = re.search(_KINDS[family], squeeze(called), re.I) and "reduce" in text(use).lower()
        if named and any(text(a) == name for a in syntax.field(call, "arguments").named_children):
            return True
    shared = {s.name for s in context.kernel.shared}
    return any(
        w.op == "=" and w.value is not None and text(w.value) == name and array in shared
        for w in syntax.memory_writes(use)
        for array, _, node in syntax.subscripts(w.target)
        if node == w.target
    )
