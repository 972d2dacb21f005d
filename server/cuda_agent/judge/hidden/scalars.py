"""The integer arguments of a launch, and which of them are sizes: they bound a guard or a loop."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cuda_agent.model import Dim3, Kernel, Launch
from cuda_agent.source.symbols import Module
from cuda_agent.toolchain import names
from cuda_agent.workload import elements
from cuda_agent.workload.elements import SIZES

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\s*[(\w.])")
PRIMES = (97, 61, 7, 2)
_DEPTH = 3  # local variables followed: `int total = rows * cols; if (i < total)`


@dataclass(frozen=True, slots=True)
class Scalar:
    """One integer argument by value."""

    name: str
    argument: int  # index into Launch.args
    value: int
    signed: bool


def integers(launch: Launch, kernel: Kernel) -> dict[str, Scalar]:
    """Every integer argument by its parameter's name; empty where arguments and parameters do not pair."""
    types = names.param_types(launch.mangled) or tuple(param.type for param in kernel.params)
    order = sorted(range(len(launch.args)), key=lambda at: launch.args[at].offset)
    if not len(order) == len(types) == len(kernel.params):
        return {}
    found = {}
    for at, type_, param in zip(order, types, kernel.params, strict=True):
        dtype, data = elements.element_of(type_), launch.args[at].data
        if "*" in type_ or dtype[0] not in "iu" or len(data) != SIZES[dtype] or SIZES[dtype] < 2:
            continue
        found[param.name] = Scalar(
            param.name, at, int.from_bytes(data, "little", signed=dtype[0] == "i"), dtype[0] == "i"
        )
    return found


def sizes(module: Module, kernel: Kernel, scalars: Mapping[str, Scalar]) -> list[Scalar]:
    """Those that a guard or a loop is bounded by, directly or through local variables, in text order."""
    body = module.text(kernel.body)
    texts = [guard.condition for guard in kernel.guards] + [loop.bound or "" for loop in kernel.loops]
    # `while (i < n)`, `i < n ? x[i] : 0`: what the syntax tree calls neither a guard nor a counted loop.
    texts += re.findall(r"(?<![<>-])[<>]=?\s*\(?([A-Za-z_]\w*)", body)
    texts += re.findall(r"([A-Za-z_]\w*)\)?\s*[<>]=?(?![<>])", body)
    found: dict[str, Scalar] = {}
    for text in texts:
        for word in _reached(text, body, _DEPTH):
            if word in scalars and scalars[word].value > 0:
                found.setdefault(word, scalars[word])
    return list(found.values())


def _reached(text: str, body: str, depth: int) -> Iterator[str]:
    for word in _WORD.findall(text):
        yield word
        if depth:
            for definition in re.findall(rf"\b{word}\s*=(?!=)\s*([^;{{}}]*)", body)[:2]:
                yield from _reached(definition, body, depth - 1)


def hidden_values(size: Scalar, block: Dim3) -> list[int]:
    """Values below the recorded one, in the order in which they find most: around a warp, one, around a block and its
    axes, zero, odd vector tails, primes."""
    threads = block[0] * block[1] * block[2]
    axes = [extent for extent in dict.fromkeys(block) if 1 < extent < threads]
    order = [33, 1, threads + 1, 0, 31, 3, *(extent + 1 for extent in axes), 97, threads - 1, 32, 5, threads]
    order += [*(extent - 1 for extent in axes), *axes, *PRIMES, 2 * threads + 1, 63, 65, 4]
    return [value for value in dict.fromkeys(order) if 0 <= value < size.value]


def with_values(launch: Launch, scalars: Mapping[str, Scalar], values: Mapping[str, int]) -> Launch:
    """The launch with other scalar arguments."""
    args = list(launch.args)
    for name, value in values.items():
        scalar = scalars[name]
        data = value.to_bytes(len(args[scalar.argument].data), "little", signed=scalar.signed)
        args[scalar.argument] = replace(args[scalar.argument], data=data)
    return replace(launch, args=tuple(args))


def template_arguments(mangled: str) -> tuple[str, ...]:
    """`void k<float, 4>(…)` → float, 4."""
    name, _ = names.split(names.demangle(mangled))
    depth, start = 0, len(name)
    while name.endswith(">") and start:
        start -= 1
        depth += (name[start] == ">") - (name[start] == "<")
        if depth == 0:
            break
    parts, depth = [""], 0
    for char in name[start + 1 : -1]:
        depth += (char in "<([") - (char in ">)]")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return tuple(part.strip() for part in parts if part.strip())
