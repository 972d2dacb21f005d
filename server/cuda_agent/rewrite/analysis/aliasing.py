"""Which pointer parameters a kernel reads and writes, and which of them overlapped in the captured launches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from cuda_agent.model import Kernel, Workload
from cuda_agent.rewrite.analysis import access, affine, names
from cuda_agent.rewrite.analysis.names import HasKernel
from cuda_agent.source.tree import masked, walk


@dataclass(frozen=True)
class Effects:
    """Arrays (parameters, shared and local arrays) that are read and written. `passed` went to a function or a pointer
    that is not followed: read and written, to be safe. `unknown`: something is stored nobody knows where."""

    read: frozenset[str]
    written: frozenset[str]
    passed: frozenset[str]
    unknown: bool


def effects(where: HasKernel) -> Effects:
    return _effects(names.of(where))


@lru_cache(maxsize=128)
def _effects(scope: names.Names) -> Effects:
    accesses = access.of(scope)
    pointers = {p.name for p in scope.kernel.params if p.pointer} | {v.symbol for v in scope.variables if v.is_array}
    passed = set()
    lost = False
    for node in accesses.unknown:
        place = affine.pointer(scope, node)
        here = {place.base} if place is not None else set()
        if place is None:
            for n in walk(node, "identifier"):
                found = scope.resolve(masked(n), n.start_byte)
                if found is not None:
                    here |= ({found.symbol} | affine.depends(scope, found)) & pointers
        lost = lost or not here
        passed |= here
    constant = {p.name for p in scope.kernel.params if p.const}
    read = frozenset(a.array for a in accesses if a.kind != "store") | passed
    written = frozenset(a.array for a in accesses if a.kind != "load") | (passed - constant)
    return Effects(frozenset(read), frozenset(written), frozenset(passed), lost)


def targets(kernel: Kernel, workload: Workload | None) -> list[dict[str, tuple[int, int]]]:
    """Per captured launch: pointer parameter → (buffer number, offset in it)."""
    found = []
    for one in workload.launches if workload else ():
        pairs = zip(kernel.params, one.args, strict=False)
        found.append(
            {p.name: (a.pointers[0].buffer, a.pointers[0].offset) for p, a in pairs if p.pointer and a.pointers}
        )
    return found


def overlapping(kernel: Kernel, workload: Workload | None) -> set[frozenset[str]]:
    """Pairs of parameters that pointed into the same allocation in some captured launch."""
    return {
        frozenset((a, b))
        for launch in targets(kernel, workload)
        for a, b in combinations(launch, 2)
        if launch[a][0] == launch[b][0]
    }


def conflicts(where: HasKernel, workload: Workload | None, reads: set[str], writes: set[str]) -> list[tuple[str, str]]:
    """(read, written) pairs of different parameters that overlapped in the capture."""
    pairs = overlapping(where.kernel, workload)
    return [(r, w) for r in sorted(reads) for w in sorted(writes) if r != w and frozenset((r, w)) in pairs]
