"""Progress on stderr: a rich bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


def _launch(event: Mapping[str, Any]) -> str:
    """`softmax_rows<<<2, 256>>>: 1.2 MiB kept`, or why it was not kept."""
    shape = ", ".join(_dims(event.get(key) or ()) for key in ("grid", "block"))
    kept = f"{int(event.get('bytes') or 0) / 2**20:.1f} MiB kept"
    skipped = event.get("skipped")
    return f"{event.get('kernel')}<<<{shape}>>>: {f'not kept, {skipped}' if skipped else kept}"


def _dims(dims: Sequence[int]) -> str:
    used = [n for at, n in enumerate(dims) if any(m != 1 for m in dims[at:])] or [1]
    return str(used[0]) if len(used) == 1 else f"({', '.join(map(str, used))})"


_AROUND = 40  # columns of the bar, the spinner and the clock


class Progress:
    """Shows the events of a job: `message`, `percentage`. Rejected candidates stay visible as lines above the bar."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True)
        self._quiet = quiet
        self._last = ""
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal and not self._quiet:
            columns = (SpinnerColumn(), BarColumn(24), TextColumn("{task.description}"), TimeElapsedColumn())
            self._bar = Bar(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("", total=100)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def event(self, event: Mapping[str, Any]) -> None:
        message = str(
            event.get("message") or event.get("text") or (_launch(event) if event.get("type") == "launch" else "")
        )
        percentage = event.get("percentage")
        if self._quiet or not message:
            return
        kind = event.get("event", event.get("type"))
        if self._bar is not None:
            if kind in ("candidate", "log", "note", "output", "launch"):
                self._bar.console.print(f"  {message}", style="dim", markup=False, highlight=False)
            room = max(20, self._console.width - _AROUND)
            shown = message if len(message) <= room else message[: room - 1] + "…"
            self._bar.update(self._task, description=shown.replace("[", r"\["), completed=percentage)
            return
        if kind == "gate" and event.get("status") == "not-run" and not event.get("undecided"):
            return
        if message != self._last:
            print(
                f"[{percentage:3.0f} %] {message}" if percentage is not None else message, file=sys.stderr, flush=True
            )
            self._last = message
