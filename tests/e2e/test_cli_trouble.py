"""The command line when things go wrong: a sentence and the right exit code, never a traceback, nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import ARGV, Done, Running, alive, below, environment, run, workers

SOFTMAX = Path(__file__).parents[1] / "corpus" / "softmax_rows.cu"
EMULATOR = ["--device", "emulator", "--json"]
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")

Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path, cache: Path) -> Iterator[Start]:
    """A search over a copy of softmax_rows.cu that takes long enough to be disturbed."""
    running: list[Running] = []

    def begin(*argv: str, args: str = "512 320 1") -> Running:
        shutil.copy(SOFTMAX, tmp_path)
        command = ["optimize", "softmax_rows.cu", *EMULATOR, "--args", args, *argv]
        running.append(Running(command, tmp_path, environment(cache)))
        return running[-1]

    yield begin
    for one in running:
        one.kill()


def judged(command: Running) -> Callable[[], bool]:
    return lambda: "%] row-per-warp" in command.err


# ---------------------------------------------------------------- killed, interrupted


@needs_gxx
def test_a_killed_worker_does_not_end_the_search(start: Start) -> None:
    command = start("--candidates", "3")
    command.until("a first verdict", judged(command))
    command.until("a worker", lambda: bool(workers(command.pid)))
    for pid in workers(command.pid):
        os.kill(pid, signal.SIGKILL)
    found = command.wait().check(0).json
    assert found["status"] == "verified"
    assert "__shfl_xor_sync" in found["diff"]


@needs_gxx
def test_a_worker_that_is_killed_at_once_is_said(start: Start) -> None:
    """Before the first job there is nothing to go on with: either a fresh worker does it or a sentence says why not."""
    command = start("--candidates", "2")
    command.until("a worker", lambda: bool(workers(command.pid)))
    for pid in workers(command.pid):
        os.kill(pid, signal.SIGKILL)
    done = command.wait()
    done.check(done.code)
    assert done.code in (0, 2)
    assert done.json["status"] in ("verified", "nothing", "undecided")
    assert done.code == 0 or "worker" in done.err


@needs_gxx
def test_ctrl_c_keeps_the_best_and_leaves_no_process(start: Start) -> None:
    command = start()
    command.until("a first good candidate", lambda: "row-per-warp(lanes=32): predicted" in command.err)
    children = below(command.pid)
    assert workers(command.pid)
    command.interrupt()
    done = command.wait(20).check(130)
    assert done.json["status"] == "undecided"
    assert "row-per-warp" in done.json["message"]
    assert "__shfl_xor_sync" in done.json["diff"]
    left = {pid: command for pid, command in children.items() if alive(pid)}
    assert not left


@needs_gxx
def test_ctrl_c_before_anything_was_found(start: Start) -> None:
    command = start()
    command.until("a worker", lambda: bool(workers(command.pid)))
    children = below(command.pid)
    command.interrupt()
    done = command.wait(20).check(130)
    assert done.json["status"] == "undecided"
    assert done.json["diff"] == ""
    assert not [pid for pid in children if alive(pid)]


@needs_gxx
def test_ctrl_c_ends_the_persons_program(cache: Path, tmp_path: Path) -> None:
    command = Running(["capture", "--device", "emulator", "--", "sleep", "600"], tmp_path, environment(cache))
    command.until("the program", lambda: any("sleep 600" in line for line in below(command.pid).values()))
    children = below(command.pid)
    command.interrupt()
    command.wait(20).check(130)
    assert not [pid for pid in children if alive(pid)]


# ---------------------------------------------------------------- kernels that never end

ENDLESS = """\
#include <cuda_runtime.h>

__global__ void spin(float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    volatile float *flag = out;
    while (i < n && flag[i] != 12345.0f)
        ;
    out[i] = 1.0f;
}

int main()
{
    float *out;
    cudaMalloc(&out, 64 * sizeof(float));
    spin<<<1, 64>>>(out, 64);
    return cudaDeviceSynchronize() != cudaSuccess;
}
"""


@needs_gxx
def test_an_original_that_never_ends(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "spin.cu").write_text(ENDLESS)
    (tmp_path / "other.cu").write_text(ENDLESS.replace("1.0f;", "1.0f + 0.0f;"))
    for argv in (["optimize", "spin.cu"], ["verify", "spin.cu", "other.cu"]):
        done = run([*argv, *EMULATOR, "--timeout", "2"], tmp_path, environment(cache)).check(2)
        assert "was stopped after 2 s" in done.json["error"]


@needs_gxx
def test_an_original_without_main_that_never_ends(cache: Path, tmp_path: Path) -> None:
    """Its inputs are made up, so it first hangs in our worker."""
    text = (
        ENDLESS[: ENDLESS.index("int main")] + "void go(float *out, int n) { spin<<<(n + 63) / 64, 64>>>(out, n); }\n"
    )
    (tmp_path / "spin.cu").write_text(text)
    done = run(["optimize", "spin.cu", "--kernel", "spin", *EMULATOR, "--timeout", "2"], tmp_path, environment(cache))
    done.check(2)
    assert done.json["status"] == "undecided"
    said = str(done.json.get("message") or done.json.get("error"))
    assert "deadline" in said or "did not end" in said, said


# ---------------------------------------------------------------- a machine that lacks something


@needs_gxx
def test_no_gxx(tmp_path: Path) -> None:
    shutil.copy(SOFTMAX, tmp_path)
    (tmp_path / "empty").mkdir()
    env = environment(tmp_path / "cache", PATH=str(tmp_path / "empty"))
    done = run(["optimize", "softmax_rows.cu", *EMULATOR], tmp_path, env).check(2)
    assert "g++" in done.json["error"]
    assert "install" in done.json["error"]


def test_no_gpu(cache: Path, tmp_path: Path) -> None:
    shutil.copy(SOFTMAX, tmp_path)
    done = run(["optimize", "softmax_rows.cu", "--device", "cuda:99", "--json"], tmp_path, environment(cache)).check(2)
    assert done.json["kind"] == "DeviceMissing"
    assert done.json["error"]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="hiding the toolkit needs bubblewrap")
def test_no_nvcc(tmp_path: Path) -> None:
    """A file with a header of the toolkit needs nvcc; a machine without says what to install."""
    (tmp_path / "k.cu").write_text(
        '#include "missing_of_this_project.h"\n__global__ void k(float *x) { x[0] = VALUE; }\n'
    )
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    folders = {Path(found).resolve().parent for found in map(shutil.which, ("nvcc",)) if found}
    folders |= {path.resolve() for path in Path("/usr/local").glob("cuda*")}
    if any(Path(sys.executable).is_relative_to(folder) for folder in folders):
        pytest.skip("nvcc lies beside Python here")
    masks = [part for folder in folders for part in ("--tmpfs", str(folder))]
    env = environment(tmp_path / "cache", PATH="/usr/bin:/bin")
    env.pop("CUDA_HOME", None)
    env.pop("CUDA_PATH", None)
    inside = ["bwrap", "--dev-bind", "/", "/", *masks, sys.executable, "-m", "cuda_agent.cli"]
    probe = subprocess.run([*inside[:-3], "true"], env=env, capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"bubblewrap cannot build a sandbox here: {probe.stderr.strip()}")
    ended = subprocess.run(
        [*inside, "facts", "k.cu", "--json"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    done = Done(ended.returncode, ended.stdout, ended.stderr).check(2)
    assert "nvcc" in done.json["error"]
    assert "install" in done.json["error"].lower()


@needs_gxx
def test_a_full_cache_disk(cache: Path, tmp_path: Path) -> None:
    """The sentence names the disk and what to do."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    try:
        shutil.copy(SOFTMAX, tmp_path)
        argv = ["optimize", "softmax_rows.cu", *EMULATOR, "--args", "64 33 1", "--candidates", "1"]
        done = run(argv, tmp_path, environment(disk))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    done.check(2)  # the emulator's runtime has to be built there
    assert "no space is left" in done.json["error"]
    assert str(disk) in done.json["error"]


@needs_gxx
def test_a_cache_that_cannot_be_written(cache: Path, tmp_path: Path) -> None:
    """Results cannot be kept, so they are worked out again: a file lies where the folder of results should be."""
    blocked = tmp_path / "cache"
    blocked.mkdir()
    (blocked / "results").write_text("")
    if (cache / "native").is_dir():  # the emulator's runtime, built by an earlier test: it need not be built again
        shutil.copytree(cache / "native", blocked / "native")
    shutil.copy(SOFTMAX, tmp_path)
    argv = ["optimize", "softmax_rows.cu", *EMULATOR, "--args", "64 33 1", "--candidates", "1"]
    done = run(argv, tmp_path, environment(blocked)).check(0)
    assert done.json["status"] == "verified"
    assert "working without it" in done.err


# ---------------------------------------------------------------- wrong files, wrong words


def test_a_file_that_cannot_be_read(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.symlink_to("/proc/self/mem")  # exists for the kernel, and nobody can read it
    for command in ("optimize", "facts"):
        done = run([command, "k.cu", "--json"], tmp_path, environment(cache)).check(2)
        assert "k.cu" in done.json["error"]


def test_a_file_that_is_not_there(cache: Path, tmp_path: Path) -> None:
    done = run(["optimize", "nowhere.cu", "--json"], tmp_path, environment(cache)).check(2)
    assert "nowhere.cu: no such file" in done.json["error"]


@needs_gxx
def test_a_kernel_with_a_syntax_error(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k(float *x) { x[0] = ; }\n")
    done = run(["optimize", "k.cu", "--kernel", "k", *EMULATOR], tmp_path, environment(cache)).check(2)
    assert "syntax error" in done.json["error"] or "does not parse" in done.json["error"]


@needs_gxx
def test_a_program_that_does_not_compile(cache: Path, tmp_path: Path) -> None:
    text = SOFTMAX.read_text().replace("float e =", "floot e =")
    (tmp_path / "k.cu").write_text(text)
    done = run(["optimize", "k.cu", *EMULATOR], tmp_path, environment(cache)).check(2)
    assert "did not build" in done.json["error"]
    assert "floot" in done.err


@needs_gxx
def test_a_program_that_wants_arguments(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "x.cu").write_text(
        "__global__ void k(int *x) { *x = 1; }\n"
        "int main(int argc, char **) { int *x; if (argc < 2) return 3; cudaMalloc(&x, 4); k<<<1, 1>>>(x); return 0; }\n"
    )
    done = run(["optimize", "x.cu", *EMULATOR], tmp_path, environment(cache)).check(2)
    assert "ended with exit code 3" in done.err
    assert "run by itself, without arguments" in done.err
    assert "cuda-agent capture -- COMMAND" in done.err


@needs_gxx
def test_no_kernel_of_that_name(cache: Path, tmp_path: Path) -> None:
    shutil.copy(SOFTMAX, tmp_path)
    done = run(["optimize", "softmax_rows.cu", "--kernel", "sofmax", *EMULATOR], tmp_path, environment(cache)).check(2)
    assert "sofmax" in done.json["error"]
    assert "softmax_rows" in done.json["error"]  # what there is


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["optimise"],
        ["optimize"],
        ["verify", "a.cu"],
        ["optimize", "a.cu", "--budget", "soon"],
        ["optimize", "a.cu", "--timeout", "-1"],
        ["capture"],
        ["capture", "--cap", "lots", "--", "true"],
        ["capture", "--device", "toaster", "--", "true"],
        ["capture", "--kernel", "(", "--", "true"],
    ],
    ids=" ".join,
)
def test_usage(argv: list[str], cache: Path, tmp_path: Path) -> None:
    done = run(argv, tmp_path, environment(cache)).check(3)
    assert done.err.strip()


def test_usage_of_a_device(cache: Path, tmp_path: Path) -> None:
    shutil.copy(SOFTMAX, tmp_path)
    done = run(["optimize", "softmax_rows.cu", "--device", "toaster", "--json"], tmp_path, environment(cache)).check(3)
    assert "toaster" in done.json["error"]
    assert done.json["status"] == "error"


def test_output_into_a_closed_pipe(cache: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*ARGV, "doctor", "--json"],
        cwd=tmp_path,
        env=environment(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert b"Traceback" not in err
    assert b"Exception" not in err
