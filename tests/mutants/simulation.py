"""Judges an archive on the simulated GPU (`tests/simulated.py`): launches captured on the emulator, kernels that are
the archive's Python twins.

`original.py` and `candidate.py` hold a function of the kernel's name that takes the launch's configuration and the raw
bytes of each argument, does the work and returns its microseconds. `expect_simulated` is the exit code with the gate
that stops it, or `0 faster`, or `0` for a kernel that must not be called so; `says_simulated` a regular expression on
the gate's sentence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import judged

from archive import Archive
from cuda_agent.errors import CompileError
from cuda_agent.judge import JudgeOptions, to_json
from cuda_agent.model import Binary, Build, Facts
from cuda_agent.verify import verify
from cuda_agent.workload import bundle
from simulated import WEATHERS, SimulatedDevice

PRELUDE = """
def number(raw): return int.from_bytes(raw, "little")
def real(raw): return numpy.frombuffer(raw, dtype=numpy.float32)[0]
def floats(raw, n): return numpy.ctypeslib.as_array((ctypes.c_float * number(n)).from_address(number(raw)))
state = {}
"""
OPTIONS = JudgeOptions(rounds=20, timing_budget_s=60.0)  # rounds, not seconds, end it


def evidence(
    archive: Archive,
    emulator: judged.Bench,
    tamper: Callable[[Binary, bool], Binary] = lambda binary, is_original: binary,
    seed: int = 3,
) -> dict[str, Any]:
    """The evidence object. `tamper` may change what the compiler gives for the original (true) and the candidate."""
    request, settings = emulator.request(archive), archive.settings
    emulator.capture(request, settings)
    found = bundle.find(request.original, settings["kernel"])
    assert found is not None
    mangled = found.launches[0].mangled
    twins = {
        archive.files["original.cu"]: archive.files["original.py"],
        judged.candidate_text(archive): archive.files["candidate.py"],
    }

    def compile_(build: Build, text: str) -> Binary:
        if text not in twins:  # another version of the text, in float64 for one
            raise CompileError("there is no twin of this text", "")
        code = f"{PRELUDE}\n{twins[text]}\n{mangled} = {settings['kernel']}\n".encode()
        digest = hashlib.sha256(code).hexdigest()
        facts = Facts(mangled, found.launches[0].demangled, "sm_90", 32, 0, 0, 0, 0, 0, 0, digest, 10)
        binary = Binary("host", code, digest, {mangled: facts}, "nvcc", build.flags, "host 1.0")  # type: ignore[arg-type]
        return tamper(binary, text == archive.files["original.cu"])

    device = SimulatedDevice(WEATHERS["quiet"], seed, compile_)
    done = verify(replace(request, args=(), options=replace(OPTIONS, seed=seed)), device=device)
    return to_json(done.verdict, candidate=done.candidate, diff=done.diff)
