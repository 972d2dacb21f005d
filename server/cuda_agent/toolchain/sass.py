"""SASS by kernel and source line, through nvdisasm where there is one. Nothing here is needed for facts or verdicts."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.errors import ToolchainError, ToolMissing
from cuda_agent.toolchain import sandbox
from cuda_agent.toolchain.cubin import Cubin

_SECTION = re.compile(r"\s*\.section\s+\.text\.(\S+?),")
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")


@dataclass(frozen=True, slots=True)
class Instruction:
    """`address` in bytes from the kernel's start; `line` of the file asked for, 0 where there is none."""

    address: int
    text: str
    line: int


def find() -> Path | None:
    """nvdisasm: on PATH, in the toolkit, or from the wheel nvidia-cuda-nvdisasm."""
    if found := shutil.which("nvdisasm"):
        return Path(found)
    places = [Path("/usr/local/cuda/bin/nvdisasm")]
    places += [Path(f) / "nvidia" / w / "bin" / "nvdisasm" for f in sys.path for w in ("cu13", "cu12", "cuda_nvdisasm")]
    return next((place for place in places if place.is_file()), None)


def disassemble(data: bytes, file: str = "") -> Mapping[str, tuple[Instruction, ...]]:
    """Every kernel's instructions by mangled name. Raises ToolMissing (no nvdisasm), ToolchainError."""
    tool = find()
    if tool is None:
        raise ToolMissing(
            "SASS is shown with nvdisasm: install the CUDA Toolkit, or `pip install nvidia-cuda-nvdisasm`."
        )
    parsed = Cubin(data)
    with tempfile.TemporaryDirectory(prefix="cuda-agent-") as folder:
        path = Path(folder) / "module.cubin"
        path.write_bytes(data)
        done = sandbox.run([str(tool), "-c", str(path)], Path(folder), [tool.parents[1], Path(folder)], timeout=60)
    if done.returncode != 0:
        raise ToolchainError(f"nvdisasm failed on this cubin: {done.stderr.strip()[:200]}")
    found: dict[str, list[Instruction]] = {name: [] for name in parsed.kernels}
    lines = {name: parsed.lines(name, file) for name in parsed.kernels}
    name = ""
    for text in done.stdout.splitlines():
        if section := _SECTION.match(text):
            name = section[1]
        elif name in found and (match := _INSTRUCTION.match(text)):
            number = int(match[1], 16) // 16
            line = lines[name][number] if number < len(lines[name]) else 0
            found[name].append(Instruction(int(match[1], 16), match[2], line))
    return {name: tuple(instructions) for name, instructions in found.items()}
