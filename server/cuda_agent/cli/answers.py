"""What a command says at its end: JSON, a page, a sentence and an exit code."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda_agent.errors import CudaAgentError

EXIT = {"verified": 0, "rejected": 1, "undecided": 2}


def print_json(data: Mapping[str, Any]) -> None:
    json.dump(data, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")
    sys.stdout.flush()


def fail(arguments: argparse.Namespace, error: CudaAgentError, code: int) -> int:
    """The error in words, with `--json` as an object too."""
    if arguments.json:
        print_json(
            {
                "status": "error" if code == 3 else "undecided",
                "evidence_level": "none",
                "inputs": "none",
                "gates": [],
                "timing": None,
                "diff": "",
                "error": str(error),
                "kind": type(error).__name__,
            }
        )
    print(f"cuda-agent: {error}", file=sys.stderr)
    diagnostics = getattr(error, "diagnostics", "")
    if diagnostics:
        print(diagnostics, file=sys.stderr)
    return code


def write(file: Path, text: str, about: str) -> None:
    """Write a file that was asked for, and say so: `about` is the sentence without the file's name."""
    from cuda_agent.workload.bundle import write_atomic

    write_atomic(file, text.encode())
    print(f"{file} {about}", file=sys.stderr)


def write_page(file: Path | None, evidences: Sequence[Mapping[str, Any]]) -> None:
    """The HTML page, when one was asked for and there is something to show."""
    if file is None:
        return
    if not evidences:
        print(f"no kernel was made faster, so {file} was not written", file=sys.stderr)
        return
    from cuda_agent.judge.evidence.page import page

    write(file, page(evidences), "shows the evidence")
