"""tests/bench/hecbench.py without a GPU: the scheduler over a stand-in for its processes, one program's searches on the
simulated GPU, and the numbers of the report."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cuda_agent.agent.request import Outcome
from cuda_agent.errors import DeviceError
from cuda_agent.judge import judge
from cuda_agent.workload import bundle
from simulated import SimulatedDevice, Weather

from .conftest import assemble, candidate, source, workload

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import hecbench
import hecbench_program
import hecbench_report
from development import DEVELOPMENT, Development

# What a program's processes do, by its name. Each notes when it had which GPU.
STAND_IN = r"""
import json, os, sys, time
verb, folder, task = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
name, gpu = task["program"], os.environ.get("CUDA_VISIBLE_DEVICES", "-")
def say(value): print(json.dumps(value), flush=True)
def row(kernel, ratio):
    return {"row": {"program": name, "kernel": kernel, "file": "main.cu", "launches": 2, "captured": 1, "judged": True,
        "why_not": "", "original_us": 10.0, "share": 0.5, "floor_us": 5.0, "limiter": "", "left": "", "cut": False,
        "status": "verified" if ratio else "nothing", "level": "replayed", "ratio": ratio,
        "ci": [ratio - 0.01, ratio + 0.01] if ratio else None, "label": "FASTER" if ratio else "", "rules": "restrict",
        "tried": 3, "seconds": 0.1, "message": "nothing better", "full_failed": 1, "shown_failed": 0, "diff": "-a\n+b",
        "evidence": {}}}
began = time.time()
if verb == "build":
    time.sleep(0.1)
    if name == "nobuild": sys.exit(2)
    say({"built": True})
elif verb == "capture":
    if name == "nocapture": print("Traceback", file=sys.stderr); sys.exit(1)
    time.sleep(0.2)
    say({"captured": 1})
else:
    print("no JSON")
    if "one" not in task["known"]: say(row("one", 1.5))
    if name == "crash": os.abort()
    if name == "hang": time.sleep(60)
    time.sleep(0.3)
    say(row("two", 1.2 if task["known"] else None))
    say({"done": True})
with open(os.environ["STAND_IN_LOG"], "a") as log:
    log.write(json.dumps([name, verb, gpu, began, time.time()]) + "\n")
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the bench over programs of those names; returns rows, program entries and what had which GPU when."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setattr(hecbench, "WORKER", tmp_path / "stand_in.py")
    monkeypatch.setattr(hecbench, "GRACE", 0.5)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    log = tmp_path / "log"
    monkeypatch.setenv("STAND_IN_LOG", str(log))

    def go(*names: str, gpus: int = 1, wall: float = 20.0, budget: float = 1.0, again: bool = False) -> Any:
        log.write_text("")
        for name in names:
            if name != "missing":
                (tmp_path / "corpus" / f"{name}-cuda").mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(hecbench, "DEVELOPMENT", tuple(Development(name, ("",)) for name in names))
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        arguments = argparse.Namespace(
            corpus=tmp_path / "corpus",
            out=out,
            device="cuda",
            programs="",
            gpus=gpus,
            together=1,
            budget=budget,
            wall=wall,
            capture_seconds=5.0,
            arch="sm_90",
            again=again,
        )
        hecbench.run(arguments, out / "results.jsonl")
        rows, programs = hecbench_report.read(out / "results.jsonl")
        return rows, programs, [json.loads(line) for line in log.read_text().splitlines()]

    return go


def test_a_program_that_fails_is_a_line_and_the_others_go_on(bench: Any) -> None:
    rows, programs, _ = bench("good", "missing", "nobuild", "nocapture", "crash", "fine")
    assert {name for name, entry in programs.items() if entry["error"] is None} == {"good", "fine"}
    assert "missing-cuda" in programs["missing"]["error"]
    assert "exit code 2" in programs["nobuild"]["error"]
    assert "exit code 1" in programs["nocapture"]["error"]
    assert "exit code -6" in programs["crash"]["error"]
    assert {(row["program"], row["kernel"]) for row in rows} == {
        *((name, kernel) for name in ("good", "fine") for kernel in ("one", "two")),
        ("crash", "one"),
    }
    shown = hecbench_report.table(rows, programs)
    assert "| nobuild | — |" in shown
    assert "exit code 2" in shown


def test_two_gpus_work_side_by_side_and_a_measurement_is_alone(bench: Any) -> None:
    _, programs, used = bench(*(f"p{number}" for number in range(8)), gpus=2)
    assert all(entry["done"] for entry in programs.values())
    assert {gpu for _, verb, gpu, *_ in used if verb == "optimize"} == {"0", "1"}
    for name, verb, gpu, began, ended in used:
        if verb != "optimize":
            continue
        others = [u for u in used if u[2] == gpu and (u[0], u[1]) != (name, verb)]
        assert all(other[4] <= began or other[3] >= ended for other in others), (name, others)


def test_the_wall_ends_it_and_a_second_run_does_the_rest(bench: Any) -> None:
    began = time.time()
    rows, programs, _ = bench("hang", "good", wall=3.0)
    assert time.time() - began < 10
    assert [row["kernel"] for row in rows] == ["one"]
    assert not programs["hang"]["done"]
    assert "stopped after" in programs["hang"]["error"]
    assert "good" not in programs  # too little time was left for it
    rows, programs, used = bench("good", "fine")
    assert programs["good"]["done"]
    assert programs["fine"]["done"]
    assert {name for name, *_ in used} == {"good", "fine"}
    assert {name for name, *_ in bench("good", "fine", "more")[2]} == {"more"}


def test_again_searches_where_nothing_was_verified(bench: Any) -> None:
    bench("good")
    rows, _, used = bench("good", again=True)
    assert [(row["kernel"], row["ratio"]) for row in rows] == [("one", 1.5), ("two", 1.2)]
    assert {name for name, *_ in used} == {"good"}
    assert bench("good", again=True)[2] == []


KERNEL = source("b[:] = 2 * a + 1\nreturn 51.0")
FASTER = source("b[:] = 2 * a + 1\nreturn 34.0", note="// faster")


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedDevice:
    device = SimulatedDevice(Weather(noise=0.003), 1, assemble)
    monkeypatch.setattr(hecbench_program, "open_device", lambda name: device)
    folder = tmp_path / "p-cuda"
    folder.mkdir()
    (folder / "main.cu").write_text(KERNEL.replace("int main", "__global__ void unseen(int *p) {}\nint main"))
    bundle.save(folder / ".cuda-agent" / "captures" / "axpy", workload(tmp_path))
    kernels = [
        {"kernel": "axpy", "launches": 7, "recorded": 1, "skipped": []},
        {"kernel": "cub::Reduce", "launches": 1, "recorded": 1, "skipped": []},
    ]
    (folder / hecbench_program.REPORT).write_text(json.dumps({"kernels": kernels, "why": ""}))
    return device


def optimised(tmp_path: Path, capsys: pytest.CaptureFixture[str], search: Any) -> list[dict[str, Any]]:
    task = hecbench_program.Task("p", "cuda", budget=10.0, deadline=time.time() + 60)
    hecbench_program.optimise(tmp_path / "p-cuda", task, search)
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert entries[-1]["done"]
    return [entry["row"] for entry in entries if "row" in entry]


def test_rows_of_a_program_on_the_simulated_gpu(
    tmp_path: Path, gpu: SimulatedDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    def search(request: Any, *, on_event: Any, cancelled: Any, device: Any, workload: Any) -> Outcome:
        assert request.budget_s == pytest.approx(10, abs=4)
        found = candidate(FASTER, KERNEL)
        build = hecbench_program.find_build(request.path)
        verdict = judge(device, build, workload, KERNEL, found, cancelled=cancelled)
        return Outcome("verified", "axpy", "1.5×", found, verdict, "-a\n+b", {"gates": []}, tried=2, refused=1)

    unseen, row = optimised(tmp_path, capsys, search)
    assert unseen["kernel"] == "unseen"
    assert unseen["why_not"] == "not launched in this run"
    assert (row["launches"], row["captured"], row["judged"], row["share"]) == (7, 1, True, 1.0)
    assert row["original_us"] == pytest.approx(51, rel=0.02)
    assert row["floor_us"] is not None
    assert row["limiter"] == "latency"
    assert row["left"].startswith("1 block on ")
    assert row["ratio"] == pytest.approx(1.5, rel=0.02)
    assert (row["full_failed"], row["shown_failed"], row["tried"]) == (1, 0, 2)
    assert hecbench_report.faster(row)
    n = hecbench_report.numbers([unseen, row])
    assert (n["launched"], n["judged"], n["faster"], n["mean"]) == (1, 1, 1, pytest.approx(row["ratio"]))
    assert "1.50×" in hecbench_report.table([unseen, row], {})
    assert "```diff" in hecbench_report.gallery([unseen, row])
    chart = ElementTree.fromstring(hecbench_report.chart([unseen, row, row | {"kernel": "a<b>", "status": "nothing"}]))
    words = [node.text for node in chart.iter("{http://www.w3.org/2000/svg}text")]
    assert words == ["1×", "2×", f"{row['program']}, axpy", "1.50×", f"{row['program']}, a<b>", "nothing faster"]


def test_a_search_that_breaks_is_a_row(
    tmp_path: Path, gpu: SimulatedDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    def search(*_: Any, **__: Any) -> Outcome:
        raise DeviceError("the GPU fell off the bus")

    *_, row = optimised(tmp_path, capsys, search)
    assert (row["status"], row["judged"]) == ("undecided", True)
    assert "fell off the bus" in hecbench_report.why_nothing(row)
    assert hecbench_report.gain(row) == 1.0


def test_every_program_has_a_run() -> None:
    assert len(DEVELOPMENT) == len({program.name for program in DEVELOPMENT}) == 34
    assert all(program.runs for program in DEVELOPMENT)
