"""Occupancy against known values and against NVIDIA's own calculator header, where a toolkit has it."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent.errors import UsageError
from cuda_agent.hints.occupancy import ARCHITECTURES, limits, next_step, occupancy

HEADERS = [Path("/usr/local/cuda/include"), *(Path(p) / "nvidia" / w / "include" for p in sys.path for w in ("cu13",))]
HEADER = next((folder for folder in HEADERS if (folder / "cuda_occupancy.h").is_file()), None)


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "threads", "blocks", "warps", "limiters"),
    [
        # values of NVIDIA's occupancy calculator
        ("sm_90", 32, 0, 256, 8, 64, ("registers", "warps")),
        ("sm_90", 33, 0, 256, 6, 48, ("registers",)),
        ("sm_90", 40, 0, 256, 6, 48, ("registers",)),
        ("sm_90", 64, 0, 1024, 1, 32, ("registers",)),
        ("sm_90", 255, 0, 256, 1, 8, ("registers",)),
        ("sm_90", 32, 100 * 1024, 256, 2, 16, ("shared",)),
        ("sm_90", 32, 227 * 1024, 256, 1, 8, ("shared",)),
        ("sm_90", 16, 0, 32, 32, 32, ("blocks",)),
        ("sm_80", 32, 48 * 1024, 128, 3, 12, ("shared",)),
        ("sm_75", 32, 0, 256, 4, 32, ("warps",)),
        ("sm_75", 64, 0, 256, 4, 32, ("registers", "warps")),
        ("sm_86", 32, 0, 1024, 1, 32, ("warps",)),
        ("sm_86", 40, 0, 256, 6, 48, ("registers", "warps")),
        ("sm_70", 32, 32 * 1024, 128, 3, 12, ("shared",)),
        ("sm_89", 24, 0, 64, 24, 48, ("warps", "blocks")),
        ("sm_120", 24, 0, 32, 24, 24, ("blocks",)),
    ],
)
def test_known_values(
    arch: str, registers: int, shared: int, threads: int, blocks: int, warps: int, limiters: tuple[str, ...]
) -> None:
    found = occupancy(limits(arch), registers, shared, threads)
    assert (found.blocks, found.warps, found.limiters) == (blocks, warps, limiters)
    assert found.ratio == warps / limits(arch).warps


@pytest.mark.parametrize(
    ("registers", "shared", "threads"), [(65, 0, 1024), (256, 0, 32), (32, 228 * 1024, 32), (16, 0, 1056)]
)
def test_what_does_not_fit_has_no_block(registers: int, shared: int, threads: int) -> None:
    assert occupancy(limits("sm_90"), registers, shared, threads).blocks == 0
    assert next_step(limits("sm_90"), registers, shared, threads) is None


def test_names() -> None:
    assert limits("sm_90a") == limits("sm_90")
    with pytest.raises(UsageError, match="sm_61"):
        limits("sm_61")
    with pytest.raises(UsageError, match="at least 1"):
        occupancy(limits("sm_90"), 32, 0, 0)


ORACLE = r"""
#include <stdio.h>
#include <string.h>
#include <limits.h>
#include <stdlib.h>
#include "cuda_occupancy.h"
int main(void) {
  int major, minor, warps, shared_sm, optin, reserved, regs, smem, threads;
  while (scanf("%d %d %d %d %d %d %d %d %d", &major, &minor, &warps, &shared_sm, &optin, &reserved, &regs, &smem,
               &threads) == 9) {
    cudaOccDeviceProp p; cudaOccFuncAttributes a; cudaOccDeviceState s; cudaOccResult r;
    memset(&p, 0, sizeof p); memset(&a, 0, sizeof a); memset(&s, 0, sizeof s); memset(&r, 0, sizeof r);
    p.computeMajor = major; p.computeMinor = minor; p.maxThreadsPerBlock = 1024;
    p.maxThreadsPerMultiprocessor = warps * 32; p.regsPerBlock = 65536; p.regsPerMultiprocessor = 65536;
    p.warpSize = 32; p.sharedMemPerBlock = 49152; p.sharedMemPerMultiprocessor = shared_sm; p.numSms = 1;
    p.sharedMemPerBlockOptin = optin; p.reservedSharedMemPerBlock = reserved;
    a.maxThreadsPerBlock = 1024; a.numRegs = regs; a.sharedSizeBytes = 0;
    a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; a.maxDynamicSharedSizeBytes = smem; a.numBlockBarriers = 1;
    s.carveoutConfig = 100;
    int status = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, threads, smem);
    printf("%d\n", status == CUDA_OCC_SUCCESS ? r.activeBlocksPerMultiprocessor : -1);
  }
  return 0;
}
"""


@pytest.mark.skipif(HEADER is None or shutil.which("g++") is None, reason="needs cuda_occupancy.h and g++")
def test_against_nvidias_header(tmp_path: Path) -> None:
    (tmp_path / "oracle.cpp").write_text(ORACLE)
    command = ["g++", "-w", "-O1", f"-I{HEADER}", "oracle.cpp", "-o", "oracle"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    cases = []
    lines = []
    sizes = (0, 1, 127, 128, 1024, 7000, 16384, 33333, 49152, 65536, 99 * 1024, 163 * 1024, 227 * 1024)
    for arch in ARCHITECTURES:
        sm = limits(arch)
        number = arch.removeprefix("sm_")
        for registers, shared, threads in itertools.product(
            (1, 16, 31, 32, 33, 40, 64, 72, 96, 128, 168, 255),
            sizes,
            (1, 32, 48, 64, 96, 128, 256, 384, 512, 768, 1024),
        ):
            cases.append((arch, registers, shared, threads))
            lines.append(
                f"{number[:-1]} {number[-1]} {sm.warps} {sm.shared} {sm.shared_per_block} {sm.shared_reserved} "
                f"{registers} {shared} {threads}"
            )
    done = subprocess.run(
        [str(tmp_path / "oracle")], input="\n".join(lines), capture_output=True, text=True, check=True, timeout=60
    )
    answers = [int(line) for line in done.stdout.split()]
    assert len(answers) == len(cases)
    wrong = []
    for (arch, registers, shared, threads), answer in zip(cases, answers, strict=True):
        ours = occupancy(limits(arch), registers, shared, threads).blocks
        if ours != max(answer, 0):
            wrong.append((arch, registers, shared, threads, ours, answer))
    assert not wrong, json.dumps(wrong[:10])


def test_next_step_registers_says_what_is_true() -> None:
    sm = limits("sm_90")
    assert next_step(sm, 44, 0, 256) == "Four registers fewer a thread (44 → 40) gives one more block an SM."
    assert next_step(sm, 41, 0, 256) == "One register fewer a thread (41 → 40) gives one more block an SM."
    assert next_step(sm, 40, 0, 256) == "Eight registers fewer a thread (40 → 32) gives 2 more blocks an SM."


def test_next_step_is_the_smallest() -> None:
    for arch, registers, threads in itertools.product(("sm_75", "sm_86", "sm_90"), range(24, 255, 7), (96, 256, 512)):
        sm = limits(arch)
        text = next_step(sm, registers, 0, threads)
        if text and "fewer a thread" in text:
            fewer = int(text.split("→ ")[1].split(")")[0])
            now = occupancy(sm, registers, 0, threads).blocks
            assert occupancy(sm, fewer, 0, threads).blocks > now
            assert occupancy(sm, fewer + 1, 0, threads).blocks == now


def test_next_step_shared() -> None:
    sm = limits("sm_90")
    shared = 40 * 1024
    text = next_step(sm, 16, shared, 128)
    assert text is not None
    fewer = int(text.split(" ")[0])
    now = occupancy(sm, 16, shared, 128).blocks
    assert occupancy(sm, 16, shared - fewer, 128).blocks == now + 1
    assert occupancy(sm, 16, shared - fewer + 1, 128).blocks == now
    assert text.endswith("gives one more block an SM.")


def test_next_step_where_there_is_none() -> None:
    assert next_step(limits("sm_90"), 32, 0, 256) is None, "full"
    assert next_step(limits("sm_86"), 16, 0, 1024) is None, "warps: only another block size would help"
    text = next_step(limits("sm_90"), 16, 0, 32)
    assert text is not None
    assert "at most 32 blocks" in text
