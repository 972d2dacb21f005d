"""`cuda-agent export-test EVIDENCE --into FOLDER`."""

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
    parser.add_argument("evidence", type=Path, help="evidence.json of a verified candidate that is in the file now")
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER", help="a new folder for the test")
    parser.add_argument("--ctest", action="store_true", help="a CMakeLists.txt for CTest instead of a pytest file")
    flags.moved(parser)


def run(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.regression import ExportRequest, export

    request = ExportRequest(
        arguments.evidence, arguments.into, arguments.ctest, arguments.source, arguments.inputs, arguments.device
    )
    done = export(request, cancelled=stop.is_set)
    progress.close()
    if arguments.json:
        print_json({"status": "done", **done.to_json()})
    else:
        print(done.sentence)
    return 0
