"""Launch maps: evaluation, composition and fitting agree with each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.errors import WorkloadError
from cuda_agent.model import LaunchMap
from cuda_agent.workload.launch_map import Shape, apply, compose, evaluate, fit

dims = st.tuples(st.integers(1, 5000), st.integers(1, 64), st.integers(1, 8))
forms = st.sampled_from(["gx", "gx * 4", "ceil_div(gx, 3)", "ceil_div(gx * bx, 64)", "max(1, gx / 2)", "7"])
maps = st.builds(
    LaunchMap,
    st.tuples(forms, st.just("gy"), st.just("gz")),
    st.tuples(st.sampled_from(["bx", "64"]), st.just("by"), st.just("bz")),
)


@given(maps, maps, dims, dims)
def test_composition_is_application_in_turn(outer: LaunchMap, inner: LaunchMap, grid, block) -> None:
    first = apply(inner, grid, block, 16)
    assert apply(compose(outer, inner), grid, block, 16) == apply(outer, first.grid, first.block, first.shared)


@given(maps, st.lists(st.tuples(dims, dims), min_size=1, max_size=4))
def test_a_fitted_map_reproduces_its_pairs(mapping: LaunchMap, shapes) -> None:
    pairs = [(Shape(g, b, 0), apply(mapping, g, b, 0)) for g, b in shapes]
    try:
        found = fit(pairs)
    except WorkloadError:
        return  # max(…) has no simple form
    assert all(apply(found, a.grid, a.block, a.shared) == b for a, b in pairs)


def test_blocks_that_share_one_where_none_is_left_over() -> None:
    seen = ((16, 2, 256), (11, 11, 32))
    pairs = [(Shape((n, 1, 1), (128, 1, 1), 0), Shape((m, 1, 1), (b, 1, 1), 0)) for n, m, b in seen]
    found = fit(pairs)
    assert apply(found, (24, 1, 1), (128, 1, 1), 0) == Shape((3, 1, 1), (256, 1, 1), 0)
    assert apply(found, (25, 1, 1), (128, 1, 1), 0) == Shape((25, 1, 1), (32, 1, 1), 0)


@pytest.mark.parametrize("text", ["__import__('os')", "gx.real", "q", "gx +", "1.5", "gx ** 2", "f(gx)"])
def test_only_integer_arithmetic_is_evaluated(text: str) -> None:
    with pytest.raises(WorkloadError):
        evaluate(text, {"gx": 3})
