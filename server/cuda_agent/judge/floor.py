"""The noise floor of a GPU on one day: what A/A runs on it have shown, kept in the cache.

One A/A run of one kernel can be lucky. So every judgement adds its own to the day's, and no claim may be finer than
the median of the day's floors for kernels of about that length. A search, which judges many candidates shortly, takes
the day's floor in place of an A/A run of its own.
"""

from __future__ import annotations

import datetime
import platform
import statistics
from bisect import bisect

from cuda_agent import cache
from cuda_agent.device.info import DeviceInfo

LENGTHS_US = (20.0, 100.0, 1000.0)  # borders between classes of kernels: below the first they are timed in batches
ENOUGH = 3  # A/A runs before a day's floor means something
KEPT = 50  # newest runs of a class


store = cache.default


def _key(info: DeviceInfo, us: float, day: datetime.date) -> str:
    """By machine as well: a cache folder may be shared by several."""
    parts = (platform.node(), info.name, info.kind, info.index, info.driver, bisect(LENGTHS_US, us), day.isoformat())
    return store().key("noise-floor", parts)


def remember(info: DeviceInfo, us: float, floor: float, day: datetime.date | None = None) -> None:
    """Add one A/A run's relative floor for a kernel of `us` microseconds. Two processes may lose one of theirs."""
    key = _key(info, us, day or datetime.date.today())
    store().set(key, (*store().get(key, ()), floor)[-KEPT:])


def of_day(info: DeviceInfo, us: float, day: datetime.date | None = None) -> tuple[float, int] | None:
    """Median relative floor of that day for kernels about as long, and of how many runs; None with fewer than
    `ENOUGH`."""
    seen = store().get(_key(info, us, day or datetime.date.today()), ())
    return (statistics.median(seen), len(seen)) if len(seen) >= ENOUGH else None
