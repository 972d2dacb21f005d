"""How a worker is reached: a channel is two byte streams, the last lines of its standard error, and a way to end it.

`PipeTransport` starts it on this machine. A transport to another host gives the same channel over its own command
(`ssh host …`); nothing above this file knows the difference.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

STDERR_LINES = 40


class Channel(Protocol):
    input: BinaryIO  # we write
    output: BinaryIO  # we read
    pid: int

    def kill(self) -> None:
        """End it and everything it started, now."""

    def reap(self, timeout_s: float) -> int | None:
        """Exit code (negative: the signal), None when it still runs after `timeout_s`."""

    def stderr_tail(self) -> list[str]:
        """The last lines since `forget_stderr`."""

    def forget_stderr(self) -> None: ...


class Transport(Protocol):
    def open(self, device: str) -> Channel: ...


class Spawner:
    """One thread that starts every child. The kernel sends a child's parent-death signal when the *thread* that
    forked it ends, so a child started from a short-lived thread would die with that thread."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], queue.SimpleQueue[object]]] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, make: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._loop, name="worker-spawner", daemon=True)
                self._thread.start()
        answer: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._work.put((make, answer))
        result = answer.get()
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, subprocess.Popen)
        return result

    def _loop(self) -> None:
        while True:
            make, answer = self._work.get()
            try:
                answer.put(make())
            except OSError as error:
                answer.put(error)


SPAWNER = Spawner()


class ProcessChannel:
    """A child with pipes, leader of its own session so that one signal reaches all it started."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._process = SPAWNER.start(
            lambda: subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                cwd="/",
                start_new_session=True,
            )
        )
        streams = self._process.stdin, self._process.stdout, self._process.stderr
        assert all(streams)
        self.input = cast(BinaryIO, streams[0])
        self.output = cast(BinaryIO, streams[1])
        self.pid = self._process.pid
        self._tail: deque[str] = deque(maxlen=STDERR_LINES)
        self._reader = threading.Thread(target=self._drain, args=(streams[2],), daemon=True)
        self._reader.start()

    def _drain(self, stream: BinaryIO) -> None:
        """printf of a kernel comes here too: read on, whatever it says, or the child would block."""
        for line in iter(lambda: stream.readline(4096), b""):
            self._tail.append(line.decode(errors="replace").rstrip())
        stream.close()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self, timeout_s: float) -> int | None:
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(0.2)
        for stream in (self.input, self.output):
            with contextlib.suppress(OSError):
                stream.close()
        # A sandbox or a shell around the worker reports its child's signal as 128 + number.
        return 128 - code if code > 128 else code

    def stderr_tail(self) -> list[str]:
        return list(self._tail)

    def forget_stderr(self) -> None:
        self._tail.clear()


@dataclass(frozen=True, slots=True)
class PipeTransport:
    """The worker as a child of this process. `wrap` may put a sandbox around its command line."""

    python: str = sys.executable
    wrap: Callable[[list[str]], list[str]] | None = None
    extra: tuple[str, ...] = ()  # further arguments of the worker

    def open(self, device: str) -> ProcessChannel:
        argv = [self.python, "-P", "-m", "cuda_agent.device.worker", "--device", device, *self.extra]
        if self.wrap is not None:
            argv = self.wrap(argv)
        else:
            argv += ["--parent", str(os.getpid())]
        return ProcessChannel(argv, self.environment())

    def bare(self, device: str, folder: Path, before: Sequence[str]) -> ProcessChannel:
        """One launch in a process of its own, described in `folder` (`device/bare.py`)."""
        argv = [*before, self.python, "-P", "-m", "cuda_agent.device.bare", device, str(folder)]
        return ProcessChannel(argv, self.environment())

    def environment(self) -> dict[str, str]:
        """Ours, with this package importable even when it was found through a relative path."""
        root = str(Path(__file__).resolve().parents[2])
        inherited = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*inherited, root]))}
