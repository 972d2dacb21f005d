"""The sentences and numbers of the evidence, the same on a terminal, on the page and in an editor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuda_agent.model import Verdict


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
        return f"predicted sectors unchanged ({count(before)})"
    sign = "−" if change < 0 else "+"
    return f"predicted sectors {count(before)} → {count(after)} ({sign}{abs(change):.0f} %)"


def count(number: float) -> str:
    """`1.5 M`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f} {unit}"
    return f"{number:.0f}"


def time(us: float) -> str:
    """`43.30 µs`, `2.150 ms`."""
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    return f"{us / 1e3:.3f} ms" if us >= 1e3 else f"{us:.2f} µs"


def number(value: Any) -> str:
    """A number of a table: integers with separators, others with three digits; empty for none."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def numeric_class(row: Mapping[str, Any]) -> str:
    """What a row of G3's numeric table may be called: its class, unless the numeric rule does not allow it. Distances
    are over finite elements only, so a NaN in the wrong place shows in none of them."""
    if row.get("nan_mismatch"):
        return f"{row['nan_mismatch']:,} NaN or Inf misplaced"
    if row.get("within") is False:
        return "beyond what is allowed"
    return str(row["class"])


def numeric_rows(evidence: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """G3's rows, one a written buffer of a launch."""
    return [row for gate in evidence["gates"] if gate["id"] == "G3" for row in gate["data"].get("numeric", ())]
