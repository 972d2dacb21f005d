"""# 12 · sum-blocks: a block does the work of several before it sums

A block that computes one element a thread, sums over its threads and adds the sum to one place spends most of its time
in the sum: barriers, shuffles and an atomic that all blocks wait for. Where a thread first adds up the values of
several blocks there are fewer of all these.

Before:

    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    if (i < n)
        sum = x[i] * y[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        atomicAdd(out, sum);

After (and an eighth of the blocks):

    float sum = 0.0f;
    for (int r = 0; r < 8; r++) {
        int i = (blockIdx.x * 8 + r) * blockDim.x + threadIdx.x;
        if (i < n)
            sum += x[i] * y[i];
    }
    sum = block_sum(sum);
    …

Legal when everything behind the sum only adds (proved: sums, multiples by what is the same for all blocks, shuffles,
tree reductions, block sums of cub, functions of the file that do no more), does not ask which block it is, and is
written nowhere but by atomicAdd; when no thread leaves early; and when the work in front keeps nothing from one block
to the next. Where that work uses shared memory, a barrier ends each round. The blocks that are too many in the last
round have nothing to do because everything is guarded by the index (proved; that the launch reaches the bound is
captured), or there are none because the grid is a constant of the file (proved). Reassociated for floats.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused, WorkloadError
from cuda_agent.model import Assumption, Edit, LaunchMap, Span
from cuda_agent.rewrite import launches, layout, syntax
from cuda_agent.rewrite.analysis import affine, effects, linear, names, shared, trips
from cuda_agent.rewrite.analysis import statements as touching
from cuda_agent.rewrite.analysis.linear import ZERO, Linear
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site, refuse_damaged
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source import declared
from cuda_agent.source.tree import LOOPS, ancestors, base, callee, name_of, strip_parens, walk
from cuda_agent.workload import launch_map

_SUMS = re.compile(r"\batomicAdd\s*\(")
_COMBINES = re.compile(r"__syncthreads|__shfl|[rR]educe|\.Sum\b")
_WAITS = re.compile(r"__sync\w+|__shfl\w*|__activemask|__ballot\w*|__threadfence_block")
_ROUNDS = (2, 4, 8, 16, 32)
_TRIED = 3
_PLACES = ("subscript_expression", "parenthesized_expression", "pointer_expression")
_BLOCKS_PER_SM = 8
_KINDS = re.compile(r"float|double|int|unsigned|unsigned int|(unsigned )?long( long)?( int)?|u?int(32|64)_t|size_t")


@dataclass(frozen=True)
class Plan:
    """How one kernel is taken apart: `work` is done for every block, what follows it once."""

    work: list[Node]
    sums: tuple[Variable, ...]  # declared by the work or in front of it, read behind it
    ahead: tuple[Node, ...]  # declarations of the work that are moved in front of the loop
    last: syntax.Write | None  # `cell = value;` that ends the work, where no variable holds the sum
    kind: str  # type of the sums


class _MoreThanSums(RuleRefused):
    """The kernel comes apart, and what follows does more than add: the reason that tells most."""


class SumBlocks(Rule):
    name = "sum-blocks"
    number = 12

    def sites(self, context: Context) -> Iterator[Site]:
        code = text(context.body)
        if not context.shapes or not (_SUMS.search(code) and _COMBINES.search(code)):
            return
        sms = context.device.sms if context.device else 132
        blocks = min(s.blocks for s in context.shapes)
        refused: RuleRefused | None = None
        for axis in "yxz":
            deep = min(s.grid["xyz".index(axis)] for s in context.shapes)
            fitting = [k for k in _ROUNDS if k <= deep and blocks // k >= sms]
            if f"blockIdx.{axis}" not in squeeze(code) or not fitting:
                continue
            try:
                plan = _plan(context, axis)
                spare, exact = _spare(context, plan, axis)
            except RuleRefused as error:
                refused = refused or error
                continue
            fitting = [k for k in fitting if exact is None or exact % k == 0]
            for k in sorted(fitting, key=lambda k: abs(math.log(blocks / k / (_BLOCKS_PER_SM * sms))))[:_TRIED]:
                nodes = {"plan": plan, "spare": spare}
                yield Site(self.name, context.kernel.name_span, {"axis": axis, "blocks": k}, nodes)
            return
        if refused is not None:
            raise refused

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        plan: Plan = site.nodes["plan"]
        axis, k = site.params["axis"], site.params["blocks"]
        fewer = [(lambda code: launches.over(code, k)) if a == axis else launches.same for a in "xyz"]
        grid = [f"ceil_div(g{a}, {k})" if a == axis else f"g{a}" for a in "xyz"]
        edits = [*_edits(context, plan, axis, k), *launches.change(context, (fewer[0], fewer[1], fewer[2]))]
        return Rewrite(
            tuple(edits),
            LaunchMap(grid=(grid[0], grid[1], grid[2])),
            (Assumption("what a block adds is linear in what its threads bring", "proved"), site.nodes["spare"]),
            "bit-exact" if shared.is_integer(context, plan.kind) else "reassociated",
        )


# ---------------------------------------------------------------- taking the kernel apart


def _plan(context: Context, axis: str) -> Plan:
    """The first place behind which the kernel only adds. RuleRefused with what stands in the way."""
    refuse_damaged(context)
    if next(walk(context.body, ("goto_statement", "return_statement", "asm_statement")), None):
        raise RuleRefused("a thread may leave before the sum")
    if re.search(r"\bgridDim\b|this_grid|grid_group|\basm\b|\bclock", text(context.body)):
        raise RuleRefused("the kernel asks how many blocks there are")
    _check_axes(context)
    _check_macros(context)
    statements = [n for n in context.body.named_children if n.type != "comment"]
    asks = [i for i, n in enumerate(statements) if re.search(rf"\bblockIdx\s*\.\s*{axis}\b", text(n))]
    if not asks:
        raise RuleRefused("no statement asks which block it is")
    refused: RuleRefused = RuleRefused("nothing but the work of single blocks")
    for end in range(asks[-1] + 1, len(statements)):
        for last in (True, False):
            try:
                return _split(context, statements, asks[0], end, last, axis)
            except RuleRefused as error:
                refused = refused if isinstance(refused, _MoreThanSums) else error
    raise refused


def _check_axes(context: Context) -> None:
    """RuleRefused where a function that the kernel calls asks which block it is, or the kernel does as a whole."""
    for n in walk(context.body, "identifier"):
        if text(n) in syntax.BUILTINS and (n.parent is None or n.parent.type != "field_expression"):
            raise RuleRefused(f"{text(n)} is used as a whole")
    known: dict[str, Node] = {linear.function_name(f) or "": f for f in linear.functions(context)}
    todo, seen = [context.body], set[str]()
    while todo:
        for call in walk(todo.pop(), "call_expression"):
            name = (callee(call) or "").split("<")[0]
            if name in known and name not in seen:
                seen.add(name)
                todo.append(known[name])
                if re.search(r"\b(blockIdx|gridDim)\b", text(known[name])):
                    raise RuleRefused(f"{name} asks which block it is")


def _check_macros(context: Context) -> None:
    """RuleRefused where a macro of the kernel does more than compute: the tree does not show it."""
    used = syntax.identifiers(context.body)
    local = {v.name for v in names.of(context).variables}
    for name, parameters, code in effects.macros(context):
        if name not in used:
            continue
        words = set(re.findall(r"[A-Za-z_]\w*", code)) - set(re.findall(r"\w+", parameters))
        writes = re.search(r"(?<![=!<>])=(?!=)|\+\+|--|\[|->|\breturn\b|__sync|atomic", code)
        if writes or words & (local | set(syntax.BUILTINS)):
            raise RuleRefused(f"the macro {name} does more than compute")


def _split(context: Context, statements: list[Node], first: int, end: int, last: bool, axis: str) -> Plan:
    scope = names.of(context)
    write = _last(statements[end - 1]) if last else None
    if last and write is None:
        raise RuleRefused("nothing is given to a cell of shared memory")
    tail = statements[end:]
    behind = Span(tail[0].start_byte, tail[-1].end_byte)
    start = _start(context, statements, first, end, behind)
    work = statements[start:end]
    inside = Span(work[0].start_byte, work[-1].end_byte)
    places = [write.target] if write is not None else []

    def late(use: Node) -> bool:
        return behind.holds(syntax.span(use)) or any(syntax.span(p).holds(syntax.span(use)) for p in places)

    read = [v for v in scope.variables if any(late(u) for u in v.uses) and v.start < behind.start]
    made = [v for v in read if inside.holds(Span(v.start, v.start)) or _written(context, v, inside)]
    cell = name_of(base(write.target)) if write is not None else None
    sums, ahead = [], []
    for v in made:
        if _is_shared(v):
            if any(inside.holds(syntax.span(u)) and not late(u) and not _declares(v, u) for u in v.uses):
                raise RuleRefused(f"{v.name} is used in front of the sum and in it")
            ahead += [v] if inside.holds(Span(v.start, v.start)) else []
        elif _steady(context, v, inside, axis):
            ahead.append(v)
        else:
            sums.append(v)
    if write is not None and sums:
        raise RuleRefused(f"{sums[0].name} depends on the block")
    if write is None and not sums:
        raise RuleRefused("no variable brings a value to the sum")
    for v in sums:
        _check_sum(v, inside)
    kinds = {_bare(v.type) for v in sums} if write is None else {_cell_type(scope, write.target)}
    if len(kinds) != 1:
        raise RuleRefused(f"sums of {' and '.join(sorted(kinds))} are not carried over together")
    kind = kinds.pop()
    try:
        added = _check_added(context, tail, {v.name for v in sums} if write is None else {cell or ""}, kind)
        for v in (v for v in scope.variables if v.name in added and v not in sums):
            _check_empty(v, behind.start, places)
        _check_in_front(context, statements[:start])
    except RuleRefused as error:
        raise _MoreThanSums(str(error)) from error
    moved = _declarations(context, [*ahead, *(v for v in sums if v.start in inside)], inside)
    return Plan(work, tuple(sums), moved, write, kind)


def _last(statement: Node) -> syntax.Write | None:
    """`cell = value;` of a statement."""
    inner = statement.named_children[0] if statement.type == "expression_statement" else None
    if inner is None or inner.type != "assignment_expression":
        return None
    write = next(syntax.writes(inner))
    return write if write.op == "=" and write.target.type == "subscript_expression" else None


def _start(context: Context, statements: list[Node], first: int, end: int, behind: Span) -> int:
    """Where the work begins: at the first statement that asks for the block, or at the declaration of a variable that
    the work changes and nothing behind it reads."""
    start, scope = first, names.of(context)
    while True:
        inside = Span(statements[start].start_byte, statements[end - 1].end_byte)
        early = [v for v in scope.variables if v.start < inside.start and _written(context, v, inside)]
        kept = [v for v in early if not any(behind.holds(syntax.span(u)) for u in v.uses)]
        for v in kept:
            if v.pointer or (_is_shared(v) and not _written(context, v, Span(0, inside.start))):
                continue
            if v.param is not None:
                raise RuleRefused(f"the parameter {v.name} is changed")
            start = next(i for i, n in enumerate(statements) if v.start in syntax.span(n))
            break
        else:
            return start


def _written(context: Context, v: Variable, inside: Span) -> bool:
    """Whether the variable, or the thread's or block's memory that it names, may change there."""
    if any(inside.holds(syntax.span(w.node)) for w in v.writes):
        return True
    return any(inside.holds(syntax.span(u)) and _changes(context, v, u) for u in v.uses)


def _changes(context: Context, v: Variable, use: Node) -> bool:
    outer: Node = use
    above = use.parent
    while above is not None and above.type in (
        "subscript_expression",
        "parenthesized_expression",
        "pointer_expression",
    ):
        if above.type == "subscript_expression" and above.child_by_field_name("argument") != outer:
            return False  # an index
        outer, above = above, above.parent
    if above is None or v.pointer:
        return False
    if above.type in ("assignment_expression", "update_expression"):
        return (above.child_by_field_name("left") or above.child_by_field_name("argument")) == outer
    if above.type != "argument_list" or above.parent is None or above.parent.type != "call_expression":
        return outer.type == "pointer_expression" and text(outer).startswith("&")
    if v.is_array or outer != use:
        return outer.type != "subscript_expression"
    return v.escapes and not _by_value(context, above.parent)


def _by_value(context: Context, call: Node) -> bool:
    """A macro (all of the kernel's only compute), or a function of the file without references."""
    called = (callee(call) or "").split("<")[0]
    if called in {name for name, _, _ in effects.macros(context)}:
        return True
    found = [f for f in linear.functions(context) if linear.function_name(f) == called]
    return bool(found) and not any("&" in text(syntax.field(f, "declarator")) for f in found)


def _is_shared(v: Variable) -> bool:
    declaration = next(ancestors(v.declarator, ("declaration",)), None) if v.declarator is not None else None
    return v.shared or (declaration is not None and "__shared__" in text(declaration))


def _cell_type(scope: names.Names, target: Node) -> str:
    v = scope.resolve(name_of(base(target)) or "", target.start_byte)
    if v is None or not _is_shared(v) or v.pointer:
        raise RuleRefused(f"{text(target)} is no shared memory of the block")
    return _bare(v.type)


def _declares(v: Variable, use: Node) -> bool:
    return v.declarator is not None and syntax.span(v.declarator).holds(syntax.span(use))


def _steady(context: Context, v: Variable, inside: Span, axis: str) -> bool:
    """The same in every block, and given once: its declaration may stand in front of the loop."""
    on = affine.depends(context, v)
    if v.escapes or v.is_array or [w.op for w in v.writes] != ["init"] or on & {"memory", "call"}:
        return False
    if f"blockIdx.{axis}" in on:
        return False
    scope = names.of(context)
    value = v.writes[0].value
    assert value is not None
    if ZERO.fullmatch(squeeze(text(value))):
        return False
    used = [scope.resolve(text(n), n.start_byte) for n in walk(value, "identifier")]
    return all(
        u is None or not _written(context, u, inside) or _steady(context, u, inside, axis) for u in used if u is not v
    )


def _check_sum(v: Variable, inside: Span) -> None:
    """The variable starts at zero or at one value and is only added to by the work: it can go on from block to
    block."""
    if v.is_array or v.pointer or v.param is not None:
        raise RuleRefused(f"{v.name} is more than a variable of the thread")
    starts = [w for w in v.writes if w.op == "init"]
    changes = [w for w in v.writes if w.op != "init" and inside.holds(syntax.span(w.node))]
    if len(starts) != 1 or starts[0].value is None or starts[0].node.start_byte > inside.end:
        raise RuleRefused(f"{v.name} does not start with a value")
    zero = ZERO.fullmatch(squeeze(text(starts[0].value))) is not None
    before = [w for w in v.writes if w.op != "init" and w.node.start_byte < inside.start]
    if before or (not zero and starts[0].node.start_byte < inside.start):
        raise RuleRefused(f"{v.name} has a value in front of the work")
    sets = [w for w in changes if w.op == "="]
    loops = [a for w in sets for a in ancestors(w.node, LOOPS) if inside.holds(syntax.span(a))]
    adds = all(w.op in ("+=", "-=") for w in changes)
    if not adds and (len(changes) != 1 or not sets or loops or not zero):
        raise RuleRefused(f"{v.name} is computed in several steps")
    own = [w.node for w in v.writes]
    for use in v.uses:
        if not inside.holds(syntax.span(use)) or _declares(v, use):
            continue
        if not any(w.node.start_byte == use.start_byte for w in changes):
            raise RuleRefused(f"{v.name} is read before the sum of the block")
    if any(w.parent is not None and w.parent.type not in ("expression_statement", "declaration") for w in own):
        raise RuleRefused(f"{v.name} is changed inside an expression")


def _check_empty(v: Variable, before: int, places: list[Node]) -> None:
    """What the sums are added to begins with zero, or with nothing: anything else would count once a block."""
    own = [w for w in v.writes if w.value is not None and w.node.start_byte < before]
    for use in v.uses:
        if use.start_byte >= before or _declares(v, use) or any(syntax.span(p).holds(syntax.span(use)) for p in places):
            continue
        set_ = next(ancestors(use, ("assignment_expression",)), None)
        own += [next(syntax.writes(set_))] if set_ is not None else []
        if set_ is None or not _is_place(syntax.field(set_, "left"), v.name):
            raise RuleRefused(f"{v.name} is used in front of the sum and in it")
    if not all(w.op in ("=", "init") and ZERO.fullmatch(squeeze(text(w.value))) for w in own if w.value is not None):
        raise RuleRefused(f"{v.name} does not begin with zero")


def _check_in_front(context: Context, nodes: list[Node]) -> None:
    """What stands in front of the work is done once a block: it may store in the block's own memory only."""
    for node in nodes:
        if touching.stores(context, node) and not _stays_inside(context, node):
            raise RuleRefused("every block stores something in front of its work")


def _is_place(node: Node, name: str) -> bool:
    return node.type in ("identifier", "subscript_expression") and name_of(base(node)) == name


def _stays_inside(context: Context, node: Node) -> bool:
    """All that a statement stores is the block's own shared memory, and it only waits otherwise."""
    own = {v.name for v in names.of(context).variables if _is_shared(v)}
    calls = {callee(c) or "" for c in walk(node, "call_expression")}
    return all(name in own for name, _ in touching.stored(context, node)) and all(map(_WAITS.fullmatch, calls))


def _check_added(context: Context, tail: list[Node], sums: set[str], kind: str) -> set[str]:
    """The names that hold sums in what follows, which only adds, at least once and to parameters, and in the type of
    the threads' values: no bit is lost that the blocks would keep."""
    scope, types = names.of(context), shared.resolved(context, kind)
    if not all(_KINDS.fullmatch(t) for t in types):
        raise RuleRefused(f"sums of {kind} are not carried over")
    own = frozenset(v.name for v in scope.variables if _is_shared(v))
    adds = Linear(context, set(sums), own, floating=types <= {"float", "double"})
    adds.check(tail)
    if not adds.sinks:
        raise RuleRefused("the sum of a block is added nowhere")
    parameters = {p.name: p for p in context.kernel.params}
    for sink in adds.sinks:
        if sink not in parameters or parameters[sink].pointer != 1:
            raise RuleRefused(f"{sink} is not known to be memory that a parameter points to")
    held = [(v.name, _bare(v.type)) for v in scope.variables if v.name in adds.sums]
    held += [(sink, parameters[sink].element) for sink in adds.sinks]
    held += [(name, t) for name, t in adds.types if _KINDS.fullmatch(t) or t in ("short", "char", "half", "bool")]
    for name, other in held:
        if shared.resolved(context, other) != types:
            raise RuleRefused(f"{name} is {other}, the threads bring {kind}")
    return adds.sums


def _bare(kind: str) -> str:
    return " ".join(re.sub(r"\b(const|volatile|static|extern)\b|__shared__", " ", kind).split())


def _declarations(context: Context, moved: list[Variable], inside: Span) -> tuple[Node, ...]:
    """The declarations of the work's variables that are wanted behind it, each with nothing else in it."""
    found: dict[int, Node] = {}
    for v in moved:
        assert v.declarator is not None
        declaration = next(ancestors(v.declarator, ("declaration",)))
        if declaration.parent != context.body:
            raise RuleRefused(f"{v.name} is declared in an inner block")
        found[declaration.id] = declaration
    for declaration in found.values():
        held = [v for v in names.of(context).variables if v.declarator and v.start in syntax.span(declaration)]
        if any(v not in moved for v in held):
            raise RuleRefused(f"{text(declaration)} declares more than the sum")
    return tuple(sorted(found.values(), key=lambda n: n.start_byte))


# ---------------------------------------------------------------- blocks that are too many


def _spare(context: Context, plan: Plan, axis: str) -> tuple[Assumption, int | None]:
    """Why the blocks that fill up the last round do no harm, and the extent of the grid that the rounds must divide
    where there may be none."""
    try:
        return _guarded(context, plan, axis), None
    except RuleRefused as error:
        count = _constant_extent(context, axis)
        if count is None:
            raise error
        return Assumption(f"the grid has {count} blocks in {axis}, by constants of the file", "proved"), count


def _constant_extent(context: Context, axis: str) -> int | None:
    """The extent of the grid that the text of every launch gives, when it is that of the captured launches."""
    found = {s.grid["xyz".index(axis)] for s in context.shapes}
    for site in launches.sites_of(context):
        code = launches.block_axes(context, site.grid, site.span.start)["xyz".index(axis)]
        try:
            found.add(launch_map.evaluate(_spelled(context, code, site.span.start), {}))
        except WorkloadError:
            return None
    return found.pop() if len(found) == 1 else None


def _spelled(context: Context, code: str, at: int, depth: int = 0) -> str:
    """The expression with the names of macros and unchanged variables spelled out."""

    def value(match: re.Match[str]) -> str:
        found = declared.declared(context.module, match[0], at)
        if found.value is None or depth > 4:
            return match[0]
        return f"({_spelled(context, text(found.value), found.at, depth + 1)})"

    return re.sub(r"[A-Za-z_]\w*", value, code)


def _guarded(context: Context, plan: Plan, axis: str) -> Assumption:
    """Every load, store and value of the work stands behind `index < bound`, which no block beyond the grid passes."""
    scope = names.of(context)
    bounds: dict[str, bool] = {}  # → whether it is seen in every captured launch
    safe: list[Span] = []
    for node in (n for one in plan.work for n in walk(one)):
        passed = {
            "if_statement": ("condition", "consequence"),
            "conditional_expression": ("condition", "consequence"),
            "binary_expression": ("left", "right"),
        }.get(node.type)
        if passed is None or (node.type == "binary_expression" and text(syntax.field(node, "operator")) != "&&"):
            continue
        for part in _conjuncts(syntax.field(node, passed[0])):
            bound = _bound(context, part, axis)
            if bound is not None:
                bounds[bound[0]] = bounds.get(bound[0], True) and bound[1]
                safe.append(syntax.span(syntax.field(node, passed[1])))

    def idle(node: Node) -> bool:
        return any(s.holds(syntax.span(node)) for s in safe)

    for node in (n for one in plan.work for n in walk(one)):
        if _touches(context, scope, node) and not idle(node):
            raise RuleRefused(f"{text(node)} would be done by a block too many as well")
    values = [w.value for v in plan.sums for w in v.writes if syntax.span(plan.work[0]).start <= w.node.start_byte]
    values += [plan.last.value] if plan.last is not None else []
    for value in values:
        if value is None or value.start_byte >= plan.work[-1].end_byte:
            continue
        inner = strip_parens(value)
        if inner.type == "conditional_expression" and idle(syntax.field(inner, "consequence")):
            inner = syntax.field(inner, "alternative")
        if not idle(inner) and not ZERO.fullmatch(squeeze(text(inner))):
            raise RuleRefused(f"{text(value)} would be added by a block too many as well")
    sentence = f"every launch has a thread for each {axis} below {' and '.join(bounds)}"
    return Assumption(sentence, "captured" if all(bounds.values()) else "assumed")


def _conjuncts(node: Node) -> Iterator[Node]:
    node = strip_parens(node)
    if node.type == "binary_expression" and text(syntax.field(node, "operator")) == "&&":
        yield from _conjuncts(syntax.field(node, "left"))
        yield from _conjuncts(syntax.field(node, "right"))
    else:
        yield node


def _bound(context: Context, node: Node, axis: str) -> tuple[str, bool] | None:
    """The bound of `index < bound`, where no block beyond the grid has an index below it, and whether all captured
    launches tell."""
    if node.type != "binary_expression" or text(syntax.field(node, "operator")) != "<":
        return None
    block = f"blockIdx.{axis}"
    index, bound = (affine.of(context, syntax.field(node, part)) for part in ("left", "right"))
    step = index.stride(block)
    if step is None or any(n.startswith(("blockIdx", "threadIdx")) or n in ("memory", "call") for n in bound.names):
        return None
    known = [f"threadIdx.{a}" for a in "xyz"]
    rest = index.substitute({block: 0, **dict.fromkeys(known, 0)})
    if any((d.startswith(("blockIdx", "gridDim")) and d != block) or d in ("memory", "call") for d in index.names):
        return None
    if any(not _grows(context, index.stride(t)) for t in known if index.depends(t)):
        return None
    told = True
    for numbers, shape in zip(context.numbers, context.shapes, strict=True):
        each, least, end = (trips.evaluate(p, numbers) for p in (step, rest, bound))
        if each is None or least is None or each <= 0 or least < 0:
            return None
        if end is None:
            told = False
        elif each * shape.grid["xyz".index(axis)] + least < end:
            return None
    return text(syntax.field(node, "right")), told


def _grows(context: Context, step: Poly | None) -> bool:
    values = [trips.evaluate(step, n) if step is not None else None for n in context.numbers]
    return all(value is not None and value >= 0 for value in values)


def _touches(context: Context, scope: names.Names, node: Node) -> bool:
    """A load or store of memory beyond the block's own, or a call that may do either."""
    if node.type == "subscript_expression":
        v = scope.resolve(name_of(base(node)) or "", node.start_byte)
        return v is None or not (v.is_array or _is_shared(v))
    if node.type == "pointer_expression":
        return text(node).startswith("*")
    if node.type == "call_expression":
        return not touching.pure(context, node) and not _WAITS.fullmatch(callee(node) or "")
    return node.type == "field_expression" and "->" in text(node)


# ---------------------------------------------------------------- text


def _edits(context: Context, plan: Plan, axis: str, k: int) -> list[Edit]:
    eol, step, r = context.eol, layout.unit(context), context.unused_here("r")
    work = list(plan.work)
    while work and any(n == work[0] for n in plan.ahead) and not _valued(plan, work[0]):
        work.pop(0)  # stays where it is, in front of the loop
    start, end = work[0].start_byte, _line_end(context, work[-1])
    indent = context.indent(start)
    edits: list[Edit] = []
    lines: list[str] = []
    gone: list[Span] = []
    for declaration in (n for n in plan.ahead if n.start_byte >= start):
        if (given := _valued(plan, declaration)) is not None:
            v, value = given
            lines.append(f"{plan.kind} {v.name} = {_zero(plan.kind)};")
            edits.append(Edit(Span(declaration.start_byte, value.start_byte), f"{v.name} += "))
        else:
            lines.append(text(declaration))
            gone.append(_line(context, declaration))
    edits += [Edit(span, "") for span in gone]
    for w in (w for v in plan.sums for w in v.writes if w.op == "=" and start <= w.node.start_byte < end):
        edits.append(Edit(syntax.span(syntax.field(w.node, "operator")), "+="))
    after = ""
    if plan.last is not None:
        name = context.unused_here("sum")
        assert plan.last.value is not None
        lines.append(f"{plan.kind} {name} = {_zero(plan.kind)};")
        edits.append(Edit(Span(plan.last.node.start_byte, plan.last.value.start_byte), f"{name} += "))
        after = f"{eol}{indent}{text(plan.last.target)} = {name};"
    for n in (n for one in work for n in walk(one, "field_expression")):
        if squeeze(text(n)) == f"blockIdx.{axis}" and not any(s.holds(syntax.span(n)) for s in gone):
            edits.append(Edit(syntax.span(n), f"(blockIdx.{axis} * {k} + {r})"))
    head = f"for (int {r} = 0; {r} < {k}; {r}++) {{"
    edits.append(Edit(Span(start, start), "".join(line + eol + indent for line in (*lines, head)) + step))
    inner = layout.indented(context, Span(start, end), step)
    edits += [e for e in inner if not any(s.start <= e.span.start < s.end for s in gone)]
    barrier = f"{eol}{indent}{step}__syncthreads();" if _works_together(context, plan) else ""
    edits.append(Edit(Span(end, end), f"{barrier}{eol}{indent}}}{after}"))
    return edits


def _valued(plan: Plan, declaration: Node) -> tuple[Variable, Node] | None:
    """The sum that a declaration gives its first value."""
    for v in plan.sums:
        start = next(w for w in v.writes if w.op == "init")
        if start.value is not None and syntax.span(declaration).holds(syntax.span(start.node)):
            return None if ZERO.fullmatch(squeeze(text(start.value))) else (v, start.value)
    return None


def _line(context: Context, node: Node) -> Span:
    """The statement's line; with the blank line behind it where there is one in front of it too."""
    span, data = layout.removed(context, node), context.module.document.data
    blank = re.match(rb"[ \t]*\r?\n", data[span.end :])
    doubled = re.search(rb"\n[ \t]*\r?\n\Z", data[: span.start]) is not None and data[span.end - 1 : span.end] == b"\n"
    return Span(span.start, span.end + blank.end()) if blank is not None and doubled else span


def _line_end(context: Context, node: Node) -> int:
    """Behind the statement and a comment on its line."""
    after = node.next_named_sibling
    same = after is not None and after.type == "comment" and after.start_point[0] == node.end_point[0]
    return after.end_byte if same and after is not None else node.end_byte


def _zero(kind: str) -> str:
    return {"float": "0.0f", "double": "0.0"}.get(kind, "0")


def _works_together(context: Context, plan: Plan) -> bool:
    """Whether the work uses shared memory, which the next round writes again."""
    scope = names.of(context)
    for node in (n for one in plan.work for n in walk(one, ("identifier", "call_expression"))):
        if node.type == "call_expression":
            name = re.escape((callee(node) or "").split("<")[0])
            shares = rf"\b{name}\s*\([^;{{}}]*\)\s*\{{[^}}]*__(sync|shared)"
            if name.startswith("__sync") or re.search(shares, context.text):
                return True
            continue
        v = scope.resolve(text(node), node.start_byte)
        mine = plan.last is not None and syntax.span(plan.last.target).holds(syntax.span(node))
        if v is not None and not mine and (_is_shared(v) or (v.pointer and v.param is None)):
            return True
    return False
