"""# 12 · warp-per-block: what a block folds, one element a thread, a warp folds in its registers

A block that loads one element a thread and adds all of them up has nothing to do while the element is on its way, and
then waits at a barrier for every level of its tree. A warp that takes several elements a thread has as many loads in
flight, needs no shared memory and no barrier, and the blocks of several results fit into one.

Before, in blocks of 256:

    tile[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) tile[threadIdx.x] += tile[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = tile[0];

After, with an eighth of the blocks:

    const int lane = threadIdx.x % 32, block = blockIdx.x * 8 + threadIdx.x / 32;
    if (block * 256 >= n) return;
    int sum = 0;
    for (int t = lane; t < 256; t += 32) {
        int i = block * 256 + t;
        sum += i < n ? x[i] : 0;
    }
    for (int offset = 16; offset > 0; offset /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (lane == 0) sums[block] = sum;

With `warps=1` blocks of one warp do the work of one block each, and the grid stays. Where nothing bounds the number of
blocks, a launch has eight warps a block if its blocks can be shared out so, else one. Legal when a thread, until the
barrier, only computes its element and writes nothing else; the tree is a sum, product or bit operation; and behind it
only thread 0 does something, with the result (proved). Blocks have the captured size; surplus warps leave only where
the launches, by their text too, have just the blocks that the kernel's own bound (`i < n`) asks for (captured). Sums of
floats change their order: class "reassociated"; else bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.judge import launch_text
from cuda_agent.model import Assumption, Edit, LaunchMap, LaunchSite, NumericClass, Param, Span
from cuda_agent.rewrite import launches, layout, mirror, syntax
from cuda_agent.rewrite.analysis import affine, blocks, sizes, statements
from cuda_agent.rewrite.analysis.array_folds import plain
from cuda_agent.rewrite.analysis.trees import Tree, trees
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site, with_launch
from cuda_agent.rewrite.rules.coalesce import check_axes_in_sight
from cuda_agent.rewrite.rules.warp_reduce import TreePlan, tree_plan
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import arguments
from cuda_agent.workload import launch_map

WARP, WARPS = 32, 8
_NEUTRAL = {"+": "0", "|": "0", "^": "0", "*": "1"}
_HANDLES = re.compile(r"(?:\w+::)*this_thread_block\(\)|\w*[Ss]hared\w*(?:<[\w ,]+>)?\(\)|\(?[\w ]*\*?\)?\w+")


@dataclass(frozen=True)
class _Parts:
    """The kernel as `declarations; per-thread statements; a[t] = value; barrier; tree; if (t == 0) …`."""

    tree: Tree
    plan: TreePlan
    ahead: list[Node]  # declarations that stay in front
    thread: list[Node]  # what every thread does for its element, with the comments of it
    value: Node | None  # of a plain store at the end; None when the element is stored in another way
    later: list[Node]
    size: int  # threads of a block
    names: frozenset[str]  # that mean threadIdx.x


class WarpPerBlock(Rule):
    name = "warp-per-block"
    number = 12

    def sites(self, context: Context) -> Iterator[Site]:
        found = [tree for tree in trees(context) if tree.loop.parent == context.body]
        if len(found) != 1 or not context.shapes:
            return
        parts = _parts(context, found[0])
        bound = _bound(context, parts)
        even = "gridDim" not in text(context.body) and any(s.grid[0] % WARPS == 0 for s in context.shapes)
        several = bound is not None or even
        for warps in (WARPS, 1) if several else (1,):
            yield Site(self.name, context.kernel.name_span, {"warps": warps}, {"parts": parts, "bound": bound})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        parts: _Parts = site.nodes["parts"]
        warps: int = site.params["warps"]
        bound: str | None = site.nodes["bound"] if warps > 1 else None
        launches.check_one_block(context)
        launches.check_bound(context, warps * WARP)
        check_axes_in_sight(context)
        launch, changed = _launch(context, warps, bound)
        assumptions = [
            Assumption(f"blocks have {parts.size} threads", "captured"),
            Assumption("until the barrier a thread only computes its own element", "proved"),
        ]
        if bound is not None:
            asked = f"launches have one block for every {parts.size} of {bound}"
            assumptions.append(Assumption(asked, "assumed" if bound in context.varied else "captured"))
        numeric: NumericClass = "reassociated" if parts.plan.inexact else "bit-exact"
        return Rewrite(
            (*_Writer(context, parts, warps, bound).edits(), *changed),
            launch,
            tuple(assumptions),
            numeric,
        )


def _launch(context: Context, warps: int, bound: str | None) -> tuple[LaunchMap, tuple[Edit, ...]]:
    """The new shape: with a bound that tells surplus warps apart fewer blocks, rounded up; without one fewer only where
    none is left over, which every launch decides for itself."""
    threads = str(warps * WARP)
    if warps == 1:
        return LaunchMap(block=(threads, "1", "1")), launches.change(context, None, threads)
    if bound is not None:
        changed = launches.change(context, ((lambda x: launches.over(x, warps)), launches.same, launches.same), threads)
        return LaunchMap(grid=(f"ceil_div(gx, {warps})", "gy", "gz"), block=(threads, "1", "1")), changed
    edits: list[Edit] = []
    for site in launches.sites_of(context):
        x, y, z = launches.axes(context, site.grid, site.span.start)
        if not re.fullmatch(r"[A-Za-z_][\w.]*", x):
            raise RuleRefused("a launch's number of blocks is more than a name: it would be written three times")
        even = f"{x} % {warps} == 0"
        grid = launches.dims((f"{even} ? {x} / {warps} : {x}", y, z))
        edits += with_launch(site, grid, f"{even} ? {threads} : {WARP}")
    several = launch_map.shared_out("gx", warps)
    return LaunchMap(grid=(f"gx / {several}", "gy", "gz"), block=(f"{WARP} * {several}", "1", "1")), tuple(edits)


# ---------------------------------------------------------------- what must hold


def _parts(context: Context, tree: Tree) -> _Parts:
    plan = tree_plan(context, tree)
    (size, height, depth), *others = {shape.block for shape in context.launched}
    if others or (height, depth) != (1, 1) or size <= WARP:
        raise RuleRefused("blocks are not known to be one-dimensional, of one size and of several warps")
    if len(tree.folds) != 1 or tree.folds[0].op not in _NEUTRAL or tree.folds[0].register or tree.variable is not None:
        raise RuleRefused("what is folded is not one sum, product or bit operation over an array alone")
    names = _thread_names(context)
    children = list(context.body.named_children)
    at = children.index(tree.loop)
    barrier = plan.first_barrier
    if barrier is None or not plan.own or [n for n in children[:at] if n.type != "comment"][-1] != barrier:
        raise RuleRefused("until the tree threads touch more than their own element")
    array = tree.folds[0].array
    ahead, thread = _shared_out(context, [n for n in children if n.end_byte <= barrier.start_byte], names, array)
    while thread and thread[-1].type == "comment":
        thread.pop()
    _check_thread(context, thread, array, names)
    write = plain(thread[-1])
    simple = write is not None and write.op == "=" and _own(write.target, array, names)
    value = write.value if write is not None and simple else None
    if value is not None and not any(syntax.uses(n, array) for n in (*thread[:-1], value)):
        thread.pop()
    else:
        value = None
    later = children[at + 1 :]
    _check_later(context, tree, later, {n for s in thread for n in _made(s)} - names - {array})
    return _Parts(tree, plan, ahead, thread, value, later, size, names)


def _thread_names(context: Context) -> frozenset[str]:
    """Variables that are threadIdx.x and never change."""
    return frozenset(
        name
        for name, writes in context.written.items()
        if len(writes) == 1
        and writes[0].value is not None
        and squeeze(text(writes[0].value)) == "threadIdx.x"
        and writes[0].op == "init"
        and writes[0].target.type == "identifier"
    )


def _own(target: Node, array: str, names: frozenset[str]) -> bool:
    """Whether this is the thread's own element of the array."""
    found = re.fullmatch(r"(\w+)\[([\w.]+)\]", squeeze(text(target)))
    return found is not None and found[1] == array and found[2] in names | {"threadIdx.x"}


def _shared_out(
    context: Context, nodes: list[Node], names: frozenset[str], array: str
) -> tuple[list[Node], list[Node]]:
    """(declarations that are the same for all threads, or the thread's index; what every thread does)."""
    ahead: list[Node] = []
    thread: list[Node] = []
    comments: list[Node] = []
    for node in nodes:
        if node.type == "comment":
            comments.append(node)
            continue
        alike = node.type == "declaration" and not syntax.memory_writes(node)
        if alike and not (syntax.declared(node) & (names | {array})):
            made = {name for one in thread for name in _made(one)}
            alike = not (_depends(context, node, names) or syntax.identifiers(node) & made) and _kept(context, node)
        (ahead if alike else thread).extend([*comments, node])
        comments = []
    return ahead, [*thread, *comments]


def _made(node: Node) -> set[str]:
    return syntax.declared(node) | {w.name for w in syntax.writes(node) if w.name is not None}


def _depends(context: Context, node: Node, names: frozenset[str]) -> bool:
    """Whether the declaration reads memory or hangs on the thread."""
    spelled = squeeze(text(node))
    reads = next(syntax.of_type(node, "subscript_expression", "pointer_expression"), None)
    return "threadIdx" in spelled or reads is not None or bool(syntax.identifiers(node) & names)


def _kept(context: Context, node: Node) -> bool:
    """Whether nothing but its declaration may give a variable of it a value."""
    if re.search(r"=(?:\w+::)*this_thread_block\(\);$", squeeze(text(node))):
        return True
    names = syntax.declared(node)
    given = {text(a) for call in syntax.of_type(context.body, "call_expression") for a in arguments(call)}
    taken = {
        name
        for n in syntax.of_type(context.body, "pointer_expression")
        if text(n).startswith("&")
        for name in syntax.identifiers(n)
    }
    once = all([w.op for w in context.written.get(name, ())] in ([], ["init"]) for name in names)
    return once and not names & (given | taken)


def _check_thread(context: Context, thread: list[Node], array: str, names: frozenset[str]) -> None:
    for node in thread:
        if syntax.COOPERATION.search(re.sub(rf"\b{array}\b", "", text(node))):
            raise RuleRefused("threads work together before the tree")
        if next(syntax.of_type(node, "return_statement", "goto_statement"), None) is not None:
            raise RuleRefused("a thread may leave before the tree")
        if any(not _own(target, array, names) for target in statements.side_effects(context, node)):
            raise RuleRefused("a thread writes more than its element before the tree")
        if node.type == "preproc_call" or next(syntax.of_type(node, *syntax.LOOPS), None) is not None:
            raise RuleRefused("a thread folds more than one element before the tree")
        for n in syntax.of_type(node, "identifier"):
            if text(n) == array and not (n.parent is not None and _own(n.parent, array, names)):
                raise RuleRefused(f"{array} is used otherwise than as the thread's own element")
    if not thread:
        raise RuleRefused("no thread stores an element before the tree")


def _check_later(context: Context, tree: Tree, later: list[Node], made: set[str]) -> None:
    for node in later:
        if node.type == "comment":
            continue
        alone = node.type == "if_statement" and node.child_by_field_name("alternative") is None
        if not alone or not blocks.is_first_thread(context, syntax.field(node, "condition")):
            raise RuleRefused("behind the tree other threads than 0 have work to do")
        if made & syntax.identifiers(node):
            raise RuleRefused("a value of the thread's own is used behind the tree")
        if syntax.COOPERATION.search(re.sub(rf"\b{tree.folds[0].array}\b", "", text(node))):
            raise RuleRefused("threads work together behind the tree")


def _work(parts: _Parts) -> list[Node]:
    return [*parts.thread, *([parts.value] if parts.value is not None else [])]


def _bound(context: Context, parts: _Parts) -> str | None:
    """The integer parameter n of `element < n`, where every launch, by its text and as it was captured, has just the
    blocks that it asks for."""
    if "gridDim" in text(context.body):
        return None
    whole = {f"{a}+{b}" for a in ("blockIdx.x*blockDim.x", "blockDim.x*blockIdx.x") for b in ("threadIdx.x",)}
    for node in (n for part in _work(parts) for n in syntax.of_type(part, "binary_expression")):
        left, sign, right = (node.child_by_field_name(f) for f in ("left", "operator", "right"))
        if left is None or sign is None or right is None or text(sign) != "<" or right.type != "identifier":
            continue
        parameter = next((p for p in context.kernel.params if p.name == text(right)), None)
        if parameter is None or parameter.pointer or not sizes.integer_type(parameter.type):
            continue
        found = str(affine.of(context, left))
        if squeeze(found) not in whole and squeeze("+".join(reversed(found.split("+")))) not in whole:
            continue
        asked = [
            (-(-n[parameter.name] // parts.size), n["gridDim.x"])
            for n in context.launched_numbers
            if parameter.name in n
        ]
        if (
            len(asked) >= len(context.shapes)
            and all(a == b for a, b in asked)
            and not context.written.get(parameter.name)
            and all(_follows(context, site, parameter, parts.size) for site in context.sites)
        ):
            return parameter.name
    return None


def _follows(context: Context, site: LaunchSite, parameter: Param, size: int) -> bool:
    """Whether the launch's own text has a block for every `size` of the parameter. Where the number of blocks comes
    from elsewhere there may be more, and what those write, for no element at all, belongs to the result."""
    position = context.kernel.params.index(parameter)
    if position >= len(site.args):
        return False
    for value in (1, 3 * size, 5 * size + 1):
        alone = replace(site, shared=None)  # its bytes need not be known
        shape = launch_text.evaluate(context.module, alone, {squeeze(site.args[position]): value})
        if shape is None or shape.grid[0] != -(-value // size):
            return False
    return True


# ---------------------------------------------------------------- the new text


class _Writer:
    def __init__(self, context: Context, parts: _Parts, warps: int, bound: str | None) -> None:
        self.context, self.parts, self.bound, self.warps = context, parts, bound, warps
        self.t = context.unused_here("t")
        self.sum = context.unused_here(parts.tree.folds[0].noun)
        self.lane = context.unused_here("lane") if warps > 1 else "threadIdx.x"
        self.block = context.unused_here("block") if warps > 1 else "blockIdx.x"
        self.unit = layout.unit(context)
        self.element = context.unused_here("element")
        self.indent = context.indent(parts.tree.loop.start_byte)

    def edits(self) -> list[Edit]:
        c, parts = self.context, self.parts
        lines = self._loop()
        first = _statement(_work(parts)[0]).start_byte
        moved = [n for n in parts.ahead if n.start_byte > first and not self._idle(n)]
        lines = [*(self._ahead(n) for n in moved), *lines]
        offset = c.unused_here("offset")
        fold = parts.tree.folds[0].line(self.sum, f"__shfl_down_sync(0xffffffffu, {self.sum}, {offset})")
        shuffles = [f"for (int {offset} = {WARP // 2}; {offset} > 0; {offset} /= 2)", f"{self.unit}{fold}"]
        between = f"{c.eol}{self.indent}"
        edits = [Edit(Span(first, parts.tree.loop.end_byte), between.join([*lines, *shuffles]))]
        for node in parts.ahead:
            if node.start_byte < first:
                if self._idle(node) or (node.type == "comment" and self._stale(node)):
                    edits.append(Edit(layout.removed(c, node), ""))
                elif node.type == "declaration" and (new := self._ahead(node)) != c.slice(syntax.span(node)):
                    edits.append(Edit(syntax.span(node), new))
        if self.warps > 1:
            top = c.body.start_byte + 1
            edits.append(Edit(Span(top, top), "".join(between + line for line in self._place())))
        edits += [Edit(syntax.span(n), self._later(n)) for n in parts.later if n.type != "comment"]
        return edits

    def _place(self) -> list[str]:
        """Which block of before this warp is, and the end of those that the launch did not have."""
        kind = "unsigned int" if self._unsigned() or self.bound is None else "int"
        count = self.warps if self.bound is not None else f"(blockDim.x / {WARP})"
        place = [
            f"const {kind} {self.lane} = threadIdx.x % {WARP};",
            f"const {kind} {self.block} = blockIdx.x * {count} + threadIdx.x / {WARP};  // a warp each",
        ]
        if self.bound is None:
            return place
        return [
            *place,
            f"if ({self.block} * {self.parts.size} >= {self.bound})",
            f"{self.unit}return;",
        ]

    def _unsigned(self) -> bool:
        parameter = next((p for p in self.context.kernel.params if p.name == self.bound), None)
        return parameter is not None and ("unsigned" in parameter.type or "size_t" in parameter.type)

    def _loop(self) -> list[str]:
        parts = self.parts
        fold, kind = parts.tree.folds[0], parts.plan.types[0]
        turns = parts.size // WARP
        counter = "unsigned int" if self.bound is not None and self._unsigned() else "int"
        value = self._text(parts.value) if parts.value is not None else self.element
        start = _NEUTRAL[fold.op]
        declared = [f"{kind} {self.element};"] if parts.value is None else []
        inner = [*declared, *map(self._text, parts.thread), f"{self.sum} {fold.op}= {value};"]
        first, why = self.lane, ""
        if self.warps == 1:
            first, why = f"threadIdx.x % {WARP}", f"  // {turns} turns, which the compiler sees by the % {WARP}"
        head = f"for ({counter} {self.t} = {first}; {self.t} < {parts.size}; {self.t} += {WARP})"
        body = [self.unit + line for code in inner for line in self._shifted(code)]
        return [
            f"{kind} {self.sum} = {start};",
            "#pragma unroll" if turns <= 16 else "#pragma unroll 8",
            *([head + why, *body] if len(inner) == 1 else [f"{head} {{{why}", *body, "}"]),
        ]

    def _shifted(self, code: str) -> list[str]:
        return [line.removeprefix(self.indent).rstrip("\r") for line in code.split("\n")]

    def _text(self, node: Node) -> str:
        """The node's text for the element that the loop is at."""
        pairs: list[tuple[Node, str]] = []
        array, names = self.parts.tree.folds[0].array, self.parts.names
        own = [n for n in syntax.of_type(node, "subscript_expression") if _own(n, array, names)]
        pairs += [(n, self.element) for n in own]
        for n in syntax.of_type(node, "field_expression", "identifier"):
            code = squeeze(text(n))
            if any(syntax.span(o).holds(syntax.span(n)) for o in own):
                continue
            if code == "threadIdx.x" or (n.type == "identifier" and code in names):
                pairs.append((n, self.t))
            elif code == "blockDim.x":
                pairs.append((n, str(self.parts.size)))
            elif code == "blockIdx.x":
                pairs.append((n, self.block))
        return mirror.replaced(self.context, node, pairs)

    def _ahead(self, node: Node) -> str:
        """A declaration that stays: the thread's index is the lane now."""
        pairs = [
            (n, {"threadIdx.x": self.lane, "blockIdx.x": self.block, "blockDim.x": str(self.parts.size)}[code])
            for n in syntax.of_type(node, "field_expression")
            if (code := squeeze(text(n))) in ("threadIdx.x", "blockIdx.x", "blockDim.x")
        ]
        return mirror.replaced(self.context, node, pairs)

    def _later(self, node: Node) -> str:
        code = self._ahead(node)
        array = self.parts.tree.folds[0].array
        code = re.sub(rf"\b{array}\s*\[\s*0\s*\]", self.sum, code)
        if re.search(rf"\b{array}\b", code):
            raise RuleRefused(f"{array} is used behind the tree otherwise than as {array}[0]")
        return code

    def _idle(self, node: Node) -> bool:
        """A declaration of the array or of the block's handle, which nothing needs any more."""
        if node.type != "declaration":
            return False
        declarators = node.children_by_field_name("declarator")
        names = syntax.declared(node)
        value = declarators[0].child_by_field_name("value") if len(declarators) == 1 else None
        if len(declarators) != 1 or (value is not None and not _HANDLES.fullmatch(squeeze(text(value)))):
            return False
        parts, array = self.parts, self.parts.tree.folds[0].array
        kept = [n for n in (*parts.ahead, *_work(parts)) if n != node and not self._idle_after(n, node)]
        used = {n for k in kept for n in syntax.identifiers(k)} - {array}
        used |= {n for k in parts.later for n in syntax.identifiers(k)} - {array}
        return not names & used

    def _stale(self, comment: Node) -> bool:
        """A comment about a declaration that goes, or about shared memory."""
        following = comment.next_named_sibling
        own_line = (
            comment.prev_named_sibling is None or comment.prev_named_sibling.end_point[0] < comment.start_point[0]
        )
        about = following is not None and self._idle(following)
        return own_line and (about or re.search(r"shared|smem", text(comment), re.I) is not None)

    def _idle_after(self, node: Node, asked: Node) -> bool:
        return node.type == "declaration" and node.start_byte > asked.start_byte and self._idle(node)


def _statement(node: Node) -> Node:
    return node if node.type.endswith(("declaration", "statement", "comment")) else syntax.enclosing_statement(node)
