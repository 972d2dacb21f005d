"""window/workDoneProgress/cancel: the progress bar's button ends the job."""

from __future__ import annotations

from lsprotocol import types

from cuda_agent.lsp.guard import feature
from cuda_agent.lsp.server import CudaAgentServer


def cancelled(server: CudaAgentServer, params: types.WorkDoneProgressCancelParams) -> None:
    job = server.jobs.by_token(params.token)
    if job is not None:
        server.spawn(server.jobs.cancel(job.id))


def register(server: CudaAgentServer) -> None:
    feature(server, types.WINDOW_WORK_DONE_PROGRESS_CANCEL, cancelled)
