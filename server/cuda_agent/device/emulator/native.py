"""The emulator's runtime as Python sees it: its objects built once, a compiled module loaded, kernels launched.

A module is a shared object made by g++ from translated CUDA C++ and linked with the runtime (README.md). Its kernels
are launched by mangled name from the raw bytes of a CUDA parameter block; memory is this process's.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from cuda_agent.device.emulator.lines import Lines
from cuda_agent.errors import CompileError, DeviceError, ToolMissing

_HERE = Path(__file__).parent
_CAPTURE = _HERE.parent.parent / "capture" / "native"  # record.h, shared with the CUPTI injection

# Floating point must not depend on what g++ contracts: original and candidate are compared bit for bit.
_COMMON = (
    "-fPIC",
    "-pthread",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-gnu-unique",  # two loaded modules must not share the statics of their templates
    "-fno-reorder-blocks-and-partition",  # a kernel stays one symbol
    "-fstack-clash-protection",  # a too large frame meets the guard page
    "-Wno-attributes",
    "-D__CUDACC__=1",
    "-D__NVCC__=1",
    "-D__CUDACC_VER_MAJOR__=13",
    "-D__CUDACC_VER_MINOR__=0",
)
# One instrumented access for one access in the text: nothing that merges, splits, vectorises or duplicates them.
_TRACED = (
    "-O1",
    "-g",
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "--param=tsan-distinguish-volatile=1",
    "-fno-tree-sra",
    "-fno-ipa-sra",
    "-fno-tree-vectorize",
    "-fno-store-merging",
    "-fno-tree-loop-distribute-patterns",
    "-fno-tree-tail-merge",
    "-fno-crossjumping",
    "-fno-optimize-sibling-calls",
)


def compiler() -> str:
    """The host compiler's path (CUDA_AGENT_CXX, else g++). Raises ToolMissing."""
    name = os.environ.get("CUDA_AGENT_CXX", "g++")
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(f"the emulator needs a C++ compiler, and {name} is not installed: apt install g++")
    return found


def include_dir() -> Path:
    return _HERE / "include"


def compile_flags(traced: bool) -> tuple[str, ...]:
    """Flags of g++ for a translated unit, without `-std`, input and output."""
    return (*_COMMON, *(_TRACED if traced else ("-O2", "-g1")), f"-I{include_dir()}")


def link_flags(shared: bool) -> tuple[str, ...]:
    """Flags that follow the objects; `shared` makes a module for `Module.load`."""
    if shared:
        return ("-shared", "-Wl,-Bsymbolic", "-Wl,-z,now", "-pthread", "-ldl")
    return ("-pthread", "-ldl")


def cache_root() -> Path:
    chosen = os.environ.get("CUDA_AGENT_CACHE")
    return (Path(chosen) if chosen else Path.home() / ".cache" / "cuda-agent") / "native"


@functools.cache
def _runtime_key(compiler_path: str) -> str:
    digest = hashlib.sha256(subprocess.run([compiler_path, "--version"], capture_output=True, check=False).stdout)
    digest.update(repr(_runtime_flags()).encode())
    for path in _runtime_inputs():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _runtime_inputs() -> list[Path]:
    folders = (_HERE / "runtime", _HERE / "include", _CAPTURE)
    return sorted(
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.suffix in (".h", ".cpp", ".cuh")
    )


def _runtime_flags() -> tuple[str, ...]:
    return (
        "-std=c++17",
        "-O2",
        "-g1",
        "-fPIC",
        "-pthread",
        "-fvisibility=default",
        "-fno-gnu-unique",
        f"-I{include_dir()}",
        f"-I{_HERE / 'runtime'}",
        f"-I{_CAPTURE}",
    )


def runtime_objects() -> tuple[Path, ...]:
    """The runtime's object files, compiled on first use into the cache. Raises ToolMissing, CompileError."""
    cxx = compiler()
    folder = cache_root() / _runtime_key(cxx)
    sources = sorted((_HERE / "runtime").glob("*.cpp"))
    objects = tuple(folder / f"{source.stem}.o" for source in sources)
    if all(path.is_file() for path in objects):
        return objects
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        jobs = [
            (source, Path(scratch) / f"{source.stem}.o", target)
            for source, target in zip(sources, objects, strict=True)
            if not target.is_file()
        ]
        _compile_all(cxx, jobs)
    return objects


def _compile_all(cxx: str, jobs: Sequence[tuple[Path, Path, Path]]) -> None:
    """Compile (source, scratch object, final object), one for each core at once; each moves into place whole."""
    width = max(1, os.cpu_count() or 1)
    for start in range(0, len(jobs), width):
        running = []
        for source, scratch, target in jobs[start : start + width]:
            command = [cxx, *_runtime_flags(), "-c", str(source), "-o", str(scratch)]
            running.append(
                (
                    subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True),
                    scratch,
                    target,
                )
            )
        for process, scratch, target in running:
            output, _ = process.communicate()
            if process.returncode != 0:
                raise CompileError(
                    f"the emulator's runtime does not compile with {cxx}; this is a bug, please report it", output
                )
            os.replace(scratch, target)


def compile_shared(
    source: Path, output: Path, flags: Sequence[str] = (), traced: bool = False, std: str = "gnu++17"
) -> None:
    """Compile one translated unit into a module. Raises CompileError with g++'s diagnostics, ToolMissing."""
    command = [compiler(), f"-std={std}", *compile_flags(traced), *flags, "-x", "c++", str(source), "-x", "none"]
    command += [*map(str, runtime_objects()), *link_flags(True), "-o", str(output)]
    # -fsanitize=thread must not reach the linker, which would add libtsan: compile and link apart.
    with tempfile.TemporaryDirectory() as scratch:
        unit = Path(scratch) / "unit.o"
        split = command.index("none") + 1
        _call([*command[:split], "-c", "-o", str(unit)], source)
        _call([compiler(), str(unit), *command[split:]], source)


def _call(command: Sequence[str], source: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise CompileError(f"g++ refused {source.name}", done.stderr)


# ---------------------------------------------------------------- a loaded module


@dataclass(frozen=True, slots=True)
class KernelInfo:
    mangled: str
    offsets: tuple[int, ...]  # of the parameters in the parameter block
    sizes: tuple[int, ...]
    bytes: int  # of the parameter block


@dataclass(frozen=True, slots=True)
class GlobalInfo:
    mangled: str
    name: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class LaunchOutcome:
    """`error` is None when the grid ran to its end. The rest is empty unless `trace` was asked for.

    findings: {kind, line, file, block, thread, buffer, at, text, other_line?}; traffic: {requests, sectors, bytes, …,
    by_line}; written: per region the byte ranges that were stored to; notes: what the tracer left out, in sentences.
    """

    error: str | None
    seconds: float
    findings: list[dict[str, Any]] = field(default_factory=list)
    traffic: dict[str, Any] = field(default_factory=dict)
    written: list[list[tuple[int, int]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _table(rows: Sequence[tuple[int, ...]]) -> ctypes.Array[ctypes.c_uint64]:
    flat = [number for row in rows for number in row]
    return (ctypes.c_uint64 * max(1, len(flat)))(*flat)


class Module:
    """A shared object with kernels, loaded into this process. Not thread-safe: one launch at a time."""

    _stacks: ClassVar[int | None] = None  # of kernel threads, reserved by the first module and used by all

    def __init__(self, path: Path, *, owned: bool) -> None:
        self.path = path
        self._owned = owned
        self._library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self._declare()
        Module._stacks = self._library.cuemu_share_stacks(Module._stacks) or Module._stacks
        self._lines = Lines(path)
        self._kernels = [
            KernelInfo(k["mangled"], tuple(k["offsets"]), tuple(k["sizes"]), k["bytes"])
            for k in self._json(self._library.cuemu_kernels)
        ]

    @classmethod
    def load(cls, module: str | Path | bytes) -> Module:
        """Load from a path or from the object's bytes. Raises DeviceError when it is not a module of this machine."""
        if isinstance(module, bytes):
            handle, name = tempfile.mkstemp(prefix="cuda-agent-", suffix=".so")
            with os.fdopen(handle, "wb") as file:
                file.write(module)
            path, owned = Path(name), True
        else:
            path, owned = Path(module).resolve(), False
        try:
            return cls(path, owned=owned)
        except (OSError, AttributeError) as error:
            if owned:
                path.unlink(missing_ok=True)
            raise DeviceError(
                f"the emulator cannot load this module: {error}; build it again on this machine"
            ) from error

    def _declare(self) -> None:
        lib = self._library
        lib.cuemu_kernels.restype = ctypes.c_void_p
        lib.cuemu_globals.restype = ctypes.c_void_p
        lib.cuemu_launch.restype = ctypes.c_void_p
        lib.cuemu_launch.argtypes = [
            ctypes.c_char_p,
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.c_uint64,
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_int,
            ctypes.c_uint32,
            ctypes.c_uint32,
        ]
        lib.cuemu_written.restype = ctypes.POINTER(ctypes.c_uint64)
        lib.cuemu_written.argtypes = [ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]
        lib.cuemu_writer.restype = ctypes.c_void_p
        lib.cuemu_writer.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        lib.cuemu_free.argtypes = [ctypes.c_void_p]
        lib.cuemu_share_stacks.restype = ctypes.c_void_p
        lib.cuemu_share_stacks.argtypes = [ctypes.c_void_p]
        lib.cuemu_shutdown.restype = None
        lib.cuemu_cancel.restype = None

    def _json(self, function: Any, *args: Any) -> Any:
        pointer = function(*args)
        try:
            return json.loads(ctypes.string_at(pointer))
        finally:
            self._library.cuemu_free(pointer)

    def kernels(self) -> list[KernelInfo]:
        return list(self._kernels)

    def globals(self) -> list[GlobalInfo]:
        return [
            GlobalInfo(g["mangled"], g["name"], g["address"], g["size"])
            for g in self._json(self._library.cuemu_globals)
        ]

    def launch(
        self,
        mangled: str,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        args: bytes,
        regions: Sequence[tuple[int, int]] = (),
        unwritten: Sequence[tuple[int, int, int]] = (),
        trace: bool = False,
        seed: int = 0,
        threads: int = 0,
        guard: int = 4096,
    ) -> LaunchOutcome:
        """Run the grid and wait. `args` is the parameter block; `regions`: (address, size) of the buffers it may touch.

        `unwritten`: (region's index, start, end) of bytes that hold no value; a traced launch reports reads of them
        before a write. `guard`: bytes on each side of a region that a stray access may fall into without harm (it is
        reported); a write farther off stops the launch. `seed` permutes the order in which threads run to their next
        barrier; `threads` is the number of OS threads, 0 for all cores. Raises DeviceError for an unknown kernel or a
        short parameter block.
        """
        kernel = next((k for k in self._kernels if k.mangled == mangled), None)
        if kernel is None:
            raise DeviceError(
                f"the module has no kernel {mangled}; it has {', '.join(k.mangled for k in self._kernels) or 'none'}"
            )
        if len(args) < kernel.bytes:
            raise DeviceError(f"kernel {mangled} takes {kernel.bytes} bytes of parameters, {len(args)} were given")
        dims = (ctypes.c_uint32 * 6)(*grid, *block)
        raw = self._json(
            self._library.cuemu_launch,
            mangled.encode(),
            dims,
            shared,
            args,
            len(args),
            _table(regions),
            len(regions),
            _table(unwritten),
            len(unwritten),
            guard,
            int(trace),
            seed,
            threads,
        )
        return self._outcome(raw, len(regions) if trace else 0)

    def _outcome(self, raw: Mapping[str, Any], regions: int) -> LaunchOutcome:
        pcs = [f["pc"] for f in raw.get("findings", [])] + [f["other_pc"] for f in raw.get("findings", [])]
        pcs += [site["pc"] for site in raw.get("sites", [])] + [raw["error_pc"]]
        self._lines.resolve(pc for pc in pcs if pc)
        error = raw["error"] or None
        if error is not None and raw["error_pc"] and (where := self._lines.line(raw["error_pc"])):
            error += f" at line {where.line} of {where.file}"
        if error is not None:
            block, thread = raw["error_block"], raw["error_thread"]
            error += f" (block {tuple(block)}, thread {tuple(thread)})"
        return LaunchOutcome(
            error=error,
            seconds=raw["seconds"],
            findings=[found for f in raw.get("findings", []) if (found := self._finding(f)) is not None],
            traffic=self._traffic(raw) if "sites" in raw else {},
            written=[self._written(index) for index in range(regions)],
            notes=list(raw.get("notes", [])),
        )

    def _finding(self, raw: Mapping[str, Any]) -> dict[str, Any] | None:
        where, other = self._lines.line(raw["pc"]), self._lines.line(raw["other_pc"])
        if raw["kind"] == "barrier-divergence" and where is not None and where == other:
            return None  # the compiler made two copies of one barrier
        found = {key: raw[key] for key in ("kind", "block", "thread", "buffer", "at", "text")}
        found["line"] = where.line if where else None
        found["file"] = where.file if where else None
        if other is not None:
            found["other_line"] = other.line
            found["text"] += f" (the other access: line {other.line})"
        return found

    def _traffic(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        names = ("requests", "sectors", "bytes", "shared_requests", "wavefronts", "bank_conflicts", "atomics", "lanes")
        total: dict[str, Any] = dict.fromkeys(names, 0)
        by_line: dict[int, dict[str, Any]] = {}
        for site in raw["sites"]:
            where = self._lines.line(site["pc"])
            line = by_line.setdefault(
                where.line if where else 0, dict.fromkeys((*names, "load_sectors", "store_sectors"), 0)
            )
            for name in names:
                total[name] += site[name]
                line[name] += site[name]
            line["store_sectors" if site["write"] else "load_sectors"] += site["sectors"]
        total["by_line"] = dict(sorted(by_line.items()))
        total["sampled_blocks"], total["blocks"] = raw["sampled_blocks"], raw["blocks"]
        return total

    def _written(self, region: int) -> list[tuple[int, int]]:
        count = ctypes.c_uint64()
        pairs = self._library.cuemu_written(region, ctypes.byref(count))
        return [(pairs[2 * i], pairs[2 * i + 1]) for i in range(count.value)]

    def writer(self, region: int, at: int) -> dict[str, Any] | None:
        """{block, thread, line} of the last store to byte `at` of a region in the last traced launch; None when nobody
        stored there or it is not known."""
        raw = self._json(self._library.cuemu_writer, region, at)
        if raw is None:
            return None
        self._lines.resolve([raw["pc"]] if raw["pc"] else [])
        where = self._lines.line(raw["pc"])
        return {"block": raw["block"], "thread": raw["thread"], "line": where.line if where else None}

    def cancel(self) -> None:
        """Ask the running launch to stop at its next barrier or block; callable from another thread."""
        self._library.cuemu_cancel()

    def read_global(self, mangled: str) -> bytes:
        """The bytes of a __device__ or __constant__ variable. Raises DeviceError when there is none of that name."""
        info = self._global(mangled)
        return ctypes.string_at(info.address, info.size)

    def write_global(self, mangled: str, data: bytes) -> None:
        info = self._global(mangled)
        if len(data) > info.size:
            raise DeviceError(f"global {mangled} has {info.size} bytes, {len(data)} were given")
        ctypes.memmove(info.address, data, len(data))

    def _global(self, mangled: str) -> GlobalInfo:
        for info in self.globals():
            if mangled in (info.mangled, info.name):
                return info
        raise DeviceError(f"the module has no global {mangled}")

    def close(self) -> None:
        """Join the runtime's threads and unload. The module must not be used afterwards."""
        import _ctypes

        self._library.cuemu_shutdown()
        _ctypes.dlclose(self._library._handle)
        if self._owned:
            self.path.unlink(missing_ok=True)
