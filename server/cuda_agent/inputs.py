"""Where a kernel's inputs come from, best first: an earlier capture, a spec, the file's own program, a run command,
synthesis.

The person's program is built and run only when nothing was captured before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack

from cuda_agent.capture import CaptureOptions, NothingCaptured, build_and_run, capture
from cuda_agent.errors import NoInputs, SourceError
from cuda_agent.model import Build, Workload
from cuda_agent.source import joined
from cuda_agent.source.symbols import Module
from cuda_agent.toolchain.names import without_template
from cuda_agent.workload import spec, synthesize
from cuda_agent.workload.own import find, is_specialised

OnEvent = Callable[[Mapping[str, Any]], None]
RUN_TIMEOUT_S = 600.0  # a run of the person's program for its inputs; a kernel that never ends must not hold us up


class Program(TypedDict, total=False):
    """How the person's program is run, where it must be."""

    args: tuple[str, ...]
    run_command: tuple[str, ...] | None
    timeout_s: float


class Run(Program, total=False):
    """One such run: what `find_or_make_all` takes by name."""

    on_event: OnEvent | None
    cancelled: Callable[[], bool] | None


class Asked(Protocol):
    """A request that says how the program is run."""

    @property
    def args(self) -> tuple[str, ...]: ...
    @property
    def run_command(self) -> tuple[str, ...] | None: ...
    @property
    def timeout_s(self) -> float: ...


def run_of(asked: Asked, on_event: OnEvent | None, cancelled: Callable[[], bool] | None) -> Run:
    return {
        "args": asked.args,
        "run_command": asked.run_command,
        "timeout_s": asked.timeout_s,
        "on_event": on_event,
        "cancelled": cancelled,
    }


def find_or_make(
    path: Path, module: Module, kernel: str | None, build: Build, device_kind: str, **run: Unpack[Run]
) -> Workload:
    """The best inputs there are for one kernel (None: the first kernel that has some). NoInputs says what to do
    next."""
    return find_or_make_all(path, module, build, device_kind, kernels=[kernel] if kernel else None, **run)[0]


def find_or_make_all(
    path: Path,
    module: Module,
    build: Build,
    device_kind: str,
    *,
    kernels: Sequence[str] | None = None,
    args: tuple[str, ...] = (),
    run_command: tuple[str, ...] | None = None,
    timeout_s: float = RUN_TIMEOUT_S,
    on_event: OnEvent | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> list[Workload]:
    """The inputs of every kernel of the file (or of `kernels`) that has some: what was captured before, else what one
    run of the program gives, else synthetic ones for a single kernel. Never empty: NoInputs says what to do next.
    SourceError for a name in `kernels` that is not in the file.
    """
    names = [module.kernel(name).id for name in kernels] if kernels else [k.id for k in module.kernels]
    if not names:
        raise NoInputs(f"there is no kernel in {path.name}")
    fresh = bool(args) or run_command is not None
    found = [] if fresh else _earlier(path, module, names)
    if found:
        return found
    options = capture_options("emulator" if device_kind == "emulator" else "cuda", module, names, timeout_s)
    if run_command is not None:
        capture(list(run_command), path.parent, options, on_event=on_event, cancelled=cancelled)
    elif module.has_main:
        text = joined.own(module.document.text)
        try:
            build_and_run(path, args, build, options, on_event=on_event, cancelled=cancelled, text=text)
        except NothingCaptured as error:
            how = f"with the arguments {' '.join(args)}" if args else "without arguments"
            raise NothingCaptured(
                f"{error}\n{path.name} was built and run by itself, {how}. If your program is run another way, capture "
                "that: `cuda-agent capture -- COMMAND`.",
                error.report,
            ) from error
    found = _earlier(path, module, names)
    if found:
        return found
    if len(names) == 1:
        return [synthesize.synthesize(module, module.kernel(names[0]), directory=path.parent)]
    raise NoInputs(f"no kernel of {path.name} has inputs: run `cuda-agent capture -- <your run command>` first")


def capture_options(
    device: str, module: Module, kernels: Sequence[str], timeout_s: float | None = None
) -> CaptureOptions:
    """A capture of these kernels of a file alone; of all kernels where none is named."""
    plain = (without_template(name.partition("@")[0]).split("::")[-1] for name in kernels)
    return CaptureOptions(
        device=device,
        kernel="|".join(rf"\b{re.escape(name)}\b" for name in plain) or None,
        timeout=timeout_s,
        # Which of a template's instantiations comes last is not known, and a specialisation has a text of its own.
        stop=False if any(is_specialised(module, name) for name in kernels) else None,
    )


def read_source(path: Path) -> str:
    """The file's text. SourceError says why it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error


def _earlier(path: Path, module: Module, kernels: Sequence[str]) -> list[Workload]:
    """Captures and specs that are there already, in the order of the file."""
    toml = path.parent / "kernels.toml"
    found = []
    for name in kernels:
        workload = find(path, module, name)
        if workload is None and toml.is_file():
            workload = spec.load(toml, module, module.kernel(name))
        if workload is not None:
            found.append(workload)
    return found
