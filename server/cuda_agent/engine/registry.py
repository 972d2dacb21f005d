"""The job registry: an id at once, one job running, the others in order; cancel ends a job's whole process tree.

A job that runs is asked to stop first, so that it can hand in its best so far; after `GRACE_S` it is killed."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cuda_agent.engine.codec import to_json
from cuda_agent.engine.messages import (
    Capture,
    JobDone,
    JobKind,
    JobProgress,
    JobStatus,
    Log,
    ModelAsk,
    ModelStop,
    Optimize,
    Verify,
)
from cuda_agent.engine.runner import JobProcess
from cuda_agent.errors import Cancelled, CudaAgentError, UsageError
from cuda_agent.trust import Answers

Emit = Callable[[str, object], None]
JobParams = Capture | Optimize | Verify

GRACE_S = 0.1
PROGRESS_INTERVAL_S = 0.1


@dataclass
class Job:
    id: str
    kind: JobKind
    params: JobParams
    process: JobProcess
    state: Literal["queued", "running", "ended"] = "queued"
    cancelled: bool = False
    percentage: int = 0
    message: str = "queued"
    best: str | None = None
    best_outcome: Mapping[str, Any] | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    last_sent: float = 0.0


def deadline_s(job: Job) -> float | None:
    """A search has a budget; around it come a capture, builds and the last verdict. A capture may run as long as the
    person's program does: only a cancel ends it."""
    return None if job.kind == "capture" else 4 * job.params.settings.budget_seconds + 20


class Registry:
    """Emits `job/progress` and `job/done`; a job that was submitted always gets exactly one `job/done`."""

    def __init__(self, emit: Emit, cwd: Callable[[str], str], trusted: Callable[[], Answers]) -> None:
        self.emit, self.cwd, self.trusted = emit, cwd, trusted
        self.jobs: dict[str, Job] = {}  # queued and running, oldest first
        self._runner: asyncio.Task[None] | None = None

    def submit(self, kind: JobKind, params: JobParams) -> Job:
        """A new job under the caller's id. UsageError when that id is taken."""
        id = params.job or uuid.uuid4().hex[:12]
        if id in self.jobs:
            raise UsageError(f"there is a job {id} already")
        job = Job(id, kind, params, JobProcess(lambda method, notice: self._notice(id, method, notice), asks=True))
        self.jobs[id] = job
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run_all())
        return job

    async def cancel(self, id: str) -> bool:
        """Returns when the job and all its processes are gone. False: no such job, or it ended already."""
        job = self.jobs.get(id)
        if job is None:
            return False
        job.cancelled = True
        if job.state == "queued":
            self._end(job, "cancelled", "cancelled before it started", None)
            return True
        job.process.ask_to_stop()
        try:
            await asyncio.wait_for(job.ended.wait(), GRACE_S)
        except TimeoutError:
            await job.process.kill()
            await job.ended.wait()
        return True

    def answer(self, id: str, ask: int, answer: Mapping[str, Any]) -> None:
        """Hand a language model's answer to the job that asked; one that ended meanwhile needs it no more."""
        job = self.jobs.get(id)
        if job is not None:
            job.process.answer(ask, answer)

    async def close(self) -> None:
        """Kill everything, without asking."""
        running = [job for job in self.jobs.values() if job.state == "running"]
        for job in self.jobs.values():
            job.cancelled = True
        await asyncio.gather(*(job.process.kill() for job in running))
        if self._runner is not None:
            await asyncio.gather(self._runner, return_exceptions=True)

    async def _run_all(self) -> None:
        while waiting := [job for job in self.jobs.values() if job.state == "queued"]:
            job = waiting[0]
            if job.cancelled:
                self._end(job, "cancelled", "cancelled before it started", None)
            else:
                await self._run(job)

    async def _run(self, job: Job) -> None:
        job.state = "running"
        status: JobStatus
        outcome: Mapping[str, Any] | None
        limit = deadline_s(job)
        try:
            work = job.process.run(job.kind, to_json(job.params), self.cwd(job.params.path), self.trusted())
            answer = await asyncio.wait_for(work, limit)
            status, message, outcome = answer["status"], answer["message"], answer["outcome"]
        except TimeoutError:
            status, outcome = "failed", job.best_outcome
            message = (
                f"stopped after {limit:.0f} s while “{job.message}”: the program or a kernel may never end, or "
                "cudaAgent.budgetSeconds is too small for it"
            )
        except Cancelled as stopped:
            status, message, outcome = "cancelled", str(stopped) or "cancelled", job.best_outcome
        except CudaAgentError as failure:
            status, message, outcome = "failed", str(failure), job.best_outcome
        except Exception as failure:  # a bug of ours must not stop the queue; it is reported like any failed job
            status, message, outcome = "failed", f"internal error: {failure!r}", job.best_outcome
        if job.cancelled:
            status = "cancelled"
            message = f"cancelled; best so far: {job.best}" if job.best else "cancelled"
        await job.process.kill()
        self._end(job, status, message, outcome)

    def _end(self, job: Job, status: JobStatus, message: str, outcome: Mapping[str, Any] | None) -> None:
        job.state = "ended"
        self.jobs.pop(job.id, None)
        params = job.params
        self.emit("job/done", JobDone(job.id, job.kind, params.path, params.kernel, status, message, outcome))
        job.ended.set()

    def _notice(self, id: str, method: str, notice: Mapping[str, Any]) -> None:
        job = self.jobs.get(id)
        if job is None:
            return
        if method == "log":
            self.emit("log", Log(notice.get("level", "info"), str(notice.get("message", ""))))
        elif method == "ask":
            self.emit("model/ask", ModelAsk(id, int(notice["ask"]), notice["request"]))
        elif method == "stop":
            self.emit("model/stop", ModelStop(id, int(notice["ask"])))
        if method != "progress":
            return
        new_best = notice.get("best") or job.best
        changed, job.best = new_best != job.best, new_best
        job.best_outcome = notice.get("best_outcome") or job.best_outcome
        job.percentage = max(job.percentage, min(100, int(notice.get("percentage") or 0)))
        job.message = str(notice.get("message") or job.message)
        now = time.monotonic()
        if changed or now - job.last_sent >= PROGRESS_INTERVAL_S:
            job.last_sent = now
            self.emit("job/progress", JobProgress(id, job.percentage, job.message, job.best))
