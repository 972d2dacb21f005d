"""# 13 · aggregate-atomics: one atomic for a warp or a block, not one for every thread

Atomics on one address wait for each other. Where all threads of a block add to the same place, they can add up what
they have through shuffles first.

Before:

    if (i < n) {
      …
      atomicAdd(total, value);
    }

After:

    float sum = 0;
    if (i < n) {
      …
      sum += value;
    }
    for (int offset = 16; offset > 0; offset /= 2)
      sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0 && sum != 0) atomicAdd(total, sum);

With `over=block` the warps' results meet in shared memory, and thread 0 makes the block's only atomic. An early
`if (i >= n) return;` becomes the condition of what follows it, since the threads that would return are needed.

Legal when: the address is the same for the whole block and does not change, the result of the atomic is not used,
nothing else touches that array meanwhile, and no thread leaves early in another way (proved); every block has whole
warps (captured). Integers: bit-exact. Sums of floats change their order: class "reassociated".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import layout, syntax
from cuda_agent.rewrite.analysis import access, affine, blocks, shared, uniform
from cuda_agent.rewrite.analysis.arithmetic import INTEGERS, Types
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import ancestors, arguments, callee, strip_parens

WARP = 32
_MOST = 6  # addresses
_MASK = "0xffffffffu"
_OPERATORS = {"atomicAdd": "+", "atomicSub": "+", "atomicOr": "|", "atomicXor": "^"}
_EXTREMES = {"atomicMax": "max", "atomicMin": "min"}
_TALKS = re.compile(r"__threadfence|\bvolatile\b|atomicCAS|atomicExch|\bgoto\b|grid_group|asm\b")
_NEGATED = {">=": "<", ">": "<=", "<": ">=", "<=": ">", "==": "!=", "!=": "=="}


@dataclass(frozen=True)
class _Target:
    """One address and the atomics on it inside one statement of the kernel's body (or behind an early return)."""

    calls: tuple[Node, ...]
    address: str
    function: str
    element: str
    around: Node  # the statement
    end: Node  # the last statement that belongs to it
    guard: Node | None  # `if (…) return;` in front

    @property
    def direct(self) -> bool:
        """Every thread makes exactly one of these atomics."""
        return self.guard is None and len(self.calls) == 1 and self.calls[0].parent == self.around

    def fold(self, name: str, other: str) -> str:
        if self.function in _OPERATORS:
            return f"{name} {_OPERATORS[self.function]}= {other};"
        return f"{name} = {_EXTREMES[self.function]}({name}, {other});"

    @property
    def noun(self) -> str:
        if self.function in _EXTREMES:
            return "largest" if self.function == "atomicMax" else "smallest"
        return "sum" if _OPERATORS[self.function] == "+" else "bits"


class AggregateAtomics(Rule):
    name = "aggregate-atomics"
    number = 13

    def sites(self, context: Context) -> Iterator[Site]:
        if not context.shapes or "atomic" not in text(context.body):
            return
        found = _targets(context)
        if not found:
            return
        for shape in context.launched:
            if shape.threads % WARP or shape.block[2] != 1:
                raise RuleRefused(f"a block of {shape.block} has no whole warps")
        for over in ("block", "warp"):
            yield Site(self.name, context.kernel.name_span, {"over": over}, {"targets": found})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        targets: list[_Target] = site.nodes["targets"]
        writer = _Writer(context, site.params["over"] == "block")
        exact = all(
            t.function not in ("atomicAdd", "atomicSub") or shared.is_integer(context, t.element) for t in targets
        )
        return Rewrite(
            tuple(writer.edits(targets)),
            assumptions=(
                Assumption("all threads of a block add to the same address", "proved"),
                Assumption(f"every block of {context.kernel.name} has whole warps", "captured"),
            ),
            numeric="bit-exact" if exact else "reassociated",
        )


# ---------------------------------------------------------------- what is found


def _targets(context: Context) -> list[_Target]:
    groups: dict[tuple[str, str, int], list[Node]] = {}
    refused: list[RuleRefused] = []
    guard = _early_return(context)
    for call in syntax.of_type(context.body, "call_expression"):
        name = callee(call) or ""
        statement = call.parent
        if name not in _OPERATORS and name not in _EXTREMES:
            continue
        if statement is None or statement.type != "expression_statement" or len(arguments(call)) != 2:
            continue
        around = _outermost(context, call)
        first = guard.start_byte if guard is not None and around.start_byte > guard.start_byte else around.start_byte
        groups.setdefault((squeeze(text(arguments(call)[0])), name, first), []).append(call)
    if len({address for address, _, _ in groups}) > _MOST:
        raise RuleRefused(
            f"atomics on more than {_MOST} addresses are a table's: their sums would take too many registers"
        )
    found: list[_Target] = []
    for (_, name, first), calls in groups.items():
        try:
            target = _target(context, name, calls, guard if guard is not None and guard.start_byte == first else None)
        except RuleRefused as error:
            refused.append(error)
            continue
        if target is not None:
            found.append(target)
    if not found and refused:
        raise refused[0]
    return found


def _outermost(context: Context, node: Node) -> Node:
    """The statement of the kernel's body that holds a node."""
    current = node
    while current.parent is not None and current.parent != context.body:
        current = current.parent
    return current


def _early_return(context: Context) -> Node | None:
    """The kernel's only `if (…) return;` that some threads take, when it stands in the body itself."""
    leaving = list(blocks.leaves(context, context.kernel.body.end))
    if len(leaving) != 1:
        return None
    guard = _outermost(context, leaving[0])
    plain = guard.type == "if_statement" and guard.child_by_field_name("alternative") is None
    inside = syntax.statements(syntax.field(guard, "consequence")) if plain else []
    return guard if len(inside) == 1 and inside[0] == leaving[0] else None


def _target(context: Context, function: str, calls: list[Node], guard: Node | None) -> _Target | None:
    """None where threads have addresses of their own; RuleRefused where the pattern is there but not legal."""
    address = arguments(calls[0])[0]
    place = affine.pointer(context, address)
    if place is None or place.index.names & {f"threadIdx.{a}" for a in "xyz"}:
        return None
    if uniform.of_poly(context, place.index) not in ("block", "grid"):
        return None
    parameters = {p.name for p in context.kernel.params}
    if not place.index.names <= _steady(context) or not set(syntax.identifiers(address)) <= _lasting(context):
        raise RuleRefused(f"{text(address)} is not known to stay the same place")
    around = _outermost(context, calls[0])
    statements = syntax.statements(context.body)
    end = statements[-1] if guard is not None else around
    region = Span((guard or around).start_byte, end.end_byte)
    if function in _EXTREMES and not (guard is None and len(calls) == 1 and calls[0].parent == around):
        return None  # there is no value that changes nothing
    if _only_few(context, calls):
        return None
    _check_region(context, place.base, calls, region)
    if guard is None and next(blocks.leaves(context, end.end_byte), None) is not None:
        raise RuleRefused("some threads return before: a warp that shuffles needs all of its threads")
    kind = place.element if place.base not in parameters else _element(context, place.base, place.element)
    shared.check_shuffled(context, place.base, kind)
    return _Target(tuple(calls), text(address), function, kind, guard or around, end, guard)


def _element(context: Context, name: str, fallback: str) -> str:
    return next((p.element for p in context.kernel.params if p.name == name), fallback)


def _only_few(context: Context, calls: list[Node]) -> bool:
    """One thread of the block makes the atomic already."""
    return any(shared.in_first_thread(context, c) or _of_lane(context, c) for c in calls)


def _of_lane(context: Context, call: Node) -> bool:
    """Under a condition that one thread of a warp meets: `if (lane == 0)`, `if (threadIdx.x == blockDim.x - 1)`."""
    for around in ancestors(call, ("if_statement",)):
        condition = around.child_by_field_name("condition")
        if condition is None or not syntax.span(context.body).holds(syntax.span(around)):
            continue
        for part in syntax.of_type(condition, "binary_expression"):
            if text(syntax.field(part, "operator")) == "==" and any(
                "thread_rank" in text(side) or affine.of(context, side).names & {f"threadIdx.{a}" for a in "xyz"}
                for side in (syntax.field(part, "left"), syntax.field(part, "right"))
            ):
                return True
    return False


def _steady(context: Context) -> frozenset[str]:
    builtin = {f"{b}.{a}" for b in ("blockIdx", "blockDim", "gridDim") for a in "xyz"}
    return frozenset(builtin | {p.name for p in context.kernel.params if p.name not in context.written})


def _lasting(context: Context) -> frozenset[str]:
    """Names that mean the same at every place of the kernel's body: parameters, and what is declared in the body itself
    and set once."""
    outer = {
        name
        for name, writes in context.written.items()
        if len(writes) == 1 and writes[0].op == "init" and _outermost(context, writes[0].node) == writes[0].node.parent
    }
    arrays = {s.name for s in context.kernel.shared}
    parameters = {p.name for p in context.kernel.params if p.name not in context.written}
    return frozenset(outer | arrays | parameters | set(syntax.BUILTINS))


def _check_region(context: Context, base: str, calls: list[Node], region: Span) -> None:
    code = context.slice(region)
    if _TALKS.search(text(context.body)):
        raise RuleRefused("threads tell each other things by memory here: an atomic must not come later")
    if re.search(r"__syncthreads|\bsync\s*\(|__syncwarp|_sync\s*\(", code):
        raise RuleRefused("threads wait for each other between the atomics")
    own = {c.id for c in calls}
    for one in access.of(context):
        if one.array != base or not region.holds(syntax.span(one.node)) or one.kind == "atomic":
            continue
        raise RuleRefused(f"{base} is also read or stored between the atomics")
    for n in syntax.of_type(context.body, "identifier"):
        if text(n) == base and region.holds(syntax.span(n)):
            call = next(ancestors(n, ("call_expression",)), None)
            if call is None or (call.id not in own and not (callee(call) or "").startswith("atomic")):
                raise RuleRefused(f"{base} is also used without an atomic")


# ---------------------------------------------------------------- the new text


class _Writer:
    def __init__(self, context: Context, over_block: bool) -> None:
        self.context = context
        self.over_block = over_block
        self.taken = layout.taken_names(context)
        self.step = layout.unit(context)
        flat = all(s.block[1] == 1 for s in context.launched)
        self.thread = "threadIdx.x" if flat else "(threadIdx.y * blockDim.x + threadIdx.x)"
        self.threads = "blockDim.x" if flat else "blockDim.x * blockDim.y"
        self.offset = self.name("offset")

    def name(self, wanted: str) -> str:
        numbered = (f"{wanted}{i}" for i in range(2, 1000))
        name = next(n for n in (wanted, *numbered) if n not in self.taken)
        self.taken.add(name)
        return name

    def edits(self, targets: list[_Target]) -> list[Edit]:
        """Targets that share a statement are written together, and so are atomics that follow each other."""
        groups: list[list[_Target]] = []
        for t in sorted(targets, key=lambda t: t.around.start_byte):
            last = groups[-1][-1] if groups else None
            if last is not None and (t.around == last.around or (t.direct and last.direct and _next(last) == t.around)):
                groups[-1].append(t)
            else:
                groups.append([t])
        return [edit for g in groups for edit in (self._direct(g) if g[0].direct else self._around(g))]

    def _direct(self, targets: list[_Target]) -> list[Edit]:
        """Every thread has one value for each."""
        lines, names = [], []
        for t in targets:
            value = arguments(t.calls[0])[1]
            spare = value.type == "identifier" and shared.is_spare(self.context, text(value), t.element, t.around)
            names.append(text(value) if spare else self.name(t.noun))
            if not spare:
                lines.append(f"{t.element} {names[-1]} = {self.context.slice(syntax.span(value))};")
        first, last = targets[0].around, targets[-1].around
        line = self.context.eol + self.context.indent(first.start_byte)
        return [Edit(Span(first.start_byte, last.end_byte), line.join([*lines, *self._after(targets, names)]))]

    def _around(self, targets: list[_Target]) -> list[Edit]:
        first = targets[0]
        line = self.context.eol + self.context.indent(first.around.start_byte)
        names = [self.name(t.noun) for t in targets]
        at = first.around.start_byte
        zero = "".join(f"{t.element} {n} = 0;{line}" for t, n in zip(targets, names, strict=True))
        edits = [Edit(Span(at, at), zero)]
        for t, name in zip(targets, names, strict=True):
            for call in t.calls:
                assert call.parent is not None
                value = self.context.slice(syntax.span(arguments(call)[1]))
                edits.append(Edit(syntax.span(call.parent), t.fold(name, value)))
        closing = ""
        if first.guard is not None:
            edits += self._opened(first.guard, first.end)
            closing = f"{line}}}"
        end = first.end.end_byte
        after = "".join(line + a for a in self._after(targets, names))
        return [*edits, Edit(Span(end, end), closing + after)]

    def _after(self, targets: list[_Target], names: list[str]) -> list[str]:
        lines = self._shuffles(targets, names)
        lane = f"{self.thread} % {WARP} == 0"
        if not self.over_block:
            return lines + self._atomics(targets, names, lane)
        partial = [self.name("partial" if len(targets) == 1 else f"partial_{n}") for n in names]
        lines += [f"__shared__ {t.element} {p}[{WARP}];" for t, p in zip(targets, partial, strict=True)]
        stores = [f"{p}[{self.thread} / {WARP}] = {n};" for p, n in zip(partial, names, strict=True)]
        lines += _block(f"if ({lane})", stores, self.step)
        lines.append("__syncthreads();")
        inside = []
        for t, n, p in zip(targets, names, partial, strict=True):
            have = f"{self.thread} < {self.threads} / {WARP}"
            if t.function in _EXTREMES:  # a value of the block's own changes nothing
                inside.append(f"if ({have}) {n} = {p}[{self.thread}];")
            else:
                inside.append(f"{n} = {have} ? {p}[{self.thread}] : 0;")
        inside += self._shuffles(targets, names)
        inside += self._atomics(targets, names, f"{self.thread} == 0")
        return lines + _block(f"if ({self.thread} < {WARP})", inside, self.step)

    def _shuffles(self, targets: list[_Target], names: list[str]) -> list[str]:
        o = self.offset
        folds = [t.fold(n, f"__shfl_down_sync({_MASK}, {n}, {o})") for t, n in zip(targets, names, strict=True)]
        head = f"for (int {o} = {WARP // 2}; {o} > 0; {o} /= 2)"
        return [head, self.step + folds[0]] if len(folds) == 1 else _block(head, folds, self.step)

    def _atomics(self, targets: list[_Target], names: list[str], condition: str) -> list[str]:
        lines = []
        for t, n in zip(targets, names, strict=True):
            some = "" if t.direct else f" && {n} != 0"
            lines.append(f"if ({condition}{some}) {t.function}({t.address}, {n});")
        return lines

    def _opened(self, guard: Node, end: Node) -> Iterator[Edit]:
        """`if (i >= n) return;` → `if (i < n) {`, and what follows one step further in."""
        types = Types(self.context.kernel, self.context.body)
        opposite = _negated(strip_parens(syntax.field(guard, "condition")), types)
        yield Edit(syntax.span(guard), f"if ({opposite}) {{")
        data = self.context.module.document.data
        at = data.find(b"\n", guard.end_byte, end.end_byte) + 1
        while 0 < at <= end.start_byte or (0 < at < end.end_byte):
            if data[at : at + 1] not in (b"\n", b"\r", b"#"):
                yield Edit(Span(at, at), self.step)
            following = data.find(b"\n", at, end.end_byte)
            at = following + 1 if following >= 0 else -1


def _next(target: _Target) -> Node | None:
    return target.around.next_named_sibling


def _block(head: str, inside: list[str], step: str) -> list[str]:
    return [f"{head} {inside[0]}"] if len(inside) == 1 else [f"{head} {{", *(step + line for line in inside), "}"]


def _negated(node: Node, types: Types) -> str:
    """The opposite condition, in as few signs as a person would write. Of what may be NaN, `>=` is not the opposite of
    `<`."""
    if node.type == "binary_expression":
        sign = text(syntax.field(node, "operator"))
        left, right = syntax.field(node, "left"), syntax.field(node, "right")
        if sign in ("==", "!=") or (sign in _NEGATED and {types.of(left), types.of(right)} <= INTEGERS):
            return f"{text(left)} {_NEGATED[sign]} {text(right)}"
        if sign == "||":
            return f"{_negated(strip_parens(left), types)} && {_negated(strip_parens(right), types)}"
    return f"!({text(node)})"
