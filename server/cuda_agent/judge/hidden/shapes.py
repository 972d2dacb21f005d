"""What original and candidate launch for other sizes: read from the host code around their launches, and trusted only
where the same text gives the recorded shape for the recorded sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from cuda_agent.errors import WorkloadError
from cuda_agent.judge import launch_text
from cuda_agent.judge.case import Case
from cuda_agent.judge.hidden.scalars import Scalar
from cuda_agent.model import Kernel, LaunchMap, LaunchSite
from cuda_agent.source.symbols import Module
from cuda_agent.workload import launch_map
from cuda_agent.workload.launch_map import Shape


class _Found(NamedTuple):
    site: LaunchSite
    element: int | None


_ELEMENTS = (None, 4, 8, 2, 1, 16, 12)  # bytes of a type that the text does not tell: a template's T


class Shapes:
    """The launch shapes of both sides for one recorded launch."""

    def __init__(self, case: Case, index: int, scalars: Mapping[str, Scalar]) -> None:
        self.case, self.index = case, index
        self.recorded = {name: scalar.value for name, scalar in scalars.items()}
        launch = case.launches[index]
        self.captured = Shape.of(launch)

    def _at(self, module: Module, found: _Found, values: Mapping[str, int]) -> Shape | None:
        """The program has its own names: `k<<<grid, block>>>(x, rows)` makes `rows` the parameter's value."""
        site, element = found
        known = {}
        for text, param in zip(site.args, self.kernel.params, strict=False):
            if param.name in values and not re.fullmatch(r"[\s\d'.uUlLxX+-]+", text):
                known["".join(text.split())] = values[param.name]
        return launch_text.evaluate(module, site, known, element)

    def _site(self, module: Module, kernel: Kernel, shape: Shape) -> _Found | None:
        """The launch site whose text gives `shape` for the recorded sizes."""
        found = (_Found(site, element) for site in module.launches_of(kernel) for element in _ELEMENTS)
        return next((one for one in found if self._at(module, one, self.recorded) == shape), None)

    @property
    def kernel(self) -> Kernel:
        return self.case.kernel

    @cached_property
    def _original(self) -> _Found | None:
        return self._site(self.case.module, self.kernel, self.captured)

    @cached_property
    def _candidate(self) -> _Found | None:
        module = self.case.candidate_module
        return self._site(module, module.kernel(self.kernel.id), self.case.shape(self.index))

    def said(self) -> Shape | None:
        """What the candidate's text launches for the recorded sizes, where the original's launches the recorded
        shape; None when that is not readable."""
        if self._original is None:
            return None
        module = self.case.candidate_module
        at = self.case.module.launches_of(self.kernel).index(self._original.site)
        sites = module.launches_of(module.kernel(self.kernel.id))
        return self._at(module, self._original._replace(site=sites[at]), self.recorded) if at < len(sites) else None

    def original(self, values: Mapping[str, int]) -> Shape | None:
        """By the program's text; a grid axis may be 0: then its own launch would be refused. None where it is not
        readable."""
        if self._original is None:
            return None
        return self._at(self.case.module, self._original, {**self.recorded, **values})

    def candidate(self, values: Mapping[str, int], original: Shape) -> Shape | None:
        """The candidate's shape where the original is launched as its own text says; None when it is not known."""
        if self._candidate is not None:
            return self._at(self.case.candidate_module, self._candidate, {**self.recorded, **values})
        return self.mapped(original)

    def surplus(self, values: Mapping[str, int], original: Shape) -> Shape | None:
        """The candidate's shape where the original has more blocks than its text asks for: the same, where both sides
        are launched by the same words."""
        if self._candidate is None:
            return self.mapped(original) if self.case.candidate.launch == LaunchMap() else None
        own = self.original(values)
        return original if own is not None and own == self.candidate(values, own) else None

    def mapped(self, original: Shape) -> Shape | None:
        """By the launch map, which G0 compared with the candidate's text; one that was fitted to the recorded launches
        holds for those only."""
        if self.case.candidate.launch.seen:
            return None
        try:
            return launch_map.apply(self.case.candidate.launch, original.grid, original.block, original.shared)
        except WorkloadError:
            return None
