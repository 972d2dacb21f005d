"""Tools that look, and the words in which a model is told what came of its text."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cuda_agent.agent.policies import State, Step
from cuda_agent.agent.tools.desk import Desk
from cuda_agent.errors import RuleRefused, UsageError
from cuda_agent.hints import sentences
from cuda_agent.judge.evidence import traffic_sentence
from cuda_agent.rewrite.rule import Rule
from cuda_agent.rewrite.rules import RULES
from cuda_agent.source.tree import walk
from cuda_agent.toolchain import names
from cuda_agent.toolchain import sass as sass_tool

LONGEST = 6000  # characters of an answer
_LOG_LINES = 12
_INSTRUCTIONS = 60
A = TypeVar("A")


def answer(make: Callable[[str], A], tool: Callable[[Desk, Mapping[str, Any]], str]) -> Callable[..., A]:
    return lambda desk, given: make(clipped(tool(desk, given)))


def clipped(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 40]}\n… {len(text) - LONGEST + 40} more characters"


# ---------------------------------------------------------------- the text


def kernel(desk: Desk) -> str:
    """The kernel as it is on the desk, and the texts that launch it."""
    context = desk.context()
    own = context.slice(context.module.kernel(context.kernel.id).span)
    sites = [context.slice(site.span) for site in context.sites]
    return "\n".join([own, *(f"// launched by: {site}" for site in sites)])


def read(desk: Desk, given: Mapping[str, Any]) -> str:
    name = str(given.get("name") or "")
    context = desk.context()
    if not name or name == context.kernel.name:
        return kernel(desk)
    data, module = context.module.document.data, context.module
    for directive in module.tree.lexed.directives:
        if (
            directive.span.start >= module.own_end
        ):  # of a file that launches a header's kernel only the launches are shown
            break
        text = data[directive.span.start : directive.span.end].decode("utf-8", "replace")
        if re.match(rf"#\s*define\s+{re.escape(name)}\b", text):
            return text
    kinds = ("function_definition", "template_declaration", "struct_specifier", "class_specifier", "enum_specifier",
             "union_specifier", "type_definition", "alias_declaration", "declaration")  # fmt: skip
    for node in walk(module.root, kinds, into=("compound_statement",)):
        if node.start_byte >= module.own_end:
            break
        head = module.text(node).partition("{")[0]
        if re.search(rf"\b{re.escape(name)}\b", head) and not _calls_only(head, name):
            return module.text(node)
    raise UsageError(f"nothing in this file is called {name}")


def _calls_only(head: str, name: str) -> bool:
    """The name stands in the value of another declaration: `int y = name(3);`."""
    return "=" in head and name not in head.partition("=")[0]


def shapes(desk: Desk) -> str:
    return ", ".join(dict.fromkeys(shape.text() for shape in desk.context().shapes)) or "not known"


def rule_page(desk: Desk, given: Mapping[str, Any]) -> str:
    name = str(given["name"])
    rule = next((rule for rule in RULES if rule.name == name), None)
    if rule is None:
        raise UsageError(f"there is no rule {name}; there are {', '.join(rule.name for rule in RULES)}")
    return inspect.getdoc(sys.modules[type(rule).__module__]) or name


def refusal(desk: Desk, rule: Rule) -> str:
    context = desk.context()
    try:
        for site in rule.sites(context):
            rule.rewrite(context, site)
    except RuleRefused as error:
        return str(error)
    return "it finds no place for it"


# ---------------------------------------------------------------- what is known


def _mangled(desk: Desk) -> str:
    workload = desk.original.workload
    if workload is None:
        raise UsageError("no launch is known")
    return workload.launches[0].mangled


def facts(desk: Desk, given: Mapping[str, Any]) -> str:
    """Only of the original and of texts that the loop compiled: the edit policy comes first."""
    binary = desk.state.binary_of(_compiled(desk))
    found = names.match(list(binary.kernels), _mangled(desk))
    if found is None or binary.kind != "cubin":
        return "not known: without nvcc and a GPU nothing counts registers"
    return " ".join(sentence.text for sentence in sentences.of_facts(binary.kernels[found]))


def _compiled(desk: Desk) -> Any:
    if desk.untouched:
        return None
    step = desk.step()
    if step is None or step.verdict is None or step.verdict.status == "rejected":
        raise UsageError("only a text that passed the judge is looked at so: verify first")
    return step.candidate


def limits(desk: Desk, given: Mapping[str, Any]) -> str:
    limit = desk.state.limit
    return "not known" if limit is None else f"{limit.kind}: {limit.left or limit.text}"


def sass(desk: Desk, given: Mapping[str, Any]) -> str:
    line = given["line"]
    if isinstance(line, bool) or not isinstance(line, int):
        raise UsageError("line is a whole number")
    binary = desk.state.binary_of(_compiled(desk))
    if binary.kind != "cubin":
        return "there is no machine code of a GPU here"
    listing = sass_tool.disassemble(binary.data, desk.original.module.document.path)
    found = names.match(list(listing), _mangled(desk))
    rows = [one.text for one in listing[found] if one.line == line] if found else []
    if not rows:
        lines = sorted({one.line for one in listing[found] if one.line}) if found else []
        where = f"; lines with code: {lines[0]} to {lines[-1]}" if lines else ": built without line numbers"
        return f"no instruction of line {line}{where}"
    more = f"\n… {len(rows) - _INSTRUCTIONS} more" if len(rows) > _INSTRUCTIONS else ""
    return "\n".join(rows[:_INSTRUCTIONS]) + more


# ---------------------------------------------------------------- what came of it


def result(state: State, step: Step) -> str:
    """One judged text, for the one who wrote it."""
    verdict = step.verdict
    if verdict is None:
        log = "\n".join(step.log.splitlines()[:_LOG_LINES])
        if step.twin or step.score is not None:
            return f"{step.note}: {_gain(step.score)}"
        return clipped(f"{step.note}\n{log}" if log else step.note)
    if step.score is None:
        return clipped(f"rejected, {step.note}" if verdict.status == "rejected" else f"not decided: {step.note}")
    best = state.best
    place = " (the best so far)" if best is step else f" (the best so far: {_gain(best.score)})" if best else ""
    return f"right; {_measured(step)}{place}"


def times(state: State, step: Step) -> str:
    timing = step.verdict.timing if step.verdict else None
    if timing is None:
        return result(state, step)
    rows = [f"{shape}: {ratio:.3f}x [{lo:.3f}, {hi:.3f}]" for shape, ratio, lo, hi in timing.per_launch]
    return "\n".join([_measured(step), *rows])


def _measured(step: Step) -> str:
    timing = step.verdict.timing if step.verdict else None
    if timing is not None:
        low, high = timing.ci
        return (
            f"{timing.ratio:.3f}x [{low:.3f}, {high:.3f}] of the original's speed, {timing.original_us:.2f} us became "
            f"{timing.candidate_us:.2f} us"
        )
    traffic = traffic_sentence(step.verdict.traffic) if step.verdict else ""
    return f"{traffic or 'the same results'}; no time is measured here"


def _gain(score: float | None) -> str:
    return "not accepted" if score is None else f"score {score:.3f}"
