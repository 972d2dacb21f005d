"""Whether the threads of a launch reach every element below a guard's bound. A loop up to the bound does; threads that
take one element each do only when there are enough of them, and a launch with fewer means to leave the rest alone."""

from __future__ import annotations

import re

from tree_sitter import Node

from cuda_agent.errors import RuleRefused, WorkloadError
from cuda_agent.model import Assumption
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.definitions import Names
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import text
from cuda_agent.workload import launch_map


def covered(context: Context, bound: str, axis: str) -> Assumption:
    """That every launch has a thread for each element below `bound` along `axis`: seen in the captured launches where
    the bound can be computed from their arguments, assumed where others were not recorded. RuleRefused when one of them
    has fewer threads."""
    sentence = f"every launch has a thread for each {axis} below {bound}"
    at = "xyz".index(axis)
    expression = _spelled(Names(context), bound)
    values = _values(context, expression)
    told = bool(values) and not _names(expression) & context.varied
    if told:  # the same in all launches, also those that were not recorded
        values += values[:1] * (len(context.launched) - len(values))
    for shape, value in zip(context.launched, values, strict=False):
        if shape.grid[at] * shape.block[at] < value:
            raise RuleRefused(f"a captured launch has fewer threads in {axis} than {bound}: the rest is left alone")
    return Assumption(sentence, "captured" if told else "assumed")


def check_index_only(context: Context, index: Node, axes: str = "xyz") -> None:
    """RuleRefused when the kernel asks for the thread's or block's place along `axes` outside its index: another
    thread will compute the element."""
    inside = syntax.span(index)
    for n in syntax.of_type(context.body, "field_expression"):
        builtin, _, axis = text(n).partition(".")
        if builtin in ("threadIdx", "blockIdx") and axis in axes and not inside.holds(syntax.span(n)):
            raise RuleRefused(f"{text(n)} is used outside the thread's index")


def _names(expression: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", expression))


def _values(context: Context, expression: str) -> list[int]:
    """The bound in each recorded launch; empty when it is not arithmetic over captured parameters."""
    captured = {name: context.captured(name) for name in _names(expression)}
    count = len(context.shapes)
    if any(len(values) != count for values in captured.values()):
        return []
    try:
        return [
            launch_map.evaluate(expression, {name: values[i] for name, values in captured.items()})
            for i in range(count)
        ]
    except WorkloadError:
        return []


def _spelled(names: Names, expression: str, depth: int = 0) -> str:
    """The expression with local names that are declared once and never changed spelled out."""

    def value(match: re.Match[str]) -> str:
        written = names.writes.get(match[0], [])
        if match[0] in names.params or len(written) != 1 or written[0].write.value is None or depth > 4:
            return match[0]
        return f"({_spelled(names, text(written[0].write.value), depth + 1)})"

    return re.sub(r"[A-Za-z_]\w*", value, expression)
