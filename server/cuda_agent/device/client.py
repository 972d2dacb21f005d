"""The client's side of a device: starts a worker, sends jobs, kills on deadline and on cancel, and blames the right
binary.

A worker serves many jobs. It is replaced after a fault, a crash, a deadline or a cancel; the next job starts a fresh
one. No numpy here: the engine may hold a Device without it.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from cuda_agent import config
from cuda_agent.device import jobs, protocol
from cuda_agent.device.info import DeviceInfo
from cuda_agent.device.jobs import Job
from cuda_agent.device.quarantine import Quarantine
from cuda_agent.device.transports import Channel, PipeTransport, Transport
from cuda_agent.errors import (
    Cancelled,
    CudaAgentError,
    DeadlineExceeded,
    DeviceError,
    DeviceMissing,
    Unsupported,
    WorkerDied,
)
from cuda_agent.model import Binary, Build

TURN_S = 1800.0  # others may time long kernels on this GPU, one after another
START_S = 120.0  # a first CUDA context, and cupy compiling its kernels for the first time, take many seconds
REAP_S = 5.0
READERS = 8  # threads that read blobs
BINARIES = 64  # compiled texts at hand
# Ends that are the binary's doing. SIGKILL and SIGTERM from outside (a person, the kernel's out-of-memory killer) are
# not.
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}

BlobMap = Mapping[str, "bytes | Callable[[], bytes]"]
_CLOSED: tuple[dict[str, Any], bytes] = ({"type": "closed"}, b"")


class Device:
    """One device. `run` may be called from any thread, one job at a time; `cancel` from any other thread meanwhile."""

    def __init__(
        self,
        spec: str,
        transport: Transport | None = None,
        quarantine: Quarantine | None = None,
        *,
        start: bool = True,
    ) -> None:
        """`spec` is "cuda:N" or "emulator[:gpu]". Raises DeviceMissing when the worker finds no such device."""
        self.spec = spec
        self.quarantine = quarantine if quarantine is not None else Quarantine()
        self._transport = transport or PipeTransport()
        self._busy = threading.Lock()
        self._life = threading.Lock()  # guards _channel against cancel and close from other threads
        self._channel: Channel | None = None
        self._frames: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()
        self._info: DeviceInfo | None = None
        self._cancelled = threading.Event()
        self._closed = False
        self._compiled: OrderedDict[tuple[object, ...], Binary] = OrderedDict()
        self._compiled_lock = threading.Lock()
        self._jobs = 0
        self.overwrote: set[str] = set()  # binaries that alone can have written over memory of the worker's own
        self.starts = 0  # how many workers this device has had
        self.uploaded = 0  # bytes of buffers that all jobs so far moved to the device
        self.waited = 0.0  # seconds that they waited while others had the device
        if start:
            with self._busy:
                self._ensure()

    # ------------------------------------------------------------ life

    @property
    def info(self) -> DeviceInfo:
        if self._info is None:
            with self._busy:
                self._ensure()
        assert self._info is not None
        return self._info

    # What is known of a GPU of this machine and of the emulator without a worker; any other device is asked.

    @property
    def kind(self) -> str:
        """`DeviceInfo.kind`."""
        kind = self.spec.partition(":")[0]
        return kind if self._info is None and kind in ("cuda", "emulator") else self.info.kind

    @property
    def arch(self) -> str:
        """`DeviceInfo.arch`."""
        gpu = gpu_identity(self.spec) if self._info is None else None
        return str(gpu[-1]) if gpu else self.info.arch

    @property
    def identity(self) -> tuple[str | int | float, ...]:
        """What results on this device depend on."""
        if self.spec.startswith("emulator"):
            return (self.spec,)
        return gpu_identity(self.spec) or tuple(self.info.to_json().values())

    @property
    def uuid(self) -> str:
        """The GPU's, empty before its worker first ran (and on the emulator)."""
        return self._info.uuid if self._info is not None else ""

    @property
    def pid(self) -> int | None:
        """The worker's, None when none runs."""
        channel = self._channel
        return channel.pid if channel is not None else None

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prepare(self) -> None:
        """Start the worker beside whatever the caller does, if none runs. What is wrong with it the next job says."""

        def start() -> None:
            with contextlib.suppress(CudaAgentError), self._busy:
                self._ensure()

        threading.Thread(target=start, name=f"{self.spec}-start", daemon=True).start()

    def restart(self) -> None:
        """End the worker and start a fresh one."""
        self._end()
        with self._busy:
            self._ensure()

    def close(self) -> None:
        """End the worker. A job in hand raises Cancelled in its thread."""
        self._closed = True
        self.cancel()

    def bare(self, folder: Path, before: Sequence[str] = ()) -> Channel:
        """Start one launch in a process of its own (`device/bare.py`), which `folder` describes, with a program's words
        before its command line. The worker knows nothing of it. Raises Unsupported when this device is reached in
        another way than by a process of this machine."""
        if not isinstance(self._transport, PipeTransport) or self._transport.wrap is not None:
            raise Unsupported(f"no program can be put around a launch on {self.spec}")
        return self._transport.bare(self.spec, folder, before)

    def cancel(self) -> None:
        """Kill the job in hand (its `run` raises Cancelled) and the worker with it. Returns once the worker is gone."""
        self._cancelled.set()
        self._end()

    def _end(self) -> int | None:
        """Kill and reap; the exit code as the system reports it."""
        with self._life:
            channel, self._channel = self._channel, None
            if channel is None:
                return None
            channel.kill()
            return channel.reap(REAP_S)

    def _ensure(self) -> Channel:
        """The running worker, started when there is none. The caller holds `_busy`."""
        if self._closed:
            raise DeviceError("the device is closed")
        with self._life:
            if self._closed:  # meanwhile
                raise DeviceError("the device is closed")
            if self._channel is not None and self._channel.reap(0) is None:
                return self._channel
            channel = self._channel = self._transport.open(self.spec)
            frames = self._frames = queue.SimpleQueue()
            self.starts += 1
        threading.Thread(target=_pump, args=(channel, frames), name=f"{self.spec}-reader", daemon=True).start()
        header, _ = self._next(frames, time.monotonic() + START_S) or ({"type": "late"}, b"")
        if header["type"] == "ready" and header["version"] == protocol.VERSION:
            self._info = DeviceInfo.from_json(header["info"])
            return channel
        tail = channel.stderr_tail()
        code = self._end()
        if self._cancelled.is_set():
            raise Cancelled("stopped while the worker was starting")
        if header["type"] == "failed":
            raise (DeviceMissing if header.get("missing") else DeviceError)(header["error"])
        if header["type"] == "ready":
            raise DeviceError(f"the worker speaks protocol {header['version']}, this client {protocol.VERSION}")
        what = "gave no answer" if header["type"] == "late" else f"ended at once ({end_text(code)})"
        raise DeviceError(f"the worker of {self.spec} {what}{tail_text(tail)}")

    @staticmethod
    def _next(
        frames: queue.SimpleQueue[tuple[dict[str, Any], bytes]], until: float
    ) -> tuple[dict[str, Any], bytes] | None:
        """The next frame that is no heartbeat; None when the time is over."""
        while True:
            try:
                frame = frames.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return None
            if frame[0]["type"] != "beat":
                return frame

    def blame(self, suspects: Sequence[str]) -> None:
        """Memory of the worker's own was overwritten, and only these binaries (sha256), of those that are not trusted,
        had run since it was last seen whole."""
        if len(suspects) == 1:
            self.overwrote.update(suspects)

    # ------------------------------------------------------------ jobs

    def run(self, job: Job, blobs: BlobMap | None = None) -> list[dict[str, Any]]:
        """The results of the steps, in order; a `fetch` result carries its bytes as `data`.

        Raises WorkerDied (a fault, a crash, or a binary in quarantine), DeadlineExceeded, Unsupported (the device
        cannot run this kernel), Cancelled, DeviceMissing.
        """
        self._refuse_quarantined(job)
        with self._busy:
            self._cancelled.clear()
            channel = self._ensure()
            return _Conversation(self, channel, self._frames, job, blobs or {}).run()

    def _refuse_quarantined(self, job: Job) -> None:
        for digest in jobs.module_blobs(job.steps).values():
            sentence = None if digest in job.trusted else self.quarantine.why(digest, job.deadline_s)
            if sentence is not None:
                raise WorkerDied(
                    f"not run again: this binary ended a worker before ({sentence.reason})",
                    quarantined=True,
                    module=digest,
                )

    def compile(self, build: Build, text: str, *, untrusted: bool = False, kernel: str | None = None) -> Binary:
        """The text as a binary for this device: a cubin for its architecture, or the emulator's shared object. The last
        few stay at hand: a judgement asks for both of its texts time and again, and the compilers' cache looks into
        every header of each."""
        key = (build, text, untrusted, kernel, config.current())
        with self._compiled_lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
                return self._compiled[key]
        binary = self._compile(build, text, untrusted, kernel)
        with self._compiled_lock:
            self._compiled[key] = binary
            if len(self._compiled) > BINARIES:
                self._compiled.popitem(last=False)
        return binary

    def _compile(self, build: Build, text: str, untrusted: bool, kernel: str | None) -> Binary:
        if self.kind == "emulator":
            from cuda_agent.device.emulator import build as emulator

            return emulator.compile(build, text, untrusted=untrusted)
        from cuda_agent.toolchain import compile as toolchain

        return toolchain.compile(build, text, self.arch, kernel, untrusted=untrusted)


def gpu_identity(spec: str) -> tuple[str | int | float, ...] | None:
    """Name, driver, memory and architecture of a GPU of this machine ("cuda:N"), by the driver; None for any other."""
    from cuda_agent.device import driver

    kind, _, number = spec.partition(":")
    at = int(number or 0)
    if kind != "cuda" or driver.why_not() is not None or at >= driver.count():
        return None
    arch = f"sm_{driver.attribute(at, 'major')}{driver.attribute(at, 'minor')}"
    return driver.device_name(at), driver.version(), driver.total_memory(at), arch


def _pump(channel: Channel, frames: queue.SimpleQueue[tuple[dict[str, Any], bytes]]) -> None:
    with contextlib.suppress(protocol.StreamClosed, protocol.TornStream, OSError, ValueError):
        while True:
            frames.put(protocol.read_frame(channel.output))
    frames.put(_CLOSED)


class _Conversation:
    """One job on one worker."""

    def __init__(
        self,
        device: Device,
        channel: Channel,
        frames: queue.SimpleQueue[tuple[dict[str, Any], bytes]],
        job: Job,
        blobs: BlobMap,
    ) -> None:
        self.device, self.channel, self.frames, self.job, self.blobs = device, channel, frames, job, blobs
        self.step = 0
        self.module: str | None = None
        self.results: list[dict[str, Any]] = []

    def run(self) -> list[dict[str, Any]]:
        device = self.device
        device._jobs += 1
        self.channel.forget_stderr()  # what an earlier job printed explains nothing
        try:
            self._send_blobs()
            protocol.write_frame(
                self.channel.input, {"type": "run", "job": device._jobs, "steps": list(self.job.steps)}
            )
        except protocol.StreamClosed:
            self._died({})
        asked, begun, left = time.monotonic(), False, self.job.deadline_s
        until = asked + TURN_S
        while True:
            frame = device._next(self.frames, until)
            if frame is None:
                if begun:
                    self._late()
                self._no_turn()
            header, payload = frame
            if header["type"] == "turn":
                now = time.monotonic()
                device.waited += now - asked
                until, begun = now + left, True
            elif header["type"] == "wait":
                asked = time.monotonic()
                left, until, begun = until - asked, asked + TURN_S, False
            elif header["type"] == "at":
                self.step, self.module = header["step"], header["module"]
            elif header["type"] == "result":
                self._result(header, payload)
            elif header["type"] == "done":
                device.uploaded += header["uploaded"]
                if self.results and self.results[-1].get("unsupported"):
                    raise Unsupported(self.results[-1]["error"])
                return self.results
            elif header["type"] in ("dying", "closed"):
                self._died(header)

    def _send_blobs(self) -> None:
        names = jobs.blob_names(self.job.steps)
        if not names:
            return
        protocol.write_frame(self.channel.input, {"type": "have", "names": names})
        frame = self.device._next(self.frames, time.monotonic() + START_S)
        if frame is None or frame[0]["type"] != "need":
            self._died(frame[0] if frame else {})
        for name, data in self._read(frame[0]["names"]):
            protocol.write_frame(self.channel.input, {"type": "put", "name": name}, data)

    def _read(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Blobs in order, some ahead: reading one from a bundle (decompress, check the hash) takes several times as
        long as sending it, and most of that lets other threads run."""
        if len(names) < READERS:
            yield from ((name, self._blob(name)) for name in names)
            return
        with ThreadPoolExecutor(READERS, "blobs") as pool:
            ahead: deque[Future[bytes]] = deque()
            try:
                for number, name in enumerate(names):
                    while len(ahead) < 2 * READERS and number + len(ahead) < len(names):
                        ahead.append(pool.submit(self._blob, names[number + len(ahead)]))
                    yield name, ahead.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _blob(self, name: str) -> bytes:
        try:
            data = self.blobs[name]
        except KeyError:
            raise DeviceError(f"the job names blob {name[:12]}…, and nobody has it") from None
        return data() if callable(data) else data

    def _result(self, header: dict[str, Any], payload: bytes) -> None:
        result = header["result"]
        if self.job.steps[header["step"]]["op"] == "fetch" and result["ok"]:
            result["data"] = payload
        self.results.append(result)
        self.step, self.module = header["step"] + 1, None

    def _where(self) -> str:
        step = self.job.steps[self.step] if self.step < len(self.job.steps) else {"op": "end"}
        side = step.get("kernel") or step.get("run") or ""
        tag = f" of {self.job.tag}" if self.job.tag else ""
        return f"step {self.step} ({' '.join(x for x in (step['op'], side) if x)}){tag}"

    def _no_turn(self) -> NoReturn:
        self.device._end()
        raise DeviceError(f"others have held {self.device.spec} for {TURN_S:.0f} s: look who uses it (nvidia-smi)")

    def _late(self) -> NoReturn:
        self.device._end()
        reason = f"ran past its deadline of {self.job.deadline_s:g} s in {self._where()}"
        self._quarantine(reason, self.job.deadline_s)
        raise DeadlineExceeded(f"the job {reason}; its worker was killed", step=self.step, module=self.module)

    def _died(self, header: dict[str, Any]) -> NoReturn:
        """The worker is gone, or says that it is going."""
        tail = self.channel.stderr_tail()
        cancelled = self.device._cancelled.is_set()
        code = self.device._end() if header.get("type") == "dying" else self._reap()
        tail = self.channel.stderr_tail() or tail
        if cancelled or self.device._cancelled.is_set():
            raise Cancelled("the job was stopped and its worker killed")
        if header.get("type") == "dying":
            self.step, self.module = header["step"], header["module"]
            reason = f"{header['error']} in {self._where()}"
        else:
            reason = f"{end_text(code)} in {self._where()}"
        if header.get("type") == "dying" or (code is not None and code < 0 and -code in _CRASHES):
            self._quarantine(reason, None)
        raise WorkerDied(f"the worker died: {reason}{tail_text(tail)}", step=self.step, module=self.module)

    def _reap(self) -> int | None:
        """The process ended by itself: let it be reaped before anything is signalled, to learn its own end."""
        code = self.channel.reap(1.0)
        self.device._end()
        return code

    def _quarantine(self, reason: str, deadline_s: float | None) -> None:
        if self.module is not None and self.module not in self.job.trusted:
            self.device.quarantine.add(self.module, reason, deadline_s)


def end_text(code: int | None) -> str:
    """An exit code of `Channel.reap` in words."""
    if code is None:
        return "killed"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"


def tail_text(tail: list[str]) -> str:
    """The last words of a process as the end of a sentence."""
    lines = [line for line in tail if line.strip()][-4:]
    return f"; it said: {' | '.join(lines)}" if lines else ""
