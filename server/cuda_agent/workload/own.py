"""Which launches and compiled functions are made of a kernel's own text: those of an explicit specialisation
(`k<float>`) are recorded under its template's name, and what is rewritten in one of the two says nothing about the
other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cuda_agent.errors import WorkloadError
from cuda_agent.model import Workload
from cuda_agent.source import spelling
from cuda_agent.source.symbols import Module
from cuda_agent.toolchain import names
from cuda_agent.workload import bundle


def own(workload: Workload, module: Module, kernel: str) -> Workload | None:
    """The workload of `kernel` (its id), with the launches of its own text; None when there is none."""
    if not is_specialised(module, kernel):
        return workload
    launches = tuple(launch for launch in workload.launches if runs(module, kernel, launch.mangled))
    shapes = workload.shapes
    if shapes is not None:
        shapes = frozenset(one for one in shapes if runs(module, kernel, one.mangled))
    return replace(workload, kernel=kernel, launches=launches, shapes=shapes) if launches else None


def find(source_file: Path, module: Module, kernel: str) -> Workload | None:
    """The newest capture that has launches of the kernel's own text: `bundle.find`, told apart. WorkloadError when it
    is broken."""
    workload = bundle.find(source_file, names.without_template(kernel))
    return own(workload, module, kernel) if workload is not None else None


def load(folder: Path, module: Module, kernel: str) -> Workload:
    """The kernel's own launches in a bundle, or in a folder of bundles. Raises WorkloadError as `bundle.load`, and
    where the kernel has none there."""
    template = names.without_template(kernel)
    workload = bundle.load(folder, None if (folder / "launch.json").is_file() else template)
    if not bundle.same_kernel(names.without_template(workload.kernel), template):
        raise WorkloadError(f"{folder} holds launches of {workload.kernel}, not of {kernel}.")
    mine = own(workload, module, kernel)
    if mine is None:
        raise WorkloadError(f"{folder} holds launches of {workload.kernel}, but none that ran the text of {kernel}.")
    return mine


def runs(module: Module, kernel: str, mangled: str) -> bool:
    """Whether the function of this name, which is called as the kernel or its template, was made of its own text."""
    given = _arguments(names.split(names.demangle(mangled))[0])
    special = [_arguments(one) for one in _specialisations(module, kernel)]
    meant = [one for one in special if given[: len(one)] == one]
    return _arguments(kernel) in meant if kernel != names.without_template(kernel) else not meant


def kernel_of(module: Module, mangled: str) -> str | None:
    """The id of the kernel whose text became the function of this name; None for one of another file."""
    name = names.kernel_name(mangled)
    for kernel in module.kernels:
        plain = names.without_template(kernel.id).replace("(anonymous namespace)::", "")
        if plain == name and runs(module, kernel.id, mangled):
            return kernel.id
    return None


def is_specialised(module: Module, kernel: str) -> bool:
    """Whether the file specialises the kernel's template: not all its instantiations have one text."""
    return bool(_specialisations(module, kernel))


def _specialisations(module: Module, kernel: str) -> list[str]:
    template = names.without_template(kernel)
    others = (one.id for one in module.kernels if one.id != names.without_template(one.id))
    return [one for one in others if bundle.same_kernel(names.without_template(one), template)]


def _arguments(name: str) -> tuple[str, ...]:
    """`k<__half, (int)3>` → `("__half", "3")`."""
    return spelling.arguments(name.removeprefix(names.without_template(name))[1:-1])
