"""How long things may take on a machine that does other work at the same time."""

from __future__ import annotations

import os


def patience(seconds: float) -> float:
    """`seconds` on an idle machine, longer by the processes that wait for each core (the load of the last minute)."""
    return seconds * (1 + os.getloadavg()[0] / (os.cpu_count() or 1))
