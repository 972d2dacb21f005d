"""What a model is told of the kernel and of the search: a state in words, short and numeric.

Given afresh at the start, and again whenever the conversation has grown too long and is made short."""

from __future__ import annotations

from collections.abc import Iterator

from cuda_agent.agent.policies import State, Step
from cuda_agent.agent.tools import Desk, looking, result
from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import Context, candidates, labels_of, refusals

FAILURES = 3  # told in full, the last ones
IDEAS = 20  # named, the last ones
SHAPES = 8  # of launches that were not recorded, named


def briefing(desk: Desk) -> str:
    """The kernel, its launches, what limits it, the rules that fit, what was tried and what is left."""
    return "\n\n".join(part for part in _parts(desk) if part)


def _parts(desk: Desk) -> Iterator[str]:
    state, original = desk.state, desk.original
    name = original.module.kernel(original.kernel.id).name
    changed = "" if desk.untouched else " (changed already; its result is below)"
    yield f"Make the kernel `{name}` faster.{changed}\n```cuda\n{looking.clipped(looking.kernel(desk))}\n```"
    yield _launches(original)
    if original.facts is not None:
        yield looking.facts(desk, {}) if desk.untouched else ""
    if state.limit is not None:
        yield f"What limits it: {state.limit.kind}: {state.limit.left or state.limit.text}."
    yield _rules(desk)
    yield _tried(state)
    yield _left(state)


def _launches(context: Context) -> str:
    recorded = list(dict.fromkeys(shape.text() for shape in context.shapes))
    said = f"Captured launches: {', '.join(recorded) or 'not known'}."
    others = [text for text in dict.fromkeys(shape.text() for shape in context.launched) if text not in recorded]
    if not others:
        return said
    more = ", …" if len(others) > SHAPES else ""
    return f"{said} Also launched, not recorded, and to stay right: {', '.join(others[:SHAPES])}{more}."


def _rules(desk: Desk) -> str:
    """Which rules fit the text on the desk, how their legality is known, and which refuse."""
    context = desk.context()
    try:
        fits: dict[str, str] = {}
        for made in candidates(context):
            label = labels_of(made.origin)[-1]
            known = {one.known for one in made.assumptions}
            worst = next((word for word in ("assumed", "captured") if word in known), "proved")
            fits.setdefault(label.partition("(")[0], f"{label} ({worst})")
        refused = [f"{rule}: {why}" for rule, why in refusals(context).items() if rule not in fits]
    except RuleRefused as error:
        return f"No rewrite rule may act here: {error}."
    lines = [f"Rewrite rules that fit: {'; '.join(fits.values()) or 'none'}."]
    if refused:
        lines.append(f"Rules that may not act: {'; '.join(refused)}.")
    return looking.clipped("\n".join(lines))


def _tried(state: State) -> str:
    judged = [step for step in state.steps if not step.twin]
    if not judged:
        return ""
    lines = []
    best = state.best
    if best is not None:
        lines.append(f"The best so far, {short(best)}: {result(state, best)}.")
    failed = [step for step in judged if step.score is None][-FAILURES:]
    lines += [f"{short(step)}: {result(state, step)}" for step in failed]
    others = [f"{short(step)}{f' {step.score:.2f}' if step.score else ''}" for step in judged if step not in failed]
    if others:
        lines.append(f"Tried (score, 1 is the original): {'; '.join(others[-IDEAS:])}.")
    return looking.clipped("Tried so far:\n" + "\n".join(lines))


def _left(state: State) -> str:
    budget = state.budget
    parts = [f"{budget.to_try:.0f} s", f"{budget.candidates - budget.tried} judgements"]
    if budget.tokens:
        parts.append(f"{max(0, budget.tokens - budget.used)} tokens")
    return f"Left: {', '.join(parts)}."


def short(step: Step) -> str:
    """`why` where the author gave one, else the rules."""
    candidate = step.candidate
    name = candidate.origin.removeprefix("rule:")
    return f"{name} ({candidate.reason})" if candidate.reason else name
