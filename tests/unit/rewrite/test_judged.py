"""What the rules on memory make of real launches passes every gate that needs no GPU: captured from a program on the
emulator, at a size that suits vectors and at one that does not. Nothing is mocked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.device import Device, open_device
from cuda_agent.errors import RuleRefused
from cuda_agent.inputs import find_or_make
from cuda_agent.rewrite import RULES, Context
from cuda_agent.source.documents import Document, read
from cuda_agent.source.symbols import module
from cuda_agent.toolchain.build import find_build
from cuda_agent.verify import VerifyRequest, verify

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, for the emulator")
PROGRAM = Path(__file__).parents[2] / "corpus" / "memory_rules.cu"


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with open_device("emulator") as opened:
        yield opened


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copy(PROGRAM, tmp_path_factory.mktemp("program")))


@pytest.mark.parametrize(
    ("kernel", "labels"),
    [
        ("rows", ["vector-loop(bytes=16)"]),
        ("dots", ["vector-loop(bytes=16)"]),
        ("dots", ["row-per-warp(lanes=32)", "vector-loop(bytes=8)"]),
        ("means", ["batch-loads(elements=4)"]),
        ("gate", ["vector-inner(width=4)", "stream-hints(what=stores)"]),
        ("spread", ["vector-columns(columns=4)"]),
        ("shade", ["coarsen-rows(axis=y, rows=2)"]),
        ("axpy", ["vectorize(width=2)"]),
        ("fade", ["inline(function=fade_row)", "batch-walk(elements=16)"]),
        ("fade", ["inline(function=fade_row)", "stage-walk(columns=32)"]),
        ("turns", ["prefetch"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_is_verified(device: Device, program: Path, tmp_path: Path, kernel: str, labels: list[str]) -> None:
    text = read(program).text
    work = find_or_make(program, module(Document(str(program), text)), kernel, find_build(program), "emulator")
    made = None
    for label in labels:
        now = made.text if made is not None else text
        context = Context.make(program, now, kernel, work, original=text, base=made)
        rule = next(r for r in RULES if r.name == label.split("(")[0])
        try:
            made = next(rule.apply(context, site) for site in rule.sites(context) if site.label == label)
        except RuleRefused as refused:
            pytest.fail(f"{label}: {refused}")
    assert made is not None
    candidate = tmp_path / "candidate.cu"
    candidate.write_text(made.text)
    verdict = verify(VerifyRequest(program, candidate, kernel), device=device).verdict
    assert verdict.status == "verified", [f"{g.id} {g.status}: {g.detail}" for g in verdict.gates]
