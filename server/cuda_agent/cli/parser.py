"""The words behind `cuda-agent`: which commands there are. The rest of a command is in the file of its name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from cuda_agent import __version__

if TYPE_CHECKING:
    import threading

    from cuda_agent.progress import Progress

COMMANDS = {
    "facts": "Registers, spills, shared memory and occupancy of every kernel in a file.",
    "capture": "Run a program as it is and keep the inputs of its kernel launches.",
    "verify": "Judge a rewrite: same results, no faults, and how fast.",
    "bench": "Time a kernel against itself on its inputs: its time and this machine's noise.",
    "optimize": "Rewrite, judge, time and show what is faster.",
    "compare": "Each kernel with each policy under equal budgets, side by side.",
    "trajectories": "The recorded searches: list, show, export.",
    "replay": "Run a recorded search again: the same texts must get the same verdicts.",
    "export-test": "Write a regression test of an accepted kernel for your own repository.",
    "serve": "Speak the Language Server Protocol on stdin and stdout.",
    "mcp": "Offer these tools to an agent: the Model Context Protocol on stdin and stdout.",
    "trust": "Let editors and agents compile and run the code in a folder.",
    "worker": "Own one device and run jobs from stdin (started by the other commands).",
    "doctor": "What this machine has, what is missing and how to get it.",
}
ELSEWHERE = ("serve", "worker")  # read their own words: `main` hands them on before anything is parsed


class Command(Protocol):
    """What the file of a command has."""

    def declare(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace, progress: Progress, stop: threading.Event) -> int:
        """Returns the exit code; raises the errors of `errors.py`. `stop` is set by Ctrl-C."""
        ...


def command(name: str) -> Command:
    return cast("Command", import_module(f"cuda_agent.cli.{name.replace('-', '_')}"))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"cuda-agent: {message}", file=sys.stderr)
        raise SystemExit(3)


def parse(given: Sequence[str]) -> argparse.Namespace:
    """Raises SystemExit: 3 for usage, 0 after `--help` and `--version`. Imports the file of the given command only."""
    parser = _Parser(prog="cuda-agent", description="Makes CUDA kernels faster and proves it.")
    parser.add_argument("--version", action="version", version=f"cuda-agent {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    asked = next((word for word in given if not word.startswith("-")), None)
    for name, help in COMMANDS.items():
        its = commands.add_parser(name, help=help, description=help)
        if name == asked and name not in ELSEWHERE:
            command(name).declare(its)
    return parser.parse_args(given)
