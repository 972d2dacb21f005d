"""Judge a person's own rewrite: two files, one kernel, the original's inputs. A header is judged with the files that
launch its kernels: the candidate's are those that lie to it as the original's do to the original.


Where both launch the kernel with the same words, the captured shapes hold for both. Where they differ, and the edit
policy lets them, the candidate's own program is run under the same capture, in the way that the original's was, and its
launches are paired with the original's, by which launch of the program they are. Of a model's text nothing runs on the
host: there the launch texts alone say the shapes.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cuda_agent import judge
from cuda_agent.capture import CaptureOptions, NothingCaptured, build_and_run
from cuda_agent.device import Device, open_device
from cuda_agent.errors import CompileError, NoInputs, WorkloadError
from cuda_agent.inputs import RUN_TIMEOUT_S, find_or_make, read_source, run_of
from cuda_agent.judge import JudgeOptions
from cuda_agent.judge.case import Case
from cuda_agent.judge.gates.g00_edit_policy import EditPolicy
from cuda_agent.judge.launches_said import launches_said
from cuda_agent.judge.program import Program, is_executable
from cuda_agent.model import Candidate, LaunchMap, Verdict
from cuda_agent.source import joined
from cuda_agent.source.documents import Document, text_id
from cuda_agent.source.edits import minimal, unified_diff
from cuda_agent.source.symbols import Module
from cuda_agent.source.symbols import module as parse_module
from cuda_agent.toolchain.build import find_build
from cuda_agent.toolchain.launchers import with_launches
from cuda_agent.workload import launch_map, own
from cuda_agent.workload.launch_map import Shape

_Launched = tuple[int, Shape]  # which launch of its process, counted from 0, and its shape


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
    text: str | None = None  # the original's, where it differs from the file: an editor's
    rewrite: str | None = None  # the candidate's text; `candidate` is then only its name
    origin: str = "person"
    reason: str = ""  # one sentence of who wrote it

    @property
    def untrusted(self) -> bool:
        """Text from a model: compiled in the sandbox only, and its host code is never run."""
        return self.origin.startswith("model")


def verify(
    request: VerifyRequest,
    *,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    device: Device | None = None,
) -> Verification:
    """One full verdict. Raises NoInputs when nothing was captured and nothing can be."""
    build = find_build(request.original)
    old = with_launches(build, read_source(request.original) if request.text is None else request.text)
    new = read_source(request.candidate) if request.rewrite is None else request.rewrite
    new = joined.again(old, new, lambda name: _beside(request, name))
    before, after = (
        parse_module(Document(str(request.original), old)),
        parse_module(Document(str(request.original), new)),
    )
    opened = device or open_device(request.device, untrusted=request.untrusted)
    try:
        workload = find_or_make(
            request.original,
            before,
            request.kernel or _changed(before, after),
            build,
            opened.info.kind,
            **run_of(request, on_event, cancelled),
        )
        build = find_build(request.original)  # the run may have recorded it
        kernel = before.kernel(workload.kernel)
        candidate = Candidate(
            kernel.id,
            old,
            new,
            minimal(old, new),
            request.origin,
            "reassociated",
            LaunchMap(),
            id=text_id(new),
            reason=request.reason,
        )
        if request.untrusted:
            case = Case(opened, build, workload, old, candidate, module=before, options=request.options)
            candidate = replace(candidate, launch=launches_said(case))
        elif _outside_kernels(before) != _outside_kernels(after):
            case = Case(
                opened,
                build,
                workload,
                old,
                replace(candidate, launch=LaunchMap(seen=True)),  # its shapes are yet to be seen
                module=before,
                options=replace(request.options, program_timeout_s=request.timeout_s),
                cancelled=cancelled,
            )
            candidate = replace(candidate, launch=_launches(after, case, request, on_event))
        verdict = judge.judge(
            opened, build, workload, old, candidate, options=request.options, on_event=on_event, cancelled=cancelled
        )
        return Verification(verdict, candidate, unified_diff(old, new, joined.shown(request.original, old)))
    finally:
        if device is None:
            opened.close()


def _beside(request: VerifyRequest, name: str) -> str:
    """Another file of the candidate, which launches a header's kernel: where it lies to the candidate as the original's
    does to the original, else the original's own."""
    own = joined.path_of(request.candidate, name)
    return read_source(own if own.is_file() else joined.path_of(request.original, name))


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
    after: Module, case: Case, request: VerifyRequest, on_event: Callable[[Mapping[str, Any]], None] | None
) -> LaunchMap:
    """How the candidate launches the kernel where the original launched it as captured. Raises NoInputs when its
    program cannot tell."""
    if EditPolicy().check(case).status == "fail":
        return LaunchMap()  # G0 rejects it in its own words, and nothing of it is run
    try:
        case.device.compile(case.build, after.document.text)
    except CompileError:
        return LaunchMap(seen=True)  # G1 rejects it with the compiler's words
    name = case.kernel.name
    if request.args or not _by_command(case):
        if not after.has_main:
            raise NoInputs(
                f"{request.candidate.name} launches {name} differently and has no main to run, so its launch shapes "
                "are unknown: put the new launch into a file with a main, or keep the launch as it is"
            )
        launched = _own_shapes(case, request, on_event)
    else:
        launched = _shapes_in_project(case, on_event)
    return launch_map.fit(_paired(case, request, launched))


def _paired(case: Case, request: VerifyRequest, launched: Sequence[_Launched]) -> list[tuple[Shape, Shape]]:
    """The original's shapes with the candidate's. Both programs make the same launches in the same order, but not the
    same ones are recorded of both: a recording prefers launches of other shapes, and may have been ended early. So they
    are paired by their place in the program; several processes that count anew are taken in order. Raises NoInputs
    where a shape of the original has no partner."""
    ours, name = case.workload.launches, case.kernel.name
    if case.workload.origin != "captured":  # nobody counted them
        shapes = [shape for _, shape in launched]
        pairs = list(zip(ours, shapes, strict=False))
    else:
        places: dict[int, list[Shape]] = {}
        for seq, shape in launched:
            places.setdefault(seq, []).append(shape)
        pairs = [(launch, places[launch.seq].pop(0)) for launch in ours if places.get(launch.seq)]
    told = {(launch.mangled, Shape.of(launch)) for launch, _ in pairs}
    if any((launch.mangled, Shape.of(launch)) not in told for launch in ours):
        raise NoInputs(
            f"the program of {request.candidate.name} launched {name} {len(launched)} times, the original's "
            f"{len(ours)} times: their launches cannot be paired"
            if len(launched) < len(ours)
            else f"the program of {request.candidate.name} launched {name} at other places among its launches than the "
            "original: their launches cannot be paired"
        )
    return [(Shape.of(launch), shape) for launch, shape in pairs]


def _by_command(case: Case) -> bool:
    """Whether the inputs were captured by a command that can be run in a copy of the project (`make run`, or a program
    whose build was recorded). Else it is the program itself, and what follows its name are its arguments."""
    workload = case.workload
    if workload.origin != "captured" or not workload.command:
        return False
    try:
        with Program(case) as program:
            itself = is_executable(program.cwd / program.command[0]) and not program.recorded
            return not (program.alone or itself)
    except WorkloadError:  # a capture that was moved: its folder is not a project
        return False


def _shapes_in_project(case: Case, on_event: Callable[[Mapping[str, Any]], None] | None) -> list[_Launched]:
    """The launches of the person's program with the candidate in it, built and run by the recorded command in a
    copy of the project."""
    command, name = " ".join(case.workload.command), case.kernel.name
    if on_event is not None:
        on_event({"type": "note", "text": f"the launches of {name} changed: running `{command}` in a copy to see them"})
    with Program(case) as program:
        limit, stop = case.options.program_timeout_s, case.workload.ended
        ran = program.run("candidate", case.candidate.text, limit, stop=stop)
    if ran.timed_out:
        raise NoInputs(
            f"`{command}` with the candidate did not end within {case.options.program_timeout_s:g} s, so how it "
            f"launches {name} is unknown"
        )
    return [(launch.seq, Shape.of(launch)) for launch in ran.launches]


def _own_shapes(
    case: Case, request: VerifyRequest, on_event: Callable[[Mapping[str, Any]], None] | None
) -> list[_Launched]:
    """The launches of the candidate's program, run with the arguments the original was captured with. Its bundles
    go to a temporary folder: they are not the inputs of anything."""
    workload, kernel = case.workload, case.kernel
    args = request.args or (workload.command[1:] if workload.origin == "captured" else ())
    say = on_event or (lambda event: None)
    launched: list[_Launched] = []

    def follow(event: Mapping[str, Any]) -> None:
        if event.get("type") == "launch" and own.kernel_of(case.module, str(event["mangled"])) == kernel.id:
            grid, block = event["grid"], event["block"]
            shape = Shape((grid[0], grid[1], grid[2]), (block[0], block[1], block[2]), int(event["shared"]))
            launched.append((int(event["seq"]), shape))
        say(event)

    with tempfile.TemporaryDirectory(prefix="cuda-agent-") as folder:
        options = CaptureOptions(
            device="emulator" if case.emulated else "cuda",
            kernel=rf"\b{re.escape(kernel.name)}\b",
            first=len(workload.launches),
            stop=None if workload.origin != "captured" else workload.ended,
            timeout=request.timeout_s,
            into=Path(folder),
        )
        try:
            build_and_run(request.candidate, list(args), case.build, options, follow, case.cancelled)
        except NothingCaptured as error:
            if len(launched) < len(workload.launches):  # else they were seen and refused: the judge says so
                raise NoInputs(
                    f"{request.candidate.name} launches {kernel.name} differently and its own program showed no such "
                    f"launch: {error}"
                ) from error
    return launched
