"""The buffers of a derived launch: as much of the recorded bytes as the kernel reaches with its new sizes.

Smaller sizes cut buffers to what the index ranges (`workload/reach.py`) allow, so that a case on a large capture costs
milliseconds and an access beside the smaller array is beside the buffer. Larger sizes repeat the recorded bytes, and
only where the ranges of every pointer are understood. Where they are not, smaller sizes keep the whole buffers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property

from cuda_agent.errors import NoInputs
from cuda_agent.judge import launch_text
from cuda_agent.judge.case import Case
from cuda_agent.judge.hidden.scalars import Scalar, template_arguments
from cuda_agent.model import Arg, Buffer, Launch, Pointer
from cuda_agent.source.tree import identifiers
from cuda_agent.toolchain import names
from cuda_agent.workload import bundle, elements, layout, reach

_SLACK = 64  # bytes
_PLACE = 256  # a buffer is cut at a multiple of this, so that pointers keep their alignment


class Refused(Exception):
    """The derived launch cannot be made; the reason is for people."""


@dataclass(frozen=True, slots=True)
class Need:
    """The part of a recorded buffer that a derived launch keeps: bytes [start, end) of it; `end` may lie beyond its
    size."""

    start: int
    end: int


class Extents:
    """What a kernel reaches of its buffers, for one recorded launch."""

    def __init__(self, case: Case, index: int, scalars: Mapping[str, Scalar]) -> None:
        self.case, self.launch, self.scalars = case, case.launches[index], scalars
        self._constants = self._file_constants()

    def _file_constants(self) -> dict[str, reach.Interval]:
        """Template arguments, integer macros and constants that the body names."""
        kernel, module = self.case.kernel, self.case.module
        template = template_arguments(self.launch.mangled)
        found: dict[str, reach.Interval] = {}
        for name, argument in zip(layout.template_names(kernel), template, strict=False):
            if match := re.fullmatch(r"(?:\([^)]*\))?(-?\d+)[ul]*", argument):
                found[name] = (int(match[1]), int(match[1]))
        local = {param.name for param in kernel.params} | set(found)
        for name in identifiers(module.node(kernel.body)) - local:
            value = launch_text.constant(module, name, kernel.body.start)
            if value is not None:
                found[name] = (value, value)
        return found

    def reached(self, launch: Launch, values: Mapping[str, int]) -> tuple[dict[str, reach.Interval], dict[str, str]]:
        """Element indices of each pointer parameter that is understood, and for the others why they are not. A
        parameter that the kernel never touches is in neither."""
        numbers = {name: scalar.value for name, scalar in self.scalars.items()} | dict(values)
        known = self._constants | {name: (value, value) for name, value in numbers.items()}
        known |= reach.builtins(launch.grid, launch.block)
        body = self.case.module.node(self.case.kernel.body)
        found: dict[str, reach.Interval] = {}
        unknown: dict[str, str] = {}
        for param in self.case.kernel.params:
            if param.pointer:
                try:
                    found |= reach.Reach(dict(known), frozenset({param.name})).walk(body)
                except NoInputs as error:
                    unknown[param.name] = str(error)
        return found, unknown

    def fit(self, launch: Launch, values: Mapping[str, int], held: MutableMapping[str, bytes], most: int) -> Launch:
        """`launch` with its buffers cut or tiled. Raises Refused; `most` bounds the bytes of all buffers."""
        found, unknown = self.reached(launch, values)
        if unknown and any(value > self.scalars[name].value for name, value in values.items()):
            raise Refused(next(iter(unknown.values())))
        needs = {b: Need(0, buffer.size) for b, buffer in enumerate(launch.buffers)}
        reached = self._needs(launch, found, unknown)
        needs |= {b: Need(need.start, need.end + self._slack.get(b, 0)) for b, need in reached.items()}
        total = sum(need.end - need.start for need in needs.values())
        if total > most:
            why = f" ({next(iter(unknown.values()))})" if unknown else ""
            raise Refused(f"its buffers would have {total >> 20:,} MiB{why}")
        return self._cut(launch, needs, held)

    @cached_property
    def _slack(self) -> dict[int, int]:
        """Bytes that a recorded buffer has beyond the original's reach, where they are few: the corner of a stencil's
        border, say, which a rewrite that loads whole tiles may read as the program's own allocation allows."""
        try:
            recorded = self._needs(self.launch, *self.reached(self.launch, {}))
        except Refused:
            return {}
        rest = {b: self.launch.buffers[b].size - need.end for b, need in recorded.items()}
        return {b: size for b, size in rest.items() if 0 < size <= _SLACK}

    def _needs(
        self, launch: Launch, found: Mapping[str, reach.Interval], unknown: Mapping[str, str]
    ) -> dict[int, Need]:
        """Buffers all of whose pointers are plain parameters of known reach. Raises Refused."""
        types = names.param_types(launch.mangled) or tuple(param.type for param in self.case.kernel.params)
        order = sorted(launch.args, key=lambda arg: arg.offset)
        params = self.case.kernel.params
        if not len(order) == len(types) == len(params):
            return {}
        spans: dict[int, list[tuple[int, int]]] = {}
        opaque: set[int] = set()
        for arg, type_, param in zip(order, types, params, strict=True):
            for pointer in arg.pointers:
                size = element_size(type_)
                if size is None or pointer.at or len(arg.data) != 8 or param.name in unknown:
                    opaque.add(pointer.buffer)
                    continue
                low, high = found.get(param.name, (0, -1))
                span = pointer.offset + low * size, pointer.offset + (high + 1) * size
                if span[0] < 0:
                    raise Refused(f"the kernel may reach {-span[0]} bytes before {param.name}")
                spans.setdefault(pointer.buffer, []).append(span)
        return {
            b: Need(min(s for s, _ in parts) // _PLACE * _PLACE, max(1, *(e for _, e in parts)))
            for b, parts in spans.items()
            if b not in opaque
        }

    def _cut(self, launch: Launch, needs: Mapping[int, Need], held: MutableMapping[str, bytes]) -> Launch:
        buffers = []
        for b, buffer in enumerate(launch.buffers):
            need = needs[b]
            if need == Need(0, buffer.size):
                buffers.append(replace(buffer, after=None, written=None))
                continue
            data = self._bytes(buffer, need)
            buffers.append(Buffer(buffer.address + need.start, len(data), (hold(held, data),), None))
        args = tuple(
            Arg(
                arg.offset,
                arg.data,
                tuple(Pointer(p.at, p.buffer, p.offset - needs[p.buffer].start) for p in arg.pointers),
            )
            for arg in launch.args
        )
        return replace(launch, args=args, buffers=tuple(buffers))

    def _bytes(self, buffer: Buffer, need: Need) -> bytes:
        """The recorded bytes of the range; beyond the buffer's end the recorded ones again, from the start."""
        if need.end <= buffer.size:
            return part(self.case, buffer, need.start, need.end)
        if need.start:
            raise Refused("it would need bytes behind the end of a pool")
        data = part(self.case, buffer, 0, buffer.size)
        if not data:
            raise Refused("it would grow an empty buffer")
        return (data * -(-need.end // len(data)))[: need.end]


def part(case: Case, buffer: Buffer, start: int, end: int) -> bytes:
    """Recorded bytes [start, end) of a buffer; only the chunks that hold them are read."""
    store = bundle.BlobStore(case.workload.blobs)
    chunk = bundle.UNIT if buffer.size <= bundle.SMALL else bundle.CHUNK
    if len(buffer.before) != -(-buffer.size // chunk):  # of another way to cut
        return store.get(buffer.before)[start:end]
    first = start // chunk
    data = store.get(buffer.before[first : -(-end // chunk)])
    return data[start - first * chunk : end - first * chunk]


def contents(case: Case, held: Mapping[str, bytes], buffer: Buffer) -> bytes:
    """The initial bytes of a buffer of a derived launch."""
    if len(buffer.before) == 1 and buffer.before[0] in held:
        return held[buffer.before[0]]
    return part(case, buffer, 0, buffer.size)


def hold(held: MutableMapping[str, bytes], data: bytes) -> str:
    """Keeps bytes that are in no bundle, under their digest."""
    name = hashlib.sha256(data).hexdigest()
    held[name] = data
    return name


def element_size(type_: str) -> int | None:
    """Bytes of what a pointer type points to; None for other types."""
    target = elements.pointee(type_)
    try:
        return None if target is None else elements.sizeof(target)
    except NoInputs:
        return None
