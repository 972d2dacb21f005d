"""`verify` where the candidate differs outside kernels: the edit policy speaks first, and launches are learned by the
command that the inputs were captured with. Whole programs on the emulator; nothing is mocked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cuda_agent import capture as room
from cuda_agent.capture import CaptureOptions
from cuda_agent.device import Device, open_device
from cuda_agent.errors import NoInputs
from cuda_agent.toolchain import sandbox
from cuda_agent.toolchain.build import find_build
from cuda_agent.verify import Verification, VerifyRequest, verify
from cuda_agent.workload import bundle, launch_map

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or shutil.which("make") is None, reason="needs make and g++, for the emulator"
)

needs_bwrap = pytest.mark.skipif(not sandbox.available(), reason="needs bubblewrap")

# It wants an argument that only the Makefile knows; with the command's own, `run`, it launches nothing.
SCALE = """\
#include <cstdio>
#include <cstdlib>
__global__ void scale(const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = 2.0f * x[i];
}
int main(int argc, char **argv)
{
    const int n = argc > 1 ? atoi(argv[1]) : 0;
    if (n == 0)
        return 1;
    float *h = (float *)malloc(n * sizeof(float)), *x, *y;
    for (int i = 0; i < n; i++)
        h[i] = i - 20.5f;
    cudaMalloc(&x, n * sizeof(float));
    cudaMalloc(&y, n * sizeof(float));
    cudaMemcpy(x, h, n * sizeof(float), cudaMemcpyHostToDevice);
    scale<<<(n + 31) / 32, 32>>>(x, y, n);
    cudaMemcpy(h, y, n * sizeof(float), cudaMemcpyDeviceToHost);
    printf("y[7] = %.1f\\n", h[7]);
    return 0;
}
"""
MAKEFILE = "run: main\n\t./main 100\nmain: src/scale.cu\n\tnvcc -O2 src/scale.cu -o main\n"


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with open_device("emulator") as opened:
        yield opened


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captured through `make run`; the file."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "src").mkdir()
    (folder / "Makefile").write_text(MAKEFILE)
    file = folder / "src" / "scale.cu"
    file.write_text(SCALE)
    room.capture(["make", "run"], folder, CaptureOptions(device="emulator", stop=False))
    work = bundle.find(file)
    assert work is not None
    assert work.command == ("make", "run")
    return file


def asked(device: Device, file: Path, folder: Path, *pairs: tuple[str, str], **more: Any) -> Verification:
    new = SCALE
    for old, text in pairs:
        assert old in new
        new = new.replace(old, text)
    candidate = folder / "candidate.cu"
    candidate.write_text(new)
    return verify(VerifyRequest(file, candidate, **more), device=device)


def gate(made: Verification, name: str) -> Any:
    return next(result for result in made.verdict.gates if result.id == name)


def test_the_edit_policy_speaks_first(device: Device, project: Path, tmp_path: Path) -> None:
    """What changed is no launch: nothing of the candidate is run."""
    marker = tmp_path / "ran"
    made = asked(device, project, tmp_path, ("h[i] = i - 20.5f;", f'h[i] = i; fclose(fopen("{marker}", "w"));'))
    assert made.verdict.status == "rejected"
    assert gate(made, "G0").status == "fail"
    assert "something outside scale and its launches changed" in gate(made, "G0").detail
    assert not marker.exists()


def test_launches_are_learned_by_the_recorded_command(device: Device, project: Path, tmp_path: Path) -> None:
    events: list[Mapping[str, Any]] = []
    candidate = tmp_path / "candidate.cu"
    candidate.write_text(SCALE.replace("(n + 31) / 32, 32", "(n + 63) / 64, 64"))
    before = sorted(path.name for path in project.parents[1].rglob("*"))
    made = verify(VerifyRequest(project, candidate), device=device, on_event=events.append)
    assert made.verdict.status == "verified", [gate.detail for gate in made.verdict.gates]
    assert made.candidate.launch.block[0] != "bx"
    assert any("`make run` in a copy" in str(event.get("text")) for event in events)
    assert sorted(path.name for path in project.parents[1].rglob("*")) == before


def test_a_launch_that_is_wrong_for_the_captured_size(device: Device, project: Path, tmp_path: Path) -> None:
    made = asked(device, project, tmp_path, ("(n + 31) / 32, 32", "n / 64, 64"))
    assert made.verdict.status == "rejected"
    assert gate(made, "G3").status == "fail"


def test_a_launch_of_what_does_not_compile(device: Device, project: Path, tmp_path: Path) -> None:
    made = asked(device, project, tmp_path, ("(n + 31) / 32, 32", "(n + 63) / 64, 64"), ("2.0f * x[i]", "2.0f * z[i]"))
    assert made.verdict.status == "rejected"
    assert gate(made, "G0").status == "pass"
    assert gate(made, "G1").status == "fail"


def test_a_grid_that_is_empty(device: Device, project: Path, tmp_path: Path) -> None:
    with pytest.raises(NoInputs, match="launched scale 0 times, the original's 1 times"):
        asked(device, project, tmp_path, ("(n + 31) / 32, 32", "n / 128, 128"))


def test_a_program_captured_as_it_is(device: Device, tmp_path: Path) -> None:
    """The recorded command is the program: what follows its name are its arguments."""
    file = tmp_path / "scale.cu"
    file.write_text(SCALE)
    made = asked(device, file, tmp_path, ("(n + 31) / 32, 32", "(n + 63) / 64, 64"), args=("70",))
    assert made.verdict.status == "verified", [gate.detail for gate in made.verdict.gates]
    again = asked(device, file, tmp_path, ("(n + 31) / 32, 32", "(n + 15) / 16, 16"))
    assert again.verdict.status == "verified"


# Two launches of one shape come before one of another, which is recorded in place of the second where nothing ends the
# program first.
LAUNCH = "    scale<<<(n + 31) / 32, 32>>>(x, y, n);\n"
REPEATED = f"    for (int m : {{n, n, n / 2, n / 2, n}})\n    {LAUNCH.replace('n', 'm')}"


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("by_make", [True, False])
def test_launches_are_paired_by_their_place(device: Device, tmp_path: Path, stop: bool, by_make: bool) -> None:
    text = SCALE.replace(LAUNCH, REPEATED)
    (tmp_path / "Makefile").write_text("run: main\n\t./main 100\nmain: scale.cu\n\tnvcc -O2 scale.cu -o main\n")
    file, candidate = tmp_path / "scale.cu", tmp_path / "candidate.cu"
    file.write_text(text)
    options = CaptureOptions(device="emulator", kernel=r"\bscale\b", first=2, stop=stop)
    if by_make:
        room.capture(["make", "run"], tmp_path, options)
    else:
        room.build_and_run(file, ("100",), find_build(file), options)
    work = bundle.find(file)
    assert work is not None
    assert ([launch.seq for launch in work.launches], work.ended) == (([0, 1], True) if stop else ([0, 2], False))
    candidate.write_text(text.replace("(m + 31) / 32, 32", "(m + 63) / 64, 64"))
    made = verify(VerifyRequest(file, candidate), device=device)
    assert made.verdict.status == "verified", [gate.detail for gate in made.verdict.gates]
    shapes = [launch_map.apply(made.candidate.launch, x.grid, x.block, x.shared) for x in work.launches]
    assert [shape.grid[0] for shape in shapes] == ([2, 2] if stop else [2, 1])


# ---------------------------------------------------------------- text from a model


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's text becomes device code, never host instructions."""

    def run(*given: object, **more: object) -> None:
        pytest.fail("the candidate's own program was started")

    for name in ("build_and_run", "_shapes_in_project", "Program"):
        monkeypatch.setattr(f"cuda_agent.verify.{name}", run)


@needs_bwrap
@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("launch", "status", "block", "seen"),
    [
        ("(n + 31) / 32, 32", "verified", "bx", False),
        ("(n + 63) / 64, 64", "verified", "64", False),
        ("(n + 15) / 16, 16", "verified", "16", True),  # does not follow from the old shape: read at the captured size
        ("2 * ((n + 31) / 32), 32", "verified", "bx", False),
        ("n / 64, 64", "rejected", "64", True),
        ("n / 128, 128", "rejected", "128", True),
        ("4, 32", "rejected", "bx", False),  # right for the captured size only
        ("n == 100 ? 4 : 1, 32", "rejected", "bx", False),
        ("n > 64 ? (n + 31) / 32 : 0, 32", "rejected", "bx", True),
        ("h[0] < 0 ? 4 : 1, 32", "rejected", "bx", False),
        ("rand() / 32, 32", "rejected", "bx", False),
    ],
)
def test_a_models_launches_are_read_from_its_text(
    device: Device, project: Path, launch: str, status: str, block: str, seen: bool
) -> None:
    new = SCALE.replace("(n + 31) / 32, 32", launch).replace("2.0f * x[i]", "x[i] + x[i]")
    made = verify(VerifyRequest(project, project, rewrite=new, origin="model:test"), device=device)
    assert made.verdict.status == status, [gate.detail for gate in made.verdict.gates]
    assert (made.candidate.launch.block[0], made.candidate.launch.seen) == (block, seen)
    assert made.candidate.origin == "model:test"


@needs_bwrap
@pytest.mark.usefixtures("nothing_runs")
def test_an_editors_text_is_the_original(device: Device, project: Path) -> None:
    text = SCALE.replace("2.0f * x[i]", "x[i] * 2.0f")
    candidate = text.replace("x[i] * 2.0f", "x[i] + x[i]")
    made = verify(VerifyRequest(project, project, text=text, rewrite=candidate, origin="model:test"), device=device)
    assert made.candidate.original == text
    assert "-        y[i] = x[i] * 2.0f;" in made.diff
    assert made.verdict.status == "verified", [gate.detail for gate in made.verdict.gates]


@pytest.mark.usefixtures("nothing_runs")
def test_a_model_that_drops_the_kernel(device: Device, project: Path) -> None:
    made = verify(
        VerifyRequest(project, project, "scale", rewrite="int main() {}\n", origin="model:test"), device=device
    )
    assert made.verdict.status == "rejected"
    assert gate(made, "G0").detail == "the candidate has no single kernel scale"
