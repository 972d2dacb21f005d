"""# 6 · vector-loop: 128-bit loads and stores in loops

A loop in which a thread, or the threads of a warp or block together, walk neighbouring elements moves 4 bytes an
instruction; with 16 bytes there are a quarter of the instructions and four times the bytes in flight.

Before:

    for (int c = threadIdx.x; c < cols; c += blockDim.x)
        sum += in[row * cols + c];

After:

    const int whole = reinterpret_cast<size_t>(in + row * cols) % 16 == 0 ? cols / 4 * 4 : 0;
    for (int c4 = threadIdx.x * 4; c4 < whole; c4 += blockDim.x * 4) {
        __align__(16) float in4[4];
        *reinterpret_cast<float4 *>(in4) = *reinterpret_cast<const float4 *>(&in[row * cols + c4]);
        #pragma unroll
        for (int k = 0; k < 4; k++)
            sum += in4[k];
    }
    for (int c = whole + threadIdx.x; c < cols; c += blockDim.x)
        sum += in[row * cols + c];

Legal when start and step are those of all threads of a warp, block or grid, which reach the loop together, so that
other threads may take other elements (proved); what is carried from one element to the next is a sum, product, minimum
or maximum (proved) that is combined over those threads before it is used (by a shuffle or an atomic: proved; by a
function called a reduction or through a shared array: assumed); and an array that the loop writes is touched by it at
the element's own place only (proved). A loop with step 1 keeps its order. The pointers of one launch do not overlap
(captured, where the loop writes). Rows that do not start at a whole vector keep the old loop, which also takes what is
left at the end: right for every size and address. A loop with step 1 is bit-exact; sums shared among threads change
their order: class "reassociated".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, NumericClass, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.combined import accumulated, combined
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.analysis.effects import check_body, check_long, touched
from cuda_agent.rewrite.analysis.elements import element_size
from cuda_agent.rewrite.analysis.neighbours import Access, Body
from cuda_agent.rewrite.analysis.strided import StridedLoop, Uniform, chunked_loop, lanes_of, strided_loop
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.rules.restrict import check_disjoint
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.rewrite.vectors import local_vector, sizes_seen
from cuda_agent.rewrite.widened import Plan, Stream, edits

_BARRIER = re.compile(r"__sync|\.sync\(|\bsync\(")


class VectorLoop(Rule):
    name = "vector-loop"
    number = 6

    def sites(self, context: Context) -> Iterator[Site]:
        loops = list(syntax.of_type(context.body, "for_statement"))
        if not loops:
            return
        for nbytes in (16, 8):
            plans, why = _plans(context, loops, nbytes)
            if not plans and why is not None and nbytes == 16:
                raise why
            if plans:
                span = Span(plans[0].loop.node.start_byte, plans[-1].loop.node.end_byte)
                inside = {s.name for s in context.kernel.shared}
                minor = all(set(p.roots) <= inside for p in plans)  # no memory is moved, as where a table is cleared
                yield Site(self.name, span, {"bytes": nbytes}, {"plans": plans}, minor=minor)

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        plans: list[Plan] = site.nodes["plans"]
        assumptions = []
        if any(any(p.roots.values()) for p in plans):
            check_disjoint(context)
            known = context.pointer_targets()
            assumptions.append(
                Assumption("the pointers of one launch never overlap", "captured" if known else "assumed")
            )
        _check_owners(context, plans)
        bare = sorted({s.base for p in plans for s in p.streams if not s.check})
        if bare:
            assumptions.append(
                Assumption(f"aligned to {site.params['bytes']} bytes at every launch: {', '.join(bare)}", "captured")
            )
        if any(not p.body.unconditional(a.node) for p in plans for s in p.streams for a in s.accesses if s.accesses):
            assumptions.append(Assumption("elements that an inner loop may leave alone can be read", "assumed"))
        shared = [p for p in plans if p.lanes is not None]
        assumptions += [Assumption(a, "assumed") for p in shared if p.lanes and (a := p.lanes.assumed)]
        for how in dict.fromkeys(p.known for p in shared if p.ops):
            assumptions.append(Assumption("what threads accumulate is only used combined over all of them", how))
        assumptions += sizes_seen(context, (s.vector for p in plans for s in p.streams))
        numeric: NumericClass = (
            "reassociated" if any(op in "+*" for p in shared for op in p.ops.values()) else "bit-exact"
        )
        return Rewrite(tuple(edits(context, plans)), assumptions=tuple(dict.fromkeys(assumptions)), numeric=numeric)


def _plans(context: Context, loops: list[Node], nbytes: int) -> tuple[list[Plan], RuleRefused | None]:
    """The loops that can be widened, innermost where they are nested; and why the first other one cannot."""
    names = Names(context)
    plans: list[Plan] = []
    why: RuleRefused | None = None
    for node in reversed(loops):
        if any(syntax.span(node).holds(syntax.span(p.loop.node)) for p in plans):
            continue
        loop = chunked_loop(names, node) or strided_loop(names, node)
        if loop is None:
            continue
        try:
            plans.append(_plan(context, names, loop, nbytes))
        except RuleRefused as error:
            why = error
    return plans[::-1], why


def _plan(context: Context, names: Names, loop: StridedLoop, nbytes: int) -> Plan:
    body = Body.of(names, loop)
    check_body(context, loop)
    lanes, uniform = None, None
    if loop.step == "1":
        if names.resolved(loop.start) != "0":
            raise RuleRefused("the loop does not start at 0")
    else:
        lanes = lanes_of(names, loop)
        if lanes is None:
            raise RuleRefused("the loop's start and step are not those of all threads of a warp, block or grid")
        for inner in syntax.of_type(loop.body, "for_statement"):
            first = inner.child_by_field_name("initializer")
            if first is not None and syntax.uses(first, loop.variable):
                raise RuleRefused("an inner loop starts at the element: its threads would no longer be neighbours")
        uniform = Uniform(names, lanes)
        uniform.check_reached(loop)
        if not uniform.value(loop.bound):
            raise RuleRefused("threads that share the loop end it at different places")
    ops = accumulated(loop) if lanes is not None else {}
    known = combined(context, loop, ops)
    roots, loose = touched(names, body)
    found = _candidates(context, names, body, roots, loose, uniform)
    if not found:
        raise RuleRefused("no array is read or written at neighbouring places in every iteration")
    largest = max(size for _, size, _ in found.values())
    width = nbytes // largest
    if width < 2:
        raise RuleRefused(f"one element has {largest} bytes")
    check_long(context, loop, width)
    taken: set[str] = set()
    streams = [_stream(context, a, size, element, width, body, taken) for a, size, element in found.values()]
    return Plan(loop, lanes, body, streams, roots, ops, known)


def _candidates(
    context: Context, names: Names, body: Body, roots: dict[str, bool], loose: set[str], uniform: Uniform | None
) -> dict[str, tuple[list[Access], int, str]]:
    """Key → accesses, bytes of an element and its type, for the elements that vectors can hold."""
    bad = set(loose)
    keys: dict[str, set[str]] = {}
    found: dict[str, tuple[list[Access], int, str]] = {}
    for access in body.accesses:
        root = names.root(access.array)
        if root is None:
            continue
        key = _widens(body, access, uniform)
        if key is None and roots[root]:
            bad.add(root)
        keys.setdefault(root, set()).add(key or "")
    bad |= {root for root, of in keys.items() if roots[root] and len(of) > 1}
    for access in body.accesses:
        root, key = names.root(access.array), _widens(body, access, uniform)
        element = names.element(access.array)
        if root is None or key is None or element is None or root in bad:
            continue
        size = element_size(context, root, element)
        if size is None:
            if roots[root]:
                raise RuleRefused(f"the size of {element} is not known")
            continue
        found.setdefault(key, ([], size, element))[0].append(access)
    for access in body.accesses:  # reads that not every iteration makes find their element in the vector of others
        key = body.key(access) if access.kind == "read" and body.coefficient_of(access) == 1 else ""
        root = names.root(access.array)
        if key in found and root is not None and not roots[root] and access not in found[key][0]:
            found[key][0].append(access)
    return found


def _widens(body: Body, access: Access, uniform: Uniform | None) -> str | None:
    """The key of an access that moves by one element an iteration, is made in every iteration and starts at the same
    place for all threads that share the loop."""
    if access.array.type != "identifier" or not body.unconditional(access.node, through_loops=True):
        return None
    if access.name in body.written or (access.index is not None and body.local(access.array) is not None):
        return None
    if body.coefficient_of(access) != 1:
        return None
    if uniform is not None:
        terms = [access.array] if access.index is None else [access.array, access.index]
        for term in terms:
            for n in syntax.of_type(term, "identifier", "field_expression", "call_expression"):
                if text(n) != body.variable and body.local(n) is None and not uniform.value(n):
                    return None
    return body.key(access)


def _stream(
    context: Context, accesses: list[Access], size: int, element: str, width: int, body: Body, taken: set[str]
) -> Stream:
    first = accesses[0]
    vector = local_vector(context, first.name, element, size, width)
    while vector.name in taken:
        vector = replace(vector, name=vector.name + "b")
    taken.add(vector.name)
    base = body.base(first)
    plain = base == first.name and first.name in {p.name for p in context.kernel.params}
    return Stream(vector, accesses, base, not (plain and context.aligned(base, vector.bytes)))


def _check_owners(context: Context, plans: list[Plan]) -> None:
    """Threads take other elements than before: what one of them writes, it alone may read without a barrier."""
    names = Names(context)
    barriers = [m.start() for m in _BARRIER.finditer(text(context.body))]
    start = context.body.start_byte
    whole = Body(names, context.body, "")
    for plan in plans:
        if plan.lanes is None:
            continue
        partners = [p for p in plans if _same_owner(p, plan)]
        for access in whole.accesses:
            root = names.root(access.array)
            if root not in plan.roots or any(
                syntax.span(p.loop.node).holds(syntax.span(access.node)) for p in partners
            ):
                continue
            if access.kind == "read" and not plan.roots[root]:
                continue
            low, high = sorted((access.node.start_byte, plan.loop.node.start_byte))
            if not any(low < start + b < high for b in barriers):
                raise RuleRefused(f"{root} is written and read by threads that would no longer be the same")


def _same_owner(a: Plan, b: Plan) -> bool:
    """Both loops give an element to the same thread."""
    if a is b:
        return True
    return (
        a.lanes == b.lanes
        and a.width == b.width
        and squeeze(text(a.loop.bound)) == squeeze(text(b.loop.bound))
        and {s.base for s in a.streams if s.check} == {s.base for s in b.streams if s.check}
    )
