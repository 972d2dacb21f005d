"""Ten HeCBench programs without a GPU: built by the emulator's nvcc with their own Makefiles, run, captured,
replayed and optimised.

usage: emulator_programs.py CORPUS [--only a,b] [--budget SECONDS] [--no-optimize] [--out FOLDER]

CORPUS is HeCBench's `src`. A row for each program: whether it builds and passes its own check under
`cuda-agent capture --device emulator`, how many launches were recorded and replay equal (bit-equal, or within the
spread of six runs of the original where it uses float atomics), the kernels with a verified proposal of evidence level
`emulated`, and seconds. The sums stand at the end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from programs import TEN, Program

from cuda_agent.device import Device, jobs, open_device
from cuda_agent.errors import CudaAgentError
from cuda_agent.model import Launch, Workload
from cuda_agent.toolchain.build import find_build
from cuda_agent.workload import bundle

AGENT = [sys.executable, "-m", "cuda_agent.cli"]
RUNS = 6  # of the original, for its spread
FLOATS = ("f64", "f32", "f16", "bf16")


@dataclass
class Row:
    name: str
    builds: bool = False
    check: bool = False
    launches: int = 0
    captured: int = 0
    replayed: int = 0
    how: set[str] = field(default_factory=set)
    proposals: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def call(arguments: list[str], cwd: Path, log: Path, timeout: float) -> dict[str, Any]:
    """One subcommand with --json; its stderr goes to the log."""
    with log.open("a", encoding="utf-8") as file:
        try:
            done = subprocess.run(
                [*AGENT, *arguments],
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"more than {timeout:.0f} s"}
    try:
        return dict(json.loads(done.stdout))
    except json.JSONDecodeError:
        return {"error": done.stdout[-300:] or f"exit code {done.returncode}"}


def capture(program: Program, folder: Path, row: Row, log: Path) -> None:
    run = " && ".join(["make ARCH=sm_90", *(f"./main {arguments}".strip() for arguments in program.emulator)])
    stop = "--no-stop" if program.ends else "--stop"
    report = call(["capture", "--device", "emulator", "--json", stop, "--", "sh", "-c", run], folder, log, 240)
    output = report.get("output", "")
    text, least = program.passed
    row.builds = report.get("builds", 0) > 0 and report.get("launches", 0) > 0
    row.check = (
        output.count(text) >= least and "FAIL" not in output and (report.get("exit_code") == 0 or not program.ends)
    )
    row.launches, row.captured = report.get("launches", 0), report.get("recorded", 0)
    if report.get("stopped"):
        row.notes.append(f"ended after its launches were recorded, {output.count(text)} × {text!r} until then")
    if "error" in report:
        row.notes.append(str(report["error"])[:200])


def replay(device: Device, folder: Path, row: Row) -> None:
    """Every captured launch again, from the text as it is, against what the program's own launch left."""
    source = folder / "main.cu"
    binary = device.compile(find_build(source), source.read_text(encoding="utf-8"))
    for captured in sorted((folder / ".cuda-agent" / "captures").glob("*/launch.json")):
        workload = bundle.load(captured.parent)
        for launch in workload.launches:
            how = replay_one(device, binary, workload, launch)
            if how.startswith("differs"):
                row.notes.append(f"{workload.kernel}: {how}")
            else:
                row.replayed += 1
                row.how.add(how)


def replay_one(device: Device, binary: Any, workload: Workload, launch: Launch) -> str:
    kinds = [*bundle.signature(launch), *["bytes"] * len(launch.globals)]
    everything = [{"buffer": number, "dtype": kind} for number, kind in enumerate(kinds)]
    steps = [
        jobs.load_step(binary),
        *(jobs.launch_step(f"run {i}", binary.sha256, launch) for i in range(RUNS)),
        jobs.compare_after_step("run 0", launch, kinds),
        *(jobs.compare_step("run 0", f"run {i}", everything) for i in range(1, RUNS)),
    ]
    blobs = jobs.BlobSource(bundle.BlobStore(workload.blobs)).add_binary(binary)
    results = device.run(jobs.Job(steps, deadline_s=120.0, tag=workload.kernel), blobs)
    failed = next((result["error"] for result in results if not result["ok"]), None)
    if failed is not None:
        return f"differs: not replayed: {failed}"
    after, repeats = results[1 + RUNS]["buffers"], [result["buffers"] for result in results[2 + RUNS :]]
    if all(entry["equal"] for entry in after):
        return "bit-equal"
    spread = {entry["buffer"]: max(r[entry["buffer"]]["max_abs"] for r in repeats) for entry in after}
    for entry in after:
        if entry["equal"]:
            continue
        if entry["dtype"] not in FLOATS or entry["nan_mismatch"] or not entry["max_abs"] <= 2 * spread[entry["buffer"]]:
            return (
                f"differs: buffer {entry['buffer']}: {entry['differing']} elements, {entry['max_abs']}, spread {spread}"
            )
    return "within its own spread"


def optimize(folder: Path, row: Row, log: Path, budget: float) -> None:
    arguments = ["optimize", "main.cu", "--device", "emulator", "--json", "--budget", str(budget)]
    outcome = call(arguments, folder, log, budget * 6 + 120)
    for kernel in outcome.get("kernels", []):
        if kernel["status"] == "verified" and kernel["evidence_level"] == "emulated":
            row.proposals.append(f"{kernel['kernel']}: {kernel['origin']}")
    if "error" in outcome:
        row.notes.append(f"optimize: {str(outcome['error'])[:200]}")


def measure(program: Program, corpus: Path, work: Path, arguments: argparse.Namespace) -> Row:
    row = Row(program.name)
    log = arguments.out / f"{program.name}.log"
    log.unlink(missing_ok=True)
    folder = program.copy(corpus, work / program.name)
    started = time.monotonic()
    capture(program, folder, row, log)
    row.seconds["capture"] = time.monotonic() - started
    if row.captured:
        started = time.monotonic()
        try:
            with open_device("emulator") as device:
                replay(device, folder, row)
        except CudaAgentError as error:
            row.notes.append(f"replay: {error}")
        row.seconds["replay"] = time.monotonic() - started
    if row.captured and not arguments.no_optimize:
        started = time.monotonic()
        optimize(folder, row, log, arguments.budget)
        row.seconds["optimize"] = time.monotonic() - started
    return row


def show(row: Row) -> str:
    mark = {True: "yes", False: "no"}
    seconds = " + ".join(f"{what} {value:.0f}" for what, value in row.seconds.items())
    cells = [
        f"{row.name:14}",
        f"builds {mark[row.builds]:3}",
        f"check {mark[row.check]:3}",
        f"captured {row.captured:3} of {row.launches:3}",
        f"replay equal {row.replayed:3} ({', '.join(sorted(row.how)) or '-'})",
        f"proposals {len(row.proposals)} ({'; '.join(row.proposals) or '-'})",
        seconds,
    ]
    return " | ".join(cells) + "".join(f"\n{'':14}   {note}" for note in row.notes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, default=30.0)
    parser.add_argument("--no-optimize", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/bench/emulator"))
    arguments = parser.parse_args()
    arguments.out = arguments.out.absolute()
    arguments.out.mkdir(parents=True, exist_ok=True)
    wanted = [program for program in TEN if not arguments.only or program.name in arguments.only.split(",")]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="emulator-programs-") as work:
        for program in wanted:
            rows.append(measure(program, arguments.corpus, Path(work), arguments))
            print(show(rows[-1]), flush=True)
    good = [row for row in rows if row.builds and row.check]
    equal = [row for row in good if row.captured and row.replayed == row.captured]
    print(
        f"\n{len(good)} of {len(rows)} build and pass their own check; "
        f"{sum(row.captured for row in rows)} launches captured, {sum(row.replayed for row in rows)} replay equal, "
        f"{len(equal)} programs with check and every launch equal; "
        f"{sum(bool(row.proposals) for row in rows)} programs with a proposal at level emulated"
    )
    return 0 if len(equal) >= min(8, len(rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
