"""Time a kernel against itself: its time, and the noise that a claimed speedup has to beat on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from cuda_agent.device import jobs, open_device
from cuda_agent.errors import DeviceError
from cuda_agent.inputs import Run, find_or_make, read_source
from cuda_agent.judge import statistics
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module as parse_module
from cuda_agent.toolchain import names
from cuda_agent.toolchain.build import find_build
from cuda_agent.workload.bundle import BlobStore
from cuda_agent.workload.launch_map import Shape


def bench(
    path: Path,
    kernel: str | None,
    device: str,
    *,
    text: str | None = None,
    **run: Unpack[Run],
) -> dict[str, Any]:
    """One row for each captured launch; `text` is the editor's where it differs from the file. DeviceError on the
    emulator: it does not measure time."""
    text = read_source(path) if text is None else text
    module = parse_module(Document(str(path), text))
    build = find_build(path)
    with open_device(device) as dev:
        if dev.info.kind == "emulator":
            raise DeviceError("the emulator does not measure time: run bench on a machine with a GPU (--device cuda:0)")
        workload = find_or_make(path, module, kernel, build, dev.info.kind, **run)
        binary = dev.compile(find_build(path), text)  # as the run may have recorded it
        rows = []
        for launch in workload.launches:
            symbol = names.match(list(binary.kernels), launch.mangled)
            if symbol is None:
                raise DeviceError(
                    f"{names.demangle(launch.mangled)} is not in this build of {path.name}: capture again"
                )
            side = jobs.launch_fields(binary.sha256[:12], launch, kernel=symbol)
            steps = [jobs.load_step(binary, binary.sha256[:12]), jobs.time_step(side, side, rounds=30)]
            blobs = jobs.BlobSource(BlobStore(workload.blobs)).add_binary(binary)
            result = dev.run(jobs.Job(steps, 120.0, "bench"), blobs)[1]
            timing = statistics.compare(result["samples"], device=dev.info.name)
            clocks = [s["clock_mhz"] for s in result["samples"] if s.get("clock_mhz")]
            rows.append(
                {
                    "shape": Shape.of(launch).text(),
                    "us": timing.original_us,
                    "ratio": timing.ratio,
                    "ci": list(timing.ci),
                    "noise_floor": statistics.noise_floor(result["samples"]),
                    "label": timing.label,
                    "warm": result.get("warm"),
                    "clock_mhz": sorted(clocks)[len(clocks) // 2] if clocks else None,
                }
            )
        return {
            "status": "done",
            "kernel": workload.kernel,
            "device": dev.info.name,
            "inputs": workload.origin,
            "launches": rows,
        }
