"""What the host code around a launch computes: integer expressions of a file's text, read and not run.

Names come from the caller (a launch's arguments), from macros, and from variables that the file initialises once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from cuda_agent.errors import NoInputs, WorkloadError
from cuda_agent.model import Dim3, Kernel, LaunchSite
from cuda_agent.workload import launch_map, layout
from cuda_agent.workload.launch_map import Shape

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:\.[xyz])?")


class Host:
    """Expressions of one file around the launches of one kernel; `template` are its arguments."""

    def __init__(self, text: str, kernel: Kernel, template: Sequence[str] = ()) -> None:
        self.text, self.kernel, self.template = text, kernel, template

    def known(self, site: LaunchSite, scalars: Mapping[str, int]) -> dict[str, int]:
        """`scalars` under the program's own names too: `k<<<grid, block>>>(x, rows)` makes `rows` the parameter's
        value."""
        known = dict(scalars)
        for text, param in zip(site.args, self.kernel.params, strict=False):
            if param.name in scalars and re.fullmatch(r"[A-Za-z_]\w*", text):
                known[text] = scalars[param.name]
        return known

    def shape(self, site: LaunchSite, scalars: Mapping[str, int]) -> Shape | None:
        """The launch shape that a site's text gives for these scalar arguments (a grid axis may be 0); None where it
        is not understood."""
        known = self.known(site, scalars)
        try:
            grid, block = self.dims(site.grid, known, least=0), self.dims(site.block, known)
            shared = next(self.numbers(site.shared or "0", known), None)
        except NoInputs:  # the size of a type that is not known
            return None
        return None if grid is None or block is None or shared is None else Shape(grid, block, shared)

    def dims(self, text: str, known: Mapping[str, int], least: int = 1) -> Dim3 | None:
        """A launch configuration's grid or block: a number, `dim3(…)`, or a variable defined as one of these."""
        text = text.strip()
        for _ in range(4):
            inner = re.fullmatch(r"(?:dim3\s*[({]|\{)(.*)[)}]", text, re.DOTALL)
            if inner:
                parts = list(_split(inner[1]))
                values = [value for part in parts for value in self.numbers(part, known)]
                if len(values) != len(parts) or not 1 <= len(parts) <= 3 or min(values) < least:
                    return None
                x, y, z = [*values, 1, 1][:3]
                return x, y, z
            if not re.fullmatch(r"[A-Za-z_]\w*", text) or text in known:
                break
            definition = self.definition(text)
            if definition is None:
                return None
            text = definition
        for value in self.numbers(text, known):
            return (value, 1, 1) if value >= least else None
        return None

    def definition(self, name: str, file_scope: bool = False) -> str | None:
        """What a name is initialised with in this file: a macro, a constant, `dim3 name(…)`; None when there is none or
        several that differ."""
        text = self.text
        found = re.findall(rf"^[ \t]*#[ \t]*define[ \t]+{name}[ \t]+(.+?)[ \t]*(?://.*)?$", text, re.MULTILINE)
        constant = r"(?:constexpr|const)\b[\w\s]*?" if file_scope else r"[\w:<>\s]*?\b"
        found += re.findall(rf"\b{constant}\b{name}\s*=\s*([^;=][^;]*?)\s*[;]", text)
        if not file_scope:
            found += [f"dim3({inner})" for inner in re.findall(rf"\bdim3\s+{name}\s*[({{]([^;]*?)[)}}]\s*;", text)]
        unique = list(dict.fromkeys(part.strip() for part in found))
        return unique[0] if len(unique) == 1 else None

    def numbers(self, text: str, known: Mapping[str, int], depth: int = 0) -> Iterator[int]:
        """The value of a host expression, or nothing."""
        text = re.sub(r"\b(?:static_cast|reinterpret_cast)\s*<[^<>]*>|\(\s*(?:unsigned|int|size_t|long)\s*\)", "", text)
        text = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text)
        text = re.sub(r"\bsizeof\s*\(\s*([\w\s]+?)\s*\)", lambda m: str(self.sizeof(m[1])), text)
        text = re.sub(r"\b(?:\w*(?:ceil_?div|div_?up|cdiv|divceil)\w*)\s*\(", "ceil_div(", text, flags=re.IGNORECASE)
        values = dict(known)
        for word in _WORD.findall(text):
            if word in values or word in ("ceil_div", "min", "max"):
                continue
            base, _, axis = word.partition(".")
            definition = self.definition(base)
            if definition is None or depth > 4:
                return
            if axis:
                dims = self.dims(base, known)
                if dims is None:
                    return
                text = re.sub(rf"\b{re.escape(word)}\b", str(dims["xyz".index(axis)]), text)
                continue
            inner = list(self.numbers(definition, known, depth + 1))
            if not inner:
                return
            values[word] = inner[0]
        try:
            yield launch_map.evaluate(text, values)
        except WorkloadError:
            return  # not integer arithmetic: the caller says what that means

    def sizeof(self, type_: str) -> int:
        known = dict(zip(layout.template_names(self.kernel), self.template, strict=False))
        return layout.sizeof(layout.resolve_type(type_, known, self.text))


def _split(text: str) -> Iterator[str]:
    """At commas outside parentheses."""
    depth, start = 0, 0
    for i, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    yield text[start:].strip()
