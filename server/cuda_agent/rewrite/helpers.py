"""Where new device functions go: above the kernel, with what belongs to it left together."""

from __future__ import annotations

from cuda_agent.model import Edit, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.rule import Context


def above_kernel(context: Context, functions: list[list[str]]) -> Edit:
    """Device functions, as lists of lines, in front of the kernel and of the comment that stands directly over it."""
    eol = context.eol
    at = _head(context)
    indent = context.indent(at)
    blocks = [eol.join([lines[0], *(indent + line if line else line for line in lines[1:])]) for lines in functions]
    return Edit(Span(at, at), "".join(block + eol * 2 + indent for block in blocks))


def _head(context: Context) -> int:
    """The start of the comment lines directly above the kernel, else of the kernel."""
    data = context.module.document.data
    at = context.kernel.span.start
    if context.kernel.body.start < at:  # the function that does the kernel's work stands above it
        function = syntax.enclosing_function(context.body)
        at = function.start_byte
    line = data.rfind(b"\n", 0, at) + 1
    best = at
    while line > 0:
        start = data.rfind(b"\n", 0, line - 1) + 1
        above = data[start:line].strip()
        if above.startswith(b"//") or (above.startswith(b"/*") and above.endswith(b"*/")):
            best = start + len(data[start:line]) - len(data[start:line].lstrip())
        elif above.endswith(b"*/") and (opened := data.rfind(b"/*", 0, line)) >= 0:
            start = data.rfind(b"\n", 0, opened) + 1
            if data[start:opened].strip() or b"*/" in data[opened : line - len(above)]:
                break
            best = opened
        else:
            break
        line = start
    return best
