"""A second look at a float difference on made-up values: is it rounding?

The numeric rule allows a share of the largest magnitude in the output, which suits data that a program chose. Made-up
values may cancel (a sum over sorted numbers of both signs), and then two right kernels that add in different orders
differ by more. So before such a difference counts, the original runs on inputs moved by a few units in the last place:
where its own answer moves about as much, the difference is rounding. This is the condition number, measured: a
backward-stable kernel's error is that of slightly other inputs (N. J. Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., section 1.6). Equal numbers drive every rounding of a long sum the same way; there its bound for
recursive summation holds, n·u relative (section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cuda_agent.device import jobs
from cuda_agent.errors import WorkerDied
from cuda_agent.judge import numeric
from cuda_agent.judge.baseline import poison_of
from cuda_agent.judge.hidden.extents import contents, hold
from cuda_agent.judge.hidden.families import FLOATS, REPEATED, ROUNDOFF, Floats, decode, nudge
from cuda_agent.workload.elements import SIZES

if TYPE_CHECKING:
    from cuda_agent.judge.hidden.trials import Hidden
    from cuda_agent.judge.outcome import Outcome

ULPS = 4  # how far an input moves at most
RUNS = 4  # of the original on moved inputs
FACTOR = 4.0  # the largest of so few answers is not the largest there is


def is_rounding(hidden: Hidden, outcome: Outcome) -> bool:
    """Whether every difference of the outcome is explained by what the original does on slightly moved inputs."""
    bad = [row for row in outcome.compared if not row.within]
    if outcome.fault is not None or outcome.stray or not bad:
        return False
    if any(row.result["dtype"] not in numeric.RULE or row.result["nan_mismatch"] for row in bad):
        return False
    at = outcome.launch
    base, slots, launch = hidden.baseline(at), hidden.slots(at), hidden.launches[at]
    inputs = [b for b, slot in enumerate(slots) if slot.dtype in FLOATS and b not in base.poisoned]
    poison = poison_of(hidden, at, base.poisoned, 0)
    buffers = [row.result["buffer"] for row in bad]
    steps = [*hidden.load_steps(), hidden.candidate_launch("c", at, poison=poison)]
    steps += [hidden.original_launch("o", at, poison=poison)]
    data = {b: contents(hidden, hidden.held, launch.buffers[b]) for b in inputs}
    for turn in range(RUNS):
        moved = {
            b: {"blobs": [hold(hidden.held, nudge(data[b], slots[b].dtype, 100 * turn + b, ULPS))]} for b in inputs
        }
        steps.append(hidden.original_launch(f"p{turn}", at, poison=poison, inits=moved))
    names = ["o", "c", *(f"p{turn}" for turn in range(RUNS))]
    steps += [jobs.fetch_step(name, b) for name in names for b in buffers]
    try:
        results = hidden.run(steps, deadline_s=hidden.deadline(at, RUNS + 2), tag="a second look", candidate=True)
    except WorkerDied:  # it ran a moment ago: then it is not rounding that differs
        return False
    left = [result["data"] for result in results if "data" in result]
    if len(left) != len(names) * len(buffers):
        return False
    for number, row in enumerate(bad):
        original, candidate, *moves = (decode(part, row.result["dtype"]) for part in left[number :: len(buffers)])
        allowed = row.allowed
        if hidden.trials[at].family in REPEATED:
            longest = max(launch.buffers[b].size // SIZES[slots[b].dtype] for b in inputs)
            allowed = max(allowed, longest * ROUNDOFF[row.result["dtype"]] * base.max_ref[row.result["buffer"]])
        if not _within(original, candidate, moves, allowed):
            return False
    return True


def _within(original: Floats, candidate: Floats, moves: Sequence[Floats], allowed: float) -> bool:
    with np.errstate(invalid="ignore"):
        slack = FACTOR * np.max([np.abs(move - original) for move in moves], axis=0)
        fits = np.abs(candidate - original) <= allowed + np.nan_to_num(slack, nan=0.0, posinf=0.0)
    same = (candidate == original) | (np.isnan(candidate) & np.isnan(original))
    return bool(np.all(fits | same))
