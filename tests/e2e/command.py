"""The command line as its own process: started, read, killed, and checked for what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patience import patience

ARGV = [sys.executable, "-m", "cuda_agent.cli"]


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    def check(self, code: int) -> Done:
        """The exit code is this one, and whatever went wrong was said in a sentence."""
        assert "Traceback" not in self.err + self.out, self.err + self.out
        assert self.code == code, f"exit code {self.code}\n{self.err}\n{self.out}"
        return self


def environment(cache: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "CUDA_AGENT_CACHE": str(cache), "NO_COLOR": "1", "COLUMNS": "100", **more}


def run(argv: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float = 120) -> Done:
    done = subprocess.run(
        [*ARGV, *argv], cwd=cwd, env=dict(env), capture_output=True, text=True, timeout=patience(timeout), check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


class Running:
    """A command that is still running. Its stderr is read as it comes."""

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self._err = (cwd / "stderr.log").open("w+b")
        self._out = (cwd / "stdout.log").open("w+b")
        self._process = subprocess.Popen(
            [*ARGV, *argv], cwd=cwd, env=dict(env), stdout=self._out, stderr=self._err, start_new_session=True
        )
        self.pid = self._process.pid

    @property
    def err(self) -> str:
        return Path(self._err.name).read_text(errors="replace")

    def until(self, what: str, true: Callable[[], bool], timeout: float = 90) -> None:
        end = time.monotonic() + patience(timeout)
        while not true():
            assert self._process.poll() is None, f"it ended before {what}:\n{self.err}"
            assert time.monotonic() < end, f"no {what} after {timeout} s:\n{self.err}"
            time.sleep(0.02)

    def interrupt(self) -> None:
        """Ctrl-C: only this process gets it; what it started lives in sessions of its own."""
        os.kill(self.pid, signal.SIGINT)

    def wait(self, timeout: float = 90) -> Done:
        code = self._process.wait(timeout)
        self._err.close()
        self._out.close()
        return Done(code, Path(self._out.name).read_text(), self.err)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def below(pid: int) -> dict[int, str]:
    """Every living process under `pid`, with its command line."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _read(entry / "stat").rpartition(")")[2].split()
            if fields and fields[0] != "Z":
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: dict[int, str] = {}
    todo = [pid]
    while todo:
        for child in parents.get(todo.pop(), []):
            found[child] = _read(Path(f"/proc/{child}/cmdline")).replace("\0", " ")
            todo.append(child)
    return found


def alive(pid: int) -> bool:
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return bool(fields) and fields[0] != "Z"


def workers(pid: int) -> list[int]:
    return [child for child, command in below(pid).items() if "-m cuda_agent.device.worker" in command]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended meanwhile
        return ""
