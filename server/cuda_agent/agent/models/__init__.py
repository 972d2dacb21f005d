"""Language models: messages and tools in, text and tool calls out. What a model is asked, and what becomes of its
calls, is not known here.

A spec names one (the setting `cudaAgent.model`): `endpoint:NAME@URL` (OpenAI-compatible), `transformers:PATH or hub
id`, `editor` or `editor:ID` (the editor's own).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from cuda_agent.config import Settings
from cuda_agent.errors import UsageError

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of a model. `id` names it in the tool's answer; backends without ids leave it empty."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """`calls` are an assistant's; `call` is the id of the call that a tool's message answers, `tool` its name."""

    role: Role
    text: str
    calls: tuple[Call, ...] = ()
    call: str = ""
    tool: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """What a model may call: `parameters` is the JSON schema of an object."""

    name: str
    text: str
    parameters: Mapping[str, Any]

    @property
    def function(self) -> dict[str, Any]:
        """As the OpenAI API and chat templates have it."""
        function = {"name": self.name, "description": self.text, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; 0 where the backend does not say."""

    prompt: int = 0
    completion: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """`complaint` is the parser's sentence where the text looks like a call and is none: it is sent back to the model.
    `cut` is True when the reply ended at the limit of tokens."""

    text: str
    calls: tuple[Call, ...] = ()
    usage: Usage = Usage()
    complaint: str = ""
    cut: bool = False


@dataclass(frozen=True)
class Limits:
    """Of one reply. `seconds` is wall time, from now until the last token. `force` asks for a call of any tool, by
    constraint or `tool_choice` where the backend can; a backend that cannot leaves it."""

    tokens: int = 4096
    seconds: float = 120.0
    force: bool = True
    cancelled: Callable[[], bool] = field(default=lambda: False)


class Model(Protocol):
    name: str  # for people, evidence and trajectories: "endpoint:qwen3-coder"; never a URL's user info, a key or a path
    context: int  # tokens of messages and reply together; 0: not known

    def reply(self, messages: Sequence[Message], tools: Sequence[Tool], limits: Limits) -> Reply:
        """The next assistant message. Raises ModelError (unreachable, refused, out of memory, past `seconds`; retries
        of what may pass are the backend's), ContextOverflow, and Cancelled within half a second of `cancelled`."""
        ...

    def close(self) -> None: ...


def split_spec(spec: str) -> tuple[str, str]:
    """(backend, rest) of a model's spec. UsageError for one that no backend knows."""
    backend, _, rest = spec.partition(":")
    if backend not in ("endpoint", "transformers", "editor") or (backend != "editor" and not rest):
        raise UsageError(
            f"there is no model {spec!r}: give endpoint:NAME@URL, transformers:PATH (or a hub id), editor or editor:ID."
        )
    return backend, rest


Ask = Callable[[Mapping[str, Any], Limits], Mapping[str, Any]]  # a request to the editor, and its answer


def open_model(settings: Settings, ask: Ask | None = None) -> Model:
    """The model that `settings.model` names. `ask` reaches the editor, where there is one. Raises UsageError, and
    ModelError where the backend's package is missing or the model cannot be loaded."""
    backend, rest = split_spec(settings.model)
    if backend == "endpoint":
        from cuda_agent.agent.models.endpoint import Endpoint

        name, _, url = rest.partition("@")
        return Endpoint(name, url)
    if backend == "transformers":
        from cuda_agent.agent.models.transformers import Transformers

        return Transformers(rest, settings.model_device, settings.model_dtype)
    if ask is None:
        raise UsageError("the model `editor` is the editor's own: choose it in an editor, not on the command line.")
    from cuda_agent.agent.models.editor import Editor

    return Editor(rest, ask)
