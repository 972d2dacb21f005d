"""What a loop does besides reading: what it writes, what macros may hide, whether it is long enough to matter."""

from __future__ import annotations

import re

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.judge import launch_text
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.analysis.neighbours import Body
from cuda_agent.rewrite.analysis.strided import StridedLoop
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import text


def check_body(context: Context, loop: StridedLoop) -> None:
    """Raises RuleRefused where a loop's iterations cannot be taken several at a time, whatever they compute."""
    if loop.type == "auto":
        raise RuleRefused("the loop's variable is declared auto")
    if syntax.COOPERATION.search(text(loop.body)):
        raise RuleRefused("threads work together inside the loop: they must all stay in step")
    if hidden := hiding_macro(context, loop):
        raise RuleRefused(f"the macro {hidden} may hide what the loop does")
    if next(syntax.of_type(loop.body, "break_statement", "return_statement", "goto_statement"), None):
        raise RuleRefused("the loop may end early")


def hiding_macro(context: Context, loop: StridedLoop) -> str | None:
    """A macro in the body that writes, reads an array or uses the loop's variable: the tree does not show it."""
    words = set(re.findall(r"[A-Za-z_]\w*", context.slice(syntax.span(loop.body))))
    for name, parameters, code in macros(context):
        inner = code if loop.variable not in re.findall(r"\w+", parameters or "") else ""
        if name in words and (
            re.search(r"\[|(?<![=!<>])=(?!=)|\+\+|--", code) or re.search(rf"\b{loop.variable}\b", inner)
        ):
            return name
    return None


def macros(context: Context) -> list[tuple[str, str, str]]:
    """(name, parameters, body) of the file's macros."""
    text = context.text.replace("\\\r\n", " ").replace("\\\n", " ")
    return re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\([^)\n]*\))?[ \t]*(.*)$", text, re.M)


def touched(names: Names, body: Body) -> tuple[dict[str, bool], set[str]]:
    """What the body touches (→ whether it writes there), and what it touches in ways that are not single elements."""
    roots: dict[str, bool] = {}
    loose: set[str] = set()
    known = {a.node.id for a in body.accesses}
    for access in body.accesses:
        root = names.root(access.array)
        if root is None and access.kind != "read" and not _declared_in_kernel(names, access.array):
            raise RuleRefused(f"it cannot be told where {text(access.node)} writes")
        if root is not None:
            roots[root] = roots.get(root, False) or access.kind != "read"
    for write in syntax.writes(body.body):
        if write.op == "init" or write.target.type == "identifier" or write.target.id in known:
            continue
        root = names.root(write.target)
        if root is None and not _declared_in_kernel(names, write.target):
            raise RuleRefused(f"it cannot be told where {text(write.target)} writes")
        if root is not None:
            roots[root] = True
            loose.add(root)
    for name, call in syntax.calls(body.body):
        if call.id in known:
            continue
        for argument in syntax.field(call, "arguments").named_children:
            pointer = argument.type in ("identifier", "pointer_expression", "binary_expression")
            root = names.root(_pointed_at(argument)) if pointer else None
            if root is not None and not _plain_value(names, argument):
                roots[root] = roots.get(root, False) or name.startswith("atomic") or not _const(names, root)
                loose.add(root)
    return roots, loose


def _pointed_at(node: Node) -> Node:
    inner = node.child_by_field_name("argument")
    return inner if node.type == "pointer_expression" and inner is not None else node


def _plain_value(names: Names, node: Node) -> bool:
    """An argument that hands on no pointer: `*p`, a scalar."""
    return node.type == "pointer_expression" and text(node).startswith("*")


def _const(names: Names, root: str) -> bool:
    return root in names.params and names.params[root].const


def _declared_in_kernel(names: Names, target: Node) -> bool:
    """A thread's own array or structure."""
    while (inner := target.child_by_field_name("argument")) is not None:
        target = inner
    if target.type != "identifier":
        return False
    return any(
        text(target) in syntax.declared(n) and not any(True for _ in syntax.of_type(n, "pointer_declarator"))
        for n in syntax.of_type(names.context.body, "declaration")
    )


def check_long(context: Context, loop: StridedLoop, width: int) -> None:
    """RuleRefused when the loop is known to be too short for vectors."""
    code = text(loop.bound)
    values: tuple[int, ...] = () if code in context.varied else context.captured(code)
    if code.isdigit():
        values = (int(code),)
    elif not values and code.isidentifier():
        fixed = launch_text.constant(context.module, code, loop.node.start_byte)
        values = () if fixed is None else (fixed,)
    if values and max(values) < 2 * width:
        raise RuleRefused(f"the loop has at most {max(values)} iterations")
