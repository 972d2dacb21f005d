"""What a cubin says about its kernels, read without any NVIDIA tool.

A cubin is an ELF file. `.nv.info` holds (symbol, value) attributes for registers and stack, `.nv.info.<kernel>` the
parameter layout, `.nv.shared.<kernel>` the static shared memory, `.nv.constant<N>.<kernel>` constant banks and
`.text.<kernel>` the instructions, 16 bytes each since sm_70. Attribute numbers: the EIATTR_* names that
`cuobjdump -elf` prints; checked against `ptxas -v` and `cuobjdump -res-usage` for sm_75 to sm_120.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator
from functools import cached_property
from io import BytesIO
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from cuda_agent.errors import ToolchainError
from cuda_agent.model import Facts, LineFacts
from cuda_agent.toolchain.lines import Row, instruction_count, line_facts, rows, source_lines
from cuda_agent.toolchain.names import demangle

_ENTRY = 0x10  # st_other bit of a __global__ function (STO_CUDA_ENTRY)
_RESERVED_SHARED = 1024  # what CUDA keeps for itself in each block's shared memory, counted in .nv.shared from sm_90 on
_REGCOUNT, _FRAME_SIZE, _MIN_STACK_SIZE, _KPARAM_INFO = 0x2F, 0x11, 0x12, 0x17
_STACK = (_MIN_STACK_SIZE, _FRAME_SIZE)
_VOLATILE = re.compile(r"_INTERNAL_[0-9a-f]{8}_|_[0-9a-f]{8}(?=_\d)|__[0-9a-f]{8}_|\$__internal_\d+_")


class Cubin:
    """One parsed cubin. Raises ToolchainError when `data` is not a cubin."""

    def __init__(self, data: bytes) -> None:
        try:
            self.elf: Any = ELFFile(BytesIO(data))
            self.sections: dict[str, Any] = {s.name: s for s in self.elf.iter_sections()}
            self.by_index: list[Any] = list(self.elf.iter_sections())
            table = self.sections[".symtab"]
            self.symbols: list[Any] = list(table.iter_symbols())
        except (ELFError, KeyError, struct.error, UnicodeDecodeError) as error:
            raise ToolchainError(f"This is not a cubin ({error}): compile the file again.") from error

    @cached_property
    def arch(self) -> str:
        """`sm_90`. ABI 8 keeps the number in the second byte of e_flags, older ones in the first."""
        flags = int(self.elf.header["e_flags"])
        newer = int(self.elf.header["e_ident"]["EI_ABIVERSION"]) >= 8
        return f"sm_{(flags >> 8 if newer else flags) & 0xFF}"

    @cached_property
    def kernels(self) -> dict[str, int]:
        """Symbol number by mangled name of every `__global__` function, internal linkage included."""
        return {
            s.name: n
            for n, s in enumerate(self.symbols)
            if s["st_info"]["type"] == "STT_FUNC" and self._other(n) & _ENTRY
        }

    def _other(self, number: int) -> int:
        """The raw st_other byte (pyelftools splits it by the generic ABI's fields)."""
        table = self.sections[".symtab"]
        raw = table.data()[number * table["sh_entsize"] + 5]
        return int(raw)

    def section(self, name: str) -> bytes:
        found = self.sections.get(name)
        return b"" if found is None or found["sh_type"] == "SHT_NOBITS" else bytes(found.data())

    def size(self, name: str) -> int:
        found = self.sections.get(name)
        return 0 if found is None else int(found["sh_size"])

    @cached_property
    def module_attributes(self) -> dict[tuple[int, int], int]:
        """(attribute, symbol number) → value, from `.nv.info`."""
        values: dict[tuple[int, int], int] = {}
        for attribute, data in attributes(self.section(".nv.info")):
            if len(data) == 8:
                symbol, value = struct.unpack("<II", data)
                values[attribute, symbol] = value
        return values

    def param_layout(self, kernel: str) -> tuple[tuple[int, int], ...]:
        """(offset in the parameter block, size in bytes) of each parameter, in order."""
        found: dict[int, tuple[int, int]] = {}
        for attribute, data in attributes(self.section(f".nv.info.{kernel}")):
            if attribute == _KPARAM_INFO:
                _, ordinal, offset, packed = struct.unpack("<IHHI", data)
                found[ordinal] = (offset, packed >> 18)
        return tuple(found[n] for n in sorted(found))

    def code(self, kernel: str) -> bytes:
        return self.section(f".text.{kernel}")

    def relocations(self, section: str) -> list[tuple[int, int, Any, int]]:
        """(offset, type, symbol, addend) of what is to be patched into `section`."""
        found: list[tuple[int, int, Any, int]] = []
        for prefix in (".rela", ".rel"):
            table = self.sections.get(prefix + section)
            if table is None:
                continue
            for r in table.iter_relocations():
                addend = int(r.entry.get("r_addend", 0))
                found.append((r["r_offset"], r["r_info_type"], self.symbols[r["r_info_sym"]], addend))
        return found

    @cached_property
    def line_table(self) -> list[list[Row]]:
        names = {at: symbol.name or self._section_name(symbol) for at, _, symbol, _ in self.relocations(".debug_line")}
        return rows(self.section(".debug_line"), {at: name.removeprefix(".text.") for at, name in names.items()})

    def _section_name(self, symbol: Any) -> str:
        number = symbol["st_shndx"]
        return str(self.by_index[number].name) if isinstance(number, int) else ""

    def lines(self, kernel: str, file: str) -> list[int]:
        """The line of `file` that each instruction comes from, 0 where none; all 0 without -lineinfo."""
        return source_lines(self.line_table, kernel, file, instruction_count(self.code(kernel)))

    def sass_hash(self, kernel: str) -> str:
        """sha256 of what the kernel executes: instructions, literal constants, static shared size, and functions that
        it calls. Names given by the compiler and addresses do not count, so that two builds of the same code agree."""
        return self._hash_code(kernel, set()).hex()

    def _hash_code(self, function: str, seen: set[str]) -> bytes:
        seen.add(function)
        state = hashlib.sha256(self.code(function))
        state.update(self.section(f".nv.constant2.{function}"))
        state.update(b"%d" % self.size(f".nv.shared.{function}"))
        for offset, kind, symbol, addend in self.relocations(f".text.{function}"):
            state.update(b"%d %d %d " % (offset, kind, addend))
            if symbol["st_info"]["type"] == "STT_FUNC" and f".text.{symbol.name}" in self.sections:
                if symbol.name not in seen:
                    state.update(self._hash_code(symbol.name, seen))
            else:
                state.update(_VOLATILE.sub("", symbol.name).encode())
        return state.digest()

    def facts(self, kernel: str, lines: tuple[LineFacts, ...] = ()) -> Facts:
        number = self.kernels[kernel]
        info = self.module_attributes
        stack = next((info[a, number] for a in _STACK if (a, number) in info), 0)
        shared = self.size(f".nv.shared.{kernel}")
        if ".nv.shared.reserved.0" in self.sections and shared >= _RESERVED_SHARED:
            shared -= _RESERVED_SHARED
        banks = [n for n in self.sections if re.fullmatch(rf"\.nv\.constant\d+\.{re.escape(kernel)}", n)]
        return Facts(
            mangled=kernel,
            demangled=demangle(kernel),
            arch=self.arch,
            registers=info.get((_REGCOUNT, number), 0),
            shared_bytes=shared,
            stack_bytes=stack,
            spill_stores=0,
            spill_loads=0,
            constant_bytes=sum(self.size(n) for n in banks),
            sass_hash=self.sass_hash(kernel),
            instructions=instruction_count(self.code(kernel)),
            lines=lines,
        )


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, payload) of an `.nv.info` section: one byte format, one attribute, two size or value."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == 4:
            yield attribute, data[at : at + size]
            at += size
        else:
            yield attribute, struct.pack("<H", size)


def read(data: bytes, file: str | None = None) -> dict[str, Facts]:
    """Facts of every kernel by mangled name, spills left 0 (the cubin does not say; `ptxas -v` does).

    With `file` (as the compiler was told it) and a cubin built with -lineinfo, `Facts.lines` says what each of its
    lines became. Raises ToolchainError when `data` is not a cubin.
    """
    parsed = Cubin(data)
    return {
        name: parsed.facts(name, line_facts(parsed.code(name), parsed.lines(name, file)) if file else ())
        for name in parsed.kernels
    }


def param_layout(data: bytes, mangled: str) -> tuple[tuple[int, int], ...]:
    """(offset, size) in bytes of each parameter of one kernel. Raises ToolchainError."""
    parsed = Cubin(data)
    if mangled not in parsed.kernels:
        raise ToolchainError(f"The cubin holds no kernel {demangle(mangled)}; it holds {', '.join(parsed.kernels)}.")
    return parsed.param_layout(mangled)
