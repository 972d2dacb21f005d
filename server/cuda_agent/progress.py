"""Progress on stderr: on a terminal a bar and, while a search runs, a table of its candidates; plain lines
elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from cuda_agent.agent import live

ROWS = 12  # candidates in the table: the best one stays, the others are the newest
_AROUND = 40  # columns of the bar, the spinner and the clock


def _launch(event: Mapping[str, Any]) -> str:
    """`softmax_rows<<<2, 256>>>: 1.2 MiB kept`, or why it was not kept."""
    shape = ", ".join(_dims(event.get(key) or ()) for key in ("grid", "block"))
    kept = f"{int(event.get('bytes') or 0) / 2**20:.1f} MiB kept"
    skipped = event.get("skipped")
    return f"{event.get('kernel')}<<<{shape}>>>: {f'not kept, {skipped}' if skipped else kept}"


def _dims(dims: Sequence[int]) -> str:
    used = [n for at, n in enumerate(dims) if any(m != 1 for m in dims[at:])] or [1]
    return str(used[0]) if len(used) == 1 else f"({', '.join(map(str, used))})"


class SearchTable:
    """The candidates of one kernel's search as a table."""

    def __init__(self) -> None:
        self.kernel = ""
        self.numbers = ""
        self.trying = ""
        self.best: Mapping[str, Any] | None = None
        self.rows: deque[Mapping[str, Any]] = deque(maxlen=ROWS)

    def event(self, event: Mapping[str, Any]) -> None:
        """Takes any event; those of a search name their kernel."""
        kernel = event.get("search")
        if kernel is None:
            return
        if kernel != self.kernel:
            self.rows.clear()
            self.kernel, self.best, self.trying = kernel, None, ""
        self.numbers = live.numbers(event)
        self.trying = live.message(event) if event["event"] == "trying" else ""
        if event["event"] == "candidate":
            self.rows.append(event)
            score = event.get("score")
            if score is not None and (self.best is None or score > self.best["score"]):
                self.best = event

    def render(self) -> RenderableType:
        if not self.kernel:
            return Text("")
        table = Table(
            box=None, pad_edge=False, expand=True, title_justify="left", title=Text(self.kernel, style="bold")
        )
        table.add_column("", width=1)
        table.add_column("candidate", ratio=3, overflow="ellipsis", no_wrap=True)
        table.add_column("gain", no_wrap=True, justify="right")
        table.add_column("95 % interval", no_wrap=True)
        table.add_column("", ratio=3, overflow="ellipsis", no_wrap=True)
        shown = list(self.rows)
        if self.best is not None and self.best not in shown:
            shown = [self.best, *shown[1:]]
        for row in shown:
            table.add_row(*self._cells(row))
        if self.trying:
            table.add_row(Text("…", style="dim"), Text(self.trying, style="dim"))
        return Group(table, Text(self.numbers, style="cyan"))

    def _cells(self, row: Mapping[str, Any]) -> tuple[Text, ...]:
        name = str(row["origin"]).removeprefix("rule:")
        if row.get("score") is None:
            return (
                Text("✗", style="red"),
                Text(name, style="dim"),
                Text(""),
                Text(""),
                Text(str(row["note"]), style="dim"),
            )
        style = "bold green" if row is self.best else ""
        ci, ratio = row.get("ci"), row.get("ratio")
        gain = f"{ratio:.2f}×" if ratio else ""
        interval = f"[{ci[0]:.2f}, {ci[1]:.2f}]" if ci else ""
        words = str(row["note"] or ("" if ratio else row["gain"]))
        return (
            Text("✓", style="green"),
            Text(name, style=style),
            Text(gain, style=style),
            Text(interval, style=style),
            Text(words, style="dim"),
        )


class Progress:
    """Shows the events of a job: `message`, `percentage`, and a search's candidates."""

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._quiet = quiet
        self._last = ""
        self._live: Live | None = None
        self._table = SearchTable()

    def __enter__(self) -> Progress:
        if self._console.is_terminal and not self._quiet:
            columns = (SpinnerColumn(), BarColumn(24), TextColumn("{task.description}"), TimeElapsedColumn())
            self._bar = Bar(*columns, console=self._console)
            self._task = self._bar.add_task("", total=100)
            self._live = Live(get_renderable=self._picture, console=self._console, transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _picture(self) -> RenderableType:
        return Group(self._table.render(), self._bar) if self._table.kernel else self._bar

    def event(self, event: Mapping[str, Any]) -> None:
        message = live.message(event) or (_launch(event) if event.get("type") == "launch" else "")
        if self._quiet or not message:
            return
        self._table.event(event)
        kind, percentage = event.get("event", event.get("type")), event.get("percentage")
        if self._live is not None:
            if kind in ("log", "note", "output", "launch"):
                self._console.print(f"  {message}", style="dim", markup=False, highlight=False)
            room = max(20, self._console.width - _AROUND)
            shown = message if len(message) <= room else message[: room - 1] + "…"
            self._bar.update(self._task, description=shown.replace("[", r"\["), completed=percentage)
            return
        if kind == "trying" or (kind == "gate" and event.get("status") == "not-run" and not event.get("undecided")):
            return
        if message != self._last:
            self._last = message
            numbers = live.numbers(event) if kind == "candidate" else ""
            words = f"{message} ({numbers})" if numbers else message
            print(f"[{percentage:3.0f} %] {words}" if percentage is not None else words, file=sys.stderr, flush=True)
