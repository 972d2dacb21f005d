"""The recorded launches that ran a kernel's own text: those of an explicit specialisation (`k<float>`) are recorded
under its template's name, and what is rewritten in one of the two says nothing about the other."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from cuda_agent.model import Workload
from cuda_agent.source.symbols import Module
from cuda_agent.toolchain import names

_SPELLED = {
    "int8_t": "signed char",
    "uint8_t": "unsigned char",
    "int16_t": "short",
    "uint16_t": "unsigned short",
    "int32_t": "int",
    "uint32_t": "unsigned int",
    "unsigned": "unsigned int",
    "int64_t": "long",
    "uint64_t": "unsigned long",
    "size_t": "unsigned long",
    "half": "__half",
    "nv_bfloat16": "__nv_bfloat16",
    "true": "1",
    "false": "0",
}


def own(workload: Workload, module: Module, kernel: str) -> Workload | None:
    """The workload of `kernel` (its id), with the launches of its own text; None when there is none."""
    others = _specialisations(module, kernel)
    if not others:
        return workload
    special = [_arguments(one) for one in others]
    mine = _arguments(kernel)

    def runs(mangled: str) -> bool:
        given = _arguments(names.split(names.demangle(mangled))[0])
        meant = [one for one in special if given[: len(one)] == one]
        return mine in meant if mine else not meant

    launches = tuple(launch for launch in workload.launches if runs(launch.mangled))
    return replace(workload, kernel=kernel, launches=launches) if launches else None


def is_specialised(module: Module, kernel: str) -> bool:
    """Whether the file specialises the kernel's template: not all its instantiations have one text."""
    return bool(_specialisations(module, kernel))


def _specialisations(module: Module, kernel: str) -> list[str]:
    template = names.without_template(kernel)
    return [k.id for k in module.kernels if k.id != template and names.without_template(k.id) == template]


def _arguments(name: str) -> tuple[str, ...]:
    """`k<__half, (int)3>` → `("__half", "3")`."""
    listed = name.removeprefix(names.without_template(name))[1:-1]
    cuts = [-1, *names.top_level(listed, ","), len(listed)] if listed else []
    return tuple(_tidy(listed[a + 1 : b]) for a, b in pairwise(cuts))


def _tidy(argument: str) -> str:
    bare = re.sub(r"^\s*\((?:bool|int|unsigned int|long|unsigned long|char)\)", "", argument).strip()
    bare = re.sub(r"^(\d+)[uUlL]+$", r"\1", re.sub(r"^(?:std::)", "", bare))
    return _SPELLED.get(bare, bare).replace(" ", "")
