"""One launch in a process of its own, through the driver alone: what a checker of memory goes around.

    python -m cuda_agent.device.bare cuda:N FOLDER

FOLDER holds `job.json`, which `Task.write` makes; `result.json` is written there when the launch is over. Under a
checker every module, kernel and allocation costs: there is no array library here, no protocol, no pool and no canary.
A buffer is an allocation of exactly its size, so that one byte beyond it is nobody's.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent.device import driver
from cuda_agent.device.backend import DeviceFault, configuration
from cuda_agent.device.driver import DriverError
from cuda_agent.device.jobs import Step, StepFailed
from cuda_agent.device.kernels import CudaLaunch, CudaModule, guarded
from cuda_agent.device.turn import folder as turns
from cuda_agent.device.turn import turn


@dataclass(frozen=True, slots=True)
class Task:
    """A `load` and a `launch` step (its canary and shift mean nothing here; inits are blobs). Their blobs are files of
    the folder `blobs`, by name. The buffers `unwritten` are left as they were allocated: a checker then sees reads of
    what nobody wrote."""

    load: Step
    launch: Step
    blobs: Path
    unwritten: frozenset[int] = frozenset()

    def write(self, folder: Path, gpu: str = "") -> None:
        """`gpu`: the UUID of the GPU whose turns the launch takes."""
        job = {"load": self.load, "launch": self.launch, "blobs": str(self.blobs), "unwritten": sorted(self.unwritten)}
        (folder / "job.json").write_text(json.dumps({**job, "gpu": gpu, "turns": str(turns())}))

    @staticmethod
    def read(folder: Path) -> tuple[Task, AbstractContextManager[None]]:
        """The task, and its turn on the GPU that `write` was given."""
        job = json.loads((folder / "job.json").read_text())
        task = Task(job["load"], job["launch"], Path(job["blobs"]), frozenset(job["unwritten"]))
        return task, _its_turn(job["gpu"], Path(job["turns"]), folder)


def error_of(folder: Path) -> str | None:
    """Empty when the launch ran to its end, else why not; None when the process ended before it could say."""
    try:
        return str(json.loads((folder / "result.json").read_text())["error"])
    except FileNotFoundError:
        return None


def waits(folder: Path) -> bool:
    """Whether the launch is ready, and others have the GPU."""
    return (folder / "waiting").exists()


@contextmanager
def _its_turn(gpu: str, turns: Path, folder: Path) -> Iterator[None]:
    """A turn on the GPU; the file that `waits` looks for is there until it comes."""
    waiting = folder / "waiting"
    waiting.touch()
    with turn(gpu, alone=False, at=turns):
        waiting.unlink()
        yield


def perform(task: Task, index: int, on_gpu: AbstractContextManager[None] | None = None) -> None:
    """Raises StepFailed, DriverError (no such GPU, no context) and DeviceFault."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    driver.call("cuInit", 0)
    driver.call("cuDeviceGet", ctypes.byref(device), index)
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver.call("cuCtxSetCurrent", context)
    module = CudaModule((task.blobs / task.load["blob"]).read_bytes())
    addresses = []
    for number, spec in enumerate(task.launch["buffers"]):
        addresses.append(allocate(int(spec["size"])))
        if number not in task.unwritten:
            upload(addresses[-1], int(spec["size"]), task.blobs, spec["init"])
    for symbol, init in task.launch.get("globals", ()):
        upload(*module.symbol(symbol), task.blobs, init)
    launch = CudaLaunch(module, configuration(task.launch, addresses), 0)
    with on_gpu or nullcontext():  # not before: the checkers take seconds to start
        launch()
        guarded("cuCtxSynchronize")
    # The checkers' last words come with the end of the context.
    guarded("cuDevicePrimaryCtxRelease_v2", device)


def allocate(size: int) -> int:
    """0 for an empty buffer: the driver allocates none."""
    address = ctypes.c_uint64()
    if size:
        guarded("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    return address.value


def upload(address: int, size: int, blobs: Path, init: Mapping[str, Any]) -> None:
    at = 0
    for name in _names(init):
        data = (blobs / name).read_bytes()
        if at + len(data) <= size:
            guarded("cuMemcpyHtoD_v2", ctypes.c_uint64(address + at), data, ctypes.c_size_t(len(data)))
        at += len(data)
    if at != size:
        raise StepFailed(f"the recorded bytes are {at}, the buffer has {size}")


def _names(init: Mapping[str, Any]) -> Iterable[str]:
    if "blobs" not in init:
        raise StepFailed("outside a worker a buffer's init must be blobs")
    return tuple(init["blobs"])


def end_with_input() -> None:
    """Whoever started us holds the other end of our input: when it is gone, nobody waits for a result."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGKILL)  # the main thread may hang in the driver

    threading.Thread(target=wait, daemon=True).start()


def main(argv: Sequence[str]) -> int:
    device, folder = argv[0], Path(argv[1])
    os.dup2(2, 1)  # printf of a kernel
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end_with_input()
    error = ""
    try:
        task, its_turn = Task.read(folder)
        perform(task, int(device.partition(":")[2] or 0), its_turn)
    except (StepFailed, DeviceFault, DriverError, OSError) as problem:
        error = str(problem)
    whole = folder / "result"
    whole.write_text(json.dumps({"error": error}))
    whole.rename(folder / "result.json")
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
