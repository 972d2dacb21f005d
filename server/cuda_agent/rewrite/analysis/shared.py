"""Who touches an array that the threads of a block share, before and after a place in the kernel. Every answer errs on
the safe side: what is not understood counts as an access by any thread."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import blocks
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import strip_parens

_INTEGER = re.compile(
    r"(?:(?:unsigned|signed|long|short|int|char|bool)\s*)+|u?int(?:8|16|32|64)?(?:_t)?|u(?:char|short|long)|size_t"
)
_FLOAT = re.compile(r"float|double|half|__half|__nv_bfloat16|nv_bfloat16")


# ---------------------------------------------------------------- types


def element_type(context: Context, array: str, at: Node) -> str:
    """The type of the elements, as a register is declared with it. RuleRefused when a warp cannot shuffle it, or when
    the array is not the block's own."""
    found = next((s for s in context.kernel.shared if s.name == array), None)
    kind = found.element if found is not None else _pointee(context, array)
    kind = " ".join(re.sub(r"\bvolatile\b", " ", kind).split())
    check_shuffled(context, array, kind)
    return kind


def check_shuffled(context: Context, array: str, kind: str) -> None:
    """RuleRefused when a warp cannot shuffle this type."""
    for name in resolved(context, kind):
        if not (_INTEGER.fullmatch(name) or _FLOAT.fullmatch(name)):
            raise RuleRefused(f"{array} holds {name}, which a warp cannot shuffle")


def resolved(context: Context, kind: str) -> set[str]:
    """What a type's name stands for: a template parameter's arguments in the captured launches, or the one type that a
    `typedef`, `using` or `#define` of the file gives; itself when it is none of these."""
    parameters = {re.findall(r"\w+", p.split("=")[0])[-1] for p in context.kernel.template_params}
    if kind in parameters:
        found = {templates.get(kind, kind) for _, templates in blocks.shapes(context)}
        return found or {kind}
    name = re.escape(kind)
    aliases = re.findall(rf"\btypedef\s+([\w ]+?)\s+{name}\s*;|\busing\s+{name}\s*=\s*([\w ]+?)\s*;", context.text)
    aliases += [
        (d, "") for d in re.findall(rf"^[ \t]*#[ \t]*define[ \t]+{name}[ \t]+([\w ]+?)[ \t\r]*$", context.text, re.M)
    ]
    return {a or b for a, b in aliases} if aliases else {kind}


def is_integer(context: Context, kind: str) -> bool:
    return all(_INTEGER.fullmatch(name) for name in resolved(context, kind))


def _pointee(context: Context, array: str) -> str:
    """The type behind a local pointer into the block's memory."""
    if array in {p.name for p in context.kernel.params}:
        raise RuleRefused(f"{array} is memory that others can see")
    for declaration in syntax.of_type(context.body, "declaration"):
        for declarator in declaration.children_by_field_name("declarator"):
            inner = declarator.child_by_field_name("declarator")
            value = declarator.child_by_field_name("value")
            if inner is None or inner.type != "pointer_declarator" or squeeze(text(inner)) != f"*{array}":
                continue
            kind = declaration.child_by_field_name("type")
            if value is None or kind is None or not _is_shared(context, value):
                raise RuleRefused(f"{array} is not known to point to memory of the block")
            if len([w for w in syntax.writes(context.body) if w.target == inner or w.name == array]) != 1:
                raise RuleRefused(f"{array} is moved")
            return text(kind)
    raise RuleRefused(f"the type of {array} is not known")


def _is_shared(context: Context, value: Node) -> bool:
    """The pointer comes from a shared array of the kernel, or from an object that stands for shared memory."""
    used = syntax.identifiers(value)
    arrays = {s.name for s in context.kernel.shared}
    if used & {p.name for p in context.kernel.params if p.pointer}:
        return False
    return bool(used & arrays) or re.fullmatch(r"\w*[Ss]hared\w*(<[\w ,]+>)?\(\)", squeeze(text(value))) is not None


def aliases(context: Context, array: str) -> set[str]:
    """Names of the same elements: the array, and pointers that are initialised with it and nothing else."""
    names = {array}
    for w in syntax.writes(context.body):
        if w.op != "init" or w.value is None or w.target.type not in ("pointer_declarator", "identifier"):
            continue
        name = next((text(n) for n in syntax.of_type(w.target, "identifier")), None)
        value = re.sub(r"^\((?:\w+\*)\)", "", squeeze(text(strip_parens(w.value))))
        value = re.sub(r"^reinterpret_cast<\w+\*>\((\w+)\)$", r"\1", value)
        value = re.sub(r"^&(\w+)\[0\]$", r"\1", value)
        if name is not None and (value in names or name in names) and re.fullmatch(r"\w+", value):
            names |= {name, value} if value in names or name == array else set()
    return names


# ---------------------------------------------------------------- before


def earlier_siblings(node: Node) -> list[Node]:
    """The statements of the same block before this one, in order."""
    parent = node.parent
    assert parent is not None
    return [s for s in syntax.statements(parent) if s.end_byte <= node.start_byte]


def pragma_before(node: Node) -> Node | None:
    """`#pragma unroll` of a loop."""
    before = node.prev_named_sibling
    return before if before is not None and before.type == "preproc_call" and "pragma" in text(before) else None


def barrier_before(context: Context, node: Node) -> Node | None:
    """The barrier that is the statement just before this one; declarations that read no memory may stand between."""
    for s in reversed(earlier_siblings(pragma_before(node) or node)):
        if blocks.barrier(s, context.body):
            return s
        reads = next(syntax.of_type(s, "subscript_expression", "pointer_expression", "call_expression"), None)
        if s.type != "declaration" or reads is not None:
            return None
    return None


def own_before(context: Context, arrays: list[str], thread: Node, at: Node) -> bool:
    """Since the barrier before `at` (or since the kernel began) every thread touched only its own element of the
    arrays."""
    t = squeeze(text(strip_parens(thread)))
    names = {n for a in arrays for n in aliases(context, a)}
    for s in reversed(earlier_siblings(at)):
        if blocks.barrier(s, context.body):
            return True
        for n in syntax.of_type(s, "identifier"):
            if text(n) in names and not (_declares(n) or _index(n) == t):
                return False
    return at.parent == context.body


def _declares(n: Node) -> bool:
    """The identifier is declared here, or a pointer is declared with it: neither is an access."""
    current = n
    while current.parent is not None and current.parent.type not in ("declaration", "init_declarator"):
        if current.parent.type in ("call_expression", "subscript_expression", "compound_statement"):
            return current.parent.type == "subscript_expression" and _address(current.parent)
        current = current.parent
    parent = current.parent
    if parent is None or parent.type == "declaration" or parent.child_by_field_name("declarator") == current:
        return parent is not None
    return syntax.field(parent, "declarator").type == "pointer_declarator"


def _address(subscript: Node) -> bool:
    """`T *p = &a[i];`"""
    above = subscript.parent
    declarator = above.parent if above is not None else None
    return (
        above is not None
        and above.type == "pointer_expression"
        and text(above).startswith("&")
        and declarator is not None
        and declarator.type == "init_declarator"
    )


def _index(n: Node) -> str | None:
    """The subscript of an array's name, without spaces; None when the name is not simply subscripted."""
    parent = n.parent
    if parent is None or parent.type != "subscript_expression" or parent.child_by_field_name("argument") != n:
        return None
    above = parent.parent
    if above is not None and above.type in ("subscript_expression", "pointer_expression"):
        return None  # a row of the array, or an address in it
    found = [i for _, i, whole in syntax.subscripts(parent) if whole == parent]
    return squeeze(text(strip_parens(found[0]))) if found else None


# ---------------------------------------------------------------- after


def paths(context: Context, node: Node) -> list[list[Node]]:
    """What may run after a statement: the statements behind it on each level outward, in order; and for each loop
    around it, those up to the loop's end and then from its beginning to the statement itself."""
    onward: list[Node] = []
    found: list[list[Node]] = []
    current = node
    while current != context.body and current.parent is not None:
        parent = current.parent
        if parent.type == "compound_statement":
            onward += [s for s in syntax.statements(parent) if s.start_byte >= current.end_byte]
        if parent.type in syntax.LOOPS:
            heads = [parent.child_by_field_name(f) for f in ("update", "condition")]
            onward += [head for head in heads if head is not None]
            body = syntax.field(parent, "body")
            found.append(onward + [s for s in syntax.statements(body) if s.start_byte <= node.start_byte])
        current = parent
    return [onward, *found]


def check_later(context: Context, array: str, thread: Node, node: Node, *, first_element: bool) -> None:
    """Nothing but element 0 (or nothing at all) is read after `node`, until every thread has stored a new value.
    RuleRefused otherwise."""
    t = squeeze(text(strip_parens(thread)))
    names = aliases(context, array)
    for path in paths(context, node):
        for s in path:
            if _stores_own(s, names, t):
                break
            if any(text(n) in names and not _harmless(context, n, t, first_element) for n in _identifiers(s)):
                raise RuleRefused(f"{array} is used after the reduction for more than its result")


def check_between(context: Context, array: str, statement: Node, loop: Node, *, first_element: bool) -> None:
    """Inside the statement, ahead of the loop in it, the array is not touched, but for reads of element 0 where that is
    allowed. RuleRefused otherwise."""
    names = aliases(context, array)
    for n in _identifiers(statement):
        if n.start_byte < loop.start_byte and text(n) in names and not (first_element and _index(n) == "0"):
            raise RuleRefused(f"{array} is also read before it is folded")


def _identifiers(node: Node) -> Iterator[Node]:
    return syntax.of_type(node, "identifier")


def _harmless(context: Context, n: Node, t: str, first_element: bool) -> bool:
    """The array's name at `n` reads nothing, or only element 0 where that is allowed."""
    index = _index(n)
    if index is None:
        return _declares(n)
    subscript = n.parent
    above = subscript.parent if subscript is not None else None
    if above is not None and above.type == "assignment_expression" and above.child_by_field_name("left") == subscript:
        operator = above.child_by_field_name("operator")
        if operator is None or text(operator) == "=":
            return True
    return first_element and (index == "0" or (index == t and in_first_thread(context, n)))


def _stores_own(statement: Node, names: set[str], t: str) -> bool:
    """`a[t] = …;` without reading the array."""
    if statement.type != "expression_statement" or statement.named_child_count != 1:
        return False
    w = next(syntax.writes(statement), None)
    if w is None or w.node != statement.named_children[0] or w.op != "=" or w.value is None:
        return False
    array = next((n for n in syntax.of_type(w.target, "identifier")), None)
    stored = array is not None and text(array) in names and _index(array) == t
    return stored and not names & syntax.identifiers(w.value)


def later(context: Context, node: Node) -> list[Node]:
    """Every statement that may run after this one."""
    return [s for path in paths(context, node) for s in path]


def used_later(context: Context, array: str, node: Node) -> bool:
    """The array is mentioned after `node`."""
    names = aliases(context, array)
    return any(names & syntax.identifiers(s) for s in later(context, node))


def is_spare(context: Context, name: str, kind: str, at: Node) -> bool:
    """A variable of just this type that nothing mentions after `at`: it may hold something else from then on."""
    declared = [w for w in context.written.get(name, ()) if w.op == "init"]
    declaration = declared[0].node.parent if len(declared) == 1 else None
    if declaration is None or next(syntax.of_type(declaration, "type_qualifier"), None) is not None:
        return False
    spelled = declaration.child_by_field_name("type")
    if spelled is None or text(spelled) != kind:
        return False
    return not any(name in syntax.identifiers(s) for s in later(context, at))


def stored_from(context: Context, array: str, thread: Node, kind: str, before: Node, at: Node) -> str | None:
    """The variable v of `a[t] = v;` just before a statement, where it is spare after `at`: it holds the element."""
    t = squeeze(text(strip_parens(thread)))
    for s in reversed(earlier_siblings(before)):
        found = re.fullmatch(r"(\w+)\[(.+)\]=(\w+);", squeeze(text(s)))
        if found is None or found[2] != t:
            return None
        if found[1] == array:
            return found[3] if is_spare(context, found[3], kind, at) else None
    return None


def first_thread_only(context: Context, arrays: list[str], node: Node) -> bool:
    """From `node` to the next barrier of its block, only thread 0 touches the arrays."""
    names = {n for a in arrays for n in aliases(context, a)}
    current = node
    while current != context.body and current.parent is not None:
        parent = current.parent
        if parent.type in syntax.LOOPS:
            return False
        if parent.type == "compound_statement":
            for s in syntax.statements(parent):
                if s.start_byte < current.end_byte:
                    continue
                if blocks.barrier(s, context.body):
                    return True
                for n in syntax.of_type(s, "identifier"):
                    if text(n) in names and not in_first_thread(context, n):
                        return False
        current = parent
    return True


def in_first_thread(context: Context, node: Node) -> bool:
    """Only the block's thread 0 comes here."""
    current = node
    while current.parent is not None and current != context.body:
        parent = current.parent
        taken = parent.type == "if_statement" and parent.child_by_field_name("consequence") == current
        if taken and blocks.is_first_thread(context, syntax.field(parent, "condition")):
            return True
        current = parent
    return False
