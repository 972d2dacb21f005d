"""Where a running language server can be reached by other programs of the same person: a Unix socket a server, in a
folder that only they may enter. What is said there is in docs/protocol.md.

A server that was killed leaves its socket behind; one that nobody answers at is removed by whoever finds it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path

from cuda_agent import paths


def own_path() -> Path:
    """Where this process listens. OSError when there is no folder for it."""
    return paths.run_dir() / f"{socket.gethostname()}-{os.getpid()}.sock"


def all_paths() -> list[Path]:
    """The sockets of this host's servers (a home folder may be shared by several), newest first; some may be stale."""
    try:
        found = [(path.stat().st_mtime, path) for path in paths.run_dir().glob(f"{socket.gethostname()}-*.sock")]
    except OSError:  # no cache, or a server ended while we looked
        return []
    return [path for _, path in sorted(found, reverse=True)]


def remove_stale() -> None:
    """Remove the sockets at which nobody listens any more."""
    for path in all_paths():
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
            probe.setblocking(False)
            try:
                probe.connect(os.fspath(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:  # busy, or gone: not ours to judge
                continue


def is_same_user(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user. Where the system cannot tell (not Linux) the folder's rights
    have to do."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(uid == os.getuid())
