"""`kernels.toml`: inputs of a kernel as a person writes them down. The format: docs/kernels-toml.md.

Every error is a UsageError that names the file and the key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

from cuda_agent.errors import NoInputs, UsageError, WorkloadError
from cuda_agent.model import Arg, Buffer, Dim3, Kernel, Launch, Pointer, Workload
from cuda_agent.source.symbols import Module
from cuda_agent.toolchain import names
from cuda_agent.workload import bundle, launch_map, layout
from cuda_agent.workload.layout import Concrete, Values

_KERNEL_KEYS = frozenset({"name", "template", "sizes", "grid", "block", "shared", "args", "tolerance", "launch"})
_LAUNCH_KEYS = frozenset({"sizes", "grid", "block", "shared", "args"})
_ARG_KEYS = frozenset({"count", "values", "seed", "low", "high", "value", "data"})
_MOST = 1 << 34  # bytes a buffer


class _At:
    """Where in the file we are, for messages."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key

    def __truediv__(self, key: str) -> _At:
        return _At(self.path, f"{self.key}.{key}" if self.key else key)

    def fail(self, problem: str) -> NoReturn:
        raise UsageError(f"{self.path}: {self.key}: {problem}.")


def load(path: Path, module: Module, kernel: Kernel) -> Workload | None:
    """The workload that `kernels.toml` describes for `kernel`, None when it says nothing about it.

    Its bundle is written to `.cuda-agent/spec/<kernel>/` beside the file. Raises UsageError for what is wrong in the
    file, WorkloadError when the bundle cannot be written.
    """
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot read {path}: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}.") from error
    top = _At(path, "")
    _known(data, {"kernel"}, top)
    entries = data.get("kernel", [])
    if not isinstance(entries, list):
        (top / "kernel").fail("write [[kernel]], once for each kernel")
    for number, entry in enumerate(entries):
        at = top / f"kernel[{number}]"
        name = _text(entry.get("name"), at / "name")
        if bundle.same_kernel(name, kernel.qualified_name):
            return _Spec(entry, at / f"({name})", module, kernel).workload(path.parent)
    return None


def _known(table: Mapping[str, Any], allowed: frozenset[str] | set[str], at: _At) -> None:
    for key in table:
        if key not in allowed:
            (at / key).fail(f"unknown key; known are {', '.join(sorted(allowed))}")


def _text(value: Any, at: _At) -> str:
    if not isinstance(value, str) or not value:
        at.fail("a name in quotes is needed")
    return value


def _table(value: Any, at: _At) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        at.fail("a table is needed")
    return value


class _Spec:
    """One `[[kernel]]` entry against its kernel."""

    def __init__(self, entry: Mapping[str, Any], at: _At, module: Module, kernel: Kernel) -> None:
        self.entry, self.at, self.kernel = entry, at, kernel
        _known(entry, _KERNEL_KEYS, at)
        template = entry.get("template", [])
        if not isinstance(template, list):
            (at / "template").fail('a list of template arguments is needed, such as ["float", 4]')
        self.template = [
            str(argument).lower() if isinstance(argument, bool) else str(argument) for argument in template
        ]
        try:
            self.params = layout.concrete(kernel, self.template, module.document.text)
        except NoInputs as error:
            at.fail(str(error))
        for name in _table(entry.get("args", {}), at / "args"):
            if name not in {param.name for param in self.params}:
                (at / "args" / name).fail(f"{kernel.qualified_name} has no such parameter")

    def workload(self, directory: Path) -> Workload:
        home = directory / ".cuda-agent"
        folder = home / "spec" / bundle.safe_name(self.kernel.qualified_name)
        store = bundle.BlobStore(folder / "blobs")
        entries = self.entry.get("launch", [{}])
        if not isinstance(entries, list) or not entries:
            (self.at / "launch").fail("write [[kernel.launch]], once for each launch")
        launches = [self._launch(entry, self.at / f"launch[{i}]", i, store) for i, entry in enumerate(entries)]
        bundle.write_atomic(home / ".gitignore", b"*\n")
        saved = bundle.save(
            folder,
            Workload(
                kernel=self.kernel.qualified_name,
                origin="spec",
                launches=tuple(launches),
                root=folder,
                blobs=store.path,
                device="",
                tolerance=self._tolerance(),
            ),
        )
        bundle.prune(folder, saved)
        return saved

    def _tolerance(self) -> dict[str, float]:
        at = self.at / "tolerance"
        found = {}
        for name, value in _table(self.entry.get("tolerance", {}), at).items():
            if name not in {param.name for param in self.params if param.pointer}:
                (at / name).fail(f"{self.kernel.qualified_name} has no such pointer parameter")
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
                (at / name).fail("a relative tolerance between 0 and 1 is needed")
            found[name] = float(value)
        return found

    def _launch(self, entry: Mapping[str, Any], at: _At, number: int, store: bundle.BlobStore) -> Launch:
        _known(entry, _LAUNCH_KEYS, at)
        merged = {key: entry.get(key, self.entry.get(key)) for key in ("grid", "block", "shared")}
        sizes: dict[str, int] = {}
        for name, value in {**self.entry.get("sizes", {}), **_table(entry.get("sizes", {}), at / "sizes")}.items():
            sizes[name] = _integer(value, sizes, at / "sizes" / name)
        block = _dim3(merged["block"], sizes, at / "block")
        values = dict(sizes, bx=block[0], by=block[1], bz=block[2])
        grid = _dim3(merged["grid"], values, at / "grid")
        if block[0] * block[1] * block[2] > 1024:
            (at / "block").fail(f"{block} is more than 1024 threads")
        shared = _integer(merged["shared"] or 0, values, at / "shared")
        described = {**self.entry.get("args", {}), **_table(entry.get("args", {}), at / "args")}
        args, buffers = self._arguments(described, sizes, at / "args", store)
        mangled = layout.mangle(self.kernel, self.params, self.template)
        return Launch(mangled, names.demangle(mangled), grid, block, shared, args, buffers, number)

    def _arguments(
        self, described: Mapping[str, Any], sizes: Mapping[str, int], at: _At, store: bundle.BlobStore
    ) -> tuple[tuple[Arg, ...], tuple[Buffer, ...]]:
        args: list[Arg] = []
        buffers: list[Buffer] = []
        address = layout.BASE
        for position, (param, offset) in enumerate(zip(self.params, layout.offsets(self.params), strict=True)):
            value = described.get(param.name)
            if not param.pointer:
                if value is None and param.name in sizes:
                    value = sizes[param.name]
                args.append(Arg(offset, self._scalar(param, value, sizes, at / param.name)))
                continue
            data = self._buffer(param, value, sizes, at / param.name, position)
            args.append(Arg(offset, address.to_bytes(8, "little"), (Pointer(0, len(buffers), 0),)))
            buffers.append(Buffer(address, len(data), store.put(data), None))
            address += layout.spread(len(data))
        return tuple(args), tuple(buffers)

    def _scalar(self, param: Concrete, value: Any, sizes: Mapping[str, int], at: _At) -> bytes:
        if isinstance(value, dict):
            _known(value, {"value"}, at)
            value = value.get("value")
        if value is None:
            at.fail("give the value of this parameter, a number or an expression over the sizes")
        number = _integer(value, sizes, at) if isinstance(value, str) else value
        if not isinstance(number, int | float):
            at.fail(f"{number!r} is no number")
        try:
            return layout.scalar(param, number)
        except ValueError as error:
            at.fail(str(error))

    def _buffer(self, param: Concrete, value: Any, sizes: Mapping[str, int], at: _At, position: int) -> bytes:
        if value is None:
            at.fail('say how many elements this pointer leads to: { count = "rows * cols", values = "normal" }')
        table = _table(value, at)
        _known(table, _ARG_KEYS, at)
        if "data" in table:
            return self._literal(param, table["data"], at / "data")
        count = _integer(table.get("count"), sizes, at / "count")
        if count < 0 or count * param.size > _MOST:
            (at / "count").fail(f"{count} elements are out of range")
        values = table.get("values", "normal" if param.const else "zeros")
        if values not in get_args(Values):
            (at / "values").fail(f"{values!r} is none of {', '.join(get_args(Values))}")
        low, high = (_number(table.get(key, default), at / key) for key, default in (("low", 0.0), ("high", 1.0)))
        if values == "constant":
            low = _number(table.get("value"), at / "value")
        if values == "integers" and "high" not in table:
            (at / "high").fail("integers need a bound: values are in [low, high)")
        seed = _integer(table.get("seed", position + 1), sizes, at / "seed")
        return layout.fill(param.element, count * param.width, values, seed, low, high)

    def _literal(self, param: Concrete, value: Any, at: _At) -> bytes:
        if not isinstance(value, list) or not all(isinstance(v, int | float) for v in value):
            at.fail("a list of numbers is needed")
        import numpy as np

        return layout.encode(param.element, np.asarray(value, dtype=np.float64))


def _number(value: Any, at: _At) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        at.fail("a number is needed")
    return float(value)


def _integer(value: Any, sizes: Mapping[str, int], at: _At) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        at.fail("an integer or an expression over the sizes is needed")
    try:
        return launch_map.evaluate(value, sizes)
    except WorkloadError as error:
        at.fail(f"{error} (known are {', '.join(sizes) or 'no sizes'})")


def _dim3(value: Any, sizes: Mapping[str, int], at: _At) -> Dim3:
    entries: Sequence[Any] = value if isinstance(value, list) else [value]
    if value is None or not 1 <= len(entries) <= 3:
        at.fail("one to three numbers or expressions are needed")
    numbers = [_integer(entry, sizes, at) for entry in entries] + [1, 1]
    if min(numbers) < 1:
        at.fail(f"{numbers[: len(entries)]} has no threads")
    return numbers[0], numbers[1], numbers[2]
