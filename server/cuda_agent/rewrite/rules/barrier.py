"""# 18 · barrier: take away barriers that nothing needs

At a barrier every warp waits for the slowest. It is needed only where one thread touches what another one wrote, or
writes what another one read, on the two sides of it.

Before:

    tile[t] = x[i];
    __syncthreads();
    tile[t] *= scale;
    __syncthreads();
    y[i] = tile[255 - t];

After:

    tile[t] = x[i];
    tile[t] *= scale;
    __syncthreads();
    y[i] = tile[255 - t];

In a block of one warp `__syncwarp()` does instead, and costs next to nothing.

Legal when: between the barriers on its two sides no two threads touch the same element, one of them writing. Elements
are told apart by their indices, which must be known polynomials of the thread's index (proved); buffers by where the
captured pointers led (captured). A kernel that gives pointers or shared memory to functions is refused. For
`__syncwarp()`: no captured block has more than 32 threads (captured). Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.judge import vocabulary
from cuda_agent.model import Assumption, Edit
from cuda_agent.rewrite import layout, syntax
from cuda_agent.rewrite.analysis import access, aliasing, blocks, trips
from cuda_agent.rewrite.analysis.access import Access
from cuda_agent.rewrite.analysis.functions import definitions
from cuda_agent.rewrite.analysis.phases import Phases
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import ancestors, callee, span, walk
from cuda_agent.workload.launch_map import Shape

WARP = 32
# What lets threads of a block see each other's work outside barriers and plain accesses.
_HIDDEN = re.compile(
    r"\bvolatile\b|\bcub::|\basm\b|\bgoto\b|__threadfence|__syncwarp|_group\b|__pipeline|_async\b|atomicCAS|atomicExch"
)
_UNREAD = ("function_definition", "lambda_expression", "labeled_statement", "reference_declarator", "ERROR")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(.*(?:\\\n.*)*)$", re.M)
_ABOUT = re.compile(rb"//[^\n]*\b(sync\w*|barrier|wait\w*|ensure)\b[^\n]*", re.I)


class Barrier(Rule):
    name = "barrier"
    number = 18

    def sites(self, context: Context) -> Iterator[Site]:
        found = [s for s in syntax.of_type(context.body, "expression_statement") if blocks.barrier(s, context.body)]
        if not found:
            return
        if context.shapes and all(s.threads <= WARP for s in context.launched):
            yield Site(self.name, context.kernel.name_span, {"of": "warp"}, {"barriers": found})
        removable = _Redundant(context, found).found()
        if removable:
            yield Site(self.name, context.kernel.name_span, {"fewer": len(removable)}, {"barriers": removable})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        barriers: list[Node] = site.nodes["barriers"]
        if "of" in site.params:
            known = Assumption(f"no block of {context.kernel.name} has more than {WARP} threads", "captured")
            return Rewrite(tuple(Edit(span(b), "__syncwarp();") for b in barriers), assumptions=(known,))
        known = Assumption("no thread touches what another one does on the other side of a removed barrier", "proved")
        apart = Assumption("buffers of different parameters do not overlap", "captured")
        edits = tuple(edit for b in barriers for edit in _without(context, b))
        return Rewrite(edits, assumptions=(known, apart) if len(context.kernel.params) > 1 else (known,))


class _Redundant:
    """Which barriers may go, one after the other: the next is judged without those that went before."""

    def __init__(self, context: Context, barriers: list[Node]) -> None:
        self.context = context
        self.barriers = barriers
        self.accesses = access.of(context)
        self.overlapping = aliasing.overlapping(context.kernel, context.workload)
        self.numbers = context.launched_numbers
        self.steady = self._steady()
        self.scalars = {s.name for s in context.kernel.shared if not s.extents and not s.dynamic}
        self.owned: dict[Poly, bool] = {}

    def found(self) -> list[Node]:
        if not self.numbers:
            return []
        self._check()
        gone: list[Node] = []
        for one in self.barriers:
            if one.parent is None or one.parent.type != "compound_statement":
                continue
            kept = [b for b in self.barriers if b != one and b not in gone]
            before, after = Phases(self.context.body, kept.__contains__).around(one)
            if not self._conflict(before, after):
                gone.append(one)
        return gone

    def _check(self) -> None:
        """Everything that touches memory or waits must be known."""
        body = self.context.body
        if self.accesses.unknown:
            raise RuleRefused(f"it is not known what {text(self.accesses.unknown[0])} touches: its barriers stay")
        if _HIDDEN.search(text(body)) or next(syntax.of_type(body, *_UNREAD), None) is not None:
            raise RuleRefused("threads may tell each other things without a barrier: the barriers stay")
        for one in self.barriers:
            if next(ancestors(one, ("switch_statement", "case_statement")), None) is not None:
                raise RuleRefused("a barrier stands in a switch")
        barriers = [span(b) for b in self.barriers]
        for call in walk(body, "call_expression"):
            if not any(b.holds(span(call)) for b in barriers):
                self._check_call(callee(call) or "")
        used = syntax.identifiers(body)
        for name, meaning in _MACRO.findall(self.context.text):
            if name in used and re.search(r"\[|->|sync|\*\s*[A-Za-z_]\w*\s*=", meaning):
                raise RuleRefused(f"{name} is a macro that may touch memory: the barriers stay")

    def _check_call(self, name: str) -> None:
        found = definitions(self.context.module).get(name)
        own = "".join(text(d) for d in found) if found else None
        if own is None and name not in vocabulary.CALLS and not name.startswith("atomic"):
            raise RuleRefused(f"it is not known what {name}() does: the barriers stay")
        if _HIDDEN.search(own or "") or re.search(r"__shared__|sync", own or "") or re.search("sync$", name):
            raise RuleRefused(f"{name}() is where threads work together too: the barriers stay")

    def _steady(self) -> frozenset[str]:
        """Names that have one value for a thread's whole life."""
        builtin = {f"{b}.{a}" for b in syntax.BUILTINS for a in "xyz"}
        scalars = {p.name for p in self.context.kernel.params if not p.pointer and p.name not in self.context.written}
        return frozenset(builtin | scalars)

    def _conflict(self, before: list[Node], after: list[Node]) -> bool:
        if self._mentioned(before) & self._mentioned(after):
            return True
        first, second = self._of(before), self._of(after)
        return any(self._clash(a, b) for a in first for b in second)

    def _mentioned(self, parts: list[Node]) -> set[str]:
        """Shared variables that are no arrays: one element for the whole block."""
        return {name for p in parts for name in syntax.identifiers(p)} & self.scalars

    def _of(self, parts: list[Node]) -> list[Access]:
        spans = [span(p) for p in parts]
        return [a for a in self.accesses if any(s.holds(span(a.node)) for s in spans)]

    def _clash(self, a: Access, b: Access) -> bool:
        """Two threads may touch one element, one of them writing."""
        if a.kind == b.kind == "load" or "local" in (a.space, b.space):
            return False
        if a.array != b.array:
            if "shared" in (a.space, b.space):
                return False
            return not self._known_apart(a.array, b.array)
        if a.kind == b.kind == "atomic":
            return False
        return a.index != b.index or a.element != b.element or bool(a.counted) or not self._own(a.index)

    def _known_apart(self, a: str, b: str) -> bool:
        parameters = {p.name for p in self.context.kernel.params if p.pointer}
        captured = all(
            {a, b} <= launch.keys() for launch in aliasing.targets(self.context.kernel, self.context.workload)
        )
        return {a, b} <= parameters and captured and frozenset((a, b)) not in self.overlapping

    def _own(self, index: Poly) -> bool:
        """Every thread of a block has an element of its own at this index, the same one each time."""
        if index not in self.owned:
            self.owned[index] = index.names <= self.steady - self.context.varied and all(
                self._apart(index, numbers, shape)
                for numbers, shape in zip(self.numbers, self.context.launched, strict=True)
            )
        return self.owned[index]

    def _apart(self, index: Poly, numbers: dict[str, int], shape: Shape) -> bool:
        """No two threads of a block of this launch have the same index."""
        known = {n: numbers.get(n, 0) for n in self.steady}
        bx, by, _ = shape.block
        seen = set()
        for t in range(shape.threads):
            known |= {"threadIdx.x": t % bx, "threadIdx.y": t // bx % by, "threadIdx.z": t // (bx * by)}
            place = trips.evaluate(index, known)
            if place is None or place in seen:
                return False
            seen.add(place)
        return True


def _without(context: Context, barrier: Node) -> Iterator[Edit]:
    """The barrier goes, and the comment over it that is about nothing else."""
    yield Edit(layout.removed(context, barrier), "")
    comment = barrier.prev_sibling
    alone = comment is not None and comment.type == "comment" and _ABOUT.fullmatch(comment.text or b"")
    if comment is not None and alone and comment.end_point[0] == barrier.start_point[0] - 1:
        yield Edit(layout.removed(context, comment), "")
