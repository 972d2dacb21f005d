"""The process that owns one device: reads jobs from standard input, answers on standard output, one job at a time.

    python -m cuda_agent.device.worker --device cuda:0 | emulator[:gpu]

It needs a driver, cupy and this package (for cuda), or a C++ runtime (for the emulator), and nothing of the editor's
side. It ends when its parent ends, when its input closes, and after any device fault: a faulted CUDA context cannot
be used again.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from cuda_agent.device import protocol
from cuda_agent.device.backend import Backend, DeviceFault
from cuda_agent.device.interpreter import Interpreter
from cuda_agent.device.turn import turn
from cuda_agent.errors import DeviceError, DeviceMissing

PR_SET_PDEATHSIG = 1
BEAT_S = 0.5
EXIT_FAULT = 70
DEFAULT_BLOB_BYTES = 4 << 30


class BlobStore:
    """Blobs by sha256, least recently used out first. Blobs of the job in hand stay, even above the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._blobs: OrderedDict[str, bytes] = OrderedDict()
        self._pinned: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> bytes:
        self._blobs.move_to_end(name)
        return self._blobs[name]

    def __contains__(self, name: str) -> bool:
        return name in self._blobs

    def missing(self, names: Sequence[str]) -> list[str]:
        """Which of these must be sent; the others are pinned until the next call."""
        self._pinned = frozenset(names)
        return [name for name in names if name not in self._blobs]

    def put(self, name: str, data: bytes) -> None:
        if name not in self._blobs:
            self.bytes += len(data)
        self._blobs[name] = data
        for old in list(self._blobs):
            if self.bytes <= self.limit:
                break
            if old not in self._pinned and old != name:
                self.bytes -= len(self._blobs.pop(old))


class Wire:
    """The protocol's two streams, moved away from descriptors 0 and 1 so that printf in a kernel cannot reach them."""

    def __init__(self) -> None:
        self.input: BinaryIO = os.fdopen(os.dup(0), "rb", buffering=1 << 20)
        self.output: BinaryIO = os.fdopen(os.dup(1), "wb", buffering=1 << 16)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        self._lock = threading.Lock()

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """A reader that is gone ends the process: nobody is left to answer to."""
        try:
            with self._lock:
                protocol.write_frame(self.output, header, payload)
        except protocol.StreamClosed:
            os._exit(0)


class Worker:
    """The loop. The main thread runs jobs; one thread reads frames, so that a closed input ends even a job that
    hangs."""

    def __init__(self, backend: Backend, wire: Wire, blob_bytes: int) -> None:
        self.wire = wire
        self.blobs = BlobStore(blob_bytes)
        self.interpreter = Interpreter(backend, self.blobs, at=self.at)
        self.backend = backend
        self.number = 0  # of the step in hand
        self.module: str | None = None
        self._arrived = threading.Semaphore(0)
        self._frames: list[tuple[dict[str, Any], bytes]] = []

    def at(self, module: str | None) -> None:
        """Say which binary is about to run."""
        if module is not None and module != self.module:
            self.wire.send({"type": "at", "step": self.number, "module": module})
        elif module is None and self.module is not None:
            self.wire.send({"type": "at", "step": self.number, "module": None})
        self.module = module

    def _read(self) -> None:
        while True:
            try:
                frame = protocol.read_frame(self.wire.input)
            except (protocol.StreamClosed, protocol.TornStream):
                os.kill(os.getpid(), signal.SIGKILL)  # a job may hold the main thread for ever
            self._frames.append(frame)
            self._arrived.release()

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            self.wire.send({"type": "beat"})

    def serve(self) -> None:
        self.backend.prepare_host(self.interpreter.warm_up)
        self.wire.send(
            {"type": "ready", "info": self.backend.info.to_json(), "pid": os.getpid(), "version": protocol.VERSION}
        )
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()
        while True:
            self._arrived.acquire()
            header, payload = self._frames.pop(0)
            if header["type"] == "have":
                self.wire.send({"type": "need", "names": self.blobs.missing(header["names"])})
            elif header["type"] == "put":
                self.blobs.put(header["name"], payload)
            elif header["type"] == "run":
                self.run(header["job"], header["steps"])

    def run(self, job: int, steps: Sequence[dict[str, Any]]) -> None:
        before = self.interpreter.uploaded
        with turn(self.backend.info.uuid, alone=False) as be_alone:
            self.wire.send({"type": "turn"})
            self._run(steps, be_alone)
        self.wire.send({"type": "done", "job": job, "uploaded": self.interpreter.uploaded - before})

    def _run(self, steps: Sequence[dict[str, Any]], be_alone: Callable[[], None]) -> None:
        first = next((number for number, step in enumerate(steps) if step["op"] == "time"), None)
        try:
            for self.number, step in enumerate(steps):
                self.module = None
                if self.number == first:  # what leads to it (moving inputs, the reference's run) disturbs nobody
                    self.wire.send({"type": "wait"})
                    be_alone()
                    self.wire.send({"type": "turn"})
                reply = self.interpreter.step(step)
                self.wire.send({"type": "result", "step": self.number, "result": reply.result}, reply.payload)
                if reply.result.get("unsupported"):
                    break  # the steps after it would only fail for want of this run
            self.at(None)
            self.interpreter.end()
        except DeviceFault as fault:
            self.wire.send({"type": "dying", "step": self.number, "module": self.module, "error": str(fault)})
            sys.stderr.flush()
            os._exit(EXIT_FAULT)  # destructors would call into the broken context


def open_backend(device: str) -> Backend:
    """Raises DeviceMissing with what to do about it."""
    kind, _, which = device.partition(":")
    if kind == "cuda":
        from cuda_agent.device.cuda import CudaBackend

        return CudaBackend(int(which or 0))
    if kind == "emulator":
        from cuda_agent.device.emulator_backend import EmulatorBackend

        return EmulatorBackend(which or "h200")
    raise DeviceMissing(f"there is no device {device!r}: use cuda:N or emulator")


def die_with_parent(parent: int | None) -> None:
    """PR_SET_PDEATHSIG follows the thread that forked us; `transports.Spawner` keeps that thread for the parent's
    whole life."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: the closed input ends us instead
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(0)  # it died before the call above


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="cuda-agent worker", description=__doc__.partition("\n")[0] if __doc__ else ""
    )
    parser.add_argument("--device", default="cuda:0", help="cuda:N, emulator or emulator:GPU")
    parser.add_argument("--blob-bytes", type=int, default=DEFAULT_BLOB_BYTES, help="inputs kept between jobs")
    parser.add_argument("--parent", type=int, default=None, help="process whose end ends this one")
    options = parser.parse_args(argv)

    die_with_parent(options.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the parent's to handle
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    wire = Wire()
    try:
        backend = open_backend(options.device)
    except DeviceError as error:
        wire.send({"type": "failed", "error": str(error), "missing": isinstance(error, DeviceMissing)})
        return 2
    Worker(backend, wire, options.blob_bytes).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
