"""What a statement is and touches: guards that end a thread, stores, pure statements, declarations."""

from __future__ import annotations

import re

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption
from cuda_agent.rewrite import style, syntax
from cuda_agent.rewrite.analysis.calls import STORES, effect, unknown
from cuda_agent.rewrite.analysis.carried import local_array
from cuda_agent.rewrite.analysis.names import of as names_of
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import arguments, base, callee, strip_parens


def statements(block: Node) -> list[Node]:
    """As `syntax.statements`, without pragmas."""
    return [s for s in syntax.statements(block) if not s.type.startswith("preproc")]


# ---------------------------------------------------------------- conditions


def condition(statement: Node) -> str | None:
    """The condition of an `if` without `else` around a block."""
    if statement.type != "if_statement" or statement.child_by_field_name("alternative") is not None:
        return None
    if syntax.field(statement, "consequence").type != "compound_statement":
        return None
    return text(strip_parens(syntax.field(statement, "condition")))


def leaving(statement: Node) -> tuple[str, str] | None:
    """(in range, out of range) of `if (out of range) return;`."""
    if statement.type != "if_statement" or statement.child_by_field_name("alternative") is not None:
        return None
    if squeeze(text(syntax.field(statement, "consequence"))) not in ("return;", "{return;}"):
        return None
    outside = text(strip_parens(syntax.field(statement, "condition")))
    return style.opposite(outside), outside


def breaks(body: Node) -> bool:
    """Whether a `break` may end the loop itself (not a loop or switch inside it)."""
    for node in syntax.of_type(body, "break_statement"):
        above = node.parent
        while above is not None and above.id != body.id and above.type not in (*syntax.LOOPS, "switch_statement"):
            above = above.parent
        if above is None or above.id == body.id:
            return True
    return False


# ---------------------------------------------------------------- what a statement touches


def stores(context: Context, node: Node) -> bool:
    """Whether memory beyond the thread's own may change: a store, an atomic, a call that stores."""
    return bool(stored(context, node)) or any(
        effect(context, call) is not None for call in syntax.of_type(node, "call_expression")
    )


def side_effects(context: Context, node: Node) -> list[Node]:
    """Stores, and calls that store, beyond the thread's own memory. RuleRefused where a call may do so through an
    argument that is not followed; a call that is given arrays and variables of the thread alone is its own affair."""
    found = [target for _, target in stored(context, node)]
    foreign = {v.name for v in names_of(context).variables if v.pointer or v.shared}
    for call in syntax.of_type(node, "call_expression"):
        said, name = effect(context, call), callee(call) or ""
        if said is None:
            continue
        if name.startswith("atomic") or name in STORES or syntax.COOPERATION.search(name):
            found.append(call)
        elif syntax.identifiers(call) & foreign:
            raise RuleRefused(said)
    return found


def root_of(place: Node) -> Node | None:
    """The variable that a place in memory is reached from; the name of a cast is none."""
    return next((n for n in syntax.of_type(place, "identifier") if not text(n).endswith("_cast")), None)


def stored(context: Context, node: Node) -> list[tuple[str, Node]]:
    """(root name, target) of every store to memory beyond the thread's own."""
    found = []
    for write in syntax.writes(node):
        if write.target.type not in ("subscript_expression", "pointer_expression", "field_expression"):
            continue
        if write.op == "init":
            continue
        first = root_of(base(write.target))
        name = text(first) if first is not None else ""
        plain = write.target.type == "field_expression" and not re.search(r"->|\[|\*", text(write.target))
        if not plain and not local_array(context, name):
            found.append((name, write.target))
    for call in syntax.of_type(node, "call_expression"):
        if callee(call) in STORES and arguments(call):
            first = root_of(arguments(call)[0])
            found.append((text(first) if first is not None else "", arguments(call)[0]))
    return found


def pure(context: Context, statement: Node) -> bool:
    """Whether a statement reads and writes no memory, so that a thread without an output may run it."""
    for node in syntax.walk(statement):
        if node.type == "subscript_expression" or (node.type == "field_expression" and "->" in text(node)):
            array = base(node)
            if not (array.type == "identifier" and local_array(context, text(array))) and not _addressed(node):
                return False
        if node.type == "pointer_expression" and text(node).startswith("*"):
            return False
        if node.type == "call_expression" and (effect(context, node) or _reads(node)):
            return False
    return next(unknown(context, statement), None) is None


def _addressed(node: Node) -> bool:
    """`&x[i]` computes an address only."""
    above = node.parent
    return above is not None and above.type == "pointer_expression" and text(above).startswith("&")


def _reads(call: Node) -> bool:
    return re.match(r"__ld|atomic|memcpy", callee(call) or "") is not None


def trusted(context: Context, node: Node) -> tuple[Assumption, ...]:
    """One assumption for each function whose effect is not known."""
    names = dict.fromkeys(name for name, _ in unknown(context, node))
    return tuple(Assumption(f"{name} only computes: it stores nothing", "assumed") for name in names)


def names(declaration: Node) -> set[str]:
    """The variables that a declaration declares."""
    return syntax.declared(declaration) if declaration.type == "declaration" else set()


def initialised(declaration: Node) -> tuple[str, list[tuple[str, Node]]]:
    """Type, and names with their values, of a declaration of plain variables that all have one; no names otherwise."""
    kind = declaration.child_by_field_name("type")
    found = []
    for one in declaration.children_by_field_name("declarator") if declaration.type == "declaration" else ():
        name, value = one.child_by_field_name("declarator"), one.child_by_field_name("value")
        if name is None or value is None or name.type != "identifier" or value.type == "initializer_list":
            return "", []
        found.append((text(name), value))
    return (text(kind), found) if kind is not None else ("", [])
