"""tests/bench/beside_kernel_tuner.py: tunables as constants are candidates of ours; the rest is the table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.device.client import Device
from cuda_agent.judge.edit_tokens import select
from cuda_agent.judge.gates.g00_edit_policy import violations
from cuda_agent.judge.launch_text import mismatch
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module
from cuda_agent.workload import launch_map

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import beside_kernel_tuner as beside

# In the manner of the examples: tunables are names that nothing declares.
SUM = """
__global__ void sum(float *out, float *in) {
    int x = blockIdx.x * block_size_x * tile_size_x + threadIdx.x;
    int y = blockIdx.y * block_size_y + threadIdx.y;
    for (int t = 0; t < tile_size_x; t++) {
        int i = y * 96 + x + t * block_size_x;
        if (x + t * block_size_x < 96 && y < 8) out[i] = 2 * in[i] + 1;
    }
}
"""
EXAMPLE = beside.Example(
    "sum",
    "sum",
    "sum.cu",
    (96, 8),
    (96, 8),
    {"block_size_x": [32, 64], "block_size_y": [1, 4], "tile_size_x": [1, 3]},
    {"block_size_x": 32, "block_size_y": 1, "tile_size_x": 1},
    ("out", "in"),
    allowed=lambda config: config["block_size_x"] * config["tile_size_x"] <= 96,
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus" / "examples" / "cuda"
    folder.mkdir(parents=True)
    (folder / "sum.cu").write_text(SUM)
    (folder / "vector_add_cupy.py").write_text('k = """\n  __global__ void vector_add(float *c) {\n  }\n"""\n')
    return tmp_path / "corpus"


def test_every_configuration_is_a_rewrite_of_the_kernel_and_its_launch(corpus: Path) -> None:
    kernel = EXAMPLE.text(corpus)
    original = beside.program(EXAMPLE, kernel, EXAMPLE.start, EXAMPLE.size)
    policy = beside.Tunables(EXAMPLE, kernel, original, EXAMPLE.size)
    assert len(policy.by_id) == len(EXAMPLE.configs) == 6
    before_module = module(Document("sum.cu", original))
    before = select(before_module, "sum")
    assert before is not None
    for made in policy.by_id.values():
        after_module = module(Document("sum.cu", made.text))
        after = select(after_module, "sum", before.feeding_names)
        assert after is not None
        assert not list(violations(before, after)), made.origin
        assert mismatch(before_module, after_module, before.kernel, made.launch) is None
    wide = next(made for made in policy.by_id.values() if "x=32, block_size_y=4, tile_size_x=3" in made.origin)
    assert launch_map.apply(wide.launch, (3, 8, 1), (32, 1, 1), 0) == ((1, 2, 1), (32, 4, 1), 0)


def test_our_search_over_the_tunables(corpus: Path, tmp_path: Path, emulator: Device) -> None:
    found = beside.ours(EXAMPLE, corpus, emulator, tmp_path, 60.0)
    assert (found["seen"], found["judged"], found["right"]) == (6, 6, 6)
    assert found["status"] == "verified"
    clock = beside.by_our_clock(emulator, {"block_size_x": 64, "block_size_y": 4, "tile_size_x": 1}, found)
    assert (clock["status"], clock["us"]) == ("verified", None)


def test_a_kernel_inside_a_python_example(corpus: Path) -> None:
    (example,) = (one for one in beside.EXAMPLES if one.name == "vector_add")
    assert example.text(corpus).strip().startswith("__global__ void vector_add(")
    with pytest.raises(FileNotFoundError):
        next(one for one in beside.EXAMPLES if one.name == "matmul").text(corpus)


def test_the_table() -> None:
    row: dict[str, Any] = {
        "kernel": "sum",
        "theirs": {"tried": 6, "valid": 5, "seconds": 10.0, "best": {"block_size_x": 64}, "best_us": 12.0},
        "ours": {
            "configurations": 6,
            "judged": 6,
            "right": 6,
            "seconds": 3.0,
            "winner": {"block_size_x": 32},
            "status": "verified",
        },
        "clock": {"us": 11.0, "ours_us": 10.0, "status": "verified", "why": ""},
    }
    line = beside.table([row]).splitlines()[2]
    assert line == (
        "| sum | 6 | 6 (5) in 10 | 0.50 | 6 (6) in 3 | 2.00 | block_x 64: 12 µs by its clock | block_x 32 verified "
        "| 1.100× (10 against 11 µs) |"
    )
    assert beside.table([{"kernel": "sum", "error": "ImportError: no"}]).endswith("ImportError: no |")


def test_the_examples_spaces() -> None:
    assert {example.name: len(example.configs) for example in beside.EXAMPLES} == {
        "vector_add": 15,
        "stencil": 48,
        "matmul": 44,
    }
