"""Expert ladders: how much of the gain from a first kernel to the expert's best do the rules recover?

usage: ladders.py CORPUS [--out FOLDER] [--only a,b] [--budget SECONDS] [--wall SECONDS] [--build-only]

CORPUS holds `llm.c` (karpathy/llm.c) and `cuda-samples` (NVIDIA/cuda-samples), fetched by hand. Each program is built
as its own comment says, its first kernel captured and optimised without a model, the verified edits written into the
file, and that built again. Then the program's own benchmark times all three, first, ours and the expert's versions, one
after the other and twice, at its best block size; its own check must pass. Recovered is
log(first / ours) / log(first / best), the best one being of the first one's precision. `ladders.md` and `ladders.jsonl`
are written. With `--build-only` everything is built and nothing runs: that needs no GPU.
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
from cuda_agent.agent.request import Outcome, Request
from cuda_agent.capture import CaptureOptions, NothingCaptured, capture
from cuda_agent.device import Device, open_device
from cuda_agent.device.turn import turn
from cuda_agent.errors import CudaAgentError
from cuda_agent.source import documents
from cuda_agent.workload import bundle

BLOCK_SIZES = r"block_size\s+\d+ \| time\s+([\d.]+) ms"
RUN_SECONDS, BUILD_SECONDS, TURNS = 150.0, 240.0, 2


@dataclass(frozen=True)
class Version:
    """One rung: its command, and what of its output is its time; the least of all matches counts."""

    name: str
    command: str
    pattern: str
    rate: bool = False  # the number is a throughput: its inverse is a time


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
    smaller: tuple[tuple[str, str], ...] = ()  # edits of constants in the file, for launches below the capture's cap
    passed: str = "All results match"
    launches: int = 2  # captured of each kernel


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
    return Version(f"kernel {number}", f"./reduction --kernel={number}", r"Throughput = ([\d.]+) GB/s", rate=True)


LADDERS = (
    _llm("layernorm_forward", ("layernorm_forward_kernel1",), (3, 4, 5, 6)),
    _llm("softmax_forward", ("softmax_forward_kernel1",), (4, 7, 8), smaller=(("int T = 1024;", "int T = 128;"),)),
    _llm(
        "attention_forward",
        ("attention_query_key_kernel1", "attention_softmax_kernel1", "attention_value_kernel1"),
        (3, 4),
        smaller=(("int B = 8;", "int B = 2;"),),
    ),
    Ladder(
        "transpose",
        "cuda-samples",
        "Samples/6_Performance/transpose",
        "transpose.cu",
        "nvcc -O3 -std=c++17 -arch={arch} -I../../../Common transpose.cu -o transpose",
        ("transposeNaive",),
        _transpose("naive"),
        tuple(map(_transpose, ("coalesced", "optimized", "diagonal"))),
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
        tuple(map(_reduction, (4, 5, 6, 7))),
        passed="Test passed",
    ),
)


@dataclass
class Climbed:
    """What became of one ladder. Times in the program's own unit; only their ratios are used."""

    ladder: str
    first: float | None = None
    ours: float | None = None
    best: float | None = None
    best_name: str = ""
    rules: dict[str, str] = field(default_factory=dict)  # kernel → rules, or why there is nothing
    ratios: dict[str, float] = field(default_factory=dict)  # kernel → the judge's own number
    diff: str = ""
    error: str = ""
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
    budget: float,
    late: Callable[[], bool],
    search: Callable[..., Outcome] = optimize,
) -> Climbed:
    began, climbed = time.monotonic(), Climbed(ladder.name)
    try:
        shutil.copytree(folder, first := folder.with_name(f"{folder.name}-first"))
        _optimise(ladder, folder, device, budget, late, search, climbed)
        build(ladder, folder, arch)
        _race(ladder, first, folder, device.uuid, climbed)
    except (CudaAgentError, RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        climbed.error = f"{type(error).__name__}: {error}"
    climbed.seconds = time.monotonic() - began
    return climbed


def _optimise(
    ladder: Ladder,
    folder: Path,
    device: Device,
    budget: float,
    late: Callable[[], bool],
    search: Callable[..., Outcome],
    climbed: Climbed,
) -> None:
    """Captures the first version's kernels and writes what is verified into the file, one kernel after the other."""
    file = folder / ladder.file
    wanted = "|".join(rf"\b{name}\b" for name in ladder.kernels)
    options = CaptureOptions(device="cuda", kernel=wanted, first=ladder.launches, stop=True, timeout=RUN_SECONDS)
    with turn(device.uuid, alone=False):  # others may be timing
        capture(ladder.first.command.split(), folder, options)
    before = documents.read(file).text
    for number, kernel in enumerate(ladder.kernels):
        workload = bundle.find(file, kernel)
        if workload is None:
            climbed.rules[kernel] = "not captured"
            continue
        request = Request(file, kernel=kernel, budget_s=budget, max_candidates=10_000)
        try:
            outcome = search(request, device=device, workload=workload, cancelled=late, on_event=_note)
        except CudaAgentError as error:
            climbed.rules[kernel] = f"{type(error).__name__}: {error}"
            device.restart()
            continue
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


def _race(ladder: Ladder, first: Path, ours: Path, gpu: str, climbed: Climbed) -> None:
    """All versions by the program's own benchmark, in turns, each alone on the GPU as far as we use it."""
    best: dict[str, float] = {}
    for _ in range(TURNS):
        for name, version, folder in (
            ("first", ladder.first, first),
            ("ours", ladder.first, ours),
            *((version.name, version, first) for version in ladder.experts),
        ):
            with turn(gpu, alone=True):
                best[name] = min(best.get(name, math.inf), measure(version, folder, ladder.passed))
    climbed.first, climbed.ours = best.pop("first"), best.pop("ours")
    climbed.best_name, climbed.best = min(best.items(), key=lambda item: item[1])


def measure(version: Version, folder: Path, passed: str) -> float:
    """The least time that the version's own benchmark prints. Raises RuntimeError when its check did not pass."""
    done = subprocess.run(
        version.command.split(), cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    if done.returncode or passed not in done.stdout:
        tail = (done.stdout + done.stderr)[-300:]
        raise RuntimeError(f"{version.command} ({version.name}) did not pass its own check: {tail}")
    numbers = [float(number) for number in re.findall(version.pattern, done.stdout)]
    if not numbers:
        raise RuntimeError(f"{version.command} printed no time of {version.name}: {done.stdout[-300:]}")
    return 1 / max(numbers) if version.rate else min(numbers)


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
        "| ladder | first / ours | first / best | the best | recovered | rules (the judge's own ratio) |",
        "|---|---|---|---|---|---|",
    ]
    for c in climbs:
        rules = "; ".join(
            f"{kernel}: {words}{f' ({c.ratios[kernel]:.2f}×)' if kernel in c.ratios else ''}"
            for kernel, words in c.rules.items()
        )
        cells = [c.ladder, "", "", c.best_name, "", " ".join(f"{rules} {c.error}".replace("|", "\\|").split())]
        if c.first and c.ours and c.best:
            cells[1], cells[2] = f"{c.first / c.ours:.2f}×", f"{c.first / c.best:.2f}×"
        if c.recovered is not None:
            cells[4] = f"{c.recovered:.0%}"
        lines.append(f"| {' | '.join(cells)} |")
    shares = [c.recovered for c in climbs if c.recovered is not None]
    return "\n".join([*lines, "", mean(shares, len(climbs))])


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
    parser.add_argument("--budget", type=float, default=45.0, help="seconds of a kernel")
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
                if time.monotonic() > end - arguments.budget * len(one.kernels):
                    climbs.append(Climbed(one.name, error="no time was left"))
                    continue
                try:
                    folder = future.result()
                except (OSError, CudaAgentError, RuntimeError) as error:
                    climbs.append(Climbed(one.name, error=str(error)))
                    continue
                late = lambda: time.monotonic() > end  # noqa: E731
                climbs.append(climb(one, folder, device, arguments.arch, arguments.budget, late))
                with (arguments.out / "ladders.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(climbs[-1]) | {"device": device.info.name}) + "\n")
                print(f"{one.name}: {climbs[-1].recovered} {climbs[-1].error}", flush=True)
    (arguments.out / "ladders.md").write_text(table(climbs) + "\n", encoding="utf-8")
    print(table(climbs))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
