"""Keys of language models, kept away from everything that compiles or runs code.

They come in the environment, which every child would inherit: `take` moves them out of it when one of our processes
begins, and `environment` hands them on to our own next process only. `CUDA_AGENT_API_KEY` is ours (the editor keeps
it): no other program ever sees it. `OPENAI_API_KEY` is the person's, from their shell: their program may need it and
gets it when it is run to be captured, as it would in a terminal; compilers, workers and the runs that try a rewrite do
not.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

OURS = "CUDA_AGENT_API_KEY"
PERSONS = "OPENAI_API_KEY"

_kept: dict[str, str] = {}


def take() -> None:
    """Move the keys out of this process's environment. Call it first thing in a `main`."""
    for name in (OURS, PERSONS):
        value = os.environ.pop(name, None)
        if value is not None:
            _kept[name] = value
            _wipe(name)


def get(name: str) -> str:
    """The key of that name; empty when there is none. A model's endpoint is given `OURS`, else `PERSONS`."""
    return os.environ.get(name) or _kept.get(name, "")


def environment() -> dict[str, str]:
    """The environment for a process of ours that may talk to a model."""
    return {**os.environ, **_kept}


def persons() -> dict[str, str]:
    """What the person's own program gets on top of our environment."""
    return {PERSONS: _kept[PERSONS]} if PERSONS in _kept else {}


def _wipe(name: str) -> None:
    """Overwrite the value in the memory that /proc/PID/environ shows to every process of the person's."""
    with contextlib.suppress(OSError, ValueError, IndexError):  # no /proc, or another one: there is nothing to wipe
        import ctypes

        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[47]), int(fields[48])  # env_start and env_end; the first field here is the third
        block = b"\0" + ctypes.string_at(start, end - start)
        begin = block.index(f"\0{name}=".encode()) + len(name) + 1  # in the memory; one more in `block`
        ctypes.memset(start + begin, ord("*"), block.index(b"\0", begin + 1) - 1 - begin)
