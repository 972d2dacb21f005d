"""The recording nvcc: a toolkit folder whose `bin/nvcc` writes down its command line and then compiles.

On a GPU it becomes the real nvcc (`exec`); on the emulator it is the emulator's compiler. The folder stands first on
PATH and is CUDA_HOME, CUDA_PATH, CUDACXX and NVCC, so that make, CMake and Python extensions find it. Nothing of the
person's is changed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.errors import CudaAgentError
from cuda_agent.toolchain import build

REAL = "CUDA_AGENT_SHIM_NVCC"  # the real nvcc; unset: the emulator's
BUILDS = "CUDA_AGENT_SHIM_BUILDS"  # builds.jsonl; unset: nothing is recorded
GLOBALS = "CUDA_AGENT_SHIM_GLOBALS"  # names of module variables, for the recorder
LOG = "CUDA_AGENT_SHIM_LOG"  # where the compiler's messages go; unset: to stderr, as always
OUTPUTS = "CUDA_AGENT_OUTPUTS"  # where the emulator's compiler lists what it wrote

# Variables of the device: `__constant__ float c[9];`, `__device__ static int counter = 0;`; functions have `(`.
_DECLARATION = re.compile(r"\b(?:__constant__|__device__|__managed__)\b([^;={()]*)(?=[;={])")
_ALIGN = re.compile(r"\b(?:__align__|alignas)\s*\([^()]*\)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shim:
    """`folder` looks like a CUDA toolkit; `environment` is what the program gets on top of its own."""

    folder: Path
    environment: dict[str, str]

    @property
    def nvcc(self) -> Path:
        return self.folder / "bin" / "nvcc"


def install(
    folder: Path, real: Path | None, root: Path | None, include: Path | None, builds: Path, globals_: Path
) -> Shim:
    """Makes the toolkit folder. `real` and `root`: the real nvcc and its toolkit; None on the emulator, whose headers
    are then `include`. Raises OSError."""
    bin_ = folder / "bin"
    bin_.mkdir(parents=True)
    if root is not None:
        for entry in root.iterdir():
            if entry.name != "bin":
                (folder / entry.name).symlink_to(entry)
        for entry in (root / "bin").iterdir():
            if entry.name != "nvcc":
                (bin_ / entry.name).symlink_to(entry)
    else:
        (folder / "lib64").mkdir()
        if include is not None:
            (folder / "include").symlink_to(include)
    script = folder / "cuda-agent-nvcc.py"
    search = [path for path in sys.path if path]
    script.write_text(
        f"import sys\nsys.path[1:] = {search!r}\n"
        "from cuda_agent.capture.shim import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    nvcc = bin_ / "nvcc"
    command = f'exec {shlex.quote(sys.executable)} {shlex.quote(str(script))} "$@"'
    text = folder / "cuda-agent-nvcc.sh"
    text.write_text(f"#!/bin/sh\n# cuda-agent: records this command line, then compiles\n{command}\n")
    # Linux runs no file that is open for writing, and a process that another thread starts just now holds a copy of
    # every file we have open until it execs ("Text file busy"). So a process of its own writes what will be run.
    copy = [sys.executable, "-ISc", "import shutil, sys; shutil.copyfile(*sys.argv[1:])", str(text), str(nvcc)]
    copied = subprocess.run(copy, capture_output=True, text=True, check=False)
    if copied.returncode != 0:
        raise OSError(f"cannot write {nvcc}: {copied.stderr.strip()[-200:]}")
    nvcc.chmod(0o755)
    environment = {
        "PATH": f"{bin_}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "CUDA_HOME": str(folder),
        "CUDA_PATH": str(folder),
        "CUDACXX": str(nvcc),
        "NVCC": str(nvcc),
        BUILDS: str(builds),
        GLOBALS: str(globals_),
    }
    if real is not None:
        environment[REAL] = str(real)
    return Shim(folder, environment)


def main(arguments: Sequence[str]) -> int:
    """What `bin/nvcc` runs: record, then compile. On a GPU this process becomes nvcc and does not return."""
    real = os.environ.get(REAL)
    argv = [real or "nvcc", *arguments]
    # A build must not fail because it could not be written down; the person is told, and flags will be the defaults.
    try:
        if os.environ.get(BUILDS):
            builds = Path(os.environ[BUILDS])
            build.record(builds, argv, Path.cwd())
            build.record_command(builds.with_name(build.COMMANDS), argv, Path.cwd())
        if os.environ.get(GLOBALS):
            sources = [item.file for item in build.parse_command(argv, Path.cwd())]
            record_variables(Path(os.environ[GLOBALS]), sources)
    except (OSError, CudaAgentError) as error:
        print(f"cuda-agent: this nvcc command was not recorded: {error}", file=sys.stderr)
    if os.environ.get(LOG):
        log = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(log, 2)
    if real:
        os.execv(real, argv)
    from cuda_agent.device.emulator import nvcc  # only here: a GPU build must not pay for this import

    return nvcc.main(list(arguments))


def variables(text: str) -> list[str]:
    """Names of the `__constant__`, `__device__` and `__managed__` variables declared in a source text (at global scope:
    the name is then also the symbol)."""
    names: dict[str, None] = {}
    for match in _DECLARATION.finditer(_ALIGN.sub(" ", _COMMENT.sub(" ", text))):
        for declarator in re.sub(r"\[[^\]]*\]", " ", match[1]).split(","):
            if words := re.findall(r"[A-Za-z_]\w*", declarator):
                names[words[-1]] = None
    return list(names)


def record_variables(path: Path, sources: Iterable[Path]) -> None:
    """Appends the module variables of these files and of the headers beside them to `path`. Raises OSError."""
    files = {file for source in sources for file in (source, *source.parent.glob("*.cuh"), *source.parent.glob("*.h"))}
    found = [name for file in sorted(files) if file.is_file() for name in variables(file.read_text(errors="replace"))]
    if found:
        with path.open("a") as out:
            out.write("".join(f"{name}\n" for name in found))


def clean_outputs(listing: Path) -> int:
    """Takes back what the emulator's compiler wrote into the person's tree: saved files return, new ones go."""
    if not listing.is_file():
        return 0
    written = list(dict.fromkeys(line for line in listing.read_text().splitlines() if line))
    for name in written:
        output, saved = Path(name), Path(name + ".cuda-agent-saved")
        if saved.exists():
            os.replace(saved, output)
        else:
            output.unlink(missing_ok=True)
    return len(written)


def record_dry_run(text: str, cwd: Path, builds: Path, real: str) -> int:
    """Records the nvcc commands that `make -n -w` printed, as calls of `real`; returns how many files they compile.

    Raises OSError, UsageError.
    """
    folders, count = [cwd], 0
    for line in text.splitlines():
        if match := re.match(r"\S*make\S*: Entering directory ['`](.*)'", line):
            folders.append(Path(match[1]))
        elif re.match(r"\S*make\S*: Leaving directory", line) and len(folders) > 1:
            folders.pop()
        elif "nvcc" in line:
            try:
                argv = shlex.split(line)
            except ValueError:
                continue  # a shell construct over several lines
            if argv and Path(argv[0]).name == "nvcc":
                count += build.record(builds, [real, *argv[1:]], folders[-1])
    return count
