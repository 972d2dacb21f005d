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
    Program("adam", "10000 200 10"),
    Program("channelSum", "56 56 3"),
    Program("concat", "3"),
    Program("floydwarshall", "1024 1 16"),
    Program("geglu", "2"),
    Program("heat2d", "4096 4096 10"),
    Program("jacobi", ""),
    Program("layernorm", "8 1024 768 5", ("rmsnorm",)),
    Program("softmax", "100000 784 0 5"),
    Program("stddev", "1024 16384 5"),
)
