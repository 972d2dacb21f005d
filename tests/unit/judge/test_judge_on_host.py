"""Whole judgements over a real worker whose kernels are Python functions: what each gate must catch, and what it must
let pass."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cuda_agent import judge
from cuda_agent.device.client import Device
from cuda_agent.errors import Cancelled
from cuda_agent.judge import JudgeOptions
from cuda_agent.judge.baseline import plain_number
from cuda_agent.judge.digest import sha256
from cuda_agent.judge.gates.g09_timing_is_fair import unfair
from cuda_agent.judge.timing import LaunchTime
from cuda_agent.model import Dim3, Launched, LaunchMap, Timing, Verdict, Workload
from patience import patience

from .conftest import GOOD, VALUES, build, candidate, source, workload

ORIGINAL = source("b[:] = 2 * a + 1\nreturn 100.0")
FASTER = source("b[:] = 2 * a + 1\nreturn 50.0", "b[i] = 1 + 2 * a[i];")
# The Python kernels know one size and count their calls: hidden cases have tests of their own.
OPTIONS = JudgeOptions(rounds=8, slower_deadline=0.0, hidden_cases=0)


def judged(device: Device, folder: Path, text: str, *, work: Workload | None = None, original: str = ORIGINAL,
           options: JudgeOptions = OPTIONS, **more: Any) -> Verdict:  # fmt: skip
    made = candidate(text, original, **more)
    return judge.judge(device, build(folder), work or workload(folder), original, made, options=options)


def gate(verdict: Verdict, name: str) -> Any:
    assert [g.id for g in verdict.gates] == [f"G{n}" for n in range(15)]
    return next(g for g in verdict.gates if g.id == name)


def stopped_by(verdict: Verdict) -> str:
    return next((g.id for g in verdict.gates if g.status == "fail" or g.undecided), "")


def test_a_faster_kernel_is_verified(device: Device, tmp_path: Path) -> None:
    starts = device.starts  # type: ignore[attr-defined]
    verdict = judged(device, tmp_path, FASTER)
    assert verdict.status == "verified", judge.headline(verdict)
    assert verdict.level == "replayed"
    assert verdict.numeric == "bit-exact"
    assert verdict.faster
    assert verdict.timing is not None
    assert verdict.timing.ratio == pytest.approx(2.0)
    passed = {g.id for g in verdict.gates if g.status == "pass"}
    assert passed == {"G0", "G1", "G2", "G3", "G4", "G6", "G8", "G9", "G10", "G11", "G12", "G14"}
    assert device.starts == starts + 1  # type: ignore[attr-defined]  # measured again in a fresh process
    assert verdict.record["verified_sha256"] == verdict.record["timed_sha256"] == verdict.record["offered_sha256"]
    assert judge.headline(verdict).startswith("2.00× [2.00, 2.00] on")


def test_the_same_text_is_no_change(device: Device, tmp_path: Path) -> None:
    verdict = judged(device, tmp_path, ORIGINAL)
    assert verdict.status == "verified"
    assert not verdict.faster
    assert verdict.timing is None
    assert "same instructions" in gate(verdict, "G8").detail
    assert judge.headline(verdict) == "No change: the candidate is the same code as the original"


def test_renamed_variables_are_no_change(device: Device, tmp_path: Path) -> None:
    text = (
        ORIGINAL.replace("int i =", "int k =")
        .replace("(i < n)", "(k < n)")
        .replace("b[i] = 2 * a[i]", "b[k] = 2 * a[k]")
    )
    verdict = judged(device, tmp_path, text)
    assert verdict.status == "verified"
    assert not verdict.faster


def test_a_slower_kernel_is_right_and_not_faster(device: Device, tmp_path: Path) -> None:
    verdict = judged(device, tmp_path, source("b[:] = 2 * a + 1\nreturn 150.0", "b[i] = 1 + 2 * a[i];"))
    assert verdict.status == "verified"
    assert verdict.timing is not None
    assert verdict.timing.label == "SLOWER"
    assert not verdict.faster
    assert "slower" in judge.headline(verdict)


WRONG = {
    "last element not written": ("b[:-1] = 2 * a[:-1] + 1", "G3"),
    "minus for plus": ("b[:] = 2 * a - 1", "G3"),
    "zeros": ("b[:] = 0", "G3"),
    "nothing": ("pass", "G3"),
    "first rows only": ("b[:8] = 2 * a[:8] + 1", "G3"),
    "one element off by 1e-3": ("b[:] = 2 * a + 1\nb[17] += 1e-3", "G3"),
    "writes an input": ("b[:] = 2 * a + 1\na[3] = 0", "G3"),
    "a NaN": ("b[:] = 2 * a + 1\nb[5] = numpy.nan", "G3"),
    "reads what was in the output": ("b[:] = numpy.where(numpy.isnan(b), 2 * a + 1, b)", "G3"),
    "works only where it sees poison": (
        "b[:] = numpy.where(numpy.isnan(b) | (abs(b) > 1e29), 2 * a + 1, b)",
        "G3",
    ),
    "crash": ("ctypes.string_at(8)", "G3"),
    "illegal address": ("raise DeviceFault('CUDA_ERROR_ILLEGAL_ADDRESS')", "G3"),
    "refused launch": ("raise StepFailed('the launch was refused')", "G3"),
    "one beyond the end": ("b[:] = 2 * a + 1\nfloats(y, n + 1)[n] = 1", "G4"),
    "one before the start": (
        "b[:] = 2 * a + 1\nctypes.c_float.from_address(address(y) - 4).value = 1",
        "G4",
    ),
    "differs from run to run": (
        "import random\nb[:] = 2 * a + 1\nb[0] *= 1 + random.choice([1, 2, 3, 4, 5, 6, 7, 8]) * 2e-7",
        "G6",
    ),
    "does the work once": (
        "state['n'] = state.get('n', 0) + 1\nif state['n'] < 7: b[:] = 2 * a + 1\nreturn 50.0",
        "G8",
    ),
    "crashes when timed": (
        "state['n'] = state.get('n', 0) + 1\nb[:] = 2 * a + 1\nif state['n'] > 7: ctypes.string_at(8)\nreturn 50.0",
        "G8",
    ),
    "faster than memory": ("b[:] = 2 * a + 1\nreturn 1e-9", "G11"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_are_rejected(device: Device, tmp_path: Path, name: str) -> None:
    machine, expected = WRONG[name]
    verdict = judged(device, tmp_path, source(machine, "b[i] = 1 + 2 * a[i];"))
    assert verdict.status == "rejected", judge.headline(verdict)
    assert stopped_by(verdict) == expected
    assert not verdict.faster
    assert all(g.status == "not-run" for g in verdict.gates if int(g.id[1:]) > max(int(expected[1:]), 7))


def test_the_wrong_element_is_named(device: Device, tmp_path: Path) -> None:
    verdict = judged(device, tmp_path, source("b[:] = 2 * a + 1\nb[17] = 5", "b[i] = 1 + 2 * a[i];"))
    expected = 2 * VALUES[17] + 1
    assert f"b[17]: expected {expected:.9g}, got 5 (1 of 64 elements differ" in gate(verdict, "G3").detail
    assert verdict.numeric is None  # what is wrong is not "reassociated"


@pytest.mark.parametrize(("dtype", "code"), [("f32", "<f"), ("f64", "<d"), ("f16", "<e")])
def test_the_plain_poison_is_an_ordinary_number_of_the_text(dtype: Any, code: str) -> None:
    numbers = {struct.unpack(code, bytes.fromhex(plain_number(dtype, sha256(str(text)))))[0] for text in range(100)}
    assert len(numbers) > 90
    assert all(0.5 <= abs(number) < 2 for number in numbers)
    assert min(numbers) < 0 < max(numbers)


def test_an_unwritten_element_shows_its_poison(device: Device, tmp_path: Path) -> None:
    verdict = judged(device, tmp_path, source("b[:-1] = 2 * a[:-1] + 1", "b[i] = 1 + 2 * a[i];"))
    assert "b[63]" in gate(verdict, "G3").detail
    assert "got nan" in gate(verdict, "G3").detail


def test_a_kernel_that_never_ends(device: Device, tmp_path: Path) -> None:
    options = JudgeOptions(rounds=8, slower_deadline=0.0, deadline_s=2.0)
    started = time.monotonic()
    verdict = judged(device, tmp_path, source("while True: time.sleep(0.01)", "while (1) ;"), options=options)
    assert verdict.status == "rejected"
    assert stopped_by(verdict) == "G3"
    assert "did not end" in gate(verdict, "G3").detail
    assert time.monotonic() - started < patience(10)


def test_compile_errors(device: Device, tmp_path: Path) -> None:
    verdict = judged(device, tmp_path, source(GOOD, "b[i] = 3; /* syntax error */"))
    assert stopped_by(verdict) == "G1"
    assert "expected a ;" in gate(verdict, "G1").detail
    broken = source(GOOD, "b[i] = 3; /* syntax error */")
    verdict = judged(device, tmp_path, FASTER, original=broken)
    assert verdict.status == "undecided"
    assert "the original does not compile" in judge.headline(verdict)


@pytest.mark.parametrize(
    ("note", "launch", "word"),
    [
        ("/* registers=128 */", LaunchMap(block=("1024", "1", "1"), seen=True), "registers"),
        ("/* shared=60000 */", LaunchMap(), "shared"),
        ("", LaunchMap(block=("bx * 32", "1", "1"), seen=True), "threads a block"),
    ],
)
def test_what_does_not_fit_the_device(device: Device, tmp_path: Path, note: str, launch: LaunchMap, word: str) -> None:
    verdict = judged(device, tmp_path, source(GOOD, "b[i] = 1 + 2 * a[i];", note), launch=launch)
    assert stopped_by(verdict) == "G1"
    assert word in gate(verdict, "G1").detail


@pytest.mark.parametrize(
    ("grid", "block", "launch", "head", "said"),
    [
        ((2, 1, 1), (64, 1, 1), LaunchMap(block=("bx * 8", "1", "1"), seen=True), "", ""),
        ((2, 1, 1), (256, 1, 1), LaunchMap(block=("bx * 8", "1", "1"), seen=True), "", "2048 threads a block"),
        ((2, 1, 1), (64, 1, 1), LaunchMap(grid=("gx / 2", "1", "1"), seen=True), "", ""),
        ((1, 1, 1), (128, 1, 1), LaunchMap(grid=("gx / 2", "1", "1"), seen=True), "", "launches <<<0, 128>>>"),
        ((1, 1, 1), (64, 1, 1), LaunchMap(), "__launch_bounds__(64)", ""),
        ((2, 1, 1), (256, 1, 1), LaunchMap(), "__launch_bounds__(64)", "at most 64 threads"),
        ((1, 9, 1), (64, 1, 1), LaunchMap(grid=("gx", "gy * 9000", "1"), seen=True), "", "at most 65535 blocks"),
    ],
)
def test_a_launch_that_was_not_recorded_must_be_possible(
    device: Device, tmp_path: Path, grid: Dim3, block: Dim3, launch: LaunchMap, head: str, said: str
) -> None:
    work = workload(tmp_path)
    (one,) = work.launches
    recorded = Launched(one.mangled, (2, *one.grid[1:]), one.block, one.shared)
    work = replace(
        work,
        launches=(replace(one, grid=recorded.grid),),
        shapes=frozenset({recorded, Launched(one.mangled, grid, block, 0)}),
    )
    text = source(GOOD, "b[i] = 1 + 2 * a[i];").replace("void axpy", f"void {head} axpy" if head else "void axpy")
    verdict = judged(device, tmp_path, text, work=work, launch=launch)
    assert (stopped_by(verdict) == "G1") == bool(said), gate(verdict, "G1").detail
    assert said in gate(verdict, "G1").detail
    assert ("which was not recorded" in gate(verdict, "G1").detail) == bool(said)


def test_shapes_that_were_not_timed_are_counted(device: Device, tmp_path: Path) -> None:
    work = workload(tmp_path)
    (one,) = work.launches
    shapes = {Launched(one.mangled, (n, 1, 1), one.block, one.shared) for n in (*one.grid[:1], 7, 8)}
    verdict = judged(device, tmp_path, FASTER, work=replace(work, shapes=frozenset(shapes)))
    assert "; the program launches 2 other shapes, not timed" in gate(verdict, "G12").detail
    verdict = judged(device, tmp_path, FASTER, work=work)
    assert "not timed" not in gate(verdict, "G12").detail


def test_edit_policy_comes_first(device: Device, tmp_path: Path) -> None:
    verdict = judged(device, tmp_path, source(GOOD, 'printf("x");'))
    assert stopped_by(verdict) == "G0"
    assert verdict.level == "none"


@pytest.mark.parametrize("kind", ["writes zeros", "writes ones", "copies an input"])
def test_weak_inputs_decide_nothing(device: Device, tmp_path: Path, kind: str) -> None:
    values = {"writes zeros": (-0.5,) * 64, "writes ones": (0.0,) * 64, "copies an input": (-1.0,) * 64}[kind]
    verdict = judged(device, tmp_path, FASTER, work=workload(tmp_path, values))
    assert verdict.status == "undecided"
    assert stopped_by(verdict) == "G2"
    assert kind in gate(verdict, "G2").detail


def test_a_kernel_that_changes_nothing_recorded_decides_nothing(device: Device, tmp_path: Path) -> None:
    original = source("return 100.0")
    work = workload(tmp_path, after=(0.0,) * 64)
    verdict = judged(device, tmp_path, source("return 50.0", "b[i] = 1 + 2 * a[i];"), work=work, original=original)
    assert verdict.status == "undecided"
    assert stopped_by(verdict) == "G2"


def test_the_right_answer_left_from_an_earlier_launch_does_not_help(device: Device, tmp_path: Path) -> None:
    """The buffer holds the answer before the launch: only poison tells a kernel that writes it from one that does
    not."""
    work = workload(tmp_path, before=tuple(2 * v + 1 for v in VALUES))
    assert judged(device, tmp_path, FASTER, work=work).status == "verified"
    verdict = judged(device, tmp_path, source("return 50.0", ";"), work=work)
    assert verdict.status == "rejected"
    assert stopped_by(verdict) == "G3"


def test_a_capture_that_does_not_replay(device: Device, tmp_path: Path) -> None:
    verdict = judged(device, tmp_path, FASTER, work=workload(tmp_path, after=(3.0,) * 64))
    assert verdict.status == "undecided"
    assert "does not replay" in gate(verdict, "G2").detail


def test_a_capture_that_does_not_replay_because_the_kernel_writes_elsewhere(device: Device, tmp_path: Path) -> None:
    """In the program the write went into the input; here it goes into nobody's memory."""
    original = source("b[:] = 2 * a + 1\nfloats(y, n + 1)[n] = 1\nreturn 100.0")
    verdict = judged(device, tmp_path, FASTER, work=workload(tmp_path, after=(3.0,) * 64), original=original)
    said = gate(verdict, "G2").detail
    assert "does not replay: b[0] was 3" in said
    assert "the kernel itself writes out of bounds (4 bytes after b)" in said


def test_no_launches(device: Device, tmp_path: Path) -> None:
    verdict = judged(device, tmp_path, FASTER, work=workload(tmp_path, launches=0))
    assert verdict.status == "undecided"
    assert verdict.inputs == "none"
    assert verdict.level == "none"


ACCUMULATE = "b[:] += 2 * a + 1\nreturn 100.0"


def test_in_and_out_buffers(device: Device, tmp_path: Path) -> None:
    before = tuple(float(i) for i in range(64))
    after = tuple(x + 2 * v + 1 for x, v in zip(before, VALUES, strict=True))
    work = workload(tmp_path, before=before, after=after)
    original = source(ACCUMULATE)
    good = source("b[:] = b + 1 + 2 * a\nreturn 50.0", "b[i] += 1;")
    assert judged(device, tmp_path, good, work=work, original=original).status == "verified"
    bad = source("b[:-1] += 2 * a[:-1] + 1\nreturn 50.0", "b[i] += 1;")
    verdict = judged(device, tmp_path, bad, work=work, original=original)
    assert stopped_by(verdict) == "G3"


def test_partly_written_outputs_keep_the_rest(device: Device, tmp_path: Path) -> None:
    original = source("b[:32] = 2 * a[:32] + 1\nreturn 100.0")
    after = tuple(2 * v + 1 for v in VALUES[:32]) + (7.0,) * 32
    work = workload(tmp_path, before=(7.0,) * 64, after=after)
    good = source("b[:32] = 1 + 2 * a[:32]\nreturn 50.0", "b[i] += 1;")
    assert judged(device, tmp_path, good, work=work, original=original).status == "verified"
    verdict = judged(device, tmp_path, FASTER, work=work, original=original)
    assert stopped_by(verdict) == "G3"
    assert "leaves alone" in gate(verdict, "G3").detail
    assert "b[32]" in gate(verdict, "G3").detail


def test_reassociation_is_named_and_passes(device: Device, tmp_path: Path) -> None:
    text = source("b[:] = 2 * a + 1\nb[3] *= numpy.float32(1 + 3e-7)\nreturn 50.0", "b[i] = 1 + 2 * a[i];")
    verdict = judged(device, tmp_path, text, numeric="reassociated")
    assert verdict.status == "verified"
    assert verdict.numeric == "reassociated"
    rows = gate(verdict, "G3").data["numeric"]
    assert [row["class"] for row in rows] == ["reassociated"]
    assert rows[0]["differing"] == 1
    assert rows[0]["elements"] == 64


def wobbling(by: float, us: float) -> str:
    """Every other launch in a process gives another first element, as float atomics do."""
    return f"b[:] = 2 * a + 1\nb[0] += {by} * (state.get('n', 0) % 2)\nstate['n'] = state.get('n', 0) + 1\nreturn {us}"


def test_a_candidate_may_vary_as_the_original_does(device: Device, tmp_path: Path) -> None:
    original = source(wobbling(0.01, 100.0))
    text = source(wobbling(0.015, 50.0), "b[i] = 1 + 2 * a[i];")
    verdict = judged(device, tmp_path, text, original=original)
    assert verdict.status == "verified", judge.headline(verdict)
    assert "twice what the original's do" in gate(verdict, "G6").detail


def test_a_candidate_may_not_vary_more(device: Device, tmp_path: Path) -> None:
    original = source(wobbling(0.01, 100.0))
    verdict = judged(device, tmp_path, source(wobbling(0.05, 50.0), "b[i] = 1 + 2 * a[i];"), original=original)
    assert verdict.status == "rejected"
    assert stopped_by(verdict) in ("G3", "G6")


def test_slower_at_one_shape_is_no_win(device: Device, tmp_path: Path) -> None:
    work = workload(tmp_path, launches=2)
    text = source("b[:] = 2 * a + 1\nreturn 20.0 if c.grid[0] == 1 else 120.0", "b[i] = 1 + 2 * a[i];")
    verdict = judged(device, tmp_path, text, work=work)
    assert verdict.status == "rejected"
    assert stopped_by(verdict) == "G12"
    allowed = JudgeOptions(rounds=8, accept_slower_shapes=True)
    assert judged(device, tmp_path, text, work=work, options=allowed).faster


def test_a_win_that_a_fresh_process_does_not_show_is_not_claimed(device: Device, tmp_path: Path) -> None:
    """It counts on disk, so that it is quick in one process only."""
    mark = tmp_path / "seen"
    machine = f"""
import os
b[:] = 2 * a + 1
mark = {str(mark)!r}
if not os.path.exists(mark): open(mark, "w").write(str(os.getpid()))
return 50.0 if open(mark).read() == str(os.getpid()) else 100.0
"""
    verdict = judged(device, tmp_path, source(machine, "b[i] = 1 + 2 * a[i];"))
    assert verdict.status == "verified"
    assert not verdict.faster
    assert verdict.timing is not None
    assert verdict.timing.label == "AMBIGUOUS"
    assert verdict.timing.ratio == pytest.approx(1.0)


def test_quick_asks_the_first_gates_and_times_shortly(device: Device, tmp_path: Path) -> None:
    starts = device.starts  # type: ignore[attr-defined]
    verdict = judge.quick(device, build(tmp_path), workload(tmp_path), ORIGINAL, candidate(FASTER, ORIGINAL))
    assert verdict.status == "verified"
    assert verdict.timing is not None
    assert {g.id for g in verdict.gates if g.status == "pass"} == {"G0", "G1", "G2", "G3", "G4", "G8", "G9"}
    assert "left to the full judgement" in gate(verdict, "G6").detail
    assert verdict.record["quick"] is True
    assert device.starts == starts  # type: ignore[attr-defined]


def test_cancel_stops_a_running_kernel(device: Device, tmp_path: Path) -> None:
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    text = source("while True: time.sleep(0.01)", "while (1) ;")
    started = time.monotonic()
    with pytest.raises(Cancelled):
        judge.judge(
            device, build(tmp_path), workload(tmp_path), ORIGINAL, candidate(text, ORIGINAL), cancelled=stop.is_set
        )
    assert time.monotonic() - started < patience(3)
    assert judged(device, tmp_path, FASTER).status == "verified"  # the device lives on


def test_events_tell_every_gate(device: Device, tmp_path: Path) -> None:
    events: list[Mapping[str, Any]] = []
    made = candidate(FASTER, ORIGINAL)
    judge.judge(device, build(tmp_path), workload(tmp_path), ORIGINAL, made, options=OPTIONS, on_event=events.append)
    assert [event["id"] for event in events] == [f"G{n}" for n in range(15)]
    assert events[-1]["percentage"] == 100


def test_a_candidate_of_another_text_is_refused(device: Device, tmp_path: Path) -> None:
    made = candidate(FASTER, ORIGINAL + "\n// later\n")
    verdict = judge.judge(device, build(tmp_path), workload(tmp_path), ORIGINAL, made, options=OPTIONS)
    assert stopped_by(verdict) == "G14"


def test_a_buffer_read_in_part_counts_in_part(device: Device, tmp_path: Path) -> None:
    """64 floats at 4,800 GB/s take 5.3e-5 µs, the sixteen that matter a quarter of it."""
    after = (sum(VALUES[:16]),) * 64
    work = workload(tmp_path, after=after)
    original = source("b[:] = a[:16].sum()\nreturn 100.0")
    assert judged(device, tmp_path, source("b[:] = sum(a[:16])\nreturn 3e-5", ";"), work=work, original=original).faster
    verdict = judged(device, tmp_path, source("b[:] = sum(a[:16])\nreturn 1e-5", ";"), work=work, original=original)
    assert stopped_by(verdict) == "G11"
    assert "less than the" in gate(verdict, "G11").detail


def times(**changes: Any) -> LaunchTime:
    cycles = changes.pop("cycles", 2.0)
    timing = Timing(
        2.0,
        (1.99, 2.01),
        100,
        50,
        "x",
        "FASTER",
        cycles_ratio=cycles,
        cycles_ci=cycles and (cycles - 0.01, cycles + 0.01),
        samples=changes.pop("samples", 80),
    )
    raw = {"limits": changes.pop("limits", {})}
    return LaunchTime(0, "<<<1, 1>>>", timing, raw, changes.pop("clocks", (1980.0, 1975.0)), **changes)


@pytest.mark.parametrize(
    ("launch", "word"),
    [
        (times(), None),
        (times(clocks=None, cycles=None), None),
        (times(clocks=(1980.0, 1700.0)), "SM clock was 1980 MHz for the original and 1700"),
        (times(clocks=(1980.0, 1880.0), cycles=2.1), None),  # the faster one had the lower clock
        (times(clocks=(1880.0, 1980.0), cycles=1.9), "SM clock was 1880 MHz for the original and 1980"),
        (times(clocks=(1980.0, 1880.0), cycles=1.9), "2.000× in time but 1.900× in cycles"),
        (times(cycles=1.7), "2.000× in time but 1.700× in cycles"),
        (times(samples=16), "only 4 rounds"),
        (times(limits={"power cap": 20}), None),
        (times(limits={"thermal": 2}), None),
        (times(limits={"power cap": 20, "thermal": 3}), "slowed down (thermal) in 3 of 20 rounds"),
        (times(unsteady=10), None),
        (times(unsteady=11), "the SM clock changed during 11 of 20 rounds"),
    ],
)
def test_what_is_unfair(launch: LaunchTime, word: str | None) -> None:
    complaint = unfair((launch,))
    assert (complaint is None) == (word is None)
    assert word is None or (complaint is not None and word in complaint)
