"""The evidence on a terminal: one screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cuda_agent.judge.evidence.words import number, numeric_class, numeric_rows, time, traffic_sentence

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_STYLE = {"pass": "green", "fail": "bold red", "not-run": "dim"}
_MARK = {"pass": "✓ pass", "fail": "✗ fail", "not-run": "· not run"}
_STATUS = {"verified": "green", "rejected": "red", "undecided": "yellow"}


def render_text(console: Console, evidence: Mapping[str, Any]) -> None:
    """Print one screen: headline, gates, timing interval, numeric table, predicted traffic. `evidence` is
    `to_json`'s."""
    from rich.panel import Panel
    from rich.text import Text

    if again := evidence.get("again"):
        colour = {True: "bold green", False: "bold red", None: "bold yellow"}[again["holds"]]
        console.print(Text(again["sentence"], style=colour))
        for line in again["differs"]:
            console.print(Text(f"· {line}", style="yellow"))
        console.print()
    level = evidence["evidence_level"]
    title = f"{evidence['status']} · evidence: {level} · {evidence['inputs']}"
    console.print(Panel(Text(evidence["headline"]), title=Text(title), border_style=_STATUS[evidence["status"]]))
    console.print(_gates_table(evidence["gates"]))
    if evidence["timing"]:
        console.print(_timing_lines(evidence["timing"]))
    elif evidence["status"] == "verified":
        console.print(Text("time: not measured", style="dim"))
    numeric = _numeric_table(numeric_rows(evidence))
    if numeric is not None:
        console.print(numeric)
    sentence = traffic_sentence(evidence["traffic"])
    if sentence and evidence["status"] == "verified":
        measured = "" if evidence["timing"] else "; not measured"
        console.print(Text(f"{sentence}{measured}", style="cyan"))
    for assumption in (evidence.get("candidate") or {}).get("assumptions", ()):
        console.print(Text(f"{assumption['known']}: {assumption['text']}", style="dim"))


def _gates_table(gates: Sequence[Mapping[str, Any]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    for gate in gates:
        style = "yellow" if gate["undecided"] else _STYLE[gate["status"]]
        table.add_row(
            gate["id"],
            gate["name"],
            Text(_MARK[gate["status"]], style=style),
            Text(f"{gate['seconds']:.1f} s" if gate["seconds"] >= 0.05 else "", style="dim"),
            Text(gate["detail"], style=style),
        )
    return table


def _timing_lines(timing: Mapping[str, Any]) -> RenderableType:
    from rich.text import Text

    low, high = timing["ci"]
    text = Text()
    text.append(f"time: {time(timing['original_us'])} → {time(timing['candidate_us'])} on {timing['device']}, ")
    text.append(f"{timing['label']} {timing['ratio']:.3f}× [{low:.3f}, {high:.3f}]", style="bold")
    if timing.get("warm_ratio"):
        text.append(f", warm L2 {timing['warm_ratio']:.2f}×")
    text.append(f", noise floor {timing['noise_floor'] * 100:.1f} %\n")
    text.append(interval_bar(timing["ratio"], (low, high)))
    for shape in timing["per_launch"] if len(timing["per_launch"]) > 1 else ():
        text.append(f"\n  {shape['shape']}: {shape['ratio']:.3f}× [{shape['ci'][0]:.3f}, {shape['ci'][1]:.3f}]")
    return text


def interval_bar(ratio: float, ci: tuple[float, float], width: int = 60) -> str:
    """The interval on a line from min(0.8, lo) to max(1.25, hi): `│` at 1, `─` the interval, `●` the ratio."""
    left, right = min(0.8, ci[0] * 0.95), max(1.25, ci[1] * 1.05)

    def at(value: float) -> int:
        return min(width - 1, max(0, round((value - left) / (right - left) * (width - 1))))

    cells = ["·"] * width
    cells[at(1.0)] = "│"
    for cell in range(at(ci[0]), at(ci[1]) + 1):
        cells[cell] = "─"
    cells[at(ratio)] = "●"
    return f"{left:.2f} {''.join(cells)} {right:.2f}"


def _numeric_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType | None:
    """The G3 differences, a row a buffer that is not bit-exact; one line when all are."""
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return None
    if all(row["class"] == "bit-exact" for row in rows):
        return Text(f"numeric: bit-exact in {len(rows)} written buffer{'' if len(rows) == 1 else 's'}", style="green")
    table = Table(box=None, pad_edge=False, title="numeric", title_justify="left")
    for heading in ("buffer", "class", "elements", "differ", "max abs", "allowed", "max ulp", "rel L2"):
        table.add_column(heading, justify="left" if heading in ("buffer", "class") else "right")
    for row in rows:
        klass = numeric_class(row)
        table.add_row(
            str(row["buffer"]),
            Text(klass, style="" if klass == row["class"] else "bold red"),
            *(number(row.get(key)) for key in ("elements", "differing", "max_abs", "allowed", "max_ulp", "rel_l2")),
        )
    return table
