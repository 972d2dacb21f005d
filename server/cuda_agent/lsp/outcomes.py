"""What the end of a job means for the person: a proposal, or a sentence."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from cuda_agent.engine.codec import CodecError, from_json
from cuda_agent.engine.messages import JobDone
from cuda_agent.lsp import diagnostics, render
from cuda_agent.lsp.documents import OpenFile
from cuda_agent.lsp.jobs import Job
from cuda_agent.lsp.proposals import judged_hash
from cuda_agent.model import Candidate, Proposal, Verdict

if TYPE_CHECKING:
    from cuda_agent.lsp.server import CudaAgentServer


def facts_changed(server: CudaAgentServer, file: OpenFile) -> None:
    server.refresh_soon()
    diagnostics.publish(server, file)


def finish(server: CudaAgentServer, job: Job, event: JobDone) -> None:
    """Called once a job. A person's cancel is not a fault: it is logged, not shown."""
    try:
        proposal = _proposal(job, event)
    except CodecError as problem:
        server.failed(job.title, problem, command=True)
        return
    if proposal is not None:
        server.proposals.put(proposal)
    server.refresh_soon()
    if event.status == "failed":
        server.say(f"{job.title}: {event.message}", types.MessageType.Warning)
    elif event.status == "cancelled":
        server.log(f"{job.title}: {event.message}")
    elif proposal is not None and proposal.verdict.status == "verified":
        server.say(f"{job.kernel}: {render.proposal_title(proposal)}")
    else:
        server.say(f"{job.kernel}: {event.message}")


def _proposal(job: Job, event: JobDone) -> Proposal | None:
    """From an outcome with a candidate and a verdict. Only a verified one, or a cancelled search's best, is worth a
    row; a verification always is, because the person asked about that very candidate."""
    outcome: Mapping[str, Any] = event.outcome or {}
    if not outcome.get("candidate") or not outcome.get("verdict"):
        return None
    candidate, verdict = from_json(Candidate, outcome["candidate"]), from_json(Verdict, outcome["verdict"])
    if event.status != "done":  # the full judge has not seen it
        verdict = replace(verdict, status="undecided")
    elif job.kind == "optimize" and verdict.status != "verified":
        return None
    hash = judged_hash(job.document.path, candidate)
    id = uuid.uuid4().hex[:12]
    return Proposal(id, job.uri, job.kernel, hash, candidate, verdict, str(outcome.get("diff", "")))
