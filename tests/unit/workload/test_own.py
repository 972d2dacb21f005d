"""Launches of a template and of its explicit specialisations are told apart, though recorded under one name."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.model import Launch, Workload
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module
from cuda_agent.workload.own import is_specialised, own

TEXT = """
namespace a {
template <typename T, int N> __global__ void k(T *x) {}
template <> __global__ void k<float, 3>(float *x) {}
template <> __global__ void k<unsigned int, 4>(unsigned int *x) {}
}
template <typename T> __global__ void plain(T *x) {}
"""
MODULE = module(Document("k.cu", TEXT))


def workload(*mangled: str) -> Workload:
    launches = tuple(Launch(m, m, (1, 1, 1), (1, 1, 1), 0, (), ()) for m in mangled)
    return Workload("a::k", "captured", launches, Path(), Path(), "NVIDIA H200", seen=9)


FLOAT_3, FLOAT_4, UINT_4 = "_ZN1a1kIfLi3EEEvPT_", "_ZN1a1kIfLi4EEEvPT_", "_ZN1a1kIjLi4EEEvPT_"


@pytest.mark.parametrize(
    ("kernel", "launches"),
    [("a::k", [FLOAT_4]), ("a::k<float, 3>", [FLOAT_3]), ("a::k<unsigned int, 4>", [UINT_4])],
)
def test_each_text_has_its_own_launches(kernel: str, launches: list[str]) -> None:
    found = own(workload(FLOAT_3, FLOAT_4, UINT_4), MODULE, kernel)
    assert found is not None
    assert (found.kernel, [x.mangled for x in found.launches], found.seen) == (kernel, launches, 9)


def test_without_its_own_there_is_none() -> None:
    assert own(workload(FLOAT_3), MODULE, "a::k") is None
    assert own(workload(FLOAT_4), MODULE, "a::k<float, 3>") is None


def test_an_ordinary_template_has_all() -> None:
    work = workload("_Z5plainIfEvPT_", "_Z5plainIdEvPT_")
    assert own(work, MODULE, "plain") is work
    assert (is_specialised(MODULE, "plain"), is_specialised(MODULE, "a::k")) == (False, True)
