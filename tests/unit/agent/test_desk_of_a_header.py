"""The desk of a header's kernel: its launches in another file are on it, and nothing else of that file is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.agent.budget import Budget
from cuda_agent.agent.policies import State
from cuda_agent.agent.tools import looking
from cuda_agent.agent.tools.desk import Desk
from cuda_agent.errors import UsageError
from cuda_agent.rewrite.rule import Context
from cuda_agent.source import joined

KERNEL = """#define TWO 2
__device__ float twice(float x) { return TWO * x; }
__global__ void k(float *x) { x[blockIdx.x * blockDim.x + threadIdx.x] = twice(1); }
"""
MAIN = """#include "k.cuh"
#define SECRET 42
int secret() { return SECRET; }
int main() { k<<<16, 256>>>(nullptr); }
"""


@pytest.fixture
def desk() -> Desk:
    text = joined.join(KERNEL, {"main.cu": MAIN})
    return Desk(State(lambda _: Context.make(Path("k.cuh"), text, "k"), Budget(1.0, 1)), "someone")


def test_a_launch_shape_changes_in_the_other_file(desk: Desk) -> None:
    assert "// launched by: k<<<16, 256>>>(nullptr)" in looking.kernel(desk)
    desk.relaunch(["gx * 4"], ["64"], None)
    assert joined.own(desk.text) == KERNEL
    assert joined.others(desk.text)["main.cu"] == MAIN.replace("<<<16, 256>>>", "<<<16 * 4, 64>>>")
    desk.replace_kernel(KERNEL.splitlines()[2].replace("twice(1)", "twice(1.0f)"), "a float")
    assert joined.others(desk.candidate().text).keys() == {"main.cu"}


def test_of_the_other_file_only_the_launch_is_read(desk: Desk) -> None:
    assert looking.read(desk, {"name": "twice"}).startswith("__device__ float twice")
    assert looking.read(desk, {"name": "TWO"}) == "#define TWO 2"
    for name in ("secret", "SECRET", "main"):
        with pytest.raises(UsageError, match="nothing in this file"):
            looking.read(desk, {"name": name})
