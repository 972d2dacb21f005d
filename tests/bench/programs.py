"""The ten HeCBench programs that the benchmarks run, as data: how each is run on a GPU and on the emulator.

The make commands are the programs' own; only the run arguments are smaller than their `make run`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Program:
    name: str
    gpu: str  # run arguments on a GPU
    needs: tuple[str, ...] = ()  # neighbours whose headers its Makefile includes
    emulator: tuple[str, ...] = ("",)  # run arguments on the emulator, one entry a run
    passed: tuple[str, int] = ("PASS", 1)  # what the program prints when its own check passed, and how often at least
    ends: bool = True  # on the emulator it runs to its end; else capture ends it once its launches are recorded

    def copy(self, corpus: Path, into: Path) -> Path:
        """A fresh copy of the program's folder (`<name>-cuda`), without build products."""
        for name in (self.name, *self.needs):
            source, target = corpus / f"{name}-cuda", into / f"{name}-cuda"
            if not source.is_dir():
                raise SystemExit(f"{corpus} has no {name}-cuda")
            shutil.copytree(
                source, target, ignore=shutil.ignore_patterns("*.o", "main", ".cuda-agent"), dirs_exist_ok=True
            )
        return into / f"{self.name}-cuda"


TEN = (
    Program("adam", "10000 200 10", emulator=("1000 20 2",)),
    Program("channelSum", "56 56 3", emulator=("4 4 1",), passed=("PASS", 24)),
    Program("concat", "3", emulator=("1",), ends=False),
    Program("floydwarshall", "1024 1 16", emulator=("64 1 16",)),
    Program("geglu", "2", emulator=("1",), passed=("PASS", 6), ends=False),
    Program("heat2d", "4096 4096 10", emulator=("128 128 10",)),
    Program("jacobi", "", ends=False),
    Program(
        "layernorm",
        "8 1024 768 5",
        ("rmsnorm",),
        emulator=("2 16 768 1",),
        passed=("All results match", 3),
    ),
    Program("softmax", "100000 784 0 5", emulator=("1024 128 0 1", "1024 128 1 1"), passed=("PASS", 2)),
    Program("stddev", "1024 16384 5", emulator=("64 512 1",)),
)
