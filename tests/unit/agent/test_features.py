"""A kernel as numbers."""

from __future__ import annotations

from pathlib import Path

from cuda_agent.agent import features
from cuda_agent.device.info import GPUS
from cuda_agent.hints.limits import Limiter
from cuda_agent.model import Facts, LineFacts
from cuda_agent.rewrite.rule import Context
from unit.judge.conftest import workload

TEXT = """\
__global__ void axpy(const float *a, float *b, int n)
{
    __shared__ double row[64];
    for (int r = 0; r < 4; r++)
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            const float4 *wide = reinterpret_cast<const float4 *>(a);
            row[threadIdx.x] = wide[i].x;
            __syncthreads();
            atomicAdd(&b[i], __shfl_xor_sync(~0u, row[0], 1));
        }
    __syncwarp();
}
"""


def test_what_the_text_says() -> None:
    found = features.of(Context.make(Path("x.cu"), TEXT, "axpy"))
    wanted = {
        "parameters": 3,
        "pointers": 2,
        "shared_arrays": 1,
        "loops": 2,
        "loop_depth": 2,
        "barriers": 1,
        "warp_barriers": 1,
        "warp_operations": 1,
        "atomics": 1,
        "shared_stores": 1,
        "shared_loads": 1,
        "loads_16": 1,
        "loads_4": 0,
    }
    assert {name: found[name] for name in wanted} == wanted


def test_what_the_compiler_the_launch_and_the_device_say(tmp_path: Path) -> None:
    facts = Facts("_Z", "axpy()", "sm_90", 40, 512, 0, 8, 4, 0, "hash", 100, (LineFacts(1, 90, 3, 2, 1),))
    limit = Limiter("shared conflicts", "", 3.5, True, 0.25)
    context = Context.make(Path("x.cu"), TEXT, "axpy", workload(tmp_path), GPUS["h200"])
    found = features.of(context, facts, limit)
    wanted = {
        "registers": 40,
        "shared_bytes": 512,
        "spill_bytes": 12,
        "instructions": 100,
        "load_instructions": 3,
        "store_instructions": 2,
        "local_instructions": 1,
        "blocks": 1,
        "threads": 64,
        "block_x": 64,
        "grid_y": 1,
        "launches": 1,
        "limit_shared_conflicts": 1,
        "limit_latency": 0,
        "headroom": 3.5,
        "bandwidth_share": 0.25,
        "device_sms": 132,
    }
    assert {name: found[name] for name in wanted} == wanted
    assert found["bytes_read"] + found["bytes_written"] == 2 * 64 * 4
    assert all(isinstance(value, int | float) for value in found.values())
