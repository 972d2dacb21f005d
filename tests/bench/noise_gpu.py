"""How honest is a tie? Times kernels of the ten HeCBench programs against themselves again and again, and a kernel
against itself with 2 % more work, on the GPU of this machine, and prints the tables of docs/benchmarks.md.

usage: noise_gpu.py CORPUS [--only a,b] [--times 20] [--limit SECONDS] [--work FOLDER] [--out FILE]

Everything goes through the judge's own jobs and statistics: one run is a noise floor's worth of rounds once a kernel,
then `--times` comparisons of 30 rounds, each with a seed of its own. Rows are printed and written (JSON) as they come.
With --work the captures stay there, and a second run finds them. `place` and `set` tell where noise comes from: by how
much the slowest place in a round, and the slowest buffer set, differ from the median.
"""

from __future__ import annotations

import argparse
import json
import statistics as middle
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from programs import TEN, Program

from cuda_agent.capture import CaptureOptions, capture
from cuda_agent.device import Device, jobs, open_device
from cuda_agent.errors import CudaAgentError, DeviceMissing
from cuda_agent.judge import statistics
from cuda_agent.judge.timing import FLOOR_ROUNDS
from cuda_agent.model import Binary, Build, Workload
from cuda_agent.source import documents
from cuda_agent.toolchain import names
from cuda_agent.toolchain.build import find_build
from cuda_agent.workload import bundle

ROUNDS = 30
MIN_BUDGET_S = 0.3  # of one comparison
SLOWDOWNS_US = (100.0, 1000.0)
MORE_WORK = 1.02
ENOUGH = 5  # samples of a place or set before its median means something
LOOP = "(a loop)"
LOAD = """
extern "C" __global__ void work(float *out, int steps) {
  float x = threadIdx.x * 1e-3f;
  for (int i = 0; i < steps; ++i) x = fmaf(x, 0.999f, 0.5f);
  out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}
"""


@dataclass
class Row:
    program: str
    kernel: str
    us: float = 0.0
    floor: float = 0.0  # relative, from one A/A run as in a judgement
    ratios: list[float] = field(default_factory=list)
    widest: float = 0.0  # relative: the widest interval's upper end over its lower end, less one
    labels: dict[str, int] = field(default_factory=dict)
    rounds: list[int] = field(default_factory=list)
    batch: int = 0
    sets: int = 0
    late: int = 0
    limits: dict[str, int] = field(default_factory=dict)
    mhz: list[float] = field(default_factory=list)  # lowest and highest
    place: float = 0.0
    set: float = 0.0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def cells(self) -> list[str]:
        if not self.labels:
            return [self.program, self.kernel, "", "", "", "; ".join(self.notes)[:120], "", "", ""]
        ratios = f"{min(self.ratios):.4f} – {max(self.ratios):.4f}" if self.ratios else ""
        labels = ", ".join(f"{count} {label}" for label, count in sorted(self.labels.items()))
        return [
            self.program,
            self.kernel,
            f"{self.us:,.1f}",
            f"{self.floor:.2%}",
            f"{ratios} (widest {self.widest:.2%})",
            labels,
            f"{self.place:.2%}",
            f"{self.set:.2%}",
            f"{self.seconds:.1f}",
        ]


HEADINGS = ("program", "kernel", "µs", "floor", "ratios", "labels", "place", "set", "seconds")


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def compared(
    device: Device, row: Row, load: jobs.Step, a: jobs.Step, b: jobs.Step, blobs: Any, times: int, budget_s: float
) -> Row:
    """Fill the row: one A/A run for the floor, then `times` comparisons of a and b, in one job of about `budget_s`
    seconds. A GPU that refuses is a note."""
    began = time.monotonic()
    each = max(MIN_BUDGET_S, budget_s / (times + 1))
    common: dict[str, Any] = {"min_us": 20.0, "budget_s": each}
    steps = [load, jobs.time_step(a, a, rounds=FLOOR_ROUNDS, seed=7919, **common)]
    steps += [jobs.time_step(a, b, rounds=ROUNDS, seed=seed, **common) for seed in range(times)]
    try:
        _, floor, *results = device.run(jobs.Job(steps, 60 + 3 * budget_s, f"noise of {row.kernel}"), blobs)
    except CudaAgentError as error:
        row.notes.append(str(error))
        return row
    labels: Counter[str] = Counter()
    if floor["ok"]:
        row.floor = statistics.noise_floor(floor["samples"])
    us = []
    for seed, result in enumerate(results):
        if not result["ok"]:
            labels["failed"] += 1
            row.notes.append(result["error"])
            continue
        try:
            timing = statistics.compare(result["samples"], noise_floor=row.floor, seed=seed)
        except ValueError as error:
            labels["too few rounds"] += 1
            row.notes.append(str(error))
            continue
        labels[timing.label] += 1
        us.append(timing.original_us)
        row.ratios.append(timing.ratio)
        row.widest = max(row.widest, timing.ci[1] / timing.ci[0] - 1)
        row.rounds.append(result["rounds"])
        row.batch, row.sets, row.late = result["batch"], result["sets"], row.late + result["late"]
        row.limits = dict(Counter(row.limits) + Counter(result["limits"]))
    row.us = middle.median(us) if us else 0.0
    row.labels = dict(labels)
    samples = [sample for result in results if result["ok"] for sample in result["samples"]]
    clocks = [sample["clock_mhz"] for sample in samples if sample["clock_mhz"]]
    row.mhz = [min(clocks), max(clocks)] if clocks else []
    kept = [result for result in results if result["ok"]]
    row.place, row.set = _spread(kept, lambda i, _: i % 4), _spread(kept, lambda _, sample: int(sample["set"]))
    row.notes += dict.fromkeys(note for result in kept for note in result["notes"])
    row.seconds = time.monotonic() - began
    return row


def _spread(results: Sequence[Mapping[str, Any]], key: Callable[[int, Mapping[str, Any]], int]) -> float:
    """How much slower than usual the slowest group of samples is: its median, relative to the median of its run."""
    groups: dict[int, list[float]] = {}
    for result in results:
        usual = middle.median(sample["us"] for sample in result["samples"])
        for i, sample in enumerate(result["samples"]):
            groups.setdefault(key(i, sample), []).append(sample["us"] / usual)
    return max((middle.median(group) for group in groups.values() if len(group) >= ENOUGH), default=1.0) - 1


# ---------------------------------------------------------------- a known difference


def slowdown(device: Device, binary: Binary, target_us: float, times: int, budget_s: float) -> Row:
    """A kernel against itself with 2 % more steps of its loop."""
    row = Row(LOOP, f"{target_us:.0f} µs and 2 % more")
    load = jobs.load_step(binary, "load")
    blobs = {binary.sha256: binary.data}

    def fields(steps: int) -> dict[str, Any]:
        return {
            "module": "load",
            "kernel": "work",
            "grid": [device.info.sms, 1, 1],
            "block": [256, 1, 1],
            "shared": 0,
            "args": [
                {"offset": 0, "hex": "00" * 8, "pointers": [[0, 0, 0]]},
                {"offset": 8, "hex": steps.to_bytes(4, "little").hex(), "pointers": []},
            ],
            "buffers": [{"size": 4 * 256 * device.info.sms, "init": {"fill": "00"}}],
            "globals": [],
        }

    steps = 10_000
    for _ in range(2):  # the first guess is far off, and a launch costs something whatever it does
        probe = fields(steps)
        try:
            _, result = device.run(jobs.Job([load, jobs.time_step(probe, probe, rounds=5)], 60, "probe"), blobs)
        except CudaAgentError as error:
            row.notes.append(str(error))
            return row
        if not result["ok"]:
            row.notes.append(result["error"])
            return row
        steps = round(steps * target_us / middle.median(s["us"] for s in result["samples"]) / 200) * 200
    return compared(device, row, load, fields(steps), fields(round(steps * MORE_WORK)), blobs, times, budget_s)


# ---------------------------------------------------------------- the ten programs


@dataclass
class Ready:
    """A captured program: its kernels' workloads and their binary."""

    program: str
    workloads: list[Workload] = field(default_factory=list)
    binary: Binary | None = None
    note: str = ""


def prepare(program: Program, corpus: Path, work: Path, device: Device, limit_s: float) -> Ready:
    """Capture (unless an earlier run did) and compile."""
    ready = Ready(program.name)
    folder = work / program.name / f"{program.name}-cuda"
    began = time.monotonic()
    try:
        if not any((folder / ".cuda-agent" / "captures").glob("*/launch.json")):
            program.copy(corpus, folder.parent)
            run = f"make ARCH={device.info.arch} && ./main {program.gpu}"
            capture(["sh", "-c", run], folder, CaptureOptions(device="cuda", first=1, timeout=240.0))
        if time.monotonic() - began > limit_s:
            ready.note = f"no time left after {time.monotonic() - began:.0f} s of capture"
            return ready
        file = folder / "main.cu"
        ready.workloads = [
            bundle.load(path.parent) for path in sorted((folder / ".cuda-agent" / "captures").glob("*/launch.json"))
        ]
        ready.binary = device.compile(find_build(file), documents.read(file).text)
    except CudaAgentError as error:
        ready.note = str(error)
    return ready


def noise(device: Device, program: str, workload: Workload, binary: Binary, times: int, budget_s: float) -> Row:
    """A kernel's first captured launch against itself."""
    row = Row(program, workload.kernel)
    launch = workload.launches[0]
    symbol = names.match(list(binary.kernels), launch.mangled)
    if symbol is None:
        row.notes.append(f"{launch.mangled} is not in this build")
        return row
    side = jobs.launch_fields("original", launch, kernel=symbol)
    blobs = jobs.BlobSource(bundle.BlobStore(workload.blobs)).add_binary(binary)
    return compared(device, row, jobs.load_step(binary, "original"), side, side, blobs, times, budget_s)


def measure(
    device: Device,
    programs: Sequence[Ready],
    load: Binary,
    times: int,
    left: Callable[[], float],
    report: Callable[[Row], None],
) -> None:
    """All rows, each within its share of the seconds that are `left()`."""
    pending = [(ready.program, workload, ready.binary) for ready in programs for workload in ready.workloads]
    for ready in programs:
        if ready.note:
            report(Row(ready.program, "—", notes=[ready.note]))
    tasks = len(SLOWDOWNS_US) + len(pending)
    for done, target in enumerate(SLOWDOWNS_US):
        report(slowdown(device, load, target, times, left() / (tasks - done)))
    for done, (program, workload, binary) in enumerate(pending, start=len(SLOWDOWNS_US)):
        share = left() / (tasks - done)
        if binary is None or share <= 0:
            report(Row(program, workload.kernel, notes=["no time left"]))
        else:
            report(noise(device, program, workload, binary, times, share))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--limit", type=float, default=440.0, help="seconds for everything")
    parser.add_argument("--work", type=Path, help="keeps the captures")
    parser.add_argument("--out", type=Path, default=Path("build/noise.json"))
    arguments = parser.parse_args()
    began = time.monotonic()
    wanted = [p for p in TEN if not arguments.only or p.name in arguments.only.split(",")]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []

    def left() -> float:
        return float(arguments.limit - (time.monotonic() - began))

    def report(row: Row) -> None:
        rows.append(row)
        print(line(row.cells()), flush=True)
        found = {"device": asdict(device.info), "times": arguments.times, "rows": [asdict(row) for row in rows]}
        arguments.out.write_text(json.dumps(found, indent=1))

    with tempfile.TemporaryDirectory(prefix="noise-") as temporary, open_device("cuda:0") as device:
        work = arguments.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        text = Path(temporary) / "load.cu"
        text.write_text(LOAD)
        load = device.compile(Build(text, text.parent, "nvcc", ("-O3",), "default"), LOAD)
        with ThreadPoolExecutor(5) as pool:
            half = arguments.limit / 2
            ready = list(pool.map(lambda p: prepare(p, arguments.corpus, work, device, half), wanted))
        print(f"captured and compiled in {time.monotonic() - began:.0f} s on {device.info.name}", flush=True)
        print(line(HEADINGS) + "\n" + line(["---"] * len(HEADINGS)), flush=True)
        measure(device, ready, load, arguments.times, left, report)
    ties = Counter[str]()
    slower = Counter[str]()
    for row in rows:
        (slower if row.program == LOOP else ties).update(row.labels)
    print(f"\n{ties['FASTER'] + ties['SLOWER']} of {ties.total()} ties were called a difference")
    print(f"{slower['SLOWER']} of {slower.total()} slowdowns of 2 % were seen")
    held = sorted({why for row in rows for why in row.limits})
    print(f"clocks held down by: {', '.join(held) or 'nothing'}; {time.monotonic() - began:.0f} s in all")
    return 0 if ties.total() else 1


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except DeviceMissing as error:
        raise SystemExit(str(error)) from error
