"""Small launches for slow checkers: a captured one where one is small enough, else those that G5 derives."""

from __future__ import annotations

from cuda_agent.judge.case import Case
from cuda_agent.judge.hidden.trial import Trial
from cuda_agent.model import Launch
from cuda_agent.workload.launch_map import Shape

MOST = 4  # to choose from


def smallest(case: Case) -> int:
    """The judged launch with the fewest bytes, then the fewest threads."""
    return min(range(len(case.launches)), key=lambda index: _size(case.launches[index]))


def captured(case: Case) -> Trial:
    """The smallest captured launch as it is."""
    index = smallest(case)
    return Trial(f"launch {case.launch_name(index)}", index, case.launches[index], case.shape(index))


def derived(case: Case, most_bytes: int, most_threads: int) -> list[Trial]:
    """Hidden cases with the recorded values that are no larger: those at their base first, then the larger sizes."""
    sizes = [trial for trial in case.plan.trials if trial.kind == "size" and trial not in case.plan.bases]
    found = sorted(case.plan.bases, key=lambda trial: trial.cost)
    found += sorted(sizes, key=lambda trial: trial.cost, reverse=True)
    return [trial for trial in found if fits(trial.launch, most_bytes, most_threads)][:MOST]


def fits(launch: Launch, most_bytes: int, most_threads: int) -> bool:
    bytes_, threads = _size(launch)
    return bytes_ <= most_bytes and threads <= most_threads


def _size(launch: Launch) -> tuple[int, int]:
    shape = Shape(launch.grid, launch.block, 0)
    return launch.held_bytes, shape.threads * shape.blocks
