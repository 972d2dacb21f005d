"""Which files a text may include. Compilers print what they cannot parse: `#include "/etc/passwd"` shows the file."""

from __future__ import annotations

import re

from cuda_agent.errors import CompileError

# `#` may be written `%:` or `??=`; a backslash at the end of a line joins it to the next.
_DIRECTIVE = re.compile(r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(include_next|include|import|embed)\b[ \t]*(.*)$", re.MULTILINE)
_LITERAL = re.compile(r'(?:"([^"\n]+)"|<([^>\n]+)>)\s*(?://.*|/\*.*)?$')
_SUFFIXES = (".h", ".hh", ".hpp", ".hxx", ".cuh", ".cu", ".inl", ".inc", ".ipp", ".tpp")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def check(text: str) -> None:
    """Raises CompileError when untrusted `text` includes anything but a header by a relative or system name.

    Computed includes (`#include MACRO`), absolute paths, parts that begin with a dot other than `..`, and names that
    are not a header's are refused; a system name in `<>` may have no suffix (`<vector>`).
    """
    joined = re.sub(r"\\[ \t]*\r?\n", "", text)
    joined = _COMMENT.sub(lambda m: " " + "\n" * m[0].count("\n"), joined)
    for match in _DIRECTIVE.finditer(joined):
        literal = _LITERAL.match(match[2].strip())
        name = (literal[1] or literal[2]) if literal else ""
        hidden = any(part.startswith(".") and part not in {".", ".."} for part in name.split("/"))
        header = name.endswith(_SUFFIXES) or (literal is not None and literal[2] is not None and "." not in name)
        if match[1] != "include" or not literal or name.startswith(("/", "~")) or "\\" in name or hidden or not header:
            raise CompileError(
                f"`{match[0].strip()}` may not be compiled: text from a model includes headers by name only.",
                match[0].strip(),
            )
