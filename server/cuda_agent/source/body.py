"""What is inside a kernel: shared arrays, loops, guards."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from tree_sitter import Node, Query, QueryCursor

from cuda_agent.model import Guard, Loop, SharedArray, Span
from cuda_agent.source.documents import Document
from cuda_agent.source.parse import LANGUAGE
from cuda_agent.source.tree import field, operator, span, statements, strip_parens, text

_RELATIONS = frozenset(("<", "<=", ">", ">="))


@lru_cache(1)
def _query() -> Query:
    """Not at import: it takes 10 ms to make, which an editor would wait for at the start."""
    return Query(
        LANGUAGE,
        """
        (for_statement) @loop (while_statement) @loop (do_statement) @loop (for_range_loop) @loop
        (declaration (type_qualifier "__shared__")) @shared
        """,
    )


def contents(document: Document, body: Node) -> tuple[tuple[SharedArray, ...], tuple[Loop, ...], tuple[Guard, ...]]:
    """Shared arrays, loops (outer before inner) and guards of a kernel's compound statement, in text order."""
    captures = QueryCursor(_query()).captures(body)
    shared = [array for node in _in_order(captures.get("shared", [])) for array in _shared(document, node)]
    loops: list[Loop] = []
    open_: list[Span] = []
    for node in _in_order(captures.get("loop", [])):
        while open_ and open_[-1].end <= node.start_byte:
            open_.pop()
        loops.append(_loop(document, node, len(open_)))
        open_.append(span(node))
    return tuple(shared), tuple(loops), tuple(_guards(document, body))


def _in_order(nodes: list[Node]) -> list[Node]:
    unique = {node.id: node for node in nodes}
    return sorted(unique.values(), key=lambda node: (node.start_byte, -node.end_byte))


# ---------------------------------------------------------------- shared memory


def _shared(document: Document, node: Node) -> Iterator[SharedArray]:
    """One entry a declarator: `__shared__ float a[32][33], b;`. Their span is the whole declaration's."""
    element_node = node.child_by_field_name("type")
    element = text(document, element_node) if element_node is not None else ""
    extern = any(child.type == "storage_class_specifier" and child.text == b"extern" for child in node.children)
    for declarator in node.children_by_field_name("declarator"):
        extents: list[str] = []
        stars = ""
        empty = False
        current: Node | None = declarator
        while current is not None and current.type != "identifier":
            if current.type == "array_declarator":
                size = current.child_by_field_name("size")
                if size is None:
                    empty = True
                else:
                    extents.insert(0, text(document, size))
            elif current.type == "pointer_declarator":
                stars += "*"
            inner = current.child_by_field_name("declarator")
            if inner is None and current.type in ("parenthesized_declarator", "reference_declarator"):
                inner = current.named_children[-1] if current.named_children else None
            current = inner
        if current is not None:
            name = text(document, current)
            dynamic = extern and empty
            yield SharedArray(name, element + stars, () if dynamic else tuple(extents), dynamic, span(node))


# ---------------------------------------------------------------- loops


def _loop(document: Document, node: Node, depth: int) -> Loop:
    body = node.child_by_field_name("body") or node
    kind = "while" if node.type == "while_statement" else "do" if node.type == "do_statement" else "for"
    if node.type == "for_statement":
        counted = _counted(document, node)
        if counted is not None:
            return Loop("for", span(node), span(body), depth, *counted)
    return Loop(kind, span(node), span(body), depth)  # type: ignore[arg-type]


def _counted(document: Document, node: Node) -> tuple[str, str, str, str] | None:
    """(variable, start, bound, step) of `for (i = start; i < bound; i += step)`. The bound is exclusive: `i <= n` gives
    `n + 1`, `i >= 0` gives `0 - 1`. None for any other shape."""
    start = _initial(document, node.child_by_field_name("initializer"))
    condition, update = node.child_by_field_name("condition"), node.child_by_field_name("update")
    if start is None or condition is None or update is None:
        return None
    bound = _bound(document, strip_parens(condition), start[0])
    step = _step(document, update, start[0])
    if bound is None or step is None:
        return None
    return start[0], start[1], bound, step


def _initial(document: Document, node: Node | None) -> tuple[str, str] | None:
    if node is None:
        return None
    if node.type == "declaration":
        declarators = node.children_by_field_name("declarator")
        if len(declarators) != 1 or declarators[0].type != "init_declarator":
            return None
        name, value = field(declarators[0], "declarator"), field(declarators[0], "value")
    elif node.type == "assignment_expression" and operator(node) == "=":
        name, value = field(node, "left"), field(node, "right")
    else:
        return None
    if name is None or value is None or name.type != "identifier":
        return None
    if value.type in ("argument_list", "initializer_list"):  # int i(0), int i{0}
        if value.named_child_count != 1:
            return None
        value = value.named_child(0)
    return text(document, name), text(document, value)


def _bound(document: Document, node: Node, variable: str) -> str | None:
    if node.type != "binary_expression":
        return None
    left, right, relation = field(node, "left"), field(node, "right"), operator(node)
    if left is None or right is None:
        return None
    if text(document, right) == variable and text(document, left) != variable:
        left, right = right, left
        relation = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(relation, relation)
    if text(document, left) != variable or relation not in ("<", "<=", ">", ">=", "!="):
        return None
    bound = text(document, right)
    if relation in ("<=", ">="):
        simple = right.type in ("identifier", "number_literal", "field_expression", "call_expression")
        return f"{bound if simple else f'({bound})'} {'+' if relation == '<=' else '-'} 1"
    return bound


def _step(document: Document, node: Node, variable: str) -> str | None:
    if node.type == "update_expression":
        argument = field(node, "argument")
        if argument is None or text(document, argument) != variable:
            return None
        return {"++": "1", "--": "-1"}.get(operator(node))
    if node.type != "assignment_expression":
        return None
    left, right, sign = field(node, "left"), field(node, "right"), operator(node)
    if left is None or right is None or text(document, left) != variable:
        return None
    if sign == "=" and right.type == "binary_expression" and operator(right) in ("+", "-"):
        first, second, sign = field(right, "left"), field(right, "right"), operator(right) + "="
        if first is None or second is None:
            return None
        if text(document, second) == variable and sign == "+=":
            first, second = second, first
        if text(document, first) != variable:
            return None
        right = second
    if sign == "+=":
        return text(document, right)
    if sign == "-=":
        simple = right.type in ("identifier", "number_literal", "field_expression", "call_expression")
        return f"-{text(document, right)}" if simple else f"-({text(document, right)})"
    return None


# ---------------------------------------------------------------- guards


def _guards(document: Document, body: Node) -> Iterator[Guard]:
    """Guards on the kernel's own level, and inside other guards: not those in loops."""
    pending = list(reversed(statements(body)))
    while pending:
        node = pending.pop()
        if node.type.startswith("preproc_") or node.type == "compound_statement":
            pending.extend(reversed(node.named_children))
            continue
        if node.type != "if_statement" or node.child_by_field_name("alternative") is not None:
            continue
        condition, consequence = node.child_by_field_name("condition"), node.child_by_field_name("consequence")
        if condition is None or consequence is None:
            continue
        value = condition.child_by_field_name("value") or strip_parens(condition)
        inside = statements(consequence)
        if len(inside) == 1 and inside[0].type == "return_statement":
            yield Guard("return", text(document, value), span(node), span(value))
        elif _compares(value):
            yield Guard("body", text(document, value), span(node), span(value))
            pending.extend(reversed(inside))


def _compares(node: Node) -> bool:
    """Whether the condition is a range check: relations, joined by && or ||."""
    pending = [node]
    while pending:
        part = strip_parens(pending.pop())
        if part.type != "binary_expression":
            continue
        sign = operator(part)
        if sign in _RELATIONS:
            return True
        if sign in ("&&", "||"):
            pending.extend(child for child in (field(part, "left"), field(part, "right")) if child is not None)
    return False
