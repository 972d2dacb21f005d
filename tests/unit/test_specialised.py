"""A template and its explicit specialisation, which a program records under one name (as HeCBench's crossEntropy does):
every room that looks for a kernel's launches or its machine code takes those of its own text. Whole programs on the
emulator; nothing is mocked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.agent import loop
from cuda_agent.agent.request import Request
from cuda_agent.capture import capture
from cuda_agent.device import Device, open_device
from cuda_agent.engine import kernel_facts
from cuda_agent.engine.messages import FactsOf
from cuda_agent.errors import WorkloadError
from cuda_agent.inputs import capture_options
from cuda_agent.judge.evidence import to_json
from cuda_agent.lsp import render
from cuda_agent.model import Binary, Candidate, Facts
from cuda_agent.recheck import RecheckRequest, recheck
from cuda_agent.replay import ReplayRequest, replay
from cuda_agent.report import file_facts
from cuda_agent.source.documents import Document, text_id
from cuda_agent.source.edits import minimal
from cuda_agent.source.symbols import module
from cuda_agent.toolchain import compile as compiler
from cuda_agent.toolchain.names import demangle
from cuda_agent.verify import VerifyRequest, verify
from cuda_agent.workload import own
from unit.agent.script import Script

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, for the emulator")

TEMPLATE, SPECIAL = "loss", "loss<__half>"
TEXT = """\
#include <cuda_fp16.h>
#include <cstdlib>

template <typename T>
__global__ void loss(const T *x, T *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i] - x[n - 1 - i];
}

template <>
__global__ void loss<__half>(const __half *x, __half *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = __hsub(x[i], x[n - 1 - i]);
}

template <typename T>
void run(int n)
{
    T *h = (T *)malloc(n * sizeof(T)), *x, *y;
    for (int i = 0; i < n; i++)
        h[i] = T(0.25f * i);
    cudaMalloc(&x, n * sizeof(T));
    cudaMalloc(&y, n * sizeof(T));
    cudaMemcpy(x, h, n * sizeof(T), cudaMemcpyHostToDevice);
    loss<<<(n + 31) / 32, 32>>>(x, y, n);
    cudaDeviceSynchronize();
}

int main()
{
    run<float>(70);
    run<__half>(40);
    return 0;
}
"""
OTHER = {  # a rewrite of each, right and another machine code
    TEMPLATE: ("y[i] = x[i] - x[n - 1 - i];", "y[i] = -(x[n - 1 - i] - x[i]);"),
    SPECIAL: ("y[i] = __hsub(x[i], x[n - 1 - i]);", "y[i] = __hsub(__half(0.0f), __hsub(x[n - 1 - i], x[i]));"),
}
FUNCTION = {TEMPLATE: "_Z4lossIfEvPKT_PS0_i", SPECIAL: "_Z4lossI6__halfEvPKT_PS1_i"}
BOTH = pytest.mark.parametrize("kernel", [TEMPLATE, SPECIAL])


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with open_device("emulator") as opened:
        yield opened


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captured; the file."""
    folder = tmp_path_factory.mktemp("specialised")
    file = folder / "loss.cu"
    file.write_text(TEXT)
    options = capture_options("emulator", module(Document(str(file), TEXT)), [TEMPLATE])
    (folder / "Makefile").write_text("run: main\n\t./main\nmain: loss.cu\n\tnvcc -O2 loss.cu -o main\n")
    assert capture(["make", "run"], folder, options).kernels[0].recorded == 2
    return file


def rewritten(kernel: str) -> str:
    old, new = OTHER[kernel]
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


@BOTH
def test_a_verdict_and_the_same_again(device: Device, project: Path, tmp_path: Path, kernel: str) -> None:
    made = verify(VerifyRequest(project, project, text=TEXT, rewrite=rewritten(kernel)), device=device)
    assert made.verdict.status == "verified", [gate.detail for gate in made.verdict.gates]
    assert (made.candidate.kernel, made.verdict.inputs) == (kernel, "captured: 1 launch of emulator")
    evidence = tmp_path / "evidence.json"
    evidence.write_text(json.dumps(to_json(made.verdict, candidate=made.candidate, diff=made.diff)))
    again = recheck(RecheckRequest(evidence, project, device="emulator"))
    assert (again.holds, again.evidence["again"]["differs"]) == (True, []), again.sentence
    assert again.evidence["record"]["launches"] == made.verdict.record["launches"]


def test_another_launch_is_learned_for_the_one(device: Device, project: Path, tmp_path: Path) -> None:
    """The launch starts both: what is learned of it is told apart, too."""
    other = rewritten(SPECIAL).replace("loss<<<(n + 31) / 32, 32>>>", "loss<<<(n + 63) / 64, 64>>>")
    candidate = tmp_path / "loss.cu"
    candidate.write_text(other)
    made = verify(VerifyRequest(project, candidate, TEMPLATE, args=("",)), device=device)
    assert made.verdict.status == "rejected"  # it changes the specialisation, too
    own_launch = other.replace(*reversed(OTHER[SPECIAL]))
    candidate.write_text(own_launch)
    made = verify(VerifyRequest(project, candidate, TEMPLATE, args=("",)), device=device)
    assert made.verdict.status == "verified", [gate.detail for gate in made.verdict.gates]


@BOTH
def test_a_search_and_the_same_again(device: Device, project: Path, tmp_path: Path, kernel: str) -> None:
    path, text = tmp_path / "record.jsonl", rewritten(kernel)
    candidate = Candidate(kernel, TEXT, text, minimal(TEXT, text), "rule:other", id=text_id(text))
    request = Request(project, TEXT, kernel, trajectory=path, fresh=True)
    loop.optimize(request, device=device, policy=Script([candidate]))
    (done,) = replay(ReplayRequest(path, project), device=device)
    assert (done.holds, done.differs) == (True, ()), done.sentence


@BOTH
def test_its_own_launches(project: Path, kernel: str) -> None:
    parsed = module(Document(str(project), TEXT))
    for found in (
        own.find(project, parsed, kernel),
        own.load(project.parent / ".cuda-agent" / "captures", parsed, kernel),
        own.load(project.parent / ".cuda-agent" / "captures" / "loss", parsed, kernel),
    ):
        assert found is not None
        assert [launch.mangled for launch in found.launches] == [FUNCTION[kernel]]
    with pytest.raises(WorkloadError, match="not of other"):
        own.load(project.parent / ".cuda-agent" / "captures" / "loss", parsed, "other")


def test_one_that_was_never_launched(project: Path) -> None:
    more = f"{TEXT}template <> __global__ void loss<double>(const double *x, double *y, int n) {{}}\n"
    parsed = module(Document(str(project), more))
    assert own.find(project, parsed, "loss<double>") is None
    with pytest.raises(WorkloadError, match="none that ran the text of loss<double>"):
        own.load(project.parent / ".cuda-agent" / "captures", parsed, "loss<double>")


def test_facts_of_its_own_machine_code(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's answer is given, for there is not always one."""
    facts = {name: Facts(name, demangle(name), "sm_90", 32, 0, 0, 0, 0, 0, "", 40) for name in FUNCTION.values()}
    binary = Binary("cubin", b"", "", facts, "nvcc")
    monkeypatch.setattr(compiler, "compile", lambda *asked, **more: binary)
    file = kernel_facts.file_facts(FactsOf(str(project), TEXT, 1))
    assert set(file["kernels"]) == {TEMPLATE, SPECIAL}
    assert not any("instantiations" in text for one in file["kernels"].values() for text in one["sentences"])
    for kernel, function in FUNCTION.items():
        assert [row["mangled"] for row in file_facts(project, kernel, None)["kernels"]] == [function]


def test_what_the_editor_says_of_its_launches() -> None:
    parsed = module(Document("loss.cu", TEXT))
    plain, special = parsed.kernel(TEMPLATE), parsed.kernel(SPECIAL)
    assert render.text_title(parsed, plain) == "launched as <<<(n + 31) / 32, 32>>>"
    assert render.text_title(parsed, special) == "launched with its template as <<<(n + 31) / 32, 32>>>"
    assert "launched with its template as `<<<(n + 31) / 32, 32>>>`" in render.text_facts(parsed, special)
    assert (render.short_name(plain), render.short_name(special)) == (TEMPLATE, SPECIAL)
