"""What `hecbench.py` says of its rows: a table, the numbers that count, and the gallery of the largest gains."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

Row = Mapping[str, Any]
HEAD = (
    "| program | kernel | captured | share | original | of the bandwidth | limited by | ratio | 95 % interval "
    "| rules | level | s | tried | if nothing, why |"
)
FASTER = 1.05  # the lower end of the interval of a gain that counts
GALLERY = 12


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Rows and program entries of a results file; of several for one kernel the last. A broken last line (the bench
    was killed in it) is left out."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    programs: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "row" in entry:
            rows[entry["row"]["program"], entry["row"]["kernel"]] = entry["row"]
        elif "program" in entry:
            programs[entry["program"]] = entry
    return list(rows.values()), programs


def table(rows: Iterable[Row], programs: Mapping[str, Mapping[str, Any]]) -> str:
    """A line a kernel, programs in alphabetical order, the costliest kernel of each first."""
    lines = [HEAD, "|" + "---|" * HEAD.count(" | ") + "---|"]
    by_program: dict[str, list[Row]] = {}
    for row in rows:
        by_program.setdefault(row["program"], []).append(row)
    for name in sorted({*by_program, *programs}, key=str.lower):
        of_it = sorted(by_program.get(name, ()), key=lambda row: -(row["share"] or 0))
        lines += [_line(row) for row in of_it]
        if not of_it:
            lines.append(_cells(name, "—", *[""] * 11, programs[name].get("error") or "not finished"))
    return "\n".join(lines)


def _line(row: Row) -> str:
    ratio, interval = "", ""
    if row["ratio"] is not None:
        ratio, interval = f"{row['ratio']:.2f}×", f"{row['ci'][0]:.3f} – {row['ci'][1]:.3f}"
    floor, us = row["floor_us"], row["original_us"]
    return _cells(
        row["program"],
        row["kernel"],
        f"{row['captured']} of {row['launches']}",
        f"{row['share']:.0%}" if row["share"] is not None else "",
        f"{us:,.1f} µs" if us is not None else "",
        f"{floor / us:.0%}" if floor and us else "",
        row["limiter"],
        ratio,
        interval,
        row["rules"],
        row["level"] if row["level"] != "none" else "",
        f"{row['seconds']:.0f}",
        str(row["tried"]),
        why_nothing(row),
    )


def why_nothing(row: Row) -> str:
    """The reason of a kernel without a counted gain, empty for one that has it."""
    if faster(row):
        return ""
    why = row["why_not"] or row["message"]
    if row["status"] == "verified":
        why = {"FASTER": "below 1.05×", "": "correct, not measured"}.get(
            row["label"], f"correct, {row['label'].lower()}"
        )
    left = f"; {row['left']}" if row["left"] and row["judged"] and row["left"] not in why else ""
    cut = " (the bench's time ended first)" if row["cut"] else ""
    return f"{why}{left}{cut}"


def _cells(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


def faster(row: Row) -> bool:
    return row["status"] == "verified" and row["ci"] is not None and row["ci"][0] > FASTER


def gain(row: Row) -> float:
    """What the row counts in the mean: its ratio where it is verified and FASTER, else 1.0."""
    return float(row["ratio"]) if row["status"] == "verified" and row["label"] == "FASTER" else 1.0


def numbers(rows: Sequence[Row]) -> dict[str, Any]:
    """Kernels that the programs define but never launch are counted apart: no run can capture them."""
    launched = [row for row in rows if row["launches"]]
    captured = [row for row in launched if row["captured"]]
    judged = [row for row in captured if row["judged"]]
    won = [row for row in judged if faster(row)]
    mean = math.exp(sum(math.log(gain(row)) for row in judged) / len(judged)) if judged else None
    return {
        "defined": len(rows),
        "launched": len(launched),
        "captured": len(captured),
        "judged": len(judged),
        "faster": len(won),
        "programs": len({row["program"] for row in rows}),
        "programs_faster": len({row["program"] for row in won}),
        "mean": mean,
        "cut": sum(bool(row["cut"]) for row in rows),
        "full_failed": sum(row["full_failed"] for row in rows),
        "shown_failed": sum(row["shown_failed"] for row in rows),
    }


def summary(rows: Sequence[Row]) -> str:
    n = numbers(rows)
    launched, judged = n["launched"] or 1, n["judged"] or 1
    mean = f"{n['mean']:.3f}×" if n["mean"] else "—"
    lines = [
        f"- kernels captured and judged: {n['judged']} of {n['launched']} that the programs launch "
        f"({n['judged'] / launched:.0%}); captured {n['captured']}; {n['defined'] - n['launched']} more are defined "
        "and never launched in these runs",
        f"- verified faster with a lower end above {FASTER}: {n['faster']} of {n['judged']} judged "
        f"({n['faster'] / judged:.0%}), in {n['programs_faster']} of {n['programs']} programs",
        f"- geometric mean over all judged kernels, unsped ones as 1.0: {mean}",
        f"- candidates that passed the quick judge and failed the full one: {n['full_failed']}, of which shown to the "
        f"person as verified: {n['shown_failed']}",
    ]
    if n["cut"]:
        lines.append(f"- cut short by the bench's own end (run it again): {n['cut']}")
    return "\n".join(lines)


def gallery(rows: Iterable[Row]) -> str:
    """The largest gains, each with its diff and evidence."""
    won = sorted((row for row in rows if faster(row)), key=lambda row: -row["ci"][0])[:GALLERY]
    return "\n\n".join(_shown(number, row) for number, row in enumerate(won, 1))


def _shown(number: int, row: Row) -> str:
    evidence = row["evidence"]
    gates = evidence.get("gates", ())
    passed = ", ".join(gate["id"] for gate in gates if gate["status"] == "pass")
    missing = "; ".join(f"{gate['id']} {gate['detail']}" for gate in gates if gate["status"] == "not-run")
    assumed = [f"{a['text']} ({a['known']})" for a in (evidence.get("candidate") or {}).get("assumptions", ())]
    detail = {gate["id"]: gate["detail"] for gate in gates}
    facts = [
        f"{evidence.get('headline', row['message'])}. Rules: {row['rules']}.",
        f"Limited by: {row['left']}" if row["left"] else "",
        f"Numbers: {evidence['numeric']}." if evidence.get("numeric") else "",
        f"Hidden cases: {detail['G5']}." if detail.get("G5") else "",
        f"Physics: {detail['G11']}." if detail.get("G11") else "",
        f"Assumes: {'; '.join(assumed)}." if assumed else "",
        f"Gates passed: {passed}. Not run: {missing or 'none'}.",
    ]
    return "\n".join(
        [
            f"## {number}. {row['program']}, `{row['kernel']}`: {row['ratio']:.2f}×",
            " ".join(fact for fact in facts if fact),
            "",
            "```diff",
            row["diff"].rstrip("\n"),
            "```",
        ]
    )


def chart(rows: Iterable[Row]) -> str:
    """All judged kernels as bars, the largest gain first, on a logarithmic axis: an SVG that stands by itself."""
    judged = sorted((row for row in rows if row["judged"]), key=lambda row: -gain(row))
    left, width, line = 250, 520, 15
    decades = math.log10(max([2.0, *map(gain, judged)]))
    height = line * len(judged) + 40
    axis = [tick for tick in (1, 2, 5, 10, 20, 50, 100) if math.log10(tick) <= decades]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 70} {height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for tick in axis:
        x = left + width * math.log10(tick) / decades
        parts.append(f'<path d="M{x:.0f} 5V{height - 25}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.0f}" y="{height - 10}" text-anchor="middle" fill="#555">{tick}×</text>')
    for number, row in enumerate(judged):
        y = 8 + line * number
        long = width * math.log10(gain(row)) / decades
        said = f"{gain(row):.2f}×" if gain(row) > 1.0 else "nothing faster"
        name = escape(f"{row['program']}, {row['kernel']}")
        parts.append(f'<text x="{left - 6}" y="{y + 10}" text-anchor="end" fill="#222">{name}</text>')
        parts.append(f'<rect x="{left}" y="{y + 1}" width="{max(1.0, long):.1f}" height="{line - 4}" fill="#4a8f3c"/>')
        ink = "#222" if faster(row) else "#999"
        parts.append(f'<text x="{left + long + 6:.1f}" y="{y + 10}" fill="{ink}">{said}</text>')
    return "\n".join([*parts, "</svg>"])


def gave(rows: Iterable[Row]) -> str:
    """The verified gains as docs/rules/gave.json has them."""
    named = ("program", "kernel", "rules", "ratio", "ci", "device", "date")
    won = sorted((row for row in rows if faster(row)), key=lambda row: (row["program"], row["kernel"]))
    return json.dumps([{name: row[name] for name in named} for row in won], indent=1)
