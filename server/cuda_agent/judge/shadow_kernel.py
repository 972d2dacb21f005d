"""The original kernel in float64 as a binary, and a recorded launch as that binary's: arguments, buffers, globals."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from cuda_agent.device import jobs
from cuda_agent.errors import CompileError, SourceError, ToolchainError, Unsupported
from cuda_agent.judge.baseline import PATTERNS, dtypes, poison_of
from cuda_agent.judge.digest import sha256
from cuda_agent.judge.edit_tokens import select
from cuda_agent.judge.widen import refusal, widen
from cuda_agent.model import Arg, Binary, Build, Launch, Pointer
from cuda_agent.toolchain import names
from cuda_agent.toolchain.header import unit_of
from cuda_agent.toolchain.slice import slice_kernels, with_headers
from cuda_agent.workload.elements import SIZES, element_of, plain

if TYPE_CHECKING:
    from cuda_agent.device import Device
    from cuda_agent.judge.case import Case

K = TypeVar("K")
T = TypeVar("T")
SHADOW = "shadow"  # the module's name in a job, and the run's
_SCALARS = frozenset(("f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"))  # what keeps its type


_HEADERS = "".join(f"#include <{name}>\n" for name in ("cfloat", "climits", "cmath", "cstdint"))  # for a slice


class NoShadow(Exception):
    """The kernel has no usable shadow; the message says why in half a sentence."""


_kept: WeakKeyDictionary[Device, dict[str, Binary | NoShadow]] = WeakKeyDictionary()


def binary(case: Case) -> Binary:
    """The original's text in float64, compiled like the original. Raises NoShadow."""
    known = _kept.setdefault(case.device, {})
    key = sha256(f"{case.build}\0{case.kernel.qualified_name}\0{case.original}")
    return remembered(known, key, lambda: _compile(case))


def remembered(known: dict[K, T | NoShadow], key: K, make: Callable[[], T]) -> T:
    """What `make` gave for the key, made once. Raises the NoShadow that it raised then."""
    if key not in known:
        try:
            known[key] = make()
        except NoShadow as reason:
            known[key] = reason
    found = known[key]
    if isinstance(found, NoShadow):
        raise found
    return found


def _compile(case: Case) -> Binary:
    selection = select(case.module, case.workload.kernel)
    if selection is None or case.kernel.has_error:
        raise NoShadow("its text is not understood")
    code = "\n".join(case.module.text(span) for span in selection.device_spans)
    words = (token.text for token in selection.device_tokens if token.kind == "word")
    if why := refusal(words, code, [(param.name, param.type) for param in case.kernel.params]):
        raise NoShadow(why)
    build, whole = _whole(case)
    try:
        return case.device.compile(build, widen(whole))
    except (CompileError, Unsupported) as error:
        first = error
    try:  # host code that needs float32 (a library's arguments): the kernel alone
        alone = slice_kernels(whole, str(build.file), [case.kernel.qualified_name])
        instances = {widened(names.demangle(launch.mangled)) for launch in case.launches if "<" in launch.demangled}
        text = _HEADERS + widen(alone) + "".join(f"\ntemplate __global__ {instance};" for instance in sorted(instances))
        return case.device.compile(build, text)
    except (ToolchainError, Unsupported, SourceError) as error:
        raise NoShadow(f"it does not compile in float64 ({str(first).splitlines()[0]})") from error


def _whole(case: Case) -> tuple[Build, str]:
    """The file, or the source that a header is compiled with, with the project's own headers in place."""
    build, text = unit_of(case.build, case.original)
    folders = [build.directory / flag[2:] for flag in build.flags if flag.startswith("-I")]
    return build, with_headers(text, build.file, folders)


def widened(demangled: str) -> str:
    return re.sub(r"\bfloat([1-4]?)\b", r"double\1", demangled)


# ---------------------------------------------------------------- a launch


def launch_step(case: Case, index: int, change: Mapping[str, Any]) -> jobs.Step:
    """Launch `index` for the shadow: float32 buffers and parameters hold the same numbers as float64, outputs are
    poisoned alike. `change` (see `jobs.values_init`) perturbs the numbers first. Raises NoShadow."""
    launch, made = case.launches[index], binary(case)
    kinds = dtypes(case, index)
    for slot in case.slots(index):
        if slot.dtype != "f32" and slot.dtype not in _SCALARS:
            raise NoShadow(f"{slot.name} holds {'memory of unknown type' if slot.dtype == 'bytes' else slot.dtype}")
    step = jobs.launch_step(
        SHADOW,
        SHADOW,
        launch,
        kernel=_kernel(made, launch),
        shared=2 * launch.shared,
        args=_args(case, launch, kinds),
        inits=changed_inits(case, index, change, widen=True),
    )
    for b, poison in poison_of(case, index, case.baseline(index).poisoned, 0).items():
        size = step["buffers"][b]["size"]
        step["buffers"][b]["poison"] = (
            [[0, size, PATTERNS["f64"][0]]] if kinds[b] == "f32" else [list(p) for p in poison]
        )
    for b, kind in enumerate(kinds[: len(launch.buffers)]):
        if kind == "f32":
            step["buffers"][b]["size"] = 2 * launch.buffers[b].size // 8 * 8
    step["globals"] = [[symbol, _global(case, symbol, init)] for symbol, init in step["globals"]]
    return step


def changed_inits(
    case: Case, index: int, change: Mapping[str, Any], *, widen: bool = False
) -> dict[int, dict[str, Any]]:
    """New initial bytes by buffer, for what the original reads: `last-bit` perturbs float32, `random` every known type
    (see `jobs.values_init`). With `widen` also every float32 buffer as float64."""
    found = {}
    poisoned = case.baseline(index).poisoned
    for b, (buffer, slot) in enumerate(zip(case.launches[index].buffers, case.slots(index), strict=True)):
        wide = widen and slot.dtype == "f32"
        perturbed = slot.dtype == "f32" or (change.get("change") == "random" and slot.dtype != "bytes")
        more = change if perturbed and b not in poisoned else {}
        if wide or more:
            found[b] = jobs.values_init({"blobs": list(buffer.before)}, slot.dtype, widen=wide, **more)
    return found


def _kernel(made: Binary, launch: Launch) -> str:
    def loose(text: str) -> str:
        text = re.sub(r"\b(const|volatile|__restrict__)\b", "", names.split(text)[0] + "|" + names.split(text)[1])
        return re.sub(r"\s+", "", text.replace("long long", "long"))

    wanted = loose(widened(names.demangle(launch.mangled)))
    found = [name for name in made.kernels if loose(names.demangle(name)) == wanted]
    if len(found) != 1:
        raise NoShadow("a type that its parameters name stays float32")
    return found[0]


def _args(case: Case, launch: Launch, kinds: list[Any]) -> list[Arg]:
    """The parameter block of the shadow: every parameter at the next multiple of its alignment."""
    types = names.param_types(launch.mangled) or tuple(param.type for param in case.kernel.params)
    args = sorted(launch.args, key=lambda arg: arg.offset)
    if len(types) != len(args):
        raise NoShadow("its parameters are not known by type")
    placed: list[Arg] = []
    whole = _whole(case)[1]
    end = 0
    for type_, arg in zip(types, args, strict=True):
        enum = _is_enum(whole, plain(type_))
        data, pointers, align = (arg.data, (), len(arg.data)) if enum else _argument(type_, arg, kinds)
        offset = -(-end // align) * align
        placed.append(Arg(offset, data, pointers))
        end = offset + len(data)
    return placed


def _is_enum(text: str, type_: str) -> bool:
    name = re.escape(type_.rpartition("::")[2])
    return (
        re.search(rf"\benum\s+(?:class\s+|struct\s+)?{name}\b|\benum\b[^;{{}}]*\{{[^}}]*\}}\s*{name}\b", text)
        is not None
    )


def _argument(type_: str, arg: Arg, kinds: list[Any]) -> tuple[bytes, tuple[Pointer, ...], int]:
    if "*" in type_ and len(arg.data) == 8:
        moved = tuple(
            Pointer(p.at, p.buffer, p.offset * 2 if kinds[p.buffer] == "f32" else p.offset) for p in arg.pointers
        )
        return arg.data, moved, 8
    kind = element_of(type_)
    if kind == "bytes" or kind not in _SCALARS | {"f32"} or arg.pointers:
        raise NoShadow(f"a parameter is a {plain(type_)}")
    count, data = len(arg.data) // SIZES[kind], arg.data
    if kind == "f32":
        data = struct.pack(f"<{count}d", *struct.unpack(f"<{count}f", data))
    width = len(data) // count
    return data, (), min(16, width * count) if count in (1, 2, 4) else width


def _global(case: Case, symbol: str, init: Mapping[str, Any]) -> Mapping[str, Any]:
    """A `__constant__` or `__device__` variable: float64 where the text declares it as floats."""
    name = names.demangle(symbol).rpartition("::")[2]
    declared = re.search(
        rf"(?:__constant__|__device__)\s+(?:const\s+|static\s+|__\w+__\s+)*((?:\w+\s+)*?\w+)\s+{re.escape(name)}\b",
        _whole(case)[1],
    )
    kind = element_of(declared[1]) if declared else "bytes"
    if kind == "f32":
        return jobs.values_init(init, "f32", widen=True)
    if kind not in _SCALARS:
        raise NoShadow(f"the global {name} is of no known type")
    return init
