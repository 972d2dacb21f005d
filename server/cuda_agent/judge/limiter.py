"""What limits a kernel under judgement: `hints.limits` with what the judge knows of its launches.

Of several launches the means are taken, in the shape of the one that moves most. What was found is kept, for the hover.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cuda_agent import cache
from cuda_agent.device.info import DeviceInfo
from cuda_agent.errors import UsageError
from cuda_agent.hints import limits
from cuda_agent.hints.occupancy import limits as of_arch
from cuda_agent.judge.case import Case
from cuda_agent.model import Facts, Timing, Workload
from cuda_agent.workload.launch_map import Shape


def machine(info: DeviceInfo) -> limits.Machine | None:
    """None for an architecture whose occupancy is not known."""
    try:
        sm = of_arch(info.arch)
    except UsageError:
        return None
    return limits.Machine(info.sms, info.memory_bandwidth_gbs, info.l2_bytes, info.clock_mhz, sm)


def of_original(case: Case, counts: Mapping[str, float], us: float | None = None) -> limits.Limiter | None:
    """What limits the original. `counts` of its accesses, `traced` or read off its text; `us`: the measured time of
    one launch. Raises CompileError, WorkloadError."""
    binary = case.original_binary
    facts = [binary.kernels[case.kernel_in(binary, launch)] for launch in case.launches]
    shapes = [Shape.of(launch) for launch in case.launches]
    return _of(case, facts, shapes, us, counts)


def traced(case: Case) -> dict[str, float]:
    """What the emulator counted of the original, in all launches together; empty on a GPU. Raises what
    `Case.baseline` raises."""
    total: Counter[str] = Counter()
    for index in range(len(case.launches)):
        total.update(case.baseline(index).counts)
    return dict(total)


def of_candidate(case: Case, counts: Mapping[str, float], timing: Timing) -> limits.Limiter | None:
    """What limits a candidate that was timed on a GPU, that is, what is left to gain."""
    binary = case.candidate_binary
    facts = [binary.kernels[case.kernel_in(binary, launch)] for launch in case.launches]
    shapes = [case.shape(index) for index in range(len(case.launches))]
    return _of(case, facts, shapes, timing.candidate_us / timed(timing), counts)


def timed(timing: Timing) -> int:
    """How many launches the times of a verdict are the sum of."""
    return max(1, len(timing.per_launch))


def _of(
    case: Case, facts: list[Facts], shapes: list[Shape], us: float | None, counts: Mapping[str, float]
) -> limits.Limiter | None:
    on = machine(case.device.info)
    if on is None or not shapes:
        return None
    bytes_ = [limits.moved(launch) for launch in case.launches]
    most = max(range(len(shapes)), key=lambda index: sum(bytes_[index]))
    read, written = (sum(side) // len(shapes) for side in zip(*bytes_, strict=True))
    shape = shapes[most]
    work = limits.Work(
        shape.grid, shape.block, shape.shared, facts[most], read, written, us, counts, atomics=case.uses_atomics
    )
    return limits.limiter(work, on)


# ---------------------------------------------------------------- what the hover is told


def remember(kernel_hash: str, workload: Workload, found: limits.Limiter) -> None:
    """What was found of a kernel's text on launches of this size, whatever they hold."""
    store = cache.default()
    store.set(_key(store, kernel_hash, workload), found)


def remembered(kernel_hash: str, workload: Workload) -> limits.Limiter | None:
    store = cache.default()
    found = store.get(_key(store, kernel_hash, workload))
    return found if isinstance(found, limits.Limiter) else None


def _key(store: cache.Cache, kernel_hash: str, workload: Workload) -> str:
    sizes = [(*w.grid, *w.block, w.shared, *(buffer.size for buffer in w.buffers)) for w in workload.launches]
    return store.key("limiter", (kernel_hash, sizes))
