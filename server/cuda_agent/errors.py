"""Every error this package raises on purpose. A message says what happened and what to do next.

CudaAgentError                 exit code 2 unless a class says otherwise
├── UsageError                 3   the command line, a setting or kernels.toml is wrong
├── SourceError                    the text holds no such kernel, or it has a syntax error there
├── ToolchainError
│   ├── ToolMissing                nvcc, g++, a CUDA header … is not on this machine: says what to install
│   ├── CompileError               the compiler refused the text; carries its diagnostics
│   └── SandboxError               the sandbox could not be built; nothing was run
├── WorkloadError                  a bundle is missing, broken, or cannot be replayed
│   └── NoInputs                   no capture, no spec, nothing to synthesise from
├── CaptureError                   the program failed, or nothing was captured
├── DeviceError
│   ├── DeviceMissing              no such device on this machine
│   ├── WorkerDied                 the worker crashed or was killed; the candidate is quarantined
│   ├── DeadlineExceeded           a job ran past its deadline and its worker was killed
│   └── Unsupported                the device cannot run this kernel (textures, inline PTX …): "could not decide"
├── ModelError                     the language model cannot be reached, refuses, or broke off
│   └── ContextOverflow            more messages than the model's context holds
├── RuleRefused                    a rewrite rule is not legal here; carries the reason shown to the person
├── Cancelled                      the person stopped the job; the best so far is kept
└── Untrusted                      the workspace is not trusted: nothing is compiled or run
"""

from __future__ import annotations


class CudaAgentError(Exception):
    """Root of the tree. `exit_code` is the command line's."""

    exit_code = 2


class UsageError(CudaAgentError):
    exit_code = 3


class SourceError(CudaAgentError): ...


class ToolchainError(CudaAgentError): ...


class ToolMissing(ToolchainError): ...


class CompileError(ToolchainError):
    def __init__(self, message: str, diagnostics: str = "") -> None:
        super().__init__(message)
        self.diagnostics = diagnostics


class SandboxError(ToolchainError): ...


class WorkloadError(CudaAgentError): ...


class NoInputs(WorkloadError): ...


class CaptureError(CudaAgentError): ...


class DeviceError(CudaAgentError): ...


class DeviceMissing(DeviceError): ...


class WorkerDied(DeviceError):
    """`step` is the step of the job that ended it, `module` the sha256 of the binary that was running (None: none was),
    `quarantined` is True when nothing was run because that binary had ended a worker before."""

    def __init__(
        self, message: str, *, step: int | None = None, module: str | None = None, quarantined: bool = False
    ) -> None:
        super().__init__(message)
        self.step, self.module, self.quarantined = step, module, quarantined


class DeadlineExceeded(WorkerDied): ...


class Unsupported(DeviceError): ...


class ModelError(CudaAgentError): ...


class ContextOverflow(ModelError): ...


class RuleRefused(CudaAgentError): ...


class Cancelled(CudaAgentError): ...


class Untrusted(CudaAgentError): ...
