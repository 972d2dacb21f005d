"""The real worker process, protocol, client and interpreter over a host backend."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cuda_agent.device import _sandboxed, client
from cuda_agent.device.client import Device
from cuda_agent.device.jobs import Job
from cuda_agent.errors import Cancelled, DeadlineExceeded, DeviceError, DeviceMissing, Unsupported, WorkerDied
from cuda_agent.toolchain import sandbox
from patience import patience

from .conftest import HERE, HostTransport
from .kernels import Program, sha


def run(device: Device, program: Program, *steps: dict, deadline: float = 20.0, **job: object) -> list[dict]:
    return device.run(Job([program.load(), *steps], deadline, **job), program.blobs)[1:]  # type: ignore[arg-type]


def gone(pid: int, within: float = 1.0) -> bool:
    until = time.monotonic() + patience(within)
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_launch_compare_fetch(device: Device) -> None:
    p = Program()
    launched, compared, fetched = run(
        device,
        p,
        p.launch("a"),
        {"op": "compare", "a": "a", "b": "a", "buffers": [{"buffer": 1, "dtype": "f32"}]},
        {"op": "fetch", "run": "a", "buffer": 1},
    )
    assert launched["canaries"] == []
    assert compared["buffers"][0]["equal"]
    assert struct.unpack("5f", fetched["data"]) == tuple(
        struct.unpack("f", struct.pack("f", 2 * v))[0] for v in p.values
    )


def test_load_lists_the_kernels(device: Device) -> None:
    p = Program()
    assert "double" in device.run(Job([p.load()]), p.blobs)[0]["kernels"]


def test_blobs_are_sent_once(device: Device) -> None:
    p = Program()
    asked: list[str] = []

    class Spy(dict):
        def __getitem__(self, name: str) -> bytes:
            asked.append(name)
            return super().__getitem__(name)

    for _ in range(2):
        device.run(Job([p.load(), p.launch("a")]), Spy(p.blobs))
    assert sorted(asked) == sorted(p.blobs)


def test_many_blobs_are_read_at_once_and_arrive_in_order(device: Device) -> None:
    """One by one a bundle of gigabytes would be decompressed and hashed on one core."""
    p, chunks = Program(), [bytes([n]) * 4 for n in range(40)]
    blobs, names = {**p.blobs, **{sha(c): c for c in chunks}}, [sha(c) for c in chunks]
    together = threading.Barrier(client.READERS)
    missed: list[str] = []

    class Slow(dict):
        def __getitem__(self, name: str) -> bytes:
            if name in names[: client.READERS]:
                with contextlib.suppress(threading.BrokenBarrierError):
                    together.wait(10)
                missed.extend([name] * together.broken)
            return super().__getitem__(name)

    step = p.launch("a")
    step["buffers"].append({"size": 160, "init": {"blobs": names}})
    fetched = device.run(Job([p.load(), step, {"op": "fetch", "run": "a", "buffer": 2}]), Slow(blobs))[2]
    assert fetched["data"] == b"".join(chunks)
    assert not missed


def test_one_of_many_that_nobody_has(device: Device) -> None:
    p, names = Program(), [f"{n:064x}" for n in range(30)]
    step = p.launch("a")
    step["buffers"].append({"size": 8, "init": {"blobs": names}})
    with pytest.raises(DeviceError, match="nobody has it"):
        device.run(Job([p.load(), step]), p.blobs)
    assert run(device, p, p.launch("a"))[0]["ok"]


def test_a_blob_may_be_a_function(device: Device) -> None:
    p = Program()
    result = device.run(Job([p.load(), p.launch("a")]), {k: (lambda v=v: v) for k, v in p.blobs.items()})
    assert result[1]["ok"]


def test_a_missing_blob_is_an_error_and_the_worker_lives(device: Device) -> None:
    p = Program()
    with pytest.raises(DeviceError, match="nobody has it"):
        device.run(Job([p.load()]), {})
    assert device.run(Job([p.load()]), p.blobs)[0]["ok"]
    assert device.starts == 1


def test_printf_does_not_touch_the_stream(device: Device) -> None:
    p = Program()
    chatter, silent = run(device, p, p.launch("a", "chatter"), p.launch("b"))
    assert chatter["ok"]
    assert silent["ok"]
    assert device.starts == 1


def test_steps_that_fail_say_so_and_the_job_goes_on(device: Device) -> None:
    p = Program()
    results = run(
        device,
        p,
        p.launch("a", "no_such_kernel"),
        {"op": "compare", "a": "a", "b": "a", "buffers": []},
        {"op": "dance"},
        p.launch("b"),
    )
    assert [r["ok"] for r in results] == [False, False, False, True]
    assert "no kernel no_such_kernel" in results[0]["error"]
    assert "no run 'a'" in results[1]["error"]
    assert "dance" in results[2]["error"]


def test_out_of_memory_is_a_sentence(device: Device) -> None:
    p = Program()
    big = p.launch("a")
    big["buffers"][1] = {"size": 1 << 40, "init": {"fill": "00"}}
    result = run(device, p, big)[0]
    assert not result["ok"]
    assert result["out_of_memory"]
    assert "1,099,511,6" in result["error"]


def test_runs_do_not_outlive_their_job(device: Device) -> None:
    p = Program()
    run(device, p, p.launch("a"))
    assert "no run 'a'" in run(device, p, {"op": "hash", "run": "a"})[0]["error"]


def test_unsupported_is_raised(device: Device) -> None:
    p = Program()
    with pytest.raises(Unsupported, match="textures"):
        device.run(Job([{**p.load(), "kind": "unsupported"}, p.launch("a")]), p.blobs)
    assert device.run(Job([p.load()]), p.blobs)[0]["ok"]
    assert device.starts == 1


# ---------------------------------------------------------------- ends


def test_deadline_kills_and_the_next_job_gets_a_fresh_worker(device: Device) -> None:
    p = Program()
    first = device.pid
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"deadline of 0.5 s in step 1 \(launch spin\)") as caught:
        run(device, p, p.launch("a", "spin"), deadline=0.5)
    assert time.monotonic() - started < patience(2)
    assert caught.value.step == 1
    assert caught.value.module == p.digest
    assert first is not None
    assert gone(first)
    other = Program(p.text.decode() + "\n# another binary")
    assert run(device, other, other.launch("a"))[0]["ok"]
    assert device.pid != first


def test_a_late_binary_is_refused_for_the_same_deadline_and_allowed_a_longer_one(device: Device) -> None:
    p = Program()
    with pytest.raises(DeadlineExceeded):
        run(device, p, p.launch("a", "spin"), deadline=0.3)
    with pytest.raises(WorkerDied, match="not run again") as caught:
        run(device, p, p.launch("a"), deadline=0.3)
    assert caught.value.quarantined
    assert run(device, p, p.launch("a"), deadline=20)[0]["ok"]


@pytest.mark.parametrize(("kernel", "what"), [("segfault", "SIGSEGV"), ("fault", "ILLEGAL_ADDRESS")])
def test_a_crash_is_blamed_on_its_binary(device: Device, kernel: str, what: str) -> None:
    p = Program()
    good = Program(p.text.decode() + "\n# good")
    with pytest.raises(WorkerDied, match=what) as caught:
        device.run(
            Job([good.load("g"), p.load(), good.launch("a", module="g"), p.launch("b", kernel)]), p.blobs | good.blobs
        )
    assert (caught.value.step, caught.value.module) == (3, p.digest)
    with pytest.raises(WorkerDied, match=f"not run again.*{what}"):
        run(device, p, p.launch("a"))
    assert device.run(Job([good.load(), p.launch("a")]), good.blobs)[1]["ok"]


def test_a_trusted_binary_is_never_quarantined(device: Device) -> None:
    p = Program()
    for _ in range(2):
        with pytest.raises(WorkerDied, match="ILLEGAL_ADDRESS"):
            run(device, p, p.launch("a", "fault"), trusted=frozenset({p.digest}))
    assert run(device, p, p.launch("a"))[0]["ok"]


def test_kill_from_outside_is_reported_and_blames_nobody(device: Device) -> None:
    p = Program()
    assert device.pid is not None
    pid = device.pid
    threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(WorkerDied, match="SIGKILL in step 1"):
        run(device, p, p.launch("a", "spin"))
    assert run(device, p, p.launch("a"))[0]["ok"]


def test_a_worker_is_prepared_beside_its_callers_work_and_never_after_the_end(device: Device) -> None:
    device.restart()
    device.cancel()  # no worker now
    starts = device.starts
    device.prepare()
    p = Program()
    assert device.run(Job([p.load()]), p.blobs)[0]["ok"]
    device.prepare()  # one runs already
    assert device.run(Job([p.load()]), p.blobs)[0]["ok"]
    assert device.starts == starts + 1
    device.close()
    device.prepare()
    for thread in threading.enumerate():
        if thread.name == f"{device.spec}-start":
            thread.join(patience(10))
    assert device.pid is None


def test_kill_between_jobs_is_survived(device: Device) -> None:
    p = Program()
    assert device.pid is not None
    os.kill(device.pid, signal.SIGKILL)
    time.sleep(0.1)
    assert run(device, p, p.launch("a"))[0]["ok"]


def test_cancel_kills_within_half_a_second(device: Device) -> None:
    p = Program()
    pid = device.pid
    assert pid is not None
    raised: list[float] = []

    def work() -> None:
        with pytest.raises(Cancelled):
            run(device, p, p.launch("a", "spin"))
        raised.append(time.monotonic())

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.4)
    asked = time.monotonic()
    device.cancel()
    assert gone(pid, 0.5)
    thread.join(2)
    assert raised
    assert raised[0] - asked < patience(0.5)
    assert run(device, p, p.launch("a"))[0]["ok"]


def test_the_last_words_of_a_worker_are_in_the_message(device: Device) -> None:
    p = Program(
        "def last_words(c, *a):\n"
        "    import sys, os\n"
        "    print('assertion i < n failed', file=sys.stderr)\n"
        "    os.abort()\n"
    )
    with pytest.raises(WorkerDied, match=r"SIGABRT in step 1 \(launch last_words\).*assertion i < n failed"):
        run(device, p, p.launch("a", "last_words"))


def test_the_worker_dies_with_its_parent() -> None:
    """A parent that is killed leaves no worker behind, even one that is busy."""
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from unit.device.conftest import HostTransport\n"
        "from cuda_agent.device.client import Device\n"
        "import threading\n"
        "found = []\n"
        "t = threading.Thread(target=lambda: found.append(Device('host', HostTransport())))\n"
        "t.start(); t.join()\n"  # the thread that asked for the worker ends: the worker must not
        "time.sleep(0.3)\n"
        "from unit.device.kernels import Program\n"
        "from cuda_agent.device.jobs import Job\n"
        "p = Program()\n"
        "assert found[0].run(Job([p.load()]), p.blobs)[0]['ok'] and found[0].starts == 1\n"
        "print(found[0].pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(HERE.parents[1])], stdout=subprocess.PIPE, text=True, cwd=Path(HERE)
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert gone(pid, 2.0)


@pytest.mark.skipif(not sandbox.available(), reason="bubblewrap does not work here")
def test_a_sandboxed_worker_works_is_killed_and_sees_no_home(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    text = f"def peek(c, *a):\n    import os\n    assert not os.path.exists({str(secret)!r}), 'it can read my files'\n"
    p, spinning = Program(text), Program()

    def wrap(argv: list[str]) -> list[str]:
        return _sandboxed(argv)

    with Device("host", HostTransport(wrap=wrap)) as device:
        assert run(device, p, p.launch("a", "peek"))[0]["ok"]
        with pytest.raises(DeadlineExceeded):
            run(device, spinning, spinning.launch("a", "spin"), deadline=0.3)
        assert run(device, p, p.launch("a", "peek"))[0]["ok"]
        with pytest.raises(WorkerDied, match="SIGSEGV"):
            run(device, spinning, spinning.launch("a", "segfault"))


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(DeviceMissing):
        Device("cuda:99")


def test_blob_limit_evicts_the_oldest() -> None:
    p = Program()
    with Device("host", HostTransport(extra=("--blob-bytes", "1000"))) as device:
        assert run(device, p, p.launch("a"))[0]["ok"]  # the job's own blobs stay although they are above the limit
        other = Program("def f(c): pass\n" + "#" * 2000)
        device.run(Job([other.load()]), other.blobs)
        assert run(device, p, p.launch("a"))[0]["ok"]
        assert sha(p.text) in p.blobs
