"""Jobs as the editor sees them: an id at once, `$/progress` where the client can show it, cancel from its button or by
id.

The engine runs them; here they are matched with the file and the text they were started on."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from cuda_agent.engine.messages import Cancel, Capture, JobDone, JobKind, JobProgress, JobStatus, Optimize, Verify
from cuda_agent.errors import CudaAgentError
from cuda_agent.lsp.protocol import reply
from cuda_agent.source.documents import Document

if TYPE_CHECKING:
    from cuda_agent.lsp.server import CudaAgentServer

_log = logging.getLogger(__name__)
TITLES: dict[JobKind, str] = {"optimize": "Optimising", "capture": "Capturing inputs of", "verify": "Verifying"}


@dataclass
class Job:
    id: str
    kind: JobKind
    uri: str
    kernel: str
    document: Document  # the text it works on
    params: Optimize | Capture | Verify
    percentage: int = 0
    message: str = "starting"
    best: str | None = None
    cancelled: bool = False
    submitted: bool = False
    token: str | None = None  # of $/progress, once the client has made it
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def title(self) -> str:
        return f"{TITLES[self.kind]} {self.kernel}"


class Jobs:
    """`on_end(job, event)` is called exactly once a job, also when the engine died under it."""

    def __init__(self, server: CudaAgentServer, on_end: Callable[[Job, JobDone], None]) -> None:
        self.server, self.on_end = server, on_end
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def running(self, uri: str, kernel: str) -> Job | None:
        return next((job for job in self._jobs.values() if job.uri == uri and job.kernel == kernel), None)

    def get(self, id: str) -> Job | None:
        return self._jobs.get(id)

    def all(self) -> list[Job]:
        return list(self._jobs.values())

    def start(
        self, kind: JobKind, uri: str, kernel: str, document: Document, params: Optimize | Capture | Verify
    ) -> Job:
        """Answers at once; the engine hears of it in the background. The same work twice is one job."""
        for job in self._jobs.values():
            if (job.kind, job.uri, job.kernel, job.document.text) == (
                kind,
                uri,
                kernel,
                document.text,
            ) and not job.cancelled:
                return job
        job = Job(params.job, kind, uri, kernel, document, params)
        self._jobs[job.id] = job
        self._spawn(self._submit(job))
        self._spawn(self._show(job))
        self._changed(job)
        return job

    @staticmethod
    def new_id() -> str:
        return uuid.uuid4().hex[:12]

    async def cancel(self, id: str) -> bool:
        """True once the job and its processes are gone. False: no such job any more."""
        job = self._jobs.get(id)
        if job is None:
            return False
        job.cancelled = True
        if job.submitted:
            await self.server.engine.request("cancel", Cancel(id))
        await job.ended.wait()
        return True

    def by_token(self, token: str | int) -> Job | None:
        return next((job for job in self._jobs.values() if job.token == token), None)

    def progressed(self, event: JobProgress) -> None:
        job = self._jobs.get(event.job)
        if job is None:
            return
        job.percentage, job.message = max(job.percentage, event.percentage), event.message
        job.best = event.best or job.best
        self._report(job)
        self._changed(job)

    def done(self, event: JobDone) -> None:
        job = self._jobs.pop(event.job, None)
        if job is None:
            return
        if job.token is not None:
            self._notify(job.token, types.WorkDoneProgressEnd(message=event.message.splitlines()[0][:200]))
        job.ended.set()
        self.server.editor_model.job_ended(job.id)
        self.on_end(job, event)
        self.server.tell_job(job, event.status, event.message)

    def lost(self, reason: str) -> None:
        """The engine is gone and every submitted job with it."""
        for job in [job for job in self._jobs.values() if job.submitted]:
            status: JobStatus = "cancelled" if job.cancelled else "failed"
            best = f" Best so far: {job.best}." if job.best else ""
            message = f"stopped: {reason}.{best} Run the action again."
            self.done(JobDone(job.id, job.kind, job.params.path, job.kernel, status, message))

    # ------------------------------------------------------------ inside

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _submit(self, job: Job) -> None:
        try:
            job.submitted = True
            await self.server.engine.request(job.kind, job.params)
            if job.cancelled:
                await self.server.engine.request("cancel", Cancel(job.id))
        except CudaAgentError as failure:
            self.done(JobDone(job.id, job.kind, job.params.path, job.kernel, "failed", str(failure)))
        except Exception as failure:  # a bug here must still end the job for the person
            _log.exception("cannot submit %s", job.title)
            self.done(JobDone(job.id, job.kind, job.params.path, job.kernel, "failed", f"internal error: {failure!r}"))

    async def _show(self, job: Job) -> None:
        if not self.server.client.progress:
            return
        token = f"cuda-agent-{job.id}"
        try:
            create = types.WorkDoneProgressCreateParams(token=token)
            await asyncio.wait_for(reply(self.server.window_work_done_progress_create(create)), 5.0)
        except Exception as refused:  # whatever the client answers, the job goes on without a bar
            _log.warning("the client made no progress bar: %r", refused)
            return
        if job.ended.is_set():
            return
        job.token = token
        begin = types.WorkDoneProgressBegin(
            title=job.title, cancellable=True, message=job.message, percentage=job.percentage
        )
        self._notify(token, begin)

    def _report(self, job: Job) -> None:
        if job.token is not None:
            message = f"{job.message} · best {job.best}" if job.best else job.message
            self._notify(
                job.token, types.WorkDoneProgressReport(message=message, percentage=job.percentage, cancellable=True)
            )

    def _notify(self, token: str, value: object) -> None:
        self.server.protocol.notify(types.PROGRESS, types.ProgressParams(token=token, value=value))

    def _changed(self, job: Job) -> None:
        self.server.tell_job(job, "running", job.message)
        self.server.refresh_soon()
