"""Turns on one GPU among the processes of this machine: whoever times has it alone, whoever only computes shares it.

A second search, a bench or another person's editor would otherwise run its kernels between the samples of a timing.
Two advisory file locks a GPU, named by its UUID, in the folder for temporary files; the kernel drops them when a
process dies:

- `queue` is held while one waits for the other lock, so that a timing that waits lets nobody new pass it;
- `gpu` is held shared by a job until its first `time` step, exclusively from then on.

Programs that take no turns (a person's own, a captured one) are seen only as noise.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cuda_agent.errors import Cancelled

POLL_S = 0.005


def folder() -> Path:
    """Where the locks of this machine are. A process that gets a TMPDIR of its own must be told."""
    return Path(tempfile.gettempdir())


@contextlib.contextmanager
def turn(
    uuid: str, *, alone: bool, cancelled: Callable[[], bool] = lambda: False, at: Path | None = None
) -> Iterator[Callable[[], None]]:
    """Waits for as long as others hold the GPU. What it gives makes a shared turn one alone: it lets go and waits
    again. An empty `uuid` (the emulator) and a folder that takes no file mean no turns. Raises Cancelled."""
    with contextlib.ExitStack() as held:
        locks = [(at or folder()) / f"cuda-agent-{uuid}.{name}" for name in ("queue", "gpu")] if uuid else []
        opened = [_open(path, held) for path in locks]
        fds = [fd for fd in opened if fd is not None]

        def take(kind: int) -> None:
            if len(fds) != 2:
                return
            queue, gpu = fds
            _take(queue, fcntl.LOCK_EX, cancelled)
            _take(gpu, kind, cancelled)
            fcntl.flock(queue, fcntl.LOCK_UN)

        def be_alone() -> None:
            for fd in fds:
                fcntl.flock(fd, fcntl.LOCK_UN)
            take(fcntl.LOCK_EX)

        take(fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield be_alone


def _open(path: Path, held: contextlib.ExitStack) -> int | None:
    try:
        # Everybody's: another user's file can be locked without being written.
        with contextlib.suppress(FileExistsError):
            made = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC, 0o644)
            os.close(made)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    held.callback(os.close, fd)
    return fd


def _take(fd: int, kind: int, cancelled: Callable[[], bool]) -> None:
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if cancelled():
                raise Cancelled("stopped while waiting for the GPU") from None
            time.sleep(POLL_S)
        else:
            return
