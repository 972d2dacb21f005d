"""Instruction → source line, from a cubin's `.debug_line` (nvcc -lineinfo), without any tool.

The section is a DWARF line program (versions 2 to 4; DWARF 4 standard, chapter 6.2). Two things are CUDA's own: the
start address of each sequence is 0 with a relocation to the kernel's `.text` section, and NVIDIA adds extended opcodes
(0x90 inlined call, 0x91 function name) that say where inlined code was called from.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cuda_agent.errors import ToolchainError
from cuda_agent.model import LineFacts

_INLINED_CALL = 0x90


@dataclass(frozen=True, slots=True)
class Row:
    """From `address` (bytes from the function's start) on, code comes from `line` of `file`.

    `call` is the index of the row, in the same sequence, of the call that this code was inlined from; -1 for none.
    """

    function: str
    address: int
    file: str
    line: int
    end: bool
    call: int = -1


class _Reader:
    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def unpack(self, form: str) -> int:
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return int(value)

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def sleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value - (1 << shift) if byte & 0x40 else value

    def text(self) -> str:
        end = self.data.index(0, self.at)
        value = self.data[self.at : end].decode(errors="replace")
        self.at = end + 1
        return value


@dataclass(slots=True)
class _State:
    function: str = ""
    address: int = 0
    file: int = 1
    line: int = 1
    call: int = -1


def rows(data: bytes, functions: dict[int, str]) -> list[list[Row]]:
    """One list of rows for each sequence. `functions` names, by offset in the section, what an address relocates to.

    Raises ToolchainError when the section is not a line program.
    """
    reader, sequences = _Reader(data), []
    try:
        while reader.at + 4 < len(data):
            sequences += list(_unit(reader, functions))
    except (struct.error, IndexError, ValueError) as error:
        raise ToolchainError(f"The line table of this cubin cannot be read ({error}).") from error
    return sequences


def _unit(reader: _Reader, functions: dict[int, str]) -> Iterator[list[Row]]:
    end = reader.unpack("I") + reader.at
    version = reader.unpack("H")
    if not 2 <= version <= 4:
        raise ValueError(f"DWARF version {version}")
    program = reader.unpack("I") + reader.at
    shortest = reader.unpack("B")
    if version >= 4:
        reader.unpack("B")
    reader.unpack("B")  # default_is_stmt
    base, span, opcodes = reader.unpack("b"), reader.unpack("B"), reader.unpack("B")
    operands = [0] + [reader.unpack("B") for _ in range(opcodes - 1)]
    files = _files(reader)
    reader.at = program
    state, found = _State(), list[Row]()

    def row(is_end: bool = False) -> Row:
        name = files[state.file] if 0 < state.file < len(files) else ""
        return Row(state.function, state.address, name, state.line, is_end, state.call)

    while reader.at < end:
        opcode = reader.unpack("B")
        if opcode >= opcodes:
            state.address += (opcode - opcodes) // span * shortest
            state.line += base + (opcode - opcodes) % span
            found.append(row())
        elif opcode == 0:
            if _extended(reader, state, functions):
                yield [*found, row(True)]
                state, found = _State(), []
        elif opcode == 1:
            found.append(row())
        else:
            _standard(reader, state, opcode, operands, shortest, (255 - opcodes) // span * shortest)
    reader.at = end


def _files(reader: _Reader) -> list[str]:
    folders = [""]
    while reader.data[reader.at]:
        folders.append(reader.text())
    reader.at += 1
    files = [""]
    while reader.data[reader.at]:
        name, folder = reader.text(), reader.uleb()
        reader.uleb()  # time
        reader.uleb()  # size
        inside = folders[folder] if folder < len(folders) else ""
        files.append(name if name.startswith("/") or not inside else f"{inside}/{name}")
    reader.at += 1
    return files


def _extended(reader: _Reader, state: _State, functions: dict[int, str]) -> bool:
    size = reader.uleb()
    start = reader.at
    opcode = reader.unpack("B")
    if opcode == 2:  # DW_LNE_set_address
        state.function = functions.get(reader.at, "")
        state.address = reader.unpack("Q" if size == 9 else "I")
    elif opcode == _INLINED_CALL:
        # The context counts rows of this sequence from 1; 0 ends inlining.
        state.call = reader.uleb() - 1
    reader.at = start + size
    return opcode == 1


def _standard(
    reader: _Reader, state: _State, opcode: int, operands: Sequence[int], shortest: int, constant: int
) -> None:
    if opcode == 2:
        state.address += reader.uleb() * shortest
    elif opcode == 3:
        state.line += reader.sleb()
    elif opcode == 4:
        state.file = reader.uleb()
    elif opcode == 8:
        state.address += constant
    elif opcode == 9:
        state.address += reader.unpack("H")
    else:
        for _ in range(operands[opcode]):
            reader.uleb()


# ---------------------------------------------------------------- instructions by line

INSTRUCTION_BYTES = 16  # sm_70 and later
# The low nine bits of an instruction name the operation, the three above its operand form. Read off nvdisasm for sm_75
# to sm_120: LD LDG LDS LDGSTS; ST STG STS and the atomics ATOM ATOMG ATOMS RED REDG; LDL STL; NOP.
_LOADS = frozenset({0x180, 0x181, 0x184, 0x1AE})
_STORES = frozenset({0x185, 0x186, 0x188, 0x18A, 0x18B, 0x18C, 0x18D, 0x18E, 0x1A3, 0x1A6, 0x1A8, 0x1A9})
_LOCAL = frozenset({0x183, 0x187})
_NOP = 0x118


def operation(code: bytes, index: int) -> int:
    return int.from_bytes(code[index * INSTRUCTION_BYTES : index * INSTRUCTION_BYTES + 2], "little") & 0x1FF


def instruction_count(code: bytes) -> int:
    """Instructions without the NOPs that pad a function to its alignment."""
    count = len(code) // INSTRUCTION_BYTES
    while count and operation(code, count - 1) == _NOP:
        count -= 1
    return count


def source_lines(sequences: Sequence[Sequence[Row]], function: str, file: str, count: int) -> list[int]:
    """The line of `file` for each of `count` instructions of `function`; 0 where there is none.

    Code inlined from another file (a header, an intrinsic) belongs to the line that called it; code of a device
    function in `file` to its own line.
    """
    marks: list[tuple[int, int]] = []
    for sequence in sequences:
        for number, row in enumerate(sequence):
            if row.function == function:
                marks.append((row.address, 0 if row.end else _own_line(sequence, number, file)))
    marks.sort(key=lambda mark: mark[0])  # stable: of rows at one address the last, innermost one counts
    found, at, line = [], 0, 0
    for index in range(count):
        while at < len(marks) and marks[at][0] <= index * INSTRUCTION_BYTES:
            line = marks[at][1]
            at += 1
        found.append(line)
    return found


def _own_line(sequence: Sequence[Row], number: int, file: str) -> int:
    seen: set[int] = set()
    while 0 <= number < len(sequence) and number not in seen:
        if sequence[number].file == file:
            return sequence[number].line
        seen.add(number)
        number = sequence[number].call
    return 0


def line_facts(code: bytes, lines: Sequence[int]) -> tuple[LineFacts, ...]:
    """What each source line became: instructions, loads (global, generic, shared, asynchronous copies), stores (the
    same and atomics) and accesses to local memory (stack and spills). `lines` as from `source_lines`."""
    counts: dict[int, list[int]] = {}
    for index, line in enumerate(lines):
        if line == 0:
            continue
        count = counts.setdefault(line, [0, 0, 0, 0])
        op = operation(code, index)
        count[0] += 1
        count[1] += op in _LOADS
        count[2] += op in _STORES
        count[3] += op in _LOCAL
    return tuple(LineFacts(line, *counts[line]) for line in sorted(counts))
