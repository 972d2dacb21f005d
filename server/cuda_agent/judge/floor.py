"""The noise floor of a GPU on one day: what A/A runs on it have shown, kept in the cache.

One A/A run of one kernel can be lucky. So every judgement adds its own to the day's, and no claim may be finer than
the median of the day's floors for kernels of about that length. A search, which judges many candidates shortly, takes
the day's floor in place of an A/A run of its own.
"""

from __future__ import annotations

import datetime
import platform
import statistics

from cuda_agent import cache
from cuda_agent.device.info import DeviceInfo

ALIKE = 3.0  # launches are about as long when neither takes more than this many times the other
ENOUGH = 3  # A/A runs before a day's floor means something
KEPT = 200  # newest runs


store = cache.default


def _key(info: DeviceInfo, day: datetime.date) -> str:
    """By machine as well: a cache folder may be shared by several."""
    parts = (platform.node(), info.name, info.kind, info.index, info.driver, day.isoformat())
    return store().key("noise-floors", parts)


def remember(info: DeviceInfo, us: float, floor: float, day: datetime.date | None = None) -> None:
    """Add one A/A run's relative floor for a kernel of `us` microseconds. Two processes may lose one of theirs."""
    key = _key(info, day or datetime.date.today())
    store().set(key, (*store().get(key, ()), (us, floor))[-KEPT:])


def of_day(info: DeviceInfo, us: float, day: datetime.date | None = None) -> tuple[float, int] | None:
    """Median relative floor of that day for kernels about as long, and of how many runs; None with fewer than
    `ENOUGH`."""
    seen = store().get(_key(info, day or datetime.date.today()), ())
    alike = [floor for other, floor in seen if max(us, other) <= ALIKE * min(us, other)]
    return (statistics.median(alike), len(alike)) if len(alike) >= ENOUGH else None
