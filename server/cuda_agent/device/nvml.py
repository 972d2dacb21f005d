"""Why a GPU's clocks are held down, from NVML (the library under nvidia-smi), read-only.

Names and bits are those of nvml.h, "Clocks Event Reasons" (called throttle reasons before driver 535).
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

from cuda_agent.device import driver

SUCCESS = 0
# nvmlClocksEventReason…: only those that hold the clock below what it would be. Idle and a person's own settings do
# not count.
REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
_FUNCTIONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


def words(mask: int) -> tuple[str, ...]:
    """The set bits of a reasons mask that slow the clock, in words."""
    return tuple(word for bit, word in REASONS.items() if mask & bit)


class Gpu:
    """One GPU of the CUDA driver, seen by NVML. `missing` says why nothing is known, None when it works."""

    def __init__(self, index: int) -> None:
        self.missing: str | None = None
        self._handle = ctypes.c_void_p()
        try:
            library = _library()
        except OSError:
            self.missing = "libnvidia-ml.so.1 is not found"
            return
        self._read = next((getattr(library, name) for name in _FUNCTIONS if hasattr(library, name)), None)
        bus = ctypes.create_string_buffer(32)
        if self._read is None:
            self.missing = "this NVML tells no clock reasons"
        elif driver.library().cuDeviceGetPCIBusId(bus, 32, index) != driver.SUCCESS:
            self.missing = "the driver tells no PCI bus id"
        elif library.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(self._handle)) != SUCCESS:
            self.missing = "NVML does not know this GPU"
        else:
            self.reasons()

    def reasons(self) -> tuple[str, ...]:
        """What holds the clocks down at this moment. Empty, and `missing` set, once NVML refuses (a MIG slice)."""
        if self.missing is not None or self._read is None:
            return ()
        mask = ctypes.c_ulonglong()
        code = self._read(self._handle, ctypes.byref(mask))
        if code != SUCCESS:
            self.missing = f"NVML refuses (error {code})"
            return ()
        return words(mask.value)


@lru_cache(1)
def _library() -> ctypes.CDLL:
    """Raises OSError where it is not installed or does not start."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    code = library.nvmlInit_v2()
    if code != SUCCESS:
        raise OSError(f"nvmlInit answers {code}")
    return library
