"""A whole file as a shared object for replay on the emulator: translated, compiled by g++, cached by content."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cuda_agent import cache
from cuda_agent.device.emulator import native, nvcc, options
from cuda_agent.device.emulator.unit import Unit, translate_unit
from cuda_agent.errors import CompileError, Unsupported
from cuda_agent.model import Binary, Build, Facts
from cuda_agent.toolchain import header, includes, names, sandbox

TIMEOUT = 180.0
# The type name of a kernel's local class (CUEMU_KERNEL): `Z<encoding of the kernel>E12cuemu_kernel`.
_TAG = re.compile(rb"\0\*?Z([A-Za-z0-9_.$]+)E12cuemu_kernel(?=\0)")
_UNDEFINED = re.compile(r"undefined reference to [`']([^']+)'")
_C_NAME = re.compile(r"(\d+)([A-Za-z_]\w*)")


def compile(
    build: Build, text: str, traced: bool = True, *, untrusted: bool = False, timeout: float = TIMEOUT
) -> Binary:
    """`text` as if it stood in `build.file`, with that file's flags, as a module for `native.Module`.

    `traced` sees every access (bounds, races, traffic) and is slower. `untrusted` text (from a model) is compiled only
    in a working sandbox. Raises CompileError (diagnostics name the person's file and lines), Unsupported when the
    emulator has not what the file needs, ToolMissing, SandboxError.
    """
    if untrusted:
        includes.check(text)
    build, text = header.unit_of(build, text)
    parsed = options.parse(build.flags, build.directory)
    flags = ["-include", "cuda_runtime.h", *nvcc.compile_flags(parsed, traced=traced), "-w"]
    folders = [build.directory / name for name in parsed.includes]
    with tempfile.TemporaryDirectory(prefix="cuda-agent-") as scratch:
        work = Path(scratch)
        unit = translate_unit(
            build.file,
            work,
            text=text,
            include_dirs=folders,
            quote_dirs=[build.directory / name for name in parsed.quotes],
            shims=native.include_dir(),
        )
        flags += [f"-I{folder}" for folder in folders if not (folder / "cuda_runtime_api.h").is_file()]
        runtime = native.runtime_objects()
        version = nvcc.compiler_version()
        # The runtime's folder is named by its content, so its path stands for headers and objects alike.
        contents = [copy.read_bytes() for copy in unit.copies]
        parts = (version, flags, contents, str(runtime[0].parent), list(native.link_flags(True)))
        store = cache.default()
        key = store.key("emulator", parts)
        with store.alone(key):
            hit = store.get(key)
            if isinstance(hit, Binary):
                return hit
            data = _compile(unit, flags, folders, runtime, work, untrusted=untrusted, timeout=timeout)
            sha = hashlib.sha256(data).hexdigest()
            binary = Binary("emulator", data, sha, kernels(data), "g++", tuple(build.flags), version)
            store.set(key, binary)
    return binary


def kernels(data: bytes) -> Mapping[str, Facts]:
    """The kernels of a module by mangled name, read from its bytes: nothing of it runs."""
    found: dict[str, Facts] = {}
    for tag in sorted({match.group(1).decode() for match in _TAG.finditer(data)}):
        plain = _C_NAME.fullmatch(tag)
        mangled = plain.group(2) if plain and int(plain.group(1)) == len(plain.group(2)) else f"_Z{tag}"
        found[mangled] = Facts(mangled, names.demangle(mangled), "emulator", 0, 0, 0, 0, 0, 0, "", 0)
    return found


def _compile(
    unit: Unit,
    flags: Sequence[str],
    folders: Sequence[Path],
    runtime: Sequence[Path],
    work: Path,
    *,
    untrusted: bool,
    timeout: float,
) -> bytes:
    """Compile and link apart: `-fsanitize=thread` must not reach the linker, which would add its own runtime."""
    compiled, linked = work / "unit.o", work / "module.so"
    readable = [native.include_dir(), *folders, runtime[0].parent]
    cxx = native.compiler()
    original = next(iter(unit.copies.values()))

    def run(command: Sequence[str]) -> sandbox.Completed:
        done = sandbox.run(command, work, readable, [work], timeout, required=untrusted)
        if done.timed_out:
            raise CompileError(f"g++ took longer than {timeout:.0f} s on {original.name} and was stopped.", done.stderr)
        return done

    done = run([cxx, *flags, f"-ffile-prefix-map={work}=.", "-x", "c++", "-c", str(unit.main), "-o", str(compiled)])
    if done.returncode != 0 and unit.refused:
        raise Unsupported(f"{unit.refused[0]}; use a GPU for this file")
    if done.returncode == 0:
        openmp = [flag for flag in flags if flag.startswith("-fopenmp")]
        link = [cxx, str(compiled), *map(str, runtime), *native.link_flags(True), *openmp, "-o", str(linked)]
        link += ["-Wl,--no-demangle", "-Wl,-z,defs"]
        done = run(link)
        missing = sorted(set(_UNDEFINED.findall(done.stderr)))
        if done.returncode != 0 and missing:
            # What other files of the program define: what touches it faults, this address is never mapped.
            done = run([*link, *(f"-Wl,--defsym,{name}=16" for name in missing)])
    if done.returncode != 0:
        why = first_error(done.stderr)
        raise CompileError(f"g++ refused {original.name} for the emulator: {why}", unit.named(done.stderr))
    return linked.read_bytes()


def first_error(text: str) -> str:
    """The first error line of g++'s diagnostics, without the place before it."""
    found = re.search(r"(?:error|undefined reference)[: ]+(.*)", text)
    return found.group(0) if found else text.strip().splitlines()[0] if text.strip() else "no diagnostics"
