"""What the hover says once inputs were captured."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent import cache
from cuda_agent.engine import kernel_facts
from cuda_agent.hints.limits import Limiter
from cuda_agent.judge import limiter
from cuda_agent.model import Buffer, Dim3, Facts, Launch, Workload
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module
from cuda_agent.workload import bundle
from cuda_agent.workload.bundle import BlobStore

TEXT = "__global__ void k(float *x, const float *y) { x[threadIdx.x] = y[threadIdx.x]; }\n"
FACTS = Facts("_Z1kPfPKf", "k(float*, float const*)", "sm_90", 32, 0, 0, 0, 0, 0, "", 40)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept = cache.Cache(tmp_path / "cache")
    monkeypatch.setattr(cache, "default", lambda: kept)
    yield
    kept.close()


def captured(folder: Path, grid: Dim3, device: str = "NVIDIA H200") -> Workload:
    home = folder / ".cuda-agent" / "captures" / "k"
    blobs = BlobStore(home / "blobs")
    zeros, ones = blobs.put(bytes(4096)), blobs.put(b"\1" * 4096)
    buffers = (Buffer(0x1000, 4096, zeros, ones), Buffer(0x9000, 4096, ones, ones))
    launch = Launch("_Z1kPfPKf", FACTS.demangled, grid, (256, 1, 1), 0, (), buffers)
    return bundle.save(home, Workload("k", "captured", (launch,), home, blobs.path, device))


def sentences(folder: Path, arch: str = "sm_90") -> list[str]:
    file = folder / "k.cu"
    file.write_text(TEXT)
    parsed = module(Document(str(file), TEXT))
    described = kernel_facts.described(parsed, parsed.kernel("k"), [FACTS], arch, str(file))
    return [text for text in described["sentences"] if "imited by" in text or "holds it back" in text]


@pytest.mark.parametrize(
    ("grid", "device", "arch", "said"),
    [
        ((40, 1, 1), "NVIDIA H200", "sm_90", ["Limited by latency: 40 blocks on 132 SMs: most of the GPU is idle."]),
        ((40, 1, 1), "emulator", "sm_80", ["Limited by latency: 40 blocks on 108 SMs: most of the GPU is idle."]),
        ((40, 1, 1), "emulator", "sm_999", []),
        (
            (4096, 1, 1),
            "NVIDIA H200",
            "sm_90",
            [
                "Nothing is seen that holds it back: it moves 8.19 kB, which takes no longer than a launch does; "
                "not measured yet."
            ],
        ),
    ],
)
def test_what_the_sizes_tell(tmp_path: Path, grid: Dim3, device: str, arch: str, said: list[str]) -> None:
    captured(tmp_path, grid, device)
    assert sentences(tmp_path, arch) == said


def test_without_a_capture_nothing_is_said(tmp_path: Path) -> None:
    assert sentences(tmp_path) == []


def test_what_a_search_found_stands_for_its_text_and_sizes(tmp_path: Path) -> None:
    workload = captured(tmp_path, (40, 1, 1))
    digest = hashlib.sha256(TEXT.rstrip("\n").encode()).hexdigest()
    limiter.remember(digest, workload, Limiter("atomics", "half of it is atomics", 2.0, True, 0.5))
    assert sentences(tmp_path) == ["Limited by atomics: half of it is atomics."]
    captured(tmp_path, (30, 1, 1))
    assert sentences(tmp_path) == ["Limited by latency: 30 blocks on 132 SMs: most of the GPU is idle."]
