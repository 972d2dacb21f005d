"""compute-sanitizer around one launch: its reports as every release writes them, and a launch under a stand-in for it
that wraps the real process over a stand-in for the driver."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from cuda_agent.device import sanitizer
from cuda_agent.device.bare import Task
from cuda_agent.device.client import Device
from cuda_agent.device.sanitizer import Sanitizer, parse
from cuda_agent.device.transports import PipeTransport
from cuda_agent.device.turn import turn
from cuda_agent.errors import Cancelled, ToolMissing, Unsupported
from fake_sanitizer import install
from patience import patience

from .kernels import DOUBLE, Program

HERE = Path(__file__).parent
DATA = HERE / "data" / "sanitizer"
# What a kernel does wrong is told to the stand-in.
BAD = (
    DOUBLE
    + r"""
def tell(tool, *lines):
    import json, os
    if "FAKE_FINDINGS" in os.environ:
        with open(os.environ["FAKE_FINDINGS"], "a") as file:
            file.write(json.dumps({"tool": tool, "record": "\n    ".join(lines)}) + "\n")
def beyond(c, x, y, n):
    where = "by thread (5,0,0) in block (0,0,0)"
    address = "Address 0x7f0 is out of bounds"
    tell("memcheck", "Invalid __global__ write of size 4 bytes", "at beyond+0x90", where, address)
    raise DeviceFault("CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)")
def diverges(c, x, y, n):
    tell("synccheck", "Barrier error detected. Divergent thread(s) in block.", "at diverges+0x40")
"""
)


@pytest.mark.parametrize(
    ("name", "found", "lines"),
    [
        ("memcheck", [("misaligned global write", "unaligned_kernel"), ("out-of-bounds global write",
         "out_of_bounds_kernel")], [34, 39]),
        ("memcheck_2022", [("out-of-bounds global read", "ns::scale"), ("out-of-bounds shared write",
         "anonymous::tile")], [7, None]),
        ("racecheck", [("shared race", "sumKernel"), ("possible shared race", "compress")], [41, None]),
        ("racecheck_2023", [("possible shared race", "Kokkos::Impl::launch")], [None]),
        ("initcheck", [("uninitialised global read", "vectorAdd"), ("uninitialised shared read", "tile")], [41, None]),
        ("synccheck", [("divergent barrier", "myKernel"), ("divergent barrier", "test"),
         ("barrier error: invalid arguments", "myKernel")], [42, None, None]),
    ],
)  # fmt: skip
def test_reports(name: str, found: list[tuple[str, str]], lines: list[int | None]) -> None:
    report = parse((DATA / f"{name}.log").read_text())
    assert [(finding.kind, finding.kernel) for finding in report.findings] == found
    assert [finding.line for finding in report.findings] == lines
    assert report.ended
    # The same after somebody pasted it with other spaces.
    squeezed = "\n".join("========= " + line.strip("= ") for line in (DATA / f"{name}.log").read_text().splitlines())
    assert [(finding.kind, finding.kernel) for finding in parse(squeezed).findings] == found


@pytest.mark.parametrize(
    ("name", "found", "count", "ended"),
    [
        ("memcheck", ("out-of-bounds global write", "writes_beyond", 4), 1, True),
        ("racecheck", ("shared race", "races", 9), 1, False),  # as it stood when the process was killed
        ("initcheck", ("uninitialised global read", "reads_unwritten", 14), 12, False),
        ("synccheck", ("divergent barrier", "diverges", 19), 15, False),
    ],
)
def test_reports_of_an_h200(name: str, found: tuple[str, str, int], count: int, ended: bool) -> None:
    """The known-bad kernels of G7 under release 2025.3.1; the last two are the first sixty lines."""
    report = parse((DATA / f"{name}_2025.3.log").read_text())
    assert {(finding.kind, finding.kernel, finding.line) for finding in report.findings} == {found}
    assert (len(report.findings), report.ended, report.notes) == (count, ended, ())


def test_where_and_in_which_words() -> None:
    _, beyond = parse((DATA / "memcheck.log").read_text()).findings
    assert (beyond.thread, beyond.block) == ((3, 0, 0), (1, 2, 0))
    assert beyond.text.startswith("Invalid __global__ write of size 4 bytes at out_of_bounds_function()+0xb0")
    assert "Host Frame" not in beyond.text
    notes = parse((DATA / "memcheck.log").read_text()).notes
    assert len(notes) == 1
    assert notes[0].startswith("Program hit CUDA_ERROR_INVALID_VALUE")
    race = parse((DATA / "racecheck.log").read_text())
    assert "[508 hazards]" in race.findings[0].text
    assert any("overflow" in note for note in race.notes)


def test_a_report_that_is_not_whole() -> None:
    report = parse((DATA / "no_device.log").read_text())
    assert not report.ended
    assert not report.findings
    assert report.notes[-1] == "Target application terminated before first instrumented API call"
    assert parse("") == sanitizer.Report((), False, ())
    assert parse("printed by the program\n").findings == ()


def test_a_kind_of_a_later_release() -> None:
    report = parse(
        "========= Stale __cluster__ token 0x12 of 3 barriers\n=========     by thread (1,0,0) in block (0,0,0)\n"
    )
    assert [finding.kind for finding in report.findings] == ["stale __cluster__ token n of n barriers"]


# ---------------------------------------------------------------- finding it


def test_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = install(tmp_path)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    found = sanitizer.find()
    assert (found.path, found.version) == (path, "2026.4.0.0")
    words = found.command("memcheck", Path("/tmp/100%/log"))
    assert words[words.index("--log-file") + 1] == "/tmp/100%%/log"
    assert words[words.index("--padding") + 1] == "4096"
    assert words[words.index("--report-api-errors") + 1] == "no"
    assert "--initcheck-address-space" in found.command("initcheck", Path("log"))


def test_an_older_release_is_asked_less() -> None:
    old = Sanitizer(Path("compute-sanitizer"), "2021.2", frozenset(("--padding", "--show-backtrace")))
    assert old.command("memcheck", Path("log"))[-4:] == ["--show-backtrace", "device", "--padding", "4096"]
    assert "--initcheck-address-space" not in old.command("initcheck", Path("log"))


def test_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "compute-sanitizer").write_text("not a program")
    (tmp_path / "compute-sanitizer").chmod(0o755)
    monkeypatch.setattr(sanitizer, "_places", lambda: iter([tmp_path / "compute-sanitizer"]))
    with pytest.raises(ToolMissing, match="pip install nvidia-cuda-sanitizer-api"):
        sanitizer.find()


# ---------------------------------------------------------------- a job


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Sanitizer:
    found = sanitizer._probe(install(tmp_path_factory.mktemp("toolkit")))
    assert found is not None
    return found


@pytest.fixture
def tasks(tmp_path: Path) -> Callable[[str], Task]:
    """The launch of a kernel of BAD."""
    program = Program(BAD)
    for name, data in program.blobs.items():
        (tmp_path / name).write_bytes(data)
    return lambda kernel: Task(program.load(), program.launch("run", kernel, poison=""), tmp_path)


def test_a_clean_kernel(tool: Sanitizer, device: Device, tasks: Callable[[str], Task]) -> None:
    starts = device.starts
    checked = sanitizer.check(tool, "memcheck", device, tasks("double"), 20.0)
    assert (checked.findings, checked.why) == ((), ""), checked
    assert "ERROR SUMMARY: 0 errors" in checked.log
    assert device.starts == starts  # the worker knows nothing of it


def test_a_finding_is_kept_when_the_launch_faults(
    tool: Sanitizer, device: Device, tasks: Callable[[str], Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODE", "last-words")
    checked = sanitizer.check(tool, "memcheck", device, tasks("beyond"), 20.0)
    assert [(f.kind, f.thread) for f in checked.findings] == [("out-of-bounds global write", (5, 0, 0))]
    assert checked.why == ""
    found = sanitizer.check(tool, "synccheck", device, tasks("diverges"), 20.0).findings
    assert found[0].kind == "divergent barrier"
    assert sanitizer.check(tool, "memcheck", device, tasks("diverges"), 20.0).findings == ()


@pytest.mark.parametrize(
    ("kernel", "mode", "says"),
    [
        ("beyond", "blind", "CUDA_ERROR_LAUNCH_FAILED"),
        ("segfault", "", "the launch did not end (killed by SIGSEGV)"),
        ("no_such_kernel", "", "the binary has no kernel no_such_kernel"),
        ("double", "mute", "it ended without a summary"),
        ("double", "troubled", "Internal Sanitizer Error"),
    ],
)
def test_silence_that_means_nothing(
    tool: Sanitizer,
    device: Device,
    tasks: Callable[[str], Task],
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    mode: str,
    says: str,
) -> None:
    monkeypatch.setenv("FAKE_MODE", mode)
    checked = sanitizer.check(tool, "memcheck", device, tasks(kernel), 20.0)
    assert checked.findings == ()
    assert says in checked.why


@pytest.mark.parametrize("mode", ["", "slow"])
def test_a_limit_on_the_time(
    tool: Sanitizer, device: Device, tasks: Callable[[str], Task], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("FAKE_MODE", mode)
    started = time.monotonic()
    checked = sanitizer.check(tool, "racecheck", device, tasks("spin"), 2.0)
    assert checked.why == "it did not end within 2 s"
    assert time.monotonic() - started < patience(6)


def test_waiting_for_the_gpu_does_not_count(
    tool: Sanitizer, device: Device, tasks: Callable[[str], Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, limit = uuid.uuid4().hex, patience(4)
    monkeypatch.setattr(Device, "uuid", gpu)
    held = threading.Event()

    def time_something() -> None:
        with turn(gpu, alone=True):
            held.set()
            time.sleep(limit + 1)

    other = threading.Thread(target=time_something)
    other.start()
    held.wait()
    checked = sanitizer.check(tool, "memcheck", device, tasks("double"), limit)
    other.join()
    assert (checked.findings, checked.why) == ((), ""), checked
    assert checked.seconds > limit


def test_the_person_stops_it(tool: Sanitizer, device: Device, tasks: Callable[[str], Task]) -> None:
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    started = time.monotonic()
    with pytest.raises(Cancelled):
        sanitizer.check(tool, "memcheck", device, tasks("spin"), 30.0, stop.is_set)
    assert time.monotonic() - started < patience(5)


def test_a_device_that_is_reached_otherwise(tool: Sanitizer, tasks: Callable[[str], Task]) -> None:
    class Elsewhere:
        def open(self, device: str) -> PipeTransport:
            raise AssertionError(device)

    far = Device("cuda:0", Elsewhere(), start=False)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="cuda:0"):
        sanitizer.check(tool, "memcheck", far, tasks("double"), 20.0)
