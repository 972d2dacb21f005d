"""A drop-in nvcc that needs no CUDA: turns each `.cu` into C++ and lets g++ compile it against the emulator.

`python -m cuda_agent.device.emulator.nvcc -O3 -o main main.cu` makes a program that runs on the CPU. Environment:
`CUDA_AGENT_OUTPUTS` names a file that gets every path written, one a line; an output that was already there is first
moved to `<path>.cuda-agent-saved`, so that the person's build can be put back. `CUDA_AGENT_CXX` is the host
compiler (g++).
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cuda_agent.device.emulator import native
from cuda_agent.device.emulator.options import Options, parse
from cuda_agent.device.emulator.unit import Unit, translate_unit
from cuda_agent.errors import CompileError, CudaAgentError, ToolMissing, Unsupported, UsageError

VERSION = """nvcc: NVIDIA (R) Cuda compiler driver compatible
Emulated by CUDA Agent: programs run on the CPU
Cuda compilation tools, release 13.0, V13.0.0
Build cuda-agent.emulator
"""
_SOURCES = {".cu", ".cpp", ".cc", ".cxx", ".c++", ".C"}
_LATEST = re.compile(r"^(?:gnu|c)\+\+(\w+)$")


def main(argv: Sequence[str] | None = None) -> int:
    """Run as nvcc would; diagnostics on stderr, exit status g++'s or 1 (2 when the emulator cannot run the file)."""
    try:
        options = parse(list(sys.argv[1:] if argv is None else argv), Path.cwd())
        return _Build(options).run()
    except CompileError as error:
        sys.stderr.write(error.diagnostics or f"{error}\n")
        return 1
    except Unsupported as error:
        print(f"nvcc fatal   : {error}", file=sys.stderr)
        return 2
    except (CudaAgentError, OSError) as error:
        print(f"nvcc fatal   : {error}", file=sys.stderr)
        return 1


@functools.cache
def compiler_version() -> str:
    """First line of g++ --version. Raises ToolMissing."""
    done = subprocess.run([native.compiler(), "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0]


def standard(asked: str | None) -> str:
    """The dialect for g++: the emulator's headers need C++17, so older ones are raised."""
    number = _LATEST.match(asked or "")
    return (
        f"-std=gnu++{number.group(1)}"
        if number and number.group(1)[:2] in ("17", "1z", "20", "2a", "23", "2b")
        else "-std=gnu++17"
    )


def compile_flags(options: Options, *, traced: bool = False) -> list[str]:
    """g++'s flags for a translated unit of this build, without input, output and include folders."""
    flags = [standard(options.standard), *native.compile_flags(traced)]
    flags += [f"-DCUEMU_CUDA_ARCH={options.arch}", *options.macros]
    if options.optimize in ("2", "3") and not traced:
        flags.append(f"-O{options.optimize}")
    if options.debug:
        flags.append("-g")
    if options.fast_math:
        flags.append("-D__USE_FAST_MATH__")
    return [*flags, *(word for word in options.host if not word.startswith("-std"))]


def compile_unit(unit: Unit, flags: Sequence[str], extra: Sequence[str], output: Path, directory: Path) -> str:
    """Run g++ on a translated unit; its warnings. Raises CompileError, or Unsupported when that explains it."""
    command = [native.compiler(), *flags, "-x", "c++", str(unit.main), "-x", "none", *extra, "-o", str(output)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, errors="replace", check=False)
    text = unit.named(done.stderr)
    if done.returncode != 0:
        if unit.refused:
            raise Unsupported(f"{unit.refused[0]}; use a GPU for this file")
        raise CompileError(f"g++ refused {next(iter(unit.copies.values()))} for the emulator", text)
    return text


class _Build:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.directory = Path.cwd()

    def run(self) -> int:
        options = self.options
        if options.phase == "-V":
            print(VERSION, end="")
            return 0
        if options.phase == "-h":
            print("Emulated nvcc: see nvcc --help of a CUDA toolkit; device-only outputs (-ptx, -cubin) are not made")
            return 0
        if options.phase in ("-ptx", "-cubin", "-fatbin"):
            raise UsageError(f"the emulator makes no device code: option {options.phase} needs a CUDA toolkit")
        if not options.inputs:
            raise UsageError("No input files specified; use option --help for more information")
        with tempfile.TemporaryDirectory(prefix="cuda-agent-nvcc-") as scratch:
            self.scratch = Path(scratch)
            if options.phase == "link":
                return self._link()
            if options.phase == "-c":
                if options.output and len(self._sources()) > 1:
                    raise UsageError("A single input file is required with -c when an output file is specified")
                for source in self._sources():
                    self._compile(source, self._announce(options.output or self._beside(source, ".o")))
                return 0
            if options.phase in ("-E", "-M", "-MM"):
                return self._preprocess()
            if options.phase == "-dlink":
                return self._device_link()
            return self._archive()

    # ------------------------------------------------------------ phases

    def _sources(self) -> list[str]:
        return [name for name in self.options.inputs if self._is_source(name)]

    def _is_source(self, name: str) -> bool:
        return self.options.language in ("cu", "c++") or Path(name).suffix in _SOURCES

    def _compile(self, source: str, output: Path) -> None:
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        unit = self._unit(source, folder)
        extra = ["-c", *self._dependency_flags(source, output)]
        sys.stderr.write(compile_unit(unit, self._flags(), extra, output, self.directory))
        self._fix_dependencies(unit, output)

    def _unit(self, source: str, folder: Path) -> Unit:
        options = self.options
        return translate_unit(
            self.directory / source,
            folder,
            include_dirs=[self.directory / name for name in options.includes],
            quote_dirs=[self.directory / name for name in options.quotes],
            shims=native.include_dir(),
        )

    def _flags(self) -> list[str]:
        options = self.options
        flags = compile_flags(options)
        if options.shared:
            flags.append("-fPIC")
        includes = [f"-I{name}" for name in options.includes if not (Path(name) / "cuda_runtime_api.h").is_file()]
        return ["-include", "cuda_runtime.h", *flags, *includes, "-w"]

    def _link(self) -> int:
        options = self.options
        output = self._announce(options.output or "a.out")
        objects: list[str] = []
        for name in options.inputs:
            if self._is_source(name):
                compiled = self.scratch / f"{len(objects)}_{Path(name).stem}.o"
                self._compile(name, compiled)
                objects.append(str(compiled))
            else:
                objects.append(name)
        runtime = [str(path) for path in native.runtime_objects()]
        host = [word for word in options.host if word.startswith(("-f", "-p", "-m")) and not word.startswith("-fvis")]
        command = [native.compiler(), *objects, *runtime, *host, *options.link, *native.link_flags(options.shared)]
        return self._call([*command, "-o", str(output)])

    def _preprocess(self) -> int:
        unit = self._unit(self._sources()[0], self.scratch)
        flags = [*self._flags(), self.options.phase]
        if self.options.phase != "-E":
            flags += ["-MT", self._beside(self._sources()[0], ".o")]
        command = [native.compiler(), *flags, "-x", "c++", str(unit.main)]
        done = subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, errors="replace", check=False
        )
        text = unit.named(done.stdout)
        sys.stderr.write(done.stderr)
        if self.options.output:
            self._announce(self.options.output).write_text(text)
        else:
            sys.stdout.write(text)
        return done.returncode

    def _device_link(self) -> int:
        """Device linking has nothing to do here; the object that the build expects is empty."""
        output = self._announce(self.options.output or "a_dlink.o")
        return self._call([native.compiler(), "-c", "-x", "c++", "/dev/null", "-o", str(output)])

    def _archive(self) -> int:
        output = self._announce(self.options.output or "a.a")
        objects: list[str] = []
        for name in self.options.inputs:
            if self._is_source(name):
                compiled = self.scratch / f"{Path(name).stem}.o"
                self._compile(name, compiled)
                objects.append(str(compiled))
            else:
                objects.append(name)
        return self._call(["ar", "rcs", str(output), *objects])

    def _call(self, command: list[str]) -> int:
        try:
            return subprocess.run(command, cwd=self.directory, check=False).returncode
        except FileNotFoundError as error:
            raise ToolMissing(f"no {command[0]} on this machine: install g++ (Debian: apt install g++)") from error

    # ------------------------------------------------------------ files

    def _beside(self, source: str, suffix: str) -> str:
        folder = Path(self.options.directory) if self.options.directory else Path()
        return str(folder / (Path(source).stem + suffix))

    def _announce(self, name: str) -> Path:
        """The output's path, recorded in CUDA_AGENT_OUTPUTS; the person's own file there is moved aside first."""
        output = (self.directory / name).absolute()
        record = os.environ.get("CUDA_AGENT_OUTPUTS")
        if not record:
            return output
        known = Path(record).read_text(encoding="utf-8").splitlines() if Path(record).exists() else []
        if str(output) not in known:
            if output.is_file():
                output.rename(output.with_name(output.name + ".cuda-agent-saved"))
            with open(record, "a", encoding="utf-8") as out:
                out.write(f"{output}\n")
        return output

    def _dependency_flags(self, source: str, output: Path) -> list[str]:
        wanted = self.options.dependencies
        if not any(flag in ("-MD", "-MMD") for flag in wanted):
            return []
        flags = list(wanted)
        if "-MF" in flags:
            flags[flags.index("-MF") + 1] = str(self._announce(flags[flags.index("-MF") + 1]))
        else:
            flags += ["-MF", str(self._announce(str(output.with_suffix(".d"))))]
        if "-MT" not in flags and "-MQ" not in flags:
            flags += ["-MT", self.options.output or self._beside(source, ".o")]
        return flags

    def _fix_dependencies(self, unit: Unit, output: Path) -> None:
        """Name the person's files, not the copies, in the file that `-MD` made."""
        flags = self.options.dependencies
        if not any(flag in ("-MD", "-MMD") for flag in flags):
            return
        made = self.directory / flags[flags.index("-MF") + 1] if "-MF" in flags else output.with_suffix(".d")
        made.write_text(unit.named(made.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
