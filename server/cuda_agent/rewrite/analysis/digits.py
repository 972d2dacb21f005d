"""A flat index that a kernel takes apart by / and %: `x = i % w`, `y = i / w % h`, `z = i / (w * h)` are its digits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cuda_agent.rewrite.analysis import affine, names
from cuda_agent.rewrite.analysis.names import HasKernel, Variable
from cuda_agent.rewrite.analysis.polynomial import OPERATIONS, Atom, Poly

ONE = Poly.constant(1)


@dataclass(frozen=True)
class View:
    """(index / below) % radix, of an index that is not negative; without a radix, index / below."""

    below: Poly
    radix: Poly | None


@dataclass(frozen=True)
class Digit:
    """A variable that is declared as a view of the index."""

    variable: Variable
    view: View

    @property
    def symbol(self) -> str:
        return self.variable.symbol


def view(value: Poly, index: Poly) -> View | None:
    """What the value is of the index; None when it is no view. (i / a) / b = i / (a · b); i % (a · b) / a = i / a % b;
    i % (a · b) % a = i % a."""
    if value == index:
        return View(ONE, None)
    atom = _alone(value)
    if atom is None or atom.op not in ("/", "%"):
        return None
    inner, by = view(atom.args[0], index), atom.args[1]
    if inner is None:
        return None
    left = None if inner.radix is None else quotient(inner.radix, by)
    if inner.radix is not None and left is None:
        return None
    return View(inner.below * by, left) if atom.op == "/" else View(inner.below, by)


def quotient(value: Poly, by: Poly) -> Poly | None:
    """value / by where that is a polynomial without remainder, `by` being one product; else None."""
    if len(by.terms) != 1:
        return ONE if value == by else None
    monomial, coefficient = by.terms[0]
    found = Poly()
    for factors, number in value.terms:
        left = list(factors)
        for atom in monomial:
            if atom not in left:
                return None
            left.remove(atom)
        if number % coefficient:
            return None
        found = found + Poly(((tuple(left), number // coefficient),))
    return found


def chain(where: HasKernel, index: Poly, total: Poly) -> tuple[Digit, ...]:
    """Variables that together are the index below `total`, the lowest digit first, each with its radix: index =
    d0 + r0 · (d1 + r1 · (d2 + …)) and total = r0 · r1 · r2 · …; as many as there can be. The index itself where it is
    not taken apart; empty when there are none."""
    found = [Digit(v, seen) for v, seen in _views(where, index)]
    apart = [digit for digit in found if digit.view != View(ONE, None)]
    if not apart:
        return tuple(Digit(digit.variable, View(ONE, total)) for digit in found[:1])
    return max(_chains(apart, ONE, total), key=len, default=())


def _views(where: HasKernel, index: Poly) -> Iterator[tuple[Variable, View]]:
    for v in names.of(where).variables:
        if v.param or v.pointer or v.extents or v.escapes or [w.op for w in v.writes] != ["init"]:
            continue
        value = v.writes[0].value
        seen = view(affine.of(where, value), index) if value is not None else None
        if seen is not None:
            yield v, seen


def _chains(found: Sequence[Digit], below: Poly, total: Poly) -> Iterator[tuple[Digit, ...]]:
    for digit in (d for d in found if d.view.below == below):
        rest = quotient(total, below)
        if digit.view.radix is None:
            if rest is not None:
                yield (Digit(digit.variable, View(below, rest)),)
            continue
        higher = below * digit.view.radix
        if higher == total:
            yield (digit,)
        yield from ((digit, *more) for more in _chains(found, higher, total))


def named(value: Poly, index: Poly, digits: Sequence[Digit]) -> Poly:
    """The value with the digits' symbols in place of what they stand for."""
    known = {(d.view.below, d.view.radix): d.symbol for d in digits}
    known |= {(d.view.below, None): d.symbol for d in digits[-1:]}
    found = _named(value, index, known)
    if len(digits) == 1:  # the index itself: threadIdx.x is what it has beyond the block's first
        step, first = index.split("threadIdx.x")
        if step == ONE:
            found = found.substitute({"threadIdx.x": Poly.symbol(digits[0].symbol) - first})
    return found


def _named(value: Poly, index: Poly, known: dict[tuple[Poly, Poly | None], str]) -> Poly:
    found = Poly()
    for factors, number in value.terms:
        product = Poly.constant(number)
        for atom in factors:
            product = product * _atom(atom, index, known)
        found = found + product
    return found


def _atom(atom: Atom, index: Poly, known: dict[tuple[Poly, Poly | None], str]) -> Poly:
    whole = Poly((((atom,), 1),))
    seen = view(whole, index)
    if seen is not None and (symbol := known.get((seen.below, seen.radix))) is not None:
        return Poly.symbol(symbol)
    if atom.op in OPERATIONS and atom.args:
        return Poly.operation(atom.op, *(_named(a, index, known) for a in atom.args))
    return whole


def _alone(value: Poly) -> Atom | None:
    """The one atom that the value is."""
    if len(value.terms) != 1 or value.terms[0][1] != 1 or len(value.terms[0][0]) != 1:
        return None
    return value.terms[0][0][0]
