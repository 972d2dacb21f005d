"""Scalars and shapes that were others in launches that a capture did not record: what is still said of them, and in
which words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.model import Arg, Buffer, Candidate, Launch, Launched, LaunchMap, Pointer, Workload
from cuda_agent.rewrite import RULES, Context
from cuda_agent.rewrite.analysis.coverage import covered

TEXT = """__global__ void scale(float *x, int n, int width)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= i % width;
}
"""
POINTER = Arg(0, bytes(8), (Pointer(0, 0, 0),))
ARGS = (POINTER, Arg(8, (1000).to_bytes(4, "little")), Arg(12, (12).to_bytes(4, "little")))
BUFFERS = (Buffer(0, 4096, (), None),)
LAUNCH = Launch("_Z5scalePfii", "scale(float*, int, int)", (4, 1, 1), (256, 1, 1), 0, ARGS, BUFFERS)
ONE = Workload("scale", "captured", (LAUNCH,), Path(), Path(), "NVIDIA H200", seen=1, varied=frozenset())


def context(**changed: Any) -> Context:
    return Context.make(Path("/project/scale.cu"), TEXT, "scale", replace(ONE, **changed))


def said(context: Context) -> str:
    rule = next(rule for rule in RULES if rule.name == "specialise")
    (assumption,) = rule.apply(context, next(iter(rule.sites(context)))).assumptions
    return assumption.text.partition(";")[0]


@pytest.mark.parametrize(
    ("changed", "launches"),
    [
        ({}, "every launch"),
        ({"seen": 40, "varied": frozenset({0, 1})}, "every launch"),
        ({"seen": 40, "ended": True}, "every launch seen"),
        ({"seen": 40, "varied": None}, "every recorded launch"),  # a bundle from before launches were compared
        ({"seen": 0, "varied": None}, "every recorded launch"),
        ({"seen": 1, "varied": None}, "every launch"),
        ({"seen": 0, "varied": None, "origin": "synthetic"}, "every launch"),
    ],
)
def test_which_launches_a_constant_speaks_of(changed: dict[str, Any], launches: str) -> None:
    assert said(context(**changed)) == f"width was 12 in {launches}"


@pytest.mark.parametrize(
    ("changed", "varied"),
    [
        ({"seen": 40}, set()),
        ({"seen": 40, "varied": frozenset({0, 1})}, {"x", "n"}),
        ({"seen": 40, "varied": None}, set()),
        ({"seen": 1, "varied": frozenset({1})}, set()),  # all launches are here, with the values of each
        ({"seen": 1, "varied": frozenset({1}), "ended": True}, {"n"}),
    ],
)
def test_what_changed(changed: dict[str, Any], varied: set[str]) -> None:
    assert context(**changed).varied == varied


def test_a_bound_that_changes_is_covered_only_as_far_as_is_known() -> None:
    assert covered(context(seen=40), "n", "x").known == "captured"
    assert covered(context(seen=40, varied=frozenset({1})), "n", "x").known == "assumed"


def test_shapes_of_launches_that_were_not_recorded() -> None:
    """In this text's words; with the scalars that never changed."""
    others = {Launched("_Z5scalePfii", (n, 1, 1), (128, 1, 1), 0) for n in (4, 9)}
    same = Launched(LAUNCH.mangled, LAUNCH.grid, LAUNCH.block, LAUNCH.shared)
    work = replace(ONE, seen=40, varied=frozenset({1}), shapes=frozenset({same, *others}))
    first = Context.make(Path("/project/scale.cu"), TEXT, "scale", work)
    made = Candidate("scale", TEXT, TEXT, (), "rule:r", launch=LaunchMap(grid=("ceil_div(gx, 2)", "gy", "gz")))
    there = first.behind(made)
    assert [shape.text() for shape in first.shapes] == ["<<<4, 256>>>"]
    assert [shape.text() for shape in first.launched] == ["<<<4, 256>>>", "<<<4, 128>>>", "<<<9, 128>>>"]
    assert [shape.text() for shape in there.launched] == ["<<<2, 256>>>", "<<<2, 128>>>", "<<<5, 128>>>"]
    assert [numbers.get("n") for numbers in there.launched_numbers] == [1000, None, None]
    assert [(n["width"], n["blockDim.x"], n["gridDim.x"]) for n in there.launched_numbers] == [
        (12, 256, 2),
        (12, 128, 2),
        (12, 128, 5),
    ]
    assert context(seen=40).launched == context().shapes
