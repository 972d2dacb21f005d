"""# 3 · split-reduction: one thread's long sum → a sum by many threads of the block

A thread an output that runs a long loop alone leaves most of the machine idle when there are few outputs. The loop's
iterations are shared out along an axis of the block that the kernel does not use; the parts meet in shared memory.
Neighbouring threads still read neighbouring columns.

Before:

    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float sum = 0.0f;
    for (int row = 0; row < rows; row++)
        sum += in[row * cols + col];
    out[col] = sum;

After, with blocks of 32 × 16:

    int col = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    __shared__ float partial[16][32];
    if (col < cols)
        for (int row = threadIdx.y; row < rows; row += 16)
            sum += in[row * cols + col];
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || col >= cols) return;
    for (int y = 1; y < 16; y++)
        sum += partial[y][threadIdx.x];
    out[col] = sum;

Legal when threads use nothing but their global index (proved), the loop carries only sums, products, minima, maxima
or bit operations and stores nothing (proved), what stands before it stores nothing (proved), and the axis is unused
(proved, and captured: the launches have extent 1 there). Sums of floats change their order: class "reassociated";
otherwise bit-exact.
"""

from __future__ import annotations

from collections.abc import Iterator

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, LaunchMap
from cuda_agent.rewrite import launches, style, syntax
from cuda_agent.rewrite.analysis import statements
from cuda_agent.rewrite.analysis.carried import Reduction, dead_after, reductions
from cuda_agent.rewrite.analysis.loops import Loop, counting, integral, trips, type_of
from cuda_agent.rewrite.columns import Columns, Guard, Plan
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site, with_launch
from cuda_agent.rewrite.rules.block_shape import index_axes
from cuda_agent.rewrite.syntax import text

_ONE = ((32, 16), (32, 32), (32, 8), (64, 16))  # threads along x, parts
_FEW = ((8, 64), (8, 128))  # where outputs are few; eight floats still fill a sector of 32 bytes
_TWO = (4, 8)  # parts of a two-dimensional block
_FULL = 1024  # threads a multiprocessor that keep it busy
_SHORT = 16  # iterations that nobody waits for
_SHARED = 48 * 1024


class SplitReduction(Rule):
    name = "split-reduction"
    number = 3

    def sites(self, context: Context) -> Iterator[Site]:
        axes = {t.axis for t in syntax.thread_ids(context.body)}
        if axes not in ({"x"}, {"x", "y"}) or not context.shapes:
            return
        sms = context.device.sms if context.device else 132
        outputs = min(s.blocks * s.threads for s in context.shapes)
        if outputs >= sms * _FULL:
            return
        plans = [p for p in _plans(context) if trips(context, p.loop) is None or (trips(context, p.loop) or 0) >= 64]
        if not plans:
            return
        index_axes(context)
        narrow = _FEW if outputs * 32 < sms * _FULL else ()
        shapes = (*_ONE[:2], *narrow, *_ONE[2:]) if axes == {"x"} else tuple((None, parts) for parts in _TWO)
        for plan in plans:
            for width, parts in shapes:
                sizes = {"x": width, "parts": parts} if width else {"parts": parts}
                yield Site(self.name, syntax.span(plan.loop.node), sizes, {"plan": plan, "axes": axes})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        plan: Plan = site.nodes["plan"]
        axis = "y" if site.nodes["axes"] == {"x"} else "z"
        parts, block = site.params["parts"], _block(context, site)
        found = _check(context, plan)
        size = sum(8 * parts * block[0] * block[1] for _ in found)
        if size > _SHARED or parts * block[0] * block[1] > 1024:
            raise RuleRefused("the parts do not fit a block")
        launches.check_bound(context, parts * block[0] * block[1])
        writer = Columns(context, plan, found, axis, parts, block[: 1 if axis == "y" else 2])
        new = (block[0], parts, 1) if axis == "y" else (block[0], block[1], parts)
        edits = [*writer.edits(), *_launch_edits(context, new)]
        grid = f"ceil_div(gx * bx, {block[0]})" if axis == "y" and _other_width(context, block[0]) else "gx"
        rounded = any(r.rounded and not integral(type_of(context, r.name)) for r in found)
        names = ", ".join(r.name for r in found)
        return Rewrite(
            tuple(edits),
            LaunchMap(grid=(grid, "gy", "gz"), block=(str(new[0]), str(new[1]), str(new[2]))),
            (
                Assumption(f"the loop carries nothing but {names}, which may be computed in parts", "proved"),
                Assumption(f"the launches have extent 1 along {axis}", "captured"),
                *(
                    ()
                    if plan.guarded or axis == "z"
                    else (Assumption(f"the threads of every launch fill blocks of {block[0]}", "captured"),)
                ),
                *statements.trusted(context, plan.loop.body),
            ),
            "reassociated" if rounded else "bit-exact",
        )


# ---------------------------------------------------------------- where


def _plans(context: Context) -> list[Plan]:
    """Loops of the kernel's own block, or of the block of a guard that ends it. RuleRefused when the only loops there
    carry something else."""
    block = statements.statements(context.body)
    found, said = [], None
    returns: list[Guard] = []
    for at, statement in enumerate(block):
        if (guard := statements.leaving(statement)) is not None:
            returns.append(Guard(statement, *guard))
            continue
        around, inner = None, [statement]
        if statement.type == "if_statement" and at == len(block) - 1 and not returns:
            condition = statements.condition(statement)
            if condition is not None:
                around = Guard(statement, condition, style.opposite(condition))
                inner = statements.statements(syntax.field(statement, "consequence"))
        for i, one in enumerate(inner):
            loop = counting(one)
            if loop is None:
                continue
            before, after = (inner[:i], inner[i + 1 :]) if around else (block[:at], block[at + 1 :])
            try:
                if folded := _folded(context, loop):
                    found.append(Plan(loop, before, after, around, list(returns), folded))
            except RuleRefused as error:
                said = error
    if said is not None and not found:
        raise said
    return found


def _folded(context: Context, loop: Loop) -> list[Reduction]:
    """The loop's reductions, none where it stores (then it is another rule's)."""
    if statements.stores(context, loop.body):
        return []
    if next(syntax.of_type(loop.body, "return_statement", "goto_statement"), None) or statements.breaks(loop.body):
        raise RuleRefused("the loop may end early")
    return reductions(context, loop)


def _check(context: Context, plan: Plan) -> list[Reduction]:
    if syntax.COOPERATION.search(text(context.body)):
        raise RuleRefused("threads of a block already work together here (barrier, shuffle or shared memory)")
    guards = {g.node.start_byte for g in plan.returns}
    before = [s for s in statements.statements(context.body) if s.start_byte < plan.loop.node.start_byte]
    for statement in (*before, *plan.before):
        whole = statement.start_byte in guards or (plan.around is not None and statement == plan.around.node)
        if not whole and next(syntax.of_type(statement, "return_statement", "goto_statement"), None):
            raise RuleRefused("some threads return before the loop: they would be missing at the barrier")
    for statement in before:
        for node in (statement,) if statement != (plan.around.node if plan.around else None) else plan.before:
            if statements.stores(context, node):
                raise RuleRefused("memory is written before the loop: every part would write it")
    if not dead_after(context, plan.loop, plan.loop.variable) and not plan.loop.type:
        raise RuleRefused(f"{plan.loop.variable} is read after the loop")
    for statement in (*plan.before, *plan.after):
        for node in syntax.of_type(statement, *syntax.LOOPS):
            other = counting(node)
            if other is None or (trips(context, other) or _SHORT + 1) > _SHORT:
                raise RuleRefused("another loop of the thread would still run in one part")
    for r in plan.found:
        type_ = type_of(context, r.name)
        if type_ is None:
            raise RuleRefused(f"{r.name} is not a plain variable of the kernel")
    return plan.found


def _block(context: Context, site: Site) -> tuple[int, int]:
    """Threads along x and y of the new blocks."""
    blocks = {s.block for s in context.launched}
    plan: Plan = site.nodes["plan"]
    if "x" in site.params:
        if any(b[1:] != (1, 1) for b in blocks):
            raise RuleRefused("a captured launch has blocks of several rows already")
        if plan.guarded or _fill(context, site.params["x"]):
            return site.params["x"], 1
        raise RuleRefused("there is no guard for surplus threads")
    if len(blocks) != 1 or any(b[2] != 1 for b in blocks):
        raise RuleRefused("the captured launches have blocks of different shapes")
    one = blocks.pop()
    return one[0], one[1]


def _fill(context: Context, width: int) -> bool:
    """Whether the threads of every captured launch fill blocks of that width."""
    return all((s.grid[0] * s.block[0]) % width == 0 for s in context.launched)


def _other_width(context: Context, width: int) -> bool:
    return {s.block[0] for s in context.launched} != {width}


def _launch_edits(context: Context, block: tuple[int, int, int]) -> list[Edit]:
    edits: list[Edit] = []
    for one in launches.sites_of(context):
        gx, gy, gz = launches.axes(context, one.grid, one.span.start)
        bx = launches.width(context, one)
        new = launches.dims((str(block[0]), str(block[1]), str(block[2])))
        grid = launches.dims((launches.regrid(context, one, gx, bx, block[0]), gy, gz))
        edits += with_launch(one, grid if _other_width(context, block[0]) else None, new)
    return edits
