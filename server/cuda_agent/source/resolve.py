"""Which kernel a launch means, as far as the text of one file tells.

In this order: the name as the scopes around the launch see it, the number of arguments, template or not, and an
explicit specialisation before its primary template. What is left after that is the answer: several kernels where `#if`
picks one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cuda_agent.model import Kernel, LaunchSite
from cuda_agent.source import spelling


def resolve(site: LaunchSite, kernels: Sequence[Kernel], around: tuple[str, ...], code: bytes) -> tuple[Kernel, ...]:
    """The kernels `site` may mean; `around` are the scopes it stands in, `code` is the file's code view."""
    found = _by_name(site.kernel, kernels, around)
    if len(found) > 1:
        found = _narrow(found, [kernel for kernel in found if _takes(kernel, len(site.args), code)])
    if len(found) > 1 and site.template_args:
        found = _narrow(found, [kernel for kernel in found if kernel.template_params or _special(kernel)])
    if len(found) > 1:
        special = [
            kernel
            for kernel in found
            if _special(kernel) and _special(kernel) == tuple(map(spelling.argument, site.template_args))
        ]
        found = special or _narrow(found, [kernel for kernel in found if not _special(kernel)])
    # `k(float)` beside `template <class T> k(T)`: argument types are not known here, so both stay.
    return tuple(found)


def _narrow(before: list[Kernel], after: list[Kernel]) -> list[Kernel]:
    """A rule that nobody passes says nothing: the text is half-typed or uses macros."""
    return after or before


def _by_name(name: str, kernels: Sequence[Kernel], around: tuple[str, ...]) -> list[Kernel]:
    """Innermost scope first, as C++ looks names up; then any kernel with that last part (using declarations,
    includes)."""
    for depth in range(len(around), -1, -1):
        wanted = "::".join((*around[:depth], name))
        found = [kernel for kernel in kernels if _plain(kernel) == wanted]
        if found:
            return found
    tail = re.sub(r"<[^<>]*>", "", name)
    found = [kernel for kernel in kernels if _plain(kernel) == tail or _plain(kernel).endswith("::" + tail)]
    if found or "::" not in tail:
        return found
    # an alias of a namespace, a class template: only the last part can be compared
    last = tail.rsplit("::", 1)[-1]
    return [kernel for kernel in kernels if kernel.name == last and "::" in kernel.qualified_name]


def _plain(kernel: Kernel) -> str:
    """The qualified name without the template arguments of a specialisation."""
    return kernel.qualified_name.split("<", 1)[0].strip()


def _special(kernel: Kernel) -> tuple[str, ...]:
    """The arguments that it is a specialisation for."""
    _, _, rest = kernel.qualified_name.partition("<")
    return spelling.arguments(rest.rstrip()[:-1])


def _takes(kernel: Kernel, count: int, code: bytes) -> bool:
    if any("..." in param.type for param in kernel.params):
        return True
    required = sum(b"=" not in code[param.name_span.end : param.span.end] for param in kernel.params)
    return required <= count <= len(kernel.params)
