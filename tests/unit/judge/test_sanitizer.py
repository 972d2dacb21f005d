"""G7 on a GPU, with stand-ins for compute-sanitizer and for the driver below the real process between them: what makes
it fail, pass, and not run."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cuda_agent import judge
from cuda_agent.device import sanitizer
from cuda_agent.device.bare import Task
from cuda_agent.device.client import Channel
from cuda_agent.device.sanitizer import Checked, Finding, Sanitizer
from cuda_agent.errors import Cancelled, ToolMissing
from cuda_agent.judge import JudgeOptions, ahead, tool_runs
from cuda_agent.judge import sanitizer as judging
from cuda_agent.judge.case import Case
from cuda_agent.judge.gates.g07_races_and_memory import RacesAndMemory
from cuda_agent.judge.sanitizer import new_findings
from cuda_agent.judge.tool_runs import KNOWN_BAD, SHOWN, bad_task
from cuda_agent.model import Binary, Build, GateResult, Workload
from fake_sanitizer import install
from patience import patience

from .conftest import HostDevice, HostTransport, build, candidate, source, workload

# What each fault is to the stand-in: the record that the real tool writes of it.
RECORDS = {
    "memcheck": ("Invalid __global__ write of size 4 bytes", "at {0}+0x90", "Address 0x7f0 is out of bounds"),
    "racecheck": ("Error: Race reported between Write access at {0}+0x90", "and Read access at {0}+0xa0 [4 hazards]"),
    "initcheck": ("Uninitialized __global__ memory read of size 4 bytes", "at {0}+0x70 in x.cu:41", "Address 0x7f0"),
    "synccheck": ("Barrier error detected. Divergent thread(s) in block.", "at {0}+0x40"),
}
TELL = f"""
def tell(tool, kernel="axpy"):
    import json, os
    if "FAKE_FINDINGS" in os.environ:
        record = "\\n    ".join({RECORDS!r}[tool]).format(kernel)
        with open(os.environ["FAKE_FINDINGS"], "a") as file:
            file.write(json.dumps({{"tool": tool, "record": record}}) + "\\n")
"""
BAD = TELL + "".join(f"def {kernel}(c, x, y, n): tell('{tool}', '{kernel}')\n" for tool, (kernel, _) in SHOWN.items())
ORIGINAL = source("b[:] = 2 * a + 1\nreturn 100.0")


class CheckedDevice(HostDevice):
    """Every kernel can tell the stand-in what it does wrong; the known-bad kernels do."""

    def compile(self, build: Build, text: str, *, untrusted: bool = False, kernel: str | None = None) -> Binary:
        machine = f"/*machine\n{BAD}*/" if text == KNOWN_BAD else text.replace("/*machine\n", f"/*machine\n{TELL}")
        return super().compile(build, machine, untrusted=untrusted, kernel=kernel)


@pytest.fixture(scope="module")
def device() -> Iterator[CheckedDevice]:
    """What the tools found of the known-bad kernels is kept for each device: this one shows them once."""
    with CheckedDevice("host", HostTransport()) as opened:
        yield opened


@pytest.fixture
def fresh() -> Iterator[CheckedDevice]:
    with CheckedDevice("host", HostTransport()) as opened:
        yield opened


@pytest.fixture(autouse=True)
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = install(tmp_path / "toolkit")
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    return path


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which everything may run at once, and ahead."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)


def asked(
    device: CheckedDevice, folder: Path, machine: str, *, original: str = ORIGINAL, work: Workload | None = None,
    options: JudgeOptions | None = None,
) -> GateResult:  # fmt: skip
    made = candidate(source(machine, "b[i] = 1 + 2 * a[i];"), original)
    case = Case(device, build(folder), work or workload(folder), original, made, options=options)
    return RacesAndMemory().check(case)


RIGHT = "b[:] = 2 * a + 1\nreturn 50.0"


def test_a_clean_kernel_passes(device: CheckedDevice, tmp_path: Path) -> None:
    result = asked(device, tmp_path, RIGHT)
    assert result.status == "pass", result.detail
    assert result.detail.startswith("compute-sanitizer's memcheck, racecheck, initcheck, synccheck find nothing on ")
    assert result.data["sanitizer"] == "2026.4.0.0"
    assert {name: tool["status"] for name, tool in result.data["tools"].items()} == dict.fromkeys(SHOWN, "clean")


def test_what_each_tool_finds_fails(device: CheckedDevice, tmp_path: Path) -> None:
    result = asked(device, tmp_path, "".join(f"tell({name!r})\n" for name in SHOWN) + RIGHT)
    assert result.status == "fail"
    for name, (_, kind) in SHOWN.items():
        assert f"{name}: {kind} in axpy" in result.detail
    assert "initcheck: uninitialised global read in axpy at line 41" in result.detail
    assert "the original does not show that" in result.detail
    assert [(f["tool"], f["kind"]) for f in result.data["findings"]] == [
        (name, kind) for name, (_, kind) in SHOWN.items()
    ]


def test_a_finding_of_a_worker_that_dies_fails(device: CheckedDevice, tmp_path: Path) -> None:
    machine = "import os\nif 'FAKE_FINDINGS' in os.environ:\n    tell('memcheck')\n    ctypes.string_at(8)\n" + RIGHT
    result = asked(device, tmp_path, machine)
    assert result.status == "fail"
    assert "memcheck: out-of-bounds global write" in result.detail


def test_the_originals_own_findings(device: CheckedDevice, tmp_path: Path) -> None:
    original = source("tell('racecheck')\nb[:] = 2 * a + 1\nreturn 100.0")
    same = asked(device, tmp_path, f"tell('racecheck')\n{RIGHT}", original=original)
    assert same.status == "pass"
    assert "find nothing new on launch <<<1, 64>>>; the original itself shows shared race (racecheck); " in same.detail
    assert same.data["tools"]["racecheck"]["status"] == "as the original"
    better = asked(device, tmp_path, RIGHT, original=original)
    assert better.status == "pass"
    assert "the original itself shows shared race" in better.detail
    more = asked(device, tmp_path, f"tell('racecheck')\ntell('racecheck')\n{RIGHT}", original=original)
    assert more.status == "fail"
    other = asked(device, tmp_path, f"tell('memcheck')\n{RIGHT}", original=original)
    assert other.status == "fail"


def test_kinds_and_kernels_are_counted() -> None:
    def found(kind: str, kernel: str = "k", times: int = 1) -> list[Finding]:
        return [Finding(kind, kernel, "")] * times

    assert new_findings(found("race", times=3), found("race", times=3)) == []
    assert len(new_findings(found("race", times=3), found("race", times=2))) == 3
    assert new_findings(found("race"), found("read")) == found("race")
    assert new_findings(found("race", "a"), found("race", "b")) == found("race", "a")


def test_initcheck_sees_pure_outputs_as_nobody_wrote_them(device: CheckedDevice, tmp_path: Path) -> None:
    """An output that is read before it is written holds the captured bytes for the other tools."""
    seen = tmp_path / "seen"
    peeks = f"peek = float(b[5])\nb[:] = 2 * a + 1\nopen({str(seen)!r}, 'a').write(f'{{peek}}\\n')\nreturn 50.0"
    result = asked(device, tmp_path, peeks, work=workload(tmp_path, before=(7.0,) * 64))
    assert result.status == "pass", result.detail
    assert len(seen.read_text().split()) == 4
    assert seen.read_text().split().count("7.0") == 3
    binary = device.compile(build(tmp_path), KNOWN_BAD)
    assert {name: set(bad_task(name, binary, tmp_path).unwritten) for name in SHOWN} == {
        "memcheck": set(), "racecheck": set(), "initcheck": {1}, "synccheck": set(),
    }  # fmt: skip


# ---------------------------------------------------------------- not run


def test_a_checker_that_passes_the_known_bad_kernel(
    fresh: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODE", "blind")
    result = asked(fresh, tmp_path, f"tell('memcheck')\n{RIGHT}")
    assert (result.status, result.undecided) == ("not-run", False)
    for name, (_, kind) in SHOWN.items():
        assert f"{name} did not run: it did not find the {kind} of a known-bad kernel (nothing)" in result.detail


def test_one_tool_that_did_not_run_is_named(
    fresh: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHOWN, "synccheck", ("diverges", "something else"))
    result = asked(fresh, tmp_path, RIGHT)
    assert result.status == "not-run"
    assert result.detail.startswith("synccheck did not run: ")
    assert "; nothing new from memcheck, racecheck, initcheck; " in result.detail
    # What the others find counts all the same.
    assert asked(fresh, tmp_path, f"tell('racecheck')\n{RIGHT}").status == "fail"


def test_not_installed(device: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Sanitizer:
        raise ToolMissing(f"compute-sanitizer was not found. {sanitizer.INSTALL}")

    monkeypatch.setattr(sanitizer, "find", missing)
    result = asked(device, tmp_path, RIGHT)
    assert (result.status, result.undecided) == ("not-run", False)
    assert "pip install nvidia-cuda-sanitizer-api" in result.detail


def test_only_a_small_launch(device: CheckedDevice, tmp_path: Path) -> None:
    result = asked(device, tmp_path, RIGHT, options=JudgeOptions(checker_bytes=0))
    assert result.status == "not-run"
    assert "the smallest captured launch has 512 bytes, the checkers take at most 0, and no smaller" in result.detail
    work = workload(tmp_path, launches=3)
    small = replace(work.launches[2], grid=(1, 1, 1), block=(8, 1, 1))
    result = asked(device, tmp_path, RIGHT, work=replace(work, launches=(*work.launches[:2], small)))
    assert result.data["launch"] == 2


def test_a_derived_launch_takes_the_place_of_a_large_one(device: CheckedDevice, tmp_path: Path) -> None:
    """It has the recorded values, and the largest size that the limit allows."""
    machine = "if n == 3: tell('racecheck')\n" + RIGHT
    result = asked(device, tmp_path, machine, options=JudgeOptions(checker_bytes=100))
    assert result.status == "pass", result.detail
    assert "find nothing on n = 7 (captured 64) (derived: the smallest captured launch has 512 bytes)" in result.detail
    assert result.data["launch"] is None
    result = asked(device, tmp_path, machine, options=JudgeOptions(checker_bytes=30))
    assert result.status == "fail"
    assert result.detail.startswith("n = 3 (captured 64) (derived: ")
    assert "racecheck: shared race in axpy" in result.detail


def test_a_large_launch_is_taken_where_none_can_be_derived(
    device: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the tools a launch of 100 MB takes a quarter of a minute, a derived one a second or two."""
    options = JudgeOptions(checker_quick_bytes=100)
    monkeypatch.setattr(judging, "SMALL_BYTES", 100)
    assert "find nothing on n = 7 (captured 64) (derived: " in asked(device, tmp_path, RIGHT, options=options).detail
    monkeypatch.setattr(judging, "SMALL_BYTES", 0)
    assert "find nothing on launch <<<1, 64>>>" in asked(device, tmp_path, RIGHT, options=options).detail


def test_where_the_original_is_not_clean_another_is_derived(device: CheckedDevice, tmp_path: Path) -> None:
    original = source("if n == 7: raise StepFailed('too few')\nb[:] = 2 * a + 1\nreturn 100.0")
    result = asked(device, tmp_path, RIGHT, original=original, options=JudgeOptions(checker_bytes=100))
    assert result.status == "pass", result.detail
    assert "on n = 5 (captured 64) (derived: " in result.detail


def test_a_limit_on_the_time(device: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MODE", "slow")
    started = time.monotonic()
    result = asked(device, tmp_path, RIGHT, options=JudgeOptions(checkers_timeout_s=4.0))
    assert time.monotonic() - started < patience(6)
    assert (result.status, result.undecided) == ("not-run", False)
    assert "it did not end within 2 s" in result.detail


def test_a_finding_is_not_lost_when_the_original_has_no_time(
    device: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sanitizer.check

    def check(tool: Sanitizer, name: str, on: Any, task: Task, *rest: Any) -> Checked:
        late = task.launch["module"] == "original"
        return Checked((), "it did not end within 30 s", "", 30.0) if late else real(tool, name, on, task, *rest)

    monkeypatch.setattr(sanitizer, "check", check)
    original = source("b[:] = 2 * a + 1\nreturn 101.0")
    result = asked(device, tmp_path, f"tell('racecheck')\n{RIGHT}", original=original)
    assert (result.status, result.undecided) == ("not-run", True)
    assert "racecheck did not run: it finds shared race in the candidate, and of the original: it did" in result.detail
    assert [finding["tool"] for finding in result.data["findings"]] == ["racecheck"]
    assert result.data["tools"]["memcheck"]["status"] == "clean"


def test_a_fault_fails_with_its_cause(device: CheckedDevice, tmp_path: Path) -> None:
    """Only memcheck names it; the launch faults under the others too."""
    faults = "import os\nif 'FAKE_FINDINGS' in os.environ:\n    tell('memcheck')\n    "
    result = asked(device, tmp_path, f"{faults}raise DeviceFault('CUDA_ERROR_MISALIGNED_ADDRESS')\n{RIGHT}")
    assert result.status == "fail"
    assert "memcheck: out-of-bounds global write in axpy" in result.detail
    tools = result.data["tools"]
    assert [tools[name]["status"] for name in SHOWN] == ["worse", "not run", "not run", "not run"]
    assert "CUDA_ERROR_MISALIGNED_ADDRESS" in tools["racecheck"]["why"]


def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(tool, module) of every run from now on."""
    seen: list[tuple[str, str]] = []
    real = sanitizer.check

    def check(tool: Sanitizer, name: str, on: Any, task: Task, *rest: Any) -> Checked:
        seen.append((name, task.launch["module"]))
        return real(tool, name, on, task, *rest)

    monkeypatch.setattr(sanitizer, "check", check)
    return seen


def test_a_second_candidate_pays_only_for_itself(
    fresh: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_runs, "RUNS", 4)  # too few for all at once: in the order of what is needed
    seen = runs(monkeypatch)
    racy = source("tell('racecheck')\nb[:] = 2 * a + 1\nreturn 100.0")
    work = workload(tmp_path)
    first = asked(fresh, tmp_path, RIGHT, original=racy, work=work)
    assert len(seen) == 12
    assert {module for _, module in seen[8:]} == {"original"}
    seen.clear()
    second = asked(fresh, tmp_path, f"tell('racecheck')\n{RIGHT}", original=racy, work=work)
    assert sorted(seen) == sorted((name, "candidate") for name in SHOWN)
    for result in (first, second):
        assert result.status == "pass"
        assert "; the original itself shows shared race (racecheck); " in result.detail
    seen.clear()
    asked(fresh, tmp_path, f"tell('synccheck')\n{RIGHT}", work=work)  # another original
    assert len(seen) == 8
    # The tools that found something in the candidate have the time first.
    assert seen[4] == ("synccheck", "original")


def test_the_same_instructions_are_not_run(
    device: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = runs(monkeypatch)
    result = asked(device, tmp_path, "b[:] = 2 * a + 1\nreturn 100.0")
    assert (result.status, seen) == ("pass", [])
    assert result.detail.startswith("the same instructions, launched alike")


def test_the_person_stops_it(device: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    made = candidate(source(RIGHT, "b[i] = 1 + 2 * a[i];"), ORIGINAL)
    case = Case(device, build(tmp_path), workload(tmp_path), ORIGINAL, made)
    case.baseline(0)
    case.cancelled = stop.is_set
    monkeypatch.setenv("FAKE_MODE", "slow")
    threading.Timer(1.0, stop.set).start()
    started = time.monotonic()
    with pytest.raises(Cancelled):
        RacesAndMemory().check(case)
    assert time.monotonic() - started < patience(4)


def test_only_the_full_judgement_asks(device: CheckedDevice, tmp_path: Path) -> None:
    made = candidate(source(f"tell('racecheck')\n{RIGHT}", "b[i] = 1 + 2 * a[i];"), ORIGINAL)

    def gate(verdict: Any) -> GateResult:
        return next(result for result in verdict.gates if result.id == "G7")

    work = workload(tmp_path)
    assert "left to the full judgement" in gate(judge.quick(device, build(tmp_path), work, ORIGINAL, made)).detail
    verdict = judge.judge(device, build(tmp_path), work, ORIGINAL, made, options=JudgeOptions(rounds=8))
    assert verdict.status == "rejected"
    assert gate(verdict).status == "fail"


# ---------------------------------------------------------------- at once, and ahead of the gate


def case_of(
    device: CheckedDevice, folder: Path, machine: str = RIGHT, cancelled: Callable[[], bool] | None = None
) -> Case:
    made = candidate(source(machine, "b[i] = 1 + 2 * a[i];"), ORIGINAL)
    return Case(device, build(folder), workload(folder), ORIGINAL, made, cancelled=cancelled)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + patience(20)
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def known(device: CheckedDevice) -> tuple[int, int]:
    """Tools that found their known-bad kernel, and that saw the original."""
    return len(tool_runs._proved.get(device, ())), len(tool_runs._originals.get(device, ()))


def test_all_run_at_once_where_there_is_room(
    fresh: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: None
) -> None:
    together = threading.Barrier(12)
    real = sanitizer.check

    def check(*task: Any) -> Checked:
        together.wait(patience(20))
        return real(*task)

    monkeypatch.setattr(sanitizer, "check", check)
    assert asked(fresh, tmp_path, RIGHT).status == "pass"


def test_what_turns_out_not_to_be_needed_is_not_waited_for(
    device: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: None
) -> None:
    real, ended = sanitizer.check, []

    def check(tool: Sanitizer, name: str, on: Any, task: Task, left: float, cancelled: Callable[[], bool]) -> Checked:
        if task.launch["module"] == "original":
            until(cancelled)
            ended.append(name)
            raise Cancelled("stopped")
        return real(tool, name, on, task, left, cancelled)

    monkeypatch.setattr(sanitizer, "check", check)
    original = source("b[:] = 2 * a + 1\nreturn 102.0")
    fails = "import os\nif 'FAKE_FINDINGS' in os.environ: raise StepFailed('not here')\n" + RIGHT
    result = asked(device, tmp_path, fails, original=original)
    assert (result.status, sorted(ended)) == ("not-run", sorted(SHOWN))


def test_the_original_has_run_when_the_gate_asks(
    fresh: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: None
) -> None:
    seen, case = runs(monkeypatch), case_of(fresh, tmp_path)
    with ahead.begun(case):
        until(lambda: known(fresh) == (4, 3))
        assert ("initcheck", "original") not in seen  # which buffers are pure outputs an earlier gate finds out
        case.baseline(0)
        until(lambda: known(fresh) == (4, 4))
        seen.clear()
        result = RacesAndMemory().check(case)
    assert result.status == "pass", result.detail
    assert sorted(seen) == sorted((name, "candidate") for name in SHOWN)


def test_the_gate_waits_for_what_is_under_way(
    fresh: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: None
) -> None:
    seen, go, real = runs(monkeypatch), threading.Event(), sanitizer.check

    def check(tool: Sanitizer, name: str, on: Any, task: Task, *rest: Any) -> Checked:
        checked = real(tool, name, on, task, *rest)
        if task.launch["module"] == "candidate":
            go.set()
        elif name == "racecheck":
            assert go.wait(patience(20))
        return checked

    monkeypatch.setattr(sanitizer, "check", check)
    case = case_of(fresh, tmp_path)
    with ahead.begun(case):
        case.baseline(0)
        until(lambda: known(fresh) == (3, 3))
        result = RacesAndMemory().check(case)
    assert result.status == "pass", result.detail
    assert len(seen) == len(set(seen)) == 12


def test_the_candidate_does_not_queue_behind_what_began_ahead(
    fresh: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: None
) -> None:
    monkeypatch.setattr(tool_runs, "RUNS", 2)
    go, waiting, real = threading.Event(), list[str](), sanitizer.check

    def check(tool: Sanitizer, name: str, on: Any, task: Task, *rest: Any) -> Checked:
        if task.launch["module"] == "original":
            waiting.append(name)
            assert go.wait(patience(20))
        elif task.launch["module"] == "candidate":
            go.set()
        return real(tool, name, on, task, *rest)

    monkeypatch.setattr(sanitizer, "check", check)
    case = case_of(fresh, tmp_path)
    with ahead.begun(case):
        until(lambda: len(waiting) == 2)
        result = RacesAndMemory().check(case)
    assert result.status == "pass", result.detail


def test_what_went_wrong_ahead_is_run_again(
    fresh: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: None
) -> None:
    wrong, real = {("memcheck", "original"), ("synccheck", "bad")}, sanitizer.check

    def check(tool: Sanitizer, name: str, on: Any, task: Task, *rest: Any) -> Checked:
        run = name, task.launch["module"]
        if run in wrong:
            wrong.remove(run)
            return Checked((), "CUDA_ERROR_OUT_OF_MEMORY", "", 0.1)
        return real(tool, name, on, task, *rest)

    monkeypatch.setattr(sanitizer, "check", check)
    case = case_of(fresh, tmp_path)
    with ahead.begun(case):
        case.baseline(0)
        until(lambda: known(fresh) == (3, 3))
        assert not wrong
        result = RacesAndMemory().check(case)
    assert result.status == "pass", result.detail


def test_a_tool_that_is_missing_is_the_gates_to_say(
    fresh: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: None
) -> None:
    def missing() -> Sanitizer:
        raise ToolMissing("compute-sanitizer was not found")

    monkeypatch.setattr(sanitizer, "find", missing)
    case = case_of(fresh, tmp_path)
    with ahead.begun(case):
        assert case.checkers is not None
        assert RacesAndMemory().check(case).detail.startswith("compute-sanitizer was not found")


def test_nothing_runs_ahead_on_few_cores_or_beside_large_launches(
    device: CheckedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: None
) -> None:
    monkeypatch.setattr(tool_runs.Runs, "begin", lambda runs: None)

    def begins(**options: Any) -> bool:
        case = case_of(device, tmp_path)
        case.options = JudgeOptions(**options)
        with ahead.begun(case):
            return case.checkers is not None

    assert begins()
    assert not begins(checker_quick_bytes=100)  # G5 derives one
    monkeypatch.setattr(ahead, "COPIES", 1 << 40)
    assert not begins()
    monkeypatch.setattr(ahead, "COPIES", 16)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert not begins()


@pytest.fixture
def processes(fresh: CheckedDevice, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of every run, under a tool that takes a minute to start; all must be gone at the end, and their folders."""
    monkeypatch.setenv("FAKE_MODE", "slow")
    pids: list[int] = []
    real = fresh.bare

    def bare(folder: Path, before: Sequence[str] = ()) -> Channel:
        channel = real(folder, before)
        pids.append(channel.pid)
        return channel

    monkeypatch.setattr(fresh, "bare", bare)
    return pids


def gone(pids: list[int], temporary: Path) -> bool:
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, 0)
    return bool(pids) and not [path for path in temporary.iterdir() if path.name.startswith("cuda-agent-")]


def test_they_end_with_the_judgement(
    fresh: CheckedDevice, processes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: None
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ahead.begun(case_of(fresh, tmp_path)):
        until(lambda: len(processes) == 7)
        started = time.monotonic()
    assert time.monotonic() - started < patience(2)
    assert gone(processes, tmp_path)
    assert known(fresh) == (0, 0)


def test_they_end_when_the_gate_does_not_need_them(
    fresh: CheckedDevice, processes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: None
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    case = case_of(fresh, tmp_path, "b[:] = 2 * a + 1\nreturn 100.0")
    with ahead.begun(case):
        until(lambda: len(processes) == 7)
        assert RacesAndMemory().check(case).detail.startswith("the same instructions")
        assert gone(processes, tmp_path)


def test_they_end_when_the_person_stops_it(
    fresh: CheckedDevice, processes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: None
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    case = case_of(fresh, tmp_path)
    with pytest.raises(Cancelled):
        judge.judge(fresh, case.build, case.workload, ORIGINAL, case.candidate, cancelled=lambda: len(processes) >= 7)
    assert gone(processes, tmp_path)
