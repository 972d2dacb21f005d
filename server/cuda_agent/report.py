"""What the command line prints: tables on the terminal, and the JSON objects behind them."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cuda_agent.device import target_arch
from cuda_agent.errors import ToolMissing
from cuda_agent.hints import occupancy
from cuda_agent.inputs import read_source
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module as parse_module
from cuda_agent.toolchain import build as builds
from cuda_agent.toolchain import compile as compiler
from cuda_agent.toolchain import names, nvcc, sandbox
from cuda_agent.workload import own

if TYPE_CHECKING:
    from cuda_agent.agent.program import Together
    from cuda_agent.agent.request import Outcome
    from cuda_agent.capture import CaptureReport


def _console() -> Console:
    return Console(highlight=False)


# ---------------------------------------------------------------- facts


def file_facts(path: Path, kernel: str | None, arch: str | None, text: str | None = None) -> dict[str, Any]:
    """Facts of every kernel (or one) of a file, by instantiation; `text` is the editor's where it differs from it.
    CompileError, ToolMissing."""
    text = read_source(path) if text is None else text
    module = parse_module(Document(str(path), text))
    wanted = module.kernel(kernel).id if kernel else None
    build = builds.find_build(path)
    target = arch or target_arch(build)
    binary = compiler.compile(build, text, target)
    limits = occupancy.limits(target)
    rows = []
    for facts in binary.kernels.values():
        name = own.kernel_of(module, facts.mangled)
        if (wanted is not None and name != wanted) or (build.through is not None and name is None):
            continue
        row = asdict(facts)
        row["kernel"] = name or names.kernel_name(facts.mangled)
        row["occupancy"] = asdict(occupancy.occupancy(limits, facts.registers, facts.shared_bytes, 256))
        rows.append(row)
    return {
        "status": "done",
        "file": str(path),
        "arch": target,
        "flags": list(build.flags),
        "flags_from": build.origin,
        "compiler": binary.compiler,
        "kernels": rows,
    }


def facts_table(found: Mapping[str, Any]) -> None:
    console = _console()
    console.print(f"{Path(found['file']).name} · {found['arch']} · flags from {found['flags_from']}", style="bold")
    table = Table(box=None, pad_edge=False)
    table.add_column("kernel", overflow="fold", ratio=1)
    for column in ("registers", "shared", "stack", "spills", "instr.", "occupancy*"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in found["kernels"]:
        spills = row["spill_stores"] + row["spill_loads"]
        table.add_row(
            Text(row["demangled"]),
            str(row["registers"]),
            f"{row['shared_bytes']} B",
            f"{row['stack_bytes']} B",
            Text(f"{spills} B", style="yellow") if spills else "none",
            str(row["instructions"]),
            f"{row['occupancy']['warps'] / row['occupancy']['max_warps']:.0%}",
        )
    console.print(table)
    console.print("* with blocks of 256 threads and no dynamic shared memory", style="dim")


# ---------------------------------------------------------------- capture


def capture_json(report: CaptureReport) -> dict[str, Any]:
    return {"status": "done" if report.recorded else "undecided", **report.to_json()}


def capture_table(report: CaptureReport) -> None:
    table = Table(
        title=f"captured on {report.device or 'no device'} in {report.seconds:.1f} s · exit code {report.exit_code}"
    )
    for column in ("kernel", "launches", "kept", "grid", "block", "bytes", "not kept because"):
        table.add_column(column, justify="left" if column in ("kernel", "not kept because") else "right")
    for k in report.kernels:
        why = "; ".join(f"{count} × {reason}" for reason, count in k.skipped)
        table.add_row(k.kernel, str(k.launches), str(k.recorded), _dim(k.grid), _dim(k.block), _bytes(k.bytes), why)
    console = _console()
    console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", markup=False)


def _dim(d: Sequence[int] | None) -> str:
    return "" if d is None else "×".join(map(str, d[: 3 if d[2] != 1 else 2 if d[1] != 1 else 1]))


def _bytes(n: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.2f} GiB"


# ---------------------------------------------------------------- verdicts


_DIFF = {"---": "bold", "+++": "bold", "@@": "cyan", "-": "red", "+": "green"}


def show_evidence(evidence: Mapping[str, Any]) -> None:
    """The diff in colour, then the evidence."""
    from cuda_agent.judge.evidence import render_text

    console = _console()
    show_diff(console, evidence.get("diff") or "")
    render_text(console, evidence)


def show_diff(console: Console, diff: str) -> None:
    """In colour, whole lines: they are to be read and copied."""
    for line in diff.splitlines():
        style = next((style for start, style in _DIFF.items() if line.startswith(start)), "")
        console.print(Text(line, style=style), soft_wrap=True)
    if diff:
        console.print()


def outcome_json(best: Outcome, outcomes: Sequence[Outcome], whole: Together | None = None) -> dict[str, Any]:
    """The contract's object for the best outcome, with one short row for each kernel under `kernels`. `together` says
    what is known of the file with the edits of several kernels."""
    data = dict(best.evidence) or {
        "status": best.status,
        "evidence_level": "none",
        "inputs": "",
        "gates": [],
        "timing": None,
        "diff": "",
    }
    data |= {"status": best.status, "kernel": best.kernel, "message": best.message, "tried": best.tried}
    data["kernels"] = [
        {
            "kernel": o.kernel,
            "status": o.status,
            "message": o.message,
            "limiter": o.limiter,
            "left": o.left,
            "tried": o.tried,
            "seconds": round(o.seconds, 2),
            "share": o.share,
            "diff": o.diff,
            "evidence_level": o.evidence.get("evidence_level", "none"),
            "timing": o.evidence.get("timing"),
            "traffic": o.evidence.get("traffic", {}),
            "gates": o.evidence.get("gates", []),
            "origin": o.candidate.origin if o.candidate else None,
            "steps": [{"origin": s.candidate.origin, "score": s.score, "note": s.note} for s in o.steps],
        }
        for o in outcomes
    ]
    data["together"] = (
        {"kernels": whole.kernels, "left_out": whole.left_out, "sentence": whole.sentence} if whole else None
    )
    return data


def outcomes_table(outcomes: Sequence[Outcome], whole: Together | None) -> None:
    """One line a kernel, in the order in which they were searched."""
    from cuda_agent.agent.program import table as cells

    heads, rows = cells(outcomes)
    table = Table(box=None, pad_edge=False)
    for head in heads:
        justify: Literal["left", "right"] = "left" if head in ("kernel", "result", "gain", "rules") else "right"
        table.add_column(head, justify=justify, no_wrap=head != "rules", overflow="fold")
    colours = {"verified": "green", "undecided": "yellow", "rejected": "red"}
    for row in rows:
        table.add_row(*(Text(cell, style=colours.get(cell, "") if at == 2 else "") for at, cell in enumerate(row)))
    console = _console()
    console.print(table)
    if whole:
        left = f" Left out: {', '.join(whole.left_out)}, whose edits touch the same lines." if whole.left_out else ""
        console.print(f"Together: {whole.sentence}.{left}", markup=False)


def show_outcome(outcome: Outcome) -> None:
    if outcome.evidence:
        show_evidence(outcome.evidence)
        if outcome.left:
            _console().print(f"What is left: {outcome.left}.", markup=False)
    else:
        _console().print(f"{outcome.kernel}: {outcome.message}", markup=False)


def bench_table(result: Mapping[str, Any]) -> None:
    table = Table(title=f"{result['kernel']} on {result['device']}")
    for column in ("launch", "time", "A/A ratio", "95 % interval", "noise floor", "clock"):
        table.add_column(column, justify="left" if column == "launch" else "right")
    for row in result["launches"]:
        lo, hi = row["ci"]
        table.add_row(
            row["shape"],
            f"{row['us']:.2f} µs",
            f"{row['ratio']:.4f}",
            f"{lo:.4f} – {hi:.4f}",
            f"{row['noise_floor']:.2%}",
            f"{row['clock_mhz']:.0f} MHz" if row["clock_mhz"] else "unknown",
        )
    _console().print(table)


# ---------------------------------------------------------------- doctor


def doctor() -> dict[str, Any]:
    """What is here: one row a thing, `ok`, what was found, and what to do when it is not."""
    from cuda_agent import device
    from cuda_agent.device import sanitizer

    rows: list[dict[str, Any]] = [
        {
            "thing": "Python",
            "ok": sys.version_info >= (3, 11),
            "found": platform.python_version(),
            "todo": "install Python 3.11 or newer",
        }
    ]
    gxx = shutil.which("g++")
    rows.append(
        {"thing": "g++ (emulator, capture)", "ok": gxx is not None, "found": gxx or "", "todo": "apt install g++"}
    )
    try:
        tool = nvcc.find()
        rows.append(
            {
                "thing": "nvcc (facts, GPU)",
                "ok": True,
                "found": f"{'.'.join(map(str, tool.version))} at {tool.path}",
                "todo": "",
            }
        )
    except ToolMissing as error:
        rows.append({"thing": "nvcc (facts, GPU)", "ok": False, "found": "", "todo": str(error)})
    checker = {"thing": "compute-sanitizer (G7 on a GPU)", "ok": True, "found": "", "todo": ""}
    try:
        found_checker = sanitizer.find()
        rows.append({**checker, "found": f"{found_checker.version} at {found_checker.path}"})
    except ToolMissing as error:
        rows.append({**checker, "ok": False, "todo": str(error)})
    rows.append(
        {
            "thing": "sandbox (bubblewrap)",
            "ok": sandbox.available(),
            "found": shutil.which("bwrap") or "",
            "todo": "apt install bubblewrap; text from a model is not compiled without it",
        }
    )
    for one in device.probe():
        name, found = one.spec, one.info
        if found is None:
            rows.append({"thing": name, "ok": False, "found": "", "todo": one.reason})
        else:
            rows.append(
                {"thing": name, "ok": True, "found": f"{found.name} ({found.arch}, {found.sms} SMs)", "todo": ""}
            )
    return {"status": "done", "checks": rows}


def doctor_table(found: Mapping[str, Any]) -> None:
    table = Table(title="cuda-agent doctor")
    table.add_column("")
    table.add_column("what")
    table.add_column("found, or what to do")
    for row in found["checks"]:
        table.add_row(
            "[green]✓[/]" if row["ok"] else "[yellow]✗[/]", row["thing"], row["found"] if row["ok"] else row["todo"]
        )
    _console().print(table)
