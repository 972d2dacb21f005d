"""# 7 · coarsen: several elements a thread, as a grid-stride loop

One element a thread pays its index arithmetic and its launch for four bytes. Several elements a thread keep more
loads in flight.

Before:

    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = a * x[i] + y[i];

After (and a quarter of the blocks):

    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = a * x[i] + y[i];

Legal when the whole rest of the kernel is guarded by the index (proved) and threads do not work together (proved).
Elements must not depend on each other: they are run by different threads already, in any order (proved). The launch
has a thread for every element (captured): one with fewer means to leave elements alone. Bit-exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import launches, layout, syntax
from cuda_agent.rewrite.analysis.coverage import check_index_only, covered
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import ThreadId, squeeze, text


@dataclass(frozen=True)
class Guarded:
    """`id; if (id < bound) body` ("body") or `id; if (id >= bound) return; rest` ("return")."""

    kind: str
    index: ThreadId
    guard: Node
    bound: str
    rest: list[Node]


class Coarsen(Rule):
    name = "coarsen"
    number = 7

    def sites(self, context: Context) -> Iterator[Site]:
        found = guarded(context.body)
        if found is None or not context.shapes:
            return
        blocks = min(s.blocks for s in context.shapes)
        sms = context.device.sms if context.device else 132
        for k in (2, 4, 8):
            if blocks // k >= sms:
                yield Site(self.name, syntax.span(found.guard), {"elements": k}, {"found": found})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        found: Guarded = site.nodes["found"]
        k = site.params["elements"]
        if syntax.COOPERATION.search(text(context.body)):
            raise RuleRefused("threads of a block work together: they must all stay in step")
        if next(syntax.of_type(context.body, "goto_statement"), None):
            raise RuleRefused("the kernel jumps")
        check_index_only(context, found.index.value)
        reached = covered(context, bound_text(context, found), "x")
        body = _as_loop(context, found)
        edits, mapping = launches.fewer_blocks(context, k)
        return Rewrite(
            (*body, *edits),
            mapping,
            (Assumption("each element is computed on its own", "proved"), reached),
        )


def guarded(body: Node) -> Guarded | None:
    ids = [t for t in syntax.thread_ids(body) if t.axis == "x"]
    statements = syntax.statements(body)
    if len(ids) != 1 or ids[0].declaration not in statements or "gridDim" in text(body):
        return None
    index = ids[0]
    at = statements.index(index.declaration)
    if len(index.declaration.children_by_field_name("declarator")) != 1 or at + 1 >= len(statements):
        return None
    guard = statements[at + 1]
    if guard.type != "if_statement" or guard.child_by_field_name("alternative") is not None:
        return None
    condition = squeeze(text(syntax.field(guard, "condition"))).removeprefix("(").removesuffix(")")
    consequence = syntax.field(guard, "consequence")
    rest = statements[at + 2 :]
    if (
        condition.startswith(f"{index.name}<")
        and not condition.startswith(f"{index.name}<=")
        and "&&" not in condition
        and not rest
    ):
        return Guarded("body", index, guard, condition.removeprefix(f"{index.name}<"), [consequence])
    leaves = squeeze(text(consequence)) in ("return;", "{return;}")
    if condition.startswith(f"{index.name}>=") and "||" not in condition and leaves and rest:
        return Guarded("return", index, guard, condition.removeprefix(f"{index.name}>="), rest)
    return None


def _as_loop(context: Context, found: Guarded) -> list[Edit]:
    index = found.index
    if any(next(syntax.of_type(n, "return_statement"), None) for n in found.rest):
        raise RuleRefused("the guarded part may return early")
    first = text(index.value)
    kind = text(syntax.field(index.declaration, "type"))
    changed = any(w.name == index.name for n in found.rest for w in syntax.writes(n))
    variable = context.unused("first") if changed else index.name
    bound = bound_text(context, found)
    head = f"for ({kind} {variable} = {first}; {variable} < {bound}; {variable} += gridDim.x * blockDim.x)"
    whole = Span(index.declaration.start_byte, found.guard.end_byte)
    indent = context.indent(index.declaration.start_byte)
    step = indent[len(context.indent(context.kernel.body.start)) :] or "    "
    if found.kind == "body":
        body = found.rest[0]
        keep = Span(index.declaration.start_byte, body.start_byte)
        if changed:
            raise RuleRefused(f"{index.name} is changed inside the guard")
        return [
            Edit(keep, head + context.slice(Span(syntax.field(found.guard, "condition").end_byte, body.start_byte)))
        ]
    copy = f"{context.eol}{indent}{step}{kind} {index.name} = {variable};" if changed else ""
    blank = len(context.slice(Span(found.guard.end_byte, found.rest[0].start_byte)).split("\n")) - 2
    start = whole.end + max(0, blank) * len(context.eol)
    edits = [Edit(Span(whole.start, start), head + " {" + copy)]
    edits += layout.indented(context, Span(start, found.rest[-1].end_byte), step)
    end = found.rest[-1].end_byte
    edits.append(Edit(Span(end, end), f"{context.eol}{indent}}}"))
    return edits


def bound_text(context: Context, found: Guarded) -> str:
    condition = text(syntax.field(found.guard, "condition")).strip()
    inner = condition[1:-1] if condition.startswith("(") else condition
    return inner.split(">=" if found.kind == "return" else "<", 1)[1].strip()
