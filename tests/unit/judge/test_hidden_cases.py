"""G5 over a real worker whose kernels are Python functions: what a hidden case must catch, and when it says nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cuda_agent import judge
from cuda_agent.device.client import Device
from cuda_agent.judge import JudgeOptions
from cuda_agent.judge.hidden import trials
from cuda_agent.model import GateResult, Launched, LaunchMap

from .conftest import build, candidate, source, workload


def program(machine: str, body: str = "b[i] = 2 * a[i] + 1;") -> str:
    """As `source`, with a launch whose number of blocks follows from n."""
    launch = "axpy<<<1, 64>>>(nullptr, nullptr, 64)"
    text = source(machine, body)
    assert launch in text
    return text.replace(launch, "int n = 64; axpy<<<(n + 63) / 64, 64>>>(nullptr, nullptr, n)")


ORIGINAL = program("b[:] = 2 * a + 1\nreturn 100.0")
OPTIONS = JudgeOptions(rounds=2, slower_deadline=0.0, timing_budget_s=0.1, repeats=1)


def g5(
    device: Device, folder: Path, machine: str, original: str = ORIGINAL, options: JudgeOptions = OPTIONS, **more: Any
) -> GateResult:
    """The gate's answer for a candidate of that machine code; the recorded launch has n = 64."""
    text = program(machine, "b[i] = 1 + 2 * a[i];")
    work = workload(folder, after=None, **{k: more.pop(k) for k in ("values",) if k in more})
    made = candidate(text, original, **more)
    verdict = judge.judge(device, build(folder), work, original, made, options=options)
    assert [gate.status for gate in verdict.gates[:5]] == ["pass"] * 5, judge.headline(verdict)
    return verdict.gates[5]


def left_out(gate: GateResult) -> dict[str, str]:
    """Without n = 0, for which the program's text launches no block."""
    why = {one["case"]: one["why"] for one in gate.data["left_out"]}
    assert why.pop("n = 0 (captured 64)") == "the program would launch no block"
    return why


def test_a_right_kernel_passes_and_says_what_was_tried(device: Device, tmp_path: Path) -> None:
    gate = g5(device, tmp_path, "b[:] = 2 * a + 1\nreturn 50.0")
    assert gate.status == "pass"
    assert {"n = 0 (captured 64), more blocks than needed", "n = 33 (captured 64)", "n = 129 (captured 64)"} <= set(
        gate.data["tried"]
    )
    assert sum("values: " in name for name in gate.data["tried"]) >= 10
    assert left_out(gate) == {}
    assert gate.detail.startswith(f"{len(gate.data['tried'])} hidden cases agree (")


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        ("m = n // 32 * 32\nb[:m] = 2 * a[:m] + 1", r"n = 33 (captured 64): b[32]: expected"),
        ("b[:] = 2 * a + 1\nif 0 < n < 64: floats(y, 64)[n:] = 0", "writes out of bounds"),
        ("b[:] = 2 * a + 1\nif n == 31: b[30] = 7", "n = 31 (captured 64): b[30]: expected"),
        (
            "b[:] = 2 * a + 1\nif n == 0: floats(y, 1)[0] = 7",
            "more blocks than needed: the candidate writes b[0]",
        ),
        ("b[:] = 2 * a + 1\nif n > 64: b[64] = 7", "n = 129 (captured 64): b[64]: expected"),
        ("b[:] = 2 * numpy.clip(a, -21, 43) + 1", "values: heavy tail: b["),
        ("b[:] = 2 * numpy.nan_to_num(a, nan=0, posinf=numpy.inf) + 1", "values: a few NaN: b["),
        ("b[:] = 2 * a + 1\nif (a == a[0]).all(): b[:] = 0", "values: "),
        (
            "b[:] = numpy.where(numpy.abs(a) < 1e-30, 0, 2 * a) + 1\nif n and abs(a[0]) < 1e-30: b[0] = 0",
            "values: zeros",
        ),
        ("b[:] = 2 * a + 1\nif n == 1: raise StepFailed('too many resources')", "cannot be launched"),
        (
            "b[:] = 2 * a + 1\nif n == 3: raise DeviceFault('CUDA_ERROR_ILLEGAL_ADDRESS')",
            "crashed on n = 3 (captured 64)",
        ),
    ],
)
def test_what_is_wrong_elsewhere_is_named(device: Device, tmp_path: Path, machine: str, says: str) -> None:
    gate = g5(device, tmp_path, machine + "\nreturn 50.0")
    assert gate.status == "fail"
    assert says in gate.detail


@pytest.mark.parametrize(
    ("varied", "mapping", "tried", "stopped"),
    [
        (frozenset({0, 1}), LaunchMap(), True, True),  # pointers change from launch to launch
        (frozenset({2}), LaunchMap(), False, False),  # it may have had fewer elements
        (None, LaunchMap(), False, False),
        (frozenset(), LaunchMap(seen=True), False, False),  # how the candidate is launched there is not known
    ],
)
def test_a_shape_that_was_not_recorded(
    device: Device, tmp_path: Path, varied: frozenset[int] | None, mapping: LaunchMap, tried: bool, stopped: bool
) -> None:
    work = workload(tmp_path, after=None)
    shapes = frozenset(Launched(work.launches[0].mangled, (1, 1, 1), (x, 1, 1), 0) for x in (64, 128))
    work = replace(work, varied=varied, shapes=shapes)
    machine = "b[:] = 2 * a + 1\nif c.block[0] == 128: b[3] = 7\nreturn 50.0"
    made = candidate(program(machine, "b[i] = 1 + 2 * a[i];"), ORIGINAL, launch=mapping)
    gate = judge.judge(device, build(tmp_path), work, ORIGINAL, made, options=OPTIONS).gates[5]
    name = "arguments as recorded, launched as <<<1, 128>>>"
    assert (name in gate.data["tried"]) == tried
    assert (gate.status == "fail") == stopped
    assert (f"{name}: b[3]: expected" in gate.detail) == stopped


def test_where_the_original_is_not_clean_nothing_is_said(device: Device, tmp_path: Path) -> None:
    """It ends the worker at one size, is refused at another, writes beside its buffer at a third."""
    original = program(
        "b[:] = 2 * a + 1\n"
        "if n == 3: raise DeviceFault('CUDA_ERROR_ILLEGAL_ADDRESS')\n"
        "if n == 31: raise StepFailed('too many resources')\n"
        "if n == 5: floats(y, 6)[5] = 1\n"
        "return 100.0"
    )
    gate = g5(device, tmp_path, "b[:] = 2 * a + 1\nif n in (3, 5, 31): b[:] = 7\nreturn 50.0", original)
    assert gate.status == "pass"
    why = left_out(gate)
    assert why.keys() == {f"n = {n} (captured 64)" for n in (3, 5, 31)}
    assert "crashes" in why["n = 3 (captured 64)"]
    assert "out of bounds" in why["n = 5 (captured 64)"]
    assert "too many resources" in why["n = 31 (captured 64)"]
    assert "4 left out: " in gate.detail


def test_after_a_few_dead_workers_the_rest_is_left_out(device: Device, tmp_path: Path) -> None:
    original = program("b[:] = 2 * a + 1\nif n < 64: raise DeviceFault('CUDA_ERROR_ILLEGAL_ADDRESS')\nreturn 100.0")
    starts = device.starts  # type: ignore[attr-defined]
    gate = g5(device, tmp_path, "b[:] = 2 * a + 1\nreturn 50.0", original)
    assert gate.status == "pass"
    assert device.starts - starts <= 4  # type: ignore[attr-defined]  # one of them for the timing
    why = list(left_out(gate).values())
    assert why.count("the original itself crashes there") == 3
    assert why.count("the original had ended too many workers") >= 10


def test_an_original_that_does_not_end_is_left_out(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuda_agent.judge.hidden.trials.DEADLINE_S", {"cuda": 1.0})
    original = program("b[:] = 2 * a + 1\nif n == 3: time.sleep(60)\nreturn 100.0")
    gate = g5(device, tmp_path, "b[:] = 2 * a + 1\nreturn 50.0", original)
    assert gate.status == "pass"
    assert "does not end" in left_out(gate)["n = 3 (captured 64)"]


SUM = "s = numpy.float32(0)\nfor v in a: s = s + v\nb[:] = s\nreturn 100.0"
# In the recorded order neighbours cancel and every sum is exact; in other orders partial sums lose the halves.
VALUES = tuple((-1.0) ** i * (2**22 - i // 2) + 0.5 * (i % 2) for i in range(64))


def test_rounding_on_made_up_values_is_no_fault(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum over numbers of both signs nearly cancels: the order of adding shows beyond the numeric rule."""
    exact = "import math\nb[:] = numpy.float32(math.fsum(a.astype(float)))\nreturn 50.0"
    gate = g5(device, tmp_path, exact, program(SUM), values=VALUES, numeric="reassociated")
    assert gate.status == "pass", gate.detail
    monkeypatch.setattr("cuda_agent.judge.hidden.trials.is_rounding", lambda hidden, outcome: False)
    gate = g5(device, tmp_path, exact, program(SUM), values=VALUES, numeric="reassociated")
    assert gate.status == "fail"


def test_a_term_left_out_is_not_rounding(device: Device, tmp_path: Path) -> None:
    wrong = (
        "import math\nm = n if n <= 64 else n - 1\nb[:] = numpy.float32(math.fsum(a[:m].astype(float)))\nreturn 50.0"
    )
    gate = g5(device, tmp_path, wrong, program(SUM), values=VALUES, numeric="reassociated")
    assert gate.status == "fail"
    assert "n = 129 (captured 64)" in gate.detail


def test_overflow_of_the_original_is_left_to_equal_orders(device: Device, tmp_path: Path) -> None:
    """1e15 to the fourth is infinite in the original; the candidate squares twice and is not to blame for it."""
    original = program("with numpy.errstate(all='ignore'): b[:] = a * a * a * a\nreturn 100.0")
    machine = "with numpy.errstate(all='ignore'): b[:] = (a * a) * (a * a)\nreturn 50.0"
    gate = g5(device, tmp_path, machine, original, numeric="reassociated")
    assert gate.status == "pass", gate.detail
    ((name, why),) = left_out(gate).items()
    assert name.endswith("values: huge")
    assert "not finite" in why


def test_values_are_tried_at_the_recorded_size_where_no_smaller_one_is_clean(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuda_agent.judge.hidden.plan.SMALL_BYTES", 0)
    monkeypatch.setattr("cuda_agent.judge.hidden.plan.BASE", {1: 16})
    original = program("b[:] = 2 * a + 1\nif n < 64: raise StepFailed('too few')\nreturn 100.0")
    gate = g5(device, tmp_path, "b[:] = 2 * a + 1\nreturn 50.0", original)
    assert gate.status == "pass"
    assert left_out(gate)["n = 16 (captured 64), values: normal"].endswith("too few")
    assert "sizes as recorded <<<1, 64>>>, values: normal" in gate.data["tried"]


def test_the_budget_ends_it(device: Device, tmp_path: Path) -> None:
    gate = g5(
        device, tmp_path, "b[:] = 2 * a + 1\nreturn 50.0",
        options=JudgeOptions(rounds=2, slower_deadline=0.0, timing_budget_s=0.1, hidden_budget_s=-1.0),
    )  # fmt: skip
    assert gate.status == "not-run"
    assert not gate.undecided
    assert "no time was left" in gate.detail


def test_the_number_of_cases_has_an_end(device: Device, tmp_path: Path) -> None:
    gate = g5(
        device, tmp_path, "b[:] = 2 * a + 1\nreturn 50.0",
        options=JudgeOptions(rounds=2, slower_deadline=0.0, timing_budget_s=0.1, hidden_cases=5),
    )  # fmt: skip
    assert gate.status == "pass"
    assert len(gate.data["tried"]) == 5
    assert set(left_out(gate).values()) == {"enough cases"}


def test_a_few_cases_are_of_every_kind(device: Device, tmp_path: Path) -> None:
    """What little time there is goes to all of them."""
    options = JudgeOptions(rounds=2, slower_deadline=0.0, timing_budget_s=0.1, hidden_cases=3)
    gate = g5(device, tmp_path, "b[:] = 2 * a + 1\nreturn 50.0", options=options)
    assert gate.data["tried"] == [
        "sizes as recorded <<<1, 64>>>, values: a few NaN",
        "n = 33 (captured 64)",
        "n = 0 (captured 64), more blocks than needed",
    ]


def test_what_would_take_too_long_is_passed_over(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dear values do not take the time of the cheap sizes behind them."""
    monkeypatch.setattr(trials, "_expected", lambda case, trial: 1000.0 if trial.family else 0.0)
    gate = g5(device, tmp_path, "b[:] = 2 * a + 1\nreturn 50.0")
    assert gate.status == "pass"
    assert not any("values" in name for name in gate.data["tried"])
    why = left_out(gate)
    assert set(why.values()) == {"no time was left for it"}
    assert all("values" in name for name in why)


@pytest.mark.parametrize(("seconds", "tried"), [(6.0, ["n = 33 (captured 64)"]), (9.0, [])])
def test_where_all_are_too_large_one_is_tried(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, tried: list[str]
) -> None:
    """Of another size: buffers of which the kernel's reach is not understood are large whatever the size."""
    monkeypatch.setattr(trials, "_expected", lambda case, trial: seconds)
    options = JudgeOptions(rounds=2, slower_deadline=0.0, timing_budget_s=0.1, hidden_budget_s=4.0)
    gate = g5(device, tmp_path, "b[:] = 2 * a + 1\nreturn 50.0", options=options)
    assert gate.data["tried"] == tried
    assert gate.status == ("pass" if tried else "not-run")


def test_a_second_candidate_uses_what_the_original_did(device: Device, tmp_path: Path) -> None:
    """The original's answers on hidden cases are kept: its machine code counts its own launches."""
    original = program("state['n'] = state.get('n', 0) + 1\nb[:] = 2 * a + 1\nreturn 100.0")
    first = g5(device, tmp_path, "b[:] = 2 * a + 1\nreturn 50.0", original)
    second = g5(device, tmp_path, "b[:] = 1 + 2 * a\nreturn 50.0", original)
    assert first.data["tried"] == second.data["tried"]


def test_quick_leaves_it_to_the_full_judgement(device: Device, tmp_path: Path) -> None:
    made = candidate(program("b[:] = 2 * a + 1\nreturn 50.0", "b[i] = 1 + 2 * a[i];"), ORIGINAL)
    verdict = judge.quick(device, build(tmp_path), workload(tmp_path), ORIGINAL, made, options=OPTIONS)
    assert verdict.gates[5].status == "not-run"
    assert verdict.gates[5].detail == "left to the full judgement"
