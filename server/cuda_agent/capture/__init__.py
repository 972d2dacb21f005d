"""Runs a person's own program and keeps what its kernels ran on.

`capture` runs any command; `build_and_run` compiles one `.cu` with a main and runs that. On a GPU a library is injected
through the driver (`injection`), on the emulator its own runtime records; both write the raw record, which becomes
bundles under `<cwd>/.cuda-agent/captures/`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cuda_agent import keys
from cuda_agent.capture.report import (
    Cancelled,
    CaptureOptions,
    CaptureReport,
    Event,
    KernelSummary,
    NothingCaptured,
    OnEvent,
)
from cuda_agent.capture.session import Session, resolve_device
from cuda_agent.errors import UsageError
from cuda_agent.model import Build
from cuda_agent.source import documents
from cuda_agent.toolchain import nvcc

__all__ = [
    "CaptureOptions",
    "CaptureReport",
    "Event",
    "KernelSummary",
    "NothingCaptured",
    "build_and_run",
    "capture",
    "resolve_device",
]


def capture(
    command: Sequence[str],
    cwd: Path,
    options: CaptureOptions | None = None,
    on_event: OnEvent | None = None,
    cancelled: Cancelled | None = None,
) -> CaptureReport:
    """Runs `command` in `cwd` and records its kernel launches and compiler commands.

    Cancelling (or Ctrl-C) kills the program and keeps what was recorded; with nothing recorded it raises Cancelled.
    Raises NothingCaptured (a CaptureError with the report) when no launch could be recorded, CaptureError when the
    program cannot start or the folder cannot be written; ToolMissing, CompileError (the injection); UsageError.
    """
    if not command:
        raise UsageError("There is no command to run: cuda-agent capture -- make run")
    return Session(command, cwd, _with_keys(options), on_event, cancelled).run(tuple(command))


def build_and_run(
    file: Path,
    args: Sequence[str],
    build: Build,
    options: CaptureOptions | None = None,
    on_event: OnEvent | None = None,
    cancelled: Cancelled | None = None,
    *,
    text: str | None = None,
) -> CaptureReport:
    """Compiles one `.cu` that has a main with its build's flags and captures a run of it, in the file's folder.

    `text` is an editor's, saved or not, and the one that is compiled; None: the file's. The program lies in a temporary
    folder; nothing but `.cuda-agent/` is written beside the file. Raises SourceError when the file cannot be read,
    CompileError and what `capture` raises.
    """
    file = file.absolute()
    work = Session((str(file),), file.parent, _with_keys(options), on_event, cancelled)
    with tempfile.TemporaryDirectory(prefix="cuda-agent-") as folder:
        program, copy = Path(folder) / "program" / file.stem, Path(folder) / "text" / file.name
        program.parent.mkdir()
        if text is None or documents.is_saved(file, text):
            work.compile(file, program, build)
        else:
            work.compile(copy, program, _write_as(file, text, copy, build))
        work.command = (str(program), *args)
        return work.run((f"./{file.stem}", *args))


def _with_keys(options: CaptureOptions | None) -> CaptureOptions:
    """The person's own program gets the person's own keys."""
    options = options or CaptureOptions()
    return replace(options, environment={**keys.persons(), **options.environment})


def _write_as(file: Path, text: str, copy: Path, build: Build) -> Build:
    """Writes `text` to `copy`, which compiles with the build that is returned as if it lay at `file`: it finds the
    headers beside that, and the compiler's messages name it."""
    copy.parent.mkdir()
    quoted = str(file).replace("\\", "\\\\").replace('"', '\\"')
    documents.write(copy, f'#line 1 "{quoted}"\n' + text.removeprefix("\ufeff"))
    return replace(build, file=copy, flags=(*build.flags, "=".join(nvcc.beside(file.parent, copy.parent))))
