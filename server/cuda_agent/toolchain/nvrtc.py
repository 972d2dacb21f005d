"""NVRTC through cuda.core: slices of a file to cubins in tens of milliseconds, without a CUDA Toolkit.

The compiler lives in a worker process in the sandbox. Its code is used for a verdict only where `compile.py` has shown
that it equals nvcc's; otherwise it gives facts on machines that have no nvcc.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda_agent import cache
from cuda_agent.errors import CompileError, SandboxError, ToolMissing
from cuda_agent.model import Binary, Build
from cuda_agent.toolchain import cubin, nvcc, sandbox, slice

INSTALL = "Install NVRTC and the CUDA headers with `pip install 'cuda-agent-lsp[cuda13]'`, or the CUDA Toolkit."
TIMEOUT = 30.0
_IGNORED = ("-O", "-std=", "-arch=", "-gencode=", "-Xcompiler=", "-lineinfo", "-rdc", "-x=cu", "-m=64", "-ccbin=", "-w",
            "-Xcudafe=", "-diag-suppress=", "-Xptxas=-v", "-Xptxas=-O3", "-expt-relaxed-constexpr", "-D", "-U", "-I",
            "-isystem=")  # fmt: skip


def include_folders() -> list[Path]:
    """The CUDA headers and CCCL: of the wheels nvidia-cuda-runtime and nvidia-cuda-cccl, else of a toolkit."""
    homes = [Path(folder) / "nvidia" / "cu13" / "include" for folder in sys.path]
    homes.append(Path("/usr/local/cuda/include"))
    found = [next((home for home in homes if (home / "cuda_fp16.h").is_file()), None)]
    found.append(next((home / "cccl" for home in homes if (home / "cccl").is_dir()), None))
    return [folder for folder in found if folder is not None]


def installed() -> bool:
    return importlib.util.find_spec("cuda.core") is not None if importlib.util.find_spec("cuda") else False


class Worker:
    """One NVRTC process; started on first use, started again after it died or took too long."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._version: tuple[int, int] | None = None
        self._sandboxed = False

    def version(self) -> tuple[int, int]:
        """(13, 5). Raises ToolMissing when NVRTC or its bindings are not installed, or too old."""
        with self._lock:
            if self._version is None:
                self._start()
            assert self._version is not None
            return self._version

    def compile(
        self, code: str, name: str, options: dict[str, Any], kernels: Sequence[str], *, untrusted: bool = False
    ) -> tuple[bytes, str]:
        """(cubin, log). Raises CompileError, ToolMissing, and SandboxError when `untrusted` and there is no sandbox."""
        if untrusted and not sandbox.available():
            raise SandboxError(f"Text from a model is compiled only in a sandbox. {sandbox.INSTALL}")
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            answer = self._ask({"code": code, "name": name, "options": options, "kernels": list(kernels)})
        if "cubin" not in answer:
            log = answer.get("log") or answer.get("error", "")
            first = next((line for line in log.splitlines() if "error" in line), log[:200])
            raise CompileError(f"NVRTC does not compile this kernel: {first}", log)
        return base64.b64decode(answer["cubin"]), str(answer["log"])

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _start(self) -> None:
        if not installed():
            raise ToolMissing(f"NVRTC is not installed. {INSTALL}")
        self.close()
        command = [sys.executable, str(Path(__file__).with_name("nvrtc_worker.py"))]
        places = [sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(__file__).parent), *map(str, sys.path)]
        readable = {Path(place) for place in places if place and Path(place).exists()}
        readable.update(include_folders())
        self._sandboxed = sandbox.available()
        if self._sandboxed:
            command = sandbox.wrap(command, sorted(readable))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": ""},
            start_new_session=True,
        )
        answer = self._read()
        major, minor = answer.get("version", (0, 0))
        if (major, minor) < (13, 1) or (major, minor) == (13, 3):
            self.close()
            raise ToolMissing(
                f"NVRTC {major}.{minor} makes other code than nvcc; 13.1, 13.2 or 13.4 and later do not. {INSTALL}"
            )
        self._version = (major, minor)

    def _ask(self, ask: dict[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(ask).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.close()
            return {"error": "the compiler crashed on this text", "log": ""}
        return self._read()

    def _read(self) -> dict[str, Any]:
        """One answer, within the time limit; a worker that crashed or hangs is ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            ready = selector.select(self.timeout)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            self.close()
            why = "crashed on this text" if ready else f"took longer than {self.timeout:.0f} s"
            return {"error": f"error: the compiler {why}", "log": ""}
        answer: dict[str, Any] = json.loads(line)
        return answer


_worker: Worker | None = None


def worker() -> Worker:
    """This process's worker."""
    global _worker
    if _worker is None:
        _worker = Worker()
        atexit.register(_worker.close)
    return _worker


def options(build: Build, arch: str) -> dict[str, Any]:
    """cuda.core's ProgramOptions for the build's flags. Raises CompileError for a flag that NVRTC has no word for."""
    made: dict[str, Any] = {"arch": arch, "lineinfo": True, "ptxas_options": ["-v"], "std": "c++17"}
    defines: list[str] = []
    for flag in build.flags:
        name, _, value = flag.partition("=")
        if flag.startswith("-D"):
            defines.append(flag[2:])
        elif name == "-std":
            made["std"] = value
        elif flag == "-use_fast_math":
            made["use_fast_math"] = True
        elif name == "-maxrregcount":
            made["max_register_count"] = int(value)
        elif name in {"-ftz", "-prec-div", "-prec-sqrt", "-fmad"}:
            key = {"-ftz": "ftz", "-prec-div": "prec_div", "-prec-sqrt": "prec_sqrt", "-fmad": "fma"}[name]
            made[key] = value == "true"
        elif not flag.startswith(_IGNORED):
            raise CompileError(f"NVRTC has no word for the flag {flag} of this build.", flag)
    made["define_macro"] = defines or None
    made["include_path"] = [str(folder) for folder in include_folders()]
    return {key: value for key, value in made.items() if value is not None}


def compile(
    build: Build, text: str, arch: str, kernels: Sequence[str], instances: Sequence[str], *, untrusted: bool = False
) -> Binary:
    """The named kernels of `text`, sliced, to one cubin. `instances` are name expressions: `k`, `ns::k<float, 64>`.

    Facts name the file's own lines. Raises SourceError (cannot be sliced), CompileError, ToolMissing, SandboxError.
    """
    folders = [Path(flag[2:]) for flag in build.flags if flag.startswith("-I")]
    part = slice.slice_kernels(slice.with_headers(text, build.file, folders), str(build.file), kernels)
    version = worker().version()
    flags = options(build, arch)
    store = cache.default()

    def make() -> Binary:
        code = f'{slice.prelude(part)}#line 1 "{build.file}"\n{part}'
        data, log = worker().compile(code, str(build.file), flags, instances, untrusted=untrusted)
        log = log.replace("ptxas         .    ", "    ")
        facts = nvcc.with_ptxas(cubin.read(data, str(build.file)), log, arch)
        sha = hashlib.sha256(data).hexdigest()
        compiler = f"NVRTC {version[0]}.{version[1]}"
        return Binary("cubin", data, sha, facts, "nvrtc", build.flags, compiler)

    key = (version, json.dumps(flags, sort_keys=True), str(build.file), part, list(instances))
    return store.memo("nvrtc", key, make)
