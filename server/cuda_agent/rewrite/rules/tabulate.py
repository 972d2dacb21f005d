"""# 9 · tabulate: what every thread computes again goes into a table of the block

A power or a sine of the loop's counter is the same for all threads: 40 to 200 instructions that a block needs once.

Before:

    for (int t = 1; t <= steps; t++)
        m[i] = m[i] / (1.f - powf(decay, t));

After:

    // the same for all threads: once a block
    __shared__ float pow_decay[256];
    for (int t = 1 + threadIdx.x; t <= steps && t < 256; t += blockDim.x)
        pow_decay[t] = powf(decay, t);
    __syncthreads();

    …
    for (int t = 1; t <= steps; t++)
        m[i] = m[i] / (1.f - (t < 256 ? pow_decay[t] : powf(decay, t)));

Legal where the arguments are the counter and scalar parameters that nothing writes (proved). The table stands at the
kernel's start, which every thread passes (proved). It holds what the captured launches need; beyond it the call stays.
Not offered where the loop's bound changes between launches. Blocks are one-dimensional (captured). Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Loop, Span
from cuda_agent.rewrite import layout, syntax
from cuda_agent.rewrite.analysis.arithmetic import Types
from cuda_agent.rewrite.analysis.scalars import Scalars
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site, changes
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import callee, field

_FUNCTIONS = """
    pow exp exp2 exp10 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan atan2 cbrt
"""
_WORTH = frozenset(_FUNCTIONS.split())
_TABLE_BYTES = 16 * 1024
_LEAST = 8  # steps; a shorter loop is not worth a barrier


@dataclass(frozen=True)
class Repeated:
    """One expensive call in a loop, wherever it stands there."""

    loop: Loop
    node: Node  # of the loop
    calls: tuple[Node, ...]
    type: str
    size: int  # entries: all values of the counter in the captured launches
    changing: frozenset[str]  # what the counter's bound is made of and had other values in launches not recorded

    @property
    def key(self) -> str:
        return squeeze(text(self.calls[0]))


class Tabulate(Rule):
    name = "tabulate"
    number = 9

    def sites(self, context: Context) -> Iterator[Site]:
        found = list(_repeated(context))
        if not found:
            return
        steady = [r for r in found if not r.changing]
        if not steady:
            raise RuleRefused(f"{changes(found[0].changing)}: how large a table must be is not known")
        found = steady
        if not context.shapes or any(s.block[1:] != (1, 1) for s in context.launched):
            raise RuleRefused("blocks are not known to be one-dimensional")
        sizes = {"float": 4, "double": 8}
        if sum(r.size * sizes[r.type] for r in found) > _TABLE_BYTES:
            raise RuleRefused("the table would take more than 16 KiB of shared memory")
        yield Site(self.name, syntax.span(found[0].node), {}, {"repeated": found})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        repeated: list[Repeated] = site.nodes["repeated"]
        names: dict[str, str] = {}
        edits: list[Edit] = []
        for one in repeated:
            if one.key not in names:
                names[one.key] = _name(context, one, set(names.values()))
            variable = one.loop.variable
            for call in one.calls:
                shown = context.slice(syntax.span(call))
                at = f"{variable} < {one.size} ? {names[one.key]}[{variable}] : {shown}"
                parent = call.parent
                plain = parent is not None and parent.type in (
                    "parenthesized_expression",
                    "init_declarator",
                    "assignment_expression",
                )
                edits.append(Edit(syntax.span(call), at if plain else f"({at})"))
        start = context.kernel.body.start + 1
        edits.append(Edit(Span(start, start), _tables(context, repeated, names)))
        known = (
            Assumption("the arguments are the same for all threads of a block", "proved"),
            Assumption("blocks are one-dimensional", "captured"),
        )
        return Rewrite(tuple(edits), assumptions=known)


def _repeated(context: Context) -> Iterator[Repeated]:
    scalars = Scalars(context)
    types = Types(context.kernel, context.body)
    fixed = {p.name for p in context.kernel.params if not p.pointer and p.name not in scalars.writes}
    local = syntax.declared(context.body) | {p.name for p in context.kernel.params} | set(syntax.BUILTINS)
    for loop in context.kernel.loops:
        size = _entries(context, scalars, loop, local - fixed)
        if size is None:
            continue
        node = next(n for n in syntax.of_type(context.body, "for_statement") if syntax.span(n) == loop.span)
        changing = scalars.behind(syntax.field(node, "condition")) & context.varied
        found: dict[str, list[Node]] = {}
        for call in syntax.of_type(node, "call_expression"):
            name = (callee(call) or "").removesuffix("f")
            given = field(call, "arguments")
            names = syntax.identifiers(given) if given is not None else set()
            varying = names & (local - fixed)
            if name in _WORTH and varying == {loop.variable} and _pure(given) and types.of(call) in ("float", "double"):
                found.setdefault(squeeze(text(call)), []).append(call)
        if not any(w.name == loop.variable for w in syntax.writes(syntax.field(node, "body"))):
            for calls in found.values():
                yield Repeated(loop, node, tuple(calls), types.of(calls[0]), size, changing)


def _pure(given: Node | None) -> bool:
    """Arithmetic of names and numbers alone."""
    return given is not None and not any(
        True
        for _ in syntax.of_type(
            given, "subscript_expression", "call_expression", "pointer_expression", "update_expression"
        )
    )


def _entries(context: Context, scalars: Scalars, loop: Loop, varying: set[str]) -> int | None:
    """How many entries a table over the counter needs, rounded up to a power of two; None where the loop does not count
    by one from a small number to a bound that is known at the kernel's start."""
    if loop.kind != "for" or loop.step != "1" or loop.variable is None or loop.bound is None:
        return None
    if loop.start is None or not re.fullmatch(r"\d{1,2}", loop.start):
        return None
    node = next(n for n in syntax.of_type(context.body, "for_statement") if syntax.span(n) == loop.span)
    initial, condition = field(node, "initializer"), field(node, "condition")
    if initial is None or initial.type != "declaration" or condition is None or condition.type != "binary_expression":
        return None
    right = syntax.field(condition, "right")
    if text(syntax.field(condition, "left")) != loop.variable or syntax.identifiers(right) & varying:
        return None
    values = scalars.values(right)
    if not values or max(values) < _LEAST:
        return None
    return 1 << max(values).bit_length()


def _name(context: Context, one: Repeated, taken: set[str]) -> str:
    call = one.calls[0]
    function = (callee(call) or "table").removesuffix("f")
    others = sorted(syntax.identifiers(syntax.field(call, "arguments")) - {one.loop.variable})
    name = context.unused(f"{function}_{others[0] if others else one.loop.variable}")
    return name if name not in taken else f"{name}_{len(taken) + 1}"


def _tables(context: Context, repeated: list[Repeated], names: dict[str, str]) -> str:
    """Declarations and one loop for each range of counters, in the file's indentation."""
    eol, step = context.eol, layout.unit(context)
    indent = context.indent(context.kernel.body.start) + step
    lines = ["// the same for all threads: once a block"]
    groups: dict[tuple[str, str], dict[str, Repeated]] = {}
    for one in repeated:
        groups.setdefault((_head(one), one.type), {}).setdefault(one.key, one)
    for (head, kind), group in groups.items():
        lines.append(f"__shared__ {kind} {', '.join(f'{names[key]}[{one.size}]' for key, one in group.items())};")
        stores = [
            f"{step}{names[key]}[{one.loop.variable}] = {context.slice(syntax.span(one.calls[0]))};"
            for key, one in group.items()
        ]
        lines += [head + (" {" if len(stores) > 1 else ""), *stores, *(["}"] if len(stores) > 1 else [])]
    lines.append("__syncthreads();")
    return "".join(eol + indent + line for line in lines) + eol


def _head(one: Repeated) -> str:
    """`for (int t = 1 + threadIdx.x; t <= steps && t < 256; t += blockDim.x)`."""
    declaration = syntax.field(one.node, "initializer")
    kind, variable = text(syntax.field(declaration, "type")), one.loop.variable
    first = "threadIdx.x" if one.loop.start == "0" else f"{one.loop.start} + threadIdx.x"
    condition = text(syntax.field(one.node, "condition"))
    return f"for ({kind} {variable} = {first}; {condition} && {variable} < {one.size}; {variable} += blockDim.x)"
