"""# 2 · row-per-warp: one row a thread → one row a warp

A kernel where a thread owns a row and walks it reads memory with a stride of a whole row between lanes: every load of
a warp touches 32 sectors. Giving the row to a warp makes the lanes neighbours. Short rows get eight lanes, long ones a
block; a block first where a warp for each row would leave multiprocessors idle.

Before:

    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int c = 0; c < cols; c++) sum += in[row * cols + c];

After:

    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int c = lane; c < cols; c += 32) sum += in[row * cols + c];
    for (int offset = 16; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);

The launch gets 32 times the blocks.

Legal when the thread index is used for nothing else (proved); every value carried out of a loop is a sum, product,
minimum or maximum (proved); iterations do not touch what another one writes (proved where an array has one index that
grows with the loop, else assumed); the block is one-dimensional (captured). Lanes wait for each other between loops
that find their elements in another order. Sums of floats change their order: class "reassociated"; else "bit-exact".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.judge import launch_text
from cuda_agent.model import Assumption, Edit, LaunchMap
from cuda_agent.rewrite import launches, syntax
from cuda_agent.rewrite.analysis import statements
from cuda_agent.rewrite.analysis.calls import effect
from cuda_agent.rewrite.analysis.carried import Reduction, dead_after, reductions
from cuda_agent.rewrite.analysis.iterations import independent
from cuda_agent.rewrite.analysis.loops import Loop, counting, integral, trips, type_of
from cuda_agent.rewrite.rows import WARP, Group, Rows, stride_of
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site, with_launch
from cuda_agent.rewrite.syntax import ThreadId, text
from cuda_agent.source.tree import arguments, callee

_FEW, _OTHERS = 8, (4, 16)  # lanes of a short row
_TINY, _SHORT, _LONG, _VERY_LONG = 64, 256, 512, 8192  # iterations
_BLOCK, _LARGE_BLOCK = 256, 1024  # threads of a long row's block
_FULL = 1024  # threads a multiprocessor that keep it busy
_NEW_BLOCK = 128  # where the old one has no whole warps


class RowPerWarp(Rule):
    name = "row-per-warp"
    number = 2

    def sites(self, context: Context) -> Iterator[Site]:
        ids = syntax.thread_ids(context.body)
        if len(ids) != 1 or ids[0].axis != "x":
            return
        row = ids[0]
        loops = list(_loops(context, context.body))
        derived = _derived(context, row.name)
        plain = _plain(context, row.name)
        if not any(_walks(l, derived, plain) for l in loops):
            return
        _check_threads(context, row)
        known = [n for l in loops if (n := trips(context, l)) is not None]
        nodes = {"row": row, "loops": loops}
        few = bool(known) and max(known) < _SHORT
        tiny = few and max(known) <= _TINY and _folds(context, loops)
        groups = [{"lanes": lanes} for lanes in ((_FEW, WARP, *_OTHERS) if tiny else (WARP,))]
        if not known or max(known) >= _LONG:
            sizes = (_BLOCK, _LARGE_BLOCK) if known and max(known) >= _VERY_LONG else (_BLOCK,)
            blocks = [{"block": threads} for threads in sizes]
            groups = [*groups, *blocks] if _busy(context, WARP) else [*_larger_first(context, blocks), *groups]
        if few and not tiny:
            groups.append({"lanes": _FEW})
        for group in groups:
            yield Site(self.name, syntax.span(row.declaration), group, nodes)

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        row: ThreadId = site.nodes["row"]
        loops: list[Loop] = site.nodes["loops"]
        block = site.params.get("block")
        group = Group(block or site.params["lanes"], block is not None)
        _check_flow(context, row, loops)
        found = [r for loop in loops for r in _reductions(context, loop)]
        assumed = [name for loop in loops for name in independent(context, loop)]
        edits = Rows(context, row, loops, found, group).edits()
        mapping, changed = _launch(context, group)
        rounded = any(r.rounded and not integral(type_of(context, r.name)) for r in found)
        added = any("atomicAdd" in text(l.node) for l in loops)
        return Rewrite(
            (*edits, *changed),
            mapping,
            (
                Assumption("blocks are one-dimensional", "captured" if context.shapes else "assumed"),
                Assumption("nothing but the rows' own loops depends on the thread index", "proved"),
                *(
                    Assumption(f"different iterations of a row's loop touch different elements of {name}", "assumed")
                    for name in dict.fromkeys(assumed)
                ),
                *(one for loop in loops for one in statements.trusted(context, loop.body)),
            ),
            "reassociated" if rounded or added else "bit-exact",
        )


# ---------------------------------------------------------------- where


def _busy(context: Context, threads: int) -> bool:
    """Whether so many threads a row are enough for every multiprocessor."""
    sms = context.device.sms if context.device else 132
    return all(shape.blocks * shape.threads * threads >= sms * _FULL for shape in context.shapes)


def _larger_first(context: Context, blocks: list[dict[str, int]]) -> list[dict[str, int]]:
    return blocks if _busy(context, _BLOCK) else blocks[::-1]


def _loops(context: Context, block: Node) -> Iterator[Loop]:
    """The loops that lanes share: those that run once a row, outermost first where they step through neighbours and
    their iterations may be shared out."""
    for statement in statements.statements(block):
        if statement.type == "if_statement":
            yield from _loops(context, syntax.field(statement, "consequence"))
            other = statement.child_by_field_name("alternative")
            if other is not None:
                yield from _loops(context, other)
        elif statement.type == "else_clause":
            yield from _loops(context, statement.named_children[-1])
        elif statement.type == "compound_statement":
            yield from _loops(context, statement)
        elif statement.type in syntax.LOOPS:
            loop = counting(statement)
            inner = statement.child_by_field_name("body")
            inside = list(_loops(context, inner)) if inner is not None else []
            walked = any(_neighbours(l) for l in inside)
            if (
                loop is None
                or "gridDim" in text(loop.update)
                or (walked and not (_neighbours(loop) and _legal(context, loop)))
            ):
                yield from inside
            else:
                yield loop


def _folds(context: Context, loops: list[Loop]) -> bool:
    """Whether the rows are folded: then few lanes have fewer shuffles, and nothing else to share."""
    try:
        return any(reductions(context, loop) for loop in loops)
    except RuleRefused:
        return False


def _legal(context: Context, loop: Loop) -> bool:
    try:
        reductions(context, loop)
        independent(context, loop)
    except RuleRefused:
        return False
    return True


def _neighbours(loop: Loop) -> bool:
    """Whether the loop steps through neighbouring elements of some array."""
    return loop.step == "1" and any(syntax.unit_stride(i, loop.variable) for _, i, _ in _indices(loop.body))


def _indices(body: Node) -> Iterator[tuple[str, Node, Node]]:
    """(array, index, whole) of subscripts, and of pointers that loads and stores are given (there without array)."""
    yield from syntax.subscripts(body)
    for call in syntax.of_type(body, "call_expression"):
        if re.match(r"__ld|__st", callee(call) or ""):
            yield from (("", one, one) for one in arguments(call)[:1])


def _derived(context: Context, row: str) -> set[str]:
    """Variables of the kernel that hang on the row."""
    found = {row}
    while True:
        more = set()
        for w in syntax.writes(context.body):
            name = next((text(n) for n in syntax.of_type(w.target, "identifier")), None)
            plain = w.op == "init" or w.target.type == "identifier"
            if plain and name not in found and name and w.value is not None and syntax.identifiers(w.value) & found:
                more.add(name)
        if not more:
            return found
        found |= more


def _plain(context: Context, row: str) -> set[str]:
    """Variables that are the row plus something: neighbouring threads find neighbours there already."""
    found = {row}
    for w in syntax.writes(context.body):
        name = next((text(n) for n in syntax.of_type(w.target, "identifier")), None)
        terms = syntax.additive_terms(w.value) if w.op == "init" and w.value is not None else []
        if name is not None and any(text(n) in found for _, n in terms):
            found.add(name)
    return found


def _walks(loop: Loop, derived: set[str], plain: set[str]) -> bool:
    """Some subscript is contiguous in the loop variable and starts at a place of the row, rows apart."""
    if not _neighbours(loop):
        return False
    fixed, near = derived - syntax.declared(loop.body) - {loop.variable}, plain - {loop.variable}
    for array, index, whole in _indices(loop.body):
        terms = {text(n) for _, n in syntax.additive_terms(index)} | {array}
        if syntax.unit_stride(index, loop.variable) and not terms & near and syntax.identifiers(whole) & fixed:
            return True
    return False


# ---------------------------------------------------------------- what must hold


def _check_threads(context: Context, row: ThreadId) -> None:
    allowed = [syntax.span(row.value)]
    if (stride := stride_of(row)) is not None:
        allowed.append(syntax.span(stride))
    for n in syntax.of_type(context.body, "identifier"):
        if text(n) in syntax.BUILTINS and not any(s.holds(syntax.span(n)) for s in allowed):
            raise RuleRefused(f"{text(n)} is used outside the row index: threads already share the work")
    if syntax.COOPERATION.search(text(context.body)):
        raise RuleRefused("threads of a block already work together here (barrier, shuffle or shared memory)")
    for shape in context.launched:
        if shape.block[1:] != (1, 1):
            raise RuleRefused(f"a captured launch has blocks of {shape.block}: they must be one-dimensional")


def _check_flow(context: Context, row: ThreadId, loops: list[Loop]) -> None:
    for loop in loops:
        if statements.breaks(loop.body) or next(syntax.of_type(loop.body, "return_statement", "goto_statement"), None):
            raise RuleRefused("a loop of the row may end early")
        if not loop.type and not dead_after(context, loop, loop.variable):
            raise RuleRefused(f"{loop.variable} is read after its loop")
        for call in syntax.of_type(loop.body, "call_expression"):
            said, above = effect(context, call), call.parent
            alone = above is not None and above.type == "expression_statement"
            known = (callee(call) or "").startswith(("atomic", "__st"))
            if said is not None and not (alone and known):
                raise RuleRefused(f"in a loop of the row {said}")
    if any(w.name == row.name and w.op != "init" and w.node != stride_of(row) for w in syntax.writes(context.body)):
        raise RuleRefused(f"{row.name} is changed after it was computed")


def _reductions(context: Context, loop: Loop) -> list[Reduction]:
    found = reductions(context, loop)
    for r in found:
        if type_of(context, r.name) is None:
            raise RuleRefused(f"{r.name} is not a plain variable of the kernel")
    return found


# ---------------------------------------------------------------- launches


def _whole_warps(context: Context) -> bool:
    """Whether every launch's text has blocks of whole warps, whatever the sizes."""
    texts = [(launches.width(context, one), one.span.start) for one in context.sites]
    known = [launch_text.constant(context.module, code, at) for code, at in texts]
    return all(n is not None and n % WARP == 0 for n in known) and all(s.block[0] % WARP == 0 for s in context.launched)


def _launch(context: Context, group: Group) -> tuple[LaunchMap, list[Edit]]:
    if not group.block and _whole_warps(context):
        changed = launches.change(context, ((lambda x: launches.times(x, group.lanes)), launches.same, launches.same))
        return LaunchMap(grid=(f"gx * {group.lanes}", "gy", "gz")), list(changed)
    size = group.lanes if group.block else _NEW_BLOCK
    launches.check_bound(context, size)
    rows = 1 if group.block else size // group.lanes
    edits: list[Edit] = []
    for one in launches.sites_of(context):
        gx, gy, gz = launches.axes(context, one.grid, one.span.start)
        bx = launches.width(context, one)
        grid = launches.dims((launches.regrid(context, one, gx, bx, rows), gy, gz))
        edits += with_launch(one, grid, str(size))
    x = f"ceil_div(gx * bx, {rows})" if rows > 1 else "gx * bx"
    return LaunchMap(grid=(x, "gy", "gz"), block=(str(size), "1", "1")), edits
