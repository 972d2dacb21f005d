"""Process trees: every child dies with its parent, and a cancelled job leaves nothing behind.

Three nested safeguards, because a SIGKILL lets nobody clean up:
- a heartbeat pipe: a child whose stdin hangs up knows that its parent is gone;
- PR_SET_PDEATHSIG: the kernel kills a child when its parent dies;
- PR_SET_CHILD_SUBREAPER: orphans of a killed job come back to its guardian or to the engine, which find and kill them.
The last two are Linux only; elsewhere the heartbeat and process groups remain.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0  # type: ignore[no-any-return]


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when `parent` ends; ends at once when it already has (the call came too late)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> bool:
    """Make this process the parent of every orphan below it. Without (not Linux): orphans go to init, group kills
    remain."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _stat(pid: int) -> tuple[str, int] | None:
    """(state, parent) of a process, None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[1])


def _table() -> dict[int, list[int]]:
    """Children by parent, without zombies' own entries (a zombie has no children)."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return children
    for name in names:
        if name.isdigit() and (stat := _stat(int(name))) is not None:
            children.setdefault(stat[1], []).append(int(name))
    return children


def is_alive(pid: int) -> bool:
    """Running or sleeping; a zombie is dead."""
    stat = _stat(pid)
    return stat is not None and stat[0] not in "ZX"


def descendants(pid: int) -> list[int]:
    """Every living process below `pid`, parents first."""
    table, found, queue = _table(), [], [pid]
    while queue:
        for child in table.get(queue.pop(), ()):
            queue.append(child)
            if is_alive(child):
                found.append(child)
    return found


def children(pid: int) -> list[int]:
    """Direct children, zombies too."""
    return _table().get(pid, [])


def signal_all(pids: Iterable[int], sig: int = signal.SIGKILL) -> int:
    sent = 0
    for pid in pids:
        try:
            os.kill(pid, sig)
            sent += 1
        except (ProcessLookupError, PermissionError):  # gone, or a setuid child that only its own parent may end
            continue
    return sent


def kill_below(pid: int, deadline_s: float = 0.4) -> bool:
    """Kill everything below `pid`, again until nothing is left (a process may fork while we look). True when all are
    dead."""
    end = time.monotonic() + deadline_s
    while victims := descendants(pid):
        signal_all(victims)
        reap_adopted()
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def kill_group(pid: int) -> None:
    """SIGKILL the process group led by `pid`: all we have where there is no /proc."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def reap_adopted(known: Iterable[int] = ()) -> None:
    """Collect zombies among our children except `known` (somebody else waits for those)."""
    keep = set(known)
    for pid in children(os.getpid()):
        if pid not in keep:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def guard(stdin: int) -> None:
    """Split this process in two: the caller returns in the child; the parent stays as its guardian and never returns.

    The guardian imports nothing more and holds no lock, so it acts even while the job spins in C with the GIL held. It
    ends everything below it when the job ends, or when `stdin` hangs up because the engine is gone, and exits with the
    job's code."""
    adopt_orphans()
    parent = os.getpid()
    job = os.fork()
    if job == 0:
        die_with_parent(parent)
        return
    code = _watch(job, stdin)
    kill_below(parent, 2.0)
    os._exit(code)


def _watch(job: int, stdin: int) -> int:
    poll = select.poll()
    poll.register(stdin, select.POLLHUP)  # hang-up only: the bytes are the job's
    wait_ms = 20
    if hasattr(os, "pidfd_open"):
        poll.register(os.pidfd_open(job), select.POLLIN)
        wait_ms = 1000  # now only to reap orphans that came back to us
    while True:
        for fd, event in poll.poll(wait_ms):
            if fd == stdin and event & (select.POLLHUP | select.POLLERR):
                return 1
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == 0:
                break
            if pid == job:
                return os.waitstatus_to_exitcode(status) & 0xFF
