"""# 1 · block-size: more or fewer threads for a block that shares its work out

Where the threads of a block share a row, a table or the whole grid's elements out by loops, each from its own index on
in steps of the block's size, any number of threads does the same work. Blocks of 32 threads fill half of a
multiprocessor at most; few blocks of 128 leave most of it idle.

Before: `k<<<rows, 32>>>(x, y, n)` · After: `k<<<rows, 128>>>(x, y, n)`

Legal when threads use their index and the block's size for nothing but such loops and what the block's first thread
does alone, a kernel that shares the whole grid's elements out does not ask which block it is, and a value that a thread
keeps from such a loop goes to a function that works on the whole block or into an atomic (proved); such functions take
any number of whole warps (assumed; the judge runs them). Where a block was one warp, a barrier goes between two calls
of them, which use the same shared memory. With sums of floats their order changes: class "reassociated"; else
bit-exact.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.judge.vocabulary import CALLS
from cuda_agent.model import Assumption, Edit, LaunchMap, Span
from cuda_agent.rewrite import launches, syntax
from cuda_agent.rewrite.analysis import affine, blocks, names, uniform
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.analysis.functions import definitions
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.analysis.strided import StridedLoop, chunked_loop, strided_loop
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.rules.grid_size import only_starts
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import LOOPS, ancestors, arguments, callee, strip_parens

_SIZES = (1024, 512, 256, 128, 64)
_RESIDENT = 2048  # threads of a multiprocessor
_BLOCKS = 32  # of a multiprocessor
_USUAL = 256
_WARP = 32
_AGAIN = 2  # calls
_OF_A_WARP = re.compile(
    r"__shfl|__syncwarp|__ballot|__any|__all|__match|\bcub\b|cooperative_groups|\bcg::|warpSize|\basm\b"
)
_WHOLE_BLOCK = re.compile(r"block.*(?:reduce|sum|max|min|scan)|(?:reduce|sum|max|min|scan).*block", re.IGNORECASE)
_BLOCK = frozenset(f"blockIdx.{a}" for a in "xyz")
_DRAWS = 5
_REGISTERS = 65536  # of a block


@dataclass(frozen=True)
class _Shared:
    """How a block shares its work out."""

    loops: tuple[StridedLoop, ...]
    together: tuple[str, ...]  # functions that work on the whole block
    others: tuple[str, ...]  # functions of other files
    sums: bool  # what threads keep is put together


class BlockSize(Rule):
    name = "block-size"
    number = 1

    def sites(self, context: Context) -> Iterator[Site]:
        shapes = context.launched
        if not shapes or any(s.block[2] != 1 for s in shapes) or "threadIdx" not in text(context.body):
            return
        found = _shared_out(context)
        if found is None:
            return
        width = {s.block[0] for s in shapes}
        if any(s.block[1] != 1 for s in shapes) and len(width) != 1:
            return
        for size in _sizes(context):
            x = size if all(s.block[1] == 1 for s in shapes) else min(width)
            if size % x == 0:
                params = {"x": x} if x == size else {"x": x, "y": size // x}
                yield Site(self.name, context.kernel.name_span, params, {"found": found})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        found: _Shared = site.nodes["found"]
        x, y = site.params["x"], site.params.get("y", 1)
        launches.check_bound(context, x * y)
        edits = launches.change(context, block=launches.dims((str(x), str(y), "1")))
        if all(s.threads <= _WARP for s in context.launched):
            edits += tuple(_barriers(context, found))
        assumptions = [Assumption("threads use their index only to share loops out among all of the block", "proved")]
        for name in found.together:
            assumptions.append(Assumption(f"{name} works for a block of any number of whole warps", "assumed"))
        if found.others:
            assumptions.append(Assumption(f"{', '.join(found.others)}: does not ask how large the block is", "assumed"))
        mapping = LaunchMap(block=(str(x), str(y), "1"))
        return Rewrite(edits, mapping, tuple(assumptions), "reassociated" if found.sums else "bit-exact")


def _barriers(context: Context, found: _Shared) -> Iterator[Edit]:
    """A barrier behind each call of a function that works on the whole block, where there are several: its shared
    memory may be written by the next call while another warp still reads. One warp alone had no such trouble."""
    every = syntax.of_type(context.body, "call_expression")
    calls = [c for c in every if (callee(c) or "").rpartition("::")[2] in found.together]
    if len(calls) < _AGAIN and not any(next(ancestors(c, LOOPS), None) is not None for c in calls):
        return
    for statement in dict.fromkeys(syntax.enclosing_statement(c) for c in calls):
        if statement.parent is None or not uniform.reached_together(context, statement):
            raise RuleRefused("a function that works on the whole block is called by some threads only")
        if statement.parent.type != "compound_statement":
            raise RuleRefused("a function that works on the whole block is called in a branch of its own")
        end = statement.end_byte
        yield Edit(Span(end, end), f"{context.eol}{context.indent(statement.start_byte)}__syncthreads();")


def _sizes(context: Context) -> list[int]:
    """Block sizes: of `_USUAL` threads, or as many more as it takes to fill a multiprocessor, then those beside it."""
    sms = context.device.sms if context.device else 132
    at_once = min(_BLOCKS, *(-(-s.blocks // sms) for s in context.shapes))

    def fills(size: int) -> bool:
        return min(at_once, _RESIDENT // size) * size >= _RESIDENT

    current = {s.threads for s in context.shapes}
    middle = max(_USUAL, min((s for s in _SIZES if fills(s)), default=_SIZES[0]))
    registers = context.facts.registers if context.facts is not None else 0
    fitting = [s for s in _SIZES if s * registers <= _REGISTERS and current != {s}]
    return sorted(fitting, key=lambda s: (max(s, middle) // min(s, middle), -s))


# ---------------------------------------------------------------- legality


def _shared_out(context: Context) -> _Shared | None:
    """None where no loop is shared out; RuleRefused where one is, and the block's size means more than that."""
    scope = Names(context)
    counted = (chunked_loop(scope, n) or strided_loop(scope, n) for n in syntax.of_type(context.body, "for_statement"))
    loops = [loop for loop in counted if loop is not None and _by_threads(context, loop)]
    if not loops:
        return None
    if _OF_A_WARP.search(text(context.body)):
        raise RuleRefused("threads work together by warps: their number means something")
    if any(s.shared for s in context.launched) or any((site.shared or "0").strip() != "0" for site in context.sites):
        raise RuleRefused("the launch gives the block shared memory: its size may follow the number of threads")
    if any(affine.of(context, loop.start).names & _BLOCK for loop in loops) and not only_starts(context):
        raise RuleRefused(
            "a block's share of the grid's work follows from its size, and the kernel asks which block it is"
        )
    _check_uses(context, loops)
    together, others = _functions(context)
    sums = _check_kept(context, loops, together)
    return _Shared(tuple(loops), together, others, sums)


def _by_threads(context: Context, loop: StridedLoop) -> bool:
    """The loop starts at c · (thread's index) and goes on by c · (number of threads), of the block or of the grid.
    Asked of numbers drawn at random for everything else: two polynomials that agree there are the same."""
    if loop.lane:
        return loop.lane == "threadIdx.x" and Names(context).resolved(_step(loop)) == "blockDim.x"
    start, step = affine.of(context, loop.start), affine.of(context, _step(loop))
    free = random.Random(0)
    return all(_deals(start, step, free) for _ in range(_DRAWS))


def _step(loop: StridedLoop) -> Node:
    value = syntax.field(loop.update, "right") if loop.update.type == "assignment_expression" else loop.update
    if value.type == "binary_expression" and text(syntax.field(loop.update, "operator")) == "=":
        left, right = syntax.field(value, "left"), syntax.field(value, "right")
        return right if text(left) == text(syntax.field(loop.update, "left")) else left
    return value


def _deals(start: Poly, step: Poly, free: random.Random) -> bool:
    drawn = {name: free.randrange(2, 1000) for name in sorted(start.names | step.names)}
    drawn |= {f"{b}.{a}": free.randrange(2, 60) for b in ("blockDim", "gridDim") for a in "xyz"}

    def at(**indices: int) -> int:
        zero = {f"{b}.{a}": 0 for b in ("threadIdx", "blockIdx") for a in "xyz"}
        return start.evaluate(drawn | zero | {name.replace("_", "."): n for name, n in indices.items()})

    try:
        first, every = at(), step.evaluate(drawn)
        for axis, other in (("x", "y"), ("y", "x")):
            c = at(**{f"threadIdx_{axis}": 1}) - first
            if c <= 0 or any(at(**{f"threadIdx_{axis}": t}) - first != c * t for t in (2, 3, 17, 31, 32, 33, 64, 97)):
                continue
            across, width = at(**{f"threadIdx_{other}": 1}) - first, drawn[f"blockDim.{axis}"]
            if across not in (0, c * width):
                continue
            threads = width * (drawn[f"blockDim.{other}"] if across else 1)
            far = at(**{f"blockIdx_{axis}": 1}) - first
            if every == c * threads and far == 0:
                return True
            return not across and far == c * threads and every == c * threads * drawn[f"gridDim.{axis}"]
    except (KeyError, ValueError, ZeroDivisionError):
        pass
    return False


def _check_uses(context: Context, loops: list[StridedLoop]) -> None:
    """RuleRefused unless threads ask for their index only where a loop is shared out, or to be the first."""
    carriers = _carriers(context, loops)
    heads = [h for loop in loops for h in _head(loop)]
    values = [syntax.span(w.node) for n in carriers for w in context.written[n]]
    for n in syntax.of_type(context.body, "identifier"):
        name = text(n)
        if name not in carriers and name not in ("threadIdx", "blockDim"):
            continue
        if any(span.holds(syntax.span(n)) for span in (*(syntax.span(h) for h in heads), *values)):
            continue
        compared = next((a for a in ancestors(n, ("binary_expression",)) if "==" in text(a)), None)
        if compared is not None and blocks.is_first_thread(context, compared):
            continue
        raise RuleRefused(f"{name} is used by itself: the number of threads means something")


def _carriers(context: Context, loops: list[StridedLoop]) -> set[str]:
    """Variables that are set once, from the thread's index or the block's size."""
    own = {loop.variable for loop in loops}
    found: set[str] = set()
    while True:
        more = {
            name
            for name, writes in context.written.items()
            if len(writes) == 1 and writes[0].op == "init" and writes[0].value is not None and name not in own
            if _mentions(writes[0].value, found)
        }
        if more == found:
            return found
        found = more


def _mentions(node: Node, carriers: set[str]) -> bool:
    """The thread's index, the block's size or a variable of it; what a loop does inside is not asked."""
    return bool(syntax.identifiers(node) & ({"threadIdx", "blockDim"} | carriers))


def _head(loop: StridedLoop) -> Iterator[Node]:
    for part in ("initializer", "update"):
        node = loop.node.child_by_field_name(part)
        if node is not None:
            yield node
    if loop.lane:
        yield syntax.statements(syntax.field(loop.node, "body"))[0]


def _functions(context: Context) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(functions that work on the whole block, functions of other files). RuleRefused where one is made for blocks of a
    certain size."""
    types = {w for p in context.kernel.template_params for w in re.findall(r"\w+", p.partition("=")[0])[-1:]}
    together: list[str] = []
    others: list[str] = []
    for call in syntax.of_type(context.body, "call_expression"):
        spelled, name = callee(call) or "", (callee(call) or "").rpartition("::")[2]
        if name in CALLS or spelled in CALLS or name in types or name.startswith("atomic"):
            continue
        known = definitions(context.module).get(name, [])
        code = " ".join(text(d) for d in known)
        if "cub::" in code or "asm" in code:
            raise RuleRefused(f"{name} may be made for blocks of one size")
        if known and not (syntax.COOPERATION.search(code) or re.search(r"\b(?:threadIdx|blockDim)\b", code)):
            continue
        if known and "blockDim" not in code:
            raise RuleRefused(f"{name} does not ask how large the block is: it may be made for blocks of one size")
        (together if known or _WHOLE_BLOCK.search(name) else others).append(name)
    return tuple(dict.fromkeys(together)), tuple(dict.fromkeys(others))


def _check_kept(context: Context, loops: list[StridedLoop], together: tuple[str, ...]) -> bool:
    """Whether threads keep a value from a shared loop, which is then put together. RuleRefused where it is used in
    another way after the loop."""
    inside = [syntax.span(loop.node) for loop in loops]
    sums = any((callee(c) or "").startswith("atomic") for c in syntax.of_type(context.body, "call_expression"))
    for name, node in _kept(context, loops):
        for use in _uses_of_kept(context, name, node):
            if any(span.holds(syntax.span(use)) for span in inside) or _is_target(use):
                continue  # other loops are asked below, each as a whole
            call = next(ancestors(use, ("call_expression",)), None)
            called = (callee(call) or "").rpartition("::")[2] if call is not None else ""
            if called not in together and not called.startswith("atomic"):
                raise RuleRefused(f"{name} is each thread's own after the loop: with another block it is another value")
            sums = True
        for loop in loops:
            if loop.node.start_byte > node.end_byte and not _set_first(context, name, node, loop):
                raise RuleRefused(f"{name} goes from one shared loop into another")
    return sums


def _uses_of_kept(context: Context, name: str, node: Node) -> Iterator[Node]:
    """Uses behind the loop `node` up to the statement beside it that sets the variable anew."""
    end = context.kernel.body.end
    for use in syntax.of_type(context.body, "identifier"):
        if text(use) != name or not node.end_byte < use.start_byte < end:
            continue
        statement = syntax.enclosing_statement(use)
        if _is_target(use) and statement.parent == node.parent:
            end = statement.end_byte
        yield use


def _kept(context: Context, loops: list[StridedLoop]) -> list[tuple[str, Node]]:
    """Variables of the kernel's own that a shared loop writes and does not declare, with the loop."""
    found: list[tuple[str, Node]] = []
    pointers = {v.name for v in names.of(context).variables if v.pointer}
    for loop in loops:
        body = loop.body
        declared = syntax.declared(loop.node) | {loop.variable}
        written = {w.name or _base(w.target) for w in syntax.writes(body) if w.op != "init"} - pointers
        given = {
            text(a)
            for c in syntax.of_type(body, "call_expression")
            for a in arguments(c)
            if a.type == "identifier" and (callee(c) or "") not in CALLS
        }
        arrays = {n for n in given if n in syntax.declared(context.body)}
        shared = {s.name for s in context.kernel.shared} | {p.name for p in context.kernel.params}
        for name in sorted((written | arrays) - declared - shared):
            if name in syntax.declared(context.body):
                found.append((name, loop.node))
    return found


def _base(target: Node) -> str:
    return next((text(n) for n in syntax.of_type(target, "identifier")), "")


def _is_target(use: Node) -> bool:
    """`name = …;`: what was there is forgotten."""
    above = use.parent
    return (
        above is not None
        and above.type == "assignment_expression"
        and text(syntax.field(above, "operator")) == "="
        and strip_parens(syntax.field(above, "left")) == use
    )


def _set_first(context: Context, name: str, node: Node, loop: StridedLoop) -> bool:
    """A later loop does not use the variable, or it is set anew before: between the loops, or first in the loop (by a
    function that it is given to, too)."""
    uses = [n for n in syntax.of_type(loop.node, "identifier") if text(n) == name]
    if not uses:
        return True
    between = (
        n for n in syntax.of_type(context.body, "identifier") if node.end_byte < n.start_byte < loop.node.start_byte
    )
    if any(text(n) == name and _is_target(n) for n in between):
        return True
    first = uses[0].parent
    return _is_target(uses[0]) or (first is not None and first.type == "argument_list")
