"""The wording of hovers and hints."""

from __future__ import annotations

import dataclasses
import re

import pytest

from cuda_agent.hints import launch, sentences
from cuda_agent.hints.occupancy import limits
from cuda_agent.model import Facts, LineFacts

FACTS = Facts("_Z1kPf", "k(float*)", "sm_90", 40, 4096, 128, 64, 96, 536, "", 1200, (LineFacts(7, 9, 1, 1, 3),))
PLAIN = dataclasses.replace(FACTS, shared_bytes=0, stack_bytes=0, spill_stores=0, spill_loads=0, lines=())
# Words that would say why a kernel is slow; facts do not know that.
CAUSAL = re.compile(r"because|cause|slow|bottleneck|due to|should|hurts|problem", re.IGNORECASE)


def test_short() -> None:
    assert sentences.short(FACTS) == "40 registers · 4 KiB shared · 96 B spilled"
    assert sentences.short(PLAIN) == "40 registers"
    assert sentences.short(dataclasses.replace(PLAIN, registers=1, stack_bytes=1536)) == "1 register · 1.5 KiB stack"


def test_of_facts() -> None:
    assert [(s.category, s.text, s.line) for s in sentences.of_facts(FACTS)] == [
        ("registers", "40 registers a thread, 1,200 instructions.", None),
        ("occupancy", "4 KiB of static shared memory a block.", None),
        ("spills", "64 B of spill stores and 96 B of spill loads.", None),
        ("spills", "3 accesses to local memory (stack or spills) on this line.", 7),
    ]


def test_changes_are_shown_with_sign() -> None:
    texts = [s.text for s in sentences.of_facts(PLAIN, FACTS)]
    assert texts == [
        "40 registers a thread, 1,200 instructions.",
        "0 B of static shared memory a block (-4,096 from 4,096).",
        "No spills; 96 B of spill loads before.",
    ]
    more = dataclasses.replace(FACTS, registers=44, spill_loads=128)
    texts = [s.text for s in sentences.of_facts(more, FACTS)]
    assert texts[0] == "44 registers a thread (+4 from 40), 1,200 instructions."
    assert "128 B of spill loads (+32 from 96)" in texts[2]


def test_occupancy() -> None:
    assert [s.text for s in sentences.of_occupancy(dataclasses.replace(PLAIN, registers=44), limits("sm_90"), 256)] == [
        "Theoretical occupancy 62% on sm_90: 5 blocks of 256 threads an SM, 40 of 64 warps; bound by registers.",
        "Four registers fewer a thread (44 → 40) gives one more block an SM.",
    ]
    assert sentences.of_occupancy(dataclasses.replace(PLAIN, registers=255), limits("sm_90"), 1024) == []


def test_launch() -> None:
    problems = launch.check(PLAIN, limits("sm_90"), (2048, 1, 1))
    texts = [s.text for s in sentences.of_launch(problems)]
    assert any(
        "fails with cudaErrorInvalidValue: A block has at most 1024 threads; this one has 2048." in t for t in texts
    )


def test_no_sentence_claims_a_cause() -> None:
    all_of_them = [
        *sentences.of_facts(FACTS, PLAIN),
        *sentences.of_facts(PLAIN, FACTS),
        *sentences.of_occupancy(FACTS, limits("sm_90"), 96),
    ]
    assert len(all_of_them) > 6
    for sentence in all_of_them:
        assert not CAUSAL.search(sentence.text), sentence.text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1 << 20, "1 MiB")]
)
def test_size(count: int, text: str) -> None:
    assert sentences.size(count) == text
