from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import fake_driver
from cuda_agent.device.client import Device
from cuda_agent.device.transports import PipeTransport, ProcessChannel

HERE = Path(__file__).parent


@dataclass(frozen=True)
class HostTransport(PipeTransport):
    """Starts host_worker.py instead of the real devices' worker."""

    def open(self, device: str) -> ProcessChannel:
        argv = [sys.executable, str(HERE / "host_worker.py"), "--device", device]
        argv = self.wrap(argv) if self.wrap else [*argv, "--parent", str(os.getpid())]
        return ProcessChannel([*argv, *self.extra], self.environment())

    def bare(self, device: str, folder: Path, before: Sequence[str]) -> ProcessChannel:
        return ProcessChannel([*before, sys.executable, fake_driver.__file__, device, str(folder)], self.environment())


@pytest.fixture
def device() -> Iterator[Device]:
    with Device("host", HostTransport()) as opened:
        yield opened


def blob(data: bytes) -> tuple[str, dict[str, bytes]]:
    name = hashlib.sha256(data).hexdigest()
    return name, {name: data}
