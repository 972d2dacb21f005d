"""One capture, from the command to the report."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent import paths as places
from cuda_agent.capture import injection, process, raw, shim
from cuda_agent.capture.report import Cancelled, CaptureOptions, CaptureReport, OnEvent, judged
from cuda_agent.errors import Cancelled as CancelledError
from cuda_agent.errors import CaptureError, CompileError, ToolMissing, UsageError
from cuda_agent.model import Build
from cuda_agent.toolchain import build as builds
from cuda_agent.toolchain import names, nvcc

# What may be written into a bundle: variables that change what a CUDA program computes, never paths, tokens or names.
RECORDED_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "LC_ALL",
    "LANG",
)
_MAKES = frozenset({"make", "gmake"})
Wrap = Callable[[list[str], Path], tuple[list[str], Path]]


def resolve_device(device: str) -> str:
    """ "cuda" or "emulator" for what the person said. Raises UsageError."""
    if device == "auto":
        return "cuda" if gpu_count() > 0 else "emulator"
    if device == "emulator" or device.partition(":")[0] == "cuda":
        return device.partition(":")[0]
    raise UsageError(f"A program cannot be captured on the device {device!r}: use cuda, cuda:N or emulator.")


def gpu_count() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


@dataclass(slots=True)
class _Paths:
    """What a run writes: `.cuda-agent/` in the working folder, with the raw record in a folder that goes away again."""

    home: Path
    raw: Path
    outputs: Path
    builds: Path
    globals_: Path


class Session:
    """One capture from command to report."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        options: CaptureOptions,
        on_event: OnEvent | None,
        cancelled: Cancelled | None,
    ) -> None:
        self.command = tuple(command)
        self.cwd = cwd.absolute()
        self.options = options
        self.device = resolve_device(options.device)
        self.on_event: OnEvent = on_event or (lambda event: None)
        self.cancelled: Cancelled = cancelled or (lambda: False)
        self.notes: list[str] = []
        self.sources: set[Path] = set()  # compiled by us
        try:
            re.compile(self.options.kernel or "")
        except re.error as error:
            raise UsageError(f"The kernel filter {options.kernel!r} is not a regular expression: {error}.") from error
        if not self.cwd.is_dir():
            raise UsageError(f"There is no folder {self.cwd} to run in.")

    # ------------------------------------------------------------ the toolkit

    def _real_nvcc(self) -> nvcc.Nvcc | None:
        try:
            return nvcc.find()
        except ToolMissing:
            return None  # A program that is already built needs none.

    def _install(self, folder: Path, paths: _Paths | None) -> shim.Shim | None:
        """The recording toolkit, or None where there is no compiler to stand before."""
        builds_, globals_ = (paths.builds, paths.globals_) if paths else (folder / "builds", folder / "globals")
        if self.device == "emulator":
            from cuda_agent.device.emulator import native

            return shim.install(folder, None, None, native.include_dir(), builds_, globals_)
        real = self._real_nvcc()
        return shim.install(folder, real.path, real.root, None, builds_, globals_) if real else None

    def compile(self, file: Path, program: Path, build: Build) -> None:
        """Builds a whole program. Raises CompileError, ToolMissing."""
        self.sources.add(file)
        flags = [flag for flag in build.flags if not flag.startswith(("-rdc", "-dlink"))]
        if self.device == "cuda" and builds.arch_of(build) is None:
            flags = [*builds.without_arch(flags), "-arch=native"]
        with self.compiler() as compile_:
            done = compile_(
                [*flags, str(file), "-o", str(program)],
                build.directory if build.directory.is_dir() else file.parent,
            )
        if done.cancelled:
            raise CancelledError("Stopped while the program was being compiled.")
        if done.exit_code != 0 and "No space left on device" in done.output:
            raise CaptureError(
                f"{file.name} could not be compiled: no space is left for the cache ({places.cache_dir()}) or for "
                "temporary files. Free some, or set CUDA_AGENT_CACHE or TMPDIR to a folder on another disk."
            )
        if done.exit_code != 0 or not program.is_file():
            raise CompileError(
                f"{file.name} did not build as a program by itself. Correct the error, or give the command that runs "
                "it with --run.",
                done.output,
            )

    @contextlib.contextmanager
    def compiler(self, wrap: Wrap = lambda command, cwd: (command, cwd)) -> Iterator[Callable[..., process.Finished]]:
        """The device's nvcc as a function of its words and its folder; nothing is recorded. `wrap` may change a command
        and its folder before it runs. Raises ToolMissing."""
        if self.device == "emulator":
            from cuda_agent.device.emulator import native

            native.compiler()
        with tempfile.TemporaryDirectory(prefix="cuda-agent-nvcc-") as folder:
            tools = self._install(Path(folder) / "cuda", None)
            if tools is None:
                raise ToolMissing(f"nvcc was not found. {nvcc.INSTALL}")
            environment = dict(os.environ)
            for name in (shim.BUILDS, shim.GLOBALS, shim.OUTPUTS):
                environment.pop(name, None)
            environment |= {name: value for name, value in tools.environment.items() if name == shim.REAL}

            def run(words: Sequence[str], cwd: Path) -> process.Finished:
                return process.run(
                    *wrap([str(tools.nvcc), *words], cwd),
                    environment,
                    tick=lambda: None,
                    on_output=lambda text: self.on_event({"type": "output", "text": text}),
                    cancelled=self.cancelled,
                )

            yield run

    # ------------------------------------------------------------ the run

    def run(self, shown: tuple[str, ...]) -> CaptureReport:
        started = time.monotonic()
        home = self.cwd / ".cuda-agent"
        try:
            home.mkdir(exist_ok=True)
            (home / ".gitignore").write_text("*\n")
            with tempfile.TemporaryDirectory(prefix="raw-", dir=home) as folder:
                paths = _Paths(
                    home, Path(folder), Path(folder) / "outputs", home / "builds.jsonl", Path(folder) / "globals.txt"
                )
                return self._run_in(paths, shown, started)
        except OSError as error:
            raise CaptureError(
                f"Cannot write {error.filename or home}: {error.strerror or error}. The capture needs a working folder "
                "that can be written, with room for the buffers."
            ) from error

    def _run_in(self, paths: _Paths, shown: tuple[str, ...], started: float) -> CaptureReport:
        with tempfile.TemporaryDirectory(prefix="cuda-agent-nvcc-") as folder:
            tools = self._install(Path(folder) / "cuda", paths)
            environment = self._environment(paths, tools)
            shim.record_variables(paths.globals_, sorted({*self.cwd.glob("*.cu"), *self.sources}))
            before = _lines(paths.builds)
            follower = raw.Follower(paths.raw)
            try:
                done = self._execute(self.command, environment, follower)
                again = self._again(done, paths, before)
                if again is not None:
                    done = self._execute(again, environment, follower)
            finally:
                shim.clean_outputs(paths.outputs)
            if self.device == "cuda" and _lines(paths.builds) == 0:
                self._dry_run(environment)
        bundles = {}
        recorded = {name: value for name in RECORDED_VARIABLES if (value := os.environ.get(name)) is not None}
        captures = self.options.into or paths.home / "captures"
        ended = follower.stopped or done.cancelled or done.timed_out or done.exit_code != 0
        for workload in raw.convert(follower, captures, shown, recorded, self.options.first, ended):
            bundles[workload.kernel] = workload.root
            self.on_event(
                {
                    "type": "bundle",
                    "kernel": workload.kernel,
                    "path": str(workload.root),
                    "launches": len(workload.launches),
                }
            )
        used = [launch for launch in follower.launches.values() if launch.why is None]
        report = CaptureReport(
            command=shown,
            cwd=self.cwd,
            device=str(used[0].data["device"]) if used else "",
            exit_code=done.exit_code,
            kernels=follower.summaries(bundles),
            builds=_lines(paths.builds) - before,
            notes=(*self.notes, *follower.notes, *self._missing(follower)),
            seconds=time.monotonic() - started,
            stopped=follower.stopped,
            cancelled=done.cancelled,
            output=done.output,
        )
        return judged(report, self.device, self.options.timeout if done.timed_out else None)

    def _missing(self, follower: raw.Follower) -> list[str]:
        """What an end that nobody asked for may have left out: which instantiations of a template a program launches
        shows only its whole run."""
        if not follower.stopped or self.options.stop is not None:
            return []
        used = (str(launch.data["mangled"]) for launch in follower.launches.values() if launch.why is None)
        names_ = dict.fromkeys(name for name in map(names.expression, used) if name.endswith(">"))
        return [
            f"the program was ended after {', '.join(names_)}: if it launches the template with other arguments later, "
            "add --no-stop to record these launches, too"
        ] * bool(names_)

    def _environment(self, paths: _Paths, tools: shim.Shim | None) -> dict[str, str]:
        options = self.options
        stop = options.stop if options.stop is not None else self.device == "emulator"
        environment = {**os.environ, **options.environment}
        environment |= {
            "CUDA_AGENT_CAPTURE_DIR": str(paths.raw),
            "CUDA_AGENT_CAPTURE_KERNEL": options.kernel or "",
            "CUDA_AGENT_CAPTURE_FIRST": str(options.first),
            "CUDA_AGENT_CAPTURE_SELECT": options.select,
            "CUDA_AGENT_CAPTURE_CAP": str(options.cap),
            "CUDA_AGENT_CAPTURE_STOP": "1" if stop else "0",
        }
        if stop and options.select != "first":
            self._note(f"the program runs to its end: the {options.select} launches are known only then")
        if tools is not None:
            environment |= tools.environment
        if self.device == "emulator":
            environment[shim.OUTPUTS] = str(paths.outputs)
            environment.pop("CUDA_INJECTION64_PATH", None)
        else:
            if os.environ.get("CUDA_INJECTION64_PATH"):
                self._note("CUDA_INJECTION64_PATH was set by another tool; the capture replaces it for this run")
            environment["CUDA_INJECTION64_PATH"] = str(injection.build_injection())
            if options.device.startswith("cuda:") and "CUDA_VISIBLE_DEVICES" not in environment:
                environment["CUDA_VISIBLE_DEVICES"] = options.device.partition(":")[2]
        return environment

    def _execute(
        self, command: Sequence[str], environment: Mapping[str, str], follower: raw.Follower
    ) -> process.Finished:
        told: set[str] = set()

        def tick() -> None:
            for launch in follower.poll():
                self.on_event(
                    {
                        "type": "launch",
                        "kernel": launch.kernel,
                        "seq": launch.data["seq"],
                        "mangled": launch.data["mangled"],
                        "demangled": launch.data["demangled"],
                        "grid": launch.data["grid"],
                        "block": launch.data["block"],
                        "shared": launch.data["shared"],
                        "bytes": launch.bytes,
                        "skipped": launch.why,
                    }
                )
            for text in follower.notes:
                if text not in told:
                    told.add(text)
                    self.on_event({"type": "note", "text": text})

        return process.run(
            command,
            self.cwd,
            environment,
            tick=tick,
            on_output=lambda text: self.on_event({"type": "output", "text": text}),
            cancelled=self.cancelled,
            timeout=self.options.timeout,
        )

    def _again(self, done: process.Finished, paths: _Paths, before: int) -> list[str] | None:
        """A make that found its GPU build up to date compiled nothing for the emulator: the command with -B."""
        is_make = Path(self.command[0]).name in _MAKES
        if self.device != "emulator" or not is_make or done.cancelled or done.timed_out:
            return None
        if paths.outputs.is_file() or _lines(paths.builds) != before:
            return None
        self._note(
            "everything was already built for a GPU: ran make again with -B, so that the emulator's compiler was used"
        )
        return [self.command[0], "-B", *self.command[1:]]

    def _dry_run(self, environment: Mapping[str, str]) -> None:
        """A make that compiled nothing still knows how it would: its dry run gives the compiler flags."""
        if Path(self.command[0]).name not in _MAKES or shutil.which(self.command[0]) is None:
            return
        argv = [self.command[0], "-B", "-n", "-w", *self.command[1:]]
        quiet = {name: value for name, value in environment.items() if not name.startswith("CUDA_INJECTION")}
        try:
            asked = subprocess.run(
                argv, cwd=self.cwd, env=quiet, capture_output=True, text=True, errors="replace", timeout=30, check=False
            )
            found = shim.record_dry_run(asked.stdout, self.cwd, Path(environment[shim.BUILDS]), environment[shim.REAL])
        except (subprocess.TimeoutExpired, OSError, UsageError, KeyError) as error:
            self._note(f"the compiler flags could not be learned from `make -n` ({error})")
            return
        if found:
            self._note(f"nothing was compiled in this run: flags of {found} files are from `make -n`")

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.on_event({"type": "note", "text": text})


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0
