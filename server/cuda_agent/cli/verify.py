"""`cuda-agent verify ORIGINAL CANDIDATE`; a recorded verdict once more (`--from`); an exported test (`--test`)."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent.cli import flags
from cuda_agent.cli.answers import EXIT, print_json, write_page
from cuda_agent.errors import UsageError

if TYPE_CHECKING:
    from cuda_agent.progress import Progress


def declare(parser: argparse.ArgumentParser) -> None:
    flags.usual(parser)
    parser.add_argument("original", type=Path, nargs="?")
    parser.add_argument("candidate", type=Path, nargs="?")
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--from", dest="evidence", type=Path, metavar="EVIDENCE", help="judge again what an evidence.json is about"
    )
    again.add_argument("--test", type=Path, metavar="FOLDER", help="run a regression test that `export-test` wrote")
    flags.moved(parser, "with --from: ")
    flags.inputs(parser)
    flags.in_program(parser, "the candidate")
    flags.html(parser, "the evidence")


def run(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    files = [arguments.original, arguments.candidate]
    if arguments.evidence or arguments.test:
        if any(files) or arguments.kernel or arguments.args or arguments.run or arguments.in_program:
            raise UsageError("--from and --test say what is judged and how: leave files, --kernel, --args, --run out")
        if arguments.evidence:
            return _again(arguments, progress, stop)
        return _test(arguments, progress)
    if not all(files):
        raise UsageError("verify needs two files, --from EVIDENCE or --test FOLDER")
    return _files(arguments, progress, stop)


def _files(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.judge.evidence import to_json
    from cuda_agent.verify import VerifyRequest, verify

    request = VerifyRequest(
        flags.existing(arguments.original),
        flags.existing(arguments.candidate),
        arguments.kernel,
        arguments.device,
        options=flags.judge_options(arguments),
        **flags.program(arguments),
    )
    done = verify(request, on_event=progress.event, cancelled=stop.is_set)
    _show(arguments, progress, to_json(done.verdict, candidate=done.candidate, diff=done.diff))
    return EXIT[done.verdict.status]


def _again(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.recheck import RecheckRequest, recheck

    request = RecheckRequest(
        arguments.evidence, arguments.source, arguments.inputs, arguments.device, arguments.timeout
    )
    done = recheck(request, on_event=progress.event, cancelled=stop.is_set)
    _show(arguments, progress, done.evidence)
    return {True: 0, False: 1, None: 2}[done.holds]


def _test(arguments: argparse.Namespace, progress: Progress) -> int:
    from cuda_agent import regression
    from cuda_agent.judge.evidence import to_json

    verdict = regression.run(arguments.test, arguments.device)
    _show(arguments, progress, to_json(verdict))
    return EXIT[verdict.status]


def _show(arguments: argparse.Namespace, progress: Progress, evidence: Mapping[str, Any]) -> None:
    from cuda_agent.report import show_evidence

    progress.close()
    write_page(arguments.html, [evidence])
    if arguments.json:
        print_json(evidence)
    else:
        show_evidence(evidence)
