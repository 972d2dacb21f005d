"""The person's program, rebuilt and run in a copy of its folder.

The recorded command builds the program (`make run`), or is the program itself: then the compiler commands that earlier
captures in its folder recorded are run again before it.

The copy goes to a temporary folder and is made anew for every run, so that each starts from the same files. With
bubblewrap it is mounted over the project's own path: whatever the build or the program writes there, under any
name, lands in the copy. Without bubblewrap the command runs in the copy and absolute paths that it was given are
changed; what a script names by an absolute path is then the person's own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from cuda_agent import trust
from cuda_agent.capture import CaptureOptions, CaptureReport, NothingCaptured, process, shim
from cuda_agent.capture.session import Session
from cuda_agent.errors import Cancelled, CompileError, Untrusted, WorkloadError
from cuda_agent.model import Launch
from cuda_agent.source import joined
from cuda_agent.toolchain import options as words
from cuda_agent.toolchain import sandbox
from cuda_agent.toolchain.build import COMMANDS, RECORD, recorded_commands, sort_out
from cuda_agent.toolchain.names import without_template
from cuda_agent.workload import bundle
from cuda_agent.workload.own import own

if TYPE_CHECKING:
    from cuda_agent.judge.case import Case

COPY_LIMIT = 2 << 30  # bytes of a project that are copied
OUTPUT_LIMIT = 64 << 20  # a build output above this is left out; the command makes it again
TIMED_RUNS, TIMING_S = 3, 6.0  # of the whole program, for its time
LINES = 100_000  # of output that are compared
_LEFT_OUT = frozenset((".git", ".hg", ".svn", ".cuda-agent", "__pycache__", "node_modules", ".venv"))
_OUTPUTS = frozenset((".o", ".obj", ".a", ".so", ".cubin", ".fatbin", ".ptx", ".ii"))
_MAKES = frozenset(("make", "gmake"))


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of the program. `seconds`: the command again without the recorder, on a GPU only."""

    exit_code: int
    lines: tuple[str, ...]
    launches: tuple[Launch, ...]  # of the kernel, recorded
    seen: int  # launches of the kernel
    blobs: bundle.BlobStore
    timed_out: bool
    took: float  # seconds, with building and recording
    seconds: float | None = None


class Program:
    """How the program of a capture is built and run. A context manager: what it wrote goes when it ends.

    Raises WorkloadError when this capture does not say how, in words for the person.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.cwd = _folder(case)
        self.command = case.workload.command
        self.file = Path(os.path.abspath(case.build.file))
        if not self.file.is_relative_to(self.cwd):
            raise WorkloadError(f"{self.file.name} lies outside {self.cwd}, where the program was captured")
        self.alone = self.command[0] == f"./{self.file.stem}" and not (self.cwd / self.command[0]).exists()
        self._room = tempfile.TemporaryDirectory(prefix="cuda-agent-program-")
        self.folder = Path(self._room.name)
        self.copy = self.folder / "copy" / (self.cwd.name or "root")
        self.recorded = self._how_it_was_built()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._room.cleanup()

    # ------------------------------------------------------------ one run

    def run(self, name: str, text: str, limit: float, *, stop: bool = False) -> Ran:
        """Builds the program with `text` as the judged file and runs it, for at most `limit` seconds; with `stop` only
        until every wanted launch is recorded. Raises CompileError, CaptureError, ToolMissing, WorkloadError (it cannot
        be copied, or the command does not build it), Cancelled."""
        self._fresh(text)
        started = time.monotonic()
        told = _Stop(started + limit, self.case.cancelled)
        lines: list[str] = []

        def hear(event: object) -> None:
            if isinstance(event, dict) and event.get("type") == "output" and len(lines) < LINES:
                lines.append(str(event["text"]))

        log = self.folder / f"{name}.compiler"
        into = self.folder / name
        session = Session(self._wrapped(self._argv()), self.copy, self._options(into, log, stop), hear, told)
        report: CaptureReport | None = None
        program = self.folder / "bin" / self.file.stem
        try:
            if self.alone:
                program.parent.mkdir(exist_ok=True)
                session.compile(self.copy / self.file.relative_to(self.cwd), program, self.case.build)
                lines.clear()  # the compiler's warnings
            elif self.recorded:
                self._rebuild(session)
                lines.clear()
            report = session.run(self.command)
        except NothingCaptured as error:
            report = error.report
        except Cancelled:
            if not told.late:
                raise
        if report is not None and report.cancelled and not told.late:
            raise Cancelled("stopped by the person")
        if report is not None and not (self.alone or self.recorded or told.late):
            self._built(report, log)
        seconds = None
        if report is not None and not told.late and not self.case.emulated:
            seconds = self.time(told, report.exit_code)
        wanted, summaries = self.case.workload.kernel, report.kernels if report else ()
        template = without_template(wanted)
        kernels = [summary for summary in summaries if bundle.same_kernel(summary.kernel, template)]
        loaded = (bundle.load(kernel.bundle) for kernel in kernels if kernel.bundle is not None)
        made = [mine for work in loaded if (mine := own(work, self.case.module, wanted)) is not None]
        return Ran(
            exit_code=report.exit_code if report else -1,
            lines=tuple(lines),
            launches=made[0].launches if made else (),
            seen=sum(kernel.launches for kernel in kernels),
            blobs=bundle.BlobStore(made[0].blobs if made else into),
            timed_out=told.late,
            took=time.monotonic() - started,
            seconds=seconds,
        )

    def _options(self, into: Path, log: Path, stop: bool) -> CaptureOptions:
        name = without_template(self.case.workload.kernel).split("::")[-1]
        counts: dict[str, int] = {}
        for launch in self.case.workload.launches:
            counts[launch.mangled] = counts.get(launch.mangled, 0) + 1
        return CaptureOptions(
            device="emulator" if self.case.emulated else self.case.device.spec,
            kernel=rf"\b{re.escape(name)}\b",
            first=max(counts.values()),
            stop=stop,
            into=into,
            environment={**self.case.workload.environment, shim.LOG: str(log)},
        )

    # ------------------------------------------------------------ the command

    def _argv(self) -> list[str]:
        if self.alone:
            return [str(self.folder / "bin" / self.file.stem), *self.command[1:]]
        command = list(self.command)
        # What was built for a GPU cannot be linked with what the emulator's compiler makes.
        if self.case.emulated and Path(command[0]).name in _MAKES:
            command.insert(1, "-B")
        return command

    def _wrapped(self, command: Sequence[str], folder: Path | None = None) -> list[str]:
        """The command as it runs in the copy: with the copy mounted over the project, or with its paths changed."""
        if sandbox.available():
            bwrap = shutil.which("bwrap") or "bwrap"
            over = ["--bind", str(self.copy), str(self.cwd), "--chdir", str(folder or self.cwd)]
            return [bwrap, "--die-with-parent", "--dev-bind", "/", "/", *over, "--", *command]
        return [word.replace(str(self.cwd), str(self.copy)) for word in command]

    def _built(self, report: CaptureReport, log: Path) -> None:
        """Whether the command compiled the judged file. Raises CompileError when the program was not built, and
        WorkloadError when the command builds nothing."""
        record = self.copy / RECORD
        entries = [json.loads(line) for line in record.read_text().splitlines()] if record.is_file() else []
        files = {os.path.normpath(os.path.join(entry["directory"], entry["file"])) for entry in entries}
        inside = self.file.relative_to(self.cwd)
        here = {str(self.cwd / inside), str(self.copy / inside)}
        if not (here & files or (files and self.file.suffix in words.HEADERS)):
            raise WorkloadError(
                f"the recorded command ({' '.join(self.command)}) does not compile {self.file.name}, and no capture "
                "saw nvcc build and link that program: capture with a command that builds and runs it, e.g. "
                "`cuda-agent capture -- make run`"
            )
        said = log.read_text(errors="replace") if log.is_file() else ""
        if report.exit_code != 0 and not report.launches and (error := _first_error(said)):
            raise CompileError(error, said)

    def _how_it_was_built(self) -> list[tuple[Path, list[str]]]:
        """The compiler commands that earlier captures in this folder recorded, where they make the recorded command's
        program of the judged file; else none. A program that another linker made would not hold the edit."""
        found = recorded_commands((self.cwd / RECORD).with_name(COMMANDS))
        found = [(folder, argv) for folder, argv in found if folder.is_relative_to(self.cwd)]
        sorted_out = [sort_out(["nvcc", *argv], folder) for folder, argv in found]
        sources = {path for command in sorted_out for path in command.inputs}
        known = self.file in sources or (bool(sources) and self.file.suffix in words.HEADERS)
        links = [command for command in sorted_out if command.phase == "link"]
        program = Path(os.path.normpath(self.cwd / self.command[0]))
        made = {link.output or link.directory / "a.out" for link in links}
        return found if known and program in made else []

    def _rebuild(self, session: Session) -> None:
        """Run the recorded compiler commands in the copy. Raises CompileError, Cancelled."""

        def wrap(command: list[str], folder: Path) -> tuple[list[str], Path]:
            return self._wrapped(command, folder), self.copy / folder.relative_to(self.cwd)

        with session.compiler(wrap) as nvcc:
            for folder, argv in self.recorded:
                done = nvcc(argv, folder)
                if done.cancelled:
                    raise Cancelled("stopped while the program was built")
                if done.exit_code != 0:
                    error = _first_error(done.output) or f"`nvcc {' '.join(argv)}` ended with {done.exit_code}"
                    raise CompileError(error, done.output)

    def time(self, stop: Callable[[], bool], exit_code: int) -> float | None:
        """Seconds of the command once more, everything built and nothing recorded: the least of up to three runs,
        which together take no longer than TIMING_S unless the first one does. None when it ends otherwise."""
        environment = {**os.environ, **self.case.workload.environment}
        spec = self.case.device.spec
        if spec.startswith("cuda:"):
            environment.setdefault("CUDA_VISIBLE_DEVICES", spec.partition(":")[2])
        taken: list[float] = []
        while len(taken) < TIMED_RUNS and sum(taken) + max(taken, default=0.0) <= TIMING_S:
            started = time.monotonic()
            done = process.run(
                self._wrapped(self._argv()),
                self.copy,
                environment,
                tick=lambda: None,
                on_output=lambda text: None,
                cancelled=stop,
            )
            if done.cancelled or done.exit_code != exit_code:
                return None
            taken.append(time.monotonic() - started)
        return min(taken)

    # ------------------------------------------------------------ the copy

    def _fresh(self, text: str) -> None:
        """A new copy of the project with `text` as the judged file (and those joined with it), newer than everything
        built from them."""
        shutil.rmtree(self.copy, ignore_errors=True)
        copied = 0

        def copy(source: str, target: str) -> str:
            nonlocal copied
            self.case.check_cancelled()
            copied += os.stat(source).st_size
            if copied > COPY_LIMIT:
                raise WorkloadError(
                    f"{self.cwd} holds more than {COPY_LIMIT >> 30} GB: the program is rebuilt in a copy of that folder"
                )
            return shutil.copy2(source, target)

        try:
            shutil.copytree(self.cwd, self.copy, symlinks=True, ignore=_ignore, copy_function=copy)
            for file, content in joined.files(self.file, text):
                if not file.is_relative_to(self.cwd):
                    raise WorkloadError(f"{file.name} lies outside {self.cwd}, where the program was captured")
                target = self.copy / file.relative_to(self.cwd)
                target.unlink(missing_ok=True)  # a link must not be written through
                target.write_bytes(content.encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise WorkloadError(f"{self.cwd} cannot be copied to {self.folder}: {error.strerror or error}") from error


class _Stop:
    """Asked while the program runs: true at the deadline (`late`) or when the person stops."""

    def __init__(self, deadline: float, cancelled: Callable[[], bool] | None) -> None:
        self.deadline, self.cancelled, self.late = deadline, cancelled, False

    def __call__(self) -> bool:
        if self.cancelled is not None and self.cancelled():
            return True
        self.late = self.late or time.monotonic() > self.deadline
        return self.late


def _folder(case: Case) -> Path:
    """Where the recorded command was run. Raises WorkloadError."""
    workload = case.workload
    if workload.origin != "captured" or not workload.command:
        raise WorkloadError(
            f"the inputs are {workload.origin} and name no command that runs the program: "
            "capture them with `cuda-agent capture -- make run`"
        )
    parts = workload.root.absolute().parents
    if len(parts) < 3 or parts[0].name != "captures" or parts[1].name != ".cuda-agent":
        raise WorkloadError(f"the capture {workload.root} does not lie in its project's .cuda-agent/captures")
    folder = Path(os.path.abspath(parts[2]))
    try:
        trust.need(folder)  # the command runs more than the judged file, maybe from a folder above the trusted one
    except Untrusted as missing:
        raise WorkloadError(str(missing)) from missing
    return folder


def _ignore(folder: str, names: list[str]) -> set[str]:
    """What is not copied: history, our own folder, large build outputs, and what is neither file, folder nor link."""
    left = set(names) & _LEFT_OUT
    for name in set(names) - left:
        found = os.lstat(os.path.join(folder, name))
        kind = stat.S_IFMT(found.st_mode)
        large = kind == stat.S_IFREG and found.st_size > OUTPUT_LIMIT
        if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK) or (large and _is_output(Path(folder, name))):
            left.add(name)
    return left


def _is_output(path: Path) -> bool:
    return path.suffix in _OUTPUTS or is_executable(path)


def is_executable(path: Path) -> bool:
    """A program or a library that was built, no script."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if re.search(r"\berror\b|fatal|undefined reference", line)]
    return lines[0] if lines else ""
