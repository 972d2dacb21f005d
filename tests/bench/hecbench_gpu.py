"""Captures and optimises the ten HeCBench programs on the GPU of this machine, unattended, and prints the table of
docs/benchmarks.md.

usage: hecbench_gpu.py CORPUS [--only a,b] [--budget SECONDS] [--out FOLDER]

For each program: `cuda-agent capture -- sh -c 'make ARCH=… && ./main ARGS'`, then `cuda-agent optimize main.cu
--json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from programs import TEN, Program

AGENT = [sys.executable, "-m", "cuda_agent.cli"]


def call(arguments: list[str], cwd: Path, log: Path, timeout: float) -> tuple[int, dict[str, Any]]:
    """Runs one subcommand with --json. Its stderr goes to the log."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ cuda-agent {' '.join(arguments)}\n")
        file.flush()
        try:
            done = subprocess.run(
                [*AGENT, *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=file, text=True, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            return 124, {"error": f"more than {timeout:.0f} s"}
    try:
        return done.returncode, json.loads(done.stdout)
    except json.JSONDecodeError:
        return done.returncode, {"error": done.stdout[-300:]}


def capture(program: Program, corpus: Path, work: Path, out: Path, arch: str) -> dict[str, Any]:
    """Builds and runs one program under capture. Captures do not measure anything: several run at once."""
    folder = program.copy(corpus, work / program.name)
    started = time.monotonic()
    run = f"make ARCH={arch} && ./main {program.gpu}"
    log = out / f"{program.name}.log"
    code, report = call(["capture", "--json", "--first", "1", "--", "sh", "-c", run], folder, log, 240)
    kernels = {k["kernel"]: f"{k['recorded']} of {k['launches']}" for k in report.get("kernels", [])}
    print(f"{program.name}: captured {kernels} in {time.monotonic() - started:.0f} s (exit {code})", flush=True)
    return {"code": code, "folder": folder, "report": report}


def optimize(program: Program, captured: dict[str, Any], out: Path, budget: float) -> list[dict[str, Any]]:
    if captured["code"] != 0:
        why = captured["report"].get("error", captured["code"])
        return [{"program": program.name, "kernel": "—", "status": f"capture failed: {why}"}]
    started = time.monotonic()
    arguments = ["optimize", "main.cu", "--json", "--budget", str(budget)]
    code, outcome = call(arguments, captured["folder"], out / f"{program.name}.log", budget * 2 + 120)
    (out / f"{program.name}.json").write_text(
        json.dumps({"capture": captured["report"], "optimize": outcome}, indent=1)
    )
    print(f"{program.name}: optimised in {time.monotonic() - started:.0f} s (exit {code})", flush=True)
    rows = []
    for kernel in outcome.get("kernels", []):
        detail = {g["id"]: g["detail"] for g in kernel["gates"]}
        rows.append(
            {
                "program": program.name,
                "kernel": kernel["kernel"],
                "status": kernel["status"],
                "level": kernel["evidence_level"],
                "timing": kernel["timing"],
                "rule": kernel["origin"],
                "tried": kernel["tried"],
                "message": kernel["message"],
                "replay": detail.get("G2", ""),
                "not_run": [g["id"] for g in kernel["gates"] if g["status"] == "not-run"],
            }
        )
    return rows or [{"program": program.name, "kernel": "—", "status": f"undecided: {outcome.get('error', code)}"}]


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| program | kernel | result | ratio | 95 % interval | original | rule |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        timing = row.get("timing")
        if timing:
            ratio, (lo, hi) = f"{timing['ratio']:.2f}×", timing["ci"]
            cells = [ratio, f"{lo:.3f} – {hi:.3f}", f"{timing['original_us']:.1f} µs", row.get("rule") or ""]
        else:
            cells = ["", "", "", row.get("message", "")[:160]]
        lines.append("| " + " | ".join([row["program"], row["kernel"], row["status"], *cells]) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    wanted = [p for p in TEN if not arguments.only or p.name in arguments.only.split(",")]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hecbench-") as work:
        with ThreadPoolExecutor(5) as pool:
            captures = list(
                pool.map(lambda p: capture(p, arguments.corpus, Path(work), arguments.out, arguments.arch), wanted)
            )
        for program, captured in zip(wanted, captures, strict=True):
            rows += optimize(program, captured, arguments.out, arguments.budget)
            (arguments.out / "table.md").write_text(table(rows) + "\n")
    faster = {
        r["program"] for r in rows if r.get("timing") and r["status"] == "verified" and r["timing"]["ci"][0] > 1.05
    }
    print(table(rows))
    names = ", ".join(sorted(faster))
    print(f"\nprograms verified faster with a lower end above 1.05: {len(faster)} of {len(wanted)}: {names}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
