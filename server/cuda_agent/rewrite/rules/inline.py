"""# 9 · inline: a helper's body in place of its call

The compiler inlines a device function anyway, but no rule may change a loop in a function that others call too, and
few see that the loop belongs to this kernel. With the body in the kernel they do.

Before:

    __device__ void smooth(float *c, int count, int step) { for (int n = 1; n < count; n++) … }

    if (y < height)
        smooth(image + y * pitch, width, 1);

After:

    if (y < height) {
        float *c = image + y * pitch;
        const int step = 1;
        for (int n = 1; n < width; n++) …
    }

It gives nothing by itself: the search tries what becomes possible behind it. The function stays for its other callers.

Legal when the file has one definition of the function, no template, that leaves only at its end (or anywhere, where the
call is the last thing that the kernel does), declares nothing static, and means by every name what the kernel means by
it (proved). Arguments are computed once, before the body, and converted to the parameters' types, as in a call.
Bit-exact.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Edit, Param, Span
from cuda_agent.rewrite import layout, syntax
from cuda_agent.rewrite.analysis import names
from cuda_agent.rewrite.analysis.functions import definitions
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import text
from cuda_agent.source import params
from cuda_agent.source.edits import apply
from cuda_agent.source.tree import arguments, callee, enclosing, field, walk

_LOCAL = re.compile(r"\bstatic\b|\basm\b|__asm|\bgoto\b|\b__func__|\bthis\b")
_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Call:
    """One call of a device function with a loop. `statement` is replaced; `result`: what takes the returned value."""

    node: Node
    statement: Node
    function: Node
    params: tuple[Param, ...]
    returned: Node | None  # the expression of the last statement, when the value is used


class Inline(Rule):
    name = "inline"
    number = 9
    opens = True

    def sites(self, context: Context) -> Iterator[Site]:
        found, why = [], None
        counts = Counter(callee(n) for n in syntax.of_type(context.body, "call_expression"))
        for node in syntax.of_type(context.body, "call_expression"):
            name = callee(node) or ""
            known = definitions(context.module).get(name, [])
            if not any(_loops(f) for f in known):
                continue
            try:
                if len(known) != 1 or counts[name] != 1:
                    raise RuleRefused(f"{name} has several definitions or is called several times")
                found.append((name, _call(context, node, known[0])))
            except RuleRefused as error:
                why = error
        if not found and why is not None:
            raise why
        for name, call in found:
            yield Site(self.name, syntax.span(call.node), {"function": name}, {"call": call})

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        return Rewrite(tuple(_edits(context, site.nodes["call"])))


def _loops(function: Node) -> bool:
    return next(syntax.of_type(function, *syntax.LOOPS), None) is not None


# ---------------------------------------------------------------- is it legal?


def _call(context: Context, node: Node, function: Node) -> Call:
    name = callee(node) or ""
    head = text(function).partition("{")[0]
    inside = field(function, "body")
    listed = next(syntax.of_type(function, "parameter_list"), None)
    if "__device__" not in head or "__noinline__" in head or inside is None or listed is None:
        raise RuleRefused(f"{name} is no device function that may be inlined")
    if enclosing(function, ("template_declaration", "class_specifier", "struct_specifier")) is not None:
        raise RuleRefused(f"{name} is a template or a member")
    code = text(inside)
    if _LOCAL.search(code) or next(walk(inside, ("lambda_expression", "labeled_statement")), None) is not None:
        raise RuleRefused(f"{name} has a static variable, a lambda, a label or assembly")
    if next((n for n in walk(inside) if n.type.startswith("preproc") and "pragma" not in text(n)), None) is not None:
        raise RuleRefused(f"{name} has preprocessor lines inside")
    if function.has_error or any(callee(n) == name for n in syntax.of_type(inside, "call_expression")):
        raise RuleRefused(f"{name} calls itself, or is not understood")
    if re.search(rf"^[ \t]*#[ \t]*define[ \t]+{re.escape(name)}\b", context.text, re.M):
        raise RuleRefused(f"{name} is also a macro")
    span = Span(listed.start_byte + 1, listed.end_byte - 1)
    taken = params.params(context.module.document, context.module.tree.lexed.code, span, listed)
    if len(taken) != len(arguments(node)):
        raise RuleRefused(f"{name} is called without some of its arguments")
    statement = syntax.enclosing_statement(node)
    result = _result(node, statement)
    returned = _returned(context, name, inside, statement, result)
    _check_names(context, name, function, taken)
    return Call(node, statement, function, taken, returned)


def _result(node: Node, statement: Node) -> bool:
    """Whether the call's value is used. RuleRefused where the statement is more than the call, or one assignment or
    declaration with its value."""
    above = node.parent
    if above is not None and above == statement and statement.type == "expression_statement":
        return False
    plain = above is not None and above.parent == statement
    if plain and above is not None and statement.type == "expression_statement":
        if above.type == "assignment_expression" and field(above, "right") == node:
            return True
    elif plain and above is not None and statement.type == "declaration":
        only = len(statement.children_by_field_name("declarator")) == 1
        block = statement.parent is not None and statement.parent.type == "compound_statement"
        if above.type == "init_declarator" and only and block:
            return True
    raise RuleRefused(f"{callee(node)} is called inside an expression")


def _returned(context: Context, name: str, inside: Node, statement: Node, used: bool) -> Node | None:
    returns = list(syntax.of_type(inside, "return_statement"))
    statements = syntax.statements(inside)
    last = statements[-1] if statements else inside
    if used:
        if len(returns) != 1 or returns[0] != last or not last.named_children:
            raise RuleRefused(f"{name} returns from more than one place")
        return last.named_children[0]
    if any(r.named_children for r in returns):
        raise RuleRefused(f"the value of {name} is not used")
    if any(r != last for r in returns) and not _last_of(context, statement):
        raise RuleRefused(f"{name} returns from more than one place")
    return None


def _last_of(context: Context, statement: Node) -> bool:
    """The kernel ends when the statement has run."""
    node = statement
    while node != context.body:
        above = node.parent
        if above is None or above.type in (*syntax.LOOPS, "for_range_loop", "switch_statement"):
            return False
        if above.type == "compound_statement" and syntax.statements(above)[-1] != node:
            return False
        node = above
    return True


def _check_names(context: Context, name: str, function: Node, taken: tuple[Param, ...]) -> None:
    """RuleRefused where a name of the file's that the function uses is something else in the kernel."""
    own = syntax.declared(function) | {p.name for p in taken}
    free = {text(n) for n in walk(function, ("identifier", "type_identifier"))} - own
    kernel = syntax.declared(context.body) | {p.name for p in context.kernel.params}
    if hidden := sorted(free & kernel):
        raise RuleRefused(f"{name} and the kernel mean different things by {hidden[0]}")
    macros = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\([^)\n]*\)(.*)$", context.text, re.M)
    for macro, code in macros:
        if re.search(rf"\b{macro}\s*\(", text(function)) and set(re.findall(r"[A-Za-z_]\w*", code)) & (own | kernel):
            raise RuleRefused(f"the macro {macro} in {name} may use a name of the kernel")


# ---------------------------------------------------------------- the text


def _edits(context: Context, call: Call) -> Iterator[Edit]:
    statement = call.statement
    inside = syntax.field(call.function, "body")
    renamed, lines = _parameters(context, call, inside)
    indent, step, eol = context.indent(statement.start_byte), layout.unit(context), context.eol
    lines += _body(context, call, inside, renamed)
    if call.returned is not None:
        kind = context.slice(syntax.span(syntax.field(call.function, "type")))
        value = _renamed(context, syntax.span(call.returned), call.returned, renamed)
        own = next((d for d in _declarations(inside) if text(d[1]) == text(call.returned)), None)
        if own is None or own[0] != kind:
            value = f"({kind})({value})"
        whole = Span(statement.start_byte, statement.end_byte)
        start = whole.start
        put = Edit(Span(call.node.start_byte - start, call.node.end_byte - start), value)
        lines.append(apply(context.slice(whole), [put]))
    above = statement.parent
    if above is None or above.type == "compound_statement":
        yield Edit(syntax.span(statement), (eol + indent).join(lines).replace(eol + indent + eol, eol + eol))
        return
    before = statement.prev_sibling
    gap = Span(before.end_byte if before is not None else statement.start_byte, statement.start_byte)
    inner = indent if eol in context.slice(gap) else indent + step
    outer = indent.removesuffix(step) if eol in context.slice(gap) else indent
    code = "".join(f"{inner}{line}{eol}" if line else eol for line in lines)
    yield Edit(Span(gap.start, statement.end_byte), f" {{{eol}{code}{outer}}}")


def _parameters(context: Context, call: Call, inside: Node) -> tuple[dict[str, str], list[str]]:
    """New names of the function's parameters and variables, and the declarations of the parameters that need one."""
    kernel = syntax.identifiers(context.body) | {p.name for p in context.kernel.params}
    theirs = syntax.identifiers(call.function)
    own = names.of(context)
    renamed: dict[str, str] = {}
    lines: list[str] = []
    changed = {w.name for w in syntax.writes(inside)} | {
        text(n) for p in walk(inside, "pointer_expression") if text(p).startswith("&") for n in walk(p, "identifier")
    }
    for p, argument in zip(call.params, arguments(call.node), strict=True):
        code = context.slice(syntax.span(argument))
        variable = own.resolve(code, argument.start_byte) if argument.type == "identifier" else None
        same = (
            variable is not None
            and not variable.is_array
            and not variable.escapes  # the body may change it through its address
            and variable.type.removeprefix("const ").strip() == p.element
            and variable.pointer == p.pointer
        )
        number = _NUMBER.fullmatch(code) is not None and p.element == "int" and not p.pointer
        escapes = any(
            names.by_reference(context.module, callee(c) or "") is not False
            for c in syntax.of_type(inside, "call_expression")
            if any(text(a) == p.name for a in arguments(c))
        )
        if (same or number) and p.name not in changed and "&" not in p.type and not escapes:
            renamed[p.name] = code
            continue
        name = _free(p.name, kernel | (theirs - {p.name}) | set(renamed.values()))
        renamed[p.name] = name
        kind = p.type
        if not p.pointer and "&" not in kind and "const" not in kind and p.name not in changed and not escapes:
            kind = f"const {kind}"
        if kind.count("[") > 1 or "(" in kind:
            raise RuleRefused(f"the parameter {p.name} has a type that is not spelled in one word")
        if "[" in kind:
            kind = f"{'const ' if p.const else ''}{p.element} *"
        lines.append(f"{kind}{'' if kind.endswith(('*', '&')) else ' '}{name} = {code};")
    for name in syntax.declared(inside):
        new = _free(name, kernel | (theirs - {name}) | set(renamed.values()))
        if new != name:
            renamed[name] = new
    return renamed, lines


def _free(name: str, taken: set[str]) -> str:
    return next(n for n in (name, *(f"{name}{i}" for i in range(2, 100))) if n not in taken)


def _declarations(inside: Node) -> Iterator[tuple[str, Node]]:
    """(type, name) of the body's variables without const, pointer or extent."""
    for declaration in syntax.of_type(inside, "declaration"):
        kind = declaration.child_by_field_name("type")
        for d in declaration.children_by_field_name("declarator"):
            inner = d.child_by_field_name("declarator") if d.type == "init_declarator" else d
            if inner is not None and kind is not None and inner.type == "identifier":
                yield text(kind), inner


def _renamed(context: Context, span: Span, node: Node, renamed: dict[str, str]) -> str:
    edits = [
        Edit(Span(n.start_byte - span.start, n.end_byte - span.start), renamed[text(n)])
        for n in walk(node, "identifier")
        if renamed.get(text(n), text(n)) != text(n)
    ]
    return apply(context.slice(span), edits)


def _body(context: Context, call: Call, inside: Node, renamed: dict[str, str]) -> list[str]:
    """The function's lines without its last return, and without the indentation that they share."""
    statements = syntax.statements(inside)
    kept = statements[:-1] if statements[-1].type == "return_statement" else statements
    if not kept:
        return []
    first = next(n for n in inside.named_children)
    span = Span(first.start_byte, kept[-1].end_byte)
    edits = [
        Edit(Span(n.start_byte - span.start, n.end_byte - span.start), renamed[text(n)])
        for n in walk(inside, "identifier")
        if renamed.get(text(n), text(n)) != text(n) and span.holds(syntax.span(n))
    ]
    code = context.indent(span.start) + apply(context.slice(span), edits)
    lines = [line.rstrip() for line in code.splitlines()]
    depths = [len(line) - len(line.lstrip()) for line in lines if line and not line.startswith("#")]
    shared = min(depths, default=0)
    return [line if line.startswith("#") else line[shared:] for line in lines]
