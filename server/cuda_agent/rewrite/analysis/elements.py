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
    position = next((i for i, p in enumerate(context.kernel.params) if p.name == name), None)
    found = set()
    for launch in context.workload.launches if context.workload else ():
        types = names.param_types(launch.mangled)
        if position is None or position >= len(types):
            return None
        found.add(SMALL.get(names.element_type(types[position])))
    return found.pop() if len(found) == 1 else None
