"""Builds the CUPTI injection library: once, with the host's compiler, kept in the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cuda_agent import cache
from cuda_agent.errors import CompileError, ToolMissing
from cuda_agent.toolchain import nvcc

NATIVE = Path(__file__).parent / "native"
_BUILD_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Cupti:
    includes: tuple[Path, ...]
    library: Path


def _roots() -> Iterator[Path]:
    """Folders that may hold `include/cupti.h`, best first: the toolkit, its CUPTI folder, pip wheels."""
    try:
        root = nvcc.find().root
        yield from (root, root / "targets" / "x86_64-linux", root / "extras" / "CUPTI")
    except ToolMissing:
        pass  # A machine with only the wheels can capture too.
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield Path(os.environ[name])
            yield Path(os.environ[name]) / "extras" / "CUPTI"
    yield from (Path("/usr/local/cuda"), Path("/usr/local/cuda/extras/CUPTI"))
    for folder in sys.path:
        for wheel in ("nvidia/cu13", "nvidia/cuda_cupti", "nvidia/cu12", "nvidia/cuda_runtime"):
            yield Path(folder) / wheel


def _library(root: Path) -> Path | None:
    for folder in ("lib64", "lib"):
        found = sorted((root / folder).glob("libcupti.so*"), key=lambda path: (len(path.name), path.name))
        if found:
            return found[0]
    return None


def find_cupti() -> Cupti:
    """CUPTI's headers, cuda.h, and its library. Raises ToolMissing, which says what to install."""
    roots = [root for root in dict.fromkeys(_roots()) if root.is_dir()]
    header = next((r / "include" for r in roots if (r / "include" / "cupti.h").is_file()), None)
    cuda = next((r / "include" for r in roots if (r / "include" / "cuda.h").is_file()), None)
    library = next((found for root in roots if (found := _library(root))), None)
    if header is None or cuda is None or library is None:
        missing = [name for name, at in (("cupti.h", header), ("cuda.h", cuda), ("libcupti.so", library)) if at is None]
        raise ToolMissing(
            f"Capturing on a GPU needs CUPTI, and {', '.join(missing)} was not found. Install the CUDA Toolkit "
            "with its CUPTI component, or `pip install nvidia-cuda-cupti nvidia-cuda-runtime` (for CUDA 12: "
            "nvidia-cuda-cupti-cu12 nvidia-cuda-runtime-cu12); or capture with --device emulator."
        )
    return Cupti(tuple(dict.fromkeys((header, cuda))), library)


def _compiler() -> str:
    for name in (os.environ.get("CXX", ""), "g++", "c++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise ToolMissing("Capturing on a GPU builds a small C++ library once: install g++ (Debian: apt install g++).")


def build_injection() -> Path:
    """Absolute path of the library for CUDA_INJECTION64_PATH. Raises ToolMissing, CompileError."""
    cupti, compiler = find_cupti(), _compiler()
    sources = [NATIVE / "injection.cpp", NATIVE / "record.h"]
    identity = (str(cupti.library.resolve()), cupti.library.stat().st_mtime_ns, *map(str, cupti.includes), compiler)
    name = cache.digest("injection", *(path.read_bytes() for path in sources), *identity)[:16]
    target = cache.native_dir() / f"injection-{name}.so"
    if target.is_file():
        return target
    with tempfile.TemporaryDirectory(dir=cache.native_dir()) as folder:
        output = Path(folder) / target.name
        argv = [
            compiler,
            "-std=c++17",
            "-O2",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
            str(sources[0]),
            "-o",
            str(output),
        ]
        argv += [f"-I{path}" for path in cupti.includes]
        argv += [str(cupti.library), f"-Wl,-rpath,{cupti.library.resolve().parent}", "-ldl", "-pthread"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
        if done.returncode != 0:
            raise CompileError(
                f"The capture library did not compile with {compiler} against {cupti.includes[0]}: "
                "use CUDA 12.0 or newer.",
                done.stderr,
            )
        os.replace(output, target)
    return target
