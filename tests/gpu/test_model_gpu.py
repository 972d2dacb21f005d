"""A language model behind a server, in the whole loop on a real GPU: its good answers become a verified speedup."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cuda_agent import cli
from cuda_agent.toolchain import sandbox
from scripted_model_server import ScriptedModel, call

SOFTMAX = Path(__file__).parents[1] / "corpus" / "softmax_rows.cu"
ROW_A_WARP = """\
__global__ void softmax_rows(const float *in, float *out, int rows, int cols)
{
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows)
        return;
    const float *x = in + (size_t)row * cols;
    float *y = out + (size_t)row * cols;

    float largest = -INFINITY;
    for (int c = lane; c < cols; c += 32)
        largest = fmaxf(largest, x[c]);
    for (int offset = 16; offset > 0; offset /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));

    float sum = 0.0f;
    for (int c = lane; c < cols; c += 32) {
        float e = expf(x[c] - largest);
        y[c] = e;
        sum += e;
    }
    for (int offset = 16; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);

    for (int c = lane; c < cols; c += 32)
        y[c] /= sum;
}
"""
ANSWERS = (
    call("replace_kernel", code=ROW_A_WARP.replace("+= e;", "+= 1.0f;"), why="a row a warp, and a slip"),
    call("launch", grid=["gx * 32"]),
    call("verify"),
    call("edit", old="sum += 1.0f;", new="sum += e;", why="a warp reads a row's neighbours together"),
    call("verify"),
    call("submit", why="a warp reads a row's neighbours together"),
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not sandbox.available(), reason="a model's text is compiled only in the sandbox: bubblewrap"),
]


def test_good_answers_are_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(tmp_path, capsys, "cuda:0", "8192 1024 3")


def check(folder: Path, capsys: pytest.CaptureFixture[str], device: str, sizes: str) -> None:
    source = Path(shutil.copy(SOFTMAX, folder))
    with ScriptedModel(ANSWERS, model="coder") as server:
        argv = ["optimize", str(source), "--kernel", "softmax_rows", "--device", device, "--json", "--args", sizes]
        got = cli.main([*argv, "--policy", "model", "--model", f"endpoint:coder@{server.url}", "--fresh"])
    out, err = capsys.readouterr()
    assert got == 0, err + out
    found = json.loads(out)
    assert found["evidence_level"] == ("emulated" if device == "emulator" else "replayed")
    assert found["candidate"]["origin"] == "model:endpoint:coder"
    assert "neighbours together" in json.dumps(found["candidate"])
    told = server.requests[3].text
    assert "rejected, G3 outputs" in told
    if device != "emulator":
        assert found["faster"]
        assert found["timing"]["ci"][0] > 1.5
