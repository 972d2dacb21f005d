"""Digits of a flat index: whatever a view says of a value is true of its number."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.rewrite import Context, syntax
from cuda_agent.rewrite.analysis import affine, digits
from cuda_agent.rewrite.analysis.digits import View
from cuda_agent.rewrite.analysis.polynomial import Poly

INDEX = Poly.symbol("i")
STEPS = st.lists(
    st.tuples(st.sampled_from("/%"), st.lists(st.sampled_from("abc23"), min_size=1, max_size=3)), max_size=4
)
NUMBERS = st.fixed_dictionaries({"i": st.integers(0, 10**6), **{n: st.integers(1, 40) for n in "abc"}})


def product(factors: list[str]) -> Poly:
    found = Poly.constant(1)
    for one in factors:
        found = found * (int(one) if one.isdigit() else Poly.symbol(one))
    return found


@given(STEPS, NUMBERS)
def test_a_view_is_its_value(steps: list[tuple[str, list[str]]], numbers: dict[str, int]) -> None:
    value = INDEX
    for op, factors in steps:
        value = Poly.operation(op, value, product(factors))
    seen = digits.view(value, INDEX)
    if seen is not None:
        number = numbers["i"] // seen.below.evaluate(numbers)
        assert value.evaluate(numbers) == (number if seen.radix is None else number % seen.radix.evaluate(numbers))


@given(st.lists(st.sampled_from("abc23"), max_size=4), st.lists(st.sampled_from("abc23"), max_size=3), NUMBERS)
def test_a_quotient_leaves_nothing(value: list[str], by: list[str], numbers: dict[str, int]) -> None:
    whole, divisor = product(value), product(by)
    found = digits.quotient(whole, divisor)
    assert found is None or found * divisor == whole
    assert digits.quotient(whole * divisor, divisor) == whole


def chain(declarations: str, bound: str) -> dict[str, View]:
    head = "__global__ void k(int *x, int a, int b, int c)"
    index = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
    code = f"{head} {{ {index} {declarations} int total = {bound}; if (i < total) x[i] = 0; }}"
    context = Context.make(Path("k.cu"), code, "k")
    values = {w.name: w.value for ws in context.written.values() for w in ws}
    value, total = values["i"], values["total"]
    assert value is not None
    assert total is not None
    assert syntax.thread_ids(context.body)
    found = digits.chain(context, affine.of(context, value), affine.of(context, total))
    return {digit.variable.name: digit.view for digit in found}


A, B, C = (Poly.symbol(name) for name in "abc")


def test_a_chain_is_the_whole_index() -> None:
    nested = "int z = i / (a * b); int rest = i % (a * b); int y = rest / a; int x0 = rest % a;"
    known = {"x0": View(digits.ONE, A), "y": View(A, B), "z": View(A * B, C)}
    assert chain(nested, "a * b * c") == known
    assert list(chain(nested, "c * b * a")) == ["x0", "y", "z"]


def test_a_digit_that_is_missing_or_larger_than_the_total_makes_no_chain() -> None:
    assert chain("int x0 = i % a; int z = i / (a * b);", "a * b * c") == {}
    assert chain("int x0 = i % a; int y = i / a;", "a * b + 1") == {}


def test_an_index_that_is_not_taken_apart_is_its_own_digit() -> None:
    assert chain("", "a") == {"i": View(digits.ONE, A)}
