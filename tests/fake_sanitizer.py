"""Stands for compute-sanitizer where there is no GPU: the options, the child with our streams, and a log file as the
real one writes it. What it finds is what kernels of host_worker.py put, a JSON line a record, into the file that
FAKE_FINDINGS names.

FAKE_MODE: `blind` finds nothing; `troubled` could not instrument the launch; `mute` writes no summary; `slow` takes a
minute to begin; `last-words` writes its log two seconds after the worker's end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

HELP = Path(__file__).parent / "unit" / "device" / "data" / "sanitizer" / "help_2026.4.txt"


def install(folder: Path) -> Path:
    """The stand-in as an executable in `folder`/bin."""
    path = folder / "bin" / "compute-sanitizer"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__)} "$@"\n')
    path.chmod(0o755)
    return path


def main(argv: list[str]) -> int:
    if argv == ["--version"]:
        print("NVIDIA (R) Compute Sanitizer\nVersion 2026.4.0.0 (build 39022338) (public-release)")
        return 0
    if argv == ["--help"]:
        print(HELP.read_text())
        return 0
    options: dict[str, str] = {}
    while argv[0].startswith("--"):  # each of those we use takes a value
        assert argv[0] in HELP.read_text(), argv[0]
        options[argv[0]], argv = argv[1], argv[2:]
    mode, tool, log = os.environ.get("FAKE_MODE", ""), options["--tool"], Path(options["--log-file"])
    if mode == "slow":
        time.sleep(60)
    told = Path(f"{log}.findings")
    code = subprocess.run(argv, env={**os.environ, "FAKE_FINDINGS": str(told)}, check=False).returncode
    if mode == "last-words":
        time.sleep(2)
    entries = [json.loads(line) for line in told.read_text().splitlines()] if told.is_file() else []
    records = [] if mode == "blind" else [entry["record"] for entry in entries if entry["tool"] == tool]
    lines = ["COMPUTE-SANITIZER", *(line for record in records for line in (*record.splitlines(), ""))]
    if mode == "troubled":
        lines.append("Internal Sanitizer Error: The Sanitizer encountered an error while launching the kernel: 2")
    if mode != "mute":
        summary = f"RACECHECK SUMMARY: {len(records)} hazards displayed ({len(records)} errors, 0 warnings)"
        lines.append(summary if tool == "racecheck" else f"ERROR SUMMARY: {len(records)} errors")
    log.write_text("".join(f"========= {line}\n" for line in lines))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
