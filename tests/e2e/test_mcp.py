"""`cuda-agent mcp` as an agent's host uses it: the official client over stdio, nothing in the path replaced."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from command import alive, below, environment, run
from editor import vscode
from jsonschema import Draft202012Validator
from mcp import ClientSession, StdioServerParameters, stdio_client

from conftest import Starter
from cuda_agent.engine.codec import from_json, to_json
from cuda_agent.errors import CudaAgentError, ToolMissing
from cuda_agent.lsp.proposals import source_hash
from cuda_agent.mcp import editor as attached
from cuda_agent.model import Candidate, GateResult, Proposal, Verdict
from cuda_agent.source.documents import Document
from cuda_agent.source.edits import minimal
from cuda_agent.source.symbols import module
from cuda_agent.toolchain import nvcc, sandbox
from cuda_agent.trust import Trust
from patience import patience

try:
    nvcc.find()
    HAVE_NVCC = True
except ToolMissing:
    HAVE_NVCC = False

TOOLS = ["facts", "capture", "verify", "bench", "optimise", "proposals"]
SCALE = """\
#include <cstdio>
#include <cuda_runtime.h>

__global__ void scale(const float *in, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = 2.0f * in[i] + 1.0f;
}

int main()
{
    const int n = 100;
    float host[n], *in, *out;
    for (int i = 0; i < n; i++)
        host[i] = 0.5f * i - 7.0f;
    cudaMalloc(&in, sizeof(host));
    cudaMalloc(&out, sizeof(host));
    cudaMemcpy(in, host, sizeof(host), cudaMemcpyHostToDevice);
    scale<<<(n + 63) / 64, 64>>>(in, out, n);
    cudaMemcpy(host, out, sizeof(host), cudaMemcpyDeviceToHost);
    std::printf("{\\"jsonrpc\\": 1}\\nthe program prints\\n");
    return 0;
}
"""
SUM = "2.0f * in[i] + 1.0f"


@dataclass
class Client:
    session: ClientSession
    unreadable: list[Exception] = field(default_factory=list)  # what came on stdout and was no message
    said: list[tuple[float, str]] = field(default_factory=list)

    async def call(self, tool: str, **given: Any) -> mcp_types.CallToolResult:
        """The SDK's client holds the structured result against the tool's schema."""

        async def progress(number: float, total: float | None, message: str | None) -> None:
            assert total == 100
            self.said.append((number, message or ""))

        found = await self.session.call_tool(tool, given, progress_callback=progress)
        assert isinstance(found, mcp_types.CallToolResult)
        return found

    async def result(self, tool: str, **given: Any) -> dict[str, Any]:
        found = await self.call(tool, **given)
        assert not found.is_error, text(found)
        assert found.structured_content == json.loads(text(found))
        return dict(found.structured_content)

    async def until_said(self, word: str, call: asyncio.Task[Any], seconds: float = 60.0) -> None:
        """Until progress with this word came from a call that still runs."""
        end = time.monotonic() + patience(seconds)
        while not any(word in message for _, message in self.said):
            assert time.monotonic() < end, self.said
            assert not call.done(), call.result()
            await asyncio.sleep(0.02)

    async def refused(self, tool: str, **given: Any) -> str:
        found = await self.call(tool, **given)
        assert found.is_error, text(found)
        return text(found)


def text(found: mcp_types.CallToolResult) -> str:
    (block,) = found.content
    assert isinstance(block, mcp_types.TextContent)
    return block.text


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "scale.cu").write_text(SCALE)
    return folder


@pytest.fixture
def env(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of the server and of this process, which asks for the same folders."""
    values = {"CUDA_AGENT_CACHE": str(cache), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return {**values, "PATH": os.environ["PATH"]}


@asynccontextmanager
async def connected(cwd: Path, env: dict[str, str], *options: str, **more: Any) -> AsyncIterator[Client]:
    argv = ["-m", "cuda_agent.cli", "mcp", "--device", "emulator", *options]
    server = StdioServerParameters(command=sys.executable, args=argv, env=env, cwd=cwd)
    unreadable: list[Exception] = []

    async def listen(message: Any) -> None:
        if isinstance(message, Exception):
            unreadable.append(message)

    async with (
        stdio_client(server) as (read, write),
        ClientSession(read, write, message_handler=listen, **more) as session,
    ):
        began = await session.initialize()
        assert began.server_info.name == "cuda-agent"
        yield Client(session, unreadable)
    assert not unreadable, f"stdout is the protocol's alone: {unreadable}"
    assert not servers(), "the server ends with its input"


def servers() -> list[int]:
    return [pid for pid, command in below(os.getpid()).items() if "cuda_agent.cli mcp" in command]


async def until_gone(pids: list[int], seconds: float = 5.0) -> None:
    end = time.monotonic() + patience(seconds)
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < end, left
        await asyncio.sleep(0.02)


# ---------------------------------------------------------------- the tools


async def test_an_agent_reads_captures_judges_and_proposes(project: Path, env: dict[str, str], cache: Path) -> None:
    async with connected(project, env) as client:
        await the_tools_have_schemas(client)
        await nothing_runs_before_trust(client, project)
        await nothing_outside_is_read(client, project)
        done = run(["trust", str(project), "--json"], project, {**environment(cache), **env}).check(0)
        assert done.json == {"status": "done", "folder": str(project), "trusted": True}
        await facts(client)
        await captured(client, project)
        assert "does not measure time" in await client.refused("bench", file="scale.cu")
        if sandbox.available():
            await judged(client, project)
        assert (project / "scale.cu").read_text() == SCALE, "no tool writes the person's file"
        numbers = [number for number, _ in client.said]
        assert all(number > 0 for number in numbers)


async def the_tools_have_schemas(client: Client) -> None:
    listed = (await client.session.list_tools()).tools
    assert [tool.name for tool in listed] == TOOLS
    for tool in listed:
        assert tool.description
        assert tool.output_schema is not None
        Draft202012Validator.check_schema(tool.input_schema)
        Draft202012Validator.check_schema(tool.output_schema)
    assert "there is no tool 'shell'" in await client.refused("shell", command="id")
    assert "unknown: shell; this tool takes file" in await client.refused("facts", file="scale.cu", shell="id")
    assert "arguments.file is missing" in await client.refused("facts")


async def nothing_runs_before_trust(client: Client, project: Path) -> None:
    for tool in TOOLS[:-1]:
        sentence = await client.refused(tool, file="scale.cu", **({"candidate": SCALE} if tool == "verify" else {}))
        assert f"{project} is not trusted" in sentence
        assert f"cuda-agent trust {project}" in sentence
    assert await client.result("proposals") == {"proposals": []}
    assert not (project / ".cuda-agent").exists()


async def nothing_outside_is_read(client: Client, project: Path) -> None:
    outside = project.parent / "outside.cu"
    outside.write_text(SCALE)
    (project / "link.cu").symlink_to(outside)
    for name in (str(outside), "../outside.cu", "link.cu", "/etc/passwd"):
        assert "outside of the folders" in await client.refused("facts", file=name)
    Trust().remember(project, True)
    sentence = await client.refused("verify", file="scale.cu", candidate_file="../outside.cu")
    assert "outside of the folders" in sentence
    assert "no such file" in await client.refused("facts", file="nothing.cu")


async def facts(client: Client) -> None:
    if not HAVE_NVCC:
        assert "nvcc" in await client.refused("facts", file="scale.cu")
        return
    found = await client.result("facts", file="scale.cu", kernel="scale")
    assert [row["kernel"] for row in found["kernels"]] == ["scale"]
    assert found["kernels"][0]["registers"] > 0
    assert "no kernel" in await client.refused("facts", file="scale.cu", kernel="other")


async def captured(client: Client, project: Path) -> None:
    mark = project / "mark"
    assert "only the person's own run command" in await client.refused(
        "capture", file="scale.cu", command=f"touch {mark}"
    )
    assert not mark.exists()
    found = await client.result("capture", file="scale.cu")
    assert (found["status"], found["recorded"], found["exit_code"]) == ("done", 1, 0)
    assert [row["kernel"] for row in found["kernels"]] == ["scale"]
    assert "the program prints" in found["output"]


async def judged(client: Client, project: Path) -> None:
    good = SCALE.replace(SUM, "fmaf(in[i], 2.0f, 1.0f)").replace("63) / 64, 64", "31) / 32, 32")
    found = await client.result("verify", file="scale.cu", candidate=good, propose=True)
    assert (found["status"], found["evidence_level"], found["faster"]) == ("verified", "emulated", False)
    assert (found["timing"], found["candidate"]["origin"]) == (None, "model:mcp")
    assert {gate["id"]: gate["status"] for gate in found["gates"]}["G3"] == "pass"
    assert "when they open the file" in found["proposed"]
    assert any("G3 outputs: pass" in message or "G2" in message for _, message in client.said)

    (project / "wrong.cu").write_text(SCALE.replace(SUM, "2.0f * in[i]"))
    found = await client.result("verify", file="scale.cu", candidate_file="wrong.cu", propose=True)
    assert (found["status"], found["proposed"]) == ("rejected", "not proposed: only what is verified is")
    assert "Rejected by G3" in found["headline"]

    broken = SCALE.replace(SUM, "2.0f * in[j]")
    found = await client.result("verify", file="scale.cu", candidate=broken)
    assert found["status"] == "rejected"
    assert "'j' was not declared" in {gate["id"]: gate["detail"] for gate in found["gates"]}["G1"]

    (row,) = (await client.result("proposals", file="scale.cu"))["proposals"]
    assert (row["kernel"], row["origin"], row["state"], row["status"]) == ("scale", "model:mcp", "fresh", "verified")
    shown = await client.result("proposals", proposal=row["id"])
    assert shown["proposals"] == [row]
    assert "+        out[i] = fmaf(in[i], 2.0f, 1.0f);" in shown["diff"]
    assert shown["evidence"]["status"] == "verified"


async def test_a_cancel_and_a_closed_server_end_a_search_and_all_its_processes(
    workspace: Path, env: dict[str, str]
) -> None:
    Trust().remember(workspace, True)
    async with connected(workspace, env, "--set", "arguments=64 96 1") as client:
        (server,) = servers()
        search = asyncio.create_task(client.call("optimise", file="softmax_rows.cu", budget=600))
        await client.until_said("tried", search)
        assert below(server)
        numbers = [number for number, _ in client.said]
        assert numbers == sorted(set(numbers)), "progress rises each time"
        search.cancel()
        await until_gone(list(below(server)))
        client.said.clear()
        search = asyncio.create_task(client.call("optimise", file="softmax_rows.cu", budget=600))
        await client.until_said("", search)
        jobs = list(below(server))
        assert jobs
    with pytest.raises(Exception, match="closed"):
        await search
    await until_gone(jobs)


# ---------------------------------------------------------------- beside a running server


async def test_beside_an_editor_unsaved_text_counts_and_a_proposal_is_shown(
    started: Starter, project: Path, env: dict[str, str]
) -> None:
    path = project / "scale.cu"
    Trust().remember(project, True)
    editor = await started(vscode(), root=project)
    uri = editor.open(path)
    editor.replace(uri, SCALE.replace("scale", "unsaved"))

    async def heard() -> bool:
        found = await attached.find(path)
        return found is not None and "unsaved" in found.text

    await editor.until("the unsaved text", heard, 10)
    link, other = project.parent / "link", project.parent / "other"
    link.symlink_to(project)
    other.mkdir()
    (other / "scale.cu").write_text(SCALE)

    async def roots(context: Any) -> mcp_types.ListRootsResult:
        return mcp_types.ListRootsResult(roots=[mcp_types.Root(uri=link.as_uri())])

    async with connected(other, env, list_roots_callback=roots) as client:  # it has roots, and no folder was given
        assert "outside of the folders" in await client.refused("facts", file=str(other / "scale.cu"))
        found = await client.result("capture", file="scale.cu")
        assert [row["kernel"] for row in found["kernels"]] == ["unsaved"]
    assert path.read_text() == SCALE

    opened = await attached.find(path)
    assert opened is not None
    candidate = opened.text.replace(SUM, "fmaf(in[i], 2.0f, 1.0f)")
    await attached.propose(opened, proposal(uri, opened.text, candidate))
    assert await editor.until_lens(uri, "verified on the emulator", 10)
    with pytest.raises(CudaAgentError, match="only a verified candidate"):
        await attached.propose(opened, proposal(uri, opened.text, candidate, status="rejected"))
    with pytest.raises(CudaAgentError, match="is not open"):
        await attached.propose(opened, proposal(uri + "x", opened.text, candidate))

    socket = opened.server
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    await editor.client.shutdown_session()
    end = time.monotonic() + patience(5)
    while socket.exists():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)
    assert await attached.find(path) is None


def proposal(uri: str, old: str, new: str, status: Any = "verified") -> Proposal:
    candidate = Candidate("unsaved", old, new, minimal(old, new), "model:test", id="0123456789ab")
    gates = (GateResult("G3", "outputs", "pass", "equal"),)
    verdict = Verdict(status, "emulated", gates, "captured: 1 launch of emulator", "bit-exact", None, {}, {})
    parsed = module(Document("scale.cu", old))
    hash = source_hash(parsed, parsed.kernel("unsaved"))
    made = Proposal("abcdef012345", uri, "unsaved", hash, candidate, verdict, "")
    return from_json(Proposal, to_json(made))
