"""The editor's own language model: what a job asks goes to the client as `cudaAgent/model/reply`, its answer back.

Only for a search that a person started with the setting `cudaAgent.model` at `editor`, in a trusted folder, and only to
a client that announced the request. Whatever goes wrong here becomes an answer `{error: {kind, message}}`, so that the
job never waits in vain."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from cuda_agent.config import Settings
from cuda_agent.engine.messages import ModelAnswer, ModelAsk, ModelStop
from cuda_agent.errors import CudaAgentError
from cuda_agent.lsp.protocol import reply

if TYPE_CHECKING:
    from cuda_agent.lsp.server import CudaAgentServer

_log = logging.getLogger(__name__)
CAPABILITY = "model/reply"
NO_MODEL = (
    "this editor offers no language model: set cudaAgent.model to endpoint:NAME@URL or transformers:PATH, or "
    "cudaAgent.policy to search"
)


def is_editors(settings: Settings) -> bool:
    """Whether a search with these settings asks the editor's model."""
    return settings.policy != "search" and settings.model.partition(":")[0] == "editor"


def why_not(server: CudaAgentServer) -> str | None:
    """The reason an optimisation cannot have the model that the settings ask for; None when it can."""
    if is_editors(server.settings) and not server.client.custom(CAPABILITY):
        return NO_MODEL
    return None


class EditorModel:
    """All requests that wait for the client."""

    def __init__(self, server: CudaAgentServer) -> None:
        self.server = server
        self._waiting: dict[tuple[str, int], asyncio.Task[None]] = {}

    def asked(self, event: ModelAsk) -> None:
        key = event.job, event.ask
        task = asyncio.create_task(self._answer(event))
        self._waiting[key] = task
        task.add_done_callback(lambda done: self._waiting.pop(key, None))

    def stopped(self, event: ModelStop) -> None:
        task = self._waiting.get((event.job, event.ask))
        if task is not None:
            task.cancel()

    def job_ended(self, job: str) -> None:
        for (owner, _), task in list(self._waiting.items()):
            if owner == job:
                task.cancel()

    async def _answer(self, event: ModelAsk) -> None:
        answer = await self._ask(event)
        try:
            await self.server.engine.request("model/answer", ModelAnswer(event.job, event.ask, answer))
        except CudaAgentError as lost:  # the engine ended, and the job with it: its end is told elsewhere
            _log.warning("a language model's answer has nobody to go to: %s", lost)

    async def _ask(self, event: ModelAsk) -> Mapping[str, Any]:
        """The client's answer, or an error in the same form."""
        job = self.server.jobs.get(event.job)
        if job is None or job.kind != "optimize" or not is_editors(job.params.settings):
            return error("other", "only a search with cudaAgent.model at editor may ask the editor's language model")
        if not self.server.trust.covers(Path(job.params.path)):
            return error("noPermission", "this folder is not trusted")
        if not self.server.client.custom(CAPABILITY):
            return error("noProvider", NO_MODEL)
        id = str(uuid.uuid4())
        try:
            answer = await reply(
                self.server.protocol.send_request("cudaAgent/model/reply", {"job": job.id, **event.request}, msg_id=id)
            )
        except asyncio.CancelledError:
            self.server.protocol.notify(types.CANCEL_REQUEST, types.CancelParams(id=id))
            raise
        except Exception as refused:  # a JSON-RPC error or a broken answer: the job is told in the same words
            return error("other", f"the editor answered with an error: {refused}")
        return answer if isinstance(answer, Mapping) else error("other", "the editor's answer is not an object")


def error(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message}}
