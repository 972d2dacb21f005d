"""`cuda-agent trajectories list|show|export`."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_agent.cli import flags
from cuda_agent.cli.answers import print_json
from cuda_agent.errors import UsageError

if TYPE_CHECKING:
    from cuda_agent.progress import Progress


def declare(parser: argparse.ArgumentParser) -> None:
    flags.usual(parser, device=False)
    parser.add_argument("action", nargs="?", choices=("list", "show", "export"), default="list")
    parser.add_argument("ids", nargs="*", metavar="ID", help="an id or a part of it, a file, or `last`")
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl", help="of export: one JSON object a search")


def run(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent import records

    progress.close()
    if arguments.action != "export" and arguments.out:
        raise UsageError("--out is for `trajectories export`")
    if arguments.action == "export":
        if not arguments.out:
            raise UsageError("trajectories export needs --out FILE.jsonl")
        count, skipped = records.export(arguments.ids, arguments.out)
        for sentence in skipped:
            print(sentence, file=sys.stderr)
        if arguments.json:
            print_json({"status": "done", "searches": count, "file": str(arguments.out), "skipped": skipped})
        else:
            print(f"{arguments.out} has {count} search{'' if count == 1 else 'es'}")
        return 0
    if arguments.action == "show":
        found = records.searches(arguments.ids or ["last"])
        if arguments.json:
            print_json({"status": "done", "searches": [list(one.lines) for one in found]})
        else:
            records.show(found)
        return 0
    rows = records.rows(arguments.ids)
    if arguments.json:
        print_json({"status": "done", "trajectories": rows})
    else:
        records.table(rows)
    return 0
