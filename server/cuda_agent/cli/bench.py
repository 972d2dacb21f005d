"""`cuda-agent bench FILE`."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_agent.cli import flags
from cuda_agent.cli.answers import print_json

if TYPE_CHECKING:
    from cuda_agent.progress import Progress


def declare(parser: argparse.ArgumentParser) -> None:
    flags.usual(parser)
    parser.add_argument("file", type=Path)
    flags.inputs(parser)


def run(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.bench import bench
    from cuda_agent.report import bench_table

    result = bench(
        flags.existing(arguments.file),
        arguments.kernel,
        arguments.device,
        on_event=progress.event,
        cancelled=stop.is_set,
        **flags.program(arguments),
    )
    progress.close()
    if arguments.json:
        print_json(result)
    else:
        bench_table(result)
    return 0
