"""Text to device binary: the one function the later rooms call."""

from __future__ import annotations

from cuda_agent.model import Binary, Build
from cuda_agent.toolchain import nvcc


def compile(build: Build, text: str, arch: str, kernel: str | None = None, *, untrusted: bool = False) -> Binary:
    """`text` in place of `build.file`, to a cubin for `arch` (`sm_90`); `kernel` is the one that matters, if one does.

    `untrusted` marks text from a model, which is compiled only in the sandbox. Raises ToolMissing, CompileError,
    SandboxError.
    """
    return nvcc.compile(build, text, arch, untrusted=untrusted)
