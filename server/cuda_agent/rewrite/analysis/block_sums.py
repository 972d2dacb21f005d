"""A kernel whose blocks sum over their threads: the work that is done for every block, and what follows it once, which
only adds (`linear.py`) and does not ask which block it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import affine, effects, functions, names, shared
from cuda_agent.rewrite.analysis import statements as touching
from cuda_agent.rewrite.analysis.linear import ZERO, Linear
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.rule import Context, refuse_damaged
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import LOOPS, ancestors, base, callee, name_of, walk

WAITS = re.compile(r"__sync\w+|__shfl\w*|__activemask|__ballot\w*|__threadfence_block")
_PLACES = ("subscript_expression", "parenthesized_expression", "pointer_expression")
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


def taken_apart(context: Context, axis: str) -> Plan:
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
                if isinstance(error, _MoreThanSums) or not isinstance(refused, _MoreThanSums):
                    refused = error
    raise refused


def _check_axes(context: Context) -> None:
    """RuleRefused where a function that the kernel calls asks which block it is, or the kernel does as a whole."""
    for n in walk(context.body, "identifier"):
        if text(n) in syntax.BUILTINS and (n.parent is None or n.parent.type != "field_expression"):
            raise RuleRefused(f"{text(n)} is used as a whole")
    known = functions.definitions(context.module)
    todo, seen = [context.body], set[str]()
    while todo:
        for call in walk(todo.pop(), "call_expression"):
            name = (callee(call) or "").split("<")[0]
            if name not in seen:
                seen.add(name)
                todo += known.get(name, [])
                if any(re.search(r"\b(blockIdx|gridDim)\b", text(one)) for one in known.get(name, ())):
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
        if is_shared(v):
            if any(inside.holds(syntax.span(u)) and not late(u) and not _declares(v, u) for u in v.uses):
                raise RuleRefused(f"{v.name} is used in front of the sum and in it")
            ahead += [v] if inside.holds(Span(v.start, v.start)) else []
        elif _steady(context, v, inside, axis):
            ahead.append(v)
        else:
            sums.append(v)
    _check_apart(context, inside, late)
    if write is not None and sums:
        raise RuleRefused(f"{sums[0].name} depends on the block")
    if write is None and not sums:
        raise RuleRefused("no variable brings a value to the sum")
    for v in sums:
        if any(behind.holds(syntax.span(u)) and _decides(u) for u in v.uses):
            raise RuleRefused(f"{v.name} depends on the block")
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


def _check_apart(context: Context, inside: Span, late: Callable[[Node], bool]) -> None:
    """The work and the sum use different shared memory, also where a pointer or a dynamic array leads there."""
    scope = names.of(context)
    dynamic = {a.name for a in context.kernel.shared if a.dynamic}

    blurred = [v for v in scope.variables if may_lead(context, v)]
    early = [v for v in scope.variables if any(inside.holds(syntax.span(u)) and not late(u) for u in v.uses)]
    after = [v for v in scope.variables if any(late(u) for u in v.uses)]
    for one, other in ((a, b) for a in early for b in after):
        both_dynamic = one.name in dynamic and other.name in dynamic
        shared_ones = [is_shared(one) or one in blurred, is_shared(other) or other in blurred]
        by_pointer = all(shared_ones) and (one in blurred or other in blurred)
        if both_dynamic or by_pointer:
            raise RuleRefused(f"{other.name} may be used in front of the sum and in it")


def _decides(use: Node) -> bool:
    """An index or a condition, which no sum is."""
    return next(ancestors(use, ("subscript_argument_list", "condition_clause")), None) is not None


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
            if is_shared(v) and not _written(context, v, Span(0, inside.start)):
                continue
            if v.param is not None:
                raise _MoreThanSums(f"the parameter {v.name} is changed")
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
    found = functions.definitions(context.module).get(called, [])
    return bool(found) and not any("&" in text(syntax.field(f, "declarator")) for f in found)


def is_shared(v: Variable) -> bool:
    declaration = next(ancestors(v.declarator, ("declaration",)), None) if v.declarator is not None else None
    return v.shared or (declaration is not None and "__shared__" in text(declaration))


def may_lead(context: Context, v: Variable) -> bool:
    """A pointer that may lead to shared memory."""
    own = {x.name for x in names.of(context).variables if is_shared(x)}
    values = [w.value for w in v.writes if w.value is not None]
    unknown = any(syntax.identifiers(x) & own or any(walk(x, "call_expression")) for x in values)
    chained = any(syntax.identifiers(x) & _pointers(context) for x in values)
    return v.pointer > 0 and v.param is None and (unknown or chained or not values)


def _pointers(context: Context) -> set[str]:
    return {v.name for v in names.of(context).variables if v.pointer and v.param is None}


def _cell_type(scope: names.Names, target: Node) -> str:
    v = scope.resolve(name_of(base(target)) or "", target.start_byte)
    if v is None or not is_shared(v) or v.pointer:
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
    own = {v.name for v in names.of(context).variables if is_shared(v)}
    calls = {callee(c) or "" for c in walk(node, "call_expression")}
    return all(name in own for name, _ in touching.stored(context, node)) and all(map(WAITS.fullmatch, calls))


def _check_added(context: Context, tail: list[Node], sums: set[str], kind: str) -> set[str]:
    """The names that hold sums in what follows, which only adds, at least once and to parameters, and in the type of
    the threads' values: no bit is lost that the blocks would keep."""
    scope, types = names.of(context), shared.resolved(context, kind)
    if not all(_KINDS.fullmatch(t) for t in types):
        raise RuleRefused(f"sums of {kind} are not carried over")
    own = frozenset(v.name for v in scope.variables if is_shared(v))
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
