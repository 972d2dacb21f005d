"""Kernels of `kernels/*.cpp` (already translated), compiled plain and traced once a session."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from cuda_agent.device.emulator import native

KERNELS = Path(__file__).parent / "kernels"


def aligned(array: np.ndarray, guard: int = 4096) -> np.ndarray:
    """A copy whose bytes start at a 256-byte boundary, with `guard` bytes of the process's own on each side."""
    raw = np.zeros(array.nbytes + 2 * guard + 256, np.uint8)
    start = guard + (-(raw.ctypes.data + guard)) % 256
    view = raw[start : start + array.nbytes].view(array.dtype)
    view[:] = array
    return view


class Kernels:
    """One loaded module; `run` packs arguments at their natural alignment."""

    def __init__(self, module: native.Module) -> None:
        self.module = module
        self.names = {kernel.mangled: kernel for kernel in module.kernels()}

    def find(self, name: str) -> native.KernelInfo:
        found = [k for m, k in self.names.items() if m == name or f"{len(name)}{name}" in m]
        assert len(found) == 1, (name, list(self.names))
        return found[0]

    def run(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *args: np.ndarray | np.generic,
        shared: int = 0,
        **options: object,
    ) -> native.LaunchOutcome:
        kernel = self.find(name)
        data = bytearray(kernel.bytes)
        regions = []
        for offset, size, arg in zip(kernel.offsets, kernel.sizes, args, strict=True):
            if isinstance(arg, np.ndarray):
                regions.append((arg.ctypes.data, arg.nbytes))
                raw = arg.ctypes.data.to_bytes(8, "little")
            else:
                raw = arg.tobytes()
            assert len(raw) == size
            data[offset : offset + size] = raw
        return self.module.launch(
            kernel.mangled, dims(grid), dims(block), shared, bytes(data), regions=regions, **options
        )  # type: ignore[arg-type]


def dims(value: int | Sequence[int]) -> Sequence[int]:
    return (value, 1, 1) if isinstance(value, int) else value


def line_of(source: str, text: str) -> int:
    """1-based line of the only line of kernels/`source`.cpp that holds `text`."""
    lines = (KERNELS / f"{source}.cpp").read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if text in line]
    return found


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Kernels]:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    known: dict[tuple[str, bool], Kernels] = {}

    def make(source: str, traced: bool) -> Kernels:
        if (source, traced) not in known:
            output = tmp_path_factory.mktemp("modules") / f"{source}.so"
            native.compile_shared(KERNELS / f"{source}.cpp", output, traced=traced)
            known[source, traced] = Kernels(native.Module.load(output))
        return known[source, traced]

    return make
