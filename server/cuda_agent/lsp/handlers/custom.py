"""`cudaAgent/*`: what the standard has no word for. Listed in docs/protocol.md, which a test pins to `REQUESTS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuda_agent.errors import SourceError, UsageError
from cuda_agent.lsp import render
from cuda_agent.lsp.guard import feature
from cuda_agent.lsp.proposals import rebased
from cuda_agent.lsp.server import SCHEME, CudaAgentServer
from cuda_agent.source import edits, joined


def proposal(server: CudaAgentServer, params: Any) -> dict[str, Any] | None:
    """`{id}` or `{uri: "cuda-agent-proposal:/ID/NUMBER/NAME"}`: everything a client needs to show one proposal."""
    values = params if isinstance(params, Mapping) else {}
    uri = str(values.get("uri", ""))
    id = str(values.get("id") or proposal_id(uri))
    found = server.proposals.find(id, server.documents)
    if found is None:
        return None
    file, known = found
    return {
        "id": known.id,
        "uri": known.uri,
        "kernel": known.kernel,
        "state": known.state,
        "title": render.proposal_title(known),
        "text": proposal_text(server, uri) if uri else candidate_texts(server, id)[0],
        "diff": known.diff,
        "evidence": "\n".join(render.proposal_hover(known)),
        "version": file.document.version,
    }


async def job_cancel(server: CudaAgentServer, params: Any) -> dict[str, Any]:
    if not isinstance(params, Mapping) or not params.get("job"):
        raise UsageError("cudaAgent/job/cancel needs {job}")
    return {"cancelled": await server.jobs.cancel(str(params["job"]))}


def jobs(server: CudaAgentServer, params: Any) -> list[dict[str, Any]]:
    return [
        {
            "job": job.id,
            "kind": job.kind,
            "uri": job.uri,
            "kernel": job.kernel,
            "percentage": job.percentage,
            "message": job.message,
        }
        for job in server.jobs.all()
    ]


async def trust(server: CudaAgentServer, params: Any) -> None:
    """A notification: the editor's trust in this workspace changed."""
    trusted = bool(params.get("trusted")) if isinstance(params, Mapping) else False
    server.trust.tell(trusted)
    await server.trust_changed()


def debug_information(server: CudaAgentServer, params: Any) -> dict[str, Any]:
    return server.debug_information()


REQUESTS = {
    "cudaAgent/proposal": proposal,
    "cudaAgent/job/cancel": job_cancel,
    "cudaAgent/jobs": jobs,
    "cudaAgent/trust": trust,
    "cudaAgent/debugInformation": debug_information,
}
# What we send to clients that announced it in `experimental.cudaAgent`.
SENT = ("cudaAgent/job", "cudaAgent/status", "cudaAgent/showDiff", "cudaAgent/askRunCommand", "cudaAgent/model/reply")


def proposal_id(uri: str) -> str:
    """The id in `cuda-agent-proposal:/ID/NAME`; "" when it is not one of ours."""
    scheme, _, path = uri.partition(":")
    parts = [part for part in path.split("/") if part]
    return parts[0] if scheme == SCHEME and parts else ""


def file_number(uri: str) -> int:
    """Which file of the proposal a document's URI means: 0 is the kernel's own, the others follow in their order."""
    parts = [part for part in uri.partition(":")[2].split("/") if part]
    return int(parts[1]) if len(parts) > 2 and parts[1].isdigit() else 0


def proposal_text(server: CudaAgentServer, uri: str) -> str:
    texts = candidate_texts(server, proposal_id(uri))
    if file_number(uri) >= len(texts):
        raise SourceError("there is no such file in this proposal")
    return texts[file_number(uri)]


def candidate_texts(server: CudaAgentServer, id: str) -> list[str]:
    """The files as they would be after accepting; for a proposal that no longer fits, the texts that were judged."""
    found = server.proposals.find(id, server.documents)
    if found is None:
        raise SourceError("there is no such proposal any more")
    file, known = found
    try:
        whole = server.proposals.whole(known, file)
        text = edits.apply(whole, rebased(known, whole))
    except SourceError:
        text = known.candidate.text
    return [part.text for part in joined.parts(text)]


def register(server: CudaAgentServer) -> None:
    for method, handler in REQUESTS.items():
        feature(server, method, handler)
