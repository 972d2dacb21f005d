"""`cuda-agent optimize FILE`: the search, and what is written down of it."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent import config
from cuda_agent.cli import flags
from cuda_agent.cli.answers import print_json, write, write_page

if TYPE_CHECKING:
    from cuda_agent.agent.program import Together
    from cuda_agent.agent.request import Outcome
    from cuda_agent.progress import Progress


def declare(parser: argparse.ArgumentParser) -> None:
    flags.usual(parser)
    parser.add_argument("file", type=Path)
    flags.inputs(parser)
    flags.in_program(parser, "the winner")
    parser.add_argument(
        "--all", action="store_true", help="also kernels that take less than 1 %% of the program's kernel time"
    )
    parser.add_argument(
        "--budget", type=flags.seconds, metavar="SECONDS", help="for all kernels, full verdicts included (default 300)"
    )
    parser.add_argument(
        "--candidates", type=int, metavar="N", help="candidates to judge at most for each kernel (default 200)"
    )
    parser.add_argument(
        "--policy",
        choices=("auto", "search", "model", "mixed"),
        help="the rules, a language model, or both in turn",
    )
    parser.add_argument(
        "--model", metavar="SPEC", help="endpoint:NAME@URL, transformers:PATH or hub id (docs/configuration.md)"
    )
    parser.add_argument("--tokens", type=int, metavar="N", help="that a model may use for each kernel")
    parser.add_argument("--fresh", action="store_true", help="use nothing that an earlier search found")
    parser.add_argument("--apply", action="store_true", help="write the verified edits into the file")
    flags.html(parser, "the evidence of every kernel that was made faster")
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the search as one HTML page")
    parser.add_argument(
        "--evidence", type=Path, metavar="FOLDER", help="also write an evidence file KERNEL.json for each of them"
    )
    parser.add_argument("--trajectory", type=Path, help="append one JSON line for each step")


def run(arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
    from cuda_agent.agent.loop import optimize
    from cuda_agent.agent.policies.chosen import chosen, limits
    from cuda_agent.agent.program import optimize_all, together
    from cuda_agent.agent.request import Request
    from cuda_agent.report import outcome_json, outcomes_table, show_outcome

    request = Request(
        flags.existing(arguments.file),
        kernel=arguments.kernel,
        device=arguments.device,
        budget_s=arguments.budget,
        max_candidates=arguments.candidates,
        trajectory=arguments.trajectory,
        options=flags.judge_options(arguments),
        fresh=arguments.fresh,
        **limits(config.current()),
        **flags.program(arguments),
    )
    whole = None
    watch: dict[str, Any] = {"on_event": progress.event, "cancelled": stop.is_set}
    with chosen(config.current()) as policy:
        if arguments.kernel:
            outcomes = [optimize(request, policy=policy(), **watch)]
        else:
            outcomes = optimize_all(request, everything=arguments.all, policy=policy, **watch)
            whole = together(request, outcomes)
    progress.close()
    best = _best(outcomes)
    won = [outcome for outcome in outcomes if outcome.status == "verified" and outcome.evidence]
    write_page(arguments.html, [outcome.evidence for outcome in won])
    if arguments.report:
        from cuda_agent.agent.picture import picture

        write(arguments.report, picture(request.path.name, outcomes), "shows the search")
    if arguments.evidence:
        _write_evidence(arguments.evidence, won)
    if arguments.json:
        print_json(outcome_json(best, outcomes, whole))
    else:
        for outcome in outcomes:
            show_outcome(outcome)
        if len(outcomes) > 1:
            outcomes_table(outcomes, whole)
    if arguments.apply and won:
        _apply(request.path, won, whole)
    return {"verified": 0, "nothing": 0, "rejected": 1, "undecided": 2}[best.status]


def _write_evidence(folder: Path, won: Sequence[Outcome]) -> None:
    from cuda_agent.workload.bundle import safe_name

    for outcome in won:
        file = folder / f"{safe_name(outcome.kernel)}.json"
        write(file, json.dumps(outcome.evidence, indent=2) + "\n", f"is the evidence of {outcome.kernel}")


def _apply(path: Path, won: Sequence[Outcome], whole: Together | None) -> None:
    """The verified edits of all kernels, or of the only one."""
    from cuda_agent.source import joined
    from cuda_agent.workload.bundle import write_atomic

    text = whole.text if whole else won[0].candidate.text if won[0].candidate else ""
    kernels = whole.kernels if whole else (won[0].kernel,)
    for file, content in joined.files(path, text):
        write_atomic(file, content.encode("utf-8", "surrogateescape"))
    many = f"kernels {', '.join(kernels)}" if len(kernels) > 1 else f"kernel {kernels[0]}"
    files = " and ".join([path.name, *joined.others(text)])
    have = "have" if joined.others(text) else "has"
    print(f"{files} now {have} the verified {many}{f'; {whole.sentence}' if whole else ''}", file=sys.stderr)


def _best(outcomes: Sequence[Outcome]) -> Outcome:
    """The one the exit code and the top of the JSON speak of: the largest verified gain, else the most decided."""
    order = {"verified": 0, "nothing": 1, "rejected": 2, "undecided": 3}

    def rank(outcome: Outcome) -> tuple[int, float]:
        timing = outcome.verdict.timing if outcome.verdict else None
        traffic = outcome.verdict.traffic if outcome.verdict else {}
        gain = timing.ci[0] if timing else traffic.get("sectors_before", 1.0) / (traffic.get("sectors_after") or 1.0)
        return order[outcome.status], -gain

    return min(outcomes, key=rank)
