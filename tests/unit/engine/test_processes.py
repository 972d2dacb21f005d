"""Process trees: nothing below a job outlives it, whoever is killed and however busy the job is."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from cuda_agent.engine import processes
from patience import patience

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")

# A job with a child in a session of its own and a daemon that forked twice; prints the pids of all.
JOB = """
import os, subprocess, sys, time
from cuda_agent.engine import processes
guardian = os.getpid()
processes.guard(0)
child = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
daemon = subprocess.run([sys.executable, "-c", '''
import os, sys
if os.fork(): os._exit(0)
os.setsid()
pid = os.fork()
if pid: print(pid, flush=True); os._exit(0)
os.close(1); os.close(2); import time; time.sleep(1000)
'''], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
print(guardian, os.getpid(), child.pid, int(daemon), flush=True)
{rest}
"""


@contextlib.contextmanager
def job(rest: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    process = subprocess.Popen(
        [sys.executable, "-c", JOB.format(rest=rest)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    try:
        assert len(pids) == 4
        assert all(processes.is_alive(pid) for pid in pids)
        yield process, pids
    finally:
        processes.signal_all([*processes.descendants(process.pid), *pids])
        process.kill()
        process.wait()


def dead_within(seconds: float, pids: list[int]) -> bool:
    return eventually(seconds, lambda: not any(processes.is_alive(pid) for pid in pids))


def eventually(seconds: float, holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + patience(seconds)
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def test_hang_up_of_the_heartbeat_ends_the_whole_tree() -> None:
    with job("time.sleep(1000)") as (process, pids):
        assert process.stdin is not None
        process.stdin.close()
        assert dead_within(1.0, pids)


def test_a_job_that_holds_the_interpreter_lock_dies_too() -> None:
    # The regular expression backtracks for ages inside one C call: no Python thread of the job can run.
    with job("import re; re.match('(a+)+$', 'a' * 60 + 'b')") as (process, pids):
        time.sleep(0.1)
        assert process.stdin is not None
        process.stdin.close()
        assert dead_within(1.0, pids)


def test_killing_the_job_takes_its_orphans_along_and_passes_the_signal_on() -> None:
    with job("time.sleep(1000)") as (process, pids):
        os.kill(pids[1], signal.SIGKILL)
        assert process.wait(2.0) == 256 - signal.SIGKILL
        assert dead_within(0.5, pids)


def test_killing_the_guardian_kills_the_job() -> None:
    with job("time.sleep(1000)") as (process, pids):
        os.kill(pids[0], signal.SIGKILL)
        process.wait(2.0)
        assert dead_within(0.5, pids[:2])


def test_a_job_that_ends_leaves_nothing_behind() -> None:
    with job("time.sleep(0.5); os._exit(7)") as (process, pids):
        assert process.wait(2.0) == 7
        assert dead_within(0.5, pids)


def test_kill_below_reaches_processes_in_other_sessions() -> None:
    with job("time.sleep(1000)") as (process, pids):
        started = time.monotonic()
        assert processes.kill_below(process.pid)
        assert time.monotonic() - started < patience(0.5)
        assert dead_within(0.5, pids)


def test_die_with_parent() -> None:
    script = """
import os, subprocess, sys, time
code = "import sys, time; from cuda_agent.engine import processes; processes.die_with_parent(int(sys.argv[1]));"
code += "print(1, flush=True); time.sleep(1000)"
child = subprocess.Popen([sys.executable, "-c", code, str(os.getpid())], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(1000)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert processes.is_alive(pid)
    parent.kill()
    parent.wait()
    assert dead_within(1.0, [pid])


def test_die_with_parent_that_is_already_gone() -> None:
    code = "from cuda_agent.engine import processes; processes.die_with_parent(1 << 22); print('lived')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
