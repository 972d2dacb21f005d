"""Reductions over an array that the threads of a block share, recognised in the text: trees that halve or double the
distance with a barrier at each level, and loops in which one thread adds up what all have stored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import blocks
from cuda_agent.rewrite.analysis.array_folds import Fold, element, fold, operation, plain
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import strip_parens


@dataclass(frozen=True)
class Tree:
    """A loop over distances with a barrier at each level; element 0 has the result of `size` elements afterwards."""

    loop: Node
    folds: tuple[Fold, ...]
    thread: Node  # the expression of the thread's index
    size: str  # text of the number of elements
    half: Node | None  # the first distance, when it halves: half of the size
    bound: Node | None  # the size, when the distance doubles
    barrier: str  # as spelled, with its semicolon
    trailing: bool  # the barrier stands at the end of each level
    variable: Node | None  # the declaration of the distance ahead of a `while`


@dataclass(frozen=True)
class Serial:
    """`if (t == 0) for (i = first; i < size; i++) v += a[i];`: one thread folds what all have stored."""

    statement: Node  # the if
    loop: syntax.CountedLoop
    folds: tuple[Fold, ...]
    thread: Node
    bound: Node
    first: int


# ---------------------------------------------------------------- trees


def trees(context: Context) -> Iterator[Tree]:
    for loop in syntax.of_type(context.body, "for_statement", "while_statement"):
        found = _tree(context, loop)
        if found is not None:
            yield found


@dataclass(frozen=True)
class _Header:
    variable: str
    halving: bool
    first: Node | None
    bound: Node | None
    declaration: Node | None = None


def _tree(context: Context, loop: Node) -> Tree | None:
    body = loop.child_by_field_name("body")
    if body is None:
        return None
    inside = syntax.statements(body)
    header = _for_header(loop) if loop.type == "for_statement" else _while_header(context, loop, inside)
    if header is None:
        return None
    if loop.type == "while_statement":
        inside = inside[:-1]
    barriers = [(i, b) for i, s in enumerate(inside) if (b := blocks.barrier(s, context.body))]
    if len(barriers) != 1 or barriers[0][0] not in (0, len(inside) - 1) or len(inside) < 2:
        return None
    place, barrier = barriers[0]
    work = [s for i, s in enumerate(inside) if i != place]
    values = _aliases(work[:-1])
    if values is None or work[-1].type != "if_statement" or work[-1].child_by_field_name("alternative") is not None:
        return None
    condition = squeeze(text(strip_parens(syntax.field(work[-1], "condition"))))
    steps = syntax.statements(syntax.field(work[-1], "consequence"))
    own = _own_index(steps, values)
    if own is None:
        return None
    thread = _thread(own, condition, header, values)
    if thread is None:
        return None
    folds = _folds(steps, own, header.variable, values)
    if not folds:
        return None
    size = _size(header)
    if size is None:
        return None
    return Tree(
        loop,
        folds,
        thread,
        size,
        header.first if header.halving else None,
        header.bound,
        barrier,
        place != 0,
        header.declaration,
    )


def _for_header(loop: Node) -> _Header | None:
    init, condition, update = (loop.child_by_field_name(f) for f in ("initializer", "condition", "update"))
    if init is None or condition is None or update is None:
        return None
    if init.type == "declaration":
        declarators = init.children_by_field_name("declarator")
        if len(declarators) != 1 or declarators[0].type != "init_declarator":
            return None
        name, first = syntax.field(declarators[0], "declarator"), syntax.field(declarators[0], "value")
    elif init.type == "assignment_expression" and squeeze(text(init)).count("=") == 1:
        name, first = syntax.field(init, "left"), syntax.field(init, "right")
    else:
        return None
    return _header(text(name), first, condition, update, None) if name.type == "identifier" else None


def _while_header(context: Context, loop: Node, inside: list[Node]) -> _Header | None:
    """`int s = n / 2; while (s != 0) { …; s /= 2; }`: the variable is declared before, and used for nothing else."""
    if not inside or inside[-1].type != "expression_statement" or not inside[-1].named_children:
        return None
    update = inside[-1].named_children[0]
    target = update.child_by_field_name("left")
    if target is None or target.type != "identifier":
        return None
    name = text(target)
    outside = [
        n
        for n in syntax.of_type(context.body, "identifier")
        if text(n) == name and not (loop.start_byte <= n.start_byte < loop.end_byte)
    ]
    if len(outside) != 1 or outside[0].parent is None or outside[0].parent.type != "init_declarator":
        return None
    declaration = outside[0].parent.parent
    if declaration is None or declaration.named_child_count != 2 or declaration.parent != loop.parent:
        return None
    first = syntax.field(outside[0].parent, "value")
    return _header(name, first, syntax.field(loop, "condition"), update, declaration)


def _header(name: str, first: Node, condition: Node, update: Node, declaration: Node | None) -> _Header | None:
    v = re.escape(name)
    step, test = squeeze(text(update)), squeeze(text(strip_parens(condition)))
    if re.fullmatch(rf"{v}(>>=1|/=2|=\(?{v}(>>1|/2)\)?)", step) and re.fullmatch(rf"{v}((>0|!=0|>=1)u?)?|0<{v}", test):
        return _Header(name, True, first, None, declaration)
    if re.fullmatch(rf"{v}(<<=1|\*=2|=\(?({v}<<1|{v}\*2|2\*{v}|{v}\+{v})\)?)", step) and squeeze(text(first)) == "1":
        node = strip_parens(condition)
        if node.type == "binary_expression" and squeeze(text(node)).startswith(f"{name}<"):
            return _Header(name, False, first, syntax.field(node, "right"), declaration)
    return None


def _size(header: _Header) -> str | None:
    """The number of elements: twice the first distance, or the bound of a doubling one."""
    if header.bound is not None:
        return text(header.bound)
    if header.first is None:
        return None
    node = strip_parens(header.first)
    if node.type == "binary_expression":
        sign, right = text(syntax.field(node, "operator")), squeeze(text(syntax.field(node, "right")))
        if (sign, right) in (("/", "2"), (">>", "1")):
            return text(syntax.field(node, "left"))
    return str(2 * int(text(node))) if text(node).isdigit() else None


def _aliases(statements: list[Node]) -> dict[str, str] | None:
    """`int k = t + s;` ahead of the fold: names and what they stand for; None when something else is there."""
    values: dict[str, str] = {}
    for s in statements:
        if s.type != "declaration":
            return None
        for w in syntax.writes(s):
            if w.name is None or w.value is None:
                return None
            values[w.name] = squeeze(text(w.value))
    return values


def _own_index(steps: list[Node], values: dict[str, str]) -> Node | None:
    """The index of the first element that is written."""
    for s in steps:
        for w in syntax.memory_writes(s):
            for _, index, n in syntax.subscripts(w.target):
                if n == w.target:
                    return index
    return None


def _thread(own: Node, condition: str, header: _Header, values: dict[str, str]) -> Node | None:
    """The thread's index, when the condition lets exactly the right threads fold: those below the distance, or where
    the distance doubles those at a multiple of twice it."""
    s = re.escape(header.variable)
    t = re.escape(squeeze(text(strip_parens(own))))
    if header.halving:
        return own if re.fullmatch(rf"\(?{t}<{s}\)?|\(?{s}>{t}\)?", condition) else None
    if re.fullmatch(
        rf"\(?{t}%\((2\*{s}|{s}\*2|{s}<<1)\)\)?==0u?|\(?{t}&\((2\*{s}|{s}\*2)-1\)\)?==0|!\({t}%\((2\*{s}|{s}\*2)\)\)",
        condition,
    ):
        return own
    # int index = 2 * s * t; if (index < n) a[index] += a[index + s];
    bound = re.escape(squeeze(text(header.bound))) if header.bound is not None else ""
    multiple = values.get(text(own), "")
    found = re.fullmatch(rf"2\*{s}\*(.+)|{s}\*2\*(.+)|(.+)\*2\*{s}", multiple)
    if found is None or not re.fullmatch(rf"{t}<{bound}", condition):
        return None
    code = next(g for g in found.groups() if g)
    declared = syntax.enclosing_statement(own)
    root = declared
    while root.parent is not None and root.type not in syntax.LOOPS:
        root = root.parent
    return next((n for n in syntax.walk(root) if n.is_named and squeeze(text(n)) == code), None)


def _folds(steps: list[Node], own: Node, distance: str, values: dict[str, str]) -> tuple[Fold, ...]:
    """Every statement as a fold of one array; empty when some statement is none."""
    t = squeeze(text(strip_parens(own)))
    others = {f"{t}+{distance}", f"{distance}+{t}"}
    start = next((i for i, s in enumerate(steps) if s.type != "declaration"), len(steps))
    local = _aliases(steps[:start])
    if local is None:
        local = {}
    others |= {name for name, v in (values | local).items() if v in others}
    # A variable that is given its value ahead of the fold, `k = t + s;`.
    while start < len(steps) and (w := plain(steps[start])) and squeeze(text(w.value or own)) in others:
        if w.name is None:
            break
        others.add(w.name)
        start += 1
    folds: list[Fold] = []
    rest = steps[start:]
    while rest:
        one, used = fold(rest, t, others)
        if one is None:
            return ()
        folds.append(one)
        rest = rest[used:]
    return tuple(folds) if len({f.array for f in folds}) == len(folds) else ()


# ---------------------------------------------------------------- one thread for all


def serials(context: Context) -> Iterator[Serial]:
    for statement in syntax.of_type(context.body, "if_statement"):
        condition = syntax.field(statement, "condition")
        if not blocks.is_first_thread(context, condition):
            continue
        thread = next(n for n in syntax.walk(condition) if n.is_named and blocks.is_thread_index(context, n))
        thread = strip_parens(thread)
        for node in syntax.statements(syntax.field(statement, "consequence")):
            loop = syntax.counted_loop(node)
            if loop is None or squeeze(text(loop.start)) not in ("0", "1"):
                continue
            folds = _serial_folds(loop)
            if folds:
                yield Serial(statement, loop, folds, thread, loop.bound, int(squeeze(text(loop.start))))


def _serial_folds(loop: syntax.CountedLoop) -> tuple[Fold, ...]:
    """`v += a[i]` for each statement of the loop; empty when one is something else."""
    folds = []
    for s in syntax.statements(loop.body):
        w = plain(s)
        if w is None or w.value is None or syntax.uses(w.target, loop.variable):
            return ()
        target = squeeze(text(w.target))
        value = strip_parens(w.value)
        arrays = {a for a, _, n in syntax.subscripts(value) if element(n, {loop.variable}) is not None}
        if len(arrays) != 1:
            return ()
        array = arrays.pop()
        if w.op == "-=":
            op = "+" if element(value, {loop.variable}) == array else None
        else:
            op = operation(w, target, array, {loop.variable})
        if op is None:
            return ()
        folds.append(Fold(array, op, target))
    return tuple(folds) if len({f.array for f in folds}) == len(folds) else ()
