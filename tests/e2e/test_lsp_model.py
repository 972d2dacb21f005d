"""The editor's own language model, the whole way: a person starts a search, the job asks, the client answers, the
proposal says who wrote it; and every way in which there is no answer."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from editor import Editor, children, command_line, neovim, vscode
from lsprotocol import types

from conftest import Starter
from cuda_agent import keys
from patience import patience
from scripted_model_server import ScriptedModel, call, flood, raw, refused, say

WHERE = "softmax_rows"
SETTINGS = {"model": "editor:fast", "policy": "model"}
NAMED = {"model": {"name": "scripted-1", "context": 32000}}
WHY = "Each exponential is written once instead of written, read and written again."
BETTER = """__global__ void softmax_rows(const float *in, float *out, int rows, int cols)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;

    float largest = in[row * cols];
    for (int c = 1; c < cols; c++)
        largest = fmaxf(largest, in[row * cols + c]);

    float sum = 0.0f;
    for (int c = 0; c < cols; c++)
        sum += expf(in[row * cols + c] - largest);

    for (int c = 0; c < cols; c++)
        out[row * cols + c] = expf(in[row * cols + c] - largest) / sum;
}"""
STEPS = (("replace_kernel", {"code": BETTER, "why": WHY}), ("verify", {}), ("submit", {"why": WHY}))


async def scripted(params: Any) -> Any:
    """Writes `BETTER`, has it verified and submits it: a step for each answer that it got to a call of its own."""
    made = sum(call["id"].startswith("mine") for message in params["messages"] for call in message["calls"])
    if not params["messages"]:
        return NAMED
    name, arguments = STEPS[min(made, len(STEPS) - 1)]
    return {**NAMED, "text": "", "calls": [{"id": f"mine-{made}", "name": name, "arguments": arguments}]}


async def hanging(params: Any) -> Any:
    if not params["messages"]:
        return NAMED
    return await asyncio.sleep(1000)


def failing(kind: str, message: str) -> Any:
    async def answer(params: Any) -> Any:
        return {"error": {"kind": kind, "message": message}}

    return answer


def with_model(capabilities: types.ClientCapabilities) -> types.ClientCapabilities:
    """As a client that has a language model, and knows the tag of what one wrote."""
    announced = (capabilities.experimental or {}).get("cudaAgent", {})  # type: ignore[union-attr]
    capabilities.experimental = {"cudaAgent": {**announced, "model/reply": True}}
    document = capabilities.text_document
    assert document is not None
    assert document.code_action is not None
    document.code_action.tag_support = types.CodeActionTagOptions(value_set=[types.CodeActionTag.LlmGenerated])
    return capabilities


async def until_asked(editor: Editor, times: int) -> None:
    async def asked() -> bool:
        return len(editor.asked) >= times

    await editor.until(f"{times} questions to the model", asked, 120)


def environments(pid: int) -> dict[str, bytes]:
    """The environment of every process below the server and its own, by command line."""
    found = {}
    for one in [pid, *children(pid)]:
        try:
            found[f"{one} {command_line(one)}"] = Path(f"/proc/{one}/environ").read_bytes()
        except OSError:
            continue
    return found


@pytest.mark.parametrize("client", [vscode, neovim])
async def test_the_editors_model_writes_a_proposal(started: Starter, workspace: Path, client: Any) -> None:
    secrets = {keys.OURS: "ours-5b1f", keys.PERSONS: "persons-77aa"}
    editor = await started(with_model(client()), settings=SETTINGS, environment=secrets)
    editor.model = scripted
    uri = editor.open(workspace / "softmax_rows.cu")
    position = editor.at(uri, WHERE + "(const")
    await editor.actions(uri, position)
    await editor.hover(uri, position)
    assert editor.asked == []  # nothing before the person's action

    answer = await editor.press(uri, "Optimise")
    leaked: set[str] = set()

    async def proposed() -> bool:
        for who, environment in environments(editor.pid).items():
            ours = "cuda_agent.engine" in who or "cuda_agent.cli serve" in who  # on their way from one to the next
            program = "/program/softmax_rows" in who
            if (b"ours-5b1f" in environment and not ours) or (b"persons-77aa" in environment and not ours | program):
                leaked.add(who)
        return any("verified on the emulator" in title for title in await editor.titles(uri))

    await editor.until("a proposal", proposed, 180)
    assert leaked == set()
    for who, environment in environments(editor.pid).items():
        assert b"ours-5b1f" not in environment, who
        assert b"persons-77aa" not in environment, who

    first, second = editor.asked[:2]
    assert (first["id"], first["messages"]) == ("fast", [])
    assert first["job"] == answer["job"]
    assert second["messages"][0]["role"] == "system"
    assert {"verify", "submit"} <= {tool["name"] for tool in second["tools"]}
    assert all(tool["inputSchema"]["type"] == "object" for tool in second["tools"])
    assert second["force"] is True

    assert any("· written by editor:scripted-1" in title for title in await editor.titles(uri))
    hover = await editor.hover(uri, position)
    assert "- written by the language model `editor:scripted-1`" in hover
    assert f"- why: `{WHY}`" in hover
    accept = next(
        action for action in await editor.actions(uri, position) if action.kind == "refactor.rewrite.cudaAgent.accept"
    )
    assert list(accept.tags) == [types.CodeActionTag.LlmGenerated]
    assert await editor.run(accept.command) == {"applied": True}
    assert BETTER in editor.texts[uri]


async def test_an_editor_without_a_model_says_what_to_set(started: Starter, workspace: Path) -> None:
    editor = await started(vscode(), settings=SETTINGS)
    uri = editor.open(workspace / "softmax_rows.cu")
    (optimise,) = await editor.actions(uri, editor.at(uri, WHERE + "(const"), ["refactor.rewrite"])
    assert optimise.disabled.reason.startswith("this editor offers no language model: set cudaAgent.model to endpoint:")
    assert optimise.command is None
    refused = await editor.run("cudaAgent.optimize", {"uri": uri, "kernel": WHERE})
    assert "this editor offers no language model: set cudaAgent.model to endpoint:" in refused["error"]
    assert editor.asked == []
    # the rules need no model
    editor.client._configuration = {"": {"cudaAgent": {**SETTINGS, "policy": "search"}}}
    editor.client.workspace_did_change_configuration(types.DidChangeConfigurationParams(settings=None))

    async def enabled() -> bool:
        (now,) = await editor.actions(uri, editor.at(uri, WHERE + "(const"), ["refactor.rewrite"])
        return now.disabled is None

    await editor.until("the action without a model", enabled)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            failing("noProvider", "no extension here brings one"),
            "no language model editor:fast: no extension here brings",
        ),
        (failing("noPermission", "the person said no"), "does not let CUDA Agent use the language model editor:fast"),
    ],
)
async def test_without_a_provider_the_action_says_so(started: Starter, workspace: Path, model: Any, said: str) -> None:
    editor = await started(with_model(vscode()), settings=SETTINGS)
    editor.model = model
    uri = editor.open(workspace / "softmax_rows.cu")
    await editor.press(uri, "Optimise")
    sentence = await editor.until_said(said, 60)
    assert "endpoint:NAME@URL" in sentence
    assert len(editor.asked) == 1  # before anything ran
    await editor.until_lens(uri, "Optimise")


async def test_a_client_that_fails_is_told_in_its_words(started: Starter, workspace: Path) -> None:
    async def broken(params: Any) -> Any:
        raise RuntimeError("the provider crashed")

    editor = await started(with_model(vscode()), settings=SETTINGS)
    editor.model = broken
    uri = editor.open(workspace / "softmax_rows.cu")
    await editor.press(uri, "Optimise")
    assert "editor:fast failed" in await editor.until_said("the editor answered with an error", 60)


async def test_cancel_calls_the_model_off(started: Starter, workspace: Path) -> None:
    editor = await started(with_model(vscode()), settings=SETTINGS)
    editor.model = hanging
    uri = editor.open(workspace / "softmax_rows.cu")
    job = (await editor.press(uri, "Optimise"))["job"]
    await until_asked(editor, 2)
    began = time.monotonic()
    assert await editor.ask("cudaAgent/job/cancel", {"job": job}) == {"cancelled": True}
    while not editor.asked_in_vain:
        assert time.monotonic() - began < patience(0.5)
        await asyncio.sleep(0.005)
    await editor.until_lens(uri, "Optimise")
    assert "**kernel**" in await editor.hover(uri, editor.at(uri, WHERE + "(const"))  # a late answer hurts nobody


async def test_the_engines_death_calls_the_model_off(started: Starter, workspace: Path) -> None:
    editor = await started(with_model(vscode()), settings=SETTINGS)
    editor.model = hanging
    uri = editor.open(workspace / "softmax_rows.cu")
    await editor.press(uri, "Optimise")
    await until_asked(editor, 2)
    engine = next(pid for pid in children(editor.pid) if "cuda_agent.engine --parent" in command_line(pid))
    os.kill(engine, signal.SIGKILL)
    assert "run the action again" in (await editor.until_said("was killed by SIGKILL", 30)).lower()

    async def called_off() -> bool:
        return editor.asked_in_vain == 1

    await editor.until("the request to be called off", called_off, 5)


async def test_an_untrusted_folder_asks_no_model(started: Starter, workspace: Path) -> None:
    editor = await started(with_model(vscode()), settings=SETTINGS, options={"trusted": False})
    editor.model = scripted
    uri = editor.open(workspace / "softmax_rows.cu")
    refused = await editor.run("cudaAgent.optimize", {"uri": uri, "kernel": WHERE})
    assert "not trusted" in refused["error"]
    assert editor.asked == []


async def test_a_hostile_server_keeps_nobody_waiting(started: Starter, workspace: Path) -> None:
    """Ten megabytes, silence, broken streams and wrong tools: the editor is answered as ever, and the end is said."""
    silence = call("verify").but(delay=3.0)
    script = [flood(10_000_000), refused(500), call("shell", command="ls"), raw("data: {]\n\n", "text/event-stream")]
    with ScriptedModel([*script, silence], then=say("I refuse.")) as model:
        editor = await started(vscode(), settings={"model": model.spec, "policy": "model"})
        uri = editor.open(workspace / "softmax_rows.cu")
        position = editor.at(uri, WHERE + "(const")
        await editor.hover(uri, position)
        await editor.press(uri, "Optimise")
        waits: list[float] = []

        async def ended() -> bool:
            began = time.monotonic()
            assert "**kernel**" in await editor.hover(uri, position)
            waits.append(time.monotonic() - began)
            return not model.script

        await editor.until("the whole script", ended, 120)
        assert statistics.median(waits) < patience(0.05)
        await editor.until_said("nothing better found", 60)
