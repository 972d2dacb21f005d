"""Runs a compiler where it can read the toolkit and the project, write one folder, and reach nothing else.

bubblewrap gives new namespaces: no network, an own /tmp, processes that die with us. Text from a model is compiled with
`required=True`: without a working bubblewrap nothing is run. A person's own text may be compiled without it, under
resource limits only: they build it themselves all day.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from cuda_agent import config
from cuda_agent.errors import SandboxError

# The system that a compiler needs: programs, libraries, the linker's cache. Not /etc, /home, /root, /var, /run.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/nix/store")
ENVIRONMENT = (
    "PATH",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "C_INCLUDE_PATH",
    "LANG",
    "NVCC_CCBIN",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
)
_OUTPUT_LIMIT = 4 << 20
_LINKS = 40  # as many as Linux follows in one path
INSTALL = (
    "Install bubblewrap (Debian and Ubuntu: `apt install bubblewrap`; Fedora: `dnf install bubblewrap`) and allow user "
    "namespaces for it, or set cudaAgent.sandbox to off to compile your own code without it."
)


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished process. `returncode` is negative for a signal; output is cut at 4 MiB."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool
    sandboxed: bool


@lru_cache(1)
def _works() -> bool:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return False
    probe = [
        bwrap,
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "true",
    ]
    try:
        return subprocess.run(probe, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def available() -> bool:
    """Whether bubblewrap is here and may make namespaces."""
    return _works()


def run(
    argv: Sequence[str],
    cwd: Path,
    readable: Sequence[Path] = (),
    writable: Sequence[Path] = (),
    timeout: float = 120.0,
    *,
    required: bool = False,
    environment: Mapping[str, str] | None = None,
    memory: int = 16 << 30,
) -> Completed:
    """Run `argv` in `cwd`; it reads the system, `readable` and `writable`, and writes `writable` and its own /tmp.

    On timeout the whole process group is killed and `timed_out` is set. `memory` bounds the address space in bytes.
    The setting `sandbox` may be `off`, which `required` overrules. Raises SandboxError when `required` and bubblewrap
    cannot work, or when `argv[0]` cannot be started.
    """
    sandboxed = (required or config.current().sandbox != "off") and available()
    if required and not sandboxed:
        raise SandboxError(
            f"Text from a model is compiled only in a sandbox, and bubblewrap does not work here. {INSTALL}"
        )
    command = [*_limits(timeout, memory), *argv]
    if sandboxed:
        command = [*_bwrap(cwd, readable, writable), *command]
    env = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    if not sandboxed:
        env["TMPDIR"] = str(writable[0]) if writable else tempfile.gettempdir()
    env |= environment or {}
    started = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd if not sandboxed else "/",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"{command[0]} cannot be started in {cwd}: {error.strerror}.") from error
        timed_out = _wait(process, timeout)
        stdout, stderr = _text(out), _text(err)
    if sandboxed and process.returncode != 0 and stderr.startswith("bwrap: "):
        raise SandboxError(f"The sandbox could not be built ({stderr.strip()}). {INSTALL}")
    return Completed(process.returncode, stdout, stderr, time.monotonic() - started, timed_out, sandboxed)


def wrap(argv: Sequence[str], readable: Sequence[Path] = (), writable: Sequence[Path] = ()) -> list[str]:
    """The command line that runs `argv` in the sandbox, for a long-lived process that the caller starts and ends itself
    (a worker); its working directory is /tmp, empty and its own. Ask `available()` first."""
    return [*_bwrap(Path("/tmp"), readable, writable), *argv]


def _wait(process: subprocess.Popen[bytes], timeout: float) -> bool:
    try:
        process.wait(timeout)
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        # Also after a normal end: a compiler leaves no children behind, anything else does not get to.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_OUTPUT_LIMIT).decode(errors="replace")


def _limits(timeout: float, memory: int) -> list[str]:
    """A shell that sets limits and becomes the program: `preexec_fn` is not safe in a process with threads."""
    cpu = int(timeout) * 4 + 4
    script = f'ulimit -c 0; ulimit -v {memory >> 10}; ulimit -f {1 << 20}; ulimit -t {cpu}; exec "$@"'
    return ["/bin/sh", "-c", script, "sh"]


def _bwrap(cwd: Path, readable: Sequence[Path], writable: Sequence[Path]) -> list[str]:
    command = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for name in _SYSTEM:
        path = Path(name)
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), name]
        elif path.exists():
            command += ["--ro-bind", name, name]
    # Parents first: a later mount would hide an earlier one below it.
    mounted = [Path(name) for name in _SYSTEM]
    for path in sorted({p.absolute() for p in readable}):
        if path.exists() and not _inside(path, ("/usr", "/lib", "/lib64", "/nix/store")):
            mounted.append(_destination(path, mounted))
            command += ["--ro-bind", str(path), str(mounted[-1])]
    for path in sorted({p.absolute() for p in writable}):
        mounted.append(_destination(path, mounted))
        command += ["--bind", str(path), str(mounted[-1])]
    return [*command, "--chdir", str(cwd), "--"]


def _destination(path: Path, mounted: Sequence[Path]) -> Path:
    """Where to mount `path` so that its own name leads to it: bubblewrap makes no folders behind a symbolic link, and a
    link below a mount is there in the sandbox too, so there the link's target is mounted. Raises SandboxError for a
    loop of links."""
    name = path
    for _ in range(_LINKS):
        link = next((c for c in (*reversed(name.parents), name) if c.is_symlink() and _below(c, mounted)), None)
        if link is None:
            return name
        name = Path(os.path.normpath(link.parent / link.readlink() / name.relative_to(link)))
    raise SandboxError(f"{path} leads through more than {_LINKS} symbolic links: name the folder itself.")


def _below(path: Path, mounted: Sequence[Path]) -> bool:
    return path not in mounted and any(mount in path.parents for mount in mounted)


def _inside(path: Path, roots: Sequence[str]) -> bool:
    return any(path.is_relative_to(root) for root in roots)
