"""Small questions to a syntax tree, for the analysis here and for the rewrite rules.

`masked(node)` is what the grammar saw (see parse.py); `text(document, node)` gives what is written in the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tree_sitter import Node

from cuda_agent.model import Span
from cuda_agent.source.documents import Document, decode

IDENTIFIERS = frozenset(("identifier", "field_identifier", "type_identifier", "namespace_identifier"))
LOOPS = frozenset(("for_statement", "while_statement", "do_statement", "for_range_loop"))
FUNCTIONS = frozenset(("function_definition", "lambda_expression"))


def span(node: Node) -> Span:
    return Span(node.start_byte, node.end_byte)


def text(document: Document, node: Node) -> str:
    """The node as written in the file."""
    return decode(document.data[node.start_byte : node.end_byte])


def masked(node: Node | None) -> str:
    """The node's own text, where macros and other branches may be blank; "" of no node."""
    return decode(node.text or b"") if node is not None else ""


def walk(
    node: Node, types: Collection[str] | str | None = None, *, into: Collection[str] | None = None
) -> Iterator[Node]:
    """Every node below and including `node` in text order, only those of `types` when given. Children of a node whose
    type is in `into` are left out (its own node is not)."""
    wanted = {types} if isinstance(types, str) else types
    stack = [node]
    while stack:
        current = stack.pop()
        if wanted is None or current.type in wanted:
            yield current
        if into is None or current.type not in into or current == node:
            stack.extend(reversed(current.children))


def ancestors(node: Node, types: Collection[str]) -> Iterator[Node]:
    """The ancestors (not the node itself) of one of `types`, nearest first."""
    current = node.parent
    while current is not None:
        if current.type in types:
            yield current
        current = current.parent


def enclosing(node: Node, types: Collection[str] | str) -> Node | None:
    """The nearest ancestor (not the node itself) of one of `types`."""
    return next(ancestors(node, {types} if isinstance(types, str) else types), None)


def field(node: Node, *path: str) -> Node | None:
    """Follow field names: `field(loop, "condition", "left")`."""
    current: Node | None = node
    for name in path:
        if current is None:
            return None
        current = current.child_by_field_name(name)
    return current


def strip_parens(node: Node) -> Node:
    """The expression inside any parentheses."""
    while node.type in ("parenthesized_expression", "condition_clause") and node.named_child_count == 1:
        node = node.named_child(0)
    return node


def name_of(node: Node) -> str | None:
    """The identifier a plain reference or declarator is about, else None: `x`, `*x`, `x[3]`, `x = 1`, `&x`, `ns::x`."""
    current: Node | None = node
    while current is not None:
        if current.type in IDENTIFIERS:
            return decode(current.text or b"")
        current = (
            current.child_by_field_name("declarator")
            or current.child_by_field_name("name")
            or (
                current.named_children[-1]
                if current.type in ("reference_declarator", "parenthesized_declarator", "parenthesized_expression")
                and current.named_children
                else None
            )
        )
    return None


def identifiers(node: Node) -> set[str]:
    """Names of variables and functions used in `node`; not field or type names."""
    return {decode(found.text or b"") for found in walk(node, "identifier")}


def uses(node: Node, name: str) -> list[Node]:
    """Every `identifier` node with that name, in text order."""
    wanted = name.encode()
    return [found for found in walk(node, "identifier") if found.text == wanted]


def base(node: Node) -> Node:
    """What a chain of subscripts, fields, dereferences, parentheses and casts starts from: `x` for `(*x[i]).y`."""
    while True:
        inner = None
        if node.type in ("subscript_expression", "field_expression", "pointer_expression"):
            inner = node.child_by_field_name("argument")
        elif node.type == "parenthesized_expression" and node.named_child_count == 1:
            inner = node.named_child(0)
        elif node.type == "cast_expression":
            inner = node.child_by_field_name("value")
        if inner is None:
            return node
        node = inner


def assignments(node: Node, name: str | None = None) -> list[Node]:
    """Nodes that write: `assignment_expression`, `update_expression` (++/--) and `init_declarator`; with `name`, only
    those whose target starts from that variable (`x = …`, `x[i] += …`, `*x = …`, `x.y++`, `int x = …`). A call that
    takes `&x` is not among them: see `calls`."""
    result = []
    for found in walk(node, ("assignment_expression", "update_expression", "init_declarator")):
        if name is None or target_name(found) == name:
            result.append(found)
    return result


def target(assignment: Node) -> Node | None:
    """What an assignment, update or initialised declarator writes."""
    for name in ("left", "argument", "declarator"):
        child = assignment.child_by_field_name(name)
        if child is not None:
            return child
    return None


def target_name(assignment: Node) -> str | None:
    """The variable at the root of what is written; None for `f() = …` and the like."""
    node = target(assignment)
    if node is None:
        return None
    root = base(node)
    if root.type == "binary_expression":  # *(x + i) = …
        left = root.child_by_field_name("left")
        root = base(left) if left is not None else root
    return name_of(root)


def calls(node: Node, name: str | None = None) -> list[Node]:
    """`call_expression` nodes, launches included; with `name`, only calls of that function (last part of a qualified
    name)."""
    result = []
    for found in walk(node, "call_expression"):
        if name is None or callee(found) == name:
            result.append(found)
    return result


def callee(call: Node) -> str | None:
    """Last part of the called name, without namespaces and template arguments: `shfl` for `cg::shfl<int>(…)`."""
    function = call.child_by_field_name("function")
    while function is not None and function.type not in IDENTIFIERS:
        inner = function.child_by_field_name("field") or function.child_by_field_name("name")
        if inner is None and function.type == "dependent_name":  # obj.template go<3>
            inner = next(iter(function.named_children), None)
        function = inner
    return decode(function.text or b"") if function is not None else None


def arguments(call: Node) -> list[Node]:
    """The argument expressions of a call."""
    found = call.child_by_field_name("arguments")
    return [child for child in found.named_children if child.type != "comment"] if found is not None else []


def subscripts(node: Node, name: str | None = None) -> list[tuple[Node, Node, Node]]:
    """(whole, array, index) of every subscript, outer before inner; `a[i][j]` gives (a[i][j], a[i], j) and (a[i], a,
    i). With `name`, only those whose array starts from that variable."""
    result = []
    for found in walk(node, "subscript_expression"):
        array, index = subscript_parts(found)
        if array is not None and index is not None and (name is None or name_of(base(array)) == name):
            result.append((found, array, index))
    return result


def subscript_parts(node: Node) -> tuple[Node | None, Node | None]:
    """(array, index) of one `subscript_expression`; index is None when it is missing or there are several."""
    indices = node.child_by_field_name("indices")
    if indices is None:
        index = node.child_by_field_name("index")
    else:
        named = [child for child in indices.named_children if child.type != "comment"]
        index = named[0] if len(named) == 1 else None
    return node.child_by_field_name("argument"), index


def is_written(node: Node) -> bool:
    """Whether the expression is what its parent writes (`x[i]` in `x[i] = 1`, `x[i] += 1`, `x[i]++`)."""
    parent = node.parent
    while parent is not None and parent.type == "parenthesized_expression":
        node, parent = parent, parent.parent
    if parent is None or parent.type not in ("assignment_expression", "update_expression"):
        return False
    return target(parent) == node


def statements(node: Node) -> list[Node]:
    """The statements of a compound statement (or of a single statement: itself), comments left out."""
    if node.type != "compound_statement":
        return [node]
    return [child for child in node.named_children if child.type != "comment"]


def operator(node: Node) -> str:
    """The operator of a binary, assignment, unary or update expression; "" when there is none."""
    found = node.child_by_field_name("operator")
    return decode(found.text or b"") if found is not None else ""
