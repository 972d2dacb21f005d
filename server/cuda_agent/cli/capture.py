"""`cuda-agent capture -- COMMAND`."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_agent.cli import flags
from cuda_agent.cli.answers import print_json

if TYPE_CHECKING:
    from cuda_agent.progress import Progress


def declare(parser: argparse.ArgumentParser) -> None:
    flags.usual(parser)
    parser.add_argument("--kernel", help="regular expression on the kernel's name")
    parser.add_argument(
        "--first",
        type=int,
        metavar="N",
        help="launches to keep for each kernel: the first, but rather different ones than repetitions (default 2)",
    )
    parser.add_argument("--select", choices=("first", "smallest", "largest"), default="first")
    parser.add_argument(
        "--cap", type=flags.size, metavar="BYTES", help="largest launch to keep, e.g. 256M (default 1G)"
    )
    parser.add_argument(
        "--stop",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="end the program once everything asked for is recorded (default on the emulator; a template's later "
        "instantiations are seen with --no-stop only)",
    )
    parser.add_argument("cmd", nargs=argparse.REMAINDER, metavar="-- COMMAND")


def run(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.capture import CaptureOptions, NothingCaptured, capture
    from cuda_agent.report import capture_json, capture_table

    command = arguments.cmd[1:] if arguments.cmd[:1] == ["--"] else arguments.cmd
    if not command:
        print("cuda-agent: capture needs a command: cuda-agent capture -- make run", file=sys.stderr)
        return 3
    options = CaptureOptions(
        device=arguments.device,
        kernel=arguments.kernel,
        first=arguments.first,
        select=arguments.select,
        cap=arguments.cap,
        stop=arguments.stop,
    )
    try:
        report = capture(command, Path.cwd(), options, on_event=progress.event, cancelled=stop.is_set)
    except NothingCaptured as error:
        print(f"cuda-agent: {error}", file=sys.stderr)
        report = error.report
    progress.close()
    if arguments.json:
        print_json(capture_json(report))
    else:
        capture_table(report)
    return 0 if report.recorded else 2
