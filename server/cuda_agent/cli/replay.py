"""`cuda-agent replay FILE`."""

from __future__ import annotations

import argparse
import threading
from typing import TYPE_CHECKING

from cuda_agent.cli import flags
from cuda_agent.cli.answers import print_json

if TYPE_CHECKING:
    from cuda_agent.progress import Progress


def declare(parser: argparse.ArgumentParser) -> None:
    flags.usual(parser)
    parser.add_argument("trajectory", metavar="FILE", help="a trajectory's file, its id or a part of it, or `last`")
    flags.moved(parser)


def run(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent import records
    from cuda_agent.agent import recorded
    from cuda_agent.replay import ReplayRequest, holds, replay

    (file,) = recorded.find([arguments.trajectory])
    request = ReplayRequest(file, arguments.source, arguments.inputs, arguments.device)
    done = replay(request, on_event=progress.event, cancelled=stop.is_set)
    progress.close()
    code = {True: 0, False: 1, None: 2}[holds(done)]
    if arguments.json:
        status = {0: "verified", 1: "rejected", 2: "undecided"}[code]
        print_json({"status": status, "searches": [one.to_json() for one in done]})
    else:
        records.show_replays(done)
    return code
