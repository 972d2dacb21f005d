"""# 9 · batch-loads: several elements are loaded before the first is used

Where the work on an element branches, stores or divides, the compiler does not move the next element's load above it,
unrolled or not: every iteration waits for memory.

Before:

    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        count++;
        mean += (x[i] - mean) / count;
    }

After:

    const int stride = blockDim.x;
    int i4 = threadIdx.x;
    for (; i4 + 3 * stride < n; i4 += 4 * stride) {
        float x4[4];
        #pragma unroll
        for (int k = 0; k < 4; k++)
            x4[k] = x[i4 + k * stride];
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            count++;
            mean += (x4[k] - mean) / count;
        }
    }
    for (int i = i4; i < n; i += blockDim.x) {
        count++;
        mean += (x[i] - mean) / count;
    }

What an iteration loads and then stores in place is loaded ahead too, where every iteration has an element of its own.
A load under a condition is made ahead under the same condition, where that follows from the counter or from what is
loaded ahead: `w4[k] = t4[k] >= 0 ? w[t4[k]] : 0`.

Legal when every iteration makes the load (or says beforehand whether it does), at a place that the body does not
compute from what it changes, from memory that the loop does not write elsewhere (proved; that pointers do not overlap
is captured, where the loop writes), and no iteration ends the loop. Each thread keeps its elements in their order:
bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import style, syntax
from cuda_agent.rewrite.analysis import trips
from cuda_agent.rewrite.analysis.calls import HINTED_LOADS
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.analysis.effects import check_body, check_long, touched
from cuda_agent.rewrite.analysis.neighbours import Access, Body
from cuda_agent.rewrite.analysis.sizes import SMALL
from cuda_agent.rewrite.analysis.strided import StridedLoop, has_pragma, strided_loop
from cuda_agent.rewrite.layout import fresh, insert_before, unit, unused_index
from cuda_agent.rewrite.render import render
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.rules.batch_walk import few_threads
from cuda_agent.rewrite.rules.restrict import check_disjoint
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import ancestors, strip_parens

_WIDE = 60  # characters of a condition and a load on one line
_DECIDING = ("lambda_expression", "switch_statement", "else_clause", "conditional_expression")
_SCALARS = frozenset(name for name in SMALL if not name[-1:].isdigit() or name.startswith(("int", "uint"))) - {
    "int2",
    "uint2",
}


@dataclass(frozen=True)
class Batch:
    """One loop, and the loads that are made ahead: key → expressions, the type of an element."""

    loop: StridedLoop
    body: Body
    loads: dict[str, tuple[list[Node], str, str]]  # … and the name of the array
    guards: dict[str, list[Node]]  # key → the conditions under which an iteration makes the load
    writes: bool


class BatchLoads(Rule):
    name = "batch-loads"
    number = 9

    def sites(self, context: Context) -> Iterator[Site]:
        names = Names(context)
        batches: list[Batch] = []
        why = None
        for node in reversed(list(syntax.of_type(context.body, "for_statement"))):  # inner loops first
            if has_pragma(context, node) or any(syntax.span(node).holds(syntax.span(b.loop.node)) for b in batches):
                continue
            loop = strided_loop(names, node, entered=True)
            if loop is None:
                continue
            try:
                batches.append(_batch(context, names, loop))
            except RuleRefused as error:
                why = error
        if not batches and why is not None:
            raise why
        batches.reverse()
        for elements in (16, 8, 4) if few_threads(context) else (4, 8):
            long = [b for b in batches if trips.most(context, b.loop.node, context.numbers) >= 2 * elements]
            if long:
                span = Span(batches[0].loop.node.start_byte, batches[-1].loop.node.end_byte)
                yield Site(self.name, span, {"elements": elements}, {"batches": long})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        batches: list[Batch] = site.nodes["batches"]
        count: int = site.params["elements"]
        assumptions: tuple[Assumption, ...] = ()
        if any(b.writes for b in batches):
            check_disjoint(context)
            known = context.pointer_targets()
            assumptions = (Assumption("the pointers of one launch never overlap", "captured" if known else "assumed"),)
        used: set[tuple[int, str]] = set()
        edits = [e for b in batches for e in _edits(context, b, count, used)]
        return Rewrite(tuple(edits), assumptions=assumptions)


def _batch(context: Context, names: Names, loop: StridedLoop) -> Batch:
    body = Body.of(names, loop)
    check_body(context, loop)
    check_long(context, loop, 4)
    roots, loose = touched(names, body)
    found: dict[str, tuple[list[Node], str, str]] = {}
    guards: dict[str, list[Node]] = {}
    for access in body.accesses:
        root, element = names.root(access.array), _element(names, access.array)
        if root is None or element is None or access.kind != "read":
            continue
        if roots[root] and (root in loose or not _in_place(body, access, root)):
            continue
        node = _chosen(access.node)
        name = access.name if access.name.isidentifier() else root
        if body.coefficient_of(access) != 0 and _known_ahead(names, body, node, roots, own=access.node):
            key = squeeze(body.expanded(node, body.variable))
            if body.unconditional(node) or key in found:
                found.setdefault(key, ([], element, name))[0].append(node)
                continue
            around = _guards(names, body, node, roots) if _has_zero(names, element) else None
            if around:
                key += "".join(f"|{squeeze(body.expanded(g, body.variable))}" for g in around)
                guards[key] = around
                found.setdefault(key, ([], element, name))[0].append(node)
    if not found:
        raise RuleRefused("no element is loaded in every iteration from memory that the loop leaves alone")
    return Batch(loop, body, found, guards, any(roots.values()))


def _element(names: Names, array: Node) -> str | None:
    """The element type of an array, also of one that is looked at as another, `((half2 *)x)`."""
    node = strip_parens(array)
    if node.type != "cast_expression":
        return names.element(array)
    kind = squeeze(text(syntax.field(node, "type")))
    found = re.fullmatch(r"(?:const)?(\w+)\*", kind)
    return found[1] if found else None


def _in_place(body: Body, access: Access, root: str) -> bool:
    """The loop touches the array only at this iteration's own element, and this read comes before the first store."""
    if root in body.names.params and "volatile" in body.names.params[root].type:
        return False
    mine = [a for a in body.accesses if body.names.root(a.array) == root]
    places = {squeeze(f"{body.expanded(a.array, body.variable)}[{_index(body, a)}]") for a in mine}
    before = all(_before(access.node, a.node) for a in mine if a.kind != "read")
    return len(places) == 1 and before and _apart(body, access)


def _before(read: Node, store: Node) -> bool:
    """The read is made before the store: it stands in a statement before, or on the right of the assignment."""
    if read.end_byte <= syntax.enclosing_statement(store).start_byte:
        return True
    assignment = next(ancestors(store, ("assignment_expression",)), None)
    return assignment is not None and syntax.span(syntax.field(assignment, "right")).holds(syntax.span(read))


def _index(body: Body, access: Access) -> str:
    return body.expanded(access.index, body.variable) if access.index is not None else ""


def _apart(body: Body, access: Access) -> bool:
    """Two iterations have different elements: the index grows with the variable, or it is `v >> b` of a variable that
    goes on by a multiple of 2 to the power b."""
    if body.coefficient_of(access) not in (0, None):
        return True
    index = strip_parens(access.index) if access.index is not None else None
    if index is None or index.type != "binary_expression" or text(syntax.field(index, "operator")) != ">>":
        return False
    bits = text(syntax.field(index, "right"))
    grows = body.coefficient(syntax.field(index, "left"))
    return bits.isdigit() and grows == 1 and body.coefficient(access.array) == 0 and _multiple(body, 1 << int(bits))


def _multiple(body: Body, of: int) -> bool:
    """The loop's step is a product with a number that is a multiple of `of`."""
    loop = strided_loop(body.names, _loop_of(body), entered=True)
    factors = re.fullmatch(r"[\w.*]+", squeeze(loop.step)) if loop is not None else None
    return factors is not None and any(f.isdigit() and int(f) % of == 0 for f in factors[0].split("*"))


def _loop_of(body: Body) -> Node:
    assert body.body.parent is not None
    return body.body.parent


def _has_zero(names: Names, element: str) -> bool:
    """A number can be made of 0: a scalar, or a type that the template is given."""
    return element in _SCALARS or element in _plain_types(names) | {"half", "__half"}


def _guards(names: Names, body: Body, node: Node, roots: dict[str, bool]) -> list[Node] | None:
    """The conditions of the `if`s around a load, outermost first, where they are known ahead; None where something else
    decides whether an iteration makes the load."""
    skip = next((n.start_byte for n in syntax.of_type(body.body, "continue_statement")), None)
    if skip is not None and node.start_byte > skip:
        return None
    found: list[Node] = []
    current = node
    while current != body.body:
        above = current.parent
        if above is None or above.type in (*_DECIDING, *syntax.LOOPS):
            return None
        if above.type == "binary_expression" and text(syntax.field(above, "operator")) in ("&&", "||"):
            return None
        if above.type == "if_statement" and current == above.child_by_field_name("consequence"):
            condition = strip_parens(syntax.field(above, "condition"))
            if not _known_ahead(names, body, condition, roots):
                return None
            found.insert(0, condition)
        current = above
    return found


def _plain_types(names: Names) -> set[str]:
    """What looks like a function and makes a number: `T(0)`."""
    generic = (re.search(r"\b(?:typename|class)\s+(\w+)", p) for p in names.context.kernel.template_params)
    return {m[1] for m in generic if m} | {"float", "double", "int"}


def _known_ahead(names: Names, body: Body, node: Node, roots: dict[str, bool], own: Node | None = None) -> bool:
    """Whether the place that the node reads follows from the loop's variable and from what the body leaves alone; of
    `own`, an iteration's own element, the place only."""
    for n in syntax.of_type(node, "call_expression"):
        function = text(syntax.field(n, "function"))
        if function not in (*HINTED_LOADS, *_plain_types(names)) and not function.startswith("static_cast<"):
            return False
    for n in syntax.of_type(node, "subscript_expression"):
        root = names.root(n)
        if n != own and (root is None or roots.get(root, True)):
            return False
    for n in syntax.of_type(node, "identifier"):
        name = text(n)
        if name in (body.variable, "static_cast") or name in HINTED_LOADS or name in _plain_types(names):
            continue
        local = body.local(n)
        if local is not None:
            if not _known_ahead(names, body, local, roots):
                return False
        elif name in body.written or name in body.declared:
            return False
    return True


def _chosen(node: Node) -> Node:
    """The whole of `condition ? x[i] : other` when the load is one of the two: the condition guards it ahead, too."""
    above = node.parent
    while above is not None and above.type == "parenthesized_expression":
        above = above.parent
    if above is not None and above.type == "conditional_expression":
        sides = [strip_parens(syntax.field(above, f)) for f in ("consequence", "alternative")]
        other = next((s for s in sides if s != node), None)
        if (
            node in sides
            and other is not None
            and other.type in ("number_literal", "call_expression", "cast_expression")
        ):
            return above
    return node


# ---------------------------------------------------------------- edits


def _edits(context: Context, batch: Batch, count: int, used: set[tuple[int, str]]) -> Iterator[Edit]:
    loop, body = batch.loop, batch.body
    first = fresh(context, loop.node, f"{loop.variable}{count}", used)
    k, step = unused_index(context), unit(context)
    lines, stride = [], loop.step
    if not re.fullmatch(r"\d+", stride) and body.names.type_of(stride) != loop.type:
        stride = fresh(context, loop.node, "stride", used)
        lines.append(f"const {loop.type} {stride} = {loop.step};")
    jump = k if stride == "1" else f"{k} * {stride}"
    ahead = str((count - 1) * int(stride)) if stride.isdigit() else f"{count - 1} * {stride}"
    whole = str(count * int(stride)) if stride.isdigit() else f"{count} * {stride}"
    names = _local_names(context, batch, count)
    lines += [
        f"{loop.type} {first} = {text(loop.start)};",
        f"for (; {first} + {ahead} < {text(loop.bound)}; {first} += {whole}) {{",
    ]
    kinds: dict[str, list[str]] = {}
    for key, (_, element, _) in batch.loads.items():
        kinds.setdefault(element, []).append(f"{names[key]}[{count}]")
    lines += [f"{step}{kind} {', '.join(declared)};" for kind, declared in kinds.items()]
    loads = _loaded(batch, names, k, f"{first} + {jump}")
    lines += _unrolled([line for load in loads for line in load.splitlines()], k, count, step, len(loads))
    places: dict[Access | Node, str] = {
        n: f"{names[key]}[{k}]" for key, (nodes, _, _) in batch.loads.items() for n in nodes
    }
    rendered = render(body, places)
    own = [f"const {loop.type} {loop.variable} = {first} + {jump};"] if rendered.uses_variable else []
    lines += _unrolled([*own, *rendered.lines], k, count, step, len(own) + rendered.statements)
    lines.append("}")
    yield from insert_before(context, loop.node, lines)
    if loop.node.child_by_field_name("initializer") is None:  # for (; v < bound; …)
        opened = next(n for n in loop.node.children if n.type == "(").end_byte
        yield Edit(Span(opened, opened), f"{loop.variable} = {first}")
    else:
        yield Edit(syntax.span(loop.start), first)


def _loaded(batch: Batch, names: dict[str, str], k: str, at: str) -> list[str]:
    """`x4[k] = …;` of each load; under the conditions around it, or 0 that nothing uses. What is loaded already stands
    for its load in places and conditions."""
    known: dict[str, str] = {}

    def said(node: Node) -> str:
        code = batch.body.expanded(node, at)
        for whole, name in known.items():
            code = code.replace(whole, name)
        return code

    lines = []
    for key, (nodes, element, _) in batch.loads.items():
        name, value = f"{names[key]}[{k}]", said(nodes[0])
        if guards := [style.conjunct(said(g)) for g in batch.guards.get(key, ())]:
            condition = " && ".join(guards)
            between = "\n    " if len(condition) + len(value) > _WIDE else " "
            inner = f"({value})" if nodes[0].type == "conditional_expression" else value
            zero = "0" if element in _SCALARS else f"({element})0"
            lines.append(f"{name} = {condition}{between}? {inner} : {zero};")
        else:
            lines.append(f"{name} = {value};")
            known[batch.body.expanded(nodes[0], at)] = name
    return lines


def _unrolled(lines: list[str], k: str, count: int, step: str, statements: int = 0) -> list[str]:
    braces = (statements or len(lines)) > 1
    head = f"for (int {k} = 0; {k} < {count}; {k}++)" + (" {" if braces else "")
    inner = [step + line if line.strip() else line for line in lines]
    return [step + line for line in ("#pragma unroll", head, *inner, *(["}"] if braces else []))]


def _local_names(context: Context, batch: Batch, count: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, (_, _, array) in batch.loads.items():
        name = context.unused(f"{array}{count}")
        while name in found.values():
            name += "b"
        found[key] = name
    return found
