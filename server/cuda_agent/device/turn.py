"""Turns on one GPU among the processes of this machine: whoever times has it alone, whoever only computes shares it.

A second search, a bench or another person's editor would otherwise run its kernels between the samples of a timing.
Two advisory file locks a GPU, named by its UUID, in the folder for temporary files; the kernel drops them when a
process dies:

- `queue` is held while one waits for the other lock, so that a timing that waits lets nobody new pass it;
- `gpu` is held shared by jobs without a `time` step, exclusively by jobs with one.

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
) -> Iterator[None]:
    """Waits for as long as others hold the GPU. An empty `uuid` (the emulator) and a folder that takes no file mean no
    turns. Raises Cancelled."""
    with contextlib.ExitStack() as held:
        locks = [(at or folder()) / f"cuda-agent-{uuid}.{name}" for name in ("queue", "gpu")] if uuid else []
        opened = [_open(path, held) for path in locks]
        if all(fd is not None for fd in opened) and opened:
            queue, gpu = opened
            assert queue is not None
            assert gpu is not None
            _take(queue, fcntl.LOCK_EX, cancelled)
            _take(gpu, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, cancelled)
            fcntl.flock(queue, fcntl.LOCK_UN)
        yield


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
