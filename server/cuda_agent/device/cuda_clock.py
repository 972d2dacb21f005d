"""Time on the GPU: events around launches that are already queued, a cold L2, and the SM clock beside every sample.

Queue of one sample:  spin (holds the GPU while the host queues the rest; measures the clock) | event | launches |
event | spin. Without the first spin a short kernel would be timed at the rate at which the host launches. When the
first event has already happened by the time that everything is queued, the spin was too short for this host: the
sample is marked late, and later spins are twice as long.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any, Protocol

from cuda_agent.device import driver, nvml
from cuda_agent.device.backend import Configuration, Prepared, Sample
from cuda_agent.device.kernels import CudaLaunch, CudaModule, guarded

# Both ends of the interval lie on an edge of %globaltimer, whose tick is 32 ns on some GPUs and 1 us on others.
SOURCE = r"""
__device__ unsigned long long now() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
extern "C" __global__ void spin(unsigned long long ns, unsigned long long *out) {
  unsigned long long before = now(), t0, t1;
  do t0 = now(); while (t0 == before);
  long long c0 = clock64(), c1;
  do { t1 = now(); c1 = clock64(); } while (t1 - t0 < ns);
  out[0] = c1 - c0;
  out[1] = t1 - t0;
}
extern "C" __global__ void read_all(const uint4 *data, unsigned long long count, unsigned *out) {
  unsigned sum = 0;
  for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < count;
       i += (unsigned long long)gridDim.x * blockDim.x) {
    uint4 v = data[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x9e3779b9u) *out = sum;
}
"""
LEAD_US = 25.0  # for the host to queue two events and a launch
LEAD_PER_LAUNCH_US = 8.0
AFTER_US = 20.0  # a clock reading over 20 us is good to 0.2 % at a 32 ns tick
MAX_LEAD = 64  # times as long as that: a host that needs more will not do
ASK_S = 0.05
NOT_READY = 600
NOT_SUPPORTED = 801


class Backend(Protocol):
    xp: Any
    info: Any
    stream: int

    def address(self, array: Any) -> int: ...
    def alloc(self, size: int) -> Any: ...
    def synchronize(self) -> None: ...


class CudaClock:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.notes: list[str] = []
        self._start, self._end = ctypes.c_void_p(), ctypes.c_void_p()
        guarded("cuEventCreate", ctypes.byref(self._start), 0)
        guarded("cuEventCreate", ctypes.byref(self._end), 0)
        self._stream = ctypes.c_void_p(backend.stream)
        self._flush_bytes = max(2 * backend.info.l2_bytes, 32 << 20)
        self._flush: tuple[Any, Any] | None = None
        self._lead = 1
        self._helpers: Any = self._compile()
        self._asked = 0.0
        self._limits: tuple[str, ...] = ()
        self._nvml = nvml.Gpu(backend.info.index)
        if self._nvml.missing is not None:
            self.notes.append(f"it is not known whether the clocks were held down: {self._nvml.missing}")

    def _compile(self) -> Any:
        """None, with a note, where cupy finds no NVRTC."""
        try:
            module = self.backend.xp.RawModule(code=SOURCE)
            return module.get_function("spin"), module.get_function("read_all")
        except Exception as error:  # cupy, NVRTC and the loader each raise their own; the timing goes on without
            self.notes.append(
                f"no SM clock and no queue-ahead: NVRTC is not usable ({str(error).splitlines()[0][:120]})"
            )
            return None

    def release(self) -> None:
        """Give the flush buffers back."""
        self._flush = None

    def prepare(self, module: CudaModule, configuration: Configuration) -> Prepared:
        return CudaLaunch(module, configuration, self.backend.stream)

    def copy(self, to: Any, source: Any) -> None:
        to[:] = source

    def flush(self) -> None:
        """Write 2x L2, then read another 2x L2: the reads push the written lines out, so that their write-back is not
        charged to the kernel that follows."""
        code = driver.library().cuCtxResetPersistingL2Cache()
        if code not in (driver.SUCCESS, NOT_SUPPORTED):
            guarded("cuCtxResetPersistingL2Cache")
        if self._flush is None:
            self._flush = (self.backend.alloc(self._flush_bytes), self.backend.alloc(self._flush_bytes))
            self._flush[1][:] = 1
        written, read = self._flush
        written[:] = 0
        if self._helpers:
            out = self.backend.xp.zeros(1, dtype="uint32")
            self._helpers[1](
                (self.backend.info.sms * 8,), (256,), (read, ctypes_u64(self._flush_bytes // 16, self.backend.xp), out)
            )

    def sample(self, launches: Sequence[Prepared]) -> Sample:
        marks = self.backend.xp.zeros(4, dtype="uint64")
        self._spin(self._lead * (LEAD_US + LEAD_PER_LAUNCH_US * len(launches)), marks[:2])
        guarded("cuEventRecord", self._start, self._stream)
        for launch in launches:
            launch()
        guarded("cuEventRecord", self._end, self._stream)
        late = self._helpers is not None and driver.library().cuEventQuery(self._start) != NOT_READY
        if late:
            self._lead = min(2 * self._lead, MAX_LEAD)
        self._spin(AFTER_US, marks[2:])
        self.backend.synchronize()
        ms = ctypes.c_float()
        guarded("cuEventElapsedTime", ctypes.byref(ms), self._start, self._end)
        return Sample(ms.value * 1000 / len(launches), self._mhz(marks), late)

    def limits(self) -> Sequence[str]:
        """Asked of NVML every 50 ms at most: a call can take a millisecond, and the GPU stands idle meanwhile."""
        now = time.monotonic()
        if now - self._asked > ASK_S:
            self._asked, self._limits = now, self._nvml.reasons()
        return self._limits

    def _spin(self, us: float, out: Any) -> None:
        if self._helpers:
            self._helpers[0]((1,), (1,), (ctypes_u64(int(us * 1000), self.backend.xp), out))

    def _mhz(self, marks: Any) -> float | None:
        if not self._helpers:
            return None
        c0, t0, c1, t1 = (int(x) for x in marks.get())
        return (c0 / t0 + c1 / t1) / 2 * 1000

    def synchronize(self) -> None:
        self.backend.synchronize()


def ctypes_u64(value: int, xp: Any) -> Any:
    """RawKernel takes numpy scalars; a Python int would be passed as a C int where it is small."""
    return xp.uint64(value)
