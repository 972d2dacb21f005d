"""The 34 HeCBench programs that the rules are developed on, as data: how each one is built and run.

Build flags are the programs' own (`make ARCH=…`). Arguments are those of their `make run` with few repeats; sizes are
smaller only where one launch would move more than about 512 MB (noted `smaller`).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Development:
    name: str
    runs: tuple[str, ...]  # arguments, one run each
    needs: tuple[str, ...] = ()  # folders beside it that its Makefile or its run reads
    emulator: tuple[str, ...] = ()  # arguments small enough for the emulator; none: not run there

    def copy(self, corpus: Path, into: Path) -> Path:
        """A fresh copy of the program's folder, without build products. FileNotFoundError when the corpus lacks it."""
        for name in (f"{self.name}-cuda", *self.needs):
            ignored = shutil.ignore_patterns("*.o", "main", ".cuda-agent")
            shutil.copytree(corpus / name, into / name, ignore=ignored, dirs_exist_ok=True)
        return into / f"{self.name}-cuda"


DEVELOPMENT = (
    Development("accuracy", ("8192 10000 10 3",)),
    Development("adam", ("10000 200 10",), emulator=("1000 20 2",)),
    Development("adjacent", ("50000000 3",)),  # smaller
    Development("attentionMultiHead", ("3",)),
    Development("bincount", ("10000000 3",)),
    Development("bitonic-sort", ("22 2",)),  # smaller: its check sorts on the host
    Development("boxfilter", ("../boxfilter-sycl/data/lenaRGB.ppm 10",), ("boxfilter-sycl",)),
    Development("channelSum", ("56 56 3",), emulator=("4 4 1",)),  # smaller: its last of many sizes
    Development("cbsfil", ("8192 8192 2",)),
    Development("colorwheel", ("10 4096 3",)),
    Development("concat", ("3",)),
    Development("crossEntropy", ("2",)),
    Development("damage", ("50000000 3",)),
    Development("dense-embedding", ("20000 140 3",)),  # smaller
    Development("floydwarshall", ("1024 1 16",), emulator=("64 1 16",)),
    Development("geglu", ("2",)),
    Development("gelu", ("8 4096 512 3", "8 4096 2048 3", "8 4096 5184 3")),
    Development("glu", ("3 384 3",)),  # smaller
    Development("heat2d", ("4096 4096 10",), emulator=("128 128 10",)),
    Development("histogram", ("--i=3",)),
    Development("jacobi", ("",)),
    Development("laplace3d", ("128 128 128 3 1", "384 384 384 3 0"), emulator=("32 32 32 1 1",)),  # smaller
    Development("layernorm", ("8 1024 768 5",), ("rmsnorm-cuda",), emulator=("2 16 768 1",)),
    Development("matrix-rotate", ("5000 3",)),
    Development("maxpool3d", ("2048 2048 24 3",)),  # smaller
    Development("nlll", ("2048 1000 3",)),
    Development("page-rank", ("-n 6000 -i 3",)),  # smaller
    Development("pool", ("32 48 224 224 54 54 3",)),  # smaller
    Development("scan", ("16777216 3",)),  # smaller
    Development("softmax", ("40000 784 0 3", "40000 784 1 3"), emulator=("1024 128 0 1", "1024 128 1 1")),  # smaller
    Development("stddev", ("1024 16384 5",), emulator=("64 512 1",)),  # smaller
    Development("stencil1d", ("33554432 3",)),  # smaller
    Development("tensorT", ("3",)),
    Development("wedford", ("16 512 8192 3",)),  # smaller
)
