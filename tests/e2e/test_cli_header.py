"""A kernel in a header on the command line: both files are changed, and the evidence knows both."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command import environment, run

CORPUS = Path(__file__).parents[1] / "corpus"
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """softmax_rows.cu as a header and the source that includes it."""
    text = (CORPUS / "softmax_rows.cu").read_text()
    start, end = text.index("__global__"), text.index("static void softmax_reference")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "softmax.cuh").write_text("#pragma once\n\n" + text[start:end].rstrip() + "\n")
    (folder / "main.cu").write_text(text[:start] + '#include "softmax.cuh"\n\n' + text[end:])
    (folder / "Makefile").write_text("run: main\n\t./main 40 33 1\nmain: main.cu softmax.cuh\n\tnvcc -O3 $< -o $@\n")
    return folder


def test_both_files_are_changed_and_the_evidence_holds_for_both(project: Path, cache: Path) -> None:
    env, emulator = environment(cache), ["--device", "emulator", "--json"]
    before = {name: (project / name).read_text() for name in ("softmax.cuh", "main.cu")}
    asked = ["--run", "make run", "--candidates", "2", "--evidence", "evidence", "--apply"]
    done = run(["optimize", "softmax.cuh", *asked, *emulator], project, env).check(0)
    found = done.json
    assert found["status"] == "verified"
    assert [line for line in found["diff"].splitlines() if line.startswith("+++")] == [
        "+++ b/softmax.cuh",
        "+++ b/main.cu",
    ]
    assert "softmax.cuh and main.cu now have the verified kernel softmax_rows" in done.err
    after = {name: (project / name).read_text() for name in before}
    assert all(after[name] != before[name] for name in before)
    assert "cuda_agent" not in "".join(after.values())

    # The candidate as a person's own rewrite, its main beside it.
    mine = project.parent / "mine"
    mine.mkdir()
    for name in before:
        (mine / name).write_text(after[name])
        (project / name).write_text(before[name])
    judged = run(["verify", "softmax.cuh", str(mine / "softmax.cuh"), *emulator], project, env).check(0)
    assert judged.json["candidate"]["launch"]["seen"]
    assert judged.json["diff"] == found["diff"]

    evidence = ["verify", "--from", str(project / "evidence" / "softmax_rows.json"), *emulator]
    holds = run(evidence, project, env).check(0).json["again"]
    assert (holds["holds"], holds["differs"]) == (True, [])
    (project / "main.cu").write_text(before["main.cu"].replace("<<<grid, block>>>", "<<<dim3(grid), block>>>"))
    broken = run(evidence, project, env).check(1).json["again"]
    assert "main.cu was changed where the edit is" in broken["sentence"]
    (project / "main.cu").write_text(before["main.cu"])
    (project / "more.cu").write_text('#include "softmax.cuh"\nvoid more() { softmax_rows<<<1, 64>>>(0, 0, 0, 0); }\n')
    more = run(evidence, project, env).check(1).json["again"]
    assert "is launched in more.cu too now" in more["sentence"]


def test_where_the_launch_is_not_seen_it_is_not_changed(project: Path, cache: Path) -> None:
    """The address of the kernel is taken: rules that change launches leave it, the others go on."""
    main = project / "main.cu"
    main.write_text(main.read_text().replace("int main(", "void *taken = (void *)&softmax_rows;\n\nint main("))
    asked = ["--run", "make run", "--candidates", "4", "--device", "emulator", "--json"]
    found = run(["optimize", "softmax.cuh", *asked], project, environment(cache)).check(0).json
    steps = [step["origin"] for kernel in found["kernels"] for step in kernel["steps"]]
    assert steps
    assert not [step for step in steps if "row-per-warp" in step or "block-shape" in step]
    assert json.dumps(found).count("+++ b/main.cu") == 0


def test_the_run_says_how_the_file_is_built(tmp_path: Path, cache: Path) -> None:
    """Nothing but the run command knows the include folder and the length of a row."""
    folder = tmp_path / "project"
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "sizes.h").write_text("#pragma once\nconstexpr int LENGTH = ROW;\n")
    (folder / "rows.cu").write_text(
        "#include <sizes.h>\n"
        "__global__ void sums(const float *x, float *y, int rows)\n{\n"
        "    int row = blockIdx.x * blockDim.x + threadIdx.x;\n    if (row >= rows)\n        return;\n"
        "    float sum = 0.0f;\n    for (int c = 0; c < LENGTH; c++)\n        sum += x[row * LENGTH + c];\n"
        "    y[row] = sum;\n}\n"
        "int main()\n{\n    float *x, *y;\n    cudaMallocManaged(&x, 64 * LENGTH * sizeof(float));\n"
        "    cudaMallocManaged(&y, 64 * sizeof(float));\n"
        "    for (int i = 0; i < 64 * LENGTH; i++)\n        x[i] = i % 19 - 9.0f;\n"
        "    sums<<<2, 32>>>(x, y, 64);\n    return cudaDeviceSynchronize() != cudaSuccess;\n}\n"
    )
    command = "sh -c 'nvcc -O3 -Iinclude -DROW=100 rows.cu -o rows && ./rows'"
    asked = ["--kernel", "sums", "--run", command, "--candidates", "1", "--device", "emulator", "--json"]
    found = run(["optimize", "rows.cu", *asked], folder, environment(cache)).check(0).json
    assert found["status"] == "verified"
    assert "sums" in found["diff"]
