"""Kernels that only choose how to call one function: `if (n == 768) body(x, 768); else body(x, n);`.

To a rule such a kernel is the function that does the work: it has the kernel's parameters, and nothing else calls it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tree_sitter import Node

from cuda_agent.model import Kernel, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.functions import definitions
from cuda_agent.rewrite.syntax import text
from cuda_agent.source import body, params
from cuda_agent.source.symbols import Module
from cuda_agent.source.tree import arguments, callee, field


def worker(module: Module, kernel: Kernel) -> Kernel:
    """The kernel with the body, loops, guards, shared arrays and parameters of the function that it calls; the kernel
    itself where it does more than choose. Its span and its name stay, and so do its launches."""
    block = next((n for n in syntax.of_type(module.node(kernel.body), "compound_statement")), None)
    name = _called(block, kernel) if block is not None and syntax.span(block) == kernel.body else None
    found = definitions(module).get(name, []) if name is not None else []
    if name is None or len(found) != 1 or not _owned(module, kernel, name, found[0]):
        return kernel
    function = found[0]
    inside = field(function, "body")
    listed = next(syntax.of_type(function, "parameter_list"), None)
    if inside is None or listed is None:
        return kernel
    span = Span(listed.start_byte + 1, listed.end_byte - 1)
    taken = params.params(module.document, module.tree.lexed.code, span, listed)
    if [p.name for p in taken] != [p.name for p in kernel.params]:
        return kernel
    shared, loops, guards = body.contents(module.document, inside)
    return replace(
        kernel,
        body=syntax.span(inside),
        params=taken,
        params_span=span,
        shared=shared,
        loops=loops,
        guards=guards,
    )


def _called(block: Node, kernel: Kernel) -> str | None:
    """The one function that both branches of the kernel's only statement call, the second with what was passed."""
    statements = syntax.statements(block)
    if len(statements) != 1 or statements[0].type != "if_statement":
        return None
    taken, other = field(statements[0], "consequence"), field(statements[0], "alternative")
    if taken is None or other is None:
        return None
    first, second = _call(taken), _call(other.named_children[-1] if other.type == "else_clause" else other)
    if first is None or second is None or callee(first) != callee(second):
        return None
    given = [[text(n) for n in arguments(call)] for call in (first, second)]
    names = [p.name for p in kernel.params]
    same = all(a == b or re.fullmatch(r"-?\d+|true|false", a) for a, b in zip(given[0], names, strict=False))
    return callee(first) if given[1] == names and len(given[0]) == len(names) and same else None


def _call(statement: Node) -> Node | None:
    inner = (
        statement.named_children[0] if statement.type == "expression_statement" and statement.named_children else None
    )
    return inner if inner is not None and inner.type == "call_expression" else None


def _owned(module: Module, kernel: Kernel, name: str, function: Node) -> bool:
    """Nothing but this kernel mentions the function."""
    inside = kernel.span, syntax.span(function)
    word = re.compile(rb"(?<!\w)" + re.escape(name.encode()) + rb"(?!\w)")
    uses = [m.start() for m in word.finditer(module.document.data)]
    return "__device__" in text(function).partition("{")[0] and all(any(at in s for s in inside) for at in uses)
