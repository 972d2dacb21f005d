"""From a program that records launches to bundles, without a GPU: record.h, processes, the report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent import capture as room
from cuda_agent.capture import CaptureOptions, CaptureReport, NothingCaptured, injection, session, shim
from cuda_agent.errors import Cancelled, CaptureError, UsageError
from cuda_agent.model import Workload
from cuda_agent.workload import bundle
from patience import patience

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ builds the recording test program")

HERE = Path(__file__).parent
MEGABYTE = 1 << 20


def built(source: str, folder: Path) -> Path:
    output = folder / "program"
    argv = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{injection.NATIVE}", "-pthread"]
    subprocess.run([*argv, str(HERE / source), "-o", str(output)], check=True)
    return output


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("recorded_program.cpp", tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="session")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("changing_parameters.cpp", tmp_path_factory.mktemp("changing"))


@pytest.fixture(autouse=True)
def no_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program records by itself: neither CUPTI nor a compiler takes part."""
    monkeypatch.setattr(injection, "build_injection", lambda: Path("/nonexistent/injection.so"))
    monkeypatch.setattr(session.Session, "_real_nvcc", lambda self: None)


def run(folder: Path, *command: object, **options: object) -> CaptureReport:
    events: list[object] = []
    return room.capture(
        [str(word) for word in command],
        folder,
        CaptureOptions(device="cuda", **options),  # type: ignore[arg-type]
        on_event=events.append,
    )


def values(folder: Path, kernel: str, launch: int, buffer: int, after: bool) -> tuple[float, ...]:
    found = bundle.load(folder / ".cuda-agent" / "captures", kernel)
    entry = found.launches[launch].buffers[buffer]
    blobs = entry.after if after else entry.before
    assert blobs is not None
    data = bundle.BlobStore(found.blobs).get(blobs)
    return struct.unpack(f"{len(data) // 4}f", data)


def test_launches_become_bundles(tmp_path: Path, program: Path) -> None:
    report = run(tmp_path, program, 5)
    seen = {kernel.kernel: (kernel.launches, kernel.recorded) for kernel in report.kernels}
    assert seen == {"scale": (5, 2), "ns::end": (1, 1), "nested": (1, 0), "hosted": (1, 0)}
    made = bundle.load(tmp_path / ".cuda-agent" / "captures", "scale")
    assert made.device == report.device == "emulator"
    assert made.command == (str(program), "5")
    first = made.launches[0]
    assert (first.grid, first.block, first.demangled) == ((4, 1, 1), (256, 1, 1), "scale(View)")
    assert [(p.at, p.buffer, p.offset) for p in first.args[0].pointers] == [(0, 0, 0), (8, 1, 12)]
    assert first.buffers[0].written == ((0, 4),)
    assert [buffer.size for buffer in first.buffers] == [4000, 20_000_000]
    assert first.buffers[1].before == first.buffers[1].after
    assert len(set(first.buffers[1].before)) <= 2  # zeros
    assert values(tmp_path, "scale", 0, 0, after=False)[:3] == (0, 0, 0)
    assert values(tmp_path, "scale", 0, 0, after=True)[:3] == (1, 0, 0)
    assert values(tmp_path, "scale", 1, 0, after=True)[:3] == (1, 2, 0)


def test_a_change_at_the_end_of_a_large_buffer_is_seen(tmp_path: Path, program: Path) -> None:
    run(tmp_path, program, 1, kernel="end")
    assert values(tmp_path, "ns::end", 0, 0, after=False)[-1] == 0
    after = values(tmp_path, "ns::end", 0, 0, after=True)
    assert after[-1] == 7
    assert set(after[:-1]) == {0}


def test_what_is_skipped_says_why(tmp_path: Path, program: Path) -> None:
    report = run(tmp_path, program, 1)
    why = {kernel.kernel: dict(kernel.skipped) for kernel in report.kernels}
    assert list(why["nested"]) == ["buffer 0 holds device pointers (nested pointers cannot be replayed)"]
    assert list(why["hosted"]) == ["argument 0 (float const*) points to no device allocation"]
    with pytest.raises(NothingCaptured, match="limit is 10") as caught:
        run(tmp_path, program, 1, cap=10)
    assert caught.value.report.launches == 4


def test_the_folder_ignores_itself_and_leaves_no_raw_files(tmp_path: Path, program: Path) -> None:
    run(tmp_path, program, 1)
    assert (tmp_path / ".cuda-agent" / ".gitignore").read_text() == "*\n"
    assert sorted(path.name for path in (tmp_path / ".cuda-agent").iterdir()) == [".gitignore", "captures"]


def test_filter(tmp_path: Path, program: Path) -> None:
    report = run(tmp_path, program, 3, kernel=r"^scale\(", first=1)
    assert {kernel.kernel: (kernel.wanted, kernel.recorded) for kernel in report.kernels} == {
        "scale": (True, 1),
        "ns::end": (False, 0),
        "nested": (False, 0),
        "hosted": (False, 0),
    }


def test_stop_ends_the_program_with_code_0(tmp_path: Path, program: Path) -> None:
    report = run(tmp_path, program, 1000, 9, stop=True)
    assert report.stopped
    assert report.exit_code == 0
    assert "launch 1\n" in report.output  # what it printed before is not lost
    assert len(report.output.splitlines()) < 20
    filtered = run(tmp_path, program, 1000, 9, stop=True, kernel="scale")
    assert len(filtered.output.splitlines()) == 2


def test_selection_keeps_the_extremes_and_drops_their_rivals(tmp_path: Path, program: Path) -> None:
    report = run(tmp_path, program, 4, select="largest", first=1, stop=True)
    assert {kernel.kernel: kernel.recorded for kernel in report.kernels}["scale"] == 1
    assert any("runs to its end" in note for note in report.notes)


def test_two_processes_of_one_run(tmp_path: Path, program: Path) -> None:
    report = run(tmp_path, "sh", "-c", f"{program} 3 && {program} 3")
    seen = {kernel.kernel: (kernel.launches, kernel.recorded) for kernel in report.kernels}
    assert seen["scale"] == (6, 4)
    assert len(bundle.load(tmp_path / ".cuda-agent" / "captures", "scale").launches) == 4


def test_a_failing_program(tmp_path: Path, program: Path) -> None:
    report = run(tmp_path, program, 2, 3)
    assert report.exit_code == 3
    assert any("exit code 3" in note for note in report.notes)
    with pytest.raises(CaptureError, match=r"exit code 4 and no launch was recorded\.\nwhy"):
        run(tmp_path, "sh", "-c", "echo why; exit 4")
    with pytest.raises(CaptureError, match="killed by signal 9"):
        run(tmp_path, "sh", "-c", "kill -9 $$")


def test_nothing_to_see(tmp_path: Path) -> None:
    with pytest.raises(NothingCaptured, match="launched no kernel"):
        run(tmp_path, "true")
    with pytest.raises(CaptureError, match="Cannot start no-such-program"):
        run(tmp_path, "no-such-program")
    with pytest.raises(UsageError, match="no command"):
        run(tmp_path)
    with pytest.raises(UsageError, match="vulkan"):
        room.capture(["true"], tmp_path, CaptureOptions(device="vulkan"))


def test_events_come_while_the_program_runs(tmp_path: Path, program: Path) -> None:
    arrived: list[tuple[str, float]] = []
    start = time.monotonic()
    room.capture(
        [str(program), "4", "0", "150"],
        tmp_path,
        CaptureOptions(device="cuda"),
        on_event=lambda event: arrived.append((str(event["type"]), time.monotonic() - start)),
    )
    launches = [at for kind, at in arrived if kind == "launch"]
    end = max(at for kind, at in arrived if kind == "output")
    assert len(launches) == 5
    assert launches[0] < end - 0.2
    assert [kind for kind, _ in arrived].count("bundle") == 2


def test_cancel_kills_the_whole_group_and_keeps_the_launches(tmp_path: Path, program: Path) -> None:
    marker = tmp_path / "child"
    seen: list[str] = []
    began = time.monotonic()
    report = room.capture(
        ["sh", "-c", f"sleep 60 & echo $! > {marker}; {program} 100000 0 20"],
        tmp_path,
        CaptureOptions(device="cuda"),
        on_event=lambda event: seen.append(str(event["type"])),
        cancelled=lambda: seen.count("launch") >= 3,
    )
    assert report.cancelled
    assert report.recorded == 3
    assert time.monotonic() - began < patience(10)
    with pytest.raises(ProcessLookupError):
        _wait_gone(int(marker.read_text()))
    with pytest.raises(Cancelled):
        room.capture(["sleep", "60"], tmp_path, CaptureOptions(device="cuda"), cancelled=lambda: True)


def _wait_gone(pid: int) -> None:
    for _ in range(50):
        state = Path(f"/proc/{pid}/stat")
        if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
            raise ProcessLookupError  # dead; whoever is its parent now has not looked yet
        os.kill(pid, 0)
        time.sleep(0.1)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """As in a terminal: a shell starts what runs in the background with SIGINT ignored, and Python leaves that so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_keeps_the_launches(tmp_path: Path, program: Path, ctrl_c: None) -> None:
    count = 0

    def interrupt(event: object) -> None:
        nonlocal count
        count += 1
        if count == 12:
            signal.raise_signal(signal.SIGINT)

    report = room.capture(
        [str(program), "100000", "0", "5"], tmp_path, CaptureOptions(device="cuda"), on_event=interrupt
    )
    assert report.cancelled
    assert report.recorded == 3


def test_a_timeout(tmp_path: Path, program: Path) -> None:
    report = run(tmp_path, program, 100000, 0, 10, timeout=0.5)
    assert any("stopped after 0.5 s" in note for note in report.notes)
    assert report.recorded == 3


def test_the_environment_holds_no_secrets(tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "hush-hush")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    run(tmp_path, program, 1)
    text = (tmp_path / ".cuda-agent" / "captures" / "scale" / "launch.json").read_text()
    assert "hush" not in text
    assert json.loads(text)["environment"]["CUDA_VISIBLE_DEVICES"] == "0"


def test_an_unwritable_folder(tmp_path: Path, program: Path) -> None:
    (tmp_path / ".cuda-agent").write_text("a file")
    with pytest.raises(CaptureError, match="Cannot write"):
        run(tmp_path, program, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(small_disk: Path, program: Path) -> None:
    with pytest.raises(CaptureError, match="disk is full"):
        run(small_disk, program, 1, kernel="end")


def test_a_bad_filter_is_said(tmp_path: Path, program: Path) -> None:
    with pytest.raises(UsageError, match="regular expression"):
        run(tmp_path, program, 1, kernel="(")


def captured(folder: Path, kernel: str) -> Workload:
    return bundle.load(folder / ".cuda-agent" / "captures", kernel)


def test_parameters_that_change_in_launches_that_are_not_recorded(tmp_path: Path, changing: Path) -> None:
    run(tmp_path, changing, 5, first=1)
    made = captured(tmp_path, "step")
    assert (len(made.launches), made.seen, made.ended) == (1, 5, False)
    assert made.varied == {0, 1}  # the pointer and the size, not the rows
    run(tmp_path, changing, 2, first=1)
    assert captured(tmp_path, "step").varied == {0}


@pytest.mark.parametrize(
    ("first", "stop", "sizes"),
    [
        (1, False, [2]),
        (2, False, [2, 4]),  # of 2, 2, 4, 8, 16: the repetition makes room
        (3, False, [2, 4, 8]),
        (9, False, [2, 2, 4, 8, 16]),
        (2, True, [2, 2]),  # the program is ended before another comes
    ],
)
def test_another_size_is_worth_more_than_a_repetition(
    tmp_path: Path, changing: Path, first: int, stop: bool, sizes: list[int]
) -> None:
    report = run(tmp_path, changing, 5, first=first, stop=stop, kernel="step")
    made = captured(tmp_path, "step")
    assert [int.from_bytes(launch.args[1].data, "little") for launch in made.launches] == sizes
    assert report.recorded == len(sizes)
    for launch in made.launches:
        assert bundle.BlobStore(made.blobs).get(launch.buffers[0].before)


def test_instantiations_count_as_launches_of_one_kernel(tmp_path: Path, changing: Path) -> None:
    run(tmp_path, changing, 2, first=1)
    assert captured(tmp_path, "typed").varied == {1}


def test_parameters_that_are_not_told(tmp_path: Path, changing: Path) -> None:
    report = run(tmp_path, changing, 5)
    assert captured(tmp_path, "other").varied is None  # two kernels of one name
    assert {kernel.kernel: kernel.launches for kernel in report.kernels}["untold"] == 1


def test_a_program_that_dies_keeps_what_changed(tmp_path: Path, changing: Path) -> None:
    run(tmp_path, changing, 5, 2, 3, first=1)
    made = captured(tmp_path, "step")
    assert made.varied == {0, 1}
    assert made.ended


def test_processes_are_compared(tmp_path: Path, changing: Path) -> None:
    run(tmp_path, "sh", "-c", f"{changing} 1 2 && {changing} 1 3")
    varied = captured(tmp_path, "step").varied
    assert varied is not None
    assert 1 in varied
    assert 2 not in varied


def test_an_early_stop_is_kept(tmp_path: Path, changing: Path) -> None:
    run(tmp_path, changing, 20, first=1, stop=True)
    made = captured(tmp_path, "step")
    assert made.ended
    assert 2 < made.seen < 20
    assert made.varied == {0, 1}
    run(tmp_path, changing, 20, first=1, stop=True, kernel="step")
    made = captured(tmp_path, "step")
    assert (made.seen, made.varied, made.ended) == (1, frozenset(), True)


def shapes(folder: Path) -> dict[str, list[int]]:
    """By instantiation, the blocks of its launches."""
    made = captured(folder, "shaped")
    found: dict[str, list[int]] = {}
    for one in sorted(made.shapes or (), key=lambda one: one.grid):
        assert (one.grid[1:], one.block, one.shared) == ((1, 1), (64, 1, 1), 0)
        found.setdefault(one.mangled[10], []).append(one.grid[0])
    return found


def test_shapes_of_launches_that_are_not_recorded(tmp_path: Path, changing: Path) -> None:
    run(tmp_path, changing, 0, 2, -1, 20, first=1)
    assert shapes(tmp_path) == {"d": [1, 2, 3, 4], "f": [1, 2, 3, 4]}
    run(tmp_path, changing, 0, 2, 15, 20, first=1)
    assert shapes(tmp_path) == {"d": [1, 2, 3], "f": [1, 2, 3]}  # also those of a program that dies
    run(tmp_path, "sh", "-c", f"{changing} 0 2 -1 8; {changing} 0 2 -1 14", first=1)
    assert shapes(tmp_path) == {"d": [1, 2, 3], "f": [1, 2, 3]}  # and of several processes


def test_of_very_many_shapes_a_thousand_are_kept(tmp_path: Path, changing: Path) -> None:
    run(tmp_path, changing, 0, 2, -1, 4 * 1100, first=1)
    assert shapes(tmp_path) == {"d": [*range(1, 1025)], "f": [*range(1, 1025)]}


def test_raw_lines_are_json(tmp_path: Path, program: Path) -> None:
    environment = {**os.environ, "CUDA_AGENT_CAPTURE_DIR": str(tmp_path)}
    subprocess.run([str(program), "3"], env=environment, check=True, capture_output=True)
    lines = [json.loads(line) for line in (tmp_path / "launches.jsonl").read_text().splitlines()]
    recorded = [line for line in lines if "args" in line]
    assert len(recorded) == 4
    for line in recorded:
        assert line["skipped"] is None
        for entry in line["buffers"]:
            assert (tmp_path / entry["before"]).stat().st_size == entry["size"]
            assert (tmp_path / entry["after"]).stat().st_size == entry["size"]
    assert max(line["seen"] for line in lines if "seen" in line) == 3


FAKE_NVCC = """#!/bin/sh
echo "$PWD/main" >> "$CUDA_AGENT_OUTPUTS"
echo '{{"directory": "x", "arguments": ["nvcc"], "file": "main.cu"}}' >> "$CUDA_AGENT_SHIM_BUILDS"
[ -e main ] && mv main main.cuda-agent-saved
cp {program} main
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_make_is_run_again_when_everything_was_built_for_a_gpu(
    tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "main.cu").write_text("")
    (work / "main").write_text("#!/bin/sh\necho no CUDA device; exit 1\n")
    (work / "main").chmod(0o755)
    (work / "Makefile").write_text("run: main\n\t./main 3\nmain: main.cu\n\tnvcc main.cu -o main\n")

    def fake(self: session.Session, folder: Path, paths: session._Paths | None) -> shim.Shim:
        assert paths is not None
        (folder / "bin").mkdir(parents=True)
        nvcc = folder / "bin" / "nvcc"
        nvcc.write_text(FAKE_NVCC.format(program=program))
        nvcc.chmod(0o755)
        path = f"{nvcc.parent}{os.pathsep}{os.environ['PATH']}"
        return shim.Shim(folder, {"PATH": path, shim.BUILDS: str(paths.builds)})

    monkeypatch.setattr(session.Session, "_install", fake)
    report = room.capture(["make", "run"], work, CaptureOptions(device="emulator", stop=False))
    assert report.exit_code == 0
    assert report.recorded == 3
    assert report.builds == 1
    assert any("make again with -B" in note for note in report.notes)
    assert (work / "main").read_text().startswith("#!/bin/sh")  # the person's own build is back
    assert sorted(path.name for path in work.iterdir()) == [".cuda-agent", "Makefile", "main", "main.cu"]
