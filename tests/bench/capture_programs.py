"""Captures the ten HeCBench programs with their own Makefiles and prints what was recorded.

usage: python tests/bench/capture_programs.py FOLDER [--device cuda|emulator] [--arch sm_90] [--programs a,b]
FOLDER holds copies of `src/<program>-cuda` (and rmsnorm-cuda, which layernorm includes). Smaller run arguments than
the
Makefiles' are used where those take minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cuda_agent.capture import CaptureOptions, CaptureReport, NothingCaptured, capture
from cuda_agent.errors import CudaAgentError

# Program → argument lists of its runs; on the emulator the second, smaller set.
RUNS: dict[str, tuple[list[str], list[str]]] = {
    "adam": (["10000 200 100"], ["1000 10 1"]),
    "channelSum": (["64 64 10"], ["8 8 1"]),
    "concat": (["10"], ["1"]),
    "floydwarshall": (["512 2 16"], ["64 1 16"]),
    "geglu": (["3"], ["1"]),
    "heat2d": (["1024 1024 100"], ["64 64 10"]),
    "jacobi": ([""], [""]),
    "layernorm": (["8 1024 768 20"], ["2 16 768 1"]),
    "softmax": (["100000 784 0 10", "100000 784 1 10"], ["64 784 0 1", "64 784 1 1"]),
    "stddev": (["4096 1024 10"], ["64 64 1"]),
}
# These spend minutes on the host after their kernels were seen: ended once everything is recorded.
ENDED_EARLY = frozenset({"geglu"})


def command(program: str, arch: str, runs: list[str]) -> list[str]:
    return ["sh", "-c", f"make ARCH={arch} && " + " && ".join(f"./main {run}".strip() for run in runs)]


def capture_program(folder: Path, program: str, device: str, arch: str) -> CaptureReport:
    runs = RUNS[program][0 if device == "cuda" else 1]
    stop = program in ENDED_EARLY if device == "cuda" else None
    options = CaptureOptions(device=device, stop=stop, timeout=120)
    return capture(command(program, arch, runs), folder / f"{program}-cuda", options)


def own_check(report: CaptureReport) -> str:
    """What the program says of its own results."""
    if report.stopped:
        return "ended early"
    failed, passed = report.output.count("FAIL"), report.output.count("PASS")
    return f"{failed} FAIL" if failed else f"{passed} PASS" if passed else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--programs", default=",".join(RUNS))
    args = parser.parse_args()
    table = Table("program", "exit", "check", "kernel", "seen", "recorded", "MB", "skipped", "seconds")
    captured, details = 0, []
    for program in args.programs.split(","):
        start = time.monotonic()
        try:
            report = capture_program(args.folder, program, args.device, args.arch)
        except NothingCaptured as error:
            report = error.report
            details.append(f"{program}: {error}")
        except CudaAgentError as error:
            table.add_row(program, "-", "", str(error), "", "", "", "", f"{time.monotonic() - start:.1f}")
            continue
        print(f"{program}: {report.recorded} of {report.launches} launches, {report.seconds:.1f} s", file=sys.stderr)
        captured += report.recorded > 0
        details += [f"{program}: {note}" for note in report.notes]
        for kernel in report.kernels:
            table.add_row(
                program,
                str(report.exit_code),
                own_check(report),
                kernel.kernel,
                str(kernel.launches),
                str(kernel.recorded),
                f"{kernel.bytes / 1e6:.1f}",
                "; ".join(f"{why} ({count})" for why, count in kernel.skipped),
                f"{time.monotonic() - start:.1f}",
            )
    console = Console(width=180)
    console.print(table)
    for line in details:
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"{captured} of {len(args.programs.split(','))} programs captured")
    return 0 if captured == len(args.programs.split(",")) else 1


if __name__ == "__main__":
    sys.exit(main())
