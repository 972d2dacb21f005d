"""`make demo`: the main job on the project's own softmax, on the best device present."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from cuda_agent import cli
from cuda_agent.capture import resolve_device

SOURCE = Path(__file__).parents[2] / "tests" / "corpus" / "softmax_rows.cu"
# Rows, columns, repeats: large enough to be worth measuring on a GPU, small enough to trace on a CPU.
SIZES = {"cuda": "32768 1024 3", "emulator": "512 320 1"}


def main() -> int:
    """Works on a copy in the project's build folder, so that a second run starts from the same place."""
    build = SOURCE.parents[2] / "build"
    build.mkdir(exist_ok=True)
    kind = "emulator" if resolve_device("auto") == "emulator" else "cuda"
    where = "the emulator: no GPU here" if kind == "emulator" else "the GPU"
    print(f"Optimising softmax_rows.cu (one thread a row) on {where}.", flush=True)
    with tempfile.TemporaryDirectory(prefix="demo-", dir=build) as folder:
        copy = Path(folder) / SOURCE.name
        shutil.copy(SOURCE, copy)
        code = cli.main(["optimize", str(copy), "--args", SIZES[kind], "--budget", "120", *sys.argv[1:]])
    if kind == "emulator" and code == 0:
        print("\nThe speed is not measured: there is no GPU here. On a machine with one the same command measures it.")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
