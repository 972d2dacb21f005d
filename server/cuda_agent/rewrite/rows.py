"""The text of a kernel whose rows are shared out: loops by lanes, results combined, stores made once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Edit, Span
from cuda_agent.rewrite import helpers, layout, syntax
from cuda_agent.rewrite.analysis import statements
from cuda_agent.rewrite.analysis.carried import Reduction, starts_neutral
from cuda_agent.rewrite.analysis.iterations import Access, accesses
from cuda_agent.rewrite.analysis.loops import Loop, type_of
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.spread import spread
from cuda_agent.rewrite.syntax import ThreadId, squeeze, text

WARP = 32


@dataclass(frozen=True)
class Group:
    """The threads that own a row together: `lanes` of a warp, or a block of `lanes`."""

    lanes: int
    block: bool = False


def stride_of(row: ThreadId) -> Node | None:
    """The update of a grid-stride loop over rows: `row += blockDim.x * gridDim.x`."""
    loop = row.declaration.parent
    if loop is None or loop.type != "for_statement" or loop.child_by_field_name("initializer") != row.declaration:
        return None
    update = loop.child_by_field_name("update")
    forms = {f"{row.name}+={a}.x*{b}.x" for a, b in (("blockDim", "gridDim"), ("gridDim", "blockDim"))}
    return update if update is not None and squeeze(text(update)) in forms else None


class Rows:
    """The edits inside a kernel whose rows go from a thread to a group of threads."""

    def __init__(
        self, context: Context, row: ThreadId, loops: list[Loop], found: list[Reduction], group: Group
    ) -> None:
        self.context, self.row, self.loops, self.found, self.group = context, row, loops, found, group
        self.lane = "threadIdx.x" if group.block else context.unused_here("lane")
        self.partial = not group.block and group.lanes < WARP
        self.mask = context.unused_here("mask") if self.partial else "0xffffffffu"
        self.eol, self.step = context.eol, layout.unit(context)
        self.functions: dict[tuple[str, str], str] = {}

    def edits(self) -> list[Edit]:
        edits = self._row()
        shared = self._shared_roots()
        for loop in self.loops:
            edits += self._loop(loop, shared)
        edits += self._stores()
        if self.functions:
            edits.append(self._helper_text())
        return edits

    # ------------------------------------------------------------ the row

    def _row(self) -> list[Edit]:
        context, value = self.context, syntax.span(self.row.value)
        stride = stride_of(self.row)
        edits = []
        if self.group.block:
            edits.append(Edit(value, "blockIdx.x"))
            if stride is not None:
                edits.append(Edit(syntax.span(stride), f"{self.row.name} += gridDim.x"))
            return edits
        whole = context.slice(value)
        opened = (
            whole if whole.startswith("(") and whole.endswith(")") and syntax.balanced(whole[1:-1]) else f"({whole})"
        )
        lanes = self.group.lanes
        wraps = any(s.blocks * s.threads * lanes >= 1 << 32 for s in context.launched)
        apart = f"blockIdx.x * (blockDim.x / {lanes}) + threadIdx.x / {lanes}"
        edits.append(Edit(value, apart if wraps else f"{opened} / {lanes}"))
        lines = [f"const int {self.lane} = threadIdx.x % {self.group.lanes};"]
        if self.partial and self._shuffles():
            ones = f"{(1 << self.group.lanes) - 1:#x}u"
            lines.append(f"const unsigned {self.mask} = {ones} << (threadIdx.x % {WARP} - {self.lane});")
        if stride is not None:
            right = stride.child_by_field_name("right")
            assert right is not None
            edits.append(Edit(Span(right.end_byte, right.end_byte), f" / {self.group.lanes}"))
            at = layout.start_with_pragma(context, self.row.declaration.parent or self.row.declaration)
            indent = context.indent(at)
            edits.append(Edit(Span(at, at), "".join(f"{line}{self.eol}{indent}" for line in lines)))
            return edits
        at, indent = self.row.declaration.end_byte, context.indent(self.row.declaration.start_byte)
        edits.append(Edit(Span(at, at), "".join(f"{self.eol}{indent}{line}" for line in lines)))
        return edits

    def _shuffles(self) -> bool:
        return bool(self.found) or bool(self._shared_roots())

    # ------------------------------------------------------------ loops

    def _loop(self, loop: Loop, shared: set[str]) -> list[Edit]:
        context = self.context
        edits = spread(context, loop, self.lane, str(self.group.lanes))
        mine = [r for r in self.found if r.loop is loop]
        before, after = [], []
        for r in mine:
            if r.neutral is not None and not starts_neutral(context, r):
                before += [f"if ({self.lane} != 0)", f"{self.step}{r.name} = {r.neutral};"]
        if shared & {a.root for a in accesses(context, loop.body)}:
            after.append(self._wait())
        after += self._combine(mine)
        if not before and not after:
            return edits
        above = loop.node.parent
        if above is None or above.type != "compound_statement":
            raise RuleRefused("a loop of the row is the only statement of an `if`, without braces")
        indent, at, end = (
            context.indent(loop.node.start_byte),
            layout.start_with_pragma(context, loop.node),
            loop.node.end_byte,
        )
        edits.append(Edit(Span(at, at), "".join(f"{line}{self.eol}{indent}" for line in before)))
        edits.append(Edit(Span(end, end), "".join(f"{self.eol}{indent}{line}" for line in after)))
        return edits

    def _wait(self) -> str:
        if self.group.block:
            return "__syncthreads();"
        return f"__syncwarp({self.mask});" if self.partial else "__syncwarp();"

    def _combine(self, mine: list[Reduction]) -> list[str]:
        if not mine:
            return []
        if self.group.block:
            return [f"{r.name} = {self._helper(r)}({r.name});" for r in mine]
        offset = self.context.unused_here("offset")
        head = f"for (int {offset} = {self.group.lanes // 2}; {offset} > 0; {offset} /= 2)"
        folds = [r.fold(f"__shfl_xor_sync({self.mask}, {r.name}, {offset})") for r in mine]
        if len(folds) == 1:
            return [head, self.step + folds[0]]
        return [f"{head} {{", *(self.step + fold for fold in folds), "}"]

    # ------------------------------------------------------------ memory between lanes

    def _shared_roots(self) -> set[str]:
        """What one lane writes and another may touch: memory that the loops store to, and that another loop finds in
        another order, or that the row itself touches."""
        seen: dict[str, set[tuple[str, str, str]]] = {}
        stored: set[str] = set()
        for loop in self.loops:
            for a in accesses(self.context, loop.body, loop.variable):
                way = (squeeze(text(loop.start)) + loop.relation[0], loop.step, a.form)
                seen.setdefault(a.root, set()).add(way)
                stored |= {a.root} if a.store else set()
        for a in self._outside():
            seen.setdefault(a.root, set()).add(("", "", a.form))
        several = {root for root in stored if len(seen[root]) > 1}
        return several - {r for r in several if self._one_loop(r)}

    def _one_loop(self, root: str) -> bool:
        """Only one loop touches it, and nothing else does."""
        loops = [l for l in self.loops if root in {a.root for a in accesses(self.context, l.body)}]
        return len(loops) == 1 and root not in {a.root for a in self._outside()} and not _repeated(loops[0])

    def _outside(self) -> list[Access]:
        spans = [syntax.span(l.body) for l in self.loops]
        found = accesses(self.context, self.context.body)
        return [a for a in found if not any(s.holds(syntax.span(a.node)) for s in spans)]

    def _stores(self) -> list[Edit]:
        """Stores outside the loops are the row's own: one lane makes them."""
        context, edits, done = self.context, [], set()
        inside = [syntax.span(l.node) for l in self.loops]
        effects = statements.side_effects(context, context.body)
        touched = accesses(context, context.body)
        for node in effects:
            if any(s.holds(syntax.span(node)) for s in inside):
                continue
            statement = syntax.enclosing_statement(node)
            if statement.start_byte in done:
                continue
            done.add(statement.start_byte)
            if statement.type != "expression_statement":
                raise RuleRefused("a store outside the row's loops is not a plain statement")
            if next((w for w in syntax.writes(statement) if w.name is not None), None):
                raise RuleRefused("a store outside the row's loops sets a variable too")
            own = [a for a in touched if syntax.span(statement).holds(syntax.span(a.node)) and a.store]
            rest = [
                a.root
                for a in touched
                if not syntax.span(statement).holds(syntax.span(a.node))
                and (not a.store or any(s.holds(syntax.span(a.node)) for s in inside))
            ]
            at, end = statement.start_byte, statement.end_byte
            head = f"if ({self.lane} == 0) "
            if any(a.root in rest for a in own):
                above = statement.parent
                if above is None or above.type != "compound_statement":
                    raise RuleRefused("what the row stores is read elsewhere too")
                indent = context.indent(at)
                head = f"{self._wait()}{self.eol}{indent}{head}"
                edits.append(Edit(Span(end, end), f"{self.eol}{indent}{self._wait()}"))
            edits.append(Edit(Span(at, at), head))
        return edits

    # ------------------------------------------------------------ over a block

    def _helper(self, r: Reduction) -> str:
        type_ = type_of(self.context, r.name) or ""
        names = {"+": "sum", "*": "product", "|": "or", "&": "and", "^": "xor", "||": "or", "&&": "and"}
        word = names.get(r.op, "max" if "max" in r.op else "min")
        known = self.functions.get((r.op, type_))
        if known is None:
            known = self.context.unused(f"block_{word}")
            if any(known == other and t == type_ for (_, t), other in self.functions.items()):
                raise RuleRefused("two kinds of minimum or maximum are taken over the block")
            self.functions[(r.op, type_)] = known
        return known

    def _helper_text(self) -> Edit:
        context, step = self.context, self.step
        functions: list[list[str]] = []
        for (op, type_), name in self.functions.items():
            word = name.removeprefix("block_").rstrip("0123456789")
            if type_ == "auto":
                raise RuleRefused("the type of what is carried is not written out")
            kept = Reduction("value", op, self.loops[0])
            parameters = [
                p
                for p in context.kernel.template_params
                if re.search(rf"\b{re.escape(type_)}$", p.split("=")[0].strip())
            ]
            lines = [
                f"// The {word} over a block of {self.group.lanes} threads, for every thread of it.",
                *(f"template <typename {type_}>" for _ in parameters[:1]),
                f"__device__ {type_} {name}({type_} value)",
                "{",
                f"{step}__shared__ {type_} parts[{self.group.lanes // WARP}];",
                f"{step}for (int offset = {WARP // 2}; offset > 0; offset /= 2)",
                f"{step * 2}{kept.fold('__shfl_xor_sync(0xffffffffu, value, offset)')}",
                f"{step}if (threadIdx.x % {WARP} == 0)",
                f"{step * 2}parts[threadIdx.x / {WARP}] = value;",
                f"{step}__syncthreads();",
                f"{step}value = parts[0];",
                f"{step}for (int warp = 1; warp < {self.group.lanes // WARP}; warp++)",
                f"{step * 2}{kept.fold('parts[warp]')}",
                f"{step}__syncthreads();",
                f"{step}return value;",
                "}",
            ]
            functions.append(lines)
        return helpers.above_kernel(context, functions)


def _repeated(loop: Loop) -> bool:
    """Whether the loop runs more than once a row."""
    above = loop.node.parent
    while above is not None and above.type != "function_definition":
        if above.type in syntax.LOOPS and "gridDim" not in text(above).partition("{")[0]:
            return True
        above = above.parent
    return False
