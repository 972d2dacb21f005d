"""nvcc on real text. The tests that compile skip where there is no nvcc; finding and messages are tested everywhere."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cuda_agent.errors import CompileError, SandboxError, ToolMissing
from cuda_agent.model import Binary, Build
from cuda_agent.toolchain import build as builds
from cuda_agent.toolchain import compile as compiling
from cuda_agent.toolchain import cubin, includes, nvcc, sandbox

try:
    NVCC: nvcc.Nvcc | None = nvcc.find()
except ToolMissing:
    NVCC = None
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="needs nvcc")
needs_bwrap = pytest.mark.skipif(not sandbox.available(), reason="bubblewrap does not work here")

TEXT = """#include "scale.h"
#include "../shared/more.h"
static __global__ void hidden(float *p) { p[threadIdx.x] *= SCALE + MORE; }
template <typename T>
__global__ void __launch_bounds__(256) twice(const T *in, T *out) { out[threadIdx.x] = in[threadIdx.x] * 2; }
template __global__ void twice<double>(const double *, double *);
void use(float *p) { hidden<<<1, 32>>>(p); }
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def build(tmp_path: Path) -> Build:
    project = tmp_path / "my project"
    (project / "src").mkdir(parents=True)
    (project / "shared").mkdir()
    (project / ".git").mkdir()
    (project / "src" / "scale.h").write_text("#define SCALE 2\n")
    (project / "shared" / "more.h").write_text("#define MORE 1\n")
    file = project / "src" / "k.cu"
    file.write_text(TEXT)
    return dataclasses.replace(builds.find_build(file), flags=("-std=c++17", "-O3"))


def compile(build: Build, text: str = TEXT, arch: str = "sm_90", **more: bool) -> Binary:
    return nvcc.compile(build, text, arch, **more)  # type: ignore[arg-type]


@needs_nvcc
def test_facts_of_a_file_with_headers_beside_it(build: Build) -> None:
    made = compile(build)
    assert set(made.kernels) == {"_Z6hiddenPf", "_Z5twiceIdEvPKT_PS0_"}, "internal linkage included"
    hidden = made.kernels["_Z6hiddenPf"]
    assert (hidden.arch, hidden.demangled) == ("sm_90", "hidden(float*)")
    assert hidden.registers > 0
    assert [f.line for f in hidden.lines] == [3]
    assert (made.kind, made.path) == ("cubin", "nvcc")
    assert made.flags == ("-std=c++17", "-O3", "-arch=sm_90", "-lineinfo")
    assert made.compiler.startswith("nvcc ")
    assert cubin.param_layout(made.data, "_Z5twiceIdEvPKT_PS0_") == ((0, 8), (8, 8))


@needs_nvcc
def test_diagnostics_name_the_persons_file_and_line(build: Build) -> None:
    with pytest.raises(CompileError) as caught:
        compile(build, TEXT.replace("* 2;", "* nothing;"))
    assert f"{build.file}(5): error" in caught.value.diagnostics
    assert 'identifier "nothing" is undefined' in str(caught.value)
    assert "/tmp/cuda-agent-" not in caught.value.diagnostics
    assert "ptxas info" not in caught.value.diagnostics


@needs_nvcc
def test_cache_follows_headers_and_flags(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = nvcc._compile
    monkeypatch.setattr(nvcc, "_compile", lambda *a, **k: calls.append(1) or real(*a, **k))
    first = compile(build)
    assert compile(build) == first
    assert len(calls) == 1
    (build.file.parent / "scale.h").write_text("#define SCALE 3.5f\n")
    changed = compile(build)
    assert len(calls) == 2
    name = "_Z6hiddenPf"
    assert changed.kernels[name].sass_hash != first.kernels[name].sass_hash
    compile(dataclasses.replace(build, flags=("-std=c++17", "-O3", "-DX")))
    assert len(calls) == 3
    (build.file.parent / "scale.h").write_text("#define SCALE 2\n")
    assert compile(build) == first
    assert len(calls) == 3


@needs_nvcc
def test_flags_of_the_build_are_used(build: Build) -> None:
    text = "__global__ void k(float *p) { p[threadIdx.x] = p[threadIdx.x] / p[0] + FACTOR; }\n"
    plain = compile(dataclasses.replace(build, flags=("-O3", "-DFACTOR=1")), text)
    fast = compile(dataclasses.replace(build, flags=("-O3", "-DFACTOR=1", "-use_fast_math", "-rdc=true")), text)
    name = "_Z1kPf"
    assert fast.kernels[name].instructions < plain.kernels[name].instructions
    assert "-rdc=true" not in fast.flags


@needs_nvcc
def test_spills_and_local_lines(build: Build) -> None:
    body = "".join(f"float a{i} = p[{i * 33}];" for i in range(64))
    total = " + ".join(f"a{i} * p[n + {i}] " for i in range(64))
    text = f"__global__ void k(float *p, int n) {{ {body}\n__syncthreads(); p[n] = {total}; }}\n"
    made = compile(dataclasses.replace(build, flags=("-O3", "-maxrregcount=32")), text)
    facts = made.kernels["_Z1kPfi"]
    assert facts.registers <= 32
    assert facts.spill_stores > 0
    assert facts.spill_loads >= facts.spill_stores
    assert sum(line.local for line in facts.lines) > 0


@needs_nvcc
def test_same_code_same_hash_different_text(build: Build) -> None:
    renamed = TEXT.replace("const T *in", "const T *source").replace("in[threadIdx.x] * 2", "source[threadIdx.x] * 2")
    name = "_Z5twiceIdEvPKT_PS0_"
    assert compile(build, "\n\n" + renamed).kernels[name].sass_hash == compile(build).kernels[name].sass_hash


@needs_nvcc
def test_extern_device_function_is_explained(build: Build) -> None:
    text = "extern __device__ float other(float);\n__global__ void k(float *p) { p[0] = other(p[0]); }\n"
    with pytest.raises(CompileError, match=r"another file \(other\(float\)\)"):
        compile(build, text)


@needs_nvcc
def test_missing_header_says_what_to_do(build: Build) -> None:
    with pytest.raises(CompileError, match="cuda-agent capture"):
        compile(build, '#include "absent.h"\n')
    with pytest.raises(CompileError, match="include folders"):
        compile(dataclasses.replace(build, origin="recorded"), '#include "absent.h"\n')


@needs_nvcc
def test_a_build_folder_that_is_gone(build: Build, tmp_path: Path) -> None:
    assert compile(dataclasses.replace(build, directory=tmp_path / "deleted")).kernels
    text = "__global__ void k(float *p) { p[0] = 1; }\n"
    unsaved = dataclasses.replace(build, file=tmp_path / "nowhere" / "k.cu", directory=tmp_path / "nowhere")
    assert compile(unsaved, text).kernels


@needs_nvcc
def test_byte_order_mark_and_windows_line_ends(build: Build) -> None:
    made = compile(build, "\ufeff" + TEXT.replace("\n", "\r\n"))
    assert [f.line for f in made.kernels["_Z6hiddenPf"].lines] == [3]


@needs_nvcc
def test_the_cache_follows_headers_that_only_device_code_reads(build: Build) -> None:
    text = '#ifdef __CUDA_ARCH__\n#include "device.h"\n#else\n#define N 1\n#endif\n'
    text += "__global__ void k(float *x) { for (int i = 0; i < N; i++) x[i * i] += x[i]; }\n"
    header = build.file.parent / "device.h"
    instructions = []
    for n in (1, 3):
        header.write_text(f"#define N {n}\n")
        instructions.append(compile(build, text).kernels["_Z1kPf"].instructions)
    assert instructions[0] < instructions[1]


@needs_nvcc
@needs_bwrap
def test_text_cannot_show_files_outside(build: Build, tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("password hunter2\n")
    for name in ("/etc/passwd", str(secret), "../../secret.h"):
        with pytest.raises(CompileError) as caught:
            compile(build, f'#include "{name}"\n')
        shown = str(caught.value) + caught.value.diagnostics
        assert "root:" not in shown
        assert "hunter2" not in shown


@needs_nvcc
def test_untrusted_text_needs_the_sandbox(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "available", lambda: False)
    with pytest.raises(SandboxError, match="bubblewrap"):
        compile(build, untrusted=True)
    assert compile(build).kernels, "a person's own text is compiled all the same"


@needs_nvcc
@needs_bwrap
def test_untrusted_text_compiles_in_the_sandbox(build: Build) -> None:
    assert compiling.compile(build, TEXT, "sm_80", untrusted=True).kernels


@pytest.mark.parametrize(
    "line",
    [
        '#include "/etc/passwd"',
        "#include </etc/passwd>",
        '  #  include "/etc/passwd"',
        '%:include "/etc/passwd"',
        '#include \\\n"/etc/passwd"',
        '#/* */include/* */"/etc/passwd"',
        "#define X </etc/passwd>\n#include X",
        '#include_next "x.h"',
        '#include "../.env"',
        '#include "../.git/config.h"',
        '#include "key.pem"',
        '#include "id_rsa"',
        '#include "~/x.h"',
        '#embed "x.h"',
    ],
)
def test_untrusted_includes_refused(line: str) -> None:
    with pytest.raises(CompileError, match="headers by name only"):
        includes.check(f"int a;\n{line}\nint b;\n")


def test_ordinary_includes_pass() -> None:
    includes.check(
        '#include <vector>\n#include <cub/cub.cuh>\n#include "x.h" // why\n#include "../y/z.hpp" /* a */\n'
        '#include <cuda/std/limits>\n// #include "/etc/passwd"\n'
    )


# ---------------------------------------------------------------- finding


def fake(folder: Path, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nvcc"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


VERSION = 'echo "Cuda compilation tools, release 12.4, V12.4.131"'


def test_recording_shim_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path / "shim", f"# cuda-agent records this command\n{VERSION}")
    real = fake(tmp_path / "real" / "bin", VERSION)
    monkeypatch.setenv("PATH", f"{tmp_path}/shim:{real.parent}:{os.environ['PATH']}")
    found = nvcc.find()
    assert (found.path, found.version, found.text) == (real, (12, 4, 131), "nvcc 12.4.131")
    assert found.root == tmp_path / "real"


def test_setting_wins_and_a_wrong_one_is_named(tmp_path: Path, setting: Callable[..., None]) -> None:
    chosen = fake(tmp_path / "chosen", VERSION)
    setting(nvcc_path=str(chosen))
    assert nvcc.find().path == chosen
    setting(nvcc_path="/bin/false")
    with pytest.raises(ToolMissing, match=r"cudaAgent\.nvccPath is /bin/false"):
        nvcc.find()


def test_cuda_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = fake(tmp_path / "home" / "bin", VERSION)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert nvcc.find().path == chosen


def test_none_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "_places", lambda: iter(()))
    with pytest.raises(ToolMissing, match="Install the CUDA Toolkit"):
        nvcc.find()


def test_no_host_compiler_is_a_missing_tool(tmp_path: Path, build: Build, setting: Callable[..., None]) -> None:
    failing = fake(tmp_path / "bin", f'case "$1" in --version) {VERSION}; exit;; --dryrun) exit 0;; esac\n'
                   'echo "gcc: No such file or directory" >&2; exit 1')  # fmt: skip
    setting(nvcc_path=str(failing))
    with pytest.raises(ToolMissing, match=r"install g\+\+"):
        nvcc.compile(build, TEXT, "sm_90")


def test_specific_architecture_of_the_build(build: Build) -> None:
    special = dataclasses.replace(build, flags=("-gencode=arch=compute_90a,code=sm_90a",))
    assert nvcc.specific_arch(special, "sm_90") == "sm_90a"
    assert nvcc.specific_arch(special, "sm_80") == "sm_80"
    assert nvcc.device_flags(special, "sm_90a") == ("-arch=sm_90a", "-lineinfo")


def test_headers_of_a_make_rule() -> None:
    rule = "k.o: /tmp/w/k.cu \\\n /usr/include/a.h \\\n /opt/cuda/include/b.h \\\n /p/x\\ y.h rel.h\n"
    found = nvcc.project_headers(rule, Path("/tmp/w/k.cu"), Path("/p/build"), Path("/opt/cuda"))
    assert found == ("/p/build/rel.h", "/p/x y.h")
