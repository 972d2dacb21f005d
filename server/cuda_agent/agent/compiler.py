"""Candidates compiled in the background, in parallel, while the device judges others."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cuda_agent.device import Device
from cuda_agent.errors import CompileError, CudaAgentError, Unsupported
from cuda_agent.model import Binary, Build, Candidate

WORKERS = 16
PATIENCE_S = 0.25  # with a candidate that others have overtaken
SPARE = 4  # with fewer cores nothing is compiled on a guess


class Compiled(NamedTuple):
    """The binary, or why there is none, and what the compiler said."""

    binary: Binary | None
    note: str = ""
    log: str = ""


@dataclass
class Compiler:
    """Compiles each text once. What is wanted now comes before what may be wanted later."""

    device: Device
    build: Build
    folder: Path  # is left out of messages
    pool: ThreadPoolExecutor
    guesses: ThreadPoolExecutor  # one thread: it must not take the cores of the candidates that are wanted now
    stopped: Callable[[], bool] = lambda: False
    _known: dict[str, Future[Compiled]] = field(default_factory=dict)

    def compiled(
        self, candidates: Sequence[Candidate], *, in_order: bool = False
    ) -> Iterator[tuple[Candidate, Compiled]]:
        """All are begun at once. One that takes long is overtaken, unless `in_order`: of those that are done the first
        comes next."""
        waiting = {number: self._begin(candidate) for number, candidate in enumerate(candidates)}
        expected = -1
        while waiting:
            first = min(waiting)
            if first != expected:  # be patient once with each: nearly always the order stays as it was proposed
                expected = first
                wait([waiting[first]], None if in_order else PATIENCE_S)
            done = min((number for number, future in waiting.items() if future.done()), default=None)
            if done is None:
                wait(waiting.values(), return_when=FIRST_COMPLETED)
                continue
            future = waiting.pop(done)
            yield candidates[done], Compiled(None, "stopped") if future.cancelled() else future.result()

    def binary(self, candidate: Candidate) -> Binary:
        """Of one candidate, now; if it is being compiled already it is waited for. Raises what `Device.compile`
        does."""
        made = self._begin(candidate).result().binary
        return made or self.device.compile(self.build, candidate.text, untrusted=candidate.by_model)

    def guess(self, make: Callable[[], Iterable[Candidate]]) -> None:
        """Make candidates and compile them in the background. Whatever goes wrong shows when they are wanted."""
        if (os.cpu_count() or 1) >= SPARE:
            self.guesses.submit(self._guess, make)

    def _guess(self, make: Callable[[], Iterable[Candidate]]) -> None:
        if self.stopped():
            return
        try:
            found = list(make())
        except CudaAgentError:
            return  # the policy meets it again, and there it is said
        for candidate in found:
            self._begin(candidate)

    def _begin(self, candidate: Candidate) -> Future[Compiled]:
        if candidate.text not in self._known:
            self._known[candidate.text] = self.pool.submit(self._compile, candidate)
        return self._known[candidate.text]

    def _compile(self, candidate: Candidate) -> Compiled:
        if self.stopped():
            return Compiled(None, "stopped")
        untrusted = candidate.by_model
        try:
            return Compiled(self.device.compile(self.build, candidate.text, untrusted=untrusted))
        except CompileError as error:
            log = (error.diagnostics or str(error)).replace(f"{self.folder}{os.sep}", "")
            return Compiled(None, f"does not compile: {first_line(log)}", log)
        except Unsupported as error:
            return Compiled(None, str(error))


@contextmanager
def compiler(device: Device, build: Build, folder: Path, stopped: Callable[[], bool]) -> Iterator[Compiler]:
    workers = max(1, min(WORKERS, os.cpu_count() or 2))
    with ThreadPoolExecutor(workers, "compile") as pool, ThreadPoolExecutor(1, "ahead") as guesses:
        over = False

        def ended() -> bool:
            return over or stopped()

        try:
            yield Compiler(device, build, folder, pool, guesses, ended)
        finally:
            over = True
            guesses.shutdown(cancel_futures=True)
            pool.shutdown(cancel_futures=True)


def first_line(text: str) -> str:
    """The first line that is an error (g++, nvcc, ptxas), else the first line."""
    errors = [line for line in text.splitlines() if re.search(r"\berror\b( #?[\w-]+)?\s*:", line)]
    return (errors or text.splitlines() or [""])[0].strip()[:300]
