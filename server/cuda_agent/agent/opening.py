"""The beginning of every search: the file that a request is about, its inputs, and the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cuda_agent.agent.request import OnEvent, Request
from cuda_agent.device import Device, open_device
from cuda_agent.inputs import find_or_make, find_or_make_all, read_source, run_of
from cuda_agent.model import Build, Workload
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import Module
from cuda_agent.source.symbols import module as parse_module
from cuda_agent.toolchain.build import find_build
from cuda_agent.toolchain.launchers import with_launches


@dataclass(frozen=True)
class Opened:
    """A request's file: how it is built, and its text parsed, a header's with the files that launch its kernels."""

    request: Request
    build: Build
    module: Module

    @property
    def text(self) -> str:
        return self.module.document.text

    def workload(self, kind: str, on_event: OnEvent | None, cancelled: Callable[[], bool] | None) -> Workload:
        """The inputs of the request's kernel, or of the first that has some. Raises as `inputs.find_or_make`."""
        asked = self.request
        run = run_of(asked, on_event, cancelled)
        return find_or_make(asked.path, self.module, asked.kernel, self.build, kind, **run)

    def workloads(self, kind: str, on_event: OnEvent | None, cancelled: Callable[[], bool] | None) -> list[Workload]:
        """The inputs of every kernel of the file that has some. Raises as `inputs.find_or_make_all`."""
        run = run_of(self.request, on_event, cancelled)
        return find_or_make_all(self.request.path, self.module, self.build, kind, **run)

    def as_recorded(self) -> Opened:
        """The same file as it is built now: a run that recorded its inputs also recorded the compiler's commands."""
        return self if find_build(self.request.path) == self.build else opened(self.request)


def opened(request: Request) -> Opened:
    """Raises SourceError when the file cannot be read."""
    build = find_build(request.path)
    text = request.text if request.text is not None else read_source(request.path)
    document = Document(str(request.path), with_launches(build, text, request.unsaved))
    return Opened(request, build, parse_module(document))


@contextmanager
def device_of(request: Request, device: Device | None, *, untrusted: bool = False) -> Iterator[Device]:
    """`device` where the caller has one, else the request's, which ends with the search."""
    if device is not None:
        yield device
        return
    with open_device(request.device, untrusted=untrusted, start=False) as found:
        yield found
