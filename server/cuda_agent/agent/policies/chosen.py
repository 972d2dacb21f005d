"""The policy that the settings choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from cuda_agent.agent.models import Ask, open_model
from cuda_agent.agent.policies import Policy
from cuda_agent.agent.policies.mixed import Mixed
from cuda_agent.agent.policies.model import ModelPolicy
from cuda_agent.config import Settings
from cuda_agent.errors import UsageError


def name(settings: Settings) -> str:
    """`search`, `model` or `mixed`. UsageError where a model is wanted and none is set."""
    if settings.policy == "auto":
        return "mixed" if settings.model else "search"
    if settings.policy != "search" and not settings.model:
        raise UsageError(
            f"the policy `{settings.policy}` needs a language model: set cudaAgent.model (--model), or use `search`."
        )
    return settings.policy


@contextmanager
def chosen(settings: Settings, ask: Ask | None = None) -> Iterator[Callable[[], Policy | None]]:
    """Makes a policy for each kernel. None: the rules' search, which the loop makes itself. Raises UsageError,
    ModelError."""
    which = name(settings)
    with several(settings, [which], ask) as made:
        yield made[which]


@contextmanager
def several(
    settings: Settings, names: Sequence[str], ask: Ask | None = None
) -> Iterator[dict[str, Callable[[], Policy | None]]]:
    """As `chosen`, for each of these policies, with one model."""
    wanted = [name(replace(settings, policy=one)) for one in names]
    if set(wanted) <= {"search"}:
        yield {one: lambda: None for one in wanted}
        return
    model = open_model(settings, ask)
    makers: dict[str, Callable[[], Policy | None]] = {
        "search": lambda: None,
        "model": lambda: ModelPolicy(model),
        "mixed": lambda: Mixed(ModelPolicy(model, from_best=True)),
    }
    try:
        yield {one: makers[one] for one in wanted}
    finally:
        model.close()


def limits(settings: Settings) -> dict[str, Any]:
    """What a model may spend, for a `Request`."""
    if name(settings) == "search":
        return {}
    return {"max_tokens": settings.budget_tokens, "max_cost": settings.budget_cost, "price": price(settings)}


def price(settings: Settings) -> tuple[float, float]:
    """Of a million tokens, read and written."""
    if not settings.model_price:
        return 0.0, 0.0
    read, written = settings.model_price.split("/")
    return float(read), float(written)
