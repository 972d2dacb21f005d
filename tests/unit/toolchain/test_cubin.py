"""The cubin reader against what `ptxas -v` printed for the same compilations (see data/facts.cu)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cuda_agent.errors import ToolchainError, ToolMissing
from cuda_agent.toolchain import cubin, lines, sass

DATA = Path(__file__).parent / "data"
SOURCE = "/src/facts.cu"
ANONYMOUS = "_ZN40_GLOBAL__N__e45b5388_8_facts_cu_2f1254c89anonymousEPf"
REVERSE = "_Z7reverseIfLi64EEvPKT_PS0_xs"
STACK = "_ZN2ns5stackEPKfPfi"
# ptxas -v: registers, shared bytes, stack frame, constant bank 0 (not printed for sm_90: 0x210 + parameters)
PRINTED = {
    "sm_80": {
        STACK: (32, 0, 800, 372),
        ANONYMOUS: (16, 0, 0, 360),
        "plain": (8, 0, 0, 360),
        "_Z6hiddenPf": (8, 0, 0, 360),
        REVERSE: (12, 256, 0, 378),
    },
    "sm_90": {
        STACK: (32, 0, 800, 548),
        ANONYMOUS: (18, 0, 0, 536),
        "plain": (8, 0, 0, 536),
        "_Z6hiddenPf": (8, 0, 0, 536),
        REVERSE: (14, 256, 0, 554),
    },
}


def load(arch: str) -> bytes:
    return (DATA / f"facts_{arch}.cubin").read_bytes()


@pytest.mark.parametrize("arch", PRINTED)
def test_facts_are_those_ptxas_prints(arch: str) -> None:
    facts = cubin.read(load(arch))
    found = {n: (f.registers, f.shared_bytes, f.stack_bytes, f.constant_bytes) for n, f in facts.items()}
    assert found == PRINTED[arch]
    assert {f.arch for f in facts.values()} == {arch}
    assert facts[REVERSE].demangled == "void reverse<float, 64>(float const*, float*, long long, short)"


@pytest.mark.parametrize("arch", PRINTED)
def test_parameter_layout(arch: str) -> None:
    assert cubin.param_layout(load(arch), REVERSE) == ((0, 8), (8, 8), (16, 8), (24, 2))
    assert cubin.param_layout(load(arch), STACK) == ((0, 8), (8, 8), (16, 4))
    with pytest.raises(ToolchainError, match="no kernel"):
        cubin.param_layout(load(arch), "_Z6absentv")


@pytest.mark.parametrize("data", [b"", b"no elf", b"\x7fELF" + bytes(60), load("sm_80")[:2000]])
def test_what_is_no_cubin_is_refused(data: bytes) -> None:
    with pytest.raises(ToolchainError, match="not a cubin"):
        cubin.read(data)


def line_of(text: str) -> int:
    source = (DATA / "facts.cu").read_text().splitlines()
    return next(n for n, line in enumerate(source, 1) if text in line)


@pytest.mark.parametrize("arch", PRINTED)
def test_lines(arch: str) -> None:
    facts = cubin.read(load(arch), SOURCE)
    reverse = {f.line: f for f in facts[REVERSE].lines}
    load_line, store_line = line_of("tile[threadIdx.x] = in"), line_of("out[threadIdx.x] = tile")
    assert (reverse[load_line].loads, reverse[load_line].stores) == (1, 1)
    assert (reverse[store_line].loads, reverse[store_line].stores) == (1, 1)
    stack = {f.line: f for f in facts[STACK].lines}
    assert stack[line_of("local[i] = in")].loads == 200
    assert stack[line_of("local[i] = in")].local == 50
    assert stack[line_of("out[n] = local[n]")].local == 1
    assert stack[line_of("atomicAdd")].stores == 1
    assert line_of("return x * x") in {f.line for f in facts["_Z6hiddenPf"].lines}, "inlined helpers keep their line"
    for kernel in facts.values():
        assert sum(f.instructions for f in kernel.lines) == kernel.instructions


def test_no_lines_of_a_file_that_is_not_there() -> None:
    assert all(f.lines == () for f in cubin.read(load("sm_80"), "/other.cu").values())


def test_damaged_line_table_is_an_error() -> None:
    table = cubin.Cubin(load("sm_80")).section(".debug_line")
    with pytest.raises(ToolchainError, match="line table"):
        lines.rows(table[: len(table) // 2], {})


def test_hash_tells_code_apart_and_survives_another_build_path() -> None:
    """nvcc names what has internal linkage after the path: the hash must not see it."""
    data = load("sm_90")
    facts = cubin.read(data)
    assert len({f.sass_hash for f in facts.values()}) == len(facts)
    moved = cubin.read(data.replace(b"e45b5388", b"0123abcd").replace(b"2f1254c8", b"9999ffff"))
    assert [f.sass_hash for f in moved.values()] == [f.sass_hash for f in facts.values()]
    assert ANONYMOUS not in moved


def test_hash_sees_one_changed_instruction() -> None:
    data = bytearray(load("sm_90"))
    parsed = cubin.Cubin(bytes(data))
    at = parsed.sections[".text.plain"]["sh_offset"]
    data[at + 20] ^= 1
    assert cubin.read(bytes(data))["plain"].sass_hash != parsed.sass_hash("plain")
    assert cubin.read(bytes(data))[REVERSE].sass_hash == parsed.sass_hash(REVERSE)


def test_disassembly_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "find", lambda: None)
    with pytest.raises(ToolMissing, match="nvdisasm"):
        sass.disassemble(load("sm_90"))


@pytest.mark.skipif(sass.find() is None, reason="needs nvdisasm")
def test_disassembly_by_line() -> None:
    found = sass.disassemble(load("sm_90"), SOURCE)
    texts = [i.text for i in found[REVERSE] if i.line == line_of("__syncthreads")]
    assert any(text.startswith("BAR.SYNC") for text in texts)


@pytest.mark.skipif(shutil.which("nvdisasm") is None and sass.find() is None, reason="needs nvdisasm")
@pytest.mark.parametrize("arch", PRINTED)
def test_counted_operations_are_those_nvdisasm_names(arch: str) -> None:
    data = load(arch)
    facts = cubin.read(data, SOURCE)
    for name, instructions in sass.disassemble(data, SOURCE).items():
        words = [(i.line, i.text.split(" ", 1)[1] if i.text.startswith("@") else i.text) for i in instructions]
        for line in facts[name].lines:
            there = [text.split(".")[0].split(" ")[0] for at, text in words if at == line.line]
            assert sum(op in {"LD", "LDG", "LDS"} for op in there) == line.loads
            assert sum(op in {"ST", "STG", "STS", "RED", "REDG", "ATOMG"} for op in there) == line.stores
            assert sum(op in {"LDL", "STL"} for op in there) == line.local
