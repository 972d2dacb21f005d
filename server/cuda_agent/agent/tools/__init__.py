"""What a model may do: each tool is a function over the desk, and none reaches files, network or a shell.

A tool's answer is short and numeric. `verify`, `bench` and `submit` hand the text on the desk to the loop, which asks
the edit policy before anything is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cuda_agent.agent.models import Call, Tool
from cuda_agent.agent.tools import looking
from cuda_agent.agent.tools.desk import Desk
from cuda_agent.errors import CudaAgentError, UsageError
from cuda_agent.model import Candidate
from cuda_agent.rewrite.moves import of_rule
from cuda_agent.rewrite.rules import RULES

__all__ = ["TOOLS", "Answer", "Desk", "act", "result"]

result = looking.result


@dataclass(frozen=True, slots=True)
class Answer:
    """`candidate` is to be judged now, and its result is the answer; `over` ends the conversation."""

    text: str = ""
    candidate: Candidate | None = None
    over: bool = False


def act(desk: Desk, call: Call) -> Answer:
    """Do it. What cannot be done is said in the answer; nothing is raised for a model's mistake."""
    known = _KNOWN.get(call.name)
    if known is None:
        return Answer(f"there is no tool {call.name}; there are {', '.join(_KNOWN)}")
    tool, do = known
    properties = tool.parameters["properties"]
    missing = [name for name in tool.parameters.get("required", ()) if name not in call.arguments]
    unknown = [name for name in call.arguments if name not in properties]
    if missing or unknown:
        wrong = f"needs {', '.join(missing)}" if missing else f"has no argument {', '.join(unknown)}"
        return Answer(f"{call.name} {wrong}; it takes {', '.join(properties) or 'nothing'}")
    try:
        return do(desk, call.arguments)
    except CudaAgentError as error:
        return Answer(str(error))


# ---------------------------------------------------------------- changes


def _edit(desk: Desk, given: Mapping[str, Any]) -> Answer:
    desk.replace(str(given["old"]), str(given["new"]), str(given.get("why", "")))
    return Answer("done; verify judges it")


def _replace_kernel(desk: Desk, given: Mapping[str, Any]) -> Answer:
    desk.replace_kernel(str(given["code"]), str(given.get("why", "")))
    return Answer("done; verify judges it")


def _launch(desk: Desk, given: Mapping[str, Any]) -> Answer:
    desk.relaunch(_texts(given.get("grid")), _texts(given.get("block")), None)
    return Answer(f"every launch was changed; the captured ones become {looking.shapes(desk)}")


def _apply_rule(desk: Desk, given: Mapping[str, Any]) -> Answer:
    name = str(given["name"])
    rule = next((rule for rule in RULES if rule.name == name), None)
    if rule is None:
        return Answer(f"there is no rule {name}; there are {', '.join(rule.name for rule in RULES)}")
    if desk.step() is None and not desk.untouched and any(label.partition("(")[0] == name for label in desk.rules):
        return Answer(f"{name} was applied to this text already")
    made = list(of_rule(rule, desk.context()))
    if not made:
        return Answer(f"{name} may not act here: {looking.refusal(desk, rule)}")
    wanted = given.get("params")
    labels = [move.label for move, _ in made]
    chosen = next((m for m in made if wanted is None or _matches(m[0].label, wanted)), None)
    if chosen is None:
        return Answer(f"{name} has no such parameters here; there are {'; '.join(labels[:12])}")
    desk.use(chosen[1])
    others = "; ".join(label for label in labels[:12] if label != chosen[0].label)
    return Answer(f"{chosen[0].label} was applied{f' (also possible: {others})' if others else ''}; verify judges it")


def _matches(label: str, wanted: object) -> bool:
    inside = label.partition("(")[2].removesuffix(")")
    if isinstance(wanted, Mapping):
        pairs = {part.split("=")[0].strip(): part.split("=")[1].strip() for part in inside.split(", ") if "=" in part}
        return all(pairs.get(str(k)) == str(v) for k, v in wanted.items())
    return str(wanted).strip() in (inside, label)


def _start_from(desk: Desk, given: Mapping[str, Any]) -> Answer:
    which = str(given["which"])
    if which == "original":
        desk.take(None)
        return Answer("the desk has the original again")
    best = desk.state.best
    if which != "best" or best is None:
        return Answer("start from `original`" + ("" if best is None else " or `best`") + "; nothing else is there")
    desk.take(best.candidate)
    return Answer(f"the desk has the best so far:\n{looking.kernel(desk)}")


# ---------------------------------------------------------------- judgement


def _verify(desk: Desk, given: Mapping[str, Any]) -> Answer:
    return _judged(desk, looking.result)


def _bench(desk: Desk, given: Mapping[str, Any]) -> Answer:
    return _judged(desk, looking.times)


def _judged(desk: Desk, say: Callable[..., str]) -> Answer:
    if desk.untouched:
        return Answer("the desk still has the original: change it first (edit, replace_kernel, apply_rule, launch)")
    known = desk.step()
    if known is not None:
        return Answer(f"this text was judged before: {say(desk.state, known)}")
    return Answer(candidate=desk.candidate())


def _submit(desk: Desk, given: Mapping[str, Any]) -> Answer:
    desk.reason = " ".join(str(given.get("why", "")).split())[:300] or desk.reason
    new = not desk.untouched and desk.step() is None
    return Answer("submitted", candidate=desk.candidate() if new else None, over=True)


def _give_up(desk: Desk, given: Mapping[str, Any]) -> Answer:
    return Answer("the end", over=True)


def _texts(value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    if isinstance(value, str | int):
        return [part.strip() for part in str(value).split(",")]
    raise UsageError("grid and block are lists of one to three expressions")


# ---------------------------------------------------------------- the list


def _schema(required: tuple[str, ...] = (), **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _text(what: str) -> dict[str, Any]:
    return {"type": "string", "description": what}


_WHY = _text("one sentence: why this should be faster")
_AXES = {"type": "array", "items": {"type": ["string", "integer"]}, "maxItems": 3}
_ALL: tuple[tuple[Tool, Callable[[Desk, Mapping[str, Any]], Answer]], ...] = (
    (Tool("read", "The text on the desk of a function, type, macro or constant of this file; without a name the "
          "kernel and its launches.", _schema(name=_text("its name"))), looking.answer(Answer, looking.read)),
    (Tool("facts", "What the compiler made of the kernel: registers, spills, shared memory, instructions.",
          _schema()), looking.answer(Answer, looking.facts)),
    (Tool("limits", "What limits the original kernel on this device.", _schema()),
     looking.answer(Answer, looking.limits)),
    (Tool("sass", "The machine instructions of a line of the judged text.",
          _schema(("line",), line={"type": "integer", "minimum": 1})), looking.answer(Answer, looking.sass)),
    (Tool("rule_page", "What a rewrite rule does and when it is legal.", _schema(("name",), name=_text("the rule"))),
     looking.answer(Answer, looking.rule_page)),
    (Tool("apply_rule", "Let a rewrite rule change the text on the desk.",
          _schema(("name",), name=_text("the rule"), params={"type": "object", "description": "such as {factor: 4}"})),
     _apply_rule),
    (Tool("edit", "Replace a text that is in the file exactly once.",
          _schema(("old", "new"), old=_text("as it is in the file, with its spaces"), new=_text("the new text"),
                  why=_WHY)), _edit),
    (Tool("replace_kernel", "Replace the kernel's definition. Helper __device__ functions may stand before it.",
          _schema(("code",), code=_text("CUDA C++"), why=_WHY)), _replace_kernel),
    (Tool("launch", "Change the launch shape at every launch: expressions over gx gy gz bx by bz, the original's "
          "blocks and threads, such as grid [\"gx * 4\"], block [\"64\"].",
          _schema(grid=_AXES, block=_AXES)), _launch),
    (Tool("start_from", "Put the original or the best candidate so far on the desk.",
          _schema(("which",), which={"type": "string", "enum": ["original", "best"]})), _start_from),
    (Tool("verify", "Compile the text on the desk, compare its results with the original's and time it.", _schema()),
     _verify),
    (Tool("bench", "The times of the text on the desk, launch by launch.", _schema()), _bench),
    (Tool("submit", "You are done: the best candidate goes to the full judge.", _schema(why=_WHY)), _submit),
    (Tool("give_up", "Nothing more can be gained.", _schema(("reason",), reason=_text("one sentence"))), _give_up),
)  # fmt: skip
TOOLS: tuple[Tool, ...] = tuple(tool for tool, _ in _ALL)
_KNOWN = {tool.name: (tool, do) for tool, do in _ALL}
