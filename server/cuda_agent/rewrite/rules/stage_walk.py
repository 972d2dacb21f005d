"""# 16 · stage-walk: rows that threads write as they walk go through a tile

Where every thread walks a row of its own and writes it, a warp's load and its store touch 32 rows at once: 32 sectors
for 32 elements. In a tile the warp reads 32 neighbours of each of its rows, one row after the other, the threads
compute there, and the warp writes the rows back in the same way.

Before:

    if (y < height) {
        float *row = image + y * pitch;
        for (int x = 1; x < width; x++)
            row[x] = last = gain * row[x] + pole * last;
    }

After, in blocks of 64:

    __shared__ float tile[64][33];
    const int lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    const bool whole = blockDim.x == 64 && __all_sync(0xffffffffu, y < height);
    if (y < height) {
        float *row = image + y * pitch;
        int x32 = 1;
        if (whole) {
            for (; x32 + 31 < width; x32 += 32) {
                const long long first = row - image + x32;
                float ahead[32];
                for (int r = 0; r < 32; r++)
                    ahead[r] = image[__shfl_sync(0xffffffffu, first, r) + lane];
                __syncwarp();  // all loads are on their way before the first is waited for
                for (int r = 0; r < 32; r++)
                    tile[warp + r][lane] = ahead[r];
                __syncwarp();
                for (int k = 0; k < 32; k++)
                    tile[threadIdx.x][k] = last = gain * tile[threadIdx.x][k] + pole * last;
                __syncwarp();
                for (int r = 0; r < 32; r++)
                    image[__shfl_sync(0xffffffffu, first, r) + lane] = tile[warp + r][lane];
                __syncwarp();
            }
        }
        for (int x = x32; x < width; x++)
            row[x] = last = gain * row[x] + pole * last;
    }

Warps with a thread outside the rows, other block sizes and the last elements take the loop as it was. Legal when all
threads of a warp run the loop alike, each iteration moves on by one element, and the loop touches the staged arrays
nowhere else (proved); blocks are one-dimensional (captured), the rows of different threads do not overlap (assumed:
they would race), nor do different arrays (captured). Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import style, syntax
from cuda_agent.rewrite.analysis import affine, names, sizes, statements, trips, uniform
from cuda_agent.rewrite.analysis.calls import effect
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.analysis.neighbours import Access
from cuda_agent.rewrite.analysis.strided import WARP, has_pragma
from cuda_agent.rewrite.analysis.walks import Advance, Walk, roots_of, walk_of
from cuda_agent.rewrite.layout import fresh, insert_before, unit, unused_index
from cuda_agent.rewrite.render import render
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.rules.restrict import check_disjoint
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.edits import apply
from cuda_agent.source.tree import strip_parens
from cuda_agent.source.tree import walk as nodes_of

_SHARED = 48 * 1024
_MASK = "0xffffffffu"


@dataclass(frozen=True)
class Staged:
    """An element that moves on by one each iteration, `up` or down. `first`: where the batch starts, as an offset in
    `root`, with the loop's variable for the batch's first value."""

    nodes: tuple[Node, ...]
    root: str
    element: str
    up: bool
    first: str
    reads: bool
    writes: bool


@dataclass(frozen=True)
class Place:
    """A loop, what it stages, and the statement before which all threads of a warp still run together; `guard`: under
    which condition of its own a thread goes on."""

    walk: Walk
    staged: tuple[Staged, ...]
    top: Node
    guard: str


class StageWalk(Rule):
    name = "stage-walk"
    number = 16

    def sites(self, context: Context) -> Iterator[Site]:
        known = Names(context)
        places: list[Place] = []
        why = None
        for node in syntax.of_type(context.body, "for_statement"):
            if has_pragma(context, node) or trips.most(context, node, context.numbers) < 2 * WARP:
                continue
            try:
                walk = walk_of(context, known, node, quietly=True)
                if walk is not None and (place := _place(context, known, walk)) is not None:
                    places.append(place)
            except RuleRefused as error:
                why = error
        places = [p for p in places if p.top == places[0].top and p.guard == places[0].guard]
        if not places and why is not None:
            raise why
        if places:
            span = Span(places[0].walk.loop.node.start_byte, places[-1].walk.loop.node.end_byte)
            yield Site(self.name, span, {"columns": WARP}, {"places": places})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        places: list[Place] = site.nodes["places"]
        block = _block(context)
        needed = max(sum(sizes.size_of(s.element, context.module) or 8 for s in p.staged) for p in places)
        if needed * block * (WARP + 1) > _SHARED:
            raise RuleRefused(f"the tiles of {block} rows do not fit in shared memory")
        assumptions = [
            Assumption("all threads of a warp run the loop alike", "proved"),
            Assumption("blocks are one-dimensional", "captured"),
            Assumption("the rows of different threads do not overlap", "assumed"),
        ]
        if any(len({s.root for s in p.staged}) > 1 or p.walk.writes for p in places):
            check_disjoint(context)
            overlap = "the pointers of one launch never overlap"
            assumptions.append(Assumption(overlap, "captured" if context.pointer_targets() else "assumed"))
        return Rewrite(tuple(_edits(context, places, block)), assumptions=tuple(assumptions))


def _block(context: Context) -> int:
    blocks = {s.block for s in context.launched}
    if len(blocks) != 1 or next(iter(blocks))[1:] != (1, 1) or next(iter(blocks))[0] % WARP:
        raise RuleRefused("blocks are not known to be one-dimensional and whole warps")
    return next(iter(blocks))[0]


# ---------------------------------------------------------------- what can be staged


def _place(context: Context, known: Names, walk: Walk) -> Place | None:
    """None where nothing is written row by row. RuleRefused where it is, and may not be staged."""
    staged = list(_staged(context, known, walk))
    if not any(s.writes for s in staged):
        return None
    _block(context)
    nodes = {n.id for s in staged for n in s.nodes}
    written = {s.root for s in staged if s.writes}
    for access in walk.body.accesses:
        if access.node.id in nodes:
            continue
        roots = roots_of(context, known, access.array)
        variable = affine.variable(context, access.array) if access.array.type == "identifier" else None
        own = variable is not None and variable.is_array
        if roots & written or not (roots or own):
            raise RuleRefused(f"{text(access.node)} may be an element that is in the tile")
    if any(w.node.id not in nodes and (not w.roots or w.roots & {s.root for s in staged}) for w in walk.stored):
        raise RuleRefused("the loop writes more than one element of a row")
    variables = names.of(context)
    for call in syntax.of_type(walk.loop.body, "call_expression"):
        for n in syntax.of_type(syntax.field(call, "arguments"), "identifier"):
            variable = variables.resolve(text(n), n.start_byte)
            inside = any(syntax.span(m).holds(syntax.span(n)) for s in staged for m in s.nodes)
            if variable is not None and (variable.pointer or variable.is_array) and not inside:
                raise RuleRefused(f"{text(call)} may read an element that is in the tile")
    for node in (walk.loop.start, walk.loop.bound):
        if uniform.level(context, node) not in ("block", "grid"):
            raise RuleRefused(f"the loop's `{text(node)}` may differ from thread to thread")
    top, guard = _guard(context, walk.loop.node)
    return Place(walk, tuple(staged), top, guard)


def _staged(context: Context, known: Names, walk: Walk) -> Iterator[Staged]:
    """The elements of rows of the threads' own: each once, with all its uses."""
    groups: dict[str, list[Access]] = {}
    for access in walk.body.accesses:
        if access.array.type == "identifier" and not access.hint:
            groups.setdefault(squeeze(walk.body.expanded(access.node, walk.body.variable)), []).append(access)
    loaded = {n.id: load for load in walk.loads for n in load.nodes}
    for same in groups.values():
        one = same[0]
        advance = walk.advances.get(one.name)
        up = _direction(context, walk, one, advance)
        roots = roots_of(context, known, one.array)
        root = next(iter(roots), "")
        param = next((p for p in context.kernel.params if p.name == root), None)
        if up is None or len(roots) != 1 or param is None or param.pointer != 1 or not _own(context, walk, one):
            continue
        if not all(walk.body.unconditional(a.node) for a in same):
            continue
        reads = [a for a in same if a.kind != "write"]
        if any(a.node.id not in loaded for a in reads):
            continue  # it is read after it was written, or something else may write it
        if advance is not None and len({a.node.start_byte < advance.statement.start_byte for a in same}) != 1:
            continue
        element = param.element
        size = sizes.size_of(element, context.module)
        own = advance.pointer.type if advance is not None else known.element(one.array) or ""
        if size is None or own.replace("const", "").strip() != element:
            continue
        yield Staged(
            tuple(a.node for a in same),
            root,
            element,
            up,
            _first(context, walk, one, advance, root),
            bool(reads),
            any(a.kind != "read" for a in same),
        )


def _direction(context: Context, walk: Walk, access: Access, advance: Advance | None) -> bool | None:
    """Whether the element moves up by one each iteration; None where it moves otherwise."""
    if advance is not None:
        size = sizes.size_of(advance.pointer.type.replace("const", "").strip(), context.module)
        if advance.bytes is None or size is None or access.index is not None:
            return None
        return {size: True, -size: False}.get(advance.bytes.value or 0)
    name = access.name
    if access.index is None or name in walk.body.written or name in walk.body.declared:
        return None
    counted = affine.induction(context, walk.loop.node)
    stride = affine.of(context, access.index).stride(counted.symbol) if counted is not None else None
    if stride is None or stride.value not in (1, -1):
        return None
    return (stride.value == 1) == (walk.loop.step == "1")


def _own(context: Context, walk: Walk, access: Access) -> bool:
    """The element depends on the thread."""
    for n in syntax.of_type(access.node, "identifier"):
        variable = affine.variable(context, n)
        if variable is not None and "threadIdx.x" in affine.depends(context, variable):
            return True
    return "threadIdx.x" in squeeze(text(access.node))


def _first(context: Context, walk: Walk, access: Access, advance: Advance | None, root: str) -> str:
    """The offset of the element in `root`, where the variable has the batch's first value."""
    if advance is None:
        assert access.index is not None
        index = walk.body.expanded(access.index, walk.body.variable)
        return index if access.name == root else f"{access.name} - {root} + {index}"
    if access.node.start_byte < advance.statement.start_byte:
        return f"{access.name} - {root}"
    write = next(w for w in syntax.writes(advance.statement))
    if write.op == "=" and write.value is not None:
        moved = context.slice(syntax.span(write.value))
        return f"{moved} - {root}" if strip_parens(write.value).type != "binary_expression" else f"({moved}) - {root}"
    step = "1" if write.value is None else context.slice(syntax.span(write.value))
    return f"{access.name} {write.op[0]} {style.conjunct(step)} - {root}"


def _guard(context: Context, loop: Node) -> tuple[Node, str]:
    """(the statement before which the warp is whole, the condition under which a thread goes on to the loop, "" of
    none). RuleRefused where more than one condition differs from thread to thread."""
    found: list[tuple[Node, str]] = []
    node = loop
    while node != context.body:
        above = node.parent
        if above is None or above.type in (*syntax.LOOPS, "for_range_loop", "switch_statement"):
            raise RuleRefused("the walk is inside another loop")
        if above.type == "if_statement":
            condition = strip_parens(syntax.field(above, "condition"))
            if uniform.level(context, condition) == "thread":
                if node != syntax.field(above, "consequence"):
                    raise RuleRefused(f"the walk is in the other branch of `{text(condition)}`")
                found.append((above, context.slice(syntax.span(condition))))
        if above.type == "compound_statement":
            for other in syntax.statements(above):
                if other.start_byte >= node.start_byte:
                    break
                leaves = next(nodes_of(other, ("return_statement", "goto_statement")), None)
                if leaves is None:
                    continue
                said = statements.leaving(other)
                if said is None:
                    raise RuleRefused("a thread may leave the kernel before the walk")
                condition = strip_parens(syntax.field(other, "condition"))
                if uniform.level(context, condition) == "thread":
                    found.append((other, said[0]))
        node = above
    if len(found) > 1:
        raise RuleRefused("more than one condition decides which threads walk")
    if not found:
        top = loop
        while top.parent is not None and top.parent != context.body:
            top = top.parent
        return top, ""
    guard, condition_text = found[0]
    if re.search(r"\+\+|--|(?<![=!<>])=(?!=)|\w\s*\(", condition_text):
        raise RuleRefused(f"`{condition_text}` cannot be asked twice")
    if guard.parent is None or guard.parent.type != "compound_statement":
        raise RuleRefused(f"`{condition_text}` stands in no block")
    return guard, condition_text


# ---------------------------------------------------------------- the text


def _edits(context: Context, places: list[Place], block: int) -> Iterator[Edit]:
    lane, warp, whole = (context.unused_here(n) for n in ("lane", "warp", "whole"))
    tiles: dict[tuple[int, str], str] = {}
    for place in places:
        for at, one in enumerate(place.staged):
            name = "tile" if not tiles else f"tile{len(tiles) + 1}"
            tiles.setdefault((at, one.element), context.unused_here(name))
    top, guard = places[0].top, places[0].guard
    indent, eol = context.indent(top.start_byte), context.eol
    condition = f"blockDim.x == {block}"
    if guard:
        condition += f" && __all_sync({_MASK}, {guard})"
    lines = [
        *(f"__shared__ {element} {name}[{block}][{WARP + 1}];" for (_, element), name in tiles.items()),
        f"const int {lane} = threadIdx.x % {WARP}, {warp} = threadIdx.x - {lane};",
        f"const bool {whole} = {condition};",
    ]
    yield Edit(Span(top.start_byte, top.start_byte), "".join(f"{line}{eol}{indent}" for line in lines))
    used: set[tuple[int, str]] = set()
    for number, place in enumerate(places):
        wait = number > 0 or _written_before(context, place.walk.loop.node)
        yield from _loop(context, place, tiles, (lane, warp, whole), used, wait)


def _written_before(context: Context, loop: Node) -> bool:
    """A thread may have written to its row before the loop: the others of the warp must see that."""
    return any(w.node.start_byte < loop.start_byte for w in syntax.memory_writes(context.body)) or any(
        call.start_byte < loop.start_byte and effect(context, call) is not None
        for call in syntax.of_type(context.body, "call_expression")
    )


def _loop(
    context: Context,
    place: Place,
    tiles: dict[tuple[int, str], str],
    spelled: tuple[str, str, str],
    used: set[tuple[int, str]],
    wait: bool,
) -> Iterator[Edit]:
    lane, warp, whole = spelled
    loop, body = place.walk.loop, place.walk.body
    step, k = unit(context), unused_index(context)
    r = context.unused_here("r")
    sign = "-" if loop.step == "-1" else "+"
    start = fresh(context, loop.node, f"{loop.variable}{WARP}", used)
    rows = f"for (int {r} = 0; {r} < {WARP}; {r}++)"
    condition = syntax.field(loop.node, "condition")
    spot = next(n for n in syntax.of_type(condition, "identifier") if text(n) == loop.variable)
    at = Span(spot.start_byte - condition.start_byte, spot.end_byte - condition.start_byte)
    last = apply(context.slice(syntax.span(condition)), [Edit(at, f"{start} {sign} {WARP - 1}")]).strip()
    firsts: dict[str, str] = {}
    head: list[str] = []
    fetch: list[str] = []
    put: list[str] = []
    back: list[str] = []
    replaced: dict[Access | Node, str] = {}
    for index, one in enumerate(place.staged):
        tile = tiles[index, one.element]
        number = "" if index == 0 else str(index + 1)
        ahead = context.unused_here(f"ahead{number}")
        offset = _renamed(one.first, loop.variable, start)
        if offset not in firsts:
            firsts[offset] = context.unused_here(f"first{number}")
            head.append(f"const long long {firsts[offset]} = {offset};")
        first = firsts[offset]
        element = f"{one.root}[__shfl_sync({_MASK}, {first}, {r}) {'+' if one.up else '-'} {lane}]"
        if one.reads:
            fetch += [f"{one.element} {ahead}[{WARP}];", "#pragma unroll", rows, f"{step}{ahead}[{r}] = {element};"]
            put += ["#pragma unroll", rows, f"{step}{tile}[{warp} + {r}][{lane}] = {ahead}[{r}];"]
        if one.writes:
            back += ["#pragma unroll", rows, f"{step}{element} = {tile}[{warp} + {r}][{lane}];"]
        replaced |= dict.fromkeys(one.nodes, f"{tile}[threadIdx.x][{k}]")
    rendered = render(body, replaced)
    own = [f"const {loop.type} {loop.variable} = {start} {sign} {k};"] if rendered.uses_variable else []
    braces = len(own) + rendered.statements > 1
    compute = [f"for (int {k} = 0; {k} < {WARP}; {k}++){' {' if braces else ''}"]
    compute += [step + line if line.strip() else line for line in (*own, *rendered.lines)]
    compute += ["}"] if braces else []
    ready = ["__syncwarp();  // all loads are on their way before the first is waited for"] if put else []
    inner = [*head, *fetch, *ready, *put, *(["__syncwarp();"] if put else []), *compute, "__syncwarp();", *back]
    inner += ["__syncwarp();"]
    lines = [
        f"{loop.type} {start} = {text(loop.start)};",
        f"if ({whole}) {{",
        *([f"{step}__syncwarp();"] if wait else []),
        f"{step}for (; {last}; {start} {sign}= {WARP}) {{",
        *(step * 2 + line if line.strip() and not line.startswith("#if") else line for line in inner),
        f"{step}}}",
        "}",
    ]
    yield from insert_before(context, loop.node, lines)
    yield Edit(syntax.span(loop.start), start)


def _renamed(code: str, old: str, new: str) -> str:
    return re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, code)
