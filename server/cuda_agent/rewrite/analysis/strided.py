"""Loops that count up, and the lanes of a warp, block or grid that share one, each from its own start on.

`Uniform` asks what the lanes of such a loop have in common, by text; `uniform.py` asks it of any block or grid, by what
a value depends on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.judge import launch_text
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import strip_parens

WARP = 32
_SHARED_VALUES = re.compile(r"__shfl|__ballot|__any|__all|__match|__activemask|atomic")


@dataclass(frozen=True)
class StridedLoop:
    """`for (T v = start; v < bound; v += step)`; neither `v` nor the bound is changed in the body."""

    node: Node
    variable: str
    type: str
    declares: bool  # the loop itself declares the variable
    start: Node
    bound: Node
    step: str  # "1" for `v++`
    update: Node
    body: Node
    lane: str = ""  # what the body adds to the loop's own variable: `for (s = 0; …) { v = s + lane; if (v < bound) …}`


def has_pragma(context: Context, loop: Node) -> bool:
    """A `#pragma` stands on the line before the loop."""
    lines = context.module.document.data[: loop.start_byte].splitlines()
    return len(lines) > 1 and lines[-2].lstrip().startswith(b"#pragma") and not lines[-1].strip()


def strided_loop(names: Names, node: Node, *, entered: bool = False) -> StridedLoop | None:
    """The loop when it has that form, else None. `entered`: also `for (; v < bound; v += step)` if nothing else moves
    the variable, which is its own start then."""
    if node.type != "for_statement":
        return None
    init, condition, update, body = (
        node.child_by_field_name(f) for f in ("initializer", "condition", "update", "body")
    )
    if condition is None or update is None or body is None or (init is None and not entered):
        return None
    condition = strip_parens(condition)
    head = _initialised(names, init) if init is not None else _entered(names, condition)
    if head is None or condition.type != "binary_expression" or text(syntax.field(condition, "operator")) != "<":
        return None
    variable, kind, start = head
    step = _step(update, variable)
    bound = syntax.field(condition, "right")
    if step is None or text(syntax.field(condition, "left")) != variable or syntax.uses(bound, variable):
        return None
    written = {w.name for w in syntax.writes(body)}
    if variable in written or written & syntax.identifiers(bound) or written & _words(step):
        return None
    others = (w for w in names.context.written.get(variable, ()) if w.op != "init")
    if init is None and any(not syntax.span(update).holds(syntax.span(w.node)) for w in others):
        return None  # the rest that another loop leaves
    declares = init is not None and init.type == "declaration"
    return StridedLoop(node, variable, kind, declares, start, bound, step, update, body)


def chunked_loop(names: Names, node: Node) -> StridedLoop | None:
    """`for (s = 0; s < bound; s += step) { T v = s + threadIdx.x; if (v < bound) body }`, told as a loop over v."""
    outer = strided_loop(names, node)
    if outer is None or not outer.declares or names.resolved(outer.start) != "0":
        return None
    statements = syntax.statements(outer.body)
    if len(statements) != 2 or [s.type for s in statements] != ["declaration", "if_statement"]:
        return None
    declarators = statements[0].children_by_field_name("declarator")
    condition = strip_parens(syntax.field(statements[1], "condition"))
    if len(declarators) != 1 or declarators[0].type != "init_declarator" or condition.type != "binary_expression":
        return None
    name, value = (syntax.field(declarators[0], f) for f in ("declarator", "value"))
    terms = [n for s, n in syntax.additive_terms(value) if s > 0 and text(n) != outer.variable]
    if len(terms) != 1 or not syntax.uses(value, outer.variable) or len(syntax.additive_terms(value)) != 2:
        return None
    guarded = squeeze(text(condition)) == f"{text(name)}<{squeeze(text(outer.bound))}"
    body = syntax.field(statements[1], "consequence")
    if not guarded or statements[1].child_by_field_name("alternative") is not None or syntax.uses(body, outer.variable):
        return None
    kind = text(syntax.field(statements[0], "type"))
    return StridedLoop(
        node,
        text(name),
        kind,
        False,
        outer.start,
        outer.bound,
        outer.step,
        outer.update,
        body,
        names.resolved(terms[0]),
    )


def _initialised(names: Names, init: Node) -> tuple[str, str, Node] | None:
    if init.type == "declaration":
        declarators = init.children_by_field_name("declarator")
        if len(declarators) != 1 or declarators[0].type != "init_declarator":
            return None
        name, value = (declarators[0].child_by_field_name(f) for f in ("declarator", "value"))
        if name is None or value is None or name.type != "identifier":
            return None
        return text(name), text(syntax.field(init, "type")), value
    if init.type == "assignment_expression" and text(syntax.field(init, "operator")) == "=":
        name = syntax.field(init, "left")
        for n in syntax.of_type(names.context.body, "declaration"):
            if name.type == "identifier" and text(name) in syntax.declared(n) and n.start_byte < init.start_byte:
                return text(name), text(syntax.field(n, "type")), syntax.field(init, "right")
    return None


def _entered(names: Names, condition: Node) -> tuple[str, str, Node] | None:
    """The variable of a condition `v < bound`, declared before."""
    name = condition.child_by_field_name("left")
    if name is None or name.type != "identifier":
        return None
    for n in syntax.of_type(names.context.body, "declaration"):
        if n.start_byte < condition.start_byte and text(name) in syntax.declared(n):
            return text(name), text(syntax.field(n, "type")), name
    return None


def _step(update: Node, variable: str) -> str | None:
    code = squeeze(text(update))
    if code in (f"{variable}++", f"++{variable}"):
        return "1"
    if update.type != "assignment_expression" or text(syntax.field(update, "left")) != variable:
        return None
    value, operator = syntax.field(update, "right"), text(syntax.field(update, "operator"))
    if operator == "+=":
        return None if syntax.uses(value, variable) else text(value)
    if operator == "=" and value.type == "binary_expression" and text(syntax.field(value, "operator")) == "+":
        for one, other in (("left", "right"), ("right", "left")):
            if text(syntax.field(value, one)) == variable and not syntax.uses(syntax.field(value, other), variable):
                return text(syntax.field(value, other))
    return None


def _words(code: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", code))


@dataclass(frozen=True)
class Lanes:
    """The threads that share a loop, each taking the elements `start`, `start + step`, …: those of a warp or a part of
    one, of a block or of the grid. `own` holds the texts that differ among them."""

    kind: Literal["warp", "block", "grid"]
    own: tuple[str, ...]
    assumed: str = ""  # what is taken for granted, in words
    part: int = WARP  # of a warp: how many neighbouring threads


def lanes_of(names: Names, loop: StridedLoop) -> Lanes | None:
    """Who shares the loop; None when start and step are not one of the usual pairs, so that some element may have no
    or two owners."""
    start = loop.lane or names.resolved(loop.start)
    step_node = _step_node(loop.update)
    step = names.resolved(step_node) if step_node is not None else "1"
    for a in "xy":
        thread, block, grid = f"threadIdx.{a}", f"blockDim.{a}", f"gridDim.{a}"
        if start == thread and step == block:
            return Lanes("block", (thread,))
        if start == thread and (fixed := _block_size(names.context, step)):
            return Lanes("block", (thread,), fixed)
        if syntax.is_global_id(start, a) and step in (f"{grid}*{block}", f"{block}*{grid}"):
            return Lanes("grid", (thread, f"blockIdx.{a}"))
    remainder = re.fullmatch(r"threadIdx\.x%(\w+)|threadIdx\.x&(31|0x1[fF])", start)
    whole_warps = all(s.block[0] % WARP == 0 for s in names.context.launched)
    if (
        remainder
        and whole_warps
        and _warp_sized(names.context, remainder[1] or "32")
        and _warp_sized(names.context, step)
    ):
        return Lanes("warp", ("threadIdx.x",))
    if remainder and whole_warps and remainder[1] == step and step in ("4", "8", "16"):
        return Lanes("warp", ("threadIdx.x",), part=int(step))
    if start in ("threadIdx.y*blockDim.x+threadIdx.x", "threadIdx.x+threadIdx.y*blockDim.x") and step in (
        "blockDim.x*blockDim.y",
        "blockDim.y*blockDim.x",
    ):
        return Lanes("block", ("threadIdx.x", "threadIdx.y"))
    group = re.fullmatch(r"(\w+)\.thread_rank\(\)", start)
    if group and step in (f"{group[1]}.size()", f"{group[1]}.num_threads()"):
        tile = re.search(rf"\bthread_block_tile\s*<\s*{WARP}\b[^;]*\b{group[1]}\b", text(names.context.body))
        return Lanes("warp" if tile else "block", ("threadIdx.x", f"{group[1]}.thread_rank()"))
    return None


def _step_node(update: Node) -> Node | None:
    if update.type != "assignment_expression":
        return None
    value = syntax.field(update, "right")
    if text(syntax.field(update, "operator")) == "+=":
        return value
    left = syntax.field(value, "left")
    return syntax.field(value, "right") if text(left) == text(syntax.field(update, "left")) else left


def _warp_sized(context: Context, code: str) -> bool:
    return code in ("32", "warpSize", "32u") or (
        code.isidentifier() and launch_text.constant(context.module, code, context.kernel.body.start) == WARP
    )


def _block_size(context: Context, code: str) -> str:
    """What must be taken for granted when the step is a number or constant that stands for the block's size."""
    sizes = {s.block[0] for s in context.launched if s.block[1:] == (1, 1)}
    if len(sizes) != 1:
        return ""
    value = int(code) if code.isdigit() else None
    if value is None and code.isidentifier():
        value = launch_text.constant(context.module, code, context.kernel.body.start)
        if value is None and any(re.search(rf"\b{code}\b", p) for p in context.kernel.template_params):
            return f"{code} is the number of threads of a block"
    return f"every block has {value} threads" if value in sizes else ""


class Uniform:
    """Which values are the same for all lanes that share a loop."""

    def __init__(self, names: Names, lanes: Lanes) -> None:
        self.names, self.lanes = names, lanes
        self._known: dict[str, bool] = {}

    def value(self, node: Node) -> bool:
        code = squeeze(text(node))
        if code in self.lanes.own or _SHARED_VALUES.search(code):
            return False
        if self.lanes.kind == "warp" and self._warp_index(node):
            return True
        if node.type == "identifier":
            return self.name(code)
        if node.type == "field_expression" and code.startswith(syntax.BUILTINS):
            return True
        if node.type == "call_expression" and code.endswith(".thread_rank()"):
            return False
        return all(self.value(child) for child in node.named_children)

    def name(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = True  # while it is being found out: a loop's own variable
            self._known[name] = all(
                self.value(n.write.value) for n in self.names.writes.get(name, ()) if n.write.value is not None
            )
        return self._known[name]

    def _warp_index(self, node: Node) -> bool:
        """A thread index divided by 32, or by the threads of a part of a warp: the number of the warp or part."""
        if node.type != "binary_expression" or text(syntax.field(node, "operator")) not in ("/", ">>"):
            return False
        divisor = squeeze(text(syntax.field(node, "right")))
        shift = text(syntax.field(node, "operator")) == ">>"
        if not (
            divisor == "5" if shift else divisor == str(self.lanes.part) or _warp_sized(self.names.context, divisor)
        ):
            return False
        index = self.names.resolved(syntax.field(node, "left"))
        return index == "threadIdx.x" or syntax.is_global_id(index, "x")

    def check_reached(self, loop: StridedLoop) -> None:
        """RuleRefused unless all lanes reach the loop together: what guards it is the same for all of them."""
        current = loop.node
        while current.parent is not None and current != self.names.context.body:
            above = current.parent
            for guard in self._guards(above, current):
                if not self.value(guard):
                    raise RuleRefused(f"not every thread that shares the loop reaches it: `{text(guard)}`")
            current = above

    def _guards(self, above: Node, inner: Node) -> list[Node]:
        found = []
        if above.type in ("if_statement", "while_statement", "do_statement", "for_statement"):
            for name in ("condition", "initializer", "update"):
                part = above.child_by_field_name(name)
                if part is not None and part != inner:
                    found.append(part)
        if above.type == "compound_statement":
            for statement in above.named_children:
                if statement.start_byte >= inner.start_byte:
                    break
                for leave in syntax.of_type(
                    statement, "return_statement", "break_statement", "continue_statement", "goto_statement"
                ):
                    outer = leave.parent
                    while outer is not None and outer != above:
                        condition = outer.child_by_field_name("condition")
                        if condition is not None:
                            found.append(condition)
                        outer = outer.parent
        return found
