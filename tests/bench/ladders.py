"""Expert ladders: how much of the gain from a first kernel to the expert's best do the rules recover?

usage: ladders.py CORPUS [--out FOLDER] [--only a,b] [--wall SECONDS] [--build-only]

CORPUS holds `llm.c` (karpathy/llm.c) and `cuda-samples` (NVIDIA/cuda-samples), fetched by hand. Each program is built
as its own comment says, its first kernels captured and optimised without a model, those that cost most first, the
verified edits written into the file, and that built again. Then the program's own benchmark times all three, first,
ours and the expert's versions, one after the other, at its best block size; its own check must pass. Recovered is
log(first / ours) / log(first / best), the best one being of the first one's precision. `ladders.md` and `ladders.jsonl`
are written. With `--build-only` everything is built and nothing runs: that needs no GPU.

Of the expert's versions those are raced that were among the best on an H200 (2026-11-30): the programs' own benchmarks
take most of the time.

The wall time is shared out among the ladders by their kernels, a ladder's among its kernels by what they cost. Before
the search the first version runs once: so much time for each version is kept for the race, which has a second turn
where there is time for one.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent.agent.loop import optimize
from cuda_agent.agent.opening import opened
from cuda_agent.agent.program import part_of, shares
from cuda_agent.agent.request import Outcome, Request
from cuda_agent.capture import CaptureOptions, NothingCaptured, capture
from cuda_agent.device import Device, open_device
from cuda_agent.device.turn import turn
from cuda_agent.errors import CudaAgentError
from cuda_agent.source import documents
from cuda_agent.workload import bundle

SUMMED = 4 * 2**24 / 1e3  # bytes that reduction reads, and microseconds of a gigabyte a second
BLOCK_SIZES = r"block_size\s+\d+ \| time\s+([\d.]+) ms"
RUN_SECONDS, BUILD_SECONDS, TURNS = 150.0, 240.0, 2
SEARCHED = 0.75  # of the time until the race; the rest is there for verdicts that take longer than expected


@dataclass(frozen=True)
class Version:
    """One rung: its command, and what of its output is its time; the least of all matches counts."""

    name: str
    command: str
    pattern: str
    work: float = 0.0  # the number is a throughput, and this divided by it the microseconds; 0: it is milliseconds

    def microseconds(self, number: float) -> float:
        return self.work / number if self.work else 1000 * number


@dataclass(frozen=True)
class Ladder:
    name: str
    root: str  # folder of the corpus that is copied
    folder: str  # in it, where the program is built and run
    file: str
    build: str
    kernels: tuple[str, ...]  # of the first version
    first: Version
    experts: tuple[Version, ...]  # of the first one's precision
    smaller: tuple[tuple[str, str], ...] = ()  # edits of constants in the file: launches below the capture's cap, and
    # fewer repetitions, of all versions alike
    passed: str = "All results match"
    launches: int = 2  # captured of each kernel; one where it moves hundreds of megabytes


def _llm(name: str, kernels: tuple[str, ...], experts: tuple[int, ...], **more: Any) -> Ladder:
    return Ladder(
        name,
        "llm.c",
        "dev/cuda",
        f"{name}.cu",
        f"nvcc -O3 --use_fast_math -arch={{arch}} {name}.cu -o {name} -lcublas -lcublasLt",
        kernels,
        Version("kernel 1", f"./{name} 1", BLOCK_SIZES),
        tuple(Version(f"kernel {number}", f"./{name} {number}", BLOCK_SIZES) for number in experts),
        **more,
    )


def _transpose(label: str) -> Version:
    return Version(label, "./transpose -dimX=4096 -dimY=4096", rf"transpose {label}\s*, .*?Time = ([\d.]+) ms")


def _reduction(number: int) -> Version:
    return Version(f"kernel {number}", f"./reduction --kernel={number}", r"Throughput = ([\d.]+) GB/s", work=SUMMED)


FEWER = ("int repeat_times = 100;", "int repeat_times = 20;")
LADDERS = (
    _llm("layernorm_forward", ("layernorm_forward_kernel1",), (5, 6)),
    _llm(
        "softmax_forward",
        ("softmax_forward_kernel1",),
        (7, 8),
        smaller=(("int T = 1024;", "int T = 64;"), FEWER),
        launches=1,
    ),
    _llm(
        "attention_forward",
        ("attention_query_key_kernel1", "attention_softmax_kernel1", "attention_value_kernel1"),
        (4,),
        smaller=(("int B = 8;", "int B = 2;"), FEWER),
        launches=1,
    ),
    Ladder(
        "transpose",
        "cuda-samples",
        "Samples/6_Performance/transpose",
        "transpose.cu",
        "nvcc -O3 -std=c++17 -arch={arch} -I../../../Common transpose.cu -o transpose",
        ("transposeNaive",),
        _transpose("naive"),
        tuple(map(_transpose, ("coalesced", "optimized"))),
        passed="Test passed",
    ),
    Ladder(
        "reduction",
        "cuda-samples",
        "Samples/2_Concepts_and_Techniques/reduction",
        "reduction_kernel.cu",
        "nvcc -O3 -std=c++17 -arch={arch} -I../../../Common reduction.cpp reduction_kernel.cu -o reduction",
        ("reduce0",),
        _reduction(0),
        tuple(map(_reduction, (5, 6))),
        passed="Test passed",
    ),
)


@dataclass
class Climbed:
    """What became of one ladder. Times are microseconds by the program's own benchmark."""

    ladder: str
    first: float | None = None
    ours: float | None = None
    best: float | None = None
    best_name: str = ""
    rules: dict[str, str] = field(default_factory=dict)  # kernel → rules, or why there is nothing
    ratios: dict[str, float] = field(default_factory=dict)  # kernel → the judge's own number
    searched: dict[str, str] = field(default_factory=dict)  # kernel → seconds given and taken, candidates
    diff: str = ""
    error: str = ""
    turns: int = 0  # of the race
    seconds: float = 0.0

    @property
    def recovered(self) -> float | None:
        """None where something is missing, or the expert gained nothing."""
        if self.first is None or self.ours is None or self.best is None or self.best >= self.first:
            return None
        return max(0.0, math.log(self.first / self.ours)) / math.log(self.first / self.best)


# ---------------------------------------------------------------- one ladder


def prepare(ladder: Ladder, corpus: Path, work: Path, arch: str) -> Path:
    """A copy with its constants changed, built while the compiler commands are recorded. Its folder. Raises OSError,
    CudaAgentError, RuntimeError when it does not build."""
    root = work / ladder.name
    ignored = shutil.ignore_patterns(".git", "*.o", ".cuda-agent")
    if ladder.root == "cuda-samples":  # the folder of the sample and what all samples share
        for part in ("Common", ladder.folder):
            shutil.copytree(corpus / ladder.root / part, root / part, ignore=ignored)
    else:
        shutil.copytree(corpus / ladder.root, root, ignore=ignored)
    folder = root / ladder.folder
    text = documents.read(folder / ladder.file).text
    for old, new in ladder.smaller:
        if text.count(old) != 1:
            raise RuntimeError(f"{ladder.file} has {text.count(old)} times {old!r}: another version of it?")
        text = text.replace(old, new)
    documents.write(folder / ladder.file, text)
    command = ladder.build.format(arch=arch)
    try:
        report = capture(["sh", "-c", command], folder, CaptureOptions(device="cuda", timeout=BUILD_SECONDS))
    except NothingCaptured as nothing:  # of course: only the compiler ran
        report = nothing.report
    if report.exit_code:
        raise RuntimeError(f"{command}: exit code {report.exit_code}\n{report.output[-500:]}")
    return folder


def climb(
    ladder: Ladder,
    folder: Path,
    device: Device,
    arch: str,
    seconds: float,
    search: Callable[..., Outcome] = optimize,
) -> Climbed:
    """One ladder in so many seconds, the race included."""
    began, climbed = time.monotonic(), Climbed(ladder.name)
    end = began + seconds
    try:
        shutil.copytree(folder, first := folder.with_name(f"{folder.name}-first"))
        running = time.monotonic()
        with turn(device.uuid, alone=True):
            measure(ladder.first, first, ladder.passed)
        kept = (time.monotonic() - running) * (2 + len(ladder.experts))
        _optimise(ladder, folder, device, end - kept, search, climbed)
        build(ladder, folder, arch)
        _race(ladder, first, folder, device.uuid, end, climbed)
    except (CudaAgentError, RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        climbed.error = f"{type(error).__name__}: {error}"
    climbed.seconds = time.monotonic() - began
    return climbed


def _optimise(
    ladder: Ladder, folder: Path, device: Device, end: float, search: Callable[..., Outcome], climbed: Climbed
) -> None:
    """Captures the first version's kernels and writes what is verified into the file, one kernel after the other,
    those that cost most first."""
    file = folder / ladder.file
    wanted = "|".join(rf"\b{name}\b" for name in ladder.kernels)
    options = CaptureOptions(device="cuda", kernel=wanted, first=ladder.launches, stop=True, timeout=RUN_SECONDS)
    with turn(device.uuid, alone=False):  # others may be timing
        capture(ladder.first.command.split(), folder, options)
    found = {kernel: bundle.find(file, kernel) for kernel in ladder.kernels}
    workloads = [workload for workload in found.values() if workload is not None]
    climbed.rules |= {kernel: "not captured" for kernel, workload in found.items() if workload is None}
    cost = shares(device, opened(Request(file)), workloads)
    order = sorted(workloads, key=lambda workload: -cost.get(workload.kernel, 0.0))
    before, left = documents.read(file).text, 1.0
    for number, workload in enumerate(order):
        kernel, share = workload.kernel, cost.get(workload.kernel)
        seconds = SEARCHED * (end - time.monotonic()) * part_of(share, left, len(order) - number)
        left = max(1e-9, left - (share or 0.0))
        if seconds <= 0:
            climbed.rules[kernel] = "no time was left"
            continue
        began = time.monotonic()
        request = Request(file, kernel=kernel, budget_s=seconds, max_candidates=10_000)
        try:
            outcome = search(
                request,
                device=device,
                workload=workload,
                cancelled=lambda: time.monotonic() > end,
                on_event=_note,
            )
        except CudaAgentError as error:
            climbed.rules[kernel] = f"{type(error).__name__}: {error}"
            device.restart()
            continue
        finally:
            taken = time.monotonic() - began
            part = "" if share is None else f"{share:.0%} of the time, "
            climbed.searched[kernel] = f"{part}{seconds:.0f} s given, {taken:.0f} s taken"
        climbed.searched[kernel] += f", {outcome.tried} tried"
        if outcome.status != "verified" or outcome.candidate is None or outcome.verdict is None:
            climbed.rules[kernel] = f"{outcome.status}: {outcome.message}"
            continue
        climbed.rules[kernel] = outcome.candidate.origin.removeprefix("rule:")
        if outcome.verdict.timing is not None:
            climbed.ratios[kernel] = outcome.verdict.timing.ratio
        documents.write(file, outcome.candidate.text)
        climbed.diff += f"--- {number + 1}: {kernel}\n{outcome.diff}"
    if documents.read(file).text == before:
        climbed.diff = ""


def _race(ladder: Ladder, first: Path, ours: Path, gpu: str, end: float, climbed: Climbed) -> None:
    """All versions by the program's own benchmark, one after the other, each alone on the GPU as far as we use it; and
    once more where the time until `end` allows."""
    best: dict[str, float] = {}
    for number in range(TURNS):
        began = time.monotonic()
        for name, version, folder in (
            ("first", ladder.first, first),
            ("ours", ladder.first, ours),
            *((version.name, version, first) for version in ladder.experts),
        ):
            with turn(gpu, alone=True):
                best[name] = min(best.get(name, math.inf), measure(version, folder, ladder.passed))
        climbed.turns = number + 1
        if end - time.monotonic() < time.monotonic() - began:
            break
    climbed.first, climbed.ours = best.pop("first"), best.pop("ours")
    climbed.best_name, climbed.best = min(best.items(), key=lambda item: item[1])


def measure(version: Version, folder: Path, passed: str) -> float:
    """The least time that the version's own benchmark prints, in microseconds. Raises RuntimeError when its check did
    not pass."""
    done = subprocess.run(
        version.command.split(), cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    if done.returncode or passed not in done.stdout:
        tail = (done.stdout + done.stderr)[-300:]
        raise RuntimeError(f"{version.command} ({version.name}) did not pass its own check: {tail}")
    times = [version.microseconds(float(number)) for number in re.findall(version.pattern, done.stdout)]
    if not times:
        raise RuntimeError(f"{version.command} printed no time of {version.name}: {done.stdout[-300:]}")
    return min(times)


def build(ladder: Ladder, folder: Path, arch: str) -> None:
    command = ladder.build.format(arch=arch)
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stderr[-500:]}")


def _note(event: Any) -> None:
    if isinstance(event, dict) and event.get("message"):
        print(f"  {event['message']}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- the report


def table(climbs: Sequence[Climbed]) -> str:
    lines = [
        "| ladder | first | ours | best | the best | first / ours | first / best | recovered | "
        "rules (the judge's own ratio) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for c in climbs:
        rules = "; ".join(
            f"{kernel}: {words}{f' ({c.ratios[kernel]:.2f}×)' if kernel in c.ratios else ''}"
            f"{f' [{c.searched[kernel]}]' if kernel in c.searched else ''}"
            for kernel, words in c.rules.items()
        )
        times = [f"{time:,.1f} µs" if time else "" for time in (c.first, c.ours, c.best)]
        gains = [f"{c.first / other:.2f}×" if c.first and other else "" for other in (c.ours, c.best)]
        share = f"{c.recovered:.0%}" if c.recovered is not None else ""
        words = " ".join(f"{rules} {c.error}".replace("|", "\\|").split())
        lines.append(f"| {' | '.join([c.ladder, *times, c.best_name, *gains, share, words])} |")
    recovered = [c.recovered for c in climbs if c.recovered is not None]
    return "\n".join([*lines, "", mean(recovered, len(climbs))])


def mean(shares: Sequence[float], of: int) -> str:
    """A ladder where nothing was recovered makes the geometric mean zero: it is said, not left out."""
    if not shares:
        return "No ladder was climbed."
    geometric = math.exp(sum(math.log(share) for share in shares) / len(shares)) if all(shares) else 0.0
    arithmetic = sum(shares) / len(shares)
    return f"Recovered, geometric mean of {len(shares)} of {of} ladders: {geometric:.0%} (arithmetic {arithmetic:.0%})."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/bench-ladders"))
    parser.add_argument("--only", default="")
    parser.add_argument("--wall", type=float, default=560.0)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--build-only", action="store_true")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.wall
    arguments.out.mkdir(parents=True, exist_ok=True)
    ladders = [one for one in LADDERS if not arguments.only or one.name in arguments.only.split(",")]
    climbs: list[Climbed] = []
    with tempfile.TemporaryDirectory(prefix="ladders-") as work, ThreadPoolExecutor(len(ladders) or 1) as pool:
        built = [pool.submit(prepare, one, arguments.corpus, Path(work), arguments.arch) for one in ladders]
        if arguments.build_only:
            for one, future in zip(ladders, built, strict=True):
                print(f"{one.name}: {future.exception() or f'built in {future.result()}'}")
            return 0
        with open_device("cuda:0") as device:
            print(f"on {device.info.name}", flush=True)  # its worker runs now: the GPU's turns are known
            for one, future in zip(ladders, built, strict=True):
                kernels = sum(len(other.kernels) for other in ladders[len(climbs) :])
                seconds = (end - time.monotonic()) * len(one.kernels) / kernels
                try:
                    climbs.append(climb(one, future.result(), device, arguments.arch, seconds))
                except (OSError, CudaAgentError, RuntimeError) as error:  # it was not built
                    climbs.append(Climbed(one.name, error=str(error)))
                with (arguments.out / "ladders.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(climbs[-1]) | {"device": device.info.name}) + "\n")
                (arguments.out / "ladders.md").write_text(table(climbs) + "\n", encoding="utf-8")
                print(table(climbs[-1:]).splitlines()[2], flush=True)
    print(table(climbs))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
