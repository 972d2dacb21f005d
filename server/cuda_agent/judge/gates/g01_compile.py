"""G1, compile: the same compiler with the same flags takes both texts, and the result fits the device."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from cuda_agent.errors import CompileError, WorkloadError
from cuda_agent.judge import record
from cuda_agent.judge.case import Case
from cuda_agent.judge.gate import Needs, failed, not_run, passed
from cuda_agent.model import Facts, GateResult, LaunchMap
from cuda_agent.source import joined
from cuda_agent.source.symbols import Module
from cuda_agent.toolchain.build import find_build
from cuda_agent.toolchain.options import HEADERS
from cuda_agent.workload.launch_map import Shape, unrecorded

WARP, REGISTER_UNIT = 32, 256  # registers are given to a warp in units of 256
GRID_LIMIT = 65535  # blocks along y and along z


class Compile:
    """Original and candidate are compiled for the device by one compiler with one list of flags, those of the
    person's own build, so neither is favoured; every other source in which a launch is edited is compiled with its own.
    A launch must then be possible: registers times threads, threads a block (and within a promised
    `__launch_bounds__`) and shared bytes within the device's limits, for every launch shape; of launches that the
    program made and that were not recorded only the shape is looked at. (That a slice of the file
    has the same SASS as the whole file is checked by the toolchain before it uses a slice at all.) On the emulator
    there are no registers to count; its limits are those of the GPU it stands for."""

    id: ClassVar[str] = "G1"
    name: ClassVar[str] = "compile"
    cost: ClassVar[float] = 2.0
    needs: ClassVar[Needs] = "binary"

    def check(self, case: Case) -> GateResult:
        try:
            original = case.original_binary
        except CompileError as error:
            return not_run(self, f"the original does not compile: {_first(error)}", undecided=True)
        try:
            candidate = case.candidate_binary
        except CompileError as error:
            return failed(self, f"the candidate does not compile: {_first(error)}", diagnostics=error.diagnostics)
        try:
            uncompiled = _other_sources(case)
        except CompileError as error:
            return failed(self, f"an edited launch does not compile: {_first(error)}", diagnostics=error.diagnostics)
        if original.path != candidate.path or original.flags != candidate.flags:
            return not_run(
                self,
                f"original and candidate were compiled differently ({original.path} {' '.join(original.flags)} against "
                f"{candidate.path} {' '.join(candidate.flags)})",
                undecided=True,
            )
        facts = []
        for index, launch in enumerate(case.launches):
            before = case.kernel_in(original, launch)
            try:
                after = candidate.kernels[case.kernel_in(candidate, launch)]
            except WorkloadError as error:
                return failed(self, f"in the candidate {error}")
            if refusal := misfit(case, index, after):
                return failed(self, refusal)
            facts.append((original.kernels[before], after))
        if refusal := _elsewhere(case):
            return failed(self, refusal)
        detail = _detail(case, facts)
        if uncompiled:
            detail += f"; {', '.join(uncompiled)}: launches edited and not compiled, how it is built is not known"
        return passed(self, detail, path=candidate.path, registers=[[a.registers, b.registers] for a, b in facts])


def _other_sources(case: Case) -> list[str]:
    """Compiles the sources, besides the one that the header is compiled with, in which the candidate edits launches;
    returns the names of those that no compilation database or capture tells how to build. Raises CompileError."""
    unknown = []
    for was, now in joined.pairs(case.original, case.candidate.text):
        if was.name is None or was.text == now.text:
            continue
        path = joined.path_of(case.build.file, was.name)
        if path.suffix in HEADERS or path == case.build.through:
            continue
        build = find_build(path)
        if build.origin == "default":
            unknown.append(was.name)
        else:
            here = replace(build, file=case.build.file, through=path)
            case.device.compile(here, case.candidate.text, untrusted=case.candidate.by_model)
    return unknown


def misfit(case: Case, index: int, facts: Facts) -> str | None:
    """Why the launch would be refused by the device; None when it fits."""
    info, shape = case.device.info, case.shape(index)
    if refusal := _shape_refused(case, case.candidate_module, shape):
        return refusal
    warps = -(-shape.threads // WARP)
    registers = warps * (-(-facts.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT)
    if registers > info.registers_per_block:
        return (
            f"the candidate needs {facts.registers} registers × {shape.threads} threads = {registers:,} "
            "registers a block, "
            f"the device has {info.registers_per_block:,}"
        )
    shared = facts.shared_bytes + shape.shared
    # More than the plain limit needs cudaFuncSetAttribute in the program: allowed only where the original has it
    # already.
    opted_in = case.launches[index].shared > info.shared_per_block
    limit = info.shared_per_block_optin if opted_in else info.shared_per_block
    if shared > limit:
        return f"the candidate needs {shared:,} bytes of shared memory a block, the device gives {limit:,}"
    return None


def _elsewhere(case: Case) -> str | None:
    """Why a launch that the program made and that was not recorded would be refused; None when all are possible."""
    was, now = (unrecorded(case.workload, mapping) for mapping in (LaunchMap(), case.candidate.launch))
    for old, new in zip(was, now, strict=True):
        before, after = map(Shape.of, (old, new))
        possible = _shape_refused(case, case.module, before) is None
        if possible and (refusal := _shape_refused(case, case.candidate_module, after)):
            return f"the program also launches {before.text()}, which was not recorded; there {refusal}"
    return None


def _shape_refused(case: Case, module: Module, shape: Shape) -> str | None:
    """Why no launch of the kernel of this text can have the shape, whatever it is compiled to."""
    info = case.device.info
    if min(*shape.grid, *shape.block) < 1 or shape.threads > info.threads_per_block:
        return (
            f"the candidate launches {shape.text()}: {shape.threads} threads a block, the device takes "
            f"{info.threads_per_block}"
        )
    bounds = module.kernel(case.workload.kernel).launch_bounds or ()
    if bounds and bounds[0].strip().isdigit() and shape.threads > int(bounds[0]):
        return (
            f"the candidate promises at most {bounds[0].strip()} threads a block (__launch_bounds__) and is launched "
            f"with {shape.threads}"
        )
    if max(shape.grid[1:]) > GRID_LIMIT:
        return f"the candidate launches {shape.text()}: a grid has at most {GRID_LIMIT} blocks in y and in z"
    return None


def _detail(case: Case, facts: list[tuple[Facts, Facts]]) -> str:
    compiler = case.candidate_binary.compiler or case.candidate_binary.path
    flags = " ".join(record.flags(case.build.flags, record.project_of(case.build.file.absolute()))) or "no flags"
    if case.emulated:
        return f"both compile for the emulator ({compiler}; {flags})"
    before, after = facts[0]
    return (
        f"both compile with {compiler} and {flags}; registers {before.registers} → {after.registers}, "
        f"spills {before.spill_stores + before.spill_loads} → {after.spill_stores + after.spill_loads} bytes"
    )


def _first(error: CompileError) -> str:
    lines = [line for line in (error.diagnostics or str(error)).splitlines() if "error" in line] or str(
        error
    ).splitlines()
    return lines[0].strip() if lines else "no message"
