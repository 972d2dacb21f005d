"""Will this launch fail?"""

from __future__ import annotations

import dataclasses

import pytest

from cuda_agent.hints import launch
from cuda_agent.hints.occupancy import limits, occupancy
from cuda_agent.model import Facts

FACTS = Facts("_Z1kPf", "k(float*)", "sm_90", 32, 0, 0, 0, 0, 536, "", 10)
SM = limits("sm_90")


def facts(**more: int) -> Facts:
    return dataclasses.replace(FACTS, **more)  # type: ignore[arg-type]


def texts(*args: object, **more: object) -> list[str]:
    return [problem.text for problem in launch.check(*args, **more)]  # type: ignore[arg-type]


def test_a_launch_that_fits() -> None:
    assert launch.check(FACTS, SM, (32, 32, 1), grid=(2**31 - 1, 65535, 65535), dynamic_shared=227 * 1024) == ()


def test_too_many_threads() -> None:
    assert texts(FACTS, SM, (33, 32, 1)) == ["A block has at most 1024 threads; this one has 1056."]


def test_registers_times_threads() -> None:
    (problem,) = launch.check(facts(registers=96), SM, (1024, 1, 1))
    assert problem.error == "cudaErrorLaunchOutOfResources"
    assert "96 registers × 1024 threads need 98304 registers" in problem.text
    assert "At most 64 a thread fit" in problem.text
    assert launch.check(facts(registers=64), SM, (1024, 1, 1)) == ()


def test_shared_bytes() -> None:
    (text,) = texts(facts(shared_bytes=1024), SM, (32, 1, 1), dynamic_shared=227 * 1024)
    assert text == "233472 bytes of shared memory a block (1024 static and 232448 dynamic); sm_90 has 232448."
    assert texts(FACTS, limits("sm_86"), (32, 1, 1), dynamic_shared=100 * 1024)
    assert not texts(FACTS, limits("sm_86"), (32, 1, 1), dynamic_shared=99 * 1024)


def test_launch_bounds() -> None:
    assert texts(FACTS, SM, (512, 1, 1), max_threads=256) == [
        "The kernel is built for at most 256 threads a block; this launch has 512."
    ]
    assert not texts(FACTS, SM, (256, 1, 1), max_threads=256)


@pytest.mark.parametrize(
    ("block", "grid", "word"),
    [
        ((0, 1, 1), None, "block's x is 0"),
        ((1, 1, 65), None, "block's z is 65"),
        ((1, 1, 1), (0, 1, 1), "grid's x is 0"),
        ((1, 1, 1), (1, 65536, 1), "grid's y is 65536"),
        ((1, 1, 1), (2**31, 1, 1), "grid's x is"),
    ],
)
def test_dimensions(block: tuple[int, int, int], grid: tuple[int, int, int] | None, word: str) -> None:
    assert any(word in text for text in texts(FACTS, SM, block, grid=grid))


def test_every_problem_is_named() -> None:
    assert len(texts(facts(registers=255), SM, (1024, 1, 65), grid=(0, 1, 1), dynamic_shared=1 << 20)) == 4


@pytest.mark.parametrize("threads", [1, 32, 96, 256, 512, 640, 1024])
def test_max_registers_agrees_with_occupancy(threads: int) -> None:
    most = launch.max_registers(SM, threads)
    assert occupancy(SM, most, 0, threads).blocks >= 1
    assert most == 255 or occupancy(SM, most + 1, 0, threads).blocks == 0


def test_opt_in() -> None:
    assert not launch.needs_opt_in(FACTS, SM, 48 * 1024)
    assert launch.needs_opt_in(FACTS, SM, 48 * 1024 + 1)
    assert not launch.needs_opt_in(FACTS, SM, 1 << 20), "that one fails whatever the program does"


@pytest.mark.parametrize(
    ("text", "dims"),
    [
        ("256", (256, 1, 1)),
        (" dim3(16, 16) ", (16, 16, 1)),
        ("dim3{8,8,2}", (8, 8, 2)),
        ("{32, 4}", (32, 4, 1)),
        ("32*4", (128, 1, 1)),
        ("1'024u", (1024, 1, 1)),
        ("n", None),
        ("BLOCK", None),
        ("dim3(n, 1)", None),
        ("256 + 1", None),
        ("", None),
        ("1,2,3,4", None),
    ],
)
def test_literal_dimensions(text: str, dims: tuple[int, int, int] | None) -> None:
    assert launch.dims(text) == dims
