"""`evidence.json`, schema version 1, and its rendering. The fields are described in docs/evidence.md.

The JSON is what `--json` prints and what travels from the engine to the editor; it holds the whole verdict
(`from_json` gives it back). Nothing here imports numpy: the server process renders evidence too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from cuda_agent.errors import UsageError
from cuda_agent.model import Candidate, GateResult, Proposal, Timing, Verdict

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

SCHEMA = 1
Json = dict[str, Any]


def to_json(
    verdict: Verdict,
    proposal: Proposal | None = None,
    *,
    candidate: Candidate | None = None,
    diff: str | None = None,
    kernel: str | None = None,
    file: str | None = None,
) -> Json:
    """One JSON object. `candidate`, `diff` and `kernel` default to the proposal's; what is not known is null."""
    candidate = candidate or (proposal.candidate if proposal else None)
    diff = diff if diff is not None else (proposal.diff if proposal else None)
    data: Json = {
        "schema": SCHEMA,
        "status": verdict.status,
        "evidence_level": verdict.level,
        "faster": verdict.faster,
        "headline": headline(verdict),
        "kernel": kernel or (candidate.kernel if candidate else None),
        "file": file,
        "inputs": verdict.inputs,
        "numeric": verdict.numeric,
        "gates": [_gate_json(gate) for gate in verdict.gates],
        "timing": _timing_json(verdict.timing),
        "traffic": dict(verdict.traffic),
        "record": dict(verdict.record),
        "candidate": _candidate_json(candidate),
        "proposal": {"id": proposal.id, "uri": proposal.uri, "source_hash": proposal.source_hash} if proposal else None,
        "diff": diff,
    }
    return cast(Json, json.loads(json.dumps(data, default=_plain, allow_nan=True), parse_constant=str))


def from_json(data: Mapping[str, Any]) -> Verdict:
    """The verdict inside an evidence object. Raises UsageError for another schema."""
    if data.get("schema") != SCHEMA:
        raise UsageError(f"this evidence has schema {data.get('schema')!r}; this version reads {SCHEMA}: judge again")
    timing = data["timing"]
    return Verdict(
        status=data["status"],
        level=data["evidence_level"],
        gates=tuple(GateResult(**gate) for gate in data["gates"]),
        inputs=data["inputs"],
        numeric=data["numeric"],
        timing=Timing(
            **{
                **timing,
                "ci": tuple(timing["ci"]),
                "cycles_ci": tuple(timing["cycles_ci"]) if timing.get("cycles_ci") else None,
                "per_launch": tuple((s["shape"], s["ratio"], *s["ci"]) for s in timing["per_launch"]),
            }
        )
        if timing
        else None,
        traffic=dict(data["traffic"]),
        record=dict(data["record"]),
    )


def _gate_json(gate: GateResult) -> Json:
    return {
        "id": gate.id,
        "name": gate.name,
        "status": gate.status,
        "detail": gate.detail,
        "seconds": round(gate.seconds, 4),
        "data": dict(gate.data),
        "undecided": gate.undecided,
    }


def _timing_json(timing: Timing | None) -> Json | None:
    if timing is None:
        return None
    data = asdict(timing)
    data["ci"] = list(timing.ci)
    data["cycles_ci"] = list(timing.cycles_ci) if timing.cycles_ci else None
    data["per_launch"] = [
        {"shape": shape, "ratio": ratio, "ci": [low, high]} for shape, ratio, low, high in timing.per_launch
    ]
    return data


def _candidate_json(candidate: Candidate | None) -> Json | None:
    if candidate is None:
        return None
    return {
        "id": candidate.id,
        "kernel": candidate.kernel,
        "origin": candidate.origin,
        "numeric": candidate.numeric,
        "launch": asdict(candidate.launch),
        "assumptions": [asdict(assumption) for assumption in candidate.assumptions],
    }


def _plain(value: Any) -> Any:
    """What json does not know: paths, tuples inside mappings, numpy scalars."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)


# ---------------------------------------------------------------- words


def headline(verdict: Verdict) -> str:
    """One sentence that says no more than its evidence level allows (design.md, "Evidence levels")."""
    if verdict.status == "rejected":
        gate = next((gate for gate in verdict.gates if gate.status == "fail"), None)
        return f"Rejected by {gate.id} ({gate.name}): {gate.detail}" if gate else "Rejected"
    if verdict.status == "undecided":
        gate = next((gate for gate in verdict.gates if gate.undecided), None)
        return f"Could not decide: {gate.detail}" if gate else "Could not decide"
    if verdict.record.get("same_code"):
        return "No change: the candidate is the same code as the original"
    inputs = verdict.inputs.partition(":")[0]
    program = _program(verdict)
    timing = verdict.timing
    device = verdict.record.get("device")
    if verdict.level == "emulated" or (isinstance(device, dict) and device.get("kind") == "emulator"):
        traffic = traffic_sentence(verdict.traffic)
        where = f"{program} on the emulator" if program else ""
        return (
            f"Same results on {_launches(verdict)} ({inputs} inputs){where}; {f'{traffic}; ' if traffic else ''}not "
            "measured"
        )
    if timing is None:
        return f"Same results on {_launches(verdict)} ({inputs} inputs){program}; not measured"
    numbers = f"{timing.ratio:.2f}× [{timing.ci[0]:.2f}, {timing.ci[1]:.2f}] on {timing.device}, {inputs} inputs"
    if verdict.faster:
        return numbers + program
    words = {"SAME": "no change in time", "SLOWER": "slower", "AMBIGUOUS": "no difference above the noise"}
    return f"Same results, {words.get(timing.label, 'not a win')}: {numbers}{program}"


def _program(verdict: Verdict) -> str:
    """What may be said of the person's program, empty below the level `in-program`."""
    if verdict.level != "in-program":
        return ""
    data = next((gate.data for gate in verdict.gates if gate.id == "G13"), {})
    before, after = data.get("seconds_before"), data.get("seconds_after")
    time = f", {before:.2f} s → {after:.2f} s as a whole" if before and after else ""
    return f"; your program's output is unchanged{' but for rounding' if data.get('rounded') else ''}{time}"


def _launches(verdict: Verdict) -> str:
    count = verdict.record.get("launches", {}) if isinstance(verdict.record.get("launches"), dict) else {}
    number = count.get("judged")
    return f"{number} launch{'' if number == 1 else 'es'}" if number else "every launch"


def traffic_sentence(traffic: Mapping[str, float]) -> str:
    """`predicted sectors 12.0 M → 1.5 M (−87 %)`, empty when nothing was counted."""
    before, after = traffic.get("sectors_before"), traffic.get("sectors_after")
    if not before or after is None:
        return ""
    change = (after - before) / before * 100
    if before == after:
        return f"predicted sectors unchanged ({_count(before)})"
    sign = "−" if change < 0 else "+"
    return f"predicted sectors {_count(before)} → {_count(after)} ({sign}{abs(change):.0f} %)"


def _count(number: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f} {unit}"
    return f"{number:.0f}"


def _time(us: float) -> str:
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    return f"{us / 1e3:.3f} ms" if us >= 1e3 else f"{us:.2f} µs"


# ---------------------------------------------------------------- one screen

_STYLE = {"pass": "green", "fail": "bold red", "not-run": "dim"}
_MARK = {"pass": "✓ pass", "fail": "✗ fail", "not-run": "· not run"}
_STATUS = {"verified": "green", "rejected": "red", "undecided": "yellow"}


def render_text(console: Console, evidence: Mapping[str, Any]) -> None:
    """Print one screen: headline, gates, timing interval, numeric table, predicted traffic. `evidence` is
    `to_json`'s."""
    from rich.panel import Panel
    from rich.text import Text

    level = evidence["evidence_level"]
    title = f"{evidence['status']} · evidence: {level} · {evidence['inputs']}"
    console.print(Panel(Text(evidence["headline"]), title=Text(title), border_style=_STATUS[evidence["status"]]))
    console.print(_gates_table(evidence["gates"]))
    if evidence["timing"]:
        console.print(_timing_lines(evidence["timing"]))
    elif evidence["status"] == "verified":
        console.print(Text("time: not measured", style="dim"))
    numeric = _numeric_table(evidence["gates"])
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
    text.append(f"time: {_time(timing['original_us'])} → {_time(timing['candidate_us'])} on {timing['device']}, ")
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


def _numeric_table(gates: Sequence[Mapping[str, Any]]) -> RenderableType | None:
    """The G3 differences, a row a buffer that is not bit-exact; one line when all are."""
    from rich.table import Table
    from rich.text import Text

    rows = [row for gate in gates if gate["id"] == "G3" for row in gate["data"].get("numeric", ())]
    if not rows:
        return None
    if all(row["class"] == "bit-exact" for row in rows):
        return Text(f"numeric: bit-exact in {len(rows)} written buffer{'' if len(rows) == 1 else 's'}", style="green")
    table = Table(box=None, pad_edge=False, title="numeric", title_justify="left")
    for heading in ("buffer", "class", "elements", "differ", "max abs", "allowed", "max ulp", "rel L2"):
        table.add_column(heading, justify="left" if heading in ("buffer", "class") else "right")
    for row in rows:
        table.add_row(
            str(row["buffer"]),
            row["class"],
            *(_number(row.get(key)) for key in ("elements", "differing", "max_abs", "allowed", "max_ulp", "rel_l2")),
        )
    return table


def _number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
