"""The nouns of the house: frozen dataclasses that every room reads and none changes.

Text positions are UTF-8 byte offsets into the file (`Span`); only `lsp/` turns them into line and character.
Sizes are bytes, times microseconds, addresses integers, unless a name says otherwise.
Data goes one way: text → Kernel/LaunchSite → Facts → Workload → Candidate → Run → Verdict → Proposal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# ---------------------------------------------------------------- text


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Half-open range of UTF-8 byte offsets in one file."""

    start: int
    end: int

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end

    def holds(self, other: Span) -> bool:
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace `span` of the old text by `text`."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Param:
    """One kernel parameter as spelled: `const float *__restrict__ x` has element `float`."""

    name: str
    type: str  # whole type as spelled, without the name
    element: str  # type without const/volatile/restrict/pointer/reference
    pointer: int  # levels of indirection: 0 scalar, 1 T*, 2 T**
    const: bool  # the pointee is const (or the scalar, when pointer == 0)
    restrict: bool
    span: Span
    name_span: Span


@dataclass(frozen=True, slots=True)
class SharedArray:
    name: str
    element: str
    extents: tuple[str, ...]  # texts; empty for `extern __shared__ T x[]`
    dynamic: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop in a kernel. `variable`, `start`, `bound`, `step` are texts, None when it is not a counted `for`."""

    kind: Literal["for", "while", "do"]
    span: Span
    body: Span
    depth: int  # 0 = directly in the kernel's body
    variable: str | None = None
    start: str | None = None
    bound: str | None = None
    step: str | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """`if (i < n) {…}` around work ("body") or `if (i >= n) return;` ("return")."""

    kind: Literal["body", "return"]
    condition: str
    span: Span
    condition_span: Span


@dataclass(frozen=True, slots=True)
class Kernel:
    """A `__global__` function definition."""

    name: str
    qualified_name: str  # with namespaces: "ns::k"
    template_params: tuple[str, ...]  # texts: "typename T", "int N"
    params: tuple[Param, ...]
    launch_bounds: tuple[str, ...] | None
    shared: tuple[SharedArray, ...]
    loops: tuple[Loop, ...]
    guards: tuple[Guard, ...]
    span: Span  # whole definition with template header and attributes
    name_span: Span
    params_span: Span  # inside the parentheses
    body: Span  # with its braces
    extern_c: bool
    has_error: bool  # the syntax tree has an ERROR node inside: no rule may rewrite it

    @property
    def id(self) -> str:
        return self.qualified_name


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """`name<template_args><<<grid, block, shared, stream>>>(args)`; every text as spelled."""

    kernel: str  # name as spelled, without template arguments
    template_args: tuple[str, ...]
    grid: str
    block: str
    shared: str | None
    stream: str | None
    args: tuple[str, ...]
    span: Span  # from the name to the closing parenthesis
    config_span: Span  # between <<< and >>>
    grid_span: Span
    block_span: Span
    shared_span: Span | None
    function: str | None  # the host function around it


# ---------------------------------------------------------------- compiler


@dataclass(frozen=True, slots=True)
class Build:
    """How one file is compiled. `flags` are nvcc's, without input, output and phase (-c, -o, -cubin …)."""

    file: Path
    directory: Path
    compiler: str
    flags: tuple[str, ...]
    origin: Literal["compile_commands", "recorded", "default"]
    through: Path | None = None  # of a header: the source that includes it and is compiled with it (`toolchain.header`)


@dataclass(frozen=True, slots=True)
class LineFacts:
    line: int  # 1-based
    instructions: int
    loads: int
    stores: int
    local: int  # LDL/STL: spills and stack


@dataclass(frozen=True, slots=True)
class Facts:
    """What the compiler made of one kernel instantiation."""

    mangled: str
    demangled: str
    arch: str  # "sm_90"
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_stores: int  # bytes
    spill_loads: int  # bytes
    constant_bytes: int
    sass_hash: str  # of the instructions without addresses and names
    instructions: int
    lines: tuple[LineFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled device module: a cubin for `cuda`, a shared object for `emulator`."""

    kind: Literal["cubin", "emulator"]
    data: bytes
    sha256: str
    kernels: Mapping[str, Facts]  # by mangled name; Facts are zeroed on the emulator apart from names
    path: Literal["nvcc", "nvrtc", "g++"]
    flags: tuple[str, ...] = ()
    compiler: str = ""  # version line, for the record


# ---------------------------------------------------------------- inputs

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Pointer:
    """The 8 bytes at `at` inside an argument point `offset` bytes into buffer number `buffer`."""

    at: int
    buffer: int
    offset: int


@dataclass(frozen=True, slots=True)
class Arg:
    """One kernel argument: `data` are its raw bytes as captured (pointers in them are relocated by `pointers`)."""

    offset: int  # in the parameter block
    data: bytes
    pointers: tuple[Pointer, ...] = ()


@dataclass(frozen=True, slots=True)
class Buffer:
    """One allocation that a launch can reach. `before`/`after` name blobs of the bundle (sha256 of the raw bytes,
    possibly several chunks of 64 KiB·k in order); `after` is None when the launch was not allowed to finish."""

    address: int
    size: int
    before: tuple[str, ...]
    after: tuple[str, ...] | None
    written: tuple[tuple[int, int], ...] | None = None  # byte ranges known to be written (exact on the emulator)


@dataclass(frozen=True, slots=True)
class Launch:
    mangled: str
    demangled: str
    grid: Dim3
    block: Dim3
    shared: int
    args: tuple[Arg, ...]
    buffers: tuple[Buffer, ...]
    seq: int = 0  # which launch of the program this was
    globals: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (mangled __constant__/__device__ symbol, blob chunks)

    @property
    def held_bytes(self) -> int:
        """Of all its buffers."""
        return sum(buffer.size for buffer in self.buffers)


@dataclass(frozen=True, slots=True)
class Launched:
    """The shape of one launch or of several: grid and block, dynamic shared bytes."""

    mangled: str
    grid: Dim3
    block: Dim3
    shared: int


@dataclass(frozen=True, slots=True)
class Workload:
    """The launches of one kernel that a verdict is about."""

    kernel: str  # qualified name in the source
    origin: Literal["captured", "spec", "synthetic"]
    launches: tuple[Launch, ...]
    root: Path  # the bundle's folder: launch.json, blobs in `blobs`
    blobs: Path
    device: str  # where it was captured: "NVIDIA H200", "emulator"
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    tolerance: Mapping[str, float] = field(default_factory=dict)  # from kernels.toml, by parameter name
    seen: int = 0  # launches of the kernel in the captured run, the recorded ones among them; 0: not known
    varied: frozenset[int] | None = None  # positions of parameters that differed between launches seen; None: not known
    shapes: frozenset[Launched] | None = None  # of the launches seen (of at most 1024 shapes); None: not known
    ended: bool = False  # the program did not come to its own end: it may have launches that were not seen


# ---------------------------------------------------------------- candidates

NumericClass = Literal["bit-exact", "reassociated", "tolerance", "fast-math"]


@dataclass(frozen=True, slots=True)
class LaunchMap:
    """How a captured launch shape becomes the candidate's: integer expressions over gx gy gz bx by bz shared
    (C operators + - * / % and parentheses, max(a,b), min(a,b), ceil_div(a,b)). The edit of the launch sites must say
    the same (G0 compares them), unless the map was `seen`: fitted to what the candidate's own program launched."""

    grid: tuple[str, str, str] = ("gx", "gy", "gz")
    block: tuple[str, str, str] = ("bx", "by", "bz")
    shared: str = "shared"
    seen: bool = False


@dataclass(frozen=True, slots=True)
class Assumption:
    """What must be true for an edit to be legal, and how it is known."""

    text: str  # one sentence a CUDA programmer understands
    known: Literal["proved", "captured", "assumed"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One rewrite of a file: `text` is the whole new file, `edits` lead there from the original."""

    kernel: str
    original: str
    text: str
    edits: tuple[Edit, ...]
    origin: str  # "rule:row-per-warp(lanes=32)+restrict", "model:NAME", "person"
    numeric: NumericClass = "bit-exact"
    launch: LaunchMap = LaunchMap()
    assumptions: tuple[Assumption, ...] = ()
    parent: str | None = None  # id of the candidate it was made from
    id: str = ""  # sha256 of the text, first 12 digits
    reason: str = ""  # one sentence of who made it: why this should be faster

    @property
    def by_model(self) -> bool:
        """A language model wrote it, alone or with rules: compiled only in the sandbox."""
        return self.origin.startswith("model")


# ---------------------------------------------------------------- judgement

GateStatus = Literal["pass", "fail", "not-run"]


@dataclass(frozen=True, slots=True)
class GateResult:
    id: str  # "G3"
    name: str  # "outputs"
    status: GateStatus
    detail: str  # one sentence a CUDA programmer understands; names the first wrong element on failure
    seconds: float = 0.0
    data: Mapping[str, Any] = field(default_factory=dict)  # numbers behind the sentence, JSON only
    undecided: bool = False  # a "not-run" that must stop the verdict: inputs too weak, kernel cannot run here


@dataclass(frozen=True, slots=True)
class Timing:
    ratio: float  # original time / candidate time, > 1 is faster
    ci: tuple[float, float]  # 95 % bootstrap interval of the ratio
    original_us: float
    candidate_us: float
    device: str
    label: Literal["FASTER", "SLOWER", "SAME", "AMBIGUOUS"]
    noise_floor: float = 0.0  # relative, from A/A
    warm_ratio: float | None = None
    cycles_ratio: float | None = None
    samples: int = 0
    per_launch: tuple[tuple[str, float, float, float], ...] = ()  # (shape, ratio, lo, hi)
    cycles_ci: tuple[float, float] | None = None  # 95 % bootstrap interval of the ratio in SM cycles


EvidenceLevel = Literal["none", "emulated", "replayed", "in-program"]
VerdictStatus = Literal["verified", "rejected", "undecided"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`verified` needs every built gate to pass; `faster` additionally needs FASTER timing on a GPU.
    On the emulator a verified candidate is correct there, and nothing is said about time."""

    status: VerdictStatus
    level: EvidenceLevel
    gates: tuple[GateResult, ...]
    inputs: str  # "captured: 2 launches of NVIDIA H200", "none"
    numeric: NumericClass | None = None
    timing: Timing | None = None
    traffic: Mapping[str, float] = field(default_factory=dict)  # predicted sectors before/after, emulator
    record: Mapping[str, Any] = field(default_factory=dict)  # G14: hashes, versions, flags, seeds

    @property
    def faster(self) -> bool:
        return self.status == "verified" and self.timing is not None and self.timing.label == "FASTER"


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the person sees: one candidate for one kernel, valid while the kernel's source hash stands."""

    id: str
    uri: str
    kernel: str
    source_hash: str
    candidate: Candidate
    verdict: Verdict
    diff: str  # unified
    state: Literal["fresh", "stale", "accepted", "rejected"] = "fresh"
