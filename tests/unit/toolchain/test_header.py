"""Kernels in a header: which source they are compiled with, and that what is compiled is the header's text there."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.errors import CompileError, ToolMissing
from cuda_agent.report import file_facts
from cuda_agent.source import joined
from cuda_agent.toolchain import header, nvcc
from cuda_agent.toolchain.build import find_build

HEADER = """#pragma once
template <int N> __global__ void scale(float *x) {
  int i = blockIdx.x * BLOCK + threadIdx.x;
  x[i] *= N;
}
"""
MAIN = """#define BLOCK 64
#include "kernel.h"
#include "sizes.h"
int main() { scale<3><<<1, BLOCK>>>(nullptr); }
"""
FILES = {"kernel.h": HEADER, "main.cu": MAIN, "sizes.h": "#pragma once\n", "other.cu": "int f() { return 0; }\n"}


def project(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "files", "source"),
    [
        ("kernel.h", {}, "main.cu"),
        ("inc/kernel.h", {"inc/kernel.h": HEADER, "main.cu": '#include "inc/kernel.h"\n'}, "main.cu"),
        ("inc/kernel.h", {"inc/kernel.h": HEADER, "src/a.cu": '#include "../inc/kernel.h"\n'}, "src/a.cu"),
        ("inc/kernel.h", {"inc/kernel.h": HEADER, "kernel.h": "", "src/a.cu": '#include "kernel.h"\n'}, "src/a.cu"),
        ("a/b/kernel.h", {"a/b/kernel.h": HEADER, "a/src/a.cu": '#include "b/kernel.h"\n'}, "a/src/a.cu"),
        ("deep.h", {"deep.h": HEADER, "kernel.h": '  # include "deep.h"\n'}, "main.cu"),
        ("alone.cuh", {"alone.cuh": HEADER}, None),
        ("kernel.h", {"kernel.h": '#include "kernel.h"\n', "main.cu": ""}, None),
    ],
)
def test_the_source_that_includes_it(tmp_path: Path, name: str, files: dict[str, str], source: str | None) -> None:
    project(tmp_path, FILES | files)
    found = header.including(tmp_path / name, header.sources_around(tmp_path / name))
    assert found == (None if source is None else tmp_path / source)
    build = find_build(tmp_path / name)
    assert (build.file, build.through) == (tmp_path / name, found)


def test_the_unit_has_the_text_in_the_directive_s_place(tmp_path: Path) -> None:
    project(tmp_path, FILES | {"kernel.h": '#include "deep.h"\nint after;\n', "deep.h": HEADER})
    build, text = header.unit_of(find_build(tmp_path / "deep.h"), "int changed;\n")
    assert (build.file, build.through) == (tmp_path / "main.cu", None)
    assert text == MAIN.replace(
        '#include "kernel.h"',
        f'#line 1 "{tmp_path}/kernel.h"\n#line 1 "{tmp_path}/deep.h"\nint changed;\n\n#line 2 "{tmp_path}/kernel.h"\n'
        f'int after;\n\n#line 3 "{tmp_path}/main.cu"',
    )


def test_a_source_that_includes_it_no_longer(tmp_path: Path) -> None:
    project(tmp_path, FILES)
    build = find_build(tmp_path / "kernel.h")
    (tmp_path / "main.cu").write_text("int main() {}\n")
    alone, text = header.unit_of(build, HEADER)
    assert (alone.file, alone.through, text) == (tmp_path / "kernel.h", None, HEADER)


@pytest.fixture
def built(tmp_path: Path) -> Path:
    try:
        nvcc.find()
    except ToolMissing as error:
        pytest.skip(str(error))
    return project(tmp_path, FILES)


def test_its_templates_have_the_source_s_instantiations_and_macros(built: Path) -> None:
    build = find_build(built / "kernel.h")
    (facts,) = nvcc.compile(build, HEADER, "sm_90").kernels.values()
    assert facts.demangled == "void scale<3>(float*)"
    assert [line.line for line in facts.lines if line.loads] == [4]
    (changed,) = nvcc.compile(build, HEADER.replace("*= N", "*= N + 1"), "sm_90").kernels.values()
    assert changed.sass_hash != facts.sass_hash


def test_the_cache_follows_the_source(built: Path) -> None:
    build = find_build(built / "kernel.h")
    first = nvcc.compile(build, HEADER, "sm_90")
    (built / "main.cu").write_text(MAIN.replace("scale<3>", "scale<5>"))
    (facts,) = nvcc.compile(build, HEADER, "sm_90").kernels.values()
    assert facts.demangled == "void scale<5>(float*)"
    assert facts.demangled not in [one.demangled for one in first.kernels.values()]


def test_an_error_is_on_the_header_s_line(built: Path) -> None:
    with pytest.raises(CompileError) as raised:
        nvcc.compile(find_build(built / "kernel.h"), HEADER.replace("int i", "imt i"), "sm_90")
    assert f"{built}/kernel.h(3): error" in raised.value.diagnostics


def test_the_command_line_s_facts_are_of_the_header_s_own_kernels(built: Path) -> None:
    (built / "sizes.h").write_text("#pragma once\n__global__ void other(int *x) { *x = 1; }\n")
    assert [row["kernel"] for row in file_facts(built / "kernel.h", None, "sm_90")["kernels"]] == ["scale"]


def test_joined_files_have_their_joined_texts_in_the_unit(tmp_path: Path) -> None:
    files = {
        "kernel.h": HEADER,
        "run.h": "void run() {}\n",
        "main.cu": f'{MAIN}#include "run.h"\n#include "kernel.h"\n',
    }
    project(tmp_path, files)
    build = find_build(tmp_path / "kernel.h")
    changed = {
        "run.h": "void run() { scale<3><<<1, BLOCK>>>(nullptr); }\n",
        "main.cu": files["main.cu"].replace("64", "32"),
    }
    unit, text = header.unit_of(build, joined.join(HEADER.replace("*=", "+="), changed))
    assert unit.file == tmp_path / "main.cu"
    assert "#define BLOCK 32" in text
    assert text.count("x[i] += N") == 1
    assert text.count("void run() { scale<3>") == 1
    assert f'#line 1 "{tmp_path}/run.h"' in text
    assert text.endswith('#include "kernel.h"\n')  # the second time
    assert "cuda_agent" not in text
    (tmp_path / "main.cu").write_text("int main() {}\n")
    unit, text = header.unit_of(build, joined.join(HEADER, {"run.h": changed["run.h"]}))
    assert (unit.file, text) == (tmp_path / "kernel.h", HEADER)
