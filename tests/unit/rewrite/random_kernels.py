"""Random small kernels that are run by brute force: the text for the analyses, and what each access really did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from cuda_agent.rewrite.analysis.polynomial import OPERATIONS

INPUTS = ("threadIdx.x", "blockIdx.x", "blockDim.x", "n", "m")
LOCALS = ("a", "b", "c")


@dataclass
class Run:
    """One thread's run: values of the inputs and locals, and per access number the (index, loop variables) seen."""

    values: dict[str, int]
    seen: dict[int, list[tuple[int, dict[str, int]]]] = field(default_factory=dict)
    loops: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """An expression or statement: its text and what it does."""

    text: str
    run: Callable[[Run], int]


def _variable(name: str) -> Piece:
    return Piece(name, lambda r: r.values[name])


def _binary(op: str, a: Piece, b: Piece) -> Piece:
    function = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y}.get(op) or OPERATIONS[op]
    return Piece(f"({a.text} {op} {b.text})", lambda r: function(a.run(r), b.run(r)))


def _wrapped(form: str, a: Piece) -> Piece:
    return Piece(form.format(a.text), a.run)


def _macro(a: Piece, b: Piece) -> Piece:
    return Piece(f"IDX({a.text}, {b.text})", lambda r: a.run(r) + b.run(r) * r.values["n"])


def expressions(names: tuple[str, ...]) -> st.SearchStrategy[Piece]:
    leaves = st.sampled_from(names).map(_variable) | st.integers(0, 9).map(lambda k: Piece(str(k), lambda _: k))

    def grow(inner: st.SearchStrategy[Piece]) -> st.SearchStrategy[Piece]:
        small = st.integers(1, 5).map(lambda k: Piece(str(k), lambda _: k))
        return (
            st.builds(_binary, st.sampled_from("+-*"), inner, inner)
            | st.builds(_binary, st.sampled_from(("/", "%", "<<", ">>", "&")), inner, small)
            | st.builds(_wrapped, st.sampled_from(("(int)({})", "static_cast<int>({})", "size_t({})")), inner)
            | st.builds(_macro, inner, inner)
        )

    return st.recursive(leaves, grow, max_leaves=5)


@dataclass
class Program:
    text: str
    run: Callable[[Run], None]
    accesses: int


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """`int` locals declared at the start, assignments, `if` and counted `for`s, and stores `out[index] = k` whose
    number k names them."""
    count = [0]

    def block(depth: int, names: tuple[str, ...], pad: str) -> tuple[str, list[Callable[[Run], None]]]:
        lines, steps = [], []
        for _ in range(draw(st.integers(1, 4 if depth else 6))):
            kinds = ["assign", "store", "store", "update"] + (["if", "for"] if depth < 2 else [])
            kind = draw(st.sampled_from(kinds))
            if kind in ("assign", "update"):
                target = draw(st.sampled_from(LOCALS))
                value = draw(expressions(names))
                op = "=" if kind == "assign" else draw(st.sampled_from(("+=", "-=", "*=")))
                lines.append(f"{pad}{target} {op} {value.text};")
                steps.append(_assign(target, op, value))
            elif kind == "store":
                value, number = draw(expressions(names)), count[0]
                count[0] += 1
                lines.append(f"{pad}out[{value.text}] = {number};")
                steps.append(_store(number, value))
            elif kind == "if":
                condition = draw(expressions(names))
                text, inner = block(depth + 1, names, pad + "  ")
                lines.append(f"{pad}if ({condition.text} > 3) {{\n{text}\n{pad}}}")
                steps.append(_if(condition, inner))
            else:
                variable = f"i{count[0]}"
                count[0] += 1
                start, trips, step = (
                    draw(expressions(("threadIdx.x", "n", "m"))),
                    draw(st.integers(0, 3)),
                    draw(st.integers(1, 3)),
                )
                text, inner = block(depth + 1, (*names, variable), pad + "  ")
                bound = f"{start.text} + {trips * step}"
                head = f"int {variable} = {start.text}; {variable} < {bound}; {variable} += {step}"
                lines.append(f"{pad}for ({head}) {{\n{text}\n{pad}}}")
                steps.append(_for(variable, start, trips, step, inner))
        return "\n".join(lines), steps

    first = [draw(expressions(INPUTS)) for _ in LOCALS]
    declared = [f"  int {name} = {value.text};" for name, value in zip(LOCALS, first, strict=True)]
    text, steps = block(0, (*INPUTS, *LOCALS), "  ")

    def run(r: Run) -> None:
        for name, value in zip(LOCALS, first, strict=True):
            r.values[name] = value.run(r)
        for step in steps:
            step(r)

    head = "#define IDX(i,j) ((i)+(j)*n)\n__global__ void k(int *out, int n, int m)\n{\n"
    return Program(head + "\n".join(declared) + "\n" + text + "\n}\n", run, count[0])


def _assign(target: str, op: str, value: Piece) -> Callable[[Run], None]:
    def step(r: Run) -> None:
        by, old = value.run(r), r.values[target]
        r.values[target] = {"=": by, "+=": old + by, "-=": old - by, "*=": old * by}[op]

    return step


def _store(number: int, value: Piece) -> Callable[[Run], None]:
    def step(r: Run) -> None:
        r.seen.setdefault(number, []).append((value.run(r), dict(r.loops)))

    return step


def _if(condition: Piece, inner: list[Callable[[Run], None]]) -> Callable[[Run], None]:
    def step(r: Run) -> None:
        if condition.run(r) > 3:
            for one in inner:
                one(r)

    return step


def _for(
    variable: str, start: Piece, trips: int, step: int, inner: list[Callable[[Run], None]]
) -> Callable[[Run], None]:
    def go(r: Run) -> None:
        first = start.run(r)
        for k in range(trips):
            r.values[variable] = r.loops[variable] = first + k * step
            for one in inner:
                one(r)
        r.loops.pop(variable, None)

    return go
