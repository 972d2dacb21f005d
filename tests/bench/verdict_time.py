"""How long one whole verdict takes, gate by gate: our own softmax_rows.cu at a size of choice, against its row-per-warp
rewrite. Prints a table for docs/benchmarks.md.

usage: verdict_time.py [--device auto] [--rows 12800] [--columns 1024] [--out FOLDER]

12,800 × 1,024 floats are 105 MB of buffers; the launch takes 1 ms on an H200. On the emulator take 256 × 256.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "corpus" / "softmax_rows.cu"
AGENT = [sys.executable, "-m", "cuda_agent.cli"]


def call(*argv: str) -> tuple[dict[str, Any], float]:
    """One subcommand with --json and how many seconds it took."""
    began = time.monotonic()
    done = subprocess.run([*AGENT, *argv, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout), time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, default=12_800)
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--out", type=Path, default=Path("build/verdict"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    original, better = (Path(shutil.copy(SOURCE, arguments.out / name)) for name in ("original.cu", "better.cu"))
    where = ["--device", arguments.device, "--args", f"{arguments.rows} {arguments.columns} 1"]
    found, seconds = call("optimize", str(better), *where, "--budget", "30", "--candidates", "3", "--apply")
    print(f"optimize: {found['status']}, {found.get('headline', found.get('error'))} ({seconds:.1f} s)", flush=True)
    verify = ["verify", str(original), str(better), "--kernel", "softmax_rows", *where]
    evidence, seconds = call(*verify)
    (arguments.out / "evidence.json").write_text(json.dumps(evidence))
    print(f"verify: {evidence['status']}, {evidence.get('headline', evidence.get('error'))}")
    print("| gate | status | seconds |\n|---|---|---|")
    for gate in evidence["gates"]:
        print(f"| {gate['id']} {gate['name']} | {gate['status']} | {gate['seconds']:.1f} |")
    print(f"| all gates | {evidence['status']} | {sum(gate['seconds'] for gate in evidence['gates']):.1f} |")
    print(f"| `cuda-agent verify`, from start to end (with a capture) | | {seconds:.1f} |")
    return 0 if evidence["status"] == "verified" else 1


if __name__ == "__main__":
    raise SystemExit(main())
