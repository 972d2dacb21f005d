"""Compiler facts of one text as the server shows them: a title, sentences and findings for each kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cuda_agent.device import target_arch
from cuda_agent.device.info import gpu
from cuda_agent.engine.messages import FactsOf
from cuda_agent.errors import CompileError, UsageError, WorkloadError
from cuda_agent.hints import launch, limits, sentences
from cuda_agent.hints.occupancy import Limits
from cuda_agent.hints.occupancy import limits as limits_of
from cuda_agent.judge import limiter
from cuda_agent.model import Binary, Facts, Kernel, Workload
from cuda_agent.rewrite import predict
from cuda_agent.rewrite.rule import Context
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import Module, module
from cuda_agent.toolchain import compile as compiler
from cuda_agent.toolchain.build import find_build
from cuda_agent.workload import own


def file_facts(ask: FactsOf) -> dict[str, Any]:
    """`{version, arch, compiler, kernels: {id: {title, sentences, findings, arch}}, problem}`. ToolMissing,
    SandboxError; a text that does not compile is no error while somebody types: `problem` says what the compiler
    said."""
    build = find_build(Path(ask.path))
    arch = target_arch(build)
    try:
        binary = compiler.compile(build, ask.text, arch)
    except CompileError as refused:
        return {"version": ask.version, "arch": arch, "kernels": {}, "problem": _first_error(refused)}
    parsed = module(Document(ask.path, ask.text))
    kernels = {
        kernel.id: described(parsed, kernel, instances, arch, ask.path)
        for kernel in parsed.kernels
        if (instances := _instances(parsed, kernel, binary))
    }
    return {"version": ask.version, "arch": arch, "compiler": binary.compiler, "kernels": kernels, "problem": None}


def _first_error(refused: CompileError) -> str:
    for line in refused.diagnostics.splitlines():
        if "error" in line:
            return line.strip()
    return str(refused)


def _instances(parsed: Module, kernel: Kernel, binary: Binary) -> list[Facts]:
    """A template has one Facts an instantiation of its own text; a kernel nothing instantiates has none."""
    return [f for f in binary.kernels.values() if own.kernel_of(parsed, f.mangled) == kernel.id]


def described(parsed: Module, kernel: Kernel, instances: Sequence[Facts], arch: str, path: str) -> Mapping[str, Any]:
    """Of several instantiations the one that spills most, then the one with most registers."""
    facts = max(instances, key=lambda f: (f.spill_stores + f.spill_loads, f.registers))
    before = _before(path, kernel, parsed.kernel_hash(kernel), facts)
    found = sentences.of_facts(facts, before)
    try:
        found += _of_launches(parsed, kernel, facts, limits_of(arch), Path(path))
    except UsageError as unknown:  # a newer architecture than our table: its registers are still facts
        found.append(sentences.Sentence("occupancy", str(unknown)))
    found += _of_capture(facts, kernel, parsed, arch, Path(path))
    texts = [sentence.text for sentence in found if sentence.line is None]
    if len(instances) > 1:
        texts.append(f"{len(instances)} instantiations; these numbers are of `{facts.demangled}`.")
    findings = [{"category": one.category, "message": one.text, "line": one.line} for one in found]
    return {"title": sentences.short(facts), "sentences": texts, "findings": findings, "arch": arch}


# This process lives as long as the engine: what a kernel was before its last change is kept here.
_history: dict[tuple[str, str], tuple[str, Facts, Facts | None]] = {}


def _before(path: str, kernel: Kernel, hash: str, facts: Facts) -> Facts | None:
    """The facts of this kernel's text before the present one; None for the first text seen."""
    known = _history.get((path, kernel.id))
    if known is None:
        before = None
    elif known[0] == hash:
        before = known[2]
    else:
        before = known[1]
    _history[(path, kernel.id)] = (hash, facts, before)
    return before


def _of_launches(parsed: Module, kernel: Kernel, facts: Facts, sm: Limits, path: Path) -> list[sentences.Sentence]:
    """Occupancy and feasibility for the block sizes that are known: literal, captured, or the launch bounds."""
    bounds = launch.dims(kernel.launch_bounds[0]) if kernel.launch_bounds else None
    most = bounds[0] if bounds else None
    found: list[sentences.Sentence] = []
    shapes: dict[tuple[int, int], None] = {}  # (threads, dynamic shared bytes), in order
    for site in parsed.launches_of(kernel):
        block, dynamic = launch.dims(site.block), launch.dims(site.shared) if site.shared else (0, 1, 1)
        if block is not None and dynamic is not None:
            problems = launch.check(facts, sm, block, dynamic_shared=dynamic[0], max_threads=most)
            line = parsed.line(site.span.start)
            found += [replace(sentence, line=line) for sentence in sentences.of_launch(problems)]
            shapes[block[0] * block[1] * block[2], dynamic[0]] = None
    workload = _captured(parsed, kernel, path)
    for item in workload.launches if workload is not None else ():
        shapes[item.block[0] * item.block[1] * item.block[2], item.shared] = None
    if not shapes and most:
        shapes[most, 0] = None
    for threads, shared in list(shapes)[:4]:
        found += sentences.of_occupancy(facts, sm, threads, shared)
    if not shapes:
        text = "The block size is not known from the text: capture inputs to see the occupancy."
        found.append(sentences.Sentence("occupancy", text))
    return found


def _of_capture(facts: Facts, kernel: Kernel, parsed: Module, arch: str, path: Path) -> list[sentences.Sentence]:
    """What limits the kernel on its captured inputs: as a search found it, else as far as their sizes tell."""
    workload = _captured(parsed, kernel, path)
    if workload is None or not workload.launches:
        return []
    found = limiter.remembered(parsed.kernel_hash(kernel), workload)
    on = gpu(workload.device, arch)
    machine = limiter.machine(on) if on is not None else None
    if found is None and machine is not None:
        launched = max(workload.launches, key=lambda launch: sum(limits.moved(launch)))
        read, written = limits.moved(launched)
        counts = predict.counts(Context.make(path, parsed.document.text, kernel.id, workload))
        work = limits.Work(launched.grid, launched.block, launched.shared, facts, read, written, counts=counts)
        found = limits.limiter(work, machine)
    return [sentences.Sentence("occupancy", limits.sentence(found))] if found is not None else []


def _captured(parsed: Module, kernel: Kernel, path: Path) -> Workload | None:
    try:
        return own.find(path, parsed, kernel.id)
    except WorkloadError:  # a broken capture is reported by the job that needs it
        return None
