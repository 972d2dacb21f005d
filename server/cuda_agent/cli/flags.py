"""The flags that several commands share, and what they mean to the other rooms."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_agent import config
from cuda_agent.errors import SourceError, UsageError

if TYPE_CHECKING:
    from cuda_agent.inputs import Program
    from cuda_agent.judge import JudgeOptions

# A person who waits at a terminal lets a search take longer than one who edits meanwhile.
DEFAULTS = config.Settings(budget_seconds=300.0, budget_candidates=200)


def usual(parser: argparse.ArgumentParser, *, device: bool = True) -> None:
    """What every command takes; `device`: those that run something."""
    if device:
        parser.add_argument("--device", help="auto (default), cuda:0, emulator, ssh://host")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of docs/configuration.md, such as nvccPath=/opt/cuda/bin/nvcc or extraFlags='-DN=4 -G'",
    )


def inputs(parser: argparse.ArgumentParser) -> None:
    """Which kernel, and how its program is run where it has no inputs yet: `program` and `judge_options` read it."""
    parser.add_argument("--kernel", help="name of the kernel (default: the one with inputs)")
    parser.add_argument("--args", help="arguments for the file's own main when it has to be run")
    parser.add_argument("--run", help="run command that launches the kernel, when the file has no main")
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="for one run of the program (default 600) and for one job of the original kernel (default 120)",
    )


def in_program(parser: argparse.ArgumentParser, whose: str) -> None:
    parser.add_argument(
        "--in-program",
        action="store_true",
        help=f"also rebuild your program in a copy of its folder with {whose} and compare a run of it (gate G13)",
    )


def html(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--html", type=Path, metavar="FILE", help=f"also write {what} as one HTML page")


def moved(parser: argparse.ArgumentParser, when: str = "") -> None:
    """Where the things lie that a record speaks of."""
    parser.add_argument("--source", type=Path, help=f"{when}the source file (or its project), when it was moved")
    parser.add_argument("--inputs", type=Path, help=f"{when}the folder of the inputs, when it was moved")


# ---------------------------------------------------------------- values


def size(text: str) -> int:
    """Bytes: `256M` is 256 MiB."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    try:
        return int(float(text[:-1]) * units[text[-1].upper()]) if text[-1:].upper() in units else int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 256M") from error


def seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return found


def existing(path: Path) -> Path:
    """Its absolute path. Raises SourceError when there is no such file."""
    if not path.is_file():
        raise SourceError(f"{path}: no such file")
    return path.absolute()


# ---------------------------------------------------------------- what they mean


def settle(arguments: argparse.Namespace) -> None:
    """Take the settings, and fill in from them the flags that were not given. Raises UsageError."""
    flags = {"policy": "policy", "model": "model", "tokens": "budgetTokens"}
    given = {name: getattr(arguments, flag, None) for flag, name in flags.items()}
    settings = config.parse(given, config.parse(config.from_words(arguments.set), DEFAULTS))
    config.use(settings)
    filled = {
        "device": settings.device,
        "arch": None if settings.arch == "auto" else settings.arch,
        "first": settings.capture_launches,
        "cap": settings.capture_limit_mb << 20,
        "budget": settings.budget_seconds,
        "candidates": settings.budget_candidates,
    }
    if getattr(arguments, "run", None) is None and getattr(arguments, "args", None) is None:
        filled |= {"run": settings.run_command, "args": settings.arguments}
    for name, value in filled.items():
        if getattr(arguments, name, value) is None:
            setattr(arguments, name, value)


def program(arguments: argparse.Namespace) -> Program:
    """How the program is run for inputs. Raises UsageError."""
    try:
        args, run = shlex.split(arguments.args or ""), shlex.split(arguments.run or "")
    except ValueError as error:
        raise UsageError(f"--args and --run are split like a shell does it: {error}") from error
    if run and args:
        raise UsageError("--run is the whole command: put the arguments there and leave --args out")
    found: Program = {"args": tuple(args), "run_command": tuple(run) or None}
    if arguments.timeout:
        found["timeout_s"] = arguments.timeout
    return found


def judge_options(arguments: argparse.Namespace) -> JudgeOptions:
    from cuda_agent.judge import JudgeOptions

    options = JudgeOptions(in_program=arguments.in_program)
    if arguments.timeout:
        options = replace(options, deadline_s=arguments.timeout, program_timeout_s=arguments.timeout)
    return options
