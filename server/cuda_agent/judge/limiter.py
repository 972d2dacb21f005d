"""What limits a kernel under judgement: `hints.limits` with what the judge knows of a launch."""

from __future__ import annotations

from cuda_agent.device.info import DeviceInfo
from cuda_agent.errors import UsageError
from cuda_agent.hints import limits
from cuda_agent.hints.occupancy import limits as of_arch
from cuda_agent.judge.case import Case


def machine(info: DeviceInfo) -> limits.Machine | None:
    """None for an architecture whose occupancy is not known."""
    try:
        return limits.Machine(info.sms, info.memory_bandwidth_gbs, info.l2_bytes, info.clock_mhz, of_arch(info.arch))
    except UsageError:
        return None


def of_original(case: Case, index: int = 0, us: float | None = None) -> limits.Limiter | None:
    """What limits the original on one launch. `us`: its measured time. Raises what `Case.baseline` raises."""
    launch, on = case.launches[index], machine(case.device.info)
    facts = case.original_binary.kernels[case.kernel_in(case.original_binary, launch)]
    read, written = limits.moved(launch)
    counts = case.baseline(index).counts
    work = limits.Work(
        launch.grid, launch.block, launch.shared, facts, read, written, us, counts, atomics=case.uses_atomics
    )
    return limits.limiter(work, on) if on is not None else None


def of_candidate(case: Case, index: int = 0, us: float | None = None) -> limits.Limiter | None:
    """What limits the candidate, that is, what is left to gain. Its counts are the emulator's three of the verdict."""
    launch, on, shape = case.launches[index], machine(case.device.info), case.shape(index)
    facts = case.candidate_binary.kernels[case.kernel_in(case.candidate_binary, launch)]
    read, written = limits.moved(launch)
    counts = case.outcome(index).traffic if case.emulated else {}
    work = limits.Work(
        shape.grid, shape.block, shape.shared, facts, read, written, us, counts, atomics=case.uses_atomics
    )
    return limits.limiter(work, on) if on is not None else None
