"""The text as tokens, and what of a file may differ between original and candidate (gate G0).

A file is the *selected* part (the kernel, device helpers and constants that only it uses, its launch sites, host
variables that only feed those) and the rest. The rest must be the same tokens in both files; comments and white space
do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tree_sitter import Node

from cuda_agent.errors import SourceError
from cuda_agent.judge.vocabulary import LAUNCH_CALLS
from cuda_agent.model import Kernel, LaunchSite, Span
from cuda_agent.source.symbols import Module
from cuda_agent.source.tree import walk

_TOKEN = re.compile(
    rb"""(?P<directive>^[ \t\f\v]*(?:/\*[\s\S]*?\*/[ \t\f\v]*)*(?:\#|%:|\?\?=)(?:[^\n\\/]|\\[\s\S]|/(?![/*]))*)
    |(?P<comment>//(?:[^\n\\]|\\[\s\S])*|/\*[\s\S]*?(?:\*/|\Z))
    |(?P<raw>\b(?:u8|u|U|L)?R"(?P<d>[^()\\\s]{0,16})\([\s\S]*?\)(?P=d)")
    |(?P<string>"(?:[^"\\\n]|\\[\s\S])*"?|'(?:[^'\\\n]|\\[\s\S])*'?)
    |(?P<number>\.?\d(?:[\w.']|[eEpP][+-])*)
    |(?P<word>[A-Za-z_$][\w$]*)
    |(?P<punct><<<|>>>|::|->|[^\s\w])
    """,
    re.VERBOSE | re.MULTILINE,
)


class Token(NamedTuple):
    kind: str  # word, number, string, directive, punct
    text: str
    span: Span


def tokens(data: bytes) -> list[Token]:
    """Everything but comments; a directive is one token with its white space normalised and `#` before it."""
    found = []
    for match in _TOKEN.finditer(data):
        kind = match.lastgroup or "punct"
        kind = "raw" if match["raw"] is not None else kind
        if kind == "comment":
            continue
        text = match[0].decode("utf-8", "replace")
        if kind == "directive":
            text = _normal(text)
        found.append(Token("string" if kind == "raw" else kind, text, Span(*match.span())))
    return found


def _normal(directive: str) -> str:
    """One line, its white space single, with `#` in front."""
    text = " ".join(directive.replace("\\\r\n", " ").replace("\\\n", " ").split())
    # A comment before the mark, and the digraph and the trigraph for it, make a directive all the same.
    return re.sub(r"^(?:/\*.*?\*/\s*)*(?:#|%:|\?\?=)\s*", "#", text)


@dataclass(frozen=True, slots=True)
class Helper:
    """A `__device__` function, or a file-scope `constexpr`, defined in the file."""

    name: str
    span: Span
    constant: bool


class Selection:
    """The selected part of one file."""

    def __init__(self, module: Module, name: str, fed: frozenset[str] = frozenset()) -> None:
        """`fed`: variables that fed the launches before the edit, and may be left over. Raises SourceError when the
        file has no such kernel."""
        self.module = module
        self.fed = fed
        self.kernel: Kernel = module.kernel(name)
        self.tokens = tokens(module.document.data)

    @cached_property
    def launches(self) -> tuple[LaunchSite, ...]:
        return self.module.launches_of(self.kernel)

    @cached_property
    def helpers(self) -> tuple[Helper, ...]:
        """Every device function and constant of the file, used by the kernel or not."""
        found = []
        for node in walk(self.module.root, ("function_definition", "declaration"), into=("function_definition",)):
            if not _at_file_scope(node):
                continue
            head = self._head(node)
            name = _declared(node)
            if name is None:
                continue
            if node.type == "function_definition" and re.search(r"\b__device__\b", head):
                found.append(Helper(name, self._with_template(node), False))
            elif node.type == "declaration" and re.match(r"\s*(static\s+)?(const\s+)?(static\s+)?constexpr\b", head):
                found.append(Helper(name, Span(node.start_byte, node.end_byte), True))
        return tuple(found)

    @cached_property
    def owned(self) -> tuple[Helper, ...]:
        """Helpers of the kernel's own file that nothing but the kernel, its launch sites and other owned helpers
        mention."""
        owned = [helper for helper in self.helpers if helper.span.start < self.module.own_end]
        while True:
            inside = [self.kernel.span, *(site.span for site in self.launches), *(helper.span for helper in owned)]
            inside += self.feeding
            outside = {token.text for token in self.tokens if token.kind == "word" and not _within(token.span, inside)}
            # A macro's body may mention a helper too.
            outside |= {
                word for token in self.tokens if token.kind == "directive" for word in re.findall(r"\w+", token.text)
            }
            kept = [helper for helper in owned if helper.name not in outside]
            if len(kept) == len(owned):
                return tuple(owned)
            owned = kept

    @cached_property
    def feeding(self) -> list[Span]:
        """Host declarations of plain variables that nothing but the kernel's launch configurations uses (`dim3
        grid(…);`)."""
        config = [site.config_span for site in self.launches]
        spans: list[Span] = []
        while True:
            inside = [*config, *spans]
            used = {
                token.text for token in self.tokens if token.kind == "word" and _within(token.span, inside)
            } | self.fed
            more = [span for span in self._host_declarations(used, inside) if span not in spans]
            if not more:
                return spans
            spans += more

    @cached_property
    def feeding_names(self) -> frozenset[str]:
        nodes = (self.module.node(span) for span in self.feeding)
        return frozenset(name for node in nodes if (name := _declared(node)) is not None)

    def _host_declarations(self, used: set[str], inside: Sequence[Span]) -> Iterable[Span]:
        for node in walk(self.module.root, "declaration"):
            name = _declared(node)
            if name not in used or _at_file_scope(node):
                continue
            span = Span(node.start_byte, node.end_byte)
            if span in inside or not _plain_declaration(self.module, node):
                continue
            elsewhere = [
                token
                for token in self.tokens
                if token.text == name
                and not _within(token.span, [*inside, span])
                and self._same_function(node, token.span)
            ]
            if not elsewhere:
                yield span

    def _same_function(self, node: Node, span: Span) -> bool:
        current: Node | None = node
        while current is not None and current.type != "function_definition":
            current = current.parent
        return current is not None and current.start_byte <= span.start < current.end_byte

    @cached_property
    def declarations(self) -> list[Span]:
        """Forward declarations of the kernel."""
        return [
            header.span
            for header in self.module.tree.headers
            if header.body is None and header.name.split("::")[-1] == self.kernel.name
        ]

    @cached_property
    def device_spans(self) -> list[Span]:
        """The kernel, and every helper that it reaches by name."""
        reached: list[Helper] = []
        while True:
            spans = [self.kernel.span, *(helper.span for helper in reached)]
            words = {token.text for token in self.tokens if token.kind == "word" and _within(token.span, spans)}
            more = [helper for helper in self.helpers if helper.name in words and helper not in reached]
            if not more:
                return spans
            reached += more

    @cached_property
    def device_tokens(self) -> list[Token]:
        """Tokens of the device code, with the bodies of the macros it uses."""
        inside = [token for token in self.tokens if _within(token.span, self.device_spans)]
        words = {token.text for token in inside if token.kind == "word"}
        for token in self.tokens:
            define = re.match(r"#define (\w+)", token.text) if token.kind == "directive" else None
            if define and define[1] in words and not _within(token.span, self.device_spans):
                inside += [part for part in tokens(token.text.partition(define[1])[2].encode()) if part.kind == "word"]
        return inside

    def rest(self) -> list[str]:
        """The tokens of everything that is not selected, with a mark where the kernel and its launches stand."""
        marks = [(self.kernel.span, "⟨kernel⟩"), *((site.span, "⟨launch⟩") for site in self.launches)]
        marks += [(span, "⟨declaration⟩") for span in self.declarations]
        dropped = [helper.span for helper in self.owned] + self.feeding
        out: list[str] = []
        last = ""
        for token in self.tokens:
            mark = next((text for span, text in marks if span.start <= token.span.start < span.end), "")
            if mark:
                if mark != last or not mark:
                    out.append(mark)
            elif not _within(token.span, dropped):
                out.append(self._with_marks(token) if token.kind == "directive" else token.text)
            last = mark
        return out

    def _with_marks(self, directive: Token) -> str:
        """A macro's text, with a mark where it launches the kernel by its name."""
        start, end = directive.span.start, directive.span.end
        sites = [s.span for s in self.launches if start < s.span.start < end and s.kernel == self.kernel.name]
        if not sites:
            return directive.text
        data, parts = self.module.document.data, []
        for span in sorted(sites):
            parts.append(data[start : span.start] + " ⟨launch⟩ ".encode())
            start = span.end
        return _normal(b"".join((*parts, data[start:end])).decode("utf-8", "replace"))

    def _head(self, node: Node) -> str:
        """The text of a definition up to its body or initialiser, template header excluded."""
        body = node.child_by_field_name("body")
        end = body.start_byte if body is not None else node.end_byte
        return self.module.document.data[node.start_byte : end].decode("utf-8", "replace")

    def _with_template(self, node: Node) -> Span:
        parent = node.parent
        start = parent.start_byte if parent is not None and parent.type == "template_declaration" else node.start_byte
        return Span(start, node.end_byte)


def select(module: Module, name: str, fed: frozenset[str] = frozenset()) -> Selection | None:
    """The selected part, None when the kernel is not in the file."""
    try:
        return Selection(module, name, fed)
    except SourceError:
        return None


def _within(span: Span, spans: Iterable[Span]) -> bool:
    return any(other.start <= span.start < other.end for other in spans)


def _at_file_scope(node: Node) -> bool:
    parent = node.parent
    while parent is not None:
        if parent.type in ("function_definition", "lambda_expression", "class_specifier", "struct_specifier"):
            return False
        parent = parent.parent
    return True


def _declared(node: Node) -> str | None:
    """The one name a declaration or definition declares; None for several or none."""
    found = node.children_by_field_name("declarator")
    current: Node | None = found[0] if len(found) == 1 else None
    while current is not None and current.type not in ("identifier", "operator_name", "destructor_name"):
        inner = current.child_by_field_name("declarator") or current.child_by_field_name("name")
        if inner is None and current.type in ("reference_declarator", "parenthesized_declarator"):
            inner = current.named_children[-1] if current.named_children else None
        current = inner
    if current is None or current.type != "identifier":
        return None
    return (current.text or b"").decode("utf-8", "replace")


def _plain_declaration(module: Module, node: Node) -> bool:
    """`dim3 grid(…);` or an integer whose value calls nothing but arithmetic."""
    type_ = node.child_by_field_name("type")
    text = (type_.text or b"").decode("utf-8", "replace") if type_ is not None else ""
    if not re.fullmatch(r"dim3|auto|(unsigned|signed|long|short|int|size_t|u?int\d+_t|uint|std::size_t|\s)+", text):
        return False
    calls = re.findall(r"(\w+)\s*\(", module.text(node))
    declared = _declared(node)
    return all(call in LAUNCH_CALLS or call == declared for call in calls)
