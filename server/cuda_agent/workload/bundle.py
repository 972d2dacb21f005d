"""The one format of inputs: a folder with `launch.json` and `blobs/<sha256>.zst`.

A buffer's bytes are cut into chunks of 64 KiB·k; each chunk is a blob named by the SHA-256 of its raw bytes, so equal
chunks (zeros, memory a launch left alone) are stored once. Everything is written to a temporary name and renamed: a
bundle is whole or absent.
Sizes are bytes. Errors: WorkloadError, naming the file, for anything missing, broken or not of this version.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import zstandard

from cuda_agent.errors import WorkloadError
from cuda_agent.model import Arg, Buffer, Dim3, Launch, Launched, Pointer, Workload
from cuda_agent.paths import project_folders
from cuda_agent.toolchain import names
from cuda_agent.workload import elements
from cuda_agent.workload.elements import ElementType

VERSION = 1
UNIT = 64 * 1024
CHUNK = 64 * UNIT  # 4 MiB: few enough names for a gigabyte, small enough that untouched parts are shared
SMALL = 16 * 1024 * 1024  # below this, chunks of one UNIT: better sharing between launches

Origin = Literal["captured", "spec", "synthetic"]


def safe_name(kernel: str) -> str:
    """A folder name for a kernel's qualified name: `ns::k<int>` → `ns.k_int_`; never empty, at most 100 characters."""
    text = re.sub(r"[^A-Za-z0-9_.-]", "_", kernel.replace("::", ".")).lstrip(".") or "_"
    if len(text) > 100:
        text = text[:87] + "-" + hashlib.sha256(kernel.encode()).hexdigest()[:12]
    return text


def write_atomic(path: Path, data: bytes) -> None:
    """Writes `data` under a temporary name beside `path` and renames it. WorkloadError when the disk refuses."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:16]}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise WorkloadError(
                f"No space left to write {path}. Free some disk space or lower the capture's byte cap."
            ) from error
        raise WorkloadError(f"Cannot write {path}: {error.strerror or error}.") from error


class BlobStore:
    """Content-addressed chunks in one folder. `get` checks every chunk against its name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def put(self, data: bytes | bytearray | memoryview) -> tuple[str, ...]:
        """Stores `data` and returns the names of its chunks in order; () for no bytes."""
        view = memoryview(data).cast("B")
        size = UNIT if len(view) <= SMALL else CHUNK
        return tuple(self._put_chunk(view[at : at + size]) for at in range(0, len(view), size))

    def put_file(self, path: Path) -> tuple[str, ...]:
        """`put` for a file's content, with few chunks in memory at a time. Hashing and compressing release the
        interpreter's lock, so large files use several cores."""
        try:
            length = path.stat().st_size
            if length <= SMALL:
                return self.put(path.read_bytes())
            starts = range(0, length, CHUNK)
            with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                return tuple(pool.map(lambda start: self._put_part(path, start), starts))
        except OSError as error:
            raise WorkloadError(f"Cannot read {path}: {error.strerror or error}.") from error

    def _put_part(self, path: Path, start: int) -> str:
        with path.open("rb") as file:
            file.seek(start)
            return self._put_chunk(memoryview(file.read(CHUNK)))

    def file(self, name: str) -> Path:
        return self.path / f"{name}.zst"

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.file(name).is_file()

    def get(self, blobs: str | Iterable[str]) -> bytes:
        """The bytes of these chunks, joined. WorkloadError when one is missing or does not match its name."""
        return b"".join(self._get_chunk(name) for name in ([blobs] if isinstance(blobs, str) else blobs))

    read = get

    def copy_from(self, other: BlobStore, name: str) -> None:
        """Takes one chunk over from another store; checked on the way."""
        if name not in self:
            self._put_chunk(memoryview(other.get(name)))

    def _put_chunk(self, chunk: memoryview) -> str:
        name = hashlib.sha256(chunk).hexdigest()
        if name not in self:
            write_atomic(self.file(name), zstandard.ZstdCompressor(level=-1).compress(chunk))
        return name

    def _get_chunk(self, name: str) -> bytes:
        path = self.file(name)
        try:
            data = zstandard.ZstdDecompressor().decompress(path.read_bytes())
        except FileNotFoundError as error:
            raise WorkloadError(f"The blob {path} is missing: capture this kernel again.") from error
        except (OSError, zstandard.ZstdError) as error:
            raise WorkloadError(f"The blob {path} is broken ({error}): capture this kernel again.") from error
        if hashlib.sha256(data).hexdigest() != name:
            raise WorkloadError(f"The blob {path} does not hold the bytes it is named for: capture this kernel again.")
        return data


def save(folder: Path, workload: Workload) -> Workload:
    """Writes `launch.json` into `folder`, and into `folder/blobs` the blobs that are not there yet (taken from
    `workload.blobs`). Returns the workload as `load` would give it."""
    store, source = BlobStore(folder / "blobs"), BlobStore(workload.blobs)
    if source.path.resolve() != store.path.resolve():
        for name in sorted(blob_names(workload)):
            store.copy_from(source, name)
    saved = replace(workload, root=folder, blobs=store.path)
    write_atomic(folder / "launch.json", json.dumps(to_json(saved), indent=1).encode())
    return saved


def blob_names(workload: Workload) -> set[str]:
    """Every blob the workload refers to."""
    found: set[str] = set()
    for launch in workload.launches:
        for buffer in launch.buffers:
            found.update(buffer.before, buffer.after or ())
        for _, chunks in launch.globals:
            found.update(chunks)
    return found


def prune(folder: Path, workload: Workload) -> None:
    """Removes blobs of `folder` that the workload does not use."""
    keep = {f"{name}.zst" for name in blob_names(workload)}
    for path in (folder / "blobs").glob("*.zst"):
        if path.name not in keep:
            path.unlink(missing_ok=True)


def load(folder: Path, kernel: str | None = None) -> Workload:
    """Reads a bundle. `folder` is the bundle, or a folder of bundles (`.cuda-agent/captures`) and `kernel` says which.

    Raises WorkloadError when there is none, when `kernel` is another one, or when it is broken. Blobs are checked
    when read.
    """
    path = folder / "launch.json"
    if not path.is_file():
        bundles = sorted(entry.parent for entry in folder.glob("*/launch.json"))
        if kernel is None and len(bundles) == 1:
            return load(bundles[0])
        for bundle in bundles:
            if kernel is not None and bundle.name == safe_name(kernel):
                return load(bundle, kernel)
        held = ", ".join(entry.name for entry in bundles) or "no bundle"
        wanted = f" of kernel {kernel}" if kernel else ""
        raise WorkloadError(
            f"There is no capture{wanted} in {folder} (it holds {held}). Run `cuda-agent capture` first."
        )
    try:
        workload = from_json(json.loads(path.read_text()), folder)
    except OSError as error:
        raise WorkloadError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WorkloadError(
            f"{path} is broken ({type(error).__name__}: {error}): capture this kernel again."
        ) from error
    if kernel is not None and not same_kernel(workload.kernel, kernel):
        raise WorkloadError(f"{path} holds launches of {workload.kernel}, not of {kernel}.")
    return workload


def same_kernel(a: str, b: str) -> bool:
    """Equal qualified names, or one of them spelled with fewer namespaces (`k` and `ns::k`)."""
    a, b = (name.replace("(anonymous namespace)::", "").removeprefix("::") for name in (a, b))
    return a == b or a.endswith("::" + b) or b.endswith("::" + a)


def find(source_file: Path, kernel: str | None = None) -> Workload | None:
    """The newest capture of `kernel` (of any kernel when None) in the nearest `.cuda-agent/captures` at or above the
    file's folder, within its project; None when there is none. Raises WorkloadError when it is broken."""
    for folder in project_folders(Path(os.path.abspath(source_file))):
        found: list[tuple[float, Path]] = []
        for entry in (folder / ".cuda-agent" / "captures").glob("*/launch.json"):
            with contextlib.suppress(FileNotFoundError):
                found.append((entry.stat().st_mtime, entry.parent))
        exact = [item for item in found if kernel is not None and item[1].name == safe_name(kernel)]
        for _, bundle in sorted(exact, reverse=True) + sorted(found, reverse=True):
            workload = load(bundle)
            if kernel is None or same_kernel(workload.kernel, kernel):
                return workload
    return None


def signature(launch: Launch, types: Sequence[str] | None = None) -> tuple[ElementType, ...]:
    """Element type of every buffer of the launch, from the instantiation's parameter types (`elements.signature`).

    An `extern "C"` kernel's name carries no types: give `types`, its parameters as spelled in the source; else all
    is `bytes`.
    """
    return elements.signature(launch, names.param_types(launch.mangled) or tuple(types or ()))


# ---------------------------------------------------------------- JSON


def to_json(workload: Workload) -> dict[str, Any]:
    return {
        "version": VERSION,
        "kernel": workload.kernel,
        "origin": workload.origin,
        "device": workload.device,
        "command": list(workload.command),
        "environment": dict(workload.environment),
        "tolerance": dict(workload.tolerance),
        "seen": workload.seen,
        "varied": None if workload.varied is None else sorted(workload.varied),
        "shapes": None if workload.shapes is None else _shapes_to_json(workload.shapes),
        "ended": workload.ended,
        "launches": [_launch_to_json(launch) for launch in workload.launches],
    }


def _shapes_to_json(shapes: Iterable[Launched]) -> dict[str, list[list[int]]]:
    """By mangled name: grid, block, dynamic shared bytes."""
    found: dict[str, list[list[int]]] = {}
    for one in shapes:
        found.setdefault(one.mangled, []).append([*one.grid, *one.block, one.shared])
    return {mangled: sorted(found[mangled]) for mangled in sorted(found)}


def _shapes_from_json(data: Mapping[str, Any]) -> frozenset[Launched]:
    return frozenset(
        Launched(str(mangled), _dim3(one[:3]), _dim3(one[3:6]), int(one[6]))
        for mangled, all_ in data.items()
        for one in all_
    )


def _launch_to_json(launch: Launch) -> dict[str, Any]:
    return {
        "seq": launch.seq,
        "mangled": launch.mangled,
        "demangled": launch.demangled,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "shared": launch.shared,
        "args": [
            {
                "offset": arg.offset,
                "hex": arg.data.hex(),
                "pointers": [[p.at, p.buffer, p.offset] for p in arg.pointers],
            }
            for arg in launch.args
        ],
        "buffers": [
            {
                "address": buffer.address,
                "size": buffer.size,
                "before": list(buffer.before),
                "after": None if buffer.after is None else list(buffer.after),
                "written": None if buffer.written is None else [list(pair) for pair in buffer.written],
            }
            for buffer in launch.buffers
        ],
        "globals": [[symbol, list(chunks)] for symbol, chunks in launch.globals],
    }


def from_json(data: Mapping[str, Any], folder: Path) -> Workload:
    """Raises ValueError, KeyError or TypeError for what is not a bundle of this version (`load` names the file)."""
    if data["version"] != VERSION:
        raise ValueError(f"bundle version {data['version']}, this program reads {VERSION}")
    if data["origin"] not in get_args(Origin):
        raise ValueError(f"unknown origin {data['origin']!r}")
    return Workload(
        kernel=str(data["kernel"]),
        origin=data["origin"],
        launches=tuple(_launch_from_json(launch) for launch in data["launches"]),
        root=folder,
        blobs=folder / "blobs",
        device=str(data["device"]),
        command=tuple(map(str, data["command"])),
        environment={str(k): str(v) for k, v in data["environment"].items()},
        tolerance={str(k): float(v) for k, v in data["tolerance"].items()},
        seen=int(data.get("seen", 0)),
        varied=None if data.get("varied") is None else frozenset(map(int, data["varied"])),
        shapes=None if data.get("shapes") is None else _shapes_from_json(data["shapes"]),
        ended=bool(data.get("ended", False)),
    )


def _launch_from_json(data: Mapping[str, Any]) -> Launch:
    buffers = tuple(
        Buffer(
            address=int(entry["address"]),
            size=int(entry["size"]),
            before=_names(entry["before"]),
            after=None if entry["after"] is None else _names(entry["after"]),
            written=None if entry["written"] is None else tuple((int(s), int(e)) for s, e in entry["written"]),
        )
        for entry in data["buffers"]
    )
    args = tuple(_arg_from_json(arg, buffers) for arg in data["args"])
    return Launch(
        mangled=str(data["mangled"]),
        demangled=str(data["demangled"]),
        grid=_dim3(data["grid"]),
        block=_dim3(data["block"]),
        shared=int(data["shared"]),
        args=args,
        buffers=buffers,
        seq=int(data["seq"]),
        globals=tuple((str(symbol), _names(chunks)) for symbol, chunks in data["globals"]),
    )


def _arg_from_json(data: Mapping[str, Any], buffers: Sequence[Buffer]) -> Arg:
    raw = bytes.fromhex(data["hex"])
    pointers = tuple(Pointer(int(at), int(buffer), int(offset)) for at, buffer, offset in data["pointers"])
    for pointer in pointers:
        if not (0 <= pointer.at <= len(raw) - 8 and 0 <= pointer.buffer < len(buffers)):
            raise ValueError(f"pointer {pointer} lies outside its argument or names no buffer")
    return Arg(offset=int(data["offset"]), data=raw, pointers=pointers)


def _names(value: Any) -> tuple[str, ...]:
    found = tuple(value)
    for name in found:
        # Names become file names: nothing but a digest may pass.
        if not (isinstance(name, str) and re.fullmatch(r"[0-9a-f]{64}", name)):
            raise ValueError(f"{name!r} is not a blob name")
    return found


def _dim3(value: Any) -> Dim3:
    x, y, z = (int(v) for v in value)
    return x, y, z
