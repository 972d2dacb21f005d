"""# 6 · vector-inner: four neighbours share the outer indices

A kernel that takes its element's coordinates from one index by / and % cannot load neighbours together, unless the
innermost extent is a multiple of four: then four neighbours differ in the last coordinate only. The divisions are
made once for four elements, too.

Before:

    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int c = i % channels;
    y[i] = x[i] + bias[c];

After (and a quarter of the blocks):

    if (channels % 4 == 0 && n % 4 == 0) {
        int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
        if (i >= n) return;
        int c = i % channels;
        __align__(16) float y4[4], x4[4], bias4[4];
        *reinterpret_cast<float4 *>(x4) = *reinterpret_cast<const float4 *>(&x[i]);
        *reinterpret_cast<float4 *>(bias4) = *reinterpret_cast<const float4 *>(&bias[c]);
        #pragma unroll
        for (int k = 0; k < 4; k++)
            y4[k] = x4[k] + bias4[k];
        *reinterpret_cast<float4 *>(&y[i]) = *reinterpret_cast<float4 *>(y4);
    } else {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
            int c = i % channels;
            y[i] = x[i] + bias[c];
        }
    }

Legal when each element is computed on its own, and the places that are moved together are neighbours from a multiple
of four on whenever the condition holds (proved); the pointers are aligned to 16 bytes and do not overlap, and the
launch has a thread for every element (captured).
Other sizes take one element at a time. Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import launches, layout, syntax
from cuda_agent.rewrite.analysis import once
from cuda_agent.rewrite.analysis.coverage import check_index_only, covered
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.analysis.effects import touched
from cuda_agent.rewrite.analysis.elements import element_size
from cuda_agent.rewrite.analysis.groups import OPAQUE, Groups, Needs, Value, divisible, ever, solve
from cuda_agent.rewrite.analysis.neighbours import Access, Body
from cuda_agent.rewrite.analysis.once import Split
from cuda_agent.rewrite.layout import unit, unused_index
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.rules.coarsen import Guarded, bound_text, guarded
from cuda_agent.rewrite.rules.restrict import check_disjoint
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.rewrite.vectors import Vector, declarations, local_vector, sizes_seen


class VectorInner(Rule):
    name = "vector-inner"
    number = 6

    def sites(self, context: Context) -> Iterator[Site]:
        found = guarded(context.body)
        if found is None or not context.shapes or not re.search(r"[/%]", "".join(text(n) for n in found.rest)):
            return
        sizes = [element_size(context, p.name, p.element) or 0 for p in context.kernel.params if p.pointer == 1]
        largest = max(sizes, default=0)
        for width in (8, 4, 2):
            if 8 <= width * largest <= 16:
                yield Site(self.name, syntax.span(found.guard), {"width": width}, {"found": found})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        found: Guarded = site.nodes["found"]
        width: int = site.params["width"]
        names = Names(context)
        _check(context, found)
        groups = Groups(names, width, divisible(context, width))
        split = once.split(groups, found.index.name, found.rest)
        body = Body(names, found.rest[0] if found.kind == "body" else context.body, found.index.name)
        vectors, needs = _vectors(context, groups, split, body, width)
        needs = (*needs, *_bound(groups, found))
        chosen = solve(needs)
        if chosen is None or not ever(context, chosen, width):
            raise RuleRefused(f"no captured launch has extents that are multiples of {width}")
        if not chosen:
            raise RuleRefused("nothing is divided: the rule vectorize is for such kernels")
        reached = covered(context, bound_text(context, found), "x")
        check_disjoint(context)
        roots = list(dict.fromkeys(r for a in vectors for r in sorted(names.roots(a.array))))
        largest = max(v.bytes for v in vectors.values())
        for name in roots:
            if not context.aligned(name, largest):
                raise RuleRefused(f"{name} is not known to be aligned to {largest} bytes")
        edit = _edit(context, found, split, vectors, chosen, width)
        edits, mapping = launches.fewer_blocks(context, width)
        return Rewrite(
            (edit, *edits),
            mapping,
            (
                Assumption(f"aligned to {largest} bytes at every launch: {', '.join(roots)}", "captured"),
                Assumption("the pointers of one launch never overlap", "captured"),
                reached,
                *sizes_seen(context, vectors.values()),
            ),
        )


def _check(context: Context, found: Guarded) -> None:
    if syntax.COOPERATION.search(text(context.body)):
        raise RuleRefused("threads of a block work together: they must all stay in step")
    if any(next(syntax.of_type(n, "return_statement", "goto_statement"), None) for n in found.rest):
        raise RuleRefused("the guarded part may return early")
    check_index_only(context, found.index.value)


def _bound(groups: Groups, found: Guarded) -> Needs:
    condition = syntax.field(found.guard, "condition")
    comparison = next(syntax.of_type(condition, "binary_expression"), None)
    bound = groups.value(syntax.field(comparison, "right"), {}) if comparison is not None else OPAQUE
    if not bound.same or bound.multiple is None:
        raise RuleRefused("the number of elements may not be a whole number of vectors")
    return (*bound.required, *bound.multiple)


# ---------------------------------------------------------------- what is moved together


def _vectors(
    context: Context, groups: Groups, split: Split, body: Body, width: int
) -> tuple[dict[Access, Vector], Needs]:
    names = groups.names
    if not split.each:
        raise RuleRefused("nothing is computed")
    own = {n for s in split.each for n in syntax.declared(s)}
    for write in (w for s in split.each for w in syntax.writes(s)):
        if write.name is not None and write.name not in own:
            raise RuleRefused(f"{write.name} is computed from more than the outer indices")
    roots, loose = touched(names, body)
    inside = [a for a in body.accesses if any(syntax.span(s).holds(syntax.span(a.node)) for s in split.each)]
    values = {a: _place(groups, a, split.known) for a in inside}
    keys = {a: squeeze(text(a.array)) + "@" + squeeze(text(a.index) if a.index is not None else "") for a in inside}
    bad = set(loose)
    for access, value in values.items():
        root = names.root(access.array)
        if root is None or not roots[root]:
            continue
        others = {keys[a] for a in body.accesses if names.root(a.array) == root and a in keys}
        if value is None or len(others) > 1 or not body.unconditional(access.node, through_loops=True):
            bad.add(root)
    if any(roots.get(root) for root in bad):
        raise RuleRefused(f"{min(r for r in bad if roots.get(r))} is written at places that are not neighbours")
    made: dict[str, Vector] = {}
    found: dict[Access, Vector] = {}
    needs: Needs = ()
    for access, value in values.items():
        held, element = names.roots(access.array), names.element(access.array)
        if value is None or not held or element is None or held & bad or not held <= names.params.keys():
            continue
        if len(held) > 1 and any(roots.get(r, False) for r in held):
            raise RuleRefused(f"{access.name} may point to what is written")
        size = element_size(context, min(held), element)
        if size is None:
            raise RuleRefused(f"the size of {element} is not known")
        if size * width > 16:
            raise RuleRefused(f"{width} elements of {element} are more than 16 bytes")
        if keys[access] not in made:
            vector = local_vector(context, access.name, element, size, width)
            taken = {v.name for v in made.values()}
            while vector.name in taken:
                vector = Vector(vector.name + "b", element, width, size, vector.struct)
            made[keys[access]] = vector
        found[access] = made[keys[access]]
        needs = (*needs, *value)
    if not found:
        raise RuleRefused("no array is read or written at neighbouring places")
    return found, needs


def _place(groups: Groups, access: Access, known: dict[str, Value]) -> Needs | None:
    """What must hold for the access to be to neighbours that start at a multiple of the width; None when they are
    not."""
    place = groups.value(access.array, known)
    if access.index is not None:
        place = groups.binary("+", place, groups.value(access.index, known))
    if place.stride != 1 or place.multiple is None:
        return None
    return (*place.required, *place.multiple)


# ---------------------------------------------------------------- the edit


def _edit(
    context: Context, found: Guarded, split: Split, vectors: dict[Access, Vector], chosen: list[str], width: int
) -> Edit:
    index, eol = found.index, context.eol
    indent, step = context.indent(index.declaration.start_byte), unit(context)
    kind, bound = text(syntax.field(index.declaration, "type")), bound_text(context, found)
    first = text(index.value)
    opened = launches.paren(first)
    condition = " && ".join(f"{name} % {width} == 0" for name in chosen)
    changed = any(w.name == index.name for part in found.rest for w in syntax.writes(part))
    inner = [
        f"{kind} {index.name} = {opened} * {width};",
        f"if ({index.name} >= {bound}) return;",
        *(line for s in split.once for line in _lines(context, s, [])),
        *_group(context, split, vectors, width, step),
    ]
    variable = context.unused("first") if changed else index.name
    loop = [
        f"for ({kind} {variable} = {first}; {variable} < {bound}; {variable} += gridDim.x * blockDim.x) {{",
        *([f"{step}{kind} {index.name} = {variable};"] if changed else []),
        *(step + line for part in found.rest for s in syntax.statements(part) for line in _lines(context, s, [])),
        "}",
    ]
    lines = [f"if ({condition}) {{", *(step + l for l in inner), "} else {", *(step + l for l in loop), "}"]
    text_ = eol.join(indent + line if line.strip() else "" for line in lines).removeprefix(indent)
    return Edit(Span(index.declaration.start_byte, max(found.rest[-1].end_byte, found.guard.end_byte)), text_)


def _group(context: Context, split: Split, vectors: dict[Access, Vector], width: int, step: str) -> list[str]:
    k = unused_index(context)
    unique: dict[str, tuple[Access, Vector]] = {}
    for access, vector in vectors.items():
        unique.setdefault(vector.name, (access, vector))
    loaded = [n for n in unique if _read_first([a for a, v in vectors.items() if v.name == n])]
    stored = [n for n in unique if any(a.kind != "read" for a, v in vectors.items() if v.name == n)]
    copy = _copied(split, vectors)
    if copy is not None:
        target, source = copy
        vector = vectors[target]
        definition = [vector.definition] if vector.definition else []
        value = f"*reinterpret_cast<const {vector.type} *>({source.address})"
        return [*definition, f"*reinterpret_cast<{vector.type} *>({target.address}) = {value};"]
    edits = [Edit(syntax.span(a.node), v.at(k)) for a, v in vectors.items()]
    steps = {n: v.stride for n, v in split.known.items() if v.stride}
    for statement in split.each:
        for n in syntax.of_type(statement, "identifier"):
            if text(n) in steps and not any(e.span.holds(syntax.span(n)) for e in edits):
                edits.append(Edit(syntax.span(n), f"({text(n)} + {_times(steps[text(n)], k)})"))
    computed = [line for s in split.each for line in _lines(context, s, edits)]
    braces = len(computed) > 1
    return [
        *dict.fromkeys(v.definition for _, v in unique.values() if v.definition),
        *declarations([v for _, v in unique.values()]),
        *(unique[n][1].load(unique[n][0].address, _hint(vectors, n, "read")) for n in loaded),
        "#pragma unroll",
        f"for (int {k} = 0; {k} < {width}; {k}++)" + (" {" if braces else ""),
        *(step + line for line in computed),
        *(["}"] if braces else []),
        *(unique[n][1].store(unique[n][0].address, _hint(vectors, n, "write")) for n in stored),
    ]


def _times(stride: int, k: str) -> str:
    return k if stride == 1 else f"{stride} * {k}"


def _read_first(accesses: list[Access]) -> bool:
    """Some access needs the element's old value."""
    stored = min((a.node.start_byte for a in accesses if a.kind == "write"), default=None)
    for access in accesses:
        if access.kind != "write" and (stored is None or access.node.start_byte < _end_of_statement(accesses, stored)):
            return True
    return False


def _end_of_statement(accesses: list[Access], start: int) -> int:
    return syntax.statement_end(next(a.node for a in accesses if a.node.start_byte == start))


def _hint(vectors: dict[Access, Vector], name: str, kind: str) -> str:
    return next((a.hint for a, v in vectors.items() if v.name == name and a.kind == kind), "")


def _copied(split: Split, vectors: dict[Access, Vector]) -> tuple[Access, Access] | None:
    """`place = place;` and nothing else: one vector moved."""
    if len(split.each) != 1 or len(vectors) != 2 or split.each[0].type != "expression_statement":
        return None
    node = split.each[0].named_children[0]
    if node.type != "assignment_expression" or text(syntax.field(node, "operator")) != "=":
        return None
    sides = {a.node.id: a for a in vectors}
    left, right = sides.get(syntax.field(node, "left").id), sides.get(syntax.field(node, "right").id)
    return (left, right) if left is not None and right is not None else None


def _lines(context: Context, statement: Node, edits: list[Edit]) -> list[str]:
    """The statement's text with the edits inside it, without its own indentation."""
    span = syntax.span(statement)
    code = context.edited(span, (e for e in edits if span.holds(e.span)))
    return layout.dedented(code, len(context.indent(span.start)))
