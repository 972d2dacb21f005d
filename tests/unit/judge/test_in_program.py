"""G13: the program rebuilt with an edit and run again. Whole programs on the emulator; nothing is mocked."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_agent import capture as room
from cuda_agent import judge, rewrite, trust
from cuda_agent.capture import CaptureOptions
from cuda_agent.device import Device, open_device
from cuda_agent.errors import Cancelled, WorkloadError
from cuda_agent.judge import JudgeOptions, printed
from cuda_agent.judge.case import Case
from cuda_agent.judge.gates.g13_in_program import InProgram, closeness
from cuda_agent.judge.numeric import Compared
from cuda_agent.judge.program import Program
from cuda_agent.model import Build, Candidate, GateResult, LaunchMap, Verdict, Workload
from cuda_agent.source import edits
from cuda_agent.toolchain import sandbox
from cuda_agent.toolchain.build import find_build
from cuda_agent.workload import bundle

SOFTMAX = Path(__file__).parents[2] / "corpus" / "softmax_rows.cu"
OPTIONS = JudgeOptions(in_program=True)
emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles with g++")

# Prints a time and a process number, writes a file beside it, and ends with exit code 3.
SCALE = """\
#include <chrono>
#include <cstdio>
#include <unistd.h>
__global__ void scale(const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = 2.0f * x[i];
}
int main()
{
    const int n = 100;
    float h[n], *x, *y;
    for (int i = 0; i < n; i++)
        h[i] = i - 20.5f;
    cudaMalloc(&x, sizeof h);
    cudaMalloc(&y, sizeof h);
    cudaMemcpy(x, h, sizeof h, cudaMemcpyHostToDevice);
    auto start = std::chrono::steady_clock::now();
    scale<<<(n + 31) / 32, 32>>>(x, y, n);
    cudaDeviceSynchronize();
    double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    cudaMemcpy(h, y, sizeof h, cudaMemcpyDeviceToHost);
    printf("process %d ran\\n", (int)getpid());
    printf("kernel time: %.9f (s), %.3f us a launch\\n", s, 1e6 * s);
    printf("y[7] = %.1f of %d\\n", h[7], n);
    if (FILE *f = fopen("result.txt", "w")) {
        fprintf(f, "%.1f\\n", h[7]);
        fclose(f);
    }
    return 3;
}
"""


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    if shutil.which("g++") is None:
        pytest.skip("the emulator compiles with g++")
    with open_device("emulator") as opened:
        yield opened


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go; nothing may be left there."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def changed(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


def candidate(kernel: str, old: str, new: str, origin: str = "person") -> Candidate:
    found = hashlib.sha256(new.encode()).hexdigest()[:12]
    return Candidate(kernel, old, new, edits.minimal(old, new), origin, "reassociated", LaunchMap(), id=found)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def captured(file: Path, *arguments: str) -> Workload:
    build = Build(file, file.parent, "nvcc", ("-std=c++17",), "default")
    options = CaptureOptions(device="emulator", stop=False)
    room.build_and_run(file, arguments, build, options)
    made = bundle.find(file)
    assert made is not None
    return made


def case(device: Device, file: Path, work: Workload, new: str, options: JudgeOptions = OPTIONS) -> Case:
    text = file.read_text()
    build = Build(file, file.parent, "nvcc", ("-std=c++17",), "default")
    return Case(device, build, work, text, candidate(work.kernel, text, new), options=options)


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Workload]:
    if shutil.which("g++") is None:
        pytest.skip("the emulator compiles with g++")
    file = tmp_path_factory.mktemp("scale") / "scale.cu"
    file.write_text(SCALE)
    return file, captured(file)


def asked(device: Device, scale: tuple[Path, Workload], *pairs: tuple[str, str]) -> GateResult:
    file, work = scale
    before = files(file.parent)
    result = InProgram().check(case(device, file, work, changed(SCALE, *pairs)))
    assert files(file.parent) == before
    return result


# ---------------------------------------------------------------- whole verdicts


@emulated
def test_a_good_rewrite_reaches_the_level(device: Device, tmp_path: Path, scratch: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    file = Path(shutil.copy(SOFTMAX, project))
    text = file.read_text()
    work = captured(file, "40", "33", "3")
    before = files(project)
    build = Build(file, project, "nvcc", ("-std=c++17",), "default")
    context = rewrite.Context.make(file, text, "softmax_rows", work, device.info)
    made = next(c for c in rewrite.candidates(context) if "row-per-warp" in c.origin)
    verdict = judge.judge(device, build, work, text, made, options=OPTIONS)
    result = verdict.gates[13]
    assert result.status == "pass", result.detail
    assert "exit code 0, 2 lines of output unchanged" in result.detail
    assert result.data["launches"] == 2
    assert (verdict.status, verdict.level) == ("verified", "in-program")
    assert "your program's output is unchanged" in judge.headline(verdict)
    assert "emulator" in judge.headline(verdict)
    assert "not measured" in judge.headline(verdict)
    assert files(project) == before


@emulated
def test_a_wrong_launch_site_is_seen_only_here(device: Device, tmp_path: Path) -> None:
    """The kernel is right on the recorded launches; the program starts a block too few, which a launch map that was
    seen at other launches does not tell."""
    file = Path(shutil.copy(SOFTMAX, tmp_path))
    text = file.read_text()
    work = captured(file, "600", "5", "1")
    new = changed(text, ("softmax_rows<<<grid, block>>>", "softmax_rows<<<grid.x - 1, block>>>"))
    build = Build(file, tmp_path, "nvcc", ("-std=c++17",), "default")
    made = replace(candidate("softmax_rows", text, new), launch=LaunchMap(seen=True))
    plain = judge.judge(device, build, work, text, made)
    assert plain.status == "verified", [gate.detail for gate in plain.gates if gate.status == "fail"]
    assert plain.level == "emulated"
    assert plain.gates[13].detail == "not asked for: add --in-program"
    verdict = judge.judge(device, build, work, text, made, options=OPTIONS)
    assert verdict.status == "rejected"
    assert verdict.level == "emulated"
    assert verdict.gates[13].status == "fail"
    assert "exit code 1 instead of 0" in verdict.gates[13].detail
    named = re.search(r"out\[(\d+)\]: expected 0", verdict.gates[13].detail)
    assert named is not None, verdict.gates[13].detail
    assert 512 * 5 <= int(named[1]) < 600 * 5


# ---------------------------------------------------------------- the gate alone


@emulated
def test_times_and_an_exit_code_of_its_own(device: Device, scale: tuple[Path, Workload], scratch: Path) -> None:
    result = asked(device, scale, ("y[i] = 2.0f * x[i];", "y[i] = x[i] + x[i];"))
    assert result.status == "pass", result.detail
    assert "exit code 3, 3 lines of output unchanged (3 numbers left out" in result.detail
    assert result.data["rounded"] == 0
    assert result.data["seconds_after"] is None


@emulated
def test_the_whole_program_is_timed_without_the_recorder(device: Device, scale: tuple[Path, Workload]) -> None:
    """What a GPU does after each run; the verdict's sentence gives both times."""
    file, work = scale
    with Program(case(device, file, work, SCALE)) as program:
        ran = program.run("first", SCALE, 60)
        assert (ran.exit_code, ran.seen, len(ran.launches), ran.seconds) == (3, 1, 1, None)
        seconds = program.time(lambda: False, 3)
        assert seconds is not None
        assert 0 < seconds < ran.took
        assert program.time(lambda: False, 0) is None  # it ended otherwise: no time
        folder = program.folder
    assert not folder.exists()
    data = {"seconds_before": 4.1, "seconds_after": 1.8, "rounded": 2}
    gate = GateResult("G13", "in the program", "pass", "", data=data)
    verdict = Verdict("verified", "in-program", (gate,), "captured: 1 launch of NVIDIA H200")
    said = "your program's output is unchanged but for rounding, 4.10 s → 1.80 s as a whole"
    assert said in judge.headline(verdict)


@emulated
def test_output_that_changes(device: Device, scale: tuple[Path, Workload], scratch: Path) -> None:
    result = asked(device, scale, ('"y[7] = %.1f of %d\\n", h[7], n', '"y[7] = %.1f of %d\\n", h[7], n + 1'))
    assert result.status == "fail"
    assert "line 3 of its output is “y[7] = -27.0 of 101” instead of “y[7] = -27.0 of 100”" in result.detail


@emulated
def test_an_exit_code_that_changes(device: Device, scale: tuple[Path, Workload]) -> None:
    result = asked(device, scale, ("return 3;", "return 0;"))
    assert result.status == "fail"
    assert "exit code 0 instead of 3" in result.detail


@emulated
def test_a_program_that_does_not_build(device: Device, scale: tuple[Path, Workload], scratch: Path) -> None:
    result = asked(device, scale, ("return 3;", "return three;"))
    assert result.status == "fail"
    assert "does not build with the edit" in result.detail


@emulated
def test_a_program_that_does_not_end(device: Device, scale: tuple[Path, Workload], scratch: Path) -> None:
    file, work = scale
    options = JudgeOptions(in_program=True, program_timeout_s=0.2)
    result = InProgram().check(case(device, file, work, SCALE, options))
    assert (result.status, result.undecided) == ("not-run", False)
    assert "did not end within 0.2 s" in result.detail


@emulated
def test_an_edit_that_never_ends(device: Device, scale: tuple[Path, Workload], scratch: Path, tmp_path: Path) -> None:
    """The person stops it: nothing is said, and nothing is left running."""
    file, work = scale
    marker = tmp_path / "never"
    endless = f'FILE *m = fopen("{marker}.new", "w"); fprintf(m, "%d", (int)getpid()); fclose(m);'
    endless += f' rename("{marker}.new", "{marker}"); for (;;) sleep(1);'
    judged = case(device, file, work, changed(SCALE, ("return 3;", endless)))
    judged.cancelled = marker.exists
    with pytest.raises(Cancelled):
        InProgram().check(judged)
    status = Path("/proc", marker.read_text(), "stat")
    deadline = time.monotonic() + 5  # killed at once; who adopted it still has to take its exit status
    while status.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not status.exists()


@emulated
def test_an_edit_that_outlasts_its_time(
    device: Device, scale: tuple[Path, Workload], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuda_agent.judge.gates.g13_in_program.SLACK_S", 2.0)
    file, work = scale
    options = JudgeOptions(in_program=True, slower_deadline=1.0)
    new = changed(SCALE, ("return 3;", "for (;;) sleep(1);"))
    result = InProgram().check(case(device, file, work, new, options))
    assert result.status == "fail"
    assert "did not end within" in result.detail


@emulated
@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize("mounted", [True, False])
def test_a_makefile_project(
    device: Device, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, mounted: bool
) -> None:
    if mounted and not sandbox.available():
        pytest.skip("bubblewrap does not work here")
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    file = project / "src" / "scale.cu"
    file.write_text(SCALE)
    (project / "big.o").write_bytes(b"\x7fELF")  # built for something else: make builds all again
    (project / "Makefile").write_text(
        "run: main\n\t-./main\nmain: main.o\n\tnvcc main.o -o main\nmain.o: src/scale.cu\n"
        "\tnvcc -O2 -c src/scale.cu -o main.o\n"
    )
    room.capture(["make", "run"], project, CaptureOptions(device="emulator", stop=False))
    (project / "result.txt").unlink()
    work = bundle.find(file)
    assert work is not None
    before = files(project)
    # The compiler warns of the unused variable: its words are no output of the program.
    good = changed(SCALE, ("    if (i < n)\n", "    int unused;\n    if (i < n)\n"))
    bad = changed(SCALE, ("y[i] = 2.0f * x[i]", "y[i] = i == 99 ? 1.0f : 2.0f * x[i]"))
    if not mounted:
        monkeypatch.setattr(sandbox, "available", lambda: False)
    build = find_build(file)
    assert build.origin == "recorded"
    made = candidate("scale", SCALE, bad if mounted else good)
    result = InProgram().check(Case(device, build, work, SCALE, made, options=OPTIONS))
    assert result.status == ("fail" if mounted else "pass"), result.detail
    assert ("y[99]: expected 157, got 1 (1 of 100 elements differ" in result.detail) == mounted
    assert files(project) == before


@emulated
def test_a_command_that_builds_nothing(device: Device, tmp_path: Path, scratch: Path) -> None:
    file = tmp_path / "p" / "scale.cu"
    file.parent.mkdir()
    file.write_text(SCALE)
    made = captured(file)
    work = Workload("scale", "captured", made.launches, made.root, made.blobs, "emulator", ("true",))
    result = InProgram().check(case(device, file, work, SCALE))
    assert (result.status, result.undecided) == ("not-run", False)
    assert "(true) does not compile scale.cu" in result.detail


@emulated
def test_a_command_of_a_folder_that_is_not_trusted(
    device: Device, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capture lies above the judged file's folder, which alone is trusted."""
    file = tmp_path / "p" / "scale.cu"
    (file.parent / "deep").mkdir(parents=True)
    file.write_text(SCALE)
    made = captured(file)
    work = Workload("scale", "captured", made.launches, made.root, made.blobs, "emulator", ("touch", "ran"))
    file = file.rename(file.parent / "deep" / "scale.cu")
    monkeypatch.setattr(trust, "_current", {str(file.parent): True})
    result = InProgram().check(case(device, file, work, SCALE))
    assert (result.status, result.undecided) == ("not-run", False)
    assert f"{tmp_path / 'p'} is not trusted" in result.detail


@emulated
@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize("mounted", [True, False])
def test_a_program_that_was_built_before(
    device: Device, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, mounted: bool
) -> None:
    """The recorded command is the built program: it is built again with the compiler commands that a capture of the
    build recorded, two objects and a link."""
    if mounted and not sandbox.available():
        pytest.skip("bubblewrap does not work here")
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    file = project / "src" / "scale.cu"
    file.write_text(SCALE)
    (project / "src" / "other.cu").write_text("int other() { return 1; }\n")
    (project / "Makefile").write_text(
        "run: main\n\t-./main\nmain: src/scale.o src/other.o\n\tnvcc $^ -o main\n"
        "src/%.o: src/%.cu\n\tcd src && nvcc -O2 -c $*.cu -o $*.o\n"
    )
    room.capture(["make", "run"], project, CaptureOptions(device="emulator", stop=False))
    work = bundle.find(file)
    assert work is not None
    (project / "main").write_bytes(b"\x7fELF built for a GPU")
    (project / "other").write_text("#!/bin/sh\n")
    (project / "other").chmod(0o755)
    before = files(project)
    if not mounted:
        monkeypatch.setattr(sandbox, "available", lambda: False)
    build = find_build(file)
    asked = [
        ("./main", changed(SCALE, ("2.0f * x[i]", "x[i] + x[i]")), ""),
        ("./other", SCALE, "no capture saw nvcc build and link that program"),
    ]
    if not mounted:
        asked = [
            ("./main", changed(SCALE, ("h[7], n", "h[7], n + 1")), "instead of “y[7] = -27.0 of 100”"),
            ("./main", changed(SCALE, ("return 3;", "return three;")), "does not build with the edit"),
        ]
    for command, new, says in asked:
        judged = replace(work, command=(command,))
        result = InProgram().check(Case(device, build, judged, SCALE, candidate("scale", SCALE, new), options=OPTIONS))
        assert says in result.detail, result.detail
        assert result.status == ("not-run" if command == "./other" else "fail" if says else "pass"), result.detail
    assert files(project) == before


def test_what_is_not_run(device: Device, tmp_path: Path) -> None:
    file = tmp_path / "scale.cu"
    file.write_text(SCALE)
    spec = Workload("scale", "spec", (), tmp_path, tmp_path / "blobs", "")
    result = InProgram().check(case(device, file, spec, SCALE))
    assert result.status == "not-run"
    assert "name no command" in result.detail
    moved = Workload("scale", "captured", (), tmp_path, tmp_path / "blobs", "", ("make", "run"))
    assert ".cuda-agent/captures" in InProgram().check(case(device, file, moved, SCALE)).detail
    build = Build(file, tmp_path, "nvcc", (), "default")
    model = candidate("scale", SCALE, SCALE, "model:x")
    assert "sandbox" in InProgram().check(Case(device, build, moved, SCALE, model, options=OPTIONS)).detail


# ---------------------------------------------------------------- output


def never(a: float, b: float) -> bool:
    return False


def differs(first: str, second: str, third: str, close: printed.Close = never) -> str:
    template = printed.learn(first.splitlines(), second.splitlines())
    return printed.compare(template, third.splitlines(), close)[0]


@pytest.mark.parametrize(
    ("first", "second", "third", "says"),
    [
        ("sum 12.5", "sum 12.5", "sum 12.5", ""),
        ("sum 12.5", "sum 12.5", "sum 12.6", "line 1"),
        ("run 17 of 3", "run 18 of 3", "run 99 of 3", ""),
        ("run 17 of 3", "run 18 of 3", "run 99 of 4", "line 1"),
        ("at 0x7ffd10", "at 0x7ffe20", "at 0x7fff99", ""),
        ("took 12 us", "took 1.2 ms", "took 3 s", ""),
        ("0.01 ms, 5 rows", "0.01 ms, 5 rows", "0.02 ms, 5 rows", ""),
        ("0.01 ms, 5 rows", "0.01 ms, 5 rows", "0.01 ms, 6 rows", "line 1"),
        ("kernel time: 0.25", "kernel time: 0.25", "kernel time: 0.5", ""),
        ("300 GB/s", "300 GB/s", "700 GB/s", ""),
        ("holds 300 GB", "holds 300 GB", "holds 700 GB", "line 1"),
        ("  1.0 ms", " 10.0 ms", "100.0 ms", ""),
        ("PASS", "PASS", "FAIL", "line 1 of its output is “FAIL” instead of “PASS”"),
        ("a\nb", "a\nb", "a", "ends before line 2"),
        ("a", "a", "a\nb", "goes on with line 2"),
        ("x = 1.5", "x = 1.7", "x = nan", "line 1"),
    ],
)
def test_output(first: str, second: str, third: str, says: str) -> None:
    found = differs(first, second, third)
    assert says in found
    assert bool(found) == bool(says)


def test_rounding_is_counted() -> None:
    def close(a: float, b: float) -> bool:
        return abs(a - b) <= 1e-5

    template = printed.learn(["sum 1.000001, 7 rows"], ["sum 1.000001, 7 rows"])
    assert printed.compare(template, ["sum 1.000002, 7 rows"], close) == ("", 1)
    assert printed.compare(template, ["sum 1.1, 7 rows"], close)[0]
    assert printed.compare(template, ["sum 1.000001, 8 rows"], lambda a, b: True)[0]


def test_a_printed_error_may_change_whole() -> None:
    """A program that prints its largest relative error: sums in another order print another one."""
    template = printed.learn(["largest relative error 2.68e-06"], ["largest relative error 2.68e-06"])
    row = Compared(0, "out", "reassociated", True, 1e-7, {"dtype": "f32"})
    assert printed.compare(template, ["largest relative error 3.33e-07"], closeness([row])) == ("", 1)
    assert printed.compare(template, ["largest relative error 3.33e-04"], closeness([row]))[0]
    equal = replace(row, klass="bit-exact")
    assert printed.compare(template, ["largest relative error 3.33e-07"], closeness([equal]))[0]


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("a", "a\nb"), ("1 2", "1"), ("PASS 1", "FAIL 1")])
def test_an_original_that_prints_other_words_each_time(first: str, second: str) -> None:
    with pytest.raises(WorkloadError, match="two runs of your program"):
        printed.learn(first.splitlines(), second.splitlines())
