"""# 12 · warp-reduce: a reduction through shared memory → warp shuffles and one slot a warp

A tree over a shared array needs a barrier for each of its ten levels, and most threads only wait. The 32 threads of a
warp can add up through their registers, without barriers; then one warp adds up what the warps found.

Before:

    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
      if (t < s) a[t] += a[t + s];
      __syncthreads();
    }

After:

    float sum = a[t];
    for (int offset = 16; offset > 0; offset /= 2)
      sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (t % 32 == 0) a[t] = sum;  // each warp's result, in the slot of its first thread
    __syncthreads();
    if (t < 32) {
      if (t < blockDim.x / 32) sum = a[t * 32];
      for (int offset = blockDim.x / 64; offset > 0; offset /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, offset);
      if (t == 0) a[0] = sum;
    }
    __syncthreads();

So are trees whose distance doubles, several arrays in one tree, and a loop in which thread 0 adds up what the block
stored (it then adds one value a warp: `i += 32`). A barrier before it goes where every thread reads only what it wrote
itself, and one behind it where only thread 0 reads the result.

Legal when: the loop combines by a sum, product, minimum, maximum or bit operation, and nothing but element 0 is read
afterwards (proved); no thread has left the kernel before (proved); the whole block takes part, and it has a power of
two of at least 32 threads, for the loop of thread 0 a multiple of 32 (captured). Sums of floats change their order:
class "reassociated"; else bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, NumericClass, Span
from cuda_agent.rewrite import layout, syntax
from cuda_agent.rewrite.analysis import blocks, shared
from cuda_agent.rewrite.analysis.array_folds import Fold
from cuda_agent.rewrite.analysis.trees import Serial, Tree, serials, trees
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import strip_parens

WARP = 32
_MASK = "0xffffffffu"


class WarpReduce(Rule):
    name = "warp-reduce"
    number = 12

    def sites(self, context: Context) -> Iterator[Site]:
        everything: list[Tree | Serial] = [*trees(context), *serials(context)]
        if not everything or not context.shapes:
            return
        legal: list[TreePlan] = []
        refused: list[RuleRefused] = []
        for found in everything:
            try:
                plan = tree_plan(context, found) if isinstance(found, Tree) else _serial(context, found)
            except RuleRefused as error:
                refused.append(error)
            else:
                if plan.first_barrier is None or plan.first_barrier not in [p.first_barrier for p in legal]:
                    legal.append(plan)  # of several loops behind one barrier the first
        if not legal:
            raise refused[0]
        yield Site(self.name, context.kernel.name_span, nodes={"plans": legal})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        plans: list[TreePlan] = site.nodes["plans"]
        writer = _Writer(context)
        edits = [edit for plan in plans for edit in writer.edits(plan)]
        power = any(isinstance(p.found, Tree) for p in plans)
        size = f"{'a power of two of at least' if power else 'a multiple of'} {WARP} threads"
        assumptions = (
            Assumption(f"every block of {context.kernel.name} has {size}, and all of them take part", "captured"),
            Assumption("only the result of the reduction is read after it", "proved"),
        )
        numeric: NumericClass = "reassociated" if any(p.inexact for p in plans) else "bit-exact"
        return Rewrite(tuple(edits), assumptions=assumptions, numeric=numeric)


@dataclass(frozen=True)
class TreePlan:
    """A reduction that may be rewritten. `types`: element type of each fold's array."""

    found: Tree | Serial
    types: tuple[str, ...]
    first_barrier: Node | None  # the barrier just before it
    own: bool  # until then every thread touches only its own element: that barrier is not needed
    last_barrier: bool  # other threads than 0 touch the arrays before the next barrier
    stores: tuple[bool, ...]  # element 0 is read afterwards
    inexact: bool


# ---------------------------------------------------------------- what must hold


def tree_plan(context: Context, tree: Tree) -> TreePlan:
    loop = tree.loop
    _check_threads(context, tree.thread, loop)
    for shape, templates in blocks.shapes(context):
        expression = tree.half if tree.half is not None else tree.bound
        assert expression is not None
        count = blocks.value(context, expression, shape, templates)
        if count is None:
            raise RuleRefused(f"how many elements are folded is not known: {text(expression)}")
        if tree.half is not None:
            count *= 2
        if count != shape.threads or count < WARP or count & (count - 1):
            raise RuleRefused(
                f"{count} elements are folded by blocks of {shape.threads} threads: "
                f"both must be the same power of two, at least {WARP}"
            )
    types = tuple(shared.element_type(context, f.array, loop) for f in tree.folds)
    for fold in tree.folds:
        shared.check_later(context, fold.array, tree.thread, loop, first_element=True)
        if fold.register is not None:
            _check_register(context, fold.array, fold.register, tree.thread, loop)
    names = [f.array for f in tree.folds]
    before = shared.barrier_before(context, loop)
    return TreePlan(
        tree,
        types,
        before,
        shared.own_before(context, names, tree.thread, before or loop),
        not shared.first_thread_only(context, names, loop),
        tuple(f.register is None or shared.used_later(context, f.array, loop) for f in tree.folds),
        _inexact(context, tree.folds, types),
    )


def _serial(context: Context, serial: Serial) -> TreePlan:
    statement = serial.statement
    _check_threads(context, serial.thread, statement)
    for shape, templates in blocks.shapes(context):
        count = blocks.value(context, serial.bound, shape, templates)
        if count != shape.threads or count <= WARP or count % WARP:
            raise RuleRefused(
                f"thread 0 folds {text(serial.bound)} elements, which is not known to be the whole block of "
                f"{shape.threads} threads in full warps"
            )
    before = shared.barrier_before(context, statement)
    if before is None:
        raise RuleRefused("there is no barrier just before thread 0 folds what the block stored")
    types = tuple(shared.element_type(context, f.array, statement) for f in serial.folds)
    for fold in serial.folds:
        first = squeeze(fold.register or "") == f"{fold.array}[0]"
        if serial.first == 1 and not first and not _starts_from_first(serial, fold):
            raise RuleRefused(f"{fold.register} does not start from {fold.array}[0]")
        shared.check_between(context, fold.array, statement, serial.loop.node, first_element=serial.first == 1)
        shared.check_later(context, fold.array, serial.thread, serial.loop.node, first_element=first)
    names = [f.array for f in serial.folds]
    return TreePlan(
        serial,
        types,
        before,
        shared.own_before(context, names, serial.thread, before),
        False,
        (),
        _inexact(context, serial.folds, types),
    )


def _check_threads(context: Context, thread: Node, at: Node) -> None:
    if not blocks.is_thread_index(context, thread):
        raise RuleRefused(f"{text(thread)} is not the thread's index in its block")
    if at.parent is None or at.parent.type != "compound_statement":
        raise RuleRefused("the reduction is not a statement of a block")
    gone = next(blocks.leaves(context, at.start_byte), None)
    if gone is not None:
        raise RuleRefused("some threads return before the reduction: a warp that shuffles needs all of its threads")


def _check_register(context: Context, array: str, register: str, thread: Node, loop: Node) -> None:
    """The variable holds the thread's element when the tree begins, and later only thread 0 reads it."""
    own = f"{array}[{squeeze(text(thread))}]={register};"
    for s in reversed(shared.earlier_siblings(loop)):
        if squeeze(text(s)) == own:
            break
        if re.search(rf"(?<![\w.]){re.escape(register)}(?!\w)", text(s)) or syntax.uses(s, array):
            raise RuleRefused(f"{register} is not known to hold {array}'s element when the tree begins")
    else:
        raise RuleRefused(f"{register} is not known to hold {array}'s element when the tree begins")
    name = register.split(".")[0]
    for s in shared.later(context, loop):
        for n in syntax.of_type(s, "identifier"):
            if text(n) == name and not shared.in_first_thread(context, n):
                raise RuleRefused(f"other threads than 0 read {register} after the tree")


def _starts_from_first(serial: Serial, fold: Fold) -> bool:
    """`v = a[0];` is the last assignment of the target inside the `if`, before the loop."""
    before = [
        w
        for w in syntax.writes(syntax.field(serial.statement, "consequence"))
        if w.node.start_byte < serial.loop.node.start_byte and squeeze(text(w.target)) == fold.register
    ]
    return bool(before) and before[-1].value is not None and squeeze(text(before[-1].value)) == f"{fold.array}[0]"


def _inexact(context: Context, found: Sequence[Fold], types: Sequence[str]) -> bool:
    return any(f.op in ("+", "*") and not shared.is_integer(context, t) for f, t in zip(found, types, strict=True))


# ---------------------------------------------------------------- the new text


class _Writer:
    """Writes the replacement of each reduction of a kernel, with names that nothing else has."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.taken = layout.taken_names(context)
        self.made: set[str] = set()
        self.step = layout.unit(context)
        self.offset = self.name("offset")

    def edits(self, plan: TreePlan) -> list[Edit]:
        return self.tree(plan, plan.found) if isinstance(plan.found, Tree) else self.serial(plan, plan.found)

    def name(self, *wanted: str) -> str:
        numbered = (f"{wanted[-1]}{i}" for i in range(2, 1000))
        name = next(n for n in (*wanted, *numbered) if n not in self.taken)
        self.taken.add(name)
        self.made.add(name)
        return name

    def tree(self, plan: TreePlan, tree: Tree) -> list[Edit]:
        t = text(strip_parens(tree.thread))
        index = t if re.fullmatch(r"[\w.()]+", t) else f"({t})"
        names = self.variables(plan, tree.loop, keep=True)
        lines = self.loads(plan, names, t)
        lines += self.shuffles(tree.folds, names, str(WARP // 2))
        warps, half = self.counts(tree.size)
        results = [f"{f.array}[0] = {n};" for f, n, s in zip(tree.folds, names, plan.stores, strict=True) if s]
        last = self.guarded(f"if ({index} == 0)", results) if results else []
        end = [tree.barrier] if plan.last_barrier else []
        edits = [Edit(layout.removed(self.context, tree.variable), "")] if tree.variable is not None else []
        if warps == "1":
            return [*edits, *self.placed(plan, tree.loop, tree.barrier, lines, [*last, *end], one=True)]
        lines += self.partials(tree.folds, names, t, index)
        loads = [f"{n} = {f.array}[{index} * {WARP}];" for f, n in zip(tree.folds, names, strict=True)]
        inside = [*self.guarded(f"if ({index} < {warps})", loads), *self.shuffles(tree.folds, names, half), *last]
        second = [*self.block(f"if ({index} < {WARP})", inside), *end]
        return [*edits, *self.placed(plan, tree.loop, tree.barrier, lines, second)]

    def placed(
        self, plan: TreePlan, loop: Node, barrier: str, first: list[str], second: list[str], one: bool = False
    ) -> list[Edit]:
        """The work of every warp ahead of the barrier, that of the first warp in place of the loop. `one`: the block is
        one warp, nothing waits between."""
        pragma = shared.pragma_before(loop)
        whole = Span((pragma or loop).start_byte, loop.end_byte)
        if plan.own and plan.first_barrier is not None and second and not one:
            return [self.inserted(plan.first_barrier, first), self.replaced(whole, second, loop)]
        if plan.own and plan.first_barrier is not None:
            return [self.replaced(Span(plan.first_barrier.start_byte, loop.end_byte), [*first, *second])]
        needed = [] if plan.own or plan.first_barrier is not None else [barrier]
        return [self.replaced(whole, [*needed, *first, *([] if one else [barrier]), *second], loop)]

    def serial(self, plan: TreePlan, serial: Serial) -> list[Edit]:
        t = text(strip_parens(serial.thread))
        index = t if re.fullmatch(r"[\w.()]+", t) else f"({t})"
        assert plan.first_barrier is not None
        names = self.variables(plan, plan.first_barrier, keep=False)
        lines = self.loads(plan, names, t)
        lines += self.shuffles(serial.folds, names, str(WARP // 2))
        lines += self.partials(serial.folds, names, t, index)
        if plan.own:
            edits = [self.inserted(plan.first_barrier, lines)]
        else:
            barrier = text(plan.first_barrier)
            edits = [self.replaced(syntax.span(plan.first_barrier), [barrier, *lines, barrier])]
        if serial.first == 1:
            edits.append(Edit(syntax.span(serial.loop.start), str(WARP)))
        edits.append(Edit(syntax.span(serial.loop.update), f"{serial.loop.variable} += {WARP}"))
        return edits

    # ------------------------------------------------------------ lines

    def variables(self, plan: TreePlan, at: Node, keep: bool) -> list[str]:
        """The register of each fold: its own, the spare one that was just stored, or a new one named for what it will
        hold."""
        names = []
        for f, kind in zip(plan.found.folds, plan.types, strict=True):
            before = plan.first_barrier if plan.first_barrier is not None else at
            stored = shared.stored_from(self.context, f.array, plan.found.thread, kind, before, at)
            if keep and f.register is not None:
                names.append(f.register)
            elif plan.own and stored is not None and stored not in names:
                names.append(stored)
            else:
                names.append(self.name(*([f.noun] if len(plan.found.folds) == 1 else []), f"{f.array}_{f.noun}"))
        return names

    def loads(self, plan: TreePlan, names: list[str], t: str) -> list[str]:
        """Of the elements that are not in a register yet."""
        return [
            f"{kind} {name} = {f.array}[{t}];"
            for f, name, kind in zip(plan.found.folds, names, plan.types, strict=True)
            if name in self.made
        ]

    def shuffles(self, found: Sequence[Fold], names: list[str], first: str) -> list[str]:
        inside = [
            f.line(n, f"__shfl_down_sync({_MASK}, {n}, {self.offset})") for f, n in zip(found, names, strict=True)
        ]
        return self.block(f"for (int {self.offset} = {first}; {self.offset} > 0; {self.offset} /= 2)", inside)

    def partials(self, found: Sequence[Fold], names: list[str], t: str, index: str) -> list[str]:
        stores = [f"{f.array}[{t}] = {n};" for f, n in zip(found, names, strict=True)]
        lines = self.guarded(f"if ({index} % {WARP} == 0)", stores)
        return [lines[0] + "  // each warp's result, in the slot of its first thread", *lines[1:]]

    def block(self, head: str, inside: list[str]) -> list[str]:
        """A statement with its body, in braces when there are several lines."""
        body = [self.step + line for line in inside]
        return [head, *body] if len(inside) == 1 else [f"{head} {{", *body, "}"]

    def guarded(self, head: str, inside: list[str]) -> list[str]:
        return [f"{head} {inside[0]}"] if len(inside) == 1 else self.block(head, inside)

    def counts(self, size: str) -> tuple[str, str]:
        """Texts of the number of warps and of half of it."""
        if size.isdigit():
            return str(int(size) // WARP), str(int(size) // (2 * WARP))
        code = size if re.fullmatch(r"[\w.()]+", size) else f"({size})"
        return f"{code} / {WARP}", f"{code} / {2 * WARP}"

    def replaced(self, span: Span, lines: list[str], at: Node | None = None) -> Edit:
        """The lines in place of the span, indented as it is or as the statement `at`."""
        indent = self.context.indent(at.start_byte if at is not None else span.start)
        missing = indent[len(self.context.indent(span.start)) :]
        return Edit(span, missing + (self.context.eol + indent).join(lines))

    def inserted(self, before: Node, lines: list[str]) -> Edit:
        """The lines behind the statement that comes before this one; comments stay with what they are about."""
        earlier = shared.earlier_siblings(before)
        between = self.context.eol + self.context.indent(before.start_byte)
        if not earlier or earlier[-1].type == "preproc_call":
            return Edit(Span(before.start_byte, before.start_byte), between.join([*lines, ""]))
        return Edit(Span(earlier[-1].end_byte, earlier[-1].end_byte), "".join(between + line for line in lines))
