"""What the engine said about each kernel, by the kernel's text: shown while it stands, marked as earlier when it
changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuda_agent.engine.messages import FactsOf
from cuda_agent.errors import Cancelled, CudaAgentError
from cuda_agent.lsp.documents import OpenFile
from cuda_agent.model import Kernel

if TYPE_CHECKING:
    from cuda_agent.lsp.server import CudaAgentServer

_log = logging.getLogger(__name__)
DEBOUNCE_S = 0.3


@dataclass(frozen=True)
class KernelFacts:
    """`title` for the lens, `sentences` for the hover, made by the engine from `hints/`."""

    title: str
    sentences: tuple[str, ...]
    arch: str
    current: bool  # the kernel's text is still the one that was compiled
    findings: tuple[dict[str, Any], ...] = ()  # {category, line, message}: diagnostics, where the person wants them


class CompilerFacts:
    """One request a pause in typing. `on_change(file)` is called when there is something new to show."""

    def __init__(self, server: CudaAgentServer, on_change: Callable[[OpenFile], None]) -> None:
        self.server, self.on_change = server, on_change
        self._known: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {}  # uri → kernel → (hash, facts)
        self._problem: dict[str, str] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def schedule(self, file: OpenFile, delay: float = DEBOUNCE_S) -> None:
        """Ask after a pause; a later call for the same file starts the pause anew."""
        self._stop_timer(file.uri)
        if file.is_cuda and self.server.covers(file):
            loop = asyncio.get_running_loop()
            self._timers[file.uri] = loop.call_later(delay, self._begin, file.uri)

    def of(self, file: OpenFile, kernel: Kernel) -> KernelFacts | None:
        found = self._known.get(file.uri, {}).get(kernel.id)
        if found is None:
            return None
        hash, facts = found
        return KernelFacts(
            str(facts.get("title", "")),
            tuple(facts.get("sentences", ())),
            str(facts.get("arch", "")),
            hash == file.module.kernel_hash(kernel),
            tuple(facts.get("findings", ())),
        )

    def problem(self, uri: str) -> str | None:
        """Why there are no facts for the present text: no compiler, or it does not compile."""
        return self._problem.get(uri)

    def forget(self, uri: str) -> None:
        self._stop_timer(uri)
        self._known.pop(uri, None)
        self._problem.pop(uri, None)

    def close(self) -> None:
        for uri in list(self._timers):
            self._stop_timer(uri)

    def _stop_timer(self, uri: str) -> None:
        if (timer := self._timers.pop(uri, None)) is not None:
            timer.cancel()

    def _begin(self, uri: str) -> None:
        self._timers.pop(uri, None)
        file = self.server.documents.get(uri)
        if file is not None:
            task = asyncio.create_task(self._ask(file))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, file: OpenFile) -> None:
        document, module = file.document, file.module
        try:
            await self.server.engine.trust(self.server.trust.answers)
            request = FactsOf(str(file.real_path), document.text, document.version, self.server.settings)
            answer = await self.server.engine.request("facts", request)
        except Cancelled:  # a newer version of the file waits
            return
        except CudaAgentError as failure:
            answer = {"problem": str(failure), "kernels": {}}
        except Exception as failure:  # a bug of ours: said in the hover, and the server lives on
            _log.exception("facts of %s", file.uri)
            answer = {"problem": f"internal error: {failure!r}", "kernels": {}}
        if self.server.documents.get(file.uri) is not file:
            return
        known = self._known.setdefault(file.uri, {})
        hashes = {kernel.id: module.kernel_hash(kernel) for kernel in module.kernels}
        for kernel, facts in answer.get("kernels", {}).items():
            if kernel in hashes:
                known[kernel] = (hashes[kernel], facts)
        problem = answer.get("problem")
        if problem:
            self._problem[file.uri] = str(problem)
        else:
            self._problem.pop(file.uri, None)
        self.on_change(file)
