"""# 9 · interchange: sums that a nest of loops keeps in memory are finished one after the other, in a register

Where the inner loop adds to an array, every sum is loaded and stored in each step of the outer one, and the next load
has to wait for the store. With the loops changed over a sum stays in a register until it is done.

Before:

    for (int i = 0; i < size; i++)
        out[i] = 0.0f;
    for (int t = 0; t < steps; t++) {
        float weight = weights[t];
        for (int i = 0; i < size; i++)
            out[i] += weight * values[t * size + i];
    }

After:

    for (int i = 0; i < size; i++) {
        float sum = 0.0f;
        for (int t = 0; t < steps; t++) {
            float weight = weights[t];
            sum += weight * values[t * size + i];
        }
        out[i] = sum;
    }

Legal when the bounds of neither loop hang on the other; the outer loop does nothing but the inner one and declarations
(proved); each inner step has an element of its own: the index is the loop variable plus what does not hold it (proved);
and nothing else in the nest touches the array (proved by names, captured where pointers are
different allocations). Without a loop of zeros just before, an element is read, and written back, also where the outer
loop runs zero times (assumed). Every sum is made in the same order: bit-exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import layout, syntax
from cuda_agent.rewrite.analysis import names, statements
from cuda_agent.rewrite.analysis.calls import effect
from cuda_agent.rewrite.analysis.iterations import accesses, independent
from cuda_agent.rewrite.analysis.loops import Loop, counting
from cuda_agent.rewrite.guarded import shifted
from cuda_agent.rewrite.mirror import replaced
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import squeeze, text

_OPERATORS = ("+=", "-=", "*=", "|=", "&=", "^=")


@dataclass(frozen=True)
class Nest:
    """`for (outer) { declarations; for (inner) { declarations; cell op= value; } }`."""

    outer: Loop
    inner: Loop
    ahead: tuple[Node, ...]  # declarations and comments of the outer body
    inside: tuple[Node, ...]  # those of the inner one
    store: Node  # the statement
    cell: Node
    zeros: Node | None  # the loop just before that gives every cell its first value
    first: Node | None  # that value


class Interchange(Rule):
    name = "interchange"
    number = 9

    def sites(self, context: Context) -> Iterator[Site]:
        refused: list[RuleRefused] = []
        for node in syntax.of_type(context.body, "for_statement"):
            try:
                nest = _nest(context, node)
            except RuleRefused as error:
                refused.append(error)
                continue
            if nest is not None:
                yield Site(self.name, syntax.span(node), {}, {"nest": nest})
                return
        if refused:
            raise refused[0]

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        nest: Nest = site.nodes["nest"]
        shown = text(nest.cell)
        said = f"nothing else in the loops touches {shown}"
        assumptions = [Assumption(said, "captured" if context.pointer_targets() else "assumed")]
        if nest.zeros is None:
            said = f"{shown} may be read even where the outer loop runs zero times"
            assumptions.append(Assumption(said, "assumed"))
        return Rewrite(tuple(_edits(context, nest)), assumptions=tuple(assumptions))


# ---------------------------------------------------------------- what is there


def _nest(context: Context, node: Node) -> Nest | None:
    """The nest at this loop; None when it is another kind. RuleRefused when it is one and may not be changed over."""
    outer = counting(node)
    parts = _parts(outer.body) if outer is not None else None
    if outer is None or parts is None or parts[1].type != "for_statement":
        return None
    inner = counting(parts[1])
    within = _parts(inner.body) if inner is not None else None
    if inner is None or within is None or within[1].type != "expression_statement":
        return None
    write = next(iter(syntax.writes(within[1])), None)
    if write is None or write.node != within[1].named_children[0] or write.target.type != "subscript_expression":
        return None
    if write.value is None or text(syntax.field(write.node, "operator")) not in _OPERATORS:
        return None
    cell, root = write.target, statements.root_of(write.target)
    if root is None or not syntax.uses(cell, inner.variable) or not _in_memory(context, text(root)):
        return None
    made = {outer.variable}.union(*(syntax.declared(n) for n in parts[0])) | {
        w.name for w in syntax.writes(node) if w.name is not None and w.name != inner.variable
    }
    if syntax.identifiers(cell) & (made | set().union(*(syntax.declared(n) for n in within[0]))):
        return None  # another element in every step of the outer loop
    if any(syntax.uses(n, inner.variable) for n in parts[0]):
        raise RuleRefused(f"{inner.variable} is another variable in the outer loop")
    _check(context, node, outer, inner, made, within[1])
    zeros, first = _zeros(context, node, inner, cell)
    if independent(context, inner):
        raise RuleRefused("different steps of the inner loop may add to the same element")
    return Nest(outer, inner, parts[0], within[0], within[1], cell, zeros, first)


def _parts(body: Node) -> tuple[tuple[Node, ...], Node] | None:
    """(declarations and comments, the one statement behind them)."""
    nodes = body.named_children if body.type == "compound_statement" else [body]
    while nodes and nodes[-1].type == "comment":
        return None
    if not nodes or any(n.type not in ("comment", "declaration") for n in nodes[:-1]):
        return None
    return tuple(nodes[:-1]), nodes[-1]


def _in_memory(context: Context, name: str) -> bool:
    return any(v.name == name and v.pointer == 1 and not v.shared for v in names.of(context).variables)


def _check(context: Context, node: Node, outer: Loop, inner: Loop, made: set[str], store: Node) -> None:
    for loop, other in ((inner, made), (outer, {inner.variable})):
        if not loop.type:
            raise RuleRefused(f"{loop.variable} is declared before its loop: it is not known what reads it later")
        head = [loop.start, loop.bound, loop.update]
        if any((syntax.identifiers(n) - {loop.variable}) & other for n in head):
            raise RuleRefused("the bounds of one loop hang on the other one")
        if any(next(syntax.of_type(n, "subscript_expression", "call_expression"), None) for n in head):
            raise RuleRefused("a loop's bounds are read from memory or computed by a function")
    for call in syntax.of_type(outer.body, "call_expression"):
        if (said := effect(context, call)) is not None:
            raise RuleRefused(f"in the loops {said}")
    own = syntax.declared(outer.body)
    if any(
        w.name is not None and w.name not in own for w in syntax.writes(outer.body) if w.target.type == "identifier"
    ):
        raise RuleRefused("the loops also change a variable")
    touched = accesses(context, outer.body, inner.variable)
    stores = [a for a in touched if a.store]
    if len(stores) != 1 or not syntax.span(store).holds(syntax.span(stores[0].node)):
        raise RuleRefused("the loops store more than the one sum")
    if any(a.root == stores[0].root and a.node != stores[0].node for a in touched):
        raise RuleRefused("the loops also read the array that they add to")


def _zeros(context: Context, node: Node, inner: Loop, cell: Node) -> tuple[Node | None, Node | None]:
    """The loop just before this one that gives every cell the same first value, and that value."""
    before = node.prev_named_sibling
    while before is not None and before.type == "comment":
        before = before.prev_named_sibling
    loop = counting(before) if before is not None else None
    if loop is None or not loop.type or _head(context, loop) != _head(context, inner):
        return None, None
    parts = _parts(loop.body)
    if parts is None or parts[0] or parts[1].type != "expression_statement":
        return None, None
    write = next(iter(syntax.writes(parts[1])), None)
    if write is None or write.op != "=" or write.value is None or squeeze(text(write.target)) != squeeze(text(cell)):
        return None, None
    plain = write.value.type in ("number_literal", "unary_expression") and not syntax.identifiers(write.value)
    return (before, write.value) if plain else (None, None)


def _head(context: Context, loop: Loop) -> str:
    return squeeze(context.slice(Span(loop.node.start_byte, loop.body.start_byte)))


# ---------------------------------------------------------------- the new text


def _edits(context: Context, nest: Nest) -> Iterator[Edit]:
    node, write = nest.outer.node, nest.store.named_children[0]
    plus = text(syntax.field(write, "operator")) in ("+=", "-=")
    name, unit = context.unused_here("sum" if plus else "cell"), layout.unit(context)
    start = text(nest.first) if nest.first is not None else context.slice(syntax.span(nest.cell))
    inner = replaced(context, nest.store, [(nest.cell, name)])
    heads = [
        context.slice(Span(loop.node.start_byte, loop.body.start_byte)).rstrip() for loop in (nest.inner, nest.outer)
    ]
    indent = context.indent(node.start_byte)
    deep = indent + unit * 2
    lines = [f"{heads[0]} {{", f"{indent}{unit}{_type(context, nest)} {name} = {start};"]
    body: list[str] = []
    for n in (*nest.ahead, *nest.inside):
        code = context.slice(syntax.span(n))
        if n.type == "comment" and n.prev_named_sibling is not None and body and _same_line(n.prev_named_sibling, n):
            body[-1] += f" {code}"
        else:
            body.append(code)
    body.append(inner)
    shown = [shifted(line, context.indent(nest.store.start_byte), deep) for code in body for line in code.split("\n")]
    shown = [line if line.startswith(deep) else deep + line.lstrip() for line in shown]
    lines.append(f"{indent}{unit}{heads[1]}{' {' if len(body) > 1 else ''}")
    lines += [*shown, *([f"{indent}{unit}}}"] if len(body) > 1 else [])]
    lines += [f"{indent}{unit}{context.slice(syntax.span(nest.cell))} = {name};", f"{indent}}}"]
    first = nest.zeros if nest.zeros is not None else node
    between = [n for n in _siblings(first, node) if n.type == "comment"]
    yield Edit(
        Span(first.start_byte, node.end_byte),
        (context.eol + indent).join(context.slice(syntax.span(n)) for n in between)
        + (context.eol + indent if between else "")
        + context.eol.join(lines),
    )


def _same_line(first: Node, second: Node) -> bool:
    return first.end_point[0] == second.start_point[0]


def _siblings(first: Node, last: Node) -> Iterator[Node]:
    current = first.next_named_sibling
    while current is not None and current != last and first != last:
        yield current
        current = current.next_named_sibling


def _type(context: Context, nest: Nest) -> str:
    root = statements.root_of(nest.cell)
    assert root is not None
    found = names.of(context).resolve(text(root), nest.cell.start_byte)
    kind = found.type if found is not None and found.type else "auto"
    return (
        " ".join(w for w in kind.replace("*", " ").split() if w not in ("const", "__restrict__", "__restrict"))
        or "auto"
    )
