"""Whose word makes a result "fast-math"."""

from types import SimpleNamespace

import pytest

from cuda_agent.judge import JudgeOptions, outcome
from cuda_agent.model import Candidate

BEFORE = "__global__ void k(float *x) { x[0] = expf(x[1]); }"


@pytest.mark.parametrize(
    ("after", "declared", "allowed", "expected"),
    [
        (BEFORE.replace("expf", "__expf"), "fast-math", True, "fast-math"),
        (BEFORE.replace("expf", "__expf"), "bit-exact", True, "fast-math"),  # a person's rewrite declares nothing
        (BEFORE.replace("expf", "__expf"), "fast-math", False, "reassociated"),
        (BEFORE.replace("x[1]", "x[2]"), "fast-math", True, "reassociated"),  # a claim without such an intrinsic
        (BEFORE, "bit-exact", True, "bit-exact"),
    ],
)
def test_the_class_needs_the_intrinsic_and_the_persons_word(
    after: str, declared: str, allowed: bool, expected: str
) -> None:
    candidate = Candidate("k", BEFORE, after, (), "test", declared)  # type: ignore[arg-type]
    options = JudgeOptions(allow=frozenset({"fast-math"}) if allowed else frozenset())
    assert outcome._declared(SimpleNamespace(candidate=candidate, options=options)) == expected  # type: ignore[arg-type]
