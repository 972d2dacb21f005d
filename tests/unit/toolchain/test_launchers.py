"""Where a header's kernels are launched: every file of the project that a compiler reads beside the header."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.source import joined
from cuda_agent.toolchain import launchers
from cuda_agent.toolchain.build import find_build
from cuda_agent.toolchain.launchers import with_launches

KERNEL = "#pragma once\n__global__ void scale(float *x) { x[threadIdx.x] *= 2; }\n"
LAUNCH = "scale<<<1, 32>>>(nullptr);"
MAIN = f'#include "kernel.cuh"\nint main() {{ {LAUNCH} }}\n'


def found(folder: Path, files: dict[str, str], unsaved: dict[str, str] | None = None) -> list[str]:
    (folder / ".git").mkdir()
    header = next(name for name in files if name.endswith("kernel.cuh"))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    texts = {folder / name: text for name, text in (unsaved or {}).items()}
    whole = with_launches(find_build(folder / header), files[header], texts)
    assert joined.own(whole) == files[header]
    read = files | (unsaved or {})
    for name, text in joined.others(whole).items():
        assert text == read[str((folder / header).parent.joinpath(name).resolve().relative_to(folder))]
    return list(joined.others(whole))


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"main.cu": MAIN}, ["main.cu"]),
        ({"main.cu": MAIN, "more.cu": MAIN.replace("main", "more")}, ["main.cu", "more.cu"]),
        # A header between, and one that relies on what its source included before.
        ({"main.cu": '#include "run.h"\n', "run.h": MAIN.replace("main", "run")}, ["run.h"]),
        ({"main.cu": f'{MAIN}#include "run.h"\n', "run.h": f"void run() {{ {LAUNCH} }}\n"}, ["main.cu", "run.h"]),
        # Only named, but not in a comment: its address may be taken.
        ({"main.cu": '#include "kernel.cuh"\nauto *taken = &scale;\n'}, ["main.cu"]),
        ({"main.cu": '#include "kernel.cuh"\n// scale is launched elsewhere\n'}, []),
        # Another kernel of that name, in a file that does not include this header, or includes another of its name.
        ({"main.cu": MAIN, "other.cu": f"{KERNEL}void other() {{ {LAUNCH} }}\n"}, ["main.cu"]),
        ({"main.cu": MAIN, "b/kernel.cuh": KERNEL, "b/main.cu": MAIN}, ["main.cu"]),
        # Found by a flag of a build that is not known here.
        ({"main.cu": MAIN, "b/main.cu": MAIN}, ["b/main.cu", "main.cu"]),
        # Which of two kernels of one name is launched is not known: nothing is joined.
        ({"main.cu": f"{MAIN}namespace n {{\n{KERNEL}}}\n"}, []),
        ({"main.cu": MAIN, ".hidden/main.cu": MAIN}, ["main.cu"]),
    ],
)
def test_files_that_launch_it(tmp_path: Path, files: dict[str, str], names: list[str]) -> None:
    assert found(tmp_path, {"kernel.cuh": KERNEL, **files}) == names


def test_folders_beside_and_far_away(tmp_path: Path) -> None:
    files = {
        "inc/kernel.cuh": KERNEL,
        "src/main.cu": MAIN.replace("kernel.cuh", "../inc/kernel.cuh"),
        "apps/one/deep/far.cu": MAIN.replace("kernel.cuh", "inc/kernel.cuh"),
    }
    assert found(tmp_path, files) == ["../apps/one/deep/far.cu", "../src/main.cu"]


def test_an_editor_s_text_counts(tmp_path: Path) -> None:
    files = {"kernel.cuh": KERNEL, "main.cu": MAIN, "more.cu": ""}
    unsaved = {"main.cu": MAIN.replace("32", "64"), "more.cu": MAIN.replace("main", "more")}
    assert found(tmp_path, files, unsaved) == ["main.cu", "more.cu"]


def test_a_source_is_never_joined(tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text(KERNEL)
    (tmp_path / "main.cu").write_text(MAIN.replace("kernel.cuh", "kernel.cu"))
    assert with_launches(find_build(tmp_path / "kernel.cu"), KERNEL) == KERNEL


def test_a_project_too_large_to_look_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "MOST_FILES", 1)
    assert found(tmp_path, {"kernel.cuh": KERNEL, "main.cu": MAIN}) == []
