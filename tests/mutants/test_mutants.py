"""Every archive is a rewrite with a known fault (or none): the right gate stops it, on the emulator and on a GPU."""

from __future__ import annotations

import judged
import pytest

from archive import Archive
from cuda_agent.agent import loop
from cuda_agent.agent.policies.model import ModelPolicy
from cuda_agent.agent.request import Request
from cuda_agent.errors import CudaAgentError
from scripted_model import Scripted, call


@judged.needs_compiler
@pytest.mark.parametrize("archive", judged.having("expect"), ids=judged.name)
def test_emulator(archive: Archive, emulator: judged.Bench) -> None:
    judged.check(archive, archive.settings["expect"], emulator)


@judged.needs_compiler
@pytest.mark.parametrize(
    "archive", [a for a in judged.having("expect") if a.settings["expect"][0] != "0"], ids=judged.name
)
def test_a_hostile_model(archive: Archive, emulator: judged.Bench) -> None:
    """What a language model writes goes the same way, and the search never ends with it."""
    request = emulator.request(archive)
    emulator.capture(request, archive.settings)
    swap = call("edit", old=request.original.read_text(), new=request.candidate.read_text(), why="trust me")
    search = Request(request.original, kernel=request.kernel, options=request.options, budget_s=60.0, fresh=True)
    policy = ModelPolicy(Scripted(swap, call("verify"), call("submit", why="it is faster")))
    try:
        outcome = loop.optimize(search, device=emulator.device, policy=policy)
    except CudaAgentError:
        assert archive.settings["expect"].startswith("2")  # nothing can be judged here, whoever asks
        return
    assert outcome.steps, "it was never judged"
    assert outcome.status != "verified", outcome.message
    assert not outcome.evidence or outcome.evidence["status"] != "verified"


@pytest.mark.gpu
@pytest.mark.parametrize("archive", judged.having("expect_gpu"), ids=judged.name)
def test_gpu(archive: Archive, gpu: judged.Bench) -> None:
    judged.check(archive, archive.settings["expect_gpu"], gpu)
