"""Whether a loop's iterations can be run in another order or by other threads: which memory they touch.

Accesses are compared by their text and by the captured buffers, so that an index that is no polynomial (`access.py`)
may be equal too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import names, statements
from cuda_agent.rewrite.analysis.calls import HINTED_LOADS, STORES
from cuda_agent.rewrite.analysis.carried import local_array
from cuda_agent.rewrite.analysis.loops import Loop, counting
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.declared import expression
from cuda_agent.source.tree import arguments, base, callee

_VARIABLE = "@"


@dataclass(frozen=True)
class Access:
    """One load or store of memory. `root` is the allocation as far as text and capture tell; equal `form`s are the same
    element for the same value of the loop's variable, which is written `@` in them."""

    root: str
    form: str
    store: bool
    node: Node


def accesses(context: Context, node: Node, variable: str = "", turns: frozenset[str] = frozenset()) -> list[Access]:
    """Every load and store under `node` beyond the thread's own memory. The `turns` are other variables that tell
    iterations apart as the loop's own one does."""
    local = _values(node)
    stores = {target.id: name for name, target in statements.stored(context, node)}
    found = []
    for place in _places(context, node):
        name = text(_first(place) or place)
        both = _updates(place)
        form = _form(context, place, local, variable, turns)
        root = _root(context, name)
        if place.id in stores:
            found.append(Access(root, form, True, place))
        if place.id not in stores or both:
            found.append(Access(root, form, False, place))
    return found


def _places(context: Context, node: Node) -> Iterator[Node]:
    """Subscripts, dereferences and members of what a pointer points to; pointers that functions are given."""
    pointers = {v.name for v in names.of(context).variables if v.pointer}
    for n in syntax.walk(node):
        if n.type == "subscript_expression":
            above = n.parent
            outer = (
                above is not None
                and above.type == "subscript_expression"
                and above.child_by_field_name("argument") == n
            )
            first = base(n)
            if not outer and not (first.type == "identifier" and local_array(context, text(first))):
                yield n
        elif (n.type, text(n)[:1]) == ("pointer_expression", "*") or (n.type == "field_expression" and "->" in text(n)):
            yield n
        elif n.type == "call_expression" and (callee(n) in HINTED_LOADS or callee(n) in STORES) and arguments(n):
            yield arguments(n)[0]
        elif n.type == "call_expression":
            yield from (a for a in arguments(n) if _pointer(a, pointers))


def _pointer(argument: Node, pointers: set[str]) -> bool:
    """`p`, `p + i`: a pointer that a function may read through. (`&p[i]` is a subscript.)"""
    return any(n.type == "identifier" and text(n) in pointers for _, n in syntax.additive_terms(argument))


def _first(place: Node) -> Node | None:
    return statements.root_of(place)


def _updates(place: Node) -> bool:
    above = place.parent
    if above is None or above.type not in ("assignment_expression", "update_expression"):
        return False
    return above.type == "update_expression" or text(syntax.field(above, "operator")) != "="


def _values(node: Node) -> dict[str, str]:
    """Variables declared under `node` that are set once, with their values."""
    writes = [w for w in syntax.writes(node) if w.target.type == "identifier"]
    targets = [text(w.target) for w in writes]
    return {
        text(w.target): text(w.value)
        for w in writes
        if w.op == "init" and w.value is not None and targets.count(text(w.target)) == 1
    }


def _form(context: Context, place: Node, local: dict[str, str], variable: str, turns: frozenset[str]) -> str:
    code = text(place)
    for _ in range(4):
        put = re.sub(r"[A-Za-z_]\w*", lambda m: f"({local[m[0]]})" if m[0] in local else m[0], code)
        if put == code or len(put) > 400:
            break
        code = put
    if variable:
        code = re.sub(rf"\b{re.escape(variable)}\b", _VARIABLE, code)
    for name in turns:
        code = re.sub(rf"\b{re.escape(name)}\b", f"{_VARIABLE}{name}", code)
    return _pointer_name(context, squeeze(code))


def _pointer_name(context: Context, code: str) -> str:
    """Parameters that pointed to the very same place in every captured launch have one name."""
    targets = context.pointer_targets()
    for name in re.findall(r"[A-Za-z_]\w*", code)[:1]:
        if targets and all(name in t for t in targets):
            code = code.replace(name, "·".join(f"{t[name][0]}+{t[name][1]}" for t in targets), 1)
    return code


def _root(context: Context, name: str) -> str:
    """The parameter that a pointer comes from, by its captured buffer where there is one."""
    pointers = {v.name: v for v in names.of(context).variables if v.pointer}
    for _ in range(8):
        if name not in pointers or pointers[name].param is not None:
            break
        values = [w.value for w in pointers[name].writes if w.value is not None]
        origins = {n for value in values for n in syntax.identifiers(value) if n in pointers and n != name}
        if len(origins) != 1:
            return name
        name = origins.pop()
    targets = context.pointer_targets()
    known = targets and all(name in t for t in targets)
    return " ".join(f"#{t[name][0]}" for t in targets) if known else name


# ---------------------------------------------------------------- iterations


def independent(context: Context, loop: Loop) -> list[str]:
    """Arrays whose elements are assumed to differ from one iteration to the next; the others surely do. RuleRefused
    where an iteration reads or overwrites what another one writes."""
    turns = _turns(loop)
    found = accesses(context, loop.body, loop.variable, turns)
    inner = syntax.declared(loop.body) | {w.name for w in syntax.writes(loop.body) if w.name}
    assumed = []
    for root in dict.fromkeys(a.root for a in found if a.store):
        mine = [a for a in found if a.root == root]
        written = {a.form for a in mine if a.store}
        name = text(_first(mine[0].node) or mine[0].node)
        if any(_VARIABLE not in form for form in written):
            raise RuleRefused(f"every iteration may write the same element of {name}")
        if not {a.form for a in mine} <= written:
            raise RuleRefused(f"an iteration may read what another one writes to {name}")
        if (
            len(written) > 1
            or not _injective(written)
            or inner & set(re.findall(r"(?<![\w@])\w+", next(iter(written))))
        ):
            assumed.append(name)
    return assumed


def _turns(loop: Loop) -> frozenset[str]:
    """Variables of inner loops that take every bound-th place from the outer variable's on, `for (v = i; v < n; v +=
    bound)` in `for (i = 0; i < bound; …)`: their values differ from one outer iteration to the next."""
    found = set()
    for node in syntax.of_type(loop.body, "for_statement"):
        inner = counting(node)
        if inner is None or text(inner.start) != loop.variable or loop.relation != "<" or inner.relation != "<":
            continue
        if squeeze(inner.step) == squeeze(text(loop.bound)):
            found.add(inner.variable)
    return frozenset(found)


def _injective(forms: set[str]) -> bool:
    """The one form's index is the variable plus what does not hold it."""
    index = re.fullmatch(r"[^\[]*\[(.*)\]|\*?\(?(.*?)\)?", next(iter(forms)))
    code = (index[1] or index[2] or "") if index else ""
    node = expression(re.sub(r"@\w*", "at_", code))
    return _affine(node, "at_")


def _affine(node: Node, name: str) -> bool:
    """The variable is one term of a sum, times at most constants or sizes, and in no other term."""
    terms = [n for _, n in syntax.additive_terms(node) if syntax.uses(n, name)]
    return len(terms) == 1 and _factor(terms[0], name)


def _factor(node: Node, name: str) -> bool:
    while node.type == "parenthesized_expression" and node.named_child_count == 1:
        node = node.named_children[0]
    if node.type == "identifier":
        return text(node) == name
    if node.type == "cast_expression":
        return _factor(syntax.field(node, "value"), name)
    if node.type != "binary_expression":
        return False
    operator = text(syntax.field(node, "operator"))
    if operator == "*":
        left, right = syntax.field(node, "left"), syntax.field(node, "right")
        held = [n for n in (left, right) if syntax.uses(n, name)]
        return len(held) == 1 and (_factor(held[0], name) or _affine(held[0], name))
    return operator in "+-" and _affine(node, name)
