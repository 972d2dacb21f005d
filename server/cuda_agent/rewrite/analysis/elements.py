"""How many bytes the elements of an array have, by the text or by the instantiation that was captured."""

from __future__ import annotations

from cuda_agent.rewrite.analysis.sizes import SMALL, spelled_out
from cuda_agent.rewrite.rule import Context
from cuda_agent.toolchain import names


def element_size(context: Context, name: str, element: str) -> int | None:
    """Bytes of an array's element: from its spelling, a `typedef`, `using` or `#define` of this file, or from the
    instantiation that was captured."""
    if (size := SMALL.get(spelled_out(context.module, element))) is not None:
        return size
    own = next((p.element for p in context.kernel.params if p.name == name), None) == element
    return _captured_size(context, name) if own else None


def _captured_size(context: Context, name: str) -> int | None:
    found = _captured_sizes(context, name)
    return next(iter(found)) if len(found) == 1 else None


def _captured_sizes(context: Context, name: str) -> frozenset[int]:
    """In every captured instantiation; empty when that of one is not known."""
    position = next((i for i, p in enumerate(context.kernel.params) if p.name == name), None)
    found = set()
    for launch in context.workload.launches if context.workload else ():
        types = names.param_types(launch.mangled)
        size = (
            SMALL.get(names.element_type(types[position])) if position is not None and position < len(types) else None
        )
        if size is None:
            return frozenset()
        found.add(size)
    return frozenset(found)


def largest_element(context: Context, name: str, element: str) -> int | None:
    """As `element_size`; the largest where the captured launches are of several instantiations."""
    size = element_size(context, name, element)
    own = next((p.element for p in context.kernel.params if p.name == name), None) == element
    found = _captured_sizes(context, name) if size is None and own else frozenset()
    return size if size is not None or not found else max(found)
