"""Kernel Tuner's own examples, tuned by Kernel Tuner and by us over its own tunables, for the same seconds.

usage: beside_kernel_tuner.py CORPUS [--out FOLDER] [--only a,b] [--seconds S] [--device cuda|emulator] [--ours-only]

CORPUS is a checkout of KernelTuner/kernel_tuner. Kernel Tuner (pip install kernel-tuner==1.5, CuPy back end) gets each
kernel with -D tunables as its example does, in random order, until the seconds are over. We get the same kernel with
the same tunables as constants in its body, in a small program that launches it, through our own search: compiled ahead,
same code dropped, each candidate judged (same results) and timed; the winner passes the whole judge. At the end
Kernel Tuner's best configuration is judged too, so that both results are times of one clock.

Of its examples these three: `vector_add`, `stencil`, `matmul`. `convolution` asks for its tunables in `#if`, where only
macros can be; a candidate of ours may not change a macro (gate G0), nor the compiler's flags. That is what is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent import judge
from cuda_agent.agent.loop import optimize
from cuda_agent.agent.policies import State
from cuda_agent.agent.request import Outcome, Request
from cuda_agent.capture import CaptureOptions, build_and_run
from cuda_agent.device import Device, open_device
from cuda_agent.errors import CudaAgentError
from cuda_agent.model import Candidate, LaunchMap
from cuda_agent.rewrite.rule import Context
from cuda_agent.source import documents, edits
from cuda_agent.toolchain.build import find_build
from cuda_agent.workload import bundle

Config = dict[str, int]
KEPT = 4  # significant digits of a time that is shown


@dataclass(frozen=True)
class Example:
    """One of Kernel Tuner's examples. `size` is its problem size, `start` the configuration we call the original."""

    name: str
    kernel: str
    source: str  # below examples/cuda; from a .py the first string that holds a kernel
    size: tuple[int, int]
    small: tuple[int, int]  # for the emulator, where the kernel's own size is not a macro
    tunables: Mapping[str, Sequence[int]]
    start: Config
    buffers: tuple[str, ...]  # float arrays in parameter order, the output first
    scalar: bool = False  # the number of elements is the last parameter
    allowed: Callable[[Config], bool] = lambda config: True
    restrictions: tuple[str, ...] = ()  # the same in Kernel Tuner's words

    @property
    def configs(self) -> list[Config]:
        names, values = zip(*self.tunables.items(), strict=True)
        return [c for row in itertools.product(*values) if self.allowed(c := dict(zip(names, row, strict=True)))]

    def text(self, corpus: Path) -> str:
        """The kernel as Kernel Tuner has it. ValueError when the file is another one."""
        found = (corpus / "examples" / "cuda" / self.source).read_text(encoding="utf-8")
        if self.source.endswith(".py"):
            match = re.search(r'"""(\s*__global__.*?)"""', found, re.DOTALL)
            if match is None:
                raise ValueError(f"{self.source} holds no kernel")
            found = match[1]
        if f"{self.kernel}(" not in found:
            raise ValueError(f"{self.source} holds no {self.kernel}")
        return found


EXAMPLES = (
    Example(
        "vector_add",
        "vector_add",
        "vector_add_cupy.py",
        (10_000_000, 1),
        (10_000, 1),
        {"block_size_x": [128 + 64 * i for i in range(15)]},
        {"block_size_x": 128},
        ("c", "a", "b"),
        scalar=True,
    ),
    Example(
        "stencil",
        "stencil_kernel",
        "stencil.cu",
        (4096, 2048),
        (4096, 2048),
        {"block_size_x": [32 * i for i in range(1, 9)], "block_size_y": [2**i for i in range(6)]},
        {"block_size_x": 32, "block_size_y": 1},
        ("x_new", "x_old"),
    ),
    Example(
        "matmul",
        "matmul_kernel",
        "matmul.cu",
        (4096, 4096),
        (4096, 4096),
        {
            "block_size_x": [16, 32, 64],
            "block_size_y": [2**i for i in range(6)],
            "tile_size_x": [1, 2, 4, 8],
            "tile_size_y": [1, 2, 4, 8],
        },
        {"block_size_x": 16, "block_size_y": 16, "tile_size_x": 1, "tile_size_y": 1},
        ("C", "A", "B"),
        allowed=lambda c: c["block_size_x"] == c["block_size_y"] * c["tile_size_y"],
        restrictions=("block_size_x==block_size_y*tile_size_y",),
    ),
)


# ---------------------------------------------------------------- our side


def extent(config: Config, axis: str) -> tuple[int, int]:
    """Threads and elements of a block along an axis."""
    threads = config.get(f"block_size_{axis}", 1)
    return threads, threads * config.get(f"tile_size_{axis}", 1)


def program(example: Example, kernel: str, config: Config, size: tuple[int, int]) -> str:
    """The kernel with its tunables as constants, and a main that launches it once on random numbers."""
    constants = ", ".join(f"{name} = {value}" for name, value in config.items())
    head = re.search(rf"__global__[^{{]*\b{example.kernel}\s*\([^)]*\)\s*\{{", kernel)
    if head is None:
        raise ValueError(f"{example.source}: {example.kernel} has no body that can be found")
    inside = f"{kernel[: head.end()]}\n    constexpr int {constants};{kernel[head.end() :]}"
    (bx, nx), (by, ny) = extent(config, "x"), extent(config, "y")
    grid, block = f"(width + {nx - 1}) / {nx}", f"{bx}"
    if any(name.endswith("_y") for name in config):
        grid, block = f"dim3({grid}, (height + {ny - 1}) / {ny})", f"dim3({bx}, {by})"
    declared = "".join(
        f"    float *{name};\n    cudaMalloc(&{name}, bytes);\n"
        f"    cudaMemcpy({name}, host, bytes, cudaMemcpyHostToDevice);\n"
        f"    for (size_t i = 0; i < count; i++) host[i] = rand() / (float)RAND_MAX - 0.5f;\n"
        for name in example.buffers
    )
    arguments = ", ".join([*example.buffers, *(["width"] if example.scalar else [])])
    return f"""#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

{inside}

int main() {{
    const int width = {size[0]}, height = {size[1]};
    const size_t count = (size_t)width * height, bytes = count * sizeof(float);
    float *host = (float *)malloc(bytes);
    for (size_t i = 0; i < count; i++) host[i] = rand() / (float)RAND_MAX - 0.5f;
{declared}
    {example.kernel}<<<{grid}, {block}>>>({arguments});
    printf("%s\\n", cudaGetErrorString(cudaDeviceSynchronize()));
    free(host);
}}
"""


def launch(start: Config, config: Config) -> LaunchMap:
    grid, block = [], []
    for axis in "xy":
        (_, old), (threads, new) = extent(start, axis), extent(config, axis)
        grid.append(f"ceil_div(g{axis} * {old}, {new})")
        block.append(str(threads))
    return LaunchMap((grid[0], grid[1], "gz"), (block[0], block[1], "1"))


class Tunables:
    """A policy: every configuration once, in random order, each a candidate of its own. All are proposed at once: they
    are compiled side by side, and what is compiled is judged meanwhile."""

    name = "tunables"

    def __init__(self, example: Example, kernel: str, original: str, size: tuple[int, int]) -> None:
        self.candidates: dict[str, Config] = {}
        made = []
        for config in example.configs:
            text = program(example, kernel, config, size)
            digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            words = ", ".join(f"{name}={value}" for name, value in config.items())
            self.candidates[digest] = config
            made.append(
                Candidate(
                    example.kernel,
                    original,
                    text,
                    edits.minimal(original, text),
                    f"tunables({words})",
                    "reassociated",
                    launch(example.start, config),
                    id=digest,
                )
            )
        random.Random(0).shuffle(made)
        self._rounds = iter([made])
        self.by_id = {candidate.id: candidate for candidate in made}

    def propose(self, state: State) -> Sequence[Candidate]:
        return next(self._rounds, [])

    def ahead(self, context: Context) -> Sequence[Candidate]:
        """Compiled while the original runs for the first time."""
        return list(self.by_id.values()) if context.base is None else []


def ours(example: Example, corpus: Path, device: Device, folder: Path, seconds: float) -> dict[str, Any]:
    """Our search over the tunables. The original is the program with the first configuration."""
    size = example.small if device.info.kind == "emulator" else example.size
    kernel = example.text(corpus)
    original = program(example, kernel, example.start, size)
    file = folder / f"{example.name}.cu"
    documents.write(file, original)
    options = CaptureOptions(device=device.info.kind, kernel=rf"\b{example.kernel}\b", first=1, timeout=120.0)
    build_and_run(file, (), find_build(file), options)
    workload = bundle.find(file, example.kernel)
    assert workload is not None, "build_and_run raises when nothing was captured"
    policy = Tunables(example, kernel, original, size)
    began, searched = time.monotonic(), 0.0

    def event(value: Any) -> None:
        nonlocal searched
        if value.get("event") == "candidate":
            searched = time.monotonic() - began

    request = Request(file, kernel=example.kernel, budget_s=seconds, max_candidates=10_000)
    outcome = optimize(request, device=device, workload=workload, policy=policy, on_event=event)
    timed = [(s, s.verdict.timing) for s in outcome.steps if s.verdict and s.verdict.timing]
    best = min((timing.candidate_us for _, timing in timed), default=None)
    return {
        "configurations": len(example.configs),
        "seen": len(outcome.steps),
        "judged": outcome.tried,
        "right": sum(s.score is not None for s in outcome.steps),
        "seconds": searched,
        "best_us": best,
        "status": outcome.status,
        "winner": policy.candidates.get(outcome.candidate.id) if outcome.candidate else None,
        "ratio": outcome.verdict.timing.ratio if outcome.verdict and outcome.verdict.timing else None,
        "message": outcome.message,
        "_": (policy, outcome, workload, file, original),
    }


def by_our_clock(device: Device, theirs: Config, found: dict[str, Any]) -> dict[str, Any]:
    """Kernel Tuner's best configuration as one more candidate of ours, beside our winner: both are judged in full,
    against the same original."""
    policy, outcome, workload, file, original = found["_"]
    wanted = next(key for key, config in policy.candidates.items() if config == theirs)
    verdict = judge.judge(device, find_build(file), workload, original, policy.by_id[wanted])
    why = next((gate.detail for gate in verdict.gates if gate.status == "fail" or gate.undecided), "")
    return {"status": verdict.status, "why": why, "ratio": verdict.timing.ratio if verdict.timing else None} | _us(
        verdict.timing, outcome
    )


def _us(timing: Any, outcome: Outcome) -> dict[str, float | None]:
    mine = outcome.verdict.timing if outcome.verdict else None
    ours_us = mine.candidate_us if mine else timing.original_us if timing else None  # no winner: the original stands
    return {"us": timing.candidate_us if timing else None, "ours_us": ours_us}


# ---------------------------------------------------------------- Kernel Tuner's side


def kernel_tuner(example: Example, corpus: Path, seconds: float) -> dict[str, Any]:
    """Its tune_kernel over the same tunables in random order, until the time is over."""
    import numpy
    from kernel_tuner import tune_kernel

    count = example.size[0] * example.size[1]
    generator = numpy.random.default_rng(0)
    arguments: list[Any] = [generator.standard_normal(count, numpy.float32) for _ in example.buffers]
    if example.scalar:
        arguments.append(numpy.int32(count))
    grids = {
        f"grid_div_{axis}": [name for name in (f"block_size_{axis}", f"tile_size_{axis}") if name in example.tunables]
        for axis in "xy"
    }
    began = time.monotonic()
    results, _ = tune_kernel(
        example.kernel,
        example.text(corpus),
        example.size if "block_size_y" in example.tunables else example.size[0],
        arguments,
        {name: list(values) for name, values in example.tunables.items()},
        restrictions=list(example.restrictions) or None,
        lang="CUPY",
        strategy="random_sample",
        strategy_options={"fraction": 1.0, "time_limit": seconds},
        quiet=True,
        seed=0,
        **{name: names for name, names in grids.items() if names},
    )
    took = time.monotonic() - began
    valid = [row for row in results if isinstance(row.get("time"), float | int)]
    best = min(valid, key=lambda row: float(row["time"]), default=None)
    return {
        "tried": len(results),
        "valid": len(valid),
        "seconds": took,
        "best": {name: int(best[name]) for name in example.tunables} if best else None,
        "best_us": 1000 * float(best["time"]) if best else None,
    }


# ---------------------------------------------------------------- the report


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| kernel | configurations | Kernel Tuner: tried (valid) in s | a second | ours: judged (right) in s "
        "| a second | its best | ours | ours against its best, one clock |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        mine, theirs, clock = row.get("ours") or {}, row.get("theirs") or {}, row.get("clock") or {}
        cells = [row["kernel"], str(mine.get("configurations", "")), "", "", "", "", "", "", row.get("error", "")]
        if theirs:
            cells[2] = f"{theirs['tried']} ({theirs['valid']}) in {theirs['seconds']:.0f}"
            cells[3] = f"{theirs['valid'] / theirs['seconds']:.2f}"
            cells[6] = f"{words(theirs['best'])}: {theirs['best_us'] or 0:.{KEPT}g} µs by its clock"
        if mine:
            cells[4] = f"{mine['judged']} ({mine['right']}) in {mine['seconds']:.0f}"
            cells[5] = f"{mine['judged'] / mine['seconds']:.2f}" if mine["seconds"] else ""
            cells[7] = f"{words(mine['winner'])} {mine['status']}"
        if clock.get("us") and clock.get("ours_us"):
            cells[8] = (
                f"{clock['us'] / clock['ours_us']:.3f}× ({clock['ours_us']:.{KEPT}g} against {clock['us']:.{KEPT}g} µs)"
            )
        elif clock:
            cells[8] = f"its best is {clock['status']}: {clock['why']}"
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def words(config: Config | None) -> str:
    return ", ".join(f"{name.replace('_size', '')} {value}" for name, value in config.items()) if config else "none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/bench-kernel-tuner"))
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--device", choices=("cuda", "emulator"), default="cuda")
    parser.add_argument("--ours-only", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for example in EXAMPLES:
        if arguments.only and example.name not in arguments.only.split(","):
            continue
        row: dict[str, Any] = {"kernel": example.name}
        rows.append(row)
        try:
            if not arguments.ours_only:  # first: the GPU is nobody else's then
                row["theirs"] = kernel_tuner(example, arguments.corpus, arguments.seconds)
            device = "emulator" if arguments.device == "emulator" else "cuda:0"
            with tempfile.TemporaryDirectory(prefix="beside-") as folder, open_device(device) as opened:
                row["ours"] = ours(example, arguments.corpus, opened, Path(folder), arguments.seconds)
                best = (row.get("theirs") or {}).get("best")
                if best is not None:
                    row["clock"] = by_our_clock(opened, best, row["ours"])
        except (CudaAgentError, ValueError, OSError, ImportError) as error:
            row["error"] = f"{type(error).__name__}: {error}"
        if "ours" in row:
            row["ours"].pop("_")
        with (arguments.out / "kernel-tuner.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(table([row]), flush=True)
    (arguments.out / "kernel-tuner.md").write_text(table(rows) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
    raise SystemExit(main())
