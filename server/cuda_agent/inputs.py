"""Where a kernel's inputs come from, best first: an earlier capture, a spec, the file's own program, a run command,
synthesis.

The person's program is built and run only when nothing was captured before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cuda_agent.capture import CaptureOptions, build_and_run, capture
from cuda_agent.errors import NoInputs, SourceError
from cuda_agent.model import Build, Workload
from cuda_agent.source.symbols import Module
from cuda_agent.workload import bundle, spec, synthesize

OnEvent = Callable[[Mapping[str, Any]], None]


def find_or_make(
    path: Path,
    module: Module,
    kernel: str | None,
    build: Build,
    device_kind: str,
    *,
    args: tuple[str, ...] = (),
    run_command: tuple[str, ...] | None = None,
    on_event: OnEvent | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Workload:
    """The best inputs there are for one kernel (None: the first kernel that has some). NoInputs says what to do
    next."""
    if not args and run_command is None:
        found = _earlier(path, module, kernel)
        if found is not None:
            return found
    options = CaptureOptions(device="emulator" if device_kind == "emulator" else "cuda", kernel=_pattern(kernel))
    if run_command is not None:
        capture(list(run_command), path.parent, options, on_event=on_event, cancelled=cancelled)
    elif module.has_main:
        build_and_run(path, list(args), build, options, on_event=on_event, cancelled=cancelled)
    found = _earlier(path, module, kernel)
    if found is not None:
        return found
    return synthesize.synthesize(module, module.kernel(kernel or _only(module)), directory=path.parent)


def read_source(path: Path) -> str:
    """The file's text. SourceError says why it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error


def _earlier(path: Path, module: Module, kernel: str | None) -> Workload | None:
    toml = path.parent / "kernels.toml"
    for name in [kernel] if kernel else [k.id for k in module.kernels]:
        found = bundle.find(path, name)
        if found is not None:
            return found
        if toml.is_file() and (written := spec.load(toml, module, module.kernel(name))) is not None:
            return written
    return None


def _pattern(kernel: str | None) -> str | None:
    return rf"\b{kernel.split('::')[-1]}\b" if kernel else None


def _only(module: Module) -> str:
    if not module.kernels:
        raise NoInputs("there is no kernel in this file")
    return module.kernels[0].id
