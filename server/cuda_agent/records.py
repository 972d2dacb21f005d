"""Recorded searches and comparisons on a terminal: the list, one search to be read, an export, what a replay found,
policies side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cuda_agent.agent import recorded
from cuda_agent.agent.recorded import Json, Recorded
from cuda_agent.compare import Comparison
from cuda_agent.compare_page import cells, gain, heads
from cuda_agent.replay import Replay, word
from cuda_agent.workload.bundle import write_atomic

STYLE = {"verified": "green", "rejected": "red", "undecided": "yellow", "stopped": "yellow", "not ended": "yellow"}
MARK = {True: Text("✓", style="green"), False: Text("✗", style="red"), None: Text("?", style="yellow")}


def _console() -> Console:
    return Console(highlight=False)


# ---------------------------------------------------------------- the list


def rows(words: Sequence[str]) -> list[dict[str, Any]]:
    """Oldest first. UsageError for a word that names none."""
    return [recorded.row(*found) for found in recorded.summaries(recorded.find(words))]


def table(found: Sequence[Json]) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)  # nothing folded for `grep`
    if not found:
        console.print("no search was recorded yet: `cuda-agent optimize FILE` makes one", markup=False)
        return
    shown = Table(box=None, pad_edge=False)
    for head in ("id", "date", "kernel", "device", "policy", "result", "tried", "best", "reward"):
        justify: Literal["left", "right"] = "right" if head in ("tried", "reward") else "left"
        wraps = head in ("kernel", "device", "policy")
        shown.add_column(head, no_wrap=not wraps, justify=justify, min_width=6, max_width=32, overflow="fold")
    for row in found:
        shown.add_row(
            Text(str(row["id"]).rpartition("-")[2], style="dim"),
            Text(str(row["date"]).replace("T", " ")[2:16], style="dim"),
            Text(str(row["kernel"]), style="bold"),
            Text(str(row["device"]).partition(" (")[0]),
            Text(str(row["policy"])),
            Text(str(row["status"]), style=STYLE.get(str(row["status"]), "")),
            Text("" if row["tried"] is None else str(row["tried"])),
            Text(str(row["gain"])),
            Text(_reward(row["reward"])),
        )
    console.print(shown)


def _reward(value: int | None) -> str:
    return "" if value is None else str(value).replace("-", "−")


# ---------------------------------------------------------------- one search


def searches(words: Sequence[str]) -> list[Recorded]:
    return [one for path in recorded.find(words) for one in recorded.read(path)]


def show(found: Sequence[Recorded]) -> None:
    console = _console()
    for one in found:
        for line in _lines(one):
            console.print(line, soft_wrap=True)


def _lines(found: Recorded) -> Iterator[Text]:
    start, end = found.start, found.end
    yield Text(f"{start['kernel']} in {start['file']} · {start['policy']} on {start['device']}", style="bold")
    budget, count = start["budget"], f"{start['launches']} launch{'' if start['launches'] == 1 else 'es'}"
    yield Text(
        f"{found.id} · {start['date']} · {start['inputs']} inputs, {count} · budget "
        f"{budget.get('seconds')} s, {budget.get('candidates')} candidates",
        style="dim",
    )
    for sentence in found.skipped:
        yield Text(sentence, style="yellow")
    for line in found.lines[1:]:
        yield from _STEPS.get(line["step"], _nothing)(line)
    yield Text("")
    if end is None:
        yield Text("the search did not end: it still runs, or was killed", style="yellow")
        return
    earned = f" · reward {_reward(end['reward'])}" if end.get("reward") is not None else ""
    gain = recorded.gain(end)
    words = f"{end['status']}{f' · {gain}' if gain else ''}{earned}"
    yield Text(f"{words} · {end['tried']} tried in {end['seconds']:.0f} s")
    yield Text(end["message"], style=STYLE.get(end["status"], ""))
    if end.get("rules"):
        yield Text(f"held against {end['rules'].get('ratio')}× by the rules ({end['rules'].get('from')})", style="dim")
    yield Text("")


def _nothing(line: Json) -> Iterator[Text]:
    return iter(())


def _message(line: Json) -> Iterator[Text]:
    who = {"assistant": "model", "tool": f"  {line.get('tool') or 'tool'}"}.get(line["role"], line["role"])
    tokens = f" ({line['usage'][1]} tokens)" if line.get("usage") else ""
    example = " (in the example)" if line["role"] == "assistant" and not tokens else ""
    yield Text("")
    yield Text(f"{who}{tokens}{example}", style="cyan")
    for text in str(line.get("text") or "").splitlines():
        yield Text(f"  {_clipped(text)}")
    for call in line.get("calls") or ():
        yield Text(f"  → {call['name']}", style="bold")
        for name, value in dict(call.get("arguments") or {}).items():
            first, *others = (value if isinstance(value, str) else json.dumps(value)).splitlines() or [""]
            yield Text(f"    {name}: {_clipped(first)}")
            yield from (Text(f"      {other}") for other in others)


def _clipped(text: str) -> str:
    """A runaway reply is one line of megabytes."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… {len(text) - _LONGEST:,} more characters"


_LONGEST = 1000


def _candidate(line: Json) -> Iterator[Text]:
    name = str(line["origin"]).removeprefix("rule:")
    gain = recorded.gain(line)
    words = f"{word(line)}{f' · {gain}' if gain and line.get('status') == 'verified' else ''}"
    yield Text.assemble(
        MARK[line.get("score") is not None],
        (f" {name}", "bold"),
        f": {words}",
        (f" · reward {_reward(line['reward'])}" if line.get("reward") is not None else "", "dim"),
        (f" · {line['seconds']:.1f} s", "dim"),
    )
    if line.get("status") == "rejected" or (line.get("log") and line.get("status") is None):
        yield Text(f"    {line['note']}", style="dim")


def _full(line: Json) -> Iterator[Text]:
    gain = recorded.gain(line)
    text = f" full verdict on {line['id']}: {word(line)}{f' · {gain}' if gain else ''}"
    yield Text.assemble(MARK[line["status"] == "verified"], (text, "bold"))


def _shortened(line: Json) -> Iterator[Text]:
    yield Text(f"… the conversation was made short: {line['dropped']} messages left out", style="dim")


_STEPS = {"message": _message, "candidate": _candidate, "full": _full, "shortened": _shortened}


# ---------------------------------------------------------------- export


def export(words: Sequence[str], out: Path) -> tuple[int, list[str]]:
    """How many searches were written, and sentences on what was left out. A file of another version is left out."""
    skipped: list[str] = []
    objects: list[str] = []
    kept = set(recorded.find(())) if not words else set()
    readable = {name for name, _, _ in recorded.summaries(kept)}
    for path in recorded.find(words):
        if path in kept and path.stem not in readable:
            skipped.append(f"{path.name} is of another version, or damaged: it is left out")
            continue
        for one in recorded.read(path):
            skipped += one.skipped
            objects.append(json.dumps(recorded.export(one)))
    write_atomic(out, "".join(f"{line}\n" for line in objects).encode())
    return len(objects), skipped


# ---------------------------------------------------------------- replay


def show_replays(replays: Sequence[Replay]) -> None:
    console = _console()
    for one in replays:
        console.print(Text(f"{one.kernel} · {one.id}", style="bold"), soft_wrap=True)
        for row in one.rows:
            now = "" if row.same and row.now == row.then else f"; now: {row.now}"
            console.print(Text.assemble(MARK[row.same], f" {row.name}: {row.then}{now}"), soft_wrap=True)
        for sentence in one.differs:
            console.print(Text(f"note: {sentence}", style="dim"), soft_wrap=True)
        console.print(Text.assemble(MARK[one.holds], (f" {one.sentence}", "bold")), soft_wrap=True)


# ---------------------------------------------------------------- side by side


def show_comparison(found: Comparison) -> None:
    console = _console()
    kernels = Table(box=None, pad_edge=False)
    kernels.add_column("kernel")
    for policy in found.policies:
        kernels.add_column(policy, justify="right")
    for file, kernel in dict.fromkeys((one.file, one.kernel) for one in found.searches):
        of = {one.policy: gain(one, found.timed) for one in found.of(file, kernel)}
        name = Text.assemble((kernel, "bold"), (f" {file}", "dim"))
        kernels.add_row(name, *(Text(of.get(policy, "not finished")) for policy in found.policies))
    console.print(kernels)
    console.print()
    totals = Table(box=None, pad_edge=False)
    for at, head in enumerate(heads(found)):
        totals.add_column(head, justify="left" if at == 0 else "right")
    for total in found.totals:
        totals.add_row(*map(Text, cells(total)))
    console.print(totals)
    if not found.timed:
        console.print("nothing is timed: gains are predicted memory sectors, before over after", style="yellow")
    for note in found.notes:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)
