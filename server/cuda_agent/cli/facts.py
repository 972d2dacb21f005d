"""`cuda-agent facts FILE`."""

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
    parser.add_argument("--kernel")
    parser.add_argument("--arch", help="sm_90, … (default: the device's, else the build's)")


def run(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.report import facts_table, file_facts

    found = file_facts(flags.existing(arguments.file), arguments.kernel, arguments.arch)
    if arguments.json:
        print_json(found)
    else:
        facts_table(found)
    return 0
