"""What later gates of a full judgement compile, compiled while the earlier ones run.

On a GPU half of a judgement's time would be nvcc and g++: one-token mutants for G2, the float64 shadow for G3, both
kernels for the emulator's checkers in G7. Here they are compiled beside the first gates, into the cache, where those
gates find them; whatever goes wrong here happens to them again, and is theirs to say.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from cuda_agent.errors import CudaAgentError
from cuda_agent.judge import emulated, mutation, shadow_kernel
from cuda_agent.judge.case import Case

AT_ONCE = 4  # compilers


@contextlib.contextmanager
def compiling(case: Case) -> Iterator[None]:
    """Compilers at work until the judgement ends; those that have not begun by then never do."""
    pool = ThreadPoolExecutor(AT_ONCE, "ahead")
    try:
        with contextlib.suppress(CudaAgentError):  # no such kernel: the gates will say so
            for work in _works(case):
                pool.submit(_quietly, work)
        yield
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _works(case: Case) -> Iterator[Callable[[], object]]:
    if case.unchanged_text or case.kernel.has_error:
        return
    if case.options.mutants:
        yield lambda: mutation.compile_mutants(case)
    if case.options.emulator_s > 0:
        yield from emulated.compilations(case)
    yield lambda: shadow_kernel.binary(case)


def _quietly(work: Callable[[], object]) -> None:
    with contextlib.suppress(CudaAgentError, shadow_kernel.NoShadow):  # the gate that needs it says so
        work()
