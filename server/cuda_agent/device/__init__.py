"""Devices: where kernels run. `open_device` gives one; a job (`jobs.py`) is run by the worker process that owns it.

Importing this package costs nothing: numpy and cupy are loaded by the worker only.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cuda_agent import cache, config, paths
from cuda_agent.device.client import Device, gpu_identity
from cuda_agent.device.info import GPUS, DeviceInfo
from cuda_agent.device.jobs import Job
from cuda_agent.device.quarantine import Quarantine
from cuda_agent.device.transports import PipeTransport, Transport
from cuda_agent.errors import DeviceError, SandboxError, UsageError
from cuda_agent.model import Build
from cuda_agent.toolchain import sandbox
from cuda_agent.toolchain.build import arch_of

__all__ = ["Device", "DeviceInfo", "Job", "Probe", "Quarantine", "open_device", "probe", "target_arch"]

DEFAULT_ARCH = "sm_90"
_SPEC = re.compile(r"auto|cuda(:\d+)?|emulator(:\w+)?")


def open_device(
    spec: str = "auto",
    *,
    untrusted: bool = False,
    transport: Transport | None = None,
    quarantine: Quarantine | None = None,
    start: bool = True,
) -> Device:
    """A device, ready: "cuda:N", "emulator", "emulator:GPU" (a key of `info.GPUS`: the limits it takes), or "auto":
    the first GPU when there is a working one, else the emulator. `untrusted`: kernels may come from a model, so the
    emulator's worker, which runs them as host code, must be sandboxed. Without `start` the worker starts when the
    device is first asked for something. Raises UsageError, DeviceMissing, SandboxError."""
    if not _SPEC.fullmatch(spec):
        raise UsageError(f"there is no device {spec!r}: use auto, cuda:N, emulator or emulator:GPU ({', '.join(GPUS)})")
    if spec == "auto":
        from cuda_agent.device import driver

        spec = "cuda:0" if driver.why_not() is None else "emulator"
    if spec == "cuda":
        spec = "cuda:0"
    kind, _, which = spec.partition(":")
    if kind == "emulator" and which and which not in GPUS:
        raise UsageError(f"the emulator knows no GPU {which!r}: use one of {', '.join(GPUS)}")
    if quarantine is None:
        quarantine = Quarantine(cache.default())
    transport = transport or default_transport(spec, untrusted=untrusted)
    # Without a worker nobody would say that a GPU is not there.
    start = start or (kind == "cuda" and gpu_identity(spec) is None)
    return Device(spec, transport, quarantine, start=start)


def default_transport(spec: str, *, untrusted: bool = False) -> Transport:
    """A GPU's worker runs as it is: a kernel cannot reach the host. The emulator's runs in the sandbox where there is
    one."""
    if not spec.startswith("emulator"):
        return PipeTransport()
    if sandbox.available():
        return PipeTransport(wrap=_sandboxed)
    if untrusted:
        raise SandboxError(
            f"A kernel written by a model runs on the emulator only in a sandbox, and bubblewrap does not work here. "
            f"{sandbox.INSTALL}"
        )
    return PipeTransport()


def _sandboxed(argv: list[str]) -> list[str]:
    """The worker reads Python, this package and the native runtime, and writes only its own /tmp."""
    readable = [Path(p) for p in (sys.prefix, sys.base_prefix, *sys.path, str(Path(__file__).parents[2])) if p]
    return sandbox.wrap(argv, [*readable, paths.native_dir()])


def target_arch(build: Build) -> str:
    """The architecture that facts of this build are for, by the settings `arch` and `device`: the one named, else the
    GPU's, else the build's, else sm_90."""
    settings = config.current()
    return settings.arch if settings.arch != "auto" else _gpu_arch(settings.device) or arch_of(build) or DEFAULT_ARCH


@lru_cache(8)
def _gpu_arch(spec: str) -> str | None:
    """None where `spec` means the emulator."""
    from cuda_agent.device import driver

    kind, _, number = spec.partition(":")
    if kind == "emulator" or driver.why_not() is not None:
        return None
    major, minor = (driver.attribute(int(number or 0), name) for name in ("major", "minor"))
    return f"sm_{major}{minor}" if major else None  # 0: there is no such GPU


@dataclass(frozen=True, slots=True)
class Probe:
    """One line of `doctor`: a device that can be opened, or why it cannot."""

    spec: str
    info: DeviceInfo | None
    reason: str = ""  # empty when it works


def probe() -> list[Probe]:
    """Every device of this machine with its numbers, or the reason why it cannot be used. Starts a worker for each."""
    from cuda_agent.device import driver

    reason = driver.why_not()
    specs = [f"cuda:{i}" for i in range(driver.count())] if reason is None else []
    found = [] if reason is None else [Probe("cuda:0", None, reason)]
    for spec in [*specs, "emulator"]:
        try:
            with open_device(spec) as device:
                found.append(Probe(spec, device.info))
        except DeviceError as error:
            found.append(Probe(spec, None, str(error)))
    return found
