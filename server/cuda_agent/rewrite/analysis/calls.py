"""What a called function may do to its caller: store, change an argument, or make threads work together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.judge.vocabulary import CALLS
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import names
from cuda_agent.rewrite.analysis.functions import definitions
from cuda_agent.rewrite.analysis.names import HasKernel, by_reference
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.symbols import Module
from cuda_agent.source.tree import arguments, callee

# Loads and stores with a cache hint, and what else stores through its first argument.
HINTED_LOADS = frozenset(("__ldg", "__ldca", "__ldcg", "__ldcs", "__ldlu", "__ldcv"))
HINTED_STORES = frozenset(("__stwb", "__stcg", "__stcs", "__stwt"))
STORES = HINTED_STORES | {"memcpy", "memset", "__pipeline_memcpy_async"}
_MOVES = frozenset(("swap",))
_DEPTH = 4


def unknown(where: HasKernel, node: Node) -> Iterator[tuple[str, Node]]:
    """Calls under `node` of functions whose effect is not known: neither CUDA's own nor of this file, nor a type."""
    types = {w for p in where.kernel.template_params for w in re.findall(r"\w+", p.partition("=")[0])[-1:]}
    for call in syntax.of_type(node, "call_expression"):
        name = callee(call)
        if name is None or name in CALLS or name in types or name in definitions(where.module):
            continue
        if by_reference(where.module, name) is not False:
            yield name, call


def effect(where: HasKernel, call: Node) -> str | None:
    """What a call in the kernel does beside giving a value, in words; None when nothing, as far as this file tells. A
    function of another file may store through any pointer that is not to const."""
    if (said := _effect(where.module, call, 0)) is not None:
        return said
    name = callee(call) or ""
    if any(call.id == other.id for _, other in unknown(where, call)):
        open_ = {v.name for v in names.of(where).variables if (v.pointer or v.is_array) and "const" not in v.type}
        for argument in arguments(call):
            code = text(argument)
            terms = {text(n) for _, n in syntax.additive_terms(argument)}
            if code.startswith("&") or terms & open_:
                return f"{name} may store to {code.lstrip('&')}"
    return None


def _effect(module: Module, call: Node, depth: int) -> str | None:
    name = callee(call) or ""
    if name.startswith("atomic"):
        return f"{name} updates memory"
    if name in STORES:
        return f"{name} stores"
    if name in _MOVES:
        return f"{name} changes its arguments"
    if syntax.COOPERATION.search(name):
        return f"{name} makes threads work together"
    if name in CALLS:
        return next((f"{name} stores to {text(a)}" for a in arguments(call) if text(a).startswith("&")), None)
    for definition in definitions(module).get(name, ()) if depth < _DEPTH else ():
        body = definition.child_by_field_name("body")
        if body is None or "__global__" in text(definition).partition("{")[0]:
            continue
        code = text(body)
        if syntax.COOPERATION.search(code) or re.search(r"\b(threadIdx|blockIdx|blockDim|gridDim)\b", code):
            return f"{name} depends on the other threads"
        parameters = next(syntax.of_type(definition, "parameter_list"), None)
        for parameter in syntax.of_type(parameters, "parameter_declaration") if parameters is not None else ():
            if next(syntax.of_type(parameter, "reference_declarator"), None) and "const" not in text(parameter):
                return f"{name} may change its arguments"
        if syntax.memory_writes(body):
            return f"{name} stores"
        for inner in syntax.of_type(body, "call_expression"):
            if said := _effect(module, inner, depth + 1):
                return f"{name}: {said}"
    return None
