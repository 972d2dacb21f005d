"""The command line: policies side by side, with a scripted model server; then the records of those searches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command import Done, environment, run

from scripted_model_server import Answer, Request, ScriptedModel, call

CORPUS = Path(__file__).parent.parent / "corpus"
TWICE = """\
#include <cuda_runtime.h>
__global__ void twice(const float *in, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = i * 33 % n;
    if (i < n)
        out[j] = 2.0f * in[j];
}
int main()
{
    float *in, *out, host[1024];
    for (int i = 0; i < 1024; i++) host[i] = 1.0f + i % 97;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    twice<<<8, 128>>>(in, out, 1024);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    return cudaDeviceSynchronize();
}
"""


def model(request: Request) -> Answer:
    """A rule as a tool on one kernel, an edit on the other; then it submits."""
    done = sum(message["role"] == "tool" for message in request.body["messages"])
    own = done - 3  # answers in the worked example
    if own == 0 and "softmax_rows" in request.text:
        return call("apply_rule", name="row-per-warp")
    if own == 0:
        return call("edit", old="i * 33 % n", new="i", why="neighbours touch neighbours")
    return call("verify") if own == 1 else call("submit", why="fewer sectors")


@pytest.fixture(scope="module")
def compared(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    folder = tmp_path_factory.mktemp("compared")
    shutil.copy(CORPUS / "softmax_rows.cu", folder)
    (folder / "twice.cu").write_text(TWICE)
    argv = ["compare", "softmax_rows.cu", "twice.cu", "--policies", "search,model", "--device", "emulator", "--json"]
    argv += ["--candidates", "1", "--budget", "200", "--tokens", "20000", "--args", "64 96 1", "--html", "page.html"]
    with ScriptedModel([], then=model) as server:
        argv += ["--model", f"endpoint:scripted@{server.url}"]
        done = run(argv, folder, environment(cache, CUDA_AGENT_API_KEY="sk-secret"), timeout=600)
    return folder, done.check(0)


def test_compare(compared: tuple[Path, Done]) -> None:
    folder, done = compared
    found = done.json
    assert (found["status"], found["timed"], found["complete"]) == ("done", False, True)
    rows = {(row["kernel"], row["policy"]): row for row in found["searches"]}
    assert list(rows) == [(kernel, policy) for kernel in ("softmax_rows", "twice") for policy in ("search", "model")]
    assert rows["softmax_rows", "model"]["origin"] == "model:endpoint:scripted+row-per-warp(lanes=32)"
    assert rows["twice", "model"]["gain"] > 4
    assert rows["twice", "model"]["tokens"] > 0
    totals = {row["policy"]: row for row in found["policies"]}
    assert (totals["model"]["share"], totals["model"]["kernels"]) == (1.0, 2)
    assert totals["search"]["tokens"] == 0
    page = (folder / "page.html").read_text()
    assert "Nothing is timed" in page
    assert "<script" not in page


def test_its_searches_are_listed_and_replayed(compared: tuple[Path, Done], cache: Path, tmp_path: Path) -> None:
    folder, done = compared
    env = environment(cache)
    listed = run(["trajectories", "--json"], folder, env).check(0).json["trajectories"]
    ids = [row["trajectory"] for row in done.json["searches"]]
    assert [row["policy"] for row in listed if row["id"] in ids].count("model:endpoint:scripted") == 2
    text = "".join(path.read_text() for path in (cache / "trajectories").glob("*.jsonl"))
    assert "sk-secret" not in text
    assert str(folder) not in text

    again = run(["replay", ids[3], "--json"], folder, env).check(0).json
    assert again["status"] == "verified"
    (search,) = again["searches"]
    assert [row["same"] for row in search["candidates"]] == [True, True]
    assert "twice in twice.cu" in run(["trajectories", "show", ids[3]], folder, env).check(0).out

    out = tmp_path / "all.jsonl"
    run(["trajectories", "export", *ids, "--out", str(out)], folder, env).check(0)
    exported = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["id"] for one in exported] == ids
    assert exported[1]["messages"][0]["role"] == "system"


def test_a_changed_record_is_found(compared: tuple[Path, Done], cache: Path, tmp_path: Path) -> None:
    folder, done = compared
    record = cache / "trajectories" / f"{done.json['searches'][0]['trajectory']}.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    first = next(line for line in lines if line["step"] == "candidate")
    first["text"] = first["text"].replace("expf", "exp2f")
    kept = [line for line in lines if line is first or line["step"] == "start"]
    tampered = folder / "tampered.jsonl"
    tampered.write_text("".join(json.dumps(line) + "\n" for line in kept) + '{"step": "cand')
    told = run(["replay", str(tampered)], folder, environment(cache)).check(1).out
    assert "its text in the record was changed since" in told
    assert "tampered.jsonl, line 3 is cut off or no JSON: it is left out" in told
    shutil.rmtree(folder / ".cuda-agent")
    gone = run(["replay", str(tampered)], folder, environment(cache)).check(2)
    assert "--inputs FOLDER" in gone.err
