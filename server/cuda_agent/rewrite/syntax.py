"""What the rules read off a kernel's syntax tree: thread ids, assignments, loops, subscripts. Nothing here writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.model import Span
from cuda_agent.source.tree import strip_parens

LOOPS = ("for_statement", "while_statement", "do_statement")
BUILTINS = ("threadIdx", "blockIdx", "blockDim", "gridDim")
# Names whose presence makes threads of a block or warp depend on each other.
COOPERATION = re.compile(
    r"__syncthreads|__syncwarp|__shfl|__ballot|__any|__all|__match|__reduce_|__shared__|__activemask|cooperative_groups|\bcg::|\bcub::|asm\b"
)


def text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "surrogateescape")


def span(node: Node) -> Span:
    return Span(node.start_byte, node.end_byte)


def walk(node: Node) -> Iterator[Node]:
    """The node and everything under it, in the order of the text."""
    stack = [node]
    while stack:
        n = stack.pop()
        yield n
        stack.extend(reversed(n.children))


def of_type(node: Node, *types: str) -> Iterator[Node]:
    return (n for n in walk(node) if n.type in types)


def field(node: Node, name: str) -> Node:
    """A child that the grammar promises. ValueError when the tree is damaged there."""
    child = node.child_by_field_name(name)
    if child is None:
        raise ValueError(f"{node.type} without {name}")
    return child


def uses(node: Node, name: str) -> bool:
    return any(text(n) == name for n in of_type(node, "identifier"))


def identifiers(node: Node) -> set[str]:
    return {text(n) for n in of_type(node, "identifier")}


def squeeze(code: str) -> str:
    """The text without white space, for comparing expressions."""
    return re.sub(r"\s+", "", code)


def statements(block: Node) -> list[Node]:
    """The statements of a compound statement, or the one statement that stands for it."""
    if block.type != "compound_statement":
        return [block]
    return [n for n in block.named_children if n.type != "comment"]


def enclosing_statement(node: Node) -> Node:
    """The outermost statement around `node` whose parent is a block, loop or if."""
    current = node
    while current.parent is not None and not (
        current.parent.type in ("compound_statement", "function_definition", "else_clause")
        or (current.parent.type in (*LOOPS, "if_statement") and current.type.endswith(("statement", "declaration")))
    ):
        current = current.parent
    return current


def enclosing_function(node: Node) -> Node:
    """The function definition around the node, with its template header. ValueError when there is none."""
    current: Node | None = node
    while current is not None and current.type != "function_definition":
        current = current.parent
    if current is None:
        raise ValueError("a statement outside a function")
    outer = current.parent
    return outer if outer is not None and outer.type == "template_declaration" else current


@dataclass(frozen=True)
class Write:
    """A variable or memory cell that is assigned: `target op value`; `op` is "=", "+=", "++" …"""

    target: Node
    op: str
    value: Node | None
    node: Node

    @property
    def name(self) -> str | None:
        """The variable's name when the target is a plain variable."""
        return text(self.target) if self.target.type == "identifier" else None


def writes(node: Node) -> Iterator[Write]:
    """Assignments, increments and initialised declarations under `node`, in order."""
    for n in of_type(node, "assignment_expression", "update_expression", "init_declarator"):
        if n.type == "assignment_expression":
            operator = n.child_by_field_name("operator")
            yield Write(field(n, "left"), text(operator) if operator else "=", field(n, "right"), n)
        elif n.type == "update_expression":
            operator = n.child_by_field_name("operator")
            yield Write(field(n, "argument"), text(operator) if operator else "++", None, n)
        else:
            declarator = n.child_by_field_name("declarator")
            value = n.child_by_field_name("value")
            if declarator is not None:
                yield Write(declarator, "init", value, n)


def declared(node: Node) -> set[str]:
    """Names of the variables declared under `node`."""
    names = set()
    for declaration in of_type(node, "declaration"):
        for child in declaration.children_by_field_name("declarator"):
            found = next(of_type(child, "identifier"), None)
            if found is not None:
                names.add(text(found))
    return names


def memory_writes(node: Node) -> list[Write]:
    """Stores through a subscript or a pointer."""
    return [w for w in writes(node) if w.target.type in ("subscript_expression", "pointer_expression")]


def calls(node: Node) -> list[tuple[str, Node]]:
    """Called names (with template arguments and scope as spelled) and their nodes."""
    return [(text(field(n, "function")), n) for n in of_type(node, "call_expression")]


@dataclass(frozen=True)
class ThreadId:
    """`name = blockIdx.x * blockDim.x + threadIdx.x` in one of its usual spellings."""

    name: str
    axis: str
    value: Node  # the expression
    declaration: Node  # the whole declaration statement


_GLOBAL_ID = [
    "blockIdx.{a}*blockDim.{a}+threadIdx.{a}",
    "blockDim.{a}*blockIdx.{a}+threadIdx.{a}",
    "threadIdx.{a}+blockIdx.{a}*blockDim.{a}",
    "threadIdx.{a}+blockDim.{a}*blockIdx.{a}",
]


def is_global_id(expression: str, axis: str) -> bool:
    code = re.sub(r"^\((int|unsigned|unsignedint|size_t|long|int64_t|uint32_t)\)", "", squeeze(expression))
    code = re.sub(r"\((?:int|size_t|unsigned|long|int64_t)\)(?=blockIdx|blockDim|threadIdx)", "", code)
    while code.startswith("(") and code.endswith(")") and balanced(code[1:-1]):
        code = code[1:-1]
    code = re.sub(r"\((blockIdx\.\w\*blockDim\.\w|blockDim\.\w\*blockIdx\.\w)\)", r"\1", code)
    return code in {form.format(a=axis) for form in _GLOBAL_ID}


def balanced(code: str) -> bool:
    depth = 0
    for c in code:
        depth += (c == "(") - (c == ")")
        if depth < 0:
            return False
    return depth == 0


def thread_ids(body: Node) -> list[ThreadId]:
    """Variables that hold a global thread index, one per axis found."""
    found = []
    for write in writes(body):
        if write.op != "init" or write.value is None or write.target.type != "identifier":
            continue
        for axis in "xyz":
            if is_global_id(text(write.value), axis):
                declaration = write.node.parent
                if declaration is not None:
                    found.append(ThreadId(text(write.target), axis, write.value, declaration))
    return found


@dataclass(frozen=True)
class CountedLoop:
    """`for (T v = start; v < bound; v++)`: unit step, upward, `v` not assigned in the body."""

    node: Node
    variable: str
    start: Node
    bound: Node
    update: Node
    body: Node
    type: str


def counted_loop(node: Node) -> CountedLoop | None:
    if node.type != "for_statement":
        return None
    init, condition, update = (node.child_by_field_name(f) for f in ("initializer", "condition", "update"))
    body = node.child_by_field_name("body")
    if init is None or condition is None or update is None or body is None or init.type != "declaration":
        return None
    declarators = init.children_by_field_name("declarator")
    if len(declarators) != 1 or declarators[0].type != "init_declarator":
        return None
    name = declarators[0].child_by_field_name("declarator")
    start = declarators[0].child_by_field_name("value")
    kind = init.child_by_field_name("type")
    if name is None or start is None or kind is None or name.type != "identifier":
        return None
    variable = text(name)
    if condition.type != "binary_expression" or text(field(condition, "left")) != variable:
        return None
    operator = condition.child_by_field_name("operator")
    if operator is None or text(operator) != "<":
        return None
    if squeeze(text(update)) not in (f"{variable}++", f"++{variable}", f"{variable}+=1"):
        return None
    if any(w.name == variable for w in writes(body)):
        return None
    return CountedLoop(node, variable, start, field(condition, "right"), update, body, text(kind))


def additive_terms(node: Node) -> list[tuple[int, Node]]:
    """`a + b - c` as signed terms; parentheses around sums are opened."""
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        return additive_terms(node.named_children[0])
    if node.type == "binary_expression":
        operator = node.child_by_field_name("operator")
        op = text(operator) if operator else ""
        if op in ("+", "-"):
            left, right = additive_terms(field(node, "left")), additive_terms(field(node, "right"))
            sign = 1 if op == "+" else -1
            return left + [(sign * s, n) for s, n in right]
    return [(1, node)]


def operands(node: Node, joint: str) -> list[Node]:
    """`a && b && c` as its parts, for the operator `joint`; parentheses are opened."""
    node = strip_parens(node)
    if node.type == "binary_expression" and text(field(node, "operator")) == joint:
        return operands(field(node, "left"), joint) + operands(field(node, "right"), joint)
    return [node]


def statement_end(node: Node) -> int:
    """Where the statement that the node stands in ends."""
    while node.parent is not None and not node.type.endswith("statement"):
        node = node.parent
    return node.end_byte


def unit_stride(index: Node, variable: str) -> bool:
    """The index is `variable` plus terms that do not hold it."""
    terms = additive_terms(index)
    alone = [s for s, n in terms if text(n) == variable]
    return alone == [1] and not any(uses(n, variable) for _, n in terms if text(n) != variable)


def subscripts(node: Node) -> Iterator[tuple[str, Node, Node]]:
    """(array text, index node, whole node) of one-dimensional subscripts."""
    for n in of_type(node, "subscript_expression"):
        indices = n.child_by_field_name("indices")
        argument = n.child_by_field_name("argument")
        if indices is None or argument is None or indices.named_child_count != 1:
            continue
        yield text(argument), indices.named_children[0], n
