"""nvcc: finding it, and compiling one whole file to a cubin. What it makes is the truth about a kernel."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from cuda_agent import cache, config
from cuda_agent.errors import CompileError, ToolMissing
from cuda_agent.model import Binary, Build, Facts
from cuda_agent.toolchain import cubin, header, includes, names, sandbox
from cuda_agent.toolchain.build import without_arch

INSTALL = (
    "Install the CUDA Toolkit (https://developer.nvidia.com/cuda-downloads) and put its bin folder on PATH, "
    "or set cudaAgent.nvccPath."
)
TIMEOUT = 180.0
_SHIM_MARK = b"cuda-agent"
_INFO = re.compile(r"^(ptxas info\s*:.*|\s+\d+ bytes stack frame.*)\n?", re.MULTILINE)
_SPILLS = re.compile(
    r"Function properties for (\S+)\s+(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
_NO_HOST_COMPILER = re.compile(
    r"(g\+\+|gcc|cc1plus|host compiler).*(not found|No such file|cannot execute|Failed)|Failed to preprocess host"
)
_SMEM = re.compile(r"Compiling entry function '([^']+)'[\s\S]*?Used \d+ registers([^\n]*)")


@dataclass(frozen=True, slots=True)
class Nvcc:
    """One nvcc: `root` is the toolkit's folder, `version` (13, 0, 88), `text` its version line."""

    path: Path
    root: Path
    version: tuple[int, ...]
    text: str


def find() -> Nvcc:
    """The nvcc to use: the setting, PATH (our recording shim passed over), CUDA_HOME, /usr/local/cuda, pip wheels.

    Raises ToolMissing, which says what to install.
    """
    if setting := config.current().nvcc_path:
        found = _probe(Path(setting).expanduser())
        if found is None:
            raise ToolMissing(
                f"cudaAgent.nvccPath is {setting}, which does not run as nvcc. Correct the setting, or {INSTALL}"
            )
        return found
    for path in _places():
        if path.is_file() and not _is_shim(path) and (found := _probe(path)):
            return found
    raise ToolMissing(
        f"nvcc was not found on PATH, in CUDA_HOME, in /usr/local/cuda or among Python packages. {INSTALL}"
    )


def _places() -> Iterator[Path]:
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder:
            yield Path(folder) / "nvcc"
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield Path(os.environ[name]) / "bin" / "nvcc"
    yield Path("/usr/local/cuda/bin/nvcc")
    for folder in sys.path:
        for wheel in ("nvidia/cu13", "nvidia/cu12", "nvidia/cuda_nvcc"):
            yield Path(folder) / wheel / "bin" / "nvcc"


def _is_shim(path: Path) -> bool:
    """Our recording nvcc is a script that names this package; calling it would record our own compilations."""
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError:
        return True
    return head.startswith(b"#!") and (_SHIM_MARK in head or b"cuda_agent" in head)


@lru_cache(16)
def _probe(path: Path) -> Nvcc | None:
    try:
        asked = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=30, check=False)
        found = re.search(r"release [\d.]+, V([\d.]+)", asked.stdout)
        if asked.returncode != 0 or found is None:
            return None
        dry = subprocess.run(
            [str(path), "--dryrun", "-cubin", "-x", "cu", "/dev/null"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # nvcc on PATH may be a wrapper or a link: it says itself where its toolkit is.
    top = re.search(r"^#\$ TOP=(.*)$", dry.stderr, re.MULTILINE)
    root = Path(top.group(1)).resolve() if top else path.resolve().parents[1]
    version = tuple(int(part) for part in found.group(1).split("."))
    return Nvcc(path, root, version, f"nvcc {found.group(1)}")


# ---------------------------------------------------------------- compiling


def compile(
    build: Build,
    text: str,
    arch: str,
    *,
    untrusted: bool = False,
    nvcc: Nvcc | None = None,
    timeout: float = TIMEOUT,
) -> Binary:
    """`text` as if it stood in `build.file`, with that file's own flags, to a cubin for `arch` (`sm_90`).

    `untrusted` (text from a model) is compiled only in a working sandbox. Results are cached by the text, the flags,
    the compiler and the project's headers that were read. Raises ToolMissing, CompileError (diagnostics name the
    person's file and lines), SandboxError.
    """
    if untrusted:
        includes.check(text)
    nvcc = nvcc or find()
    file = build.file
    build, text = header.unit_of(build, text)
    arch = specific_arch(build, arch)
    flags = device_flags(build, arch)
    store = cache.default()
    surroundings = tuple(f"{name}={os.environ.get(name, '')}" for name in sandbox.ENVIRONMENT if name != "PATH")
    places = (str(file), str(build.file), str(build.directory))
    parts = (nvcc.text, str(nvcc.root), arch, flags, places, surroundings, text)
    manifest = store.key("cubin-deps", parts)
    with store.alone(manifest):
        known = store.get(manifest)
        key = store.key("cubin", (parts, _hashes(known))) if isinstance(known, tuple) else None
        if key is not None and isinstance(hit := store.get(key), Binary):
            return hit
        binary, headers = _compile(nvcc, build, text, arch, flags, file, untrusted=untrusted, timeout=timeout)
        store.set(manifest, headers)
        store.set(store.key("cubin", (parts, _hashes(headers))), binary)
    return binary


def specific_arch(build: Build, arch: str) -> str:
    """`sm_90a` for `sm_90` when that is what the build names: such code compiles for no other."""
    named = " ".join(build.flags)
    return next((arch + kind for kind in "af" if re.search(rf"sm_{arch[3:]}{kind}\b", named)), arch)


def device_flags(build: Build, arch: str) -> tuple[str, ...]:
    """The build's flags for a loadable cubin of one architecture: a driver cannot load relocatable code."""
    dropped = ("-rdc", "-dlto", "-lto", "-lineinfo", "-cudart")
    kept = (
        f
        for f in without_arch(build.flags)
        if not f.startswith(dropped) and f not in {"-Xptxas=-v", "-Xptxas=--verbose"}
    )
    lineinfo = () if "-G" in build.flags else ("-lineinfo",)
    return (*kept, f"-arch={arch}", *lineinfo)


def _hashes(headers: tuple[str, ...]) -> tuple[str, ...]:
    def one(name: str) -> str:
        try:
            return hashlib.sha256(Path(name).read_bytes()).hexdigest()
        except OSError:
            return "absent"

    return tuple(f"{name} {one(name)}" for name in headers)


def _compile(
    nvcc: Nvcc,
    build: Build,
    text: str,
    arch: str,
    flags: tuple[str, ...],
    file: Path,
    *,
    untrusted: bool,
    timeout: float,
) -> tuple[Binary, tuple[str, ...]]:
    """`file` is the one whose lines are counted."""
    with tempfile.TemporaryDirectory(prefix="cuda-agent-") as folder:
        work = Path(folder)
        source, out, deps = work / build.file.name, work / "out.cubin", work / "out.d"
        # `#line` makes diagnostics and the line table name the person's file; -iquote finds the headers beside it.
        quoted = str(build.file).replace("\\", "\\\\").replace('"', '\\"')
        source.write_text(f'#line 1 "{quoted}"\n' + text.removeprefix("\ufeff"), encoding="utf-8", newline="")
        argv = [str(nvcc.path), "-cubin", "-x", "cu", *(f for f in flags if f != "-x=cu"), "-Xptxas=-v"]
        # nvcc's own -MD preprocesses once more, for the host; this way the device pass itself lists what it read.
        argv += [*beside(build.file.parent, work), "-Xcompiler", f"-MD,-MF,{deps}", "-o", str(out), str(source)]
        readable = [nvcc.root, *_readable(build)]
        # A build folder may be gone since; the text can lie in a folder that was never saved.
        cwd = next((folder for folder in (build.directory, build.file.parent) if folder.is_dir()), work)
        done = sandbox.run(argv, cwd, readable, [work], timeout, required=untrusted, environment={"TMPDIR": folder})
        if done.timed_out:
            raise CompileError(
                f"nvcc took longer than {timeout:.0f} s on {build.file.name} and was stopped.", done.stderr
            )
        messages = diagnostics(
            done.stderr, {str(source): str(build.file), str(work / "beside"): str(build.file.parent)}
        )
        if done.returncode != 0 or not out.is_file():
            raise _failure(build, messages, done.returncode)
        data = out.read_bytes()
        headers = project_headers(deps.read_text(errors="replace"), source, build.directory, nvcc.root)
    found = with_ptxas(cubin.read(data, str(file)), done.stderr, arch)
    sha = hashlib.sha256(data).hexdigest()
    return Binary("cubin", data, sha, found, "nvcc", flags, nvcc.text), headers


def beside(folder: Path, work: Path) -> list[str]:
    """Flags that let `#include "x.h"` find headers in `folder`, before every -I, as if the text lay there."""
    path = str(folder)
    if not re.fullmatch(r"[\w./+@%:~-]+", path):
        # nvcc splits -Xcompiler at commas and hands spaces to a shell: a link has a plain name.
        (work / "beside").symlink_to(folder)
        path = str(work / "beside")
    return ["-Xcompiler", f"-iquote,{path}"]


def _readable(build: Build) -> list[Path]:
    """The project: the folders around the file that are marked as one (never a home or a shared temporary folder), and
    every include folder named."""
    found = [build.file.parent, build.directory]
    shared = {Path("/"), Path("/tmp"), Path("/var/tmp"), Path(tempfile.gettempdir()), Path.home(), *Path.home().parents}
    for folder in build.file.parents:
        marked = any((folder / name).exists() for name in (".git", ".cuda-agent", "compile_commands.json"))
        if marked and folder not in shared:
            found.append(folder)
    for flag in build.flags:
        for prefix in ("-I", "-isystem=", "-iquote=", "-idirafter=", "-ldir="):
            if flag.startswith(prefix):
                found.append(Path(flag.removeprefix(prefix)))
    return found


def project_headers(rule: str, source: Path, directory: Path, root: Path) -> tuple[str, ...]:
    """The files in a make rule written by g++ -MD that may change: not the source, the toolkit's or the system's."""
    words = re.sub(r"\\\n", " ", rule.partition(": ")[2]).replace("\\ ", "\0").split()
    paths = (Path(os.path.realpath(directory / w.replace("\0", " "))) for w in words)
    fixed = (root, root.resolve(), Path("/usr"), Path("/nix/store"))
    return tuple(
        sorted({str(p) for p in paths if p != source.resolve() and not any(p.is_relative_to(f) for f in fixed)})
    )


def diagnostics(stderr: str, names: Mapping[str, str]) -> str:
    """The compiler's messages without ptxas' statistics, with the person's file name for the temporary one."""
    for temporary, own in names.items():
        stderr = stderr.replace(temporary, own)
    return _INFO.sub("", stderr).strip()


def _failure(build: Build, messages: str, code: int) -> ToolMissing | CompileError:
    lines, file = messages.splitlines(), build.file.name
    if _NO_HOST_COMPILER.search(messages):
        return ToolMissing(f"nvcc needs a C++ compiler: install g++ (or name one with -ccbin). nvcc said: {lines[0]}")
    if unresolved := re.search(r"Unresolved extern function '([^']+)'", messages):
        name = names.demangle(unresolved.group(1))
        return CompileError(f"{file} calls device code of another file ({name}): one file makes no kernel.", messages)
    first = next((line for line in lines if "error" in line.lower()), lines[0] if lines else f"exit code {code}")
    advice = ""
    if "No such file" in first and build.origin == "default":
        advice = (
            " No build of this file is known: run `cuda-agent capture -- <your build and run command>` once, or write"
        )
        advice += " a compile_commands.json."
    elif "No such file" in first:
        advice = " The compiler reads the project and the include folders its command names, nothing else."
    return CompileError(f"nvcc does not compile {file}: {first}{advice}", messages)


def with_ptxas(kernels: Mapping[str, Facts], stderr: str, arch: str) -> dict[str, Facts]:
    """Adds what only `ptxas -v` knows: spilled bytes; and its word on static shared memory."""
    spilled = {m[1]: (int(m[3]), int(m[4])) for m in _SPILLS.finditer(stderr)}
    used = {m[1]: m[2] for m in _SMEM.finditer(stderr)}
    result = {}
    for name, facts in kernels.items():
        stores, loads = spilled.get(name, (0, 0))
        shared = facts.shared_bytes
        if name in used:
            smem = re.search(r"(\d+)(?:\+\d+)? bytes smem", used[name])
            shared = int(smem.group(1)) if smem else 0
        result[name] = replace(facts, spill_stores=stores, spill_loads=loads, shared_bytes=shared, arch=arch)
    return result
