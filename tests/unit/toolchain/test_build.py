"""nvcc's spelling, and where a file's build is found."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.errors import UsageError
from cuda_agent.toolchain import build

HERE = Path("/proj/src")


def flags(text: str) -> tuple[str, ...]:
    (made,) = build.parse_command([*shlex.split("nvcc " + text), "-c", "k.cu"], HERE)
    return made.flags


@pytest.mark.parametrize(
    ("spelled", "kept"),
    [
        ("-gencode=arch=compute_90,code=sm_90", ("-gencode=arch=compute_90,code=sm_90",)),
        ("-gencode arch=compute_90,code=sm_90", ("-gencode=arch=compute_90,code=sm_90",)),
        (
            "--generate-code=arch=compute_90,code=[sm_90,compute_90]",
            ("-gencode=arch=compute_90,code=[sm_90,compute_90]",),
        ),
        ("-arch sm_90", ("-arch=sm_90",)),
        ("--gpu-architecture=sm_90", ("-arch=sm_90",)),
        ('-Xcompiler "-Wall,-O3"', ("-Xcompiler=-Wall,-O3",)),
        ("-Xcompiler -fopenmp", ("-Xcompiler=-fopenmp",)),
        ("--compiler-options=-Wall", ("-Xcompiler=-Wall",)),
        ("-Xptxas=-v,-dlcm=cg", ("-Xptxas=-v", "-Xptxas=-dlcm=cg")),
        ("-x cu", ("-x=cu",)),
        ("--std=c++17", ("-std=c++17",)),
        ("-std c++17", ("-std=c++17",)),
        ("-dc", ("-rdc=true",)),
        ("-rdc=true", ("-rdc=true",)),
        ("--expt-relaxed-constexpr", ("-expt-relaxed-constexpr",)),
        ("--extended-lambda", ("-extended-lambda",)),
        ("--expt-extended-lambda", ("-extended-lambda",)),
        ("-I inc", ("-I/proj/src/inc",)),
        ("-I../inc", ("-I/proj/inc",)),
        ("-Ia,/b", ("-I/proj/src/a", "-I/b")),
        ("--include-path=inc", ("-I/proj/src/inc",)),
        ("-isystem /sys", ("-isystem=/sys",)),
        ("-isystem=/sys", ("-isystem=/sys",)),
        ("-include config.h", ("-include=config.h",)),
        ("-D X", ("-DX",)),
        ("-DX=1", ("-DX=1",)),
        ("--define-macro=X=1", ("-DX=1",)),
        ("""'-DF(a,b)=a'""", ("-DF(a,b)=a",)),
        ("""'-DNAME="x,y"'""", ('-DNAME="x,y"',)),
        ("-U X", ("-UX",)),
        ("-O3", ("-O3",)),
        ("-O 2", ("-O2",)),
        ("--optimize=1", ("-O1",)),
        ("-use_fast_math", ("-use_fast_math",)),
        ("--use_fast_math", ("-use_fast_math",)),
        ("-maxrregcount 64", ("-maxrregcount=64",)),
        ("--maxrregcount=64", ("-maxrregcount=64",)),
        ("-ftz=true -prec-div=false -fmad=false", ("-ftz=true", "-prec-div=false", "-fmad=false")),
        ("-lineinfo", ("-lineinfo",)),
        ("-G", ("-G",)),
        ("-lto", ("-lto",)),
        ("-ccbin g++-12", ("-ccbin=g++-12",)),
        ("-m64", ("-m=64",)),
        ("-default-stream per-thread", ("-default-stream=per-thread",)),
        ("-diag-suppress=177,550", ("-diag-suppress=177,550",)),
        ("-g -lcurand -L/x -L /y -o k.o -MD -MF k.d -MT k.o --threads 4 -t4 -Xlinker -s -keep -v", ()),
        ("-cudart shared -lineinfo", ("-lineinfo",)),
    ],
)
def test_spelling(spelled: str, kept: tuple[str, ...]) -> None:
    assert flags(spelled) == kept


def test_command_is_sorted_out() -> None:
    command = build.sort_out(shlex.split("ccache /opt/nvcc -O3 -arch=compute_80 a.cu b.cpp c.o -o prog -lm"), HERE)
    assert command.compiler == "/opt/nvcc"
    assert command.inputs == (HERE / "a.cu", HERE / "b.cpp")
    assert command.objects == (HERE / "c.o",)
    assert (command.output, command.phase, command.arch) == (HERE / "prog", "link", "sm_80")
    assert build.sort_out(["nvcc", "-dc", "a.cu"], HERE).phase == "dc"
    assert build.sort_out(["nvcc", "-x", "cu", "a.inc"], HERE).inputs == (HERE / "a.inc",)


def test_one_build_for_each_source_and_none_for_a_link() -> None:
    assert [b.file.name for b in build.parse_command(["nvcc", "a.cu", "b.cu"], HERE)] == ["a.cu", "b.cu"]
    assert build.parse_command(["nvcc", "a.o", "-o", "prog"], HERE) == []


def test_options_file(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("-O3 -I inc # why\n --options-file deep.txt")
    (tmp_path / "deep.txt").write_text('-DX="a b"')
    for spelled in (["--options-file", "more.txt"], ["-optf=more.txt"], ["@more.txt"]):
        (made,) = build.parse_command(["nvcc", *spelled, "k.cu"], tmp_path)
        assert made.flags == ("-O3", f"-I{tmp_path}/inc", "-DX=a b")


@pytest.mark.parametrize("argv", [["nvcc", "k.cu", "-arch"], ["nvcc", "-optf", "absent.txt", "k.cu"], [], ["ccache"]])
def test_a_broken_command_says_so(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        build.parse_command(argv, HERE)


def test_options_files_that_include_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-optf a.txt")
    with pytest.raises(UsageError, match="without end"):
        build.parse_command(["nvcc", "-optf", "a.txt", "k.cu"], tmp_path)


word = st.text("abcXYZ019_", min_size=1, max_size=6)
option = st.one_of(
    st.builds(lambda w: ["-D", w], word),
    st.builds(lambda w: [f"-D{w}=1"], word),
    st.builds(lambda w: ["-I", w], word),
    st.builds(lambda w: [f"-I../{w}"], word),
    st.builds(lambda w: ["-isystem", "/" + w], word),
    st.builds(lambda w: ["-include", w + ".h"], word),
    st.builds(lambda w: ["-Xcompiler", f"-f{w},-W{w}"], word),
    st.builds(lambda w: [f"-Xptxas=-{w}"], word),
    st.builds(lambda n: ["-maxrregcount", str(n)], st.integers(16, 255)),
    st.builds(lambda n: [f"-O{n}"], st.integers(0, 3)),
    st.builds(lambda n: [f"--gpu-architecture=sm_{n}"], st.sampled_from([70, 80, 90])),
    st.builds(lambda n: ["-gencode", f"arch=compute_{n},code=sm_{n}"], st.sampled_from([70, 80, 90])),
    st.sampled_from(
        [["-use_fast_math"], ["--expt-relaxed-constexpr"], ["-dc"], ["-std=c++20"], ["-x", "cu"], ["-lineinfo"]]
    ),
)
noise = st.sampled_from(
    [["-o", "k.o"], ["-c"], ["-lm"], ["-L/x"], ["-MD"], ["-MF", "k.d"], ["-g"], ["--threads=2"], ["-v"]]
)


@given(st.lists(option, max_size=8))
def test_round_trip(words: list[list[str]]) -> None:
    (made,) = build.parse_command(["nvcc", *chain(*words), "k.cu"], HERE)
    assert build.parse_command(build.to_command(made), Path("/elsewhere")) == [
        type(made)(made.file, Path("/elsewhere"), made.compiler, made.flags, made.origin)
    ]


@given(st.lists(option, max_size=5), st.lists(noise, max_size=5), st.randoms())
def test_noise_does_not_matter(words: list[list[str]], extra: list[list[str]], random: object) -> None:
    mixed = list(words)
    for item in extra:
        mixed.insert(random.randint(0, len(mixed)), item)  # type: ignore[attr-defined]
    plain = build.parse_command(["nvcc", *chain(*words), "k.cu"], HERE)
    assert build.parse_command(["nvcc", *chain(*mixed), "k.cu"], HERE) == plain


def test_arch() -> None:
    def made(text: str) -> build.Build:
        return build.parse_command(["nvcc", *text.split(), "k.cu"], HERE)[0]

    assert build.arch_of(made("-arch=sm_90a")) == "sm_90a"
    assert build.arch_of(made("-gencode arch=compute_80,code=[sm_80,sm_86]")) == "sm_80"
    assert build.arch_of(made("-arch=native")) is None
    assert build.without_arch(made("-O3 -arch=sm_90 -gencode arch=compute_80,code=sm_80").flags) == ("-O3",)


def test_host_flags() -> None:
    argv = shlex.split(
        "nvcc -O3 -I inc -isystem /s -DX -include a.h --std=c++14 -Xcompiler -fopenmp,-DY -arch=sm_90 k.cu"
    )
    (made,) = build.parse_command(argv, HERE)
    assert build.host_flags(made) == (
        "-I/proj/src/inc",
        "-isystem",
        "/s",
        "-DX",
        "-include",
        "a.h",
        "-std=c++14",
        "-DY",
    )


# ---------------------------------------------------------------- finding


def database(folder: Path, entries: list[dict[str, object]]) -> None:
    (folder / "compile_commands.json").write_text(json.dumps(entries))


def test_compile_commands_upward_command_and_arguments(tmp_path: Path) -> None:
    source = tmp_path / "src" / "deep"
    source.mkdir(parents=True)
    database(
        tmp_path,
        [
            {
                "directory": str(tmp_path / "out"),
                "file": "../src/deep/a.cu",
                "command": 'nvcc -DX="1 2" -I../inc -c a.cu',
            },
            {"directory": str(tmp_path), "file": str(source / "b.cu"), "arguments": ["nvcc", "-O1", "-c", "b.cu"]},
        ],
    )
    found = build.find_build(source / "a.cu")
    assert (found.origin, found.flags) == ("compile_commands", ("-DX=1 2", f"-I{tmp_path}/inc"))
    assert found.directory == tmp_path / "out"
    assert build.find_build(source / "b.cu").flags == ("-O1",)


@pytest.mark.parametrize(
    ("mode", "origin"), [(0o755, "compile_commands"), (0o777, "compile_commands"), (0o1777, "default")]
)
def test_nobody_elses_flags_from_a_folder_like_tmp(tmp_path: Path, mode: int, origin: str) -> None:
    everybodys = tmp_path / "tmp"
    (everybodys / "mine").mkdir(parents=True)
    for folder in (tmp_path, everybodys):
        database(folder, [{"directory": str(everybodys), "file": "mine/a.cu", "command": "nvcc -ccbin=/evil -c a.cu"}])
    everybodys.chmod(mode)
    assert build.find_build(everybodys / "mine" / "a.cu").origin == origin


def test_clang_entry_is_translated(tmp_path: Path) -> None:
    command = "clang++ -x cuda --cuda-gpu-arch=sm_80 -Wall -fcolor -I /i -DX -std=c++17 -O2 -c a.cu"
    database(tmp_path, [{"directory": str(tmp_path), "file": "a.cu", "command": command}])
    assert build.find_build(tmp_path / "a.cu").flags == ("-x=cu", "-arch=sm_80", "-I/i", "-DX", "-std=c++17", "-O2")


def test_recorded_build_newest_wins_and_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / build.RECORD
    source = tmp_path / "src"
    source.mkdir()
    assert build.record(path, ["nvcc", "-O1", "-c", "a.cu"], source) == 1
    assert build.record(path, ["nvcc", "-O2", "-DY", "-c", "a.cu", "b.cu"], source) == 2
    assert build.record(path, ["nvcc", "a.o", "-o", "prog"], source) == 0
    with path.open("a") as file:
        file.write('{"directory": "/x", "argu')
    found = build.find_build(source / "a.cu")
    assert (found.origin, found.flags, found.file) == ("recorded", ("-O2", "-DY"), source / "a.cu")


def test_nearest_record_that_knows_the_file(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    build.record(tmp_path / build.RECORD, ["nvcc", "-O1", "inner/a.cu"], tmp_path)
    build.record(inner / build.RECORD, ["nvcc", "-O3", "other.cu"], inner)
    assert build.find_build(inner / "a.cu").flags == ("-O1",)


def test_defaults(tmp_path: Path) -> None:
    found = build.find_build(tmp_path / "a.cu")
    assert (found.origin, found.flags) == ("default", ("-std=c++17", "-O3", f"-I{tmp_path}"))


def test_broken_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "compile_commands.json").write_text("[{")
    with pytest.raises(UsageError, match=r"compile_commands\.json"):
        build.find_build(tmp_path / "a.cu")


def test_header_is_built_as_a_source_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text("")
    build.record(tmp_path / build.RECORD, ["nvcc", "-O1", "-DX", "a.cu"], tmp_path)
    found = build.find_build(tmp_path / "k.cuh")
    assert (found.file, found.flags, found.origin) == (tmp_path / "k.cuh", ("-O1", "-DX"), "recorded")


def test_extra_flags_come_last_and_an_architecture_replaces(tmp_path: Path, setting: Callable[..., None]) -> None:
    (tmp_path / "compile_commands.json").write_text(
        json.dumps([{"directory": str(tmp_path), "file": "a.cu", "arguments": ["nvcc", "-O2", "-arch=sm_80", "a.cu"]}])
    )
    setting(extra_flags=("-I", "inc", "--define-macro=N=4", "-O3"))
    found = build.find_build(tmp_path / "a.cu")
    assert found.flags == ("-O2", "-arch=sm_80", f"-I{tmp_path}/inc", "-DN=4", "-O3")
    setting(extra_flags=("-arch", "sm_90"))
    assert build.find_build(tmp_path / "a.cu").flags == ("-O2", "-arch=sm_90")
    setting(extra_flags=("-arch",))
    with pytest.raises(UsageError, match="-arch misses its value"):
        build.find_build(tmp_path / "a.cu")
