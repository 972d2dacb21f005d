"""`cuda-agent doctor`."""

from __future__ import annotations

import argparse
import threading
from typing import TYPE_CHECKING

from cuda_agent.cli import flags
from cuda_agent.cli.answers import print_json

if TYPE_CHECKING:
    from cuda_agent.progress import Progress


def declare(parser: argparse.ArgumentParser) -> None:
    flags.usual(parser, device=False)


def run(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.report import doctor, doctor_table

    found = doctor()
    progress.close()
    if arguments.json:
        print_json(found)
    else:
        doctor_table(found)
    return 0
