"""Integer polynomials over named values: Σ coefficient · Π atoms, always in one normal form, so that equal means equal.

An atom is a name ("threadIdx.x", "n", a loop variable) or an operation that is no polynomial (a division, a remainder,
a load), kept whole with its operands: it knows what it depends on, and can be evaluated when its operator is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property


def divide(a: int, b: int) -> int:
    """C's division: towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


OPERATIONS: dict[str, Callable[..., int]] = {
    "/": divide,
    "%": lambda a, b: a - b * divide(a, b),
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "~": lambda a: ~a,
    "!": lambda a: int(not a),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "&&": lambda a, b: int(bool(a) and bool(b)),
    "||": lambda a, b: int(bool(a) or bool(b)),
    "?": lambda c, a, b: a if c else b,
    "min": lambda a, b: min(a, b),
    "max": lambda a, b: max(a, b),
}


@dataclass(frozen=True)
class Atom:
    """A name (`op` is ""), or an operation on `args`. `depends` names everything its value may depend on, itself
    included when it is a name."""

    name: str
    op: str = ""
    args: tuple[Poly, ...] = ()
    depends: frozenset[str] = field(default=frozenset(), compare=False)

    def __str__(self) -> str:
        return self.name

    @cached_property
    def key(self) -> tuple[str, str]:
        return self.name, self.op


Monomial = tuple[Atom, ...]


@dataclass(frozen=True)
class Poly:
    """`terms`: (monomial, coefficient ≠ 0), sorted; the empty monomial is the constant term."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    @classmethod
    def _of(cls, terms: Mapping[Monomial, int]) -> Poly:
        kept = [(m, c) for m, c in terms.items() if c]
        return cls(tuple(sorted(kept, key=lambda term: [a.key for a in term[0]])))

    @classmethod
    def constant(cls, value: int) -> Poly:
        return cls._of({(): value})

    @classmethod
    def symbol(cls, name: str, depends: Iterable[str] = ()) -> Poly:
        return cls._of({(Atom(name, depends=frozenset((name, *depends))),): 1})

    @classmethod
    def operation(cls, op: str, *args: Poly, name: str | None = None, depends: Iterable[str] = ()) -> Poly:
        """`op` applied to the operands, simplified to a polynomial where that is exact. An `op` that OPERATIONS lacks
        (a load, a call) needs a `name` that tells its value from others."""
        simple = _simplified(op, args)
        if simple is not None:
            return simple
        on = frozenset(depends).union(*(a.names for a in args)) if args else frozenset(depends)
        return cls._of({(Atom(name or _spelled(op, args), op, args, on),): 1})

    # ------------------------------------------------------------ algebra

    def __add__(self, other: Poly | int) -> Poly:
        sums = dict(self.terms)
        for monomial, c in _poly(other).terms:
            sums[monomial] = sums.get(monomial, 0) + c
        return Poly._of(sums)

    def __neg__(self) -> Poly:
        return Poly(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Poly | int) -> Poly:
        return self + -_poly(other)

    def __mul__(self, other: Poly | int) -> Poly:
        products: dict[Monomial, int] = {}
        for m, c in self.terms:
            for n, d in _poly(other).terms:
                both = tuple(sorted((*m, *n), key=lambda a: a.key))
                products[both] = products.get(both, 0) + c * d
        return Poly._of(products)

    __radd__ = __add__
    __rmul__ = __mul__

    # ------------------------------------------------------------ questions

    @property
    def value(self) -> int | None:
        """The number it is, when it is one."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        return frozenset(a for m, _ in self.terms for a in m)

    @cached_property
    def names(self) -> frozenset[str]:
        """Everything it may depend on, through operands and definitions too."""
        return frozenset().union(*(a.depends for a in self.atoms)) if self.terms else frozenset()

    def depends(self, symbol: str) -> bool:
        return symbol in self.names

    def stride(self, symbol: str) -> Poly | None:
        """What one more of `symbol` adds: its coefficient. None when the polynomial is not affine in it."""
        return self.split(symbol)[0]

    def split(self, symbol: str) -> tuple[Poly | None, Poly]:
        """(coefficient, rest) with self = coefficient · symbol + rest; (None, self) when it is not affine in it."""
        coefficient: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for monomial, c in self.terms:
            others = tuple(a for a in monomial if a.key != (symbol, ""))
            if len(monomial) - len(others) > 1 or any(symbol in a.depends for a in others):
                return None, self
            (coefficient if len(others) < len(monomial) else rest)[others] = c
        return Poly._of(coefficient), Poly._of(rest)

    def substitute(self, values: Mapping[str, Poly | int]) -> Poly:
        """Names replaced, also inside operations."""
        if not self.names & values.keys():
            return self
        sums: dict[Monomial, int] = {}
        for monomial, c in self.terms:
            kept: list[Atom] = []
            product: Poly | None = None
            for atom in monomial:
                if atom.name not in values and not (atom.op and atom.depends & values.keys()):
                    kept.append(atom)
                    continue
                new = _substituted(atom, values)
                if new.value is not None:
                    c *= new.value
                else:
                    product = new if product is None else product * new
            whole = Poly(((tuple(kept), c),)) if c else Poly()
            for m, d in (whole if product is None else whole * product).terms:
                sums[m] = sums.get(m, 0) + d
        return Poly._of(sums)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The number. KeyError names the first value that is not given; ZeroDivisionError as in C."""
        total = 0
        for monomial, c in self.terms:
            for atom in monomial:
                c *= _evaluated(atom, values)
            total += c
        return total

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        parts = []
        for monomial, c in self.terms:
            factors = [str(a) for a in monomial]
            parts.append("*".join(factors if factors and c == 1 else [str(c), *factors]))
        return " + ".join(parts)


def _poly(value: Poly | int) -> Poly:
    return Poly.constant(value) if isinstance(value, int) else value


def _spelled(op: str, args: tuple[Poly, ...]) -> str:
    if op == "?":
        return f"({args[0]} ? {args[1]} : {args[2]})"
    if op.isalpha():
        return f"{op}({', '.join(map(str, args))})"
    left = [f"({a})" if len(a.terms) > 1 else str(a) for a in args]
    return f"({op}{left[0]})" if len(left) == 1 else f"({left[0]} {op} {left[1]})"


def _simplified(op: str, args: tuple[Poly, ...]) -> Poly | None:
    numbers = [a.value for a in args]
    known = [n for n in numbers if n is not None]
    if op in OPERATIONS and len(known) == len(args):
        try:
            return Poly.constant(OPERATIONS[op](*known))
        except (ZeroDivisionError, ValueError):  # x / 0, x << -1: whatever the program means, it stays as it is
            return None
    last = numbers[-1] if numbers else None
    if op == "<<" and last is not None and 0 <= last < 63:
        return args[0] * (1 << last)
    if op in ("/", "%") and last:
        whole = all(c % last == 0 for _, c in args[0].terms)
        if whole:
            return Poly() if op == "%" else Poly(tuple((m, divide(c, last)) for m, c in args[0].terms))
    if op == "?" and numbers[0] is not None:
        return args[1] if numbers[0] else args[2]
    if op in ("?", "min", "max") and args[-1] == args[-2]:
        return args[-1]
    return None


def _substituted(atom: Atom, values: Mapping[str, Poly | int]) -> Poly:
    if not atom.op:
        if atom.name in values:
            return _poly(values[atom.name])
        return Poly._of({(atom,): 1})
    if not atom.depends & values.keys():
        return Poly._of({(atom,): 1})
    args = [a.substitute(values) for a in atom.args]
    if atom.op in OPERATIONS:
        return Poly.operation(atom.op, *args)
    changed = atom.name if tuple(args) == atom.args else f"{atom.name}[{', '.join(map(str, args))}]"
    return Poly.operation(atom.op, *args, name=changed, depends=atom.depends)


def _evaluated(atom: Atom, values: Mapping[str, int]) -> int:
    if atom.name in values:
        return values[atom.name]
    if atom.op in OPERATIONS:
        return OPERATIONS[atom.op](*(a.evaluate(values) for a in atom.args))
    raise KeyError(atom.name)
