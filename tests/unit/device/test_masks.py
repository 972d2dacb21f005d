"""Masks counted by words say what counting by elements says."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.device import masks

bools = st.lists(st.booleans(), max_size=70).map(lambda values: numpy.array(values, dtype=bool))


@given(st.lists(bools, max_size=4), st.sampled_from([8, 16, 1 << 27]))
def test_extents(many: list[numpy.ndarray], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masks, "CHUNK", chunk)
        found = masks.extents(numpy, many)
    for mask, (total, first, last) in zip(many, found, strict=True):
        where = numpy.flatnonzero(mask)
        assert total == where.size
        assert (first, last) == ((where[0], where[-1]) if where.size else (0, 0))


@given(bools)
def test_count(mask: numpy.ndarray) -> None:
    assert int(masks.count(numpy, mask)) == numpy.count_nonzero(mask)


@given(bools, st.sampled_from([1, 2, 4, 8, 3]))
def test_elements(mask: numpy.ndarray, width: int) -> None:
    expected = [bool(mask[at : at + width].any()) for at in range(0, mask.size // width * width, width)]
    assert masks.elements(numpy, mask, width).tolist() == expected


@given(st.binary(max_size=40), st.integers(0, 39), st.integers(0, 7))
def test_differ(data: bytes, at: int, shift: int) -> None:
    whole = numpy.zeros(64, dtype=numpy.uint8)
    a, b = whole[shift : shift + len(data)], numpy.frombuffer(data, dtype=numpy.uint8).copy()
    a[:] = b
    assert not masks.differ(numpy, a, b)
    if at < len(data):
        b[at] ^= 1
        assert masks.differ(numpy, a, b)
