"""One candidate under judgement: what the gates share, made when the first of them asks.

The case compiles both texts, picks the launches, names buffers, runs jobs and keeps their answers. What it raises is
never the candidate's fault: `WorkloadError` (the inputs cannot be replayed), `DeviceError`, `ToolchainError`,
`Cancelled`. What the candidate did (a crash, a refused launch, an endless loop) is in `Outcome.fault`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from cuda_agent.device import jobs
from cuda_agent.errors import Cancelled, DeviceError, NoInputs, WorkloadError
from cuda_agent.judge.edit_tokens import select
from cuda_agent.judge.options import JudgeOptions
from cuda_agent.model import Binary, Build, Candidate, Kernel, Launch, Timing, Workload
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import Module
from cuda_agent.source.symbols import module as parse
from cuda_agent.toolchain import names
from cuda_agent.workload import bundle, elements, launch_map
from cuda_agent.workload.elements import ElementType

if TYPE_CHECKING:
    from cuda_agent.device import Device
    from cuda_agent.judge.baseline import Baseline
    from cuda_agent.judge.hidden.plan import Plan
    from cuda_agent.judge.outcome import Outcome
    from cuda_agent.judge.timing import Times
    from cuda_agent.judge.tool_runs import Runs

ORIGINAL, CANDIDATE = "original", "candidate"  # module names in a job
Results = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Slot:
    """What is known of one buffer of a launch before anything runs."""

    name: str  # the parameter that reaches it, "buffer 3" when several or none do
    dtype: ElementType
    writable: bool  # some pointer to it has no const pointee, or its type is unknown


class Case:
    def __init__(
        self,
        device: Device,
        build: Build,
        workload: Workload,
        original: str,
        candidate: Candidate,
        *,
        module: Module | None = None,
        options: JudgeOptions | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.device, self.build, self.workload = device, build, workload
        self.original, self.candidate = original, candidate
        self.options = options or JudgeOptions()
        self.cancelled = cancelled
        self._module = module
        self._outcomes: dict[int, Outcome] = {}
        self._times: Times | None = None
        self._label: Literal["SAME", "AMBIGUOUS"] | None = None
        self.checkers: Runs | None = None  # what began under compute-sanitizer before G7 asked
        self.held: dict[str, bytes] = {}  # blobs that were made up and are in no bundle, by sha256
        self.ran: dict[str, set[str]] = {"verified": set(), "timed": set()}  # candidate binaries, for G14
        self.damage: list[list[str]] = []  # memory of the worker's own that was overwritten: the binaries that ran then

    # ------------------------------------------------------------ text

    @cached_property
    def module(self) -> Module:
        return self._module or parse(Document(str(self.build.file), self.original))

    @cached_property
    def candidate_module(self) -> Module:
        return parse(Document(str(self.build.file), self.candidate.text))

    @cached_property
    def kernel(self) -> Kernel:
        return self.module.kernel(self.workload.kernel)

    @cached_property
    def uses_atomics(self) -> bool:
        """Whether the original's device code does: then its float results may vary from run to run."""
        selection = select(self.module, self.workload.kernel)
        words = {token.text for token in selection.device_tokens if token.kind == "word"} if selection else set()
        return any(word.startswith(("atomic", "fetch_")) for word in words)

    @property
    def unchanged_text(self) -> bool:
        return self.original == self.candidate.text

    # ------------------------------------------------------------ binaries

    @property
    def emulated(self) -> bool:
        return self.device.info.kind == "emulator"

    @cached_property
    def original_binary(self) -> Binary:
        """Raises CompileError: then the file itself does not compile, and nothing can be decided."""
        return self.device.compile(self.build, self.original)

    @cached_property
    def candidate_binary(self) -> Binary:
        return self.device.compile(self.build, self.candidate.text, untrusted=self.candidate.by_model)

    def kernel_in(self, binary: Binary, launch: Launch) -> str:
        """Mangled name of the launched kernel in a binary. Raises WorkloadError when it is not there."""
        found = names.match(list(binary.kernels), launch.mangled)
        if found is None:
            raise WorkloadError(
                f"the compiled file holds no kernel that the launch of {launch.demangled or launch.mangled} means; "
                "capture again if the kernel's name, template or parameters changed"
            )
        return found

    @cached_property
    def same_code(self) -> bool:
        """Original and candidate are the same instructions launched in the same shapes: there is nothing to measure."""
        if self.unchanged_text:
            return True
        pairs = []
        for index, launch in enumerate(self.launches):
            a = self.original_binary.kernels[self.kernel_in(self.original_binary, launch)].sass_hash
            b = self.candidate_binary.kernels[self.kernel_in(self.candidate_binary, launch)].sass_hash
            pairs.append(bool(a) and a == b and self.shape(index) == launch_map.Shape.of(launch))
        return all(pairs)

    # ------------------------------------------------------------ launches

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """The judged launches: each shape once, then the others, up to `max_launches`. Raises NoInputs when there are
        none."""
        if not self.workload.launches:
            raise NoInputs(
                f"no launch of {self.workload.kernel} was recorded: run `cuda-agent capture -- <run command>`"
            )
        first: dict[object, Launch] = {}
        for launch in self.workload.launches:
            first.setdefault((launch.mangled, launch.grid, launch.block, launch.shared), launch)
        rest = [launch for launch in self.workload.launches if all(launch is not other for other in first.values())]
        return tuple([*first.values(), *rest][: self.options.max_launches])

    @cached_property
    def plan(self) -> Plan:
        """The hidden cases: G5 tries them, G7 takes a small one where the captured launches are large."""
        from cuda_agent.judge.hidden import plan  # numpy

        return plan.make(self)

    def shape(self, index: int) -> launch_map.Shape:
        """The candidate's launch shape. Raises WorkloadError for an expression that is no integer arithmetic."""
        launch = self.launches[index]
        return launch_map.apply(self.candidate.launch, launch.grid, launch.block, launch.shared)

    def launch_name(self, index: int) -> str:
        launch = self.launches[index]
        return launch_map.Shape.of(launch).text()

    @cached_property
    def _slots(self) -> dict[int, tuple[Slot, ...]]:
        return {}

    def slots(self, index: int) -> tuple[Slot, ...]:
        """What each buffer of a launch is, by the parameters that reach it; globals are not among them."""
        if index not in self._slots:
            self._slots[index] = slots_of(self.launches[index], self.kernel)
        return self._slots[index]

    def tolerance(self, index: int, buffer: int) -> float | None:
        """The person's tolerance for the parameter that reaches the buffer, relative to max|reference|."""
        slots = self.slots(index)
        return self.workload.tolerance.get(slots[buffer].name) if buffer < len(slots) else None

    # ------------------------------------------------------------ runs

    def run(
        self,
        steps: Sequence[jobs.Step],
        *,
        deadline_s: float,
        tag: str,
        candidate: bool = False,
        more: Sequence[Binary] = (),
    ) -> Results:
        """One job on the device. `more`: binaries that the judge made of the original, beside it and the candidate.
        Raises what `Device.run` raises, and Cancelled."""
        self.check_cancelled()
        blobs = jobs.BlobSource(bundle.BlobStore(self.workload.blobs), self.held).add_binary(self.original_binary)
        if candidate:
            blobs.add_binary(self.candidate_binary)
        blobs.add_binary(*more)
        trusted = frozenset(binary.sha256 for binary in (self.original_binary, *more))
        job = jobs.Job(list(steps), deadline_s, tag, trusted)
        with _watching(self.device, self.cancelled):
            results = self.device.run(job, blobs)
        self.check_cancelled()
        for result in results:
            for ran in result.get("damaged", ()):
                self.damage.append(ran)
                self.device.blame([one for one in ran if one not in trusted])
            if not result["ok"] and result.get("out_of_memory"):
                raise DeviceError(f"{result['error']}: judge a smaller launch (capture with --select smallest)")
        return results

    def check_cancelled(self) -> None:
        if self.cancelled is not None and self.cancelled():
            raise Cancelled("stopped by the person")

    def original_launch(self, run: str, index: int, **fields: Any) -> jobs.Step:
        launch = self.launches[index]
        return jobs.launch_step(run, ORIGINAL, launch, kernel=self.kernel_in(self.original_binary, launch), **fields)

    def candidate_launch(self, run: str, index: int, **fields: Any) -> jobs.Step:
        return jobs.launch_step(run, CANDIDATE, self.launches[index], **self.candidate_fields(index), **fields)

    def candidate_fields(self, index: int) -> dict[str, Any]:
        """The launch fields in which the candidate differs from the capture."""
        launch, shape = self.launches[index], self.shape(index)
        kernel = self.kernel_in(self.candidate_binary, launch)
        return {"kernel": kernel, "grid": shape.grid, "block": shape.block, "shared": shape.shared}

    def load_steps(self, candidate: bool = True) -> list[jobs.Step]:
        steps = [jobs.load_step(self.original_binary, ORIGINAL)]
        return [*steps, jobs.load_step(self.candidate_binary, CANDIDATE)] if candidate else steps

    def baseline(self, index: int) -> Baseline:
        from cuda_agent.judge.baseline import of

        return of(self, index)

    def outcome(self, index: int) -> Outcome:
        """What the candidate did on one launch. Runs once."""
        if index not in self._outcomes:
            from cuda_agent.judge.outcome import observe

            self._outcomes[index] = observe(self, index)
            self.ran["verified"].add(self.candidate_binary.sha256)
        return self._outcomes[index]

    def outcomes(self) -> list[Outcome]:
        return [self.outcome(index) for index in range(len(self.launches))]

    def deadline(self, index: int, launches: int) -> float:
        """Seconds for a job with that many launches of the candidate beside as many of the original."""
        base, slower = self.baseline(index), self.options.slower_deadline
        if self.emulated:  # barriers cost fibers there, and tracing is slow
            return min(self.options.deadline_s, 20 + slower * (3 * base.seconds * launches + base.traced_seconds))
        return min(self.options.deadline_s, 10 + slower * base.seconds * launches)

    @property
    def times(self) -> Times:
        """Timings of every launch, measured once. Needs a GPU."""
        if self._times is None:
            from cuda_agent.judge.timing import measure

            self._times = measure(self)
        return self._times

    def remember(self, times: Times) -> None:
        """A later measurement takes the place of the first."""
        self._times = times

    def relabel(self, label: Literal["SAME", "AMBIGUOUS"]) -> None:
        """Two measurements disagree: their numbers stand, the claim does not."""
        self._label = label

    @property
    def timing(self) -> Timing:
        """The headline numbers as they may be said."""
        total = self.times.total
        return replace(total, label=self._label) if self._label is not None else total

    @property
    def timed(self) -> bool:
        return self._times is not None and bool(self._times.launches) and self._times.fault is None

    @property
    def observed(self) -> bool:
        """Whether the candidate has run on every launch."""
        return len(self._outcomes) == len(self.launches)


@contextmanager
def _watching(device: Device, cancelled: Callable[[], bool] | None) -> Iterator[None]:
    """While a job runs, ask `cancelled` twenty times a second; when it turns true, kill the job (it raises
    Cancelled)."""
    if cancelled is None:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            if cancelled():
                if not done.is_set():
                    device.cancel()
                return

    watcher = threading.Thread(target=watch, name="judge-cancel", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def slots_of(launch: Launch, kernel: Kernel) -> tuple[Slot, ...]:
    """What each buffer of a launch of the kernel is."""
    types = names.param_types(launch.mangled) or tuple(param.type for param in kernel.params)
    args = sorted(launch.args, key=lambda arg: arg.offset)
    dtypes = elements.signature(launch, types)
    slots = []
    for number, dtype in enumerate(dtypes):
        reached = [at for at, arg in enumerate(args) if any(pointer.buffer == number for pointer in arg.pointers)]
        known = len(args) == len(types) == len(kernel.params)
        name = kernel.params[reached[0]].name if known and len(reached) == 1 else f"buffer {number}"
        constant = known and bool(reached) and all(_points_to_const(types[at]) for at in reached)
        slots.append(Slot(name, dtype, not constant))
    return tuple(slots)


def _points_to_const(type_: str) -> bool:
    """`float const*` and `const float *` do; `float* const` and a struct with pointers inside do not."""
    pointee, star, _ = type_.partition("*")
    return bool(star) and "const" in pointee.split()
