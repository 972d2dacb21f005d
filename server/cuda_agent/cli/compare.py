"""`cuda-agent compare FILE …`."""

from __future__ import annotations

import argparse
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_agent import config
from cuda_agent.cli import flags
from cuda_agent.cli.answers import print_json, write
from cuda_agent.errors import UsageError

if TYPE_CHECKING:
    from cuda_agent.progress import Progress


def declare(parser: argparse.ArgumentParser) -> None:
    flags.usual(parser)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--policies", default="search,model,mixed", help="default: search,model,mixed")
    flags.inputs(parser)
    parser.add_argument("--budget", type=flags.seconds, metavar="SECONDS", help="for each search (default 300)")
    parser.add_argument("--candidates", type=int, metavar="N", help="for each search (default 200)")
    parser.add_argument("--tokens", type=int, metavar="N", help="for each search that asks a model")
    parser.add_argument("--model", metavar="SPEC", help="endpoint:NAME@URL, transformers:PATH or hub id")
    flags.html(parser, "a chart and the table")


def run(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent import compare_page, records
    from cuda_agent.agent.policies.chosen import limits, several
    from cuda_agent.agent.request import Request
    from cuda_agent.compare import CompareRequest, compare

    names = list(dict.fromkeys(filter(None, arguments.policies.split(","))))
    if unknown := [name for name in names if name not in ("search", "model", "mixed")] or not names:
        raise UsageError(f"--policies are search, model and mixed with commas between them, not {unknown}")
    settings = config.current()
    asks = next((name for name in names if name != "search"), "search")
    files = tuple(flags.existing(file) for file in arguments.files)
    each = Request(
        files[0],
        device=arguments.device,
        budget_s=arguments.budget,
        max_candidates=arguments.candidates,
        **limits(replace(settings, policy=asks)),
        **flags.program(arguments),
    )
    with several(settings, names) as policies:
        request = CompareRequest(files, each, arguments.kernel)
        found = compare(request, policies, on_event=progress.event, cancelled=stop.is_set)
    progress.close()
    if arguments.html:
        write(arguments.html, compare_page.document(found), "shows the comparison")
    if arguments.json:
        print_json({"status": "done" if found.kernels else "undecided", **found.to_json()})
    else:
        records.show_comparison(found)
    return 0 if found.complete and found.kernels else 2
