"""Judge a person's own rewrite: two files, one kernel, the original's inputs.

Where the two files launch the kernel with the same words, the captured shapes hold for both. Where they differ, the
candidate's
own program is run under the same capture and its launches are paired with the original's, in order.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent import judge
from cuda_agent.capture import CaptureOptions, NothingCaptured, build_and_run
from cuda_agent.device import Device, open_device
from cuda_agent.errors import CompileError, NoInputs
from cuda_agent.inputs import RUN_TIMEOUT_S, find_or_make, read_source
from cuda_agent.judge import JudgeOptions
from cuda_agent.model import Build, Candidate, Kernel, LaunchMap, Verdict, Workload
from cuda_agent.source.documents import Document
from cuda_agent.source.edits import minimal, unified_diff
from cuda_agent.source.symbols import Module
from cuda_agent.source.symbols import module as parse_module
from cuda_agent.toolchain.build import find_build
from cuda_agent.workload import bundle, launch_map
from cuda_agent.workload.launch_map import Shape


@dataclass(frozen=True)
class Verification:
    verdict: Verdict
    candidate: Candidate
    diff: str


@dataclass(frozen=True)
class VerifyRequest:
    original: Path
    candidate: Path
    kernel: str | None = None
    device: str = "auto"
    args: tuple[str, ...] = ()
    run_command: tuple[str, ...] | None = None
    timeout_s: float = RUN_TIMEOUT_S  # for a run of the program
    options: JudgeOptions = field(default_factory=JudgeOptions)


def verify(
    request: VerifyRequest,
    *,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    device: Device | None = None,
) -> Verification:
    """One full verdict. Raises NoInputs when nothing was captured and nothing can be."""
    old, new = read_source(request.original), read_source(request.candidate)
    before, after = (
        parse_module(Document(str(request.original), old)),
        parse_module(Document(str(request.original), new)),
    )
    build = find_build(request.original)
    opened = device or open_device(request.device)
    try:
        workload = find_or_make(
            request.original,
            before,
            request.kernel or _changed(before, after),
            build,
            opened.info.kind,
            args=request.args,
            run_command=request.run_command,
            timeout_s=request.timeout_s,
            on_event=on_event,
            cancelled=cancelled,
        )
        kernel = before.kernel(workload.kernel)
        mapping = _launches(before, after, kernel, workload, build, request, opened, on_event, cancelled)
        candidate = Candidate(
            kernel.id,
            old,
            new,
            minimal(old, new),
            "person",
            "reassociated",
            mapping,
            id=hashlib.sha256(new.encode("utf-8", "surrogateescape")).hexdigest()[:12],
        )
        verdict = judge.judge(
            opened, build, workload, old, candidate, options=request.options, on_event=on_event, cancelled=cancelled
        )
        return Verification(verdict, candidate, unified_diff(old, new, request.original.name))
    finally:
        if device is None:
            opened.close()


def _changed(before: Module, after: Module) -> str | None:
    """The one kernel whose text differs; None when there is no such one kernel."""
    hashes = {k.id: after.kernel_hash(k) for k in after.kernels}
    changed = [k.id for k in before.kernels if hashes.get(k.id) != before.kernel_hash(k)]
    return changed[0] if len(changed) == 1 else None


def _outside_kernels(module: Module) -> str:
    """The text that decides launch shapes: everything but the kernels."""
    data, kept, at = module.document.data, [], 0
    for kernel in module.kernels:
        kept.append(data[at : kernel.span.start])
        at = kernel.span.end
    return b"".join([*kept, data[at:]]).decode("utf-8", "surrogateescape")


def _launches(
    before: Module,
    after: Module,
    kernel: Kernel,
    workload: Workload,
    build: Build,
    request: VerifyRequest,
    device: Device,
    on_event: Callable[[Mapping[str, Any]], None] | None,
    cancelled: Callable[[], bool] | None,
) -> LaunchMap:
    """How the candidate launches the kernel where the original launched it as captured. Raises NoInputs when its
    program cannot tell."""
    if _outside_kernels(before) == _outside_kernels(after):
        return LaunchMap()
    try:
        device.compile(build, after.document.text)
    except CompileError:
        return LaunchMap()  # G1 rejects it with the compiler's words
    if not after.has_main:
        raise NoInputs(
            f"{request.candidate.name} launches {kernel.name} differently and has no main to run, so its launch shapes "
            "are unknown: put the new launch into a file with a main, or keep the launch as it is"
        )
    ours = [Shape(x.grid, x.block, x.shared) for x in workload.launches]
    shapes = _own_shapes(kernel, workload, build, request, device.info.kind, on_event, cancelled)
    if len(shapes) < len(ours):
        raise NoInputs(
            f"the program of {request.candidate.name} launched {kernel.name} {len(shapes)} times, the original's "
            f"{len(ours)} times: their launches cannot be paired"
        )
    return launch_map.fit(list(zip(ours, shapes, strict=False)))


def _own_shapes(
    kernel: Kernel,
    workload: Workload,
    build: Build,
    request: VerifyRequest,
    kind: str,
    on_event: Callable[[Mapping[str, Any]], None] | None,
    cancelled: Callable[[], bool] | None,
) -> list[Shape]:
    """The launch shapes of the candidate's program, run with the arguments the original was captured with. Its bundles
    go to a temporary folder: they are not the inputs of anything."""
    args = request.args or (workload.command[1:] if workload.origin == "captured" else ())
    say = on_event or (lambda event: None)
    shapes: list[Shape] = []

    def follow(event: Mapping[str, Any]) -> None:
        if event.get("type") == "launch" and bundle.same_kernel(str(event["kernel"]), workload.kernel):
            grid, block = event["grid"], event["block"]
            shapes.append(Shape((grid[0], grid[1], grid[2]), (block[0], block[1], block[2]), int(event["shared"])))
        say(event)

    with tempfile.TemporaryDirectory(prefix="cuda-agent-") as folder:
        options = CaptureOptions(
            device="emulator" if kind == "emulator" else "cuda",
            kernel=rf"\b{re.escape(kernel.name)}\b",
            first=len(workload.launches),
            timeout=request.timeout_s,
            into=Path(folder),
        )
        try:
            build_and_run(request.candidate, list(args), build, options, follow, cancelled)
        except NothingCaptured as error:
            if len(shapes) < len(workload.launches):  # else they were seen and refused: the judge says so
                raise NoInputs(
                    f"{request.candidate.name} launches {kernel.name} differently and its own program showed no such "
                    f"launch: {error}"
                ) from error
    return shapes
