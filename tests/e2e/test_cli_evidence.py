"""Evidence on the command line, on the emulator: the page, judged again, and a test exported and run by its own
runner."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import ARGV, Done, environment, run

from cuda_agent.judge.evidence import schema

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")

PROGRAM = """\
#include <cstdio>
#include <cuda_runtime.h>

__global__ void saxpy(float a, const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float sum = 0.0f;
        for (int k = 0; k < 4; k++)
            sum += a * x[i];
        y[i] = sum;
    }
}

int main()
{
    const int n = 1000;
    float *x, *y;
    cudaMallocManaged(&x, n * sizeof(float));
    cudaMallocManaged(&y, n * sizeof(float));
    for (int i = 0; i < n; i++)
        x[i] = 1.0f + i;
    saxpy<<<(n + 127) / 128, 128>>>(2.0f, x, y, n);
    cudaDeviceSynchronize();
    std::printf("%g\\n", y[n - 1]);
    return 0;
}
"""
REWRITTEN = PROGRAM.replace(
    """\
        float sum = 0.0f;
        for (int k = 0; k < 4; k++)
            sum += a * x[i];
        y[i] = sum;
""",
    "        y[i] = 4.0f * (a * x[i]);\n",
)
BROKEN = REWRITTEN.replace("if (i < n)", "if (i < n - 1)")
DEVICE = ["--device", "emulator"]


@dataclass
class Project:
    folder: Path
    env: dict[str, str]

    def run(self, *argv: str, cwd: Path | None = None) -> Done:
        return run(list(argv), cwd or self.folder, self.env)

    def write(self, name: str, text: str) -> Path:
        (self.folder / name).write_text(text)
        return self.folder / name

    @property
    def evidence(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "evidence.json").read_text()))


@pytest.fixture(scope="module")
def verified(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rewrite that was verified: `verify --json > evidence.json`, with its page."""
    folder = tmp_path_factory.mktemp("verified") / "project"
    folder.mkdir()
    made = Project(folder, environment(cache))
    made.write("saxpy.cu", PROGRAM)
    made.write("new.cu", REWRITTEN)
    done = made.run("verify", "saxpy.cu", "new.cu", *DEVICE, "--json", "--html", "page.html").check(0)
    made.write("evidence.json", done.out)
    return folder


@pytest.fixture
def project(verified: Path, cache: Path, tmp_path: Path) -> Project:
    shutil.copytree(verified, tmp_path / "project")
    return Project(tmp_path / "project", environment(cache))


def test_the_evidence_follows_its_schema_and_has_a_page(project: Project) -> None:
    evidence = project.evidence
    assert list(schema.misfits(evidence)) == []
    assert str(project.folder) not in json.dumps(evidence)
    assert evidence["file"] == "saxpy.cu"
    html = (project.folder / "page.html").read_text()
    assert "<code>saxpy</code>" in html
    assert "not measured" in html
    assert html.count("<svg") >= 1
    assert "4.0f * (a * x[i])" in html


def test_it_holds_here_there_and_after_it_was_accepted(project: Project, tmp_path: Path) -> None:
    found = project.run("verify", "--from", "evidence.json", "--json").check(0).json
    assert found["again"]["holds"] is True
    assert found["again"]["differs"] == []
    assert list(schema.misfits(found)) == []
    shutil.copytree(project.folder, tmp_path / "moved")
    shutil.rmtree(project.folder / ".cuda-agent")
    moved = tmp_path / "moved"
    (moved / "saxpy.cu").write_text(REWRITTEN)
    done = project.run("verify", "--from", "evidence.json", *DEVICE, "--html", "again.html", cwd=moved).check(0)
    assert "holds: Same results on 1 launch" in done.out
    assert "saxpy.cu holds the candidate now" in done.out
    assert "holds: Same results" in (moved / "again.html").read_text()
    # Where the captures are gone nothing is decided, and that is said.
    gone = project.run("verify", "--from", "evidence.json", "--json").check(2)
    assert "inputs of this evidence are not there" in gone.json["error"]


def test_it_no_longer_holds_where_the_edit_does_not_fit(project: Project) -> None:
    project.write("saxpy.cu", PROGRAM.replace("k < 4", "k < 5"))
    done = project.run("verify", "--from", "evidence.json", "--json").check(1)
    assert "changed where the edit is" in done.json["again"]["sentence"]


def test_a_rejection_holds_too(project: Project) -> None:
    project.write("broken.cu", BROKEN)
    done = project.run("verify", "saxpy.cu", "broken.cu", *DEVICE, "--json", "--html", "bad.html").check(1)
    assert "rejected" in (project.folder / "bad.html").read_text()
    project.write("evidence.json", done.out)
    again = project.run("verify", "--from", "evidence.json").check(0)
    assert "holds: rejected again, by G3" in again.out


def test_usage(project: Project) -> None:
    for argv, words in (
        (["verify"], "two files, --from EVIDENCE or --test FOLDER"),
        (["verify", "saxpy.cu"], "two files"),
        (["verify", "saxpy.cu", "new.cu", "--from", "evidence.json"], "leave files"),
        (["verify", "--from", "evidence.json", "--args", "3"], "leave files"),
        (["verify", "--from", "evidence.json", "--test", "x"], "not allowed with"),
        (["verify", "--from", "saxpy.cu"], "is not JSON"),
        (["verify", "--from", "none.json"], "cannot be read"),
        (["verify", "--test", "."], "no folder that `cuda-agent export-test` wrote"),
        (["export-test", "evidence.json"], "--into"),
        (["export-test", "evidence.json", "--into", "t"], "does not hold the accepted saxpy"),
    ):
        assert words in project.run(*argv).check(3).err
    assert not (project.folder / "t").exists()


def test_an_exported_pytest_passes_and_sees_a_broken_kernel(project: Project) -> None:
    """The exported file is run as a person's own pytest would run it; then the kernel is broken."""
    project.write("saxpy.cu", REWRITTEN)
    done = project.run("export-test", "evidence.json", "--into", "tests/saxpy", *DEVICE).check(0)
    assert "test_saxpy.py tests saxpy on 1 launch" in done.out
    shutil.rmtree(project.folder / ".cuda-agent")
    command = " ".join(f"'{word}'" for word in ARGV)
    env = project.env | {"CUDA_AGENT": command, "CUDA_AGENT_DEVICE": "emulator"}

    def pytest_says(env: dict[str, str] = env) -> tuple[int, str]:
        argv = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir=."]
        ran = subprocess.run(
            [*argv, "tests/saxpy"],
            cwd=project.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return ran.returncode, ran.stdout + ran.stderr

    code, out = pytest_says()
    assert (code, "1 passed" in out) == (0, True), out
    project.write("saxpy.cu", REWRITTEN.replace("int main", "// the host's part may change\nint main"))
    assert pytest_says()[0] == 0
    project.write("saxpy.cu", BROKEN)
    code, out = pytest_says()
    assert code == 1, out
    assert "y[999]: expected 8000, got nan (1 of 1,000 elements differ" in out
    project.write("saxpy.cu", REWRITTEN.replace("y[i] = 4.0f", "y[i] = float4"))
    code, out = pytest_says()
    assert code == 1, out
    assert "does not compile" in out
    project.write("saxpy.cu", REWRITTEN)
    assert pytest_says()[0] == 0
    code, out = pytest_says(env | {"CUDA_AGENT_DEVICE": "cuda:63"})
    assert "1 skipped" in out, out
    code, out = pytest_says(env | {"CUDA_AGENT": "/no/such/cuda-agent"})
    assert code == 1
    assert "pip install" in out


@pytest.mark.skipif(shutil.which("ctest") is None, reason="no cmake")
def test_an_exported_ctest_passes_and_sees_a_broken_kernel(project: Project) -> None:
    project.write("saxpy.cu", REWRITTEN)
    project.run("export-test", "evidence.json", "--into", "tests/saxpy", "--ctest", *DEVICE).check(0)
    lists = (
        "cmake_minimum_required(VERSION 3.18)",
        "project(p NONE)",
        "enable_testing()",
        "add_subdirectory(tests/saxpy)",
    )
    project.write("CMakeLists.txt", "\n".join(lists))
    wrapper = project.write("cuda-agent", f"#!/bin/sh\nexec '{ARGV[0]}' -m cuda_agent.cli \"$@\"\n")
    wrapper.chmod(0o755)

    def says(*argv: str) -> tuple[int, str]:
        ran = subprocess.run(
            argv, cwd=project.folder, env=project.env, capture_output=True, text=True, timeout=120, check=False
        )
        return ran.returncode, ran.stdout + ran.stderr

    code, out = says("cmake", "-S", ".", "-B", "out", f"-DCUDA_AGENT={wrapper}", "-DCUDA_AGENT_DEVICE=emulator")
    assert code == 0, out
    code, out = says("ctest", "--test-dir", "out", "--output-on-failure")
    assert code == 0, out
    assert "100% tests passed" in out
    project.write("saxpy.cu", BROKEN)
    code, out = says("ctest", "--test-dir", "out", "--output-on-failure")
    assert code != 0
    assert "y[999]: expected 8000, got nan" in out
    code, out = says("cmake", "-S", ".", "-B", "out", "-DCUDA_AGENT_DEVICE=cuda:63")
    code, out = says("ctest", "--test-dir", "out")
    assert "Skipped" in out, out
