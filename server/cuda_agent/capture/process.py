"""Runs the person's program in its own process group, with its output passed on line by line."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.errors import CaptureError

_POLL = 0.05
_GRACE = 0.2  # seconds between SIGTERM and SIGKILL
_DRAIN = 1.0  # a grandchild that keeps the pipe open must not hold the capture up
_TAIL = 400  # lines kept


@dataclass(frozen=True, slots=True)
class Finished:
    exit_code: int
    output: str
    cancelled: bool
    timed_out: bool


def run(
    command: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    *,
    tick: Callable[[], None],
    on_output: Callable[[str], None],
    cancelled: Callable[[], bool],
    timeout: float | None = None,
) -> Finished:
    """Runs to the end. `tick` is called about 20 times a second. Ctrl-C, `cancelled` and the timeout kill the group.

    Raises CaptureError when the program cannot be started.
    """
    try:
        process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise CaptureError(f"Cannot start {command[0]} in {cwd}: {error.strerror or error}.") from error
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    tail: deque[str] = deque(maxlen=_TAIL)
    stopped = timed_out = False
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        while process.poll() is None:
            _pass_on(lines, tail, on_output)
            tick()
            stopped = cancelled()
            timed_out = deadline is not None and time.monotonic() > deadline
            if stopped or timed_out:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL)
    except KeyboardInterrupt:
        stopped = True
    finally:
        if process.poll() is None:
            kill_group(process)
    reader.join(_DRAIN)
    _pass_on(lines, tail, on_output)
    tick()
    return Finished(process.returncode, "\n".join(tail), stopped, timed_out)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL, to the process and everything it started."""
    for sign, grace in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    # The leader may be gone while a child of it is not.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _read(process: subprocess.Popen[bytes], lines: queue.SimpleQueue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line.decode(errors="replace").rstrip("\r\n"))


def _pass_on(lines: queue.SimpleQueue[str], tail: deque[str], on_output: Callable[[str], None]) -> None:
    while not lines.empty():
        line = lines.get()
        tail.append(line)
        on_output(line)
