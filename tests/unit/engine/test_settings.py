"""The person's settings in a job: each does there what its page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import diskcache
import pytest

from cuda_agent import cache, config, paths
from cuda_agent.config import Settings
from cuda_agent.engine import tasks, wire
from cuda_agent.engine.codec import to_json
from cuda_agent.engine.job import Report
from cuda_agent.engine.messages import Capture, FactsOf
from cuda_agent.errors import CaptureError, CompileError, SourceError, ToolMissing
from cuda_agent.inputs import find_or_make
from cuda_agent.judge import JudgeOptions
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module
from cuda_agent.toolchain import nvcc, sandbox
from cuda_agent.toolchain.build import find_build

ROOT = Path(__file__).parents[3]
try:
    nvcc.find()
    HAVE_NVCC = True
except ToolMissing:
    HAVE_NVCC = False
needs_nvcc = pytest.mark.skipif(not HAVE_NVCC, reason="needs nvcc")
needs_bwrap = pytest.mark.skipif(not sandbox.available(), reason="needs bubblewrap")

PROGRAM = """#include <cuda_runtime.h>
#ifndef ANSWER
#error no ANSWER
#endif
__global__ void k(float *x) { x[threadIdx.x] = ANSWER; }
int main() {
    float *x;
    cudaMalloc(&x, 128);
    for (int i = 0; i < 3; i++) k<<<1, 32>>>(x);
    return cudaDeviceSynchronize();
}
"""


class Silent:
    """Takes what a job says."""

    def __init__(self) -> None:
        self.sent: list[wire.Message] = []

    def send(self, message: wire.Message) -> None:
        self.sent.append(message)


def run(kind: str, ask: object) -> Any:
    return tasks.run(kind, to_json(ask), Report(Silent()))  # type: ignore[arg-type]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    path = folder / "k.cu"
    path.write_text(PROGRAM)
    return path


@needs_nvcc
def test_extra_flags_reach_the_facts(program: Path) -> None:
    refused = run("facts", FactsOf(str(program), PROGRAM))
    assert "no ANSWER" in refused["problem"]
    found = run("facts", FactsOf(str(program), PROGRAM, settings=Settings(extra_flags=("-D", "ANSWER=4"))))
    assert (found["problem"], list(found["kernels"])) == (None, ["k"])


def test_extra_flags_and_limits_reach_a_capture(program: Path) -> None:
    with pytest.raises(CompileError):
        run("capture", Capture(str(program), PROGRAM, "k", Settings("emulator")))
    for wanted in (1, 3):
        settings = Settings("emulator", extra_flags=("-DANSWER=4",), capture_launches=wanted)
        assert run("capture", Capture(str(program), PROGRAM, "k", settings))["outcome"]["recorded"] == wanted


def test_the_capture_limit_reaches_a_capture(program: Path) -> None:
    text = PROGRAM.replace("cudaMalloc(&x, 128)", "cudaMalloc(&x, 2 << 20)")
    program.write_text(text)
    settings = Settings("emulator", extra_flags=("-DANSWER=4",), capture_limit_mb=1)
    with pytest.raises(CaptureError, match="the limit is 1048576"):
        run("capture", Capture(str(program), text, "k", settings))


@needs_nvcc
@needs_bwrap
def test_without_the_sandbox_the_compiler_reads_all_that_the_person_may(program: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.h").write_text("#define ANSWER 4\n")
    text = PROGRAM.replace("#ifndef", '#include "../elsewhere.h"\n#ifndef')
    assert "No such file" in run("facts", FactsOf(str(program), text))["problem"]
    assert run("facts", FactsOf(str(program), text, settings=Settings(sandbox="off")))["problem"] is None


@needs_nvcc
def test_the_size_of_the_cache(program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    for size in (16, 64):
        run("facts", FactsOf(str(program), PROGRAM, settings=Settings(cache_size_mb=size)))
        assert cache.default().usable
        with diskcache.Cache(str(paths.cache_dir() / "results")) as kept:
            assert kept.size_limit == size << 20


@needs_nvcc
def test_arch_and_nvcc_of_the_facts(program: Path) -> None:
    text = PROGRAM.replace("#error no ANSWER", "#define ANSWER 4")
    assert run("facts", FactsOf(str(program), text, settings=Settings("emulator")))["arch"] == "sm_90"
    assert run("facts", FactsOf(str(program), text, settings=Settings(arch="sm_80")))["arch"] == "sm_80"
    with pytest.raises(ToolMissing, match=r"cudaAgent\.nvccPath is /bin/false"):
        run("facts", FactsOf(str(program), text, settings=Settings(nvcc_path="/bin/false")))
    assert run("facts", FactsOf(str(program), text, settings=Settings("emulator")))["problem"] is None


@needs_nvcc
def test_every_category_of_hints_has_findings(program: Path) -> None:
    text = PROGRAM.replace("#error no ANSWER", "#define ANSWER 4")
    spilling = "float y[64]; for (int i = 0; i < 64; i++) y[i * 7 % (int)x[i]] = i; x[1] = y[(int)x[2]];"
    text = text.replace("{ x[", "{ " + spilling + " x[")
    text = text.replace("k<<<1, 32>>>(x);", "k<<<1, 2048>>>(x);", 1) + "void more(float *x) { k<<<1, 64>>>(x); }\n"
    found = run("facts", FactsOf(str(program), text))["kernels"]["k"]["findings"]
    assert {finding["category"] for finding in found} == set(config.HINT_CATEGORIES)


def test_fast_math_reaches_the_judge() -> None:
    assert JudgeOptions().allow == frozenset()
    config.use(Settings(fast_math=True))
    assert JudgeOptions().allow == {"fast-math"}


def test_every_setting_is_read_somewhere() -> None:
    """By the server, a job, the command line or the editor's client."""
    sources = [path for path in (ROOT / "server").rglob("*.py") if path.name != "config.py"]
    text = "".join(path.read_text() for path in [*sources, *(ROOT / "client-vscode" / "src").glob("*.ts")])
    through = {"arguments": "program_arguments", "run_command": "command"}
    unread = [
        name
        for name, shown, _, _ in config.fields()
        if not re.search(rf"\.({name}|{through.get(name, name)})\b|\"{shown}\"", text)
    ]
    assert unread == []


# ---------------------------------------------------------------- unsaved text


def test_a_capture_takes_the_unsaved_text(program: Path) -> None:
    """With what the file includes from its folder, and the device variables of the unsaved text."""
    (program.parent / "answer.h").write_text("#define ANSWER (4 + bias)\n")
    program.write_text("#error saved and broken\n")
    text = PROGRAM.replace("#ifndef", '__constant__ float bias;\n#include "answer.h"\n#ifndef')
    text = text.replace("1, 32>>>", "2, 16>>>")
    done = run("capture", Capture(str(program), text, "k", Settings("emulator")))
    (kernel,) = done["outcome"]["kernels"]
    assert (kernel["recorded"], list(kernel["grid"]), list(kernel["block"])) == (2, [2, 1, 1], [16, 1, 1])
    launch = (program.parent / ".cuda-agent" / "captures" / "k" / "launch.json").read_text()
    assert '"bias"' in launch
    assert sorted(path.name for path in program.parent.iterdir()) == [".cuda-agent", "answer.h", "k.cu"]


def test_a_search_captures_the_unsaved_text(program: Path) -> None:
    text = PROGRAM.replace("#error no ANSWER", "#define ANSWER 4")
    workload = find_or_make(program, module(Document(str(program), text)), "k", find_build(program), "emulator")
    assert (workload.origin, len(workload.launches)) == ("captured", 2)


def test_errors_of_an_unsaved_text_name_the_file(program: Path) -> None:
    text = PROGRAM.replace("#error no ANSWER", "int f() { return nonsense; }")
    with pytest.raises(CompileError) as caught:
        run("capture", Capture(str(program), text, "k", Settings("emulator")))
    assert re.search(rf"{re.escape(str(program))}:3\b", caught.value.diagnostics), caught.value.diagnostics


def test_a_run_command_wants_the_file_saved(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(program.parent)
    settings = Settings("emulator", "touch ran")
    for kind, ask in (
        ("capture", Capture(str(program), PROGRAM + "\n", "k", settings)),
        ("optimize", {"path": str(program), "text": PROGRAM + "\n", "kernel": "k", "settings": to_json(settings)}),
    ):
        with pytest.raises(SourceError, match=r"k\.cu has unsaved changes.*save the file first"):
            run(kind, ask)
    assert not (program.parent / "ran").exists()
