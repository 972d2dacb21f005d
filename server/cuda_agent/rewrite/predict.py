"""What the emulator would count of a kernel's first warp, read off the text: for a GPU, where nothing is traced.

An access whose index is not understood counts as one that is coalesced; a loop whose trips are not known runs
`SOME_TRIPS` times, and a branch is taken. So the numbers are good for naming what stands out, not for measuring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cuda_agent.hints.limits import SECTOR
from cuda_agent.hints.occupancy import WARP
from cuda_agent.rewrite.analysis import access, trips
from cuda_agent.rewrite.analysis.access import Access
from cuda_agent.rewrite.rule import Context

SOME_TRIPS = 8
BANKS, WORD = 32, 4  # of shared memory; bytes


def counts(context: Context) -> dict[str, float]:
    """requests, sectors, bytes, atomics, shared_requests, wavefronts and bank_conflicts of one warp, as the emulator
    means them, for the captured launch with most threads. Empty where nothing was captured or found."""
    known = trips.bindings(context, context.workload, context.shapes)
    if not known:
        return {}
    numbers = max(known, key=_threads)
    total: Counter[str] = Counter()
    for one in access.of(context):
        times = _times(context, one, numbers)
        offsets = one.lanes(numbers) or ()
        size = one.bytes or WORD
        if one.space == "global":
            lanes = len(offsets) or WARP
            sectors = len({o * size // SECTOR for o in offsets}) or lanes * size // SECTOR
            total.update(
                {
                    "requests": times,
                    "sectors": times * max(sectors, 1),
                    "bytes": times * lanes * size,
                    "atomics": times * (one.kind == "atomic"),
                }
            )
        elif one.space == "shared" and offsets:
            fewest = -(-len(offsets) * size // (BANKS * WORD))
            passes = _passes(offsets, size)
            conflicts = max(0, passes - fewest)
            total.update({"shared_requests": times, "wavefronts": times * passes, "bank_conflicts": times * conflicts})
    return dict(total)


def _threads(numbers: Mapping[str, int]) -> int:
    count = 1
    for axis in "xyz":
        count *= numbers[f"blockDim.{axis}"] * numbers[f"gridDim.{axis}"]
    return count


def _times(context: Context, one: Access, numbers: Mapping[str, int]) -> int:
    """How often a thread makes the access: the trips of the loops around it, as far as they are known."""
    times = 1
    for loop in one.loops:
        found = trips.of_induction(context, loop) if loop is not None else None
        known = trips.evaluate(found, numbers) if found is not None else None
        times *= SOME_TRIPS if known is None else max(1, known)
    return times


def _passes(offsets: tuple[int, ...], size: int) -> int:
    """The most different words that one bank has to give."""
    words = {word for o in offsets for word in range(o * size // WORD, (o * size + size - 1) // WORD + 1)}
    return max(Counter(word % BANKS for word in words).values())
