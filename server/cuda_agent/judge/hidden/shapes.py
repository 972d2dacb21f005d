"""What original and candidate launch for other sizes: read from the host code around their launches, and trusted only
where the same text gives the recorded shape for the recorded sizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from cuda_agent.errors import SourceError, WorkloadError
from cuda_agent.judge.case import Case
from cuda_agent.judge.hidden.scalars import Scalar, template_arguments
from cuda_agent.model import LaunchMap, LaunchSite
from cuda_agent.source.symbols import Module
from cuda_agent.workload import launch_map
from cuda_agent.workload.host import Host
from cuda_agent.workload.launch_map import Shape


class Shapes:
    """The launch shapes of both sides for one recorded launch."""

    def __init__(self, case: Case, index: int, scalars: Mapping[str, Scalar]) -> None:
        self.case, self.index = case, index
        self.recorded = {name: scalar.value for name, scalar in scalars.items()}
        launch = case.launches[index]
        self.captured = Shape(launch.grid, launch.block, launch.shared)
        self._template = template_arguments(launch.mangled)

    def _site(self, module: Module, shape: Shape) -> tuple[Host, LaunchSite] | None:
        """The launch site whose text gives `shape` for the recorded sizes."""
        try:
            kernel = module.kernel(self.case.workload.kernel)
        except SourceError:
            return None
        host = Host(module.document.text, kernel, self._template)
        for site in module.launches_of(kernel):
            if host.shape(site, self.recorded) == shape:
                return host, site
        return None

    @cached_property
    def _original(self) -> tuple[Host, LaunchSite] | None:
        return self._site(self.case.module, self.captured)

    @cached_property
    def _candidate(self) -> tuple[Host, LaunchSite] | None:
        return self._site(self.case.candidate_module, self.case.shape(self.index))

    @property
    def readable(self) -> bool:
        """Whether the original's launch shape can be computed for other sizes."""
        return self._original is not None

    def original(self, values: Mapping[str, int]) -> Shape | None:
        """A grid axis may be 0: then the program's own launch would be refused."""
        if self._original is None:
            return None
        host, site = self._original
        return host.shape(site, {**self.recorded, **values})

    def candidate(self, values: Mapping[str, int], original: Shape) -> Shape | None:
        """The candidate's shape where the original is launched as its own text says; None when it is not known."""
        if self._candidate is not None:
            host, site = self._candidate
            return host.shape(site, {**self.recorded, **values})
        return self.mapped(original)

    def surplus(self, values: Mapping[str, int], original: Shape) -> Shape | None:
        """The candidate's shape where the original has more blocks than its text asks for: the same, where both sides
        are launched by the same words."""
        if self._original is None or self._candidate is None:
            return self.mapped(original)
        own = self.original(values)
        return original if own is not None and own == self.candidate(values, own) else None

    def mapped(self, original: Shape) -> Shape | None:
        """By the launch map: a rule's says what its edit means; another's was fitted to the recorded shapes only, so it
        holds elsewhere only where nothing outside the kernels differs."""
        if self.case.candidate.launch == LaunchMap():
            return original if self._same_host_text else None
        if not self.case.candidate.origin.startswith("rule:"):
            return None
        try:
            return launch_map.apply(self.case.candidate.launch, original.grid, original.block, original.shared)
        except WorkloadError:
            return None

    @cached_property
    def _same_host_text(self) -> bool:
        return _outside_kernels(self.case.module) == _outside_kernels(self.case.candidate_module)


def _outside_kernels(module: Module) -> bytes:
    """The text that decides launch shapes: everything but the kernels."""
    data, kept, at = module.document.data, [], 0
    for kernel in sorted(module.kernels, key=lambda kernel: kernel.span):
        kept.append(data[at : kernel.span.start])
        at = max(at, kernel.span.end)
    return b"".join([*kept, data[at:]])
