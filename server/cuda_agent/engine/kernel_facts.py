"""Compiler facts of one text as the server shows them: a title, sentences and findings for each kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda_agent.engine.messages import FactsOf
from cuda_agent.errors import CompileError
from cuda_agent.model import Binary, Facts, Kernel
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import Module, module
from cuda_agent.toolchain import compile as compiler
from cuda_agent.toolchain import names
from cuda_agent.toolchain.build import arch_of, find_build

DEFAULT_ARCH = "sm_90"


def file_facts(ask: FactsOf) -> dict[str, Any]:
    """`{version, arch, compiler, kernels: {id: {title, sentences, findings, arch}}, problem}`. ToolMissing, SandboxError; a
    text that does not compile is no error while somebody types: `problem` says what the compiler said."""
    build = find_build(Path(ask.path))
    arch = ask.arch if ask.arch != "auto" else arch_of(build) or DEFAULT_ARCH
    try:
        binary = compiler.compile(build, ask.text, arch)
    except CompileError as refused:
        return {"version": ask.version, "arch": arch, "kernels": {}, "problem": _first_error(refused)}
    parsed = module(Document(ask.path, ask.text))
    kernels = {
        kernel.id: described(parsed, kernel, instances, arch)
        for kernel in parsed.kernels
        if (instances := _instances(kernel, binary))
    }
    return {"version": ask.version, "arch": arch, "compiler": binary.compiler, "kernels": kernels, "problem": None}


def _first_error(refused: CompileError) -> str:
    for line in refused.diagnostics.splitlines():
        if "error" in line:
            return line.strip()
    return str(refused)


def _instances(kernel: Kernel, binary: Binary) -> list[Facts]:
    """A template has one Facts an instantiation; a kernel nothing instantiates has none."""
    return [f for f in binary.kernels.values() if names.kernel_name(f.mangled) == kernel.qualified_name]


def described(parsed: Module, kernel: Kernel, instances: Sequence[Facts], arch: str) -> Mapping[str, Any]:
    worst = max(instances, key=lambda f: (f.spill_stores + f.spill_loads, f.registers))
    sentences, findings = sentences_of(parsed, kernel, worst, arch)
    if len(instances) > 1:
        sentences.append(f"{len(instances)} instantiations; these numbers are of {worst.demangled}")
    return {"title": title(worst), "sentences": sentences, "findings": findings, "arch": arch}


def title(facts: Facts) -> str:
    """For the lens: what people look for first."""
    spills = facts.spill_stores + facts.spill_loads
    parts = [f"{facts.registers} registers", f"{spills} B spills" if spills else "no spills"]
    if facts.shared_bytes:
        parts.append(f"{facts.shared_bytes} B shared")
    return " · ".join(parts)


def sentences_of(parsed: Module, kernel: Kernel, facts: Facts, arch: str) -> tuple[list[str], list[dict[str, Any]]]:
    """(sentences, findings by category)."""
    sentences = [f"{facts.registers} registers a thread, {facts.instructions} instructions"]
    findings: list[dict[str, Any]] = []
    spills = facts.spill_stores + facts.spill_loads
    if spills:
        text = f"{facts.spill_stores} bytes of spill stores, {facts.spill_loads} bytes of spill loads a thread"
        sentences.append(text)
        findings.append({"category": "spills", "message": text})
    if facts.shared_bytes:
        sentences.append(f"{facts.shared_bytes} bytes of static shared memory a block")
    return sentences, findings
