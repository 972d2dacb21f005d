"""A loop behind guards, opened so that barriers can stand in it: `if (i < n) { before; loop; after; }` becomes
`before; loop; if (i < n) { after; }`, where the loop's own new text asks the condition where it must."""

from __future__ import annotations

from collections.abc import Callable

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import names
from cuda_agent.rewrite.analysis.guards import Condition, Frame
from cuda_agent.rewrite.layout import removed
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.style import negated
from cuda_agent.source.tree import callee, walk

_ZEROS = {"float": "0.0f", "double": "0.0", "int": "0", "unsigned": "0", "unsigned int": "0"}


def spelled(context: Context, part: Condition, put: Callable[[Node], str] | None = None) -> str:
    """One part of the guards as it stands in a conjunction; `put` spells the nodes."""
    spell = put or (lambda n: context.slice(syntax.span(n)))
    code = negated(part.node, spell) if part.opposite else spell(part.node)
    return f"({code})" if "||" in code or "?" in code else code


def condition(context: Context, frame: Frame) -> str:
    """The guards' conjunction."""
    return " && ".join(spelled(context, c) for c in frame.conditions)


def prologue(context: Context, frame: Frame, indent: str) -> list[str]:
    """The statements before the loop, for all threads; what reads memory asks the guards first."""
    lines: list[str] = []
    for part in frame.segments:
        inside = [n for n in frame.before if part.holds(syntax.span(n))]
        pieces = [(n, _for_all(context, frame, n)) for n in inside if _needs_guard(n)]
        spans = [(syntax.span(n), code) for n, code in pieces]
        for gone in (removed(context, r) for r in frame.returns):
            if gone.end > part.start and gone.start < part.end:
                spans.append((gone, ""))
        code, at = "", part.start
        for span, new in sorted(spans):
            code += context.slice(Span(at, max(at, span.start))) + new
            at = span.end
        code += context.slice(Span(at, part.end))
        old = context.indent(part.start)
        some = code.rstrip().splitlines()
        while some and not some[0].strip():
            some.pop(0)
        lines += [shifted(line, old, indent) for line in some]
    return lines


def _for_all(context: Context, frame: Frame, node: Node) -> str:
    """A statement that reads memory, as threads outside the guards may run it too."""
    code, inside = context.slice(syntax.span(node)), condition(context, frame)
    if node.type != "declaration":
        return f"if ({inside}) {code}"
    declarators = node.children_by_field_name("declarator")
    write = next(iter(syntax.writes(node)), None)
    if len(declarators) != 1 or write is None or write.value is None or write.target.type != "identifier":
        raise RuleRefused(f"{code} reads memory before the loop, behind a guard")
    kind = context.slice(Span(node.start_byte, declarators[0].start_byte)).strip()
    name, value = syntax.text(write.target), context.slice(syntax.span(write.value))
    bare = kind.removeprefix("const ")
    if bare == "auto" or "&" in kind or "static" in kind:
        raise RuleRefused(f"{code} reads memory before the loop, behind a guard")
    if bare in _ZEROS:
        shown = f"({value})" if write.value.type == "conditional_expression" else value
        return f"{kind} {name} = {inside} ? {shown} : {_ZEROS[bare]};"
    return f"{bare} {name};{context.eol}{context.indent(node.start_byte)}if ({inside}) {name} = {value};"


def epilogue(context: Context, frame: Frame, indent: str, step: str) -> list[str]:
    """The statements after the loop, behind the guards."""
    if not frame.after:
        return []
    plain = len(frame.after) == 1 and frame.after[0].type == "expression_statement"
    lines = [f"{indent}if ({condition(context, frame)}){'' if plain else ' {'}"]
    old = context.indent(frame.after[0].start_byte)
    for node in frame.after:
        for n, line in enumerate(context.slice(syntax.span(node)).splitlines()):
            lines.append(indent + step + (line.removeprefix(old) if n else line))
    return lines if plain else [*lines, f"{indent}}}"]


def shifted(line: str, old: str, new: str) -> str:
    """The line with another indentation."""
    bare = line.lstrip()
    if not bare:
        return ""
    if line.startswith(old):
        return new + line.removeprefix(old)
    deeper = len(line.expandtabs()) - len(bare.expandtabs()) - len(old.expandtabs())  # tabs and blanks are mixed
    return new + " " * max(0, deeper) + bare


def _needs_guard(node: Node) -> bool:
    """It reads memory, or calls what may."""
    if next(walk(node, ("subscript_expression", "pointer_expression")), None) is not None:
        return True
    return any(not names.by_value(callee(call) or "") for call in walk(node, "call_expression"))
