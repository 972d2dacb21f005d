"""# 17 · prefetch: the next tile is on its way while this one is computed

A loop that brings a tile into shared memory, waits for the block and computes, waits twice in every round: for memory,
then for the slowest thread. Loaded one round ahead, into a register, the next tile arrives while this one is used.

Before:

    for (int k0 = 0; k0 < n; k0 += 16) {
        tile[threadIdx.y][threadIdx.x] = a[row * n + k0 + threadIdx.x];
        __syncthreads();
        …
        __syncthreads();
    }

After:

    float a_next;
    if (0 < n)
        a_next = a[row * n + threadIdx.x];
    for (int k0 = 0; k0 < n; k0 += 16) {
        tile[threadIdx.y][threadIdx.x] = a_next;
        __syncthreads();
        if (k0 + 16 < n)
            a_next = a[row * n + k0 + 16 + threadIdx.x];
        …
        __syncthreads();
    }

Legal when the place of the next load, and whether there is one, follow from the loop's counter, from what the loop
leaves alone and from variables that each round moves on in the same way (proved), the kernel writes none of the arrays
(proved), and they do not overlap what it writes (captured). Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Span
from cuda_agent.rewrite import style, syntax
from cuda_agent.rewrite.analysis import affine, aliasing, arithmetic, blocks, names, trips
from cuda_agent.rewrite.analysis.calls import HINTED_LOADS
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.analysis.induction import Induction
from cuda_agent.rewrite.analysis.inline import inline_body
from cuda_agent.rewrite.analysis.neighbours import Body
from cuda_agent.rewrite.layout import fresh, insert_before, unit
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.rules.restrict import check_disjoint
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.tree import arguments, base, callee, enclosing, operator, strip_parens, walk

_LEAVES = ("break_statement", "continue_statement", "return_statement", "goto_statement")
_TELLING = ("-", "<", ">", "<=", ">=", "/", "%", ">>")  # operators by which signed and unsigned differ
_LEAST = 4  # rounds


@dataclass(frozen=True)
class Load:
    """`shared[…] = value;` before the barrier. `moves`: variable → the text of its value in the next round."""

    value: Node
    element: str
    array: str
    guards: tuple[Node, ...]
    moves: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rounds:
    """A loop with a barrier, and what it loads before that."""

    counted: Induction
    body: Body
    barrier: Node
    loads: tuple[Load, ...]


class Prefetch(Rule):
    name = "prefetch"
    number = 17

    def sites(self, context: Context) -> Iterator[Site]:
        known = Names(context)
        why = None
        for node in syntax.of_type(context.body, "for_statement"):
            try:
                rounds = _rounds(context, known, node)
            except RuleRefused as error:
                why = error
                continue
            if rounds is not None:
                yield Site(self.name, syntax.span(node), {}, {"rounds": rounds})
                return
        if why is not None:
            raise why

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        check_disjoint(context)
        overlap = "the pointers of one launch never overlap"
        assumptions = (
            Assumption("what is loaded ahead is not written by the kernel", "proved"),
            Assumption(overlap, "captured" if context.pointer_targets() else "assumed"),
        )
        return Rewrite(tuple(_edits(context, site.nodes["rounds"])), assumptions=assumptions)


# ---------------------------------------------------------------- what can be loaded ahead


def _rounds(context: Context, known: Names, node: Node) -> Rounds | None:
    """None of a loop that brings nothing into shared memory before a barrier of its own."""
    counted = affine.induction(context, node)
    inside = node.child_by_field_name("body")
    if counted is None or inside is None or inside.type != "compound_statement" or counted.condition is None:
        return None
    statements = syntax.statements(inside)
    barrier = next((s for s in statements if blocks.barrier(s, context.body) is not None), None)
    if barrier is None or trips.most(context, node, context.numbers) < _LEAST:
        return None
    before = [s for s in statements if s.start_byte < barrier.start_byte]
    stores = [w for s in before for w in syntax.writes(s) if w.op == "=" and _shared(context, w.target) is not None]
    if not stores:
        return None
    body = Body(known, inside, counted.variable.name)
    found: list[Load] = []
    why = None
    for write in stores:
        try:
            load = _load(context, known, body, write)
        except RuleRefused as error:
            why = error
            continue
        if load is not None:
            found.append(load)
    if not found:
        if why is not None:
            raise why
        return None
    if next(walk(inside, _LEAVES), None) is not None:
        raise RuleRefused("the loop may end early")
    return Rounds(counted, body, barrier, tuple(found))


def _shared(context: Context, target: Node) -> str | None:
    """The element type of the shared array that a store goes to."""
    root = base(target) if target.type == "subscript_expression" else None
    return next((s.element for s in context.kernel.shared if root is not None and s.name == text(root)), None)


def _load(context: Context, known: Names, body: Body, write: syntax.Write) -> Load | None:
    value, element = write.value, _shared(context, write.target)
    if value is None or element is None:
        return None
    written = aliasing.effects(context).written
    array = ""
    for n in walk(value, ("subscript_expression", "pointer_expression")):
        root = known.root(n)
        if n.type == "pointer_expression" and text(n).startswith("&"):
            return None
        if root is None or root not in known.params:
            return None  # of shared memory, or of an array that is not known
        if root in written:
            raise RuleRefused(f"the kernel writes {root}")
        array = array or root
    if not array:
        return None
    guards = _guards(body, write.node)
    moves: dict[str, str] = {}
    for node in (value, *guards):
        _check_known(context, body, node, write.node, moves if node == value else None)
    return Load(value, element, array, tuple(guards), moves)


def _guards(body: Body, node: Node) -> list[Node]:
    """The conditions around a store, outermost first. RuleRefused where a loop or another branch stands there."""
    found: list[Node] = []
    current = node
    while current != body.body:
        above = current.parent
        if above is None or above.type in (*syntax.LOOPS, "else_clause", "switch_statement", "lambda_expression"):
            raise RuleRefused("what is loaded is decided by more than conditions")
        if above.type == "if_statement":
            if current != above.child_by_field_name("consequence"):
                raise RuleRefused("what is loaded is decided by more than conditions")
            found.insert(0, strip_parens(syntax.field(above, "condition")))
        current = above
    return found


def _check_known(context: Context, body: Body, node: Node, at: Node, moves: dict[str, str] | None) -> None:
    """RuleRefused unless the expression's value in the next round is known in this one. `moves` takes what must be put
    in place of variables that the loop moves on."""
    for call in walk(node, "call_expression"):
        name = callee(call) or ""
        macro = inline_body(context.module, name, len(arguments(call)))
        if name not in HINTED_LOADS and macro is None and not names.by_value(name):
            raise RuleRefused(f"it is not known what {name} does")
    if next(walk(node, ("assignment_expression", "update_expression")), None) is not None:
        raise RuleRefused(f"`{text(node)}` changes a variable")
    loop = body.body.parent
    head = (
        [part for f in ("initializer", "update") if (part := loop.child_by_field_name(f)) is not None] if loop else []
    )
    counting = {w.name for h in head for w in syntax.writes(h)} | {v for h in head for v in syntax.declared(h)}
    for n in walk(node, "identifier"):
        name = text(n)
        if name != body.variable and name in counting:
            raise RuleRefused(f"the loop counts with {name}, too")
        if name == body.variable or (n.parent is not None and n.parent.type == "call_expression"):
            continue
        local = body.local(n)
        if local is not None:
            _check_known(context, body, local, at, None)
            _check_sign(context, node, n, local)
        elif name in body.written or name in body.declared:
            moved = _moved(context, body, n, at) if moves is not None else None
            if moved is None or moves is None:
                raise RuleRefused(f"the next {name} is not known a round ahead")
            moves[name] = moved


def _check_sign(context: Context, node: Node, name: Node, value: Node) -> None:
    """RuleRefused where a local name stands for a value of another type, and a difference or a comparison may tell:
    `int i = threadIdx.x` is signed in `i - 1`, `threadIdx.x - 1` is not."""
    declaration = enclosing(value, "declaration")
    kind = arithmetic.of_spelling(text(syntax.field(declaration, "type"))) if declaration is not None else "unknown"
    own = arithmetic.Types(context.kernel, context.body).of(value)
    tells = any(operator(n) in _TELLING for n in walk(node, "binary_expression"))
    if tells and kind != own and kind != "unknown":
        raise RuleRefused(f"{text(name)} has another type than its value: a round ahead they may differ")


def _moved(context: Context, body: Body, use: Node, at: Node) -> str | None:
    """The value that a variable will have in the next round, from its value now: each round changes it once, before the
    load and under no other conditions, by what the loop leaves alone."""
    variable = affine.variable(context, use)
    if variable is None or variable.escapes or variable.is_array:
        return None
    inside = [w for w in variable.writes if syntax.span(body.body).holds(syntax.span(w.node))]
    if len(inside) != 1 or inside[0].value is None or inside[0].op not in ("=", "+="):
        return None
    write = inside[0]
    value = write.value
    statement = write.node.parent
    if value is None or statement is None or statement.type != "expression_statement" or statement.parent is None:
        return None
    if write.node.start_byte > at.start_byte or not syntax.span(statement.parent).holds(syntax.span(at)):
        return None
    for n in walk(value, "identifier"):
        name = text(n)
        called = n.parent is not None and n.parent.type == "call_expression"
        if not called and name != variable.name and (name in body.written or name in body.declared):
            return None
    if next(walk(value, ("subscript_expression", "pointer_expression", "assignment_expression")), None) is not None:
        return None
    for call in walk(value, "call_expression"):
        if inline_body(context.module, callee(call) or "", len(arguments(call))) is None:
            return None
    shown = context.slice(syntax.span(value))
    return f"{variable.name} + {style.conjunct(shown)}" if write.op == "+=" else shown


# ---------------------------------------------------------------- the text


def _edits(context: Context, rounds: Rounds) -> Iterator[Edit]:
    loop = rounds.counted.loop
    step, eol = unit(context), context.eol
    used: set[tuple[int, str]] = set()
    start = _start(context, rounds.counted)
    later = _later(context, loop, rounds.counted.variable.name)
    named = [(load, fresh(context, loop, f"{load.array}_next", used)) for load in rounds.loads]
    first = [f"{load.element} {name};" for load, name in named] + _guarded(context, rounds, named, start, step)
    ahead = _guarded(context, rounds, named, later, step)
    for load, name in named:
        yield Edit(syntax.span(load.value), name)
    yield from insert_before(context, loop, first)
    indent = context.indent(rounds.barrier.start_byte)
    end = _line_end(context, rounds.barrier)
    yield Edit(Span(end, end), "".join(f"{eol}{indent}{line}" for line in ahead))


def _start(context: Context, counted: Induction) -> str:
    """The counter's first value, of the counter's type: `i - 1 < 0` and `threadIdx.x - 1 < 0` are not the same."""
    first = syntax.field(counted.loop, "initializer")
    write = next(w for w in syntax.writes(first) if text(w.target) == counted.variable.name and w.value is not None)
    assert write.value is not None
    code, kind = context.slice(syntax.span(write.value)), arithmetic.of_spelling(counted.variable.type)
    if arithmetic.Types(context.kernel, context.body).of(write.value) == kind != "unknown":
        return code
    simple = re.fullmatch(r"[\w.]+", code)
    return (
        f"{counted.variable.type}({code})"
        if counted.variable.type.isidentifier()
        else (f"({counted.variable.type}){code if simple else f'({code})'}")
    )


def _line_end(context: Context, statement: Node) -> int:
    """Behind the statement, and behind a comment on its line."""
    data = context.module.document.data
    end = data.find(b"\n", statement.end_byte)
    rest = data[statement.end_byte : end].strip() if end != -1 else b""
    return (
        statement.end_byte + len(data[statement.end_byte : end].rstrip())
        if rest.startswith(b"//")
        else statement.end_byte
    )


def _later(context: Context, loop: Node, variable: str) -> str:
    """The counter in the next round."""
    update = syntax.field(loop, "update")
    write = next(w for w in syntax.writes(update) if text(w.target) == variable)
    if write.op in ("++", "--"):
        return f"{variable} {write.op[0]} 1"
    assert write.value is not None
    value = context.slice(syntax.span(write.value))
    return f"{variable} {write.op[0]} {style.conjunct(value)}" if write.op in ("+=", "-=") else value


def _guarded(context: Context, rounds: Rounds, named: list[tuple[Load, str]], at: str, step: str) -> list[str]:
    """`if (there is such a round, and it loads) name = value;` for a value of the counter, and each load."""
    groups: dict[str, list[str]] = {}
    for load, name in named:
        groups.setdefault(_condition(rounds, load, at), []).append(f"{step}{name} = {_value(rounds, load, at)};")
    lines: list[str] = []
    for condition, loads in groups.items():
        several = len(loads) > 1
        lines += [f"if ({condition}){' {' if several else ''}", *loads, *(["}"] if several else [])]
    return lines


def _condition(rounds: Rounds, load: Load, at: str) -> str:
    condition = strip_parens(syntax.field(rounds.counted.loop, "condition"))
    said = [_tidy(rounds.body.expanded(condition, at))]
    for guard in load.guards:
        one = style.conjunct(_tidy(rounds.body.expanded(guard, at)))
        if one not in said:
            said.append(one)
    return " && ".join(said)


def _value(rounds: Rounds, load: Load, at: str) -> str:
    value = rounds.body.expanded(load.value, at)
    if load.moves:
        pattern = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, load.moves))})(?!\w)")
        return pattern.sub(lambda m: _within(value, m, load.moves[m[0]]), value)
    return _tidy(value)


def _tidy(code: str) -> str:
    """Without a `0 +`, and without the parentheses of `(k + 1) < n` and of `(threadIdx.x)`."""
    code = re.sub(r"(^|[(\[+<>=?:&|,]\s*)0 \+ ", r"\1", code)
    code = re.sub(r"(?<!\w)\(((?:threadIdx|blockIdx)\.[xyz])\)", r"\1", code)
    return re.sub(r"^\((\w+ [+-] [\w.]+)\)(?=\s*(?:[<>]=?|!=)\s*[^<>])", r"\1", code)


def _within(code: str, found: re.Match[str], put: str) -> str:
    """The text in parentheses, unless it stands in brackets or between commas already."""
    before, after = code[: found.start()].rstrip()[-1:], code[found.end() :].lstrip()[:1]
    alone = (before in "[(," and after in "]),") or re.fullmatch(r"\w+(?:\([^()]*\))?", put)
    return put if alone else f"({put})"
