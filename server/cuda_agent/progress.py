"""Progress on stderr: a rich bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


def _launch(event: Mapping[str, Any]) -> str:
    """One recorded launch as a line; launches that are only counted say nothing."""
    if event.get("skipped"):
        return f"{event.get('kernel')}: not kept: {event['skipped']}"
    grid, block = (tuple(event.get(k) or ()) for k in ("grid", "block"))
    return f"{event.get('kernel')} <<<{grid}, {block}>>> kept, {int(event.get('bytes') or 0) / 2**20:.1f} MiB"


class Progress:
    """Shows the events of a job: `message`, `percentage`. Rejected candidates stay visible as lines above the bar."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True)
        self._quiet = quiet
        self._last = ("", 0.0)
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
        if self._bar is not None:
            if event.get("event", event.get("type")) in ("candidate", "log", "note", "output", "launch"):
                self._bar.console.print(f"  {message}", style="dim", markup=False, highlight=False)
            self._bar.update(self._task, description=message[:90], completed=percentage)
            return
        now = time.monotonic()
        if message != self._last[0]:
            print(
                f"[{percentage:3.0f} %] {message}" if percentage is not None else message, file=sys.stderr, flush=True
            )
            self._last = (message, now)
