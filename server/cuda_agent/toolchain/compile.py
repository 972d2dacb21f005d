"""Text to device binary: the one function the later rooms call.

nvcc on the whole file is the truth. NVRTC on a slice stands in for it where the same release of both makes the same
SASS from the original text; and it gives facts of self-contained kernels on a machine without a toolkit.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent import cache
from cuda_agent.errors import CompileError, SourceError, ToolMissing
from cuda_agent.model import Binary, Build, Kernel
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import Module, module
from cuda_agent.toolchain import includes, names, nvcc, nvrtc


def compile(build: Build, text: str, arch: str, kernel: str | None = None, *, untrusted: bool = False) -> Binary:
    """`text` in place of `build.file`, to a cubin for `arch` (`sm_90`); `kernel` is the one that matters, if one does.

    `untrusted` marks text from a model, which is compiled only in the sandbox. The Binary's `path` says which compiler
    made it; from NVRTC it holds the sliced kernels only. Raises ToolMissing, CompileError, SandboxError.
    """
    try:
        tool = nvcc.find()
    except ToolMissing as missing:
        return _without_toolkit(build, text, arch, kernel, missing, untrusted=untrusted)
    if kernel is not None and (instances := fast_instances(tool, build, arch, kernel)):
        try:
            if untrusted:
                includes.check(text)
            return nvrtc.compile(build, text, arch, [kernel], instances, untrusted=untrusted)
        except (SourceError, CompileError, ToolMissing):
            pass  # nvcc decides, and its diagnostics are the ones to show
    return nvcc.compile(build, text, arch, untrusted=untrusted, nvcc=tool)


def fast_instances(tool: nvcc.Nvcc, build: Build, arch: str, kernel: str) -> tuple[str, ...]:
    """The kernel's instantiations as NVRTC is asked for them, if its slice of the original text equals the whole-file
    build: same release, and for each of them the same SASS, registers, shared memory and stack. Else an empty tuple."""
    try:
        if build.through is not None or not nvrtc.installed() or nvrtc.worker().version() != tool.version[:2]:
            return ()
        original = build.file.read_text(encoding="utf-8")
    except (ToolMissing, OSError, UnicodeDecodeError):
        return ()
    key = (tool.text, arch, build.flags, str(build.file), original, kernel)
    return cache.default().memo("fast-path", key, lambda: _proved(tool, build, original, arch, kernel))


def _proved(tool: nvcc.Nvcc, build: Build, original: str, arch: str, kernel: str) -> tuple[str, ...]:
    try:
        whole = nvcc.compile(build, original, arch, nvcc=tool)
        wanted = [m for m in whole.kernels if names.kernel_name(m) == kernel]
        instances = tuple(names.expression(m) for m in wanted)
        made = nvrtc.compile(build, original, arch, [kernel], instances)
    except (SourceError, CompileError, ToolMissing):
        return ()
    for mangled in wanted:
        found = names.match(made.kernels, mangled)
        if found is None:
            return ()
        a, b = whole.kernels[mangled], made.kernels[found]
        if (a.sass_hash, a.registers, a.shared_bytes, a.stack_bytes) != (
            b.sass_hash,
            b.registers,
            b.shared_bytes,
            b.stack_bytes,
        ):
            return ()
    return instances


# ---------------------------------------------------------------- no toolkit on this machine


def _without_toolkit(
    build: Build, text: str, arch: str, kernel: str | None, missing: ToolMissing, *, untrusted: bool
) -> Binary:
    """Facts from NVRTC for the kernels that need nothing but themselves; ToolMissing when there are none."""
    if not nvrtc.installed():
        raise ToolMissing(f"{missing} Or {nvrtc.INSTALL[0].lower()}{nvrtc.INSTALL[1:]}") from missing
    if untrusted:
        includes.check(text)
    parsed = module(Document(str(build.file), text))
    asked = [parsed.kernel(kernel)] if kernel is not None else list(parsed.kernels)
    good: list[tuple[str, Sequence[str]]] = []
    reasons: list[str] = []
    for one in asked:
        try:
            instances = _launched(parsed, one)
            nvrtc.compile(build, text, arch, [one.qualified_name], instances, untrusted=untrusted)
            good.append((one.qualified_name, instances))
        except (SourceError, CompileError) as error:
            reasons.append(f"{one.name}: {error}")
    if not good:
        why = f" NVRTC was tried: {reasons[0]}" if reasons else ""
        raise ToolMissing(f"{missing}{why}") from missing
    expressions = [expression for _, each in good for expression in each]
    return nvrtc.compile(build, text, arch, [name for name, _ in good], expressions, untrusted=untrusted)


def _launched(parsed: Module, kernel: Kernel) -> tuple[str, ...]:
    """The instantiations that the file launches: the name alone, or with each launch's template arguments."""
    if not kernel.template_params:
        return (kernel.qualified_name,)
    found = {
        f"{kernel.qualified_name}<{', '.join(site.template_args)}>": None
        for site in parsed.launches_of(kernel)
        if site.template_args
    }
    if not found:
        raise SourceError(f"{kernel.name} is a template, and no launch in this file says with which arguments.")
    return tuple(found)
