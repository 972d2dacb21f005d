"""What later gates of a full judgement wait for, begun while the earlier ones run.

On a GPU most of a judgement's time would be nvcc and g++ (one-token mutants for G2, the float64 shadow for G3, both
kernels for the emulator's checkers in G7) and the start of compute-sanitizer around the original and the known-bad
kernels (G7). Here that is done beside the first gates, and kept where those gates find it; whatever goes wrong here
happens to them again, and is theirs to say.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from cuda_agent.device.sanitizer import TOOLS
from cuda_agent.errors import CudaAgentError
from cuda_agent.judge import emulated, mutation, sanitizer, shadow_kernel
from cuda_agent.judge.case import Case

AT_ONCE = 4  # compilers
# A core for each compiler and each tool's process: with fewer, the gates would wait for the compilers instead.
CORES = AT_ONCE + 2 * len(TOOLS)
COPIES = 16  # of the largest launch in the GPU's memory: what the gates' own jobs take stays theirs


@contextlib.contextmanager
def begun(case: Case) -> Iterator[None]:
    """Compilers and tools at work until the judgement ends. Compilers that have not begun by then never do, those that
    have end by themselves; tools are ended."""
    with contextlib.ExitStack() as stack:
        pool = ThreadPoolExecutor(AT_ONCE, "ahead")
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        with contextlib.suppress(CudaAgentError):  # no such kernel: the gates will say so
            for work in _works(case):
                pool.submit(_quietly, work)
            if _room_for_tools(case):
                stack.enter_context(sanitizer.ahead(case))
        yield


def _works(case: Case) -> Iterator[Callable[[], object]]:
    if case.unchanged_text or case.kernel.has_error:
        return
    if case.options.mutants:
        yield lambda: mutation.compile_mutants(case)
    if case.options.emulator_s > 0:
        yield from emulated.compilations(case)
    yield lambda: shadow_kernel.binary(case)


def _room_for_tools(case: Case) -> bool:
    """Whether the launch that G7 will take is known already, and this machine can run the tools beside other gates."""
    if case.unchanged_text or (os.cpu_count() or 1) < CORES:
        return False
    largest = max(launch.held_bytes for launch in case.launches)
    return sanitizer.is_quick(case) and COPIES * largest <= case.device.info.memory_bytes


def _quietly(work: Callable[[], object]) -> None:
    with contextlib.suppress(CudaAgentError, shadow_kernel.NoShadow):  # the gate that needs it says so
        work()
