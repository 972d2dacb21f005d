"""How a candidate launches the kernel by its text alone: for text from a model, whose host code is never run."""

from __future__ import annotations

from cuda_agent.errors import WorkloadError
from cuda_agent.judge import launch_text
from cuda_agent.judge.case import Case
from cuda_agent.judge.hidden.scalars import integers
from cuda_agent.judge.hidden.shapes import Shapes
from cuda_agent.model import LaunchMap
from cuda_agent.workload import launch_map


def launches_said(case: Case) -> LaunchMap:
    """A map that holds whatever the host's variables are, where the texts show one. Else, for a kernel that is launched
    in one place, one that takes each captured shape to what the new text says for the captured sizes; hidden sizes (G5)
    are read from the text again. With several places nothing says that each was captured. Where no map can be read: no
    change, and G0 says what differs."""
    before, after, kernel = case.module, case.candidate_module, case.kernel
    if all(other.id != kernel.id for other in after.kernels):
        return LaunchMap()  # G0 rejects it in its own words
    for found in (LaunchMap(), launch_text.follow(before, after, kernel)):
        if launch_text.mismatch(before, after, kernel, found) is None:
            return found
    if len(after.launches_of(after.kernel(kernel.id))) != 1:
        return LaunchMap()
    shapes = [Shapes(case, index, integers(launch, kernel)) for index, launch in enumerate(case.launches)]
    pairs = [(one.captured, said) for one in shapes if (said := one.said()) is not None]
    try:
        return launch_map.fit(pairs) if len(pairs) == len(shapes) else LaunchMap()
    except WorkloadError:
        return LaunchMap()
