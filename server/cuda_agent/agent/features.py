"""A kernel as numbers, for those who learn from searches: flat, every value a number, the same names for every kernel.

What the compiler made of it (absent on the emulator, which counts nothing), what its text does to memory, its launch
with most threads, what limits it, and the device. Nothing is run for it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import get_args

from cuda_agent.device import DeviceInfo
from cuda_agent.errors import CudaAgentError
from cuda_agent.hints import limits
from cuda_agent.model import Facts, Workload
from cuda_agent.rewrite import predict
from cuda_agent.rewrite.analysis import access
from cuda_agent.rewrite.rule import Context

WIDTHS = (1, 2, 4, 8, 16)  # bytes of one access
_BARRIERS = re.compile(r"\b__syncthreads(?:_\w+)?\s*\(|\.sync\s*\(\s*\)")
_WARP_BARRIERS = re.compile(r"\b__syncwarp\s*\(")
_SHUFFLES = re.compile(r"\b__(?:shfl|reduce|ballot|any|all|match)\w*_sync\s*\(")


def of(context: Context, facts: Facts | None = None, limit: limits.Limiter | None = None) -> dict[str, float]:
    """Features of one text of a kernel. `limit` is known of originals only."""
    found: dict[str, float] = {
        **_code(facts),
        **_text(context),
        **_launch(context),
        **(_work(context.workload) if context.workload is not None else {}),
        **(_limit(limit) if limit is not None else {}),
        **(_device(context.device) if context.device is not None else {}),
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _code(facts: Facts | None) -> dict[str, float]:
    if facts is None or not facts.instructions:
        return {}
    lines = facts.lines
    return {
        "registers": facts.registers,
        "shared_bytes": facts.shared_bytes,
        "stack_bytes": facts.stack_bytes,
        "spill_bytes": facts.spill_stores + facts.spill_loads,
        "instructions": facts.instructions,
        **(
            {
                "load_instructions": sum(line.loads for line in lines),
                "store_instructions": sum(line.stores for line in lines),
                "local_instructions": sum(line.local for line in lines),
            }
            if lines
            else {}
        ),
    }


def _text(context: Context) -> dict[str, float]:
    """Counts of what stands in the text, and of what its first warp does (`predict.counts`). A text that the analyses
    do not understand has the former only."""
    kernel, code = context.kernel, context.code
    found: dict[str, float] = {
        "parameters": len(kernel.params),
        "pointers": sum(param.pointer > 0 for param in kernel.params),
        "shared_arrays": len(kernel.shared),
        "loops": len(kernel.loops),
        "loop_depth": max((loop.depth + 1 for loop in kernel.loops), default=0),
        "guards": len(kernel.guards),
        "lines": code.count("\n") + 1,
        "barriers": len(_BARRIERS.findall(code)),
        "warp_barriers": len(_WARP_BARRIERS.findall(code)),
        "warp_operations": len(_SHUFFLES.findall(code)),
    }
    try:
        counted = Counter(_kind(one) for one in access.of(context))
        warp = predict.counts(context)
    except CudaAgentError:
        return found
    found |= {f"{what}_{width}": counted[f"{what}_{width}"] for what in ("loads", "stores") for width in WIDTHS}
    found |= {name: counted[name] for name in ("shared_loads", "shared_stores", "atomics", "accesses_unknown")}
    return found | {f"warp_{name}": value for name, value in warp.items()}


def _kind(one: access.Access) -> str:
    if one.kind == "atomic":
        return "atomics"
    if one.space == "shared":
        return f"shared_{one.kind}s"
    if one.space == "global" and one.bytes in WIDTHS:
        return f"{one.kind}s_{one.bytes}"
    return "accesses_unknown" if one.space == "global" else "local"


def _launch(context: Context) -> dict[str, float]:
    """Of the launch with most threads; `launches` are all that were recorded."""
    shapes = context.shapes
    if not shapes:
        return {}
    most = max(shapes, key=lambda shape: math.prod(shape.grid) * shape.threads)
    grid = {f"grid_{axis}": value for axis, value in zip("xyz", most.grid, strict=True)}
    block = {f"block_{axis}": value for axis, value in zip("xyz", most.block, strict=True)}
    sizes = {"blocks": math.prod(most.grid), "threads": most.threads, "shared_dynamic": most.shared}
    return {**grid, **block, **sizes, "launches": len(shapes)}


def _work(workload: Workload) -> dict[str, float]:
    """Bytes of the launch that moves most, as its capture shows them."""
    read, written = max((limits.moved(launch) for launch in workload.launches), key=sum, default=(0, 0))
    return {"bytes_read": read, "bytes_written": written}


def _limit(limit: limits.Limiter) -> dict[str, float]:
    kinds: Mapping[str, float] = {f"limit_{kind.replace(' ', '_')}": 0 for kind in get_args(limits.Kind)}
    return {**kinds, f"limit_{limit.kind.replace(' ', '_')}": 1, "headroom": limit.headroom} | (
        {"bandwidth_share": limit.share} if limit.share is not None else {}
    )


def _device(info: DeviceInfo) -> dict[str, float]:
    return {
        "device_sms": info.sms,
        "device_bandwidth_gbs": info.memory_bandwidth_gbs,
        "device_l2_bytes": info.l2_bytes,
        "device_clock_mhz": info.clock_mhz,
    }
