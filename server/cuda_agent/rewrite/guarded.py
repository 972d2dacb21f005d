"""A loop behind guards, opened so that barriers can stand in it: `if (i < n) { before; loop; after; }` becomes
`before; loop; if (i < n) { after; }`, where the loop's own new text asks the condition where it must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import names
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.style import negated, removed
from cuda_agent.source.tree import callee, strip_parens, walk

_ZEROS = {"float": "0.0f", "double": "0.0", "int": "0", "unsigned": "0", "unsigned int": "0"}


@dataclass(frozen=True)
class Condition:
    """One part of the guards' conjunction; `opposite`: it holds where the node's text does not."""

    node: Node
    opposite: bool

    def text(self, context: Context, put: Callable[[Node], str] | None = None) -> str:
        spell = put or (lambda n: context.slice(syntax.span(n)))
        code = negated(self.node, spell) if self.opposite else spell(self.node)
        return f"({code})" if "||" in code or "?" in code else code


@dataclass(frozen=True)
class Frame:
    """The guards around and before a loop. `start` to `end` is the text that they cover; `before` and `after` are the
    statements in it on both sides of the loop. Without conditions start == end."""

    conditions: tuple[Condition, ...]
    before: tuple[Node, ...]
    after: tuple[Node, ...]
    returns: tuple[Node, ...]
    segments: tuple[Span, ...]  # the text of `before` and `returns`, without the braces between
    start: int
    end: int

    def condition(self, context: Context) -> str:
        return " && ".join(c.text(context) for c in self.conditions)

    def prologue(self, context: Context, indent: str) -> list[str]:
        """The statements before the loop, for all threads; what reads memory asks the guards first."""
        lines: list[str] = []
        for part in self.segments:
            inside = [n for n in self.before if part.holds(syntax.span(n))]
            pieces = [(n, self._for_all(context, n)) for n in inside if _needs_guard(n)]
            spans = [(syntax.span(n), code) for n, code in pieces]
            for gone in (removed(context, r) for r in self.returns):
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

    def _for_all(self, context: Context, node: Node) -> str:
        """A statement that reads memory, as threads outside the guards may run it too."""
        code, condition = context.slice(syntax.span(node)), self.condition(context)
        if node.type != "declaration":
            return f"if ({condition}) {code}"
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
            return f"{kind} {name} = {condition} ? {shown} : {_ZEROS[bare]};"
        return f"{bare} {name};{context.eol}{context.indent(node.start_byte)}if ({condition}) {name} = {value};"

    def epilogue(self, context: Context, indent: str, step: str) -> list[str]:
        """The statements after the loop, behind the guards."""
        if not self.after:
            return []
        plain = len(self.after) == 1 and self.after[0].type == "expression_statement"
        lines = [f"{indent}if ({self.condition(context)}){'' if plain else ' {'}"]
        old = context.indent(self.after[0].start_byte)
        for node in self.after:
            for n, line in enumerate(context.slice(syntax.span(node)).splitlines()):
                lines.append(indent + step + (line.removeprefix(old) if n else line))
        return lines if plain else [*lines, f"{indent}}}"]


def frame(context: Context, loop: Node) -> Frame:
    """The guards of a loop. RuleRefused when they are more than `if (…) { … }` and `if (…) return;`."""
    conditions: list[Condition] = []
    before: list[Node] = []
    after: list[Node] = []
    left: list[Node] = []
    segments: list[Span] = []
    start = end = loop.start_byte
    node = loop
    while node != context.body:
        parent = node.parent
        if parent is None:
            raise RuleRefused("the loop is not in the kernel's body")
        if parent.type == "if_statement":
            if parent.child_by_field_name("alternative") is not None:
                raise RuleRefused("the loop is in one branch of two")
            conditions = [*_parts(syntax.field(syntax.field(parent, "condition"), "value"), False), *conditions]
            start, end = parent.start_byte, parent.end_byte
        elif parent.type == "compound_statement":
            siblings = list(parent.named_children)
            place = siblings.index(node)
            returns = [s for s in siblings[:place] if _returns(s)]
            if returns:
                start, end = returns[0].start_byte, siblings[-1].end_byte
                parts = [p for r in returns for p in _parts(syntax.field(syntax.field(r, "condition"), "value"), True)]
                conditions = [*parts, *conditions]
            guarded = parent != context.body
            covered = [s for s in siblings[:place] if guarded or (returns and s.start_byte > returns[0].start_byte)]
            before = [s for s in covered if not _returns(s)] + before
            left = returns + left
            if covered or returns:
                first = siblings[0] if guarded or not returns else returns[0]
                segments.insert(0, Span(first.start_byte, node.start_byte))
            if guarded or returns:
                if after and siblings[place + 1 :]:
                    raise RuleRefused("statements follow on several levels of guards")
                after += siblings[place + 1 :]
        else:
            raise RuleRefused(f"the loop is inside a {parent.type.replace('_', ' ')}")
        node = parent
    if any(next(walk(s, ("return_statement", "goto_statement")), None) for s in before):
        raise RuleRefused("a thread may leave before the loop")
    if any(syntax.memory_writes(s) for s in before):
        raise RuleRefused("memory is written before the loop, behind a guard")
    if conditions and any(s.type == "preproc_call" for s in (*before, *after)):
        raise RuleRefused("a pragma stands behind the guard")
    return Frame(tuple(conditions), tuple(before), tuple(after), tuple(left), tuple(segments), start, end)


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


def _returns(node: Node) -> bool:
    if node.type != "if_statement" or node.child_by_field_name("alternative") is not None:
        return False
    return [s.type for s in syntax.statements(syntax.field(node, "consequence"))] == ["return_statement"]


def _parts(node: Node, opposite: bool) -> list[Condition]:
    """The conjunction's parts: `a && b`, or `!(a || b)`."""
    inner = strip_parens(node)
    sign = inner.child_by_field_name("operator")
    if inner.type == "binary_expression" and sign is not None and syntax.text(sign) == ("||" if opposite else "&&"):
        return [p for f in ("left", "right") for p in _parts(syntax.field(inner, f), opposite)]
    return [Condition(inner, opposite)]
