"""Every setting, declared once. The JSON schema, the extension's `contributes.configuration` and docs/configuration.md
are made from this list (`python -m cuda_agent.config` writes the page).

A setting is a field of `Settings`; its name for people is `cudaAgent.` and the field's name in camel case. A process
has one `Settings` at a time: the server hands its own to each job, which takes it with `use`; the command line makes
one of `--set`. Whoever needs a setting asks `current()`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from cuda_agent.errors import UsageError

SECTION = "cudaAgent"
HINT_CATEGORIES = ("registers", "spills", "occupancy", "launch")
Scope = Literal["restricted", "resource"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Doc:
    """What people and editors are told about a setting. `restricted` ones name a binary, a host or a flag: they are
    read from a workspace only once it is trusted."""

    text: str
    scope: Scope = "resource"
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    pattern: str | None = None
    pattern_says: str = ""
    words: bool = False  # split like a shell does it


def _setting(default: T, text: str, **more: Any) -> T:
    return field(default=default, metadata={"doc": Doc(text, **more)})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings with their values; immutable. Read one from user input with `parse`."""

    device: str = _setting(
        "auto",
        "Where kernels run. `auto` is the first GPU here, else the emulator; `cuda:N` one GPU; `emulator` no GPU: "
        "results are checked and memory traffic is counted, but nothing is timed.",
        scope="restricted",
        pattern=r"auto|emulator|cuda(:\d+)?",
        pattern_says="auto, emulator, cuda or cuda:N",
    )
    run_command: str = _setting(
        "",
        "The command that runs your program, as you type it in a terminal in the project's folder. It is used to "
        "capture kernel inputs. Empty: the file is built and run by itself when it has a `main`.",
        scope="restricted",
        words=True,
    )
    arguments: str = _setting(
        "",
        "Arguments for a file that has a `main` and is built and run by itself: small sizes make a capture quick.",
        scope="restricted",
        words=True,
    )
    budget_seconds: float = _setting(120.0, "How long one optimisation may take, in seconds.", minimum=1, maximum=86400)
    budget_candidates: int = _setting(150, "How many rewrites one optimisation may try.", minimum=1, maximum=100000)
    policy: str = _setting(
        "auto",
        "Who proposes rewrites: `search` the rewrite rules, `model` a language model, `mixed` the rules first and then "
        "the model, from the best they found. `auto` is `mixed` where a model is set, else `search`.",
        choices=("auto", "search", "model", "mixed"),
    )
    model: str = _setting(
        "",
        "The language model. `endpoint:NAME@URL` is an OpenAI-compatible server, such as "
        "`endpoint:qwen3-coder@http://localhost:11434/v1` (its key, if it wants one, is read from the environment "
        "variable CUDA_AGENT_API_KEY or OPENAI_API_KEY, or kept by the editor); `transformers:PATH` runs here, from a "
        "folder or a hub id; `editor` or `editor:ID` is the editor's own. Your kernel's file is sent to it, nothing "
        "else. Empty: none.",
        scope="restricted",
        pattern=r"(endpoint:[^@\s]+@https?://\S+|transformers:\S.*|editor(:\S+)?)?",
        pattern_says="endpoint:NAME@URL, transformers:PATH, editor or editor:ID",
    )
    model_device: str = _setting(
        "auto",
        "Where a `transformers` model runs: `auto`, `cpu` or `cuda:N`.",
        pattern=r"auto|cpu|cuda(:\d+)?",
        pattern_says="auto, cpu or cuda:N",
    )
    model_dtype: str = _setting(
        "auto",
        "The number format of a `transformers` model.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    model_price: str = _setting(
        "",
        "What a million tokens of the model cost, read and written, such as `0.25/2`: for `budgetCost` and the record.",
        pattern=r"(\d+(\.\d+)?/\d+(\.\d+)?)?",
        pattern_says="two numbers such as 0.25/2",
    )
    budget_tokens: int = _setting(
        200_000, "How many tokens, read and written, a model may use in one optimisation.", minimum=1, maximum=1 << 40
    )
    budget_cost: float = _setting(
        0.0, "What a model may cost in one optimisation, in the money of `modelPrice`. 0: no limit.", minimum=0
    )
    nvcc_path: str = _setting(
        "",
        "The nvcc to use. Empty: the one on PATH, then CUDA_HOME, then /usr/local/cuda, then Python packages.",
        scope="restricted",
    )
    sandbox: str = _setting(
        "auto",
        "`auto` compiles in a sandbox (bubblewrap) where it works, which reads the project and its include folders "
        "only; `off` runs nvcc and g++ on your own code without it. Text from a model is compiled only in the sandbox, "
        "whatever this says.",
        scope="restricted",
        choices=("auto", "off"),
    )
    arch: str = _setting(
        "auto",
        "The GPU architecture that facts are shown for, such as `sm_90`. `auto` is the device's, else the build's, "
        "else sm_90.",
        pattern=r"auto|sm_\d{2,3}[af]?",
        pattern_says="auto or a name like sm_90",
    )
    extra_flags: tuple[str, ...] = _setting(
        (),
        "Flags for nvcc, added after those of the file's own build. A program that `runCommand` builds has its own.",
        scope="restricted",
    )
    fast_math: bool = _setting(
        False, "Allow rewrites that use fast-math intrinsics. Off: such a rewrite is never proposed."
    )
    lens: bool = _setting(True, "Show a line above each kernel with what it costs and what can be done.")
    inlay_hints: bool = _setting(False, "Show registers and spills beside each kernel's name.")
    hints: tuple[str, ...] = _setting(
        (),
        "Categories of hints shown as diagnostics of severity Information. None are on by default.",
        choices=HINT_CATEGORIES,
    )
    capture_launches: int = _setting(2, "How many launches of each kernel a capture keeps.", minimum=1, maximum=64)
    capture_limit_mb: int = _setting(
        1024, "The most memory one captured launch may touch, in MiB; larger launches are named and left out.",
        minimum=1, maximum=1 << 20,
    )  # fmt: skip
    cache_size_mb: int = _setting(
        2048,
        "How large the cache of results may grow, in MiB. It lies in ~/.cache/cuda-agent, or where CUDA_AGENT_CACHE "
        "says.",
        minimum=16,
        maximum=1 << 20,
    )
    trajectories: bool = _setting(
        True,
        "Record every search in the cache, for `cuda-agent trajectories` and `replay`: the kernel's file, candidates, "
        "verdicts, times, a model's conversation. It takes at most an eighth of the cache's size, and nothing of it "
        "leaves this machine.",
    )
    server_command: tuple[str, ...] = _setting(
        (),
        "How the editor starts the server. Empty: the bundled server, then the selected Python environment, then PATH.",
        scope="restricted",
    )
    log_level: str = _setting(
        "info", "How much the server writes to its log.", choices=("error", "warning", "info", "debug")
    )

    @property
    def command(self) -> tuple[str, ...]:
        """The run command's words; empty without one."""
        return tuple(shlex.split(self.run_command))

    @property
    def program_arguments(self) -> tuple[str, ...]:
        """The words of `arguments`."""
        return tuple(shlex.split(self.arguments))


_current = Settings()


def current() -> Settings:
    """The settings of this process."""
    return _current


def use(settings: Settings) -> None:
    """Make these the settings of this process."""
    global _current
    _current = settings


def name_of(field_name: str) -> str:
    """`budget_seconds` → `budgetSeconds`."""
    head, *rest = field_name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def fields() -> tuple[tuple[str, str, Any, Doc], ...]:
    """(field name, name for people, default, documentation) of every setting, in order."""
    return tuple((f.name, name_of(f.name), f.default, f.metadata["doc"]) for f in dataclasses.fields(Settings))


def restricted() -> tuple[str, ...]:
    """Full names of the settings that are ignored in a workspace that is not trusted."""
    return tuple(f"{SECTION}.{name}" for _, name, _, doc in fields() if doc.scope == "restricted")


# ---------------------------------------------------------------- reading user input


def parse(values: Mapping[str, Any] | None, base: Settings | None = None) -> Settings:
    """Settings from what an editor, a file or a command line gives: `{"budgetSeconds": 60}`, with or without the
    `cudaAgent` level or prefix. Missing ones keep `base`'s value. Raises UsageError, which names the setting."""
    known = {name: (field_name, default, doc) for field_name, name, default, doc in fields()}
    changes: dict[str, Any] = {}
    for key, value in _flat(values or {}).items():
        if key.startswith("trace.") or value is None:  # the language client's own, and "not set"
            continue
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            advice = (
                f"Did you mean {SECTION}.{near[0]}?" if near else "Remove it; docs/configuration.md lists all settings."
            )
            raise UsageError(f"There is no setting {SECTION}.{key}. {advice}")
        field_name, default, doc = known[key]
        changes[field_name] = _value(f"{SECTION}.{key}", value, default, doc)
    return dataclasses.replace(base or Settings(), **changes)


def from_words(items: Iterable[str]) -> dict[str, Any]:
    """What `parse` reads, from `NAME=VALUE` words of a command line; a list's items are split like a shell does it.
    UsageError for a word without `=`."""
    kinds = {name: type(default) for _, name, default, _ in fields()}
    values: dict[str, Any] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals:
            raise UsageError(f"--set {item}: give NAME=VALUE, such as --set nvccPath=/usr/local/cuda/bin/nvcc.")
        name = name.removeprefix(SECTION + ".")
        values[name] = _from_text(name, text, kinds.get(name, str))
    return values


def _from_text(name: str, text: str, kind: type) -> Any:
    """`text` as the setting's kind of value where it is one; `parse` refuses what is not."""
    if kind is bool:
        return {"true": True, "false": False}.get(text, text)
    if kind is tuple:
        return _split(f"{SECTION}.{name}", text)
    if kind in (int, float):
        try:
            return float(text)
        except ValueError:
            return text
    return text


def _split(name: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{name} is {text!r}, which is split like a shell does it: {error}.") from error


def trusted_only(values: Mapping[str, Any] | None, trusted: bool) -> dict[str, Any]:
    """The values that may be used: all of them, or in an untrusted workspace those that are not restricted."""
    hidden = set() if trusted else {name.removeprefix(SECTION + ".") for name in restricted()}
    return {key: value for key, value in _flat(values or {}).items() if key not in hidden}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = value
    return {name.removeprefix(SECTION + "."): value for name, value in flat.items()}


def _value(name: str, value: Any, default: Any, doc: Doc) -> Any:
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise UsageError(f"{name} is {value!r}: give true or false.")
        return value
    if isinstance(default, int | float):
        return _number(name, value, default, doc)
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise UsageError(f"{name} is {value!r}: give a list of texts.")
        for item in value:
            _chosen(name, item, doc)
        return tuple(value)
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}: give a text.")
    _chosen(name, value, doc)
    if doc.words:
        _split(name, value)
    if doc.pattern is not None and re.fullmatch(doc.pattern, value) is None:
        raise UsageError(f"{name} is {value!r}: give {doc.pattern_says}.")
    return value


def _number(name: str, value: Any, default: float, doc: Doc) -> float:
    whole = isinstance(default, int)
    if isinstance(value, bool) or not isinstance(value, int | float) or (whole and value != int(value)):
        raise UsageError(f"{name} is {value!r}: give a {'whole ' if whole else ''}number.")
    low, high = doc.minimum, doc.maximum
    if (low is not None and value < low) or (high is not None and value > high):
        raise UsageError(f"{name} is {value:g}: give a number from {_plain(low or 0)} to {_plain(high or 0)}.")
    return int(value) if whole else float(value)


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _chosen(name: str, value: str, doc: Doc) -> None:
    if doc.choices and value not in doc.choices:
        raise UsageError(f"{name} is {value!r}: give one of {', '.join(doc.choices)}.")


# ---------------------------------------------------------------- what is made from the list


def _property(default: Any, doc: Doc) -> dict[str, Any]:
    kind = {bool: "boolean", int: "integer", float: "number", str: "string", tuple: "array"}[type(default)]
    made: dict[str, Any] = {"type": kind, "default": list(default) if kind == "array" else default}
    if kind == "array":
        made["items"] = {"type": "string"} | ({"enum": list(doc.choices)} if doc.choices else {})
        if doc.choices:
            made["uniqueItems"] = True
    elif doc.choices:
        made["enum"] = list(doc.choices)
    if doc.minimum is not None:
        made["minimum"] = doc.minimum
    if doc.maximum is not None:
        made["maximum"] = doc.maximum
    if doc.pattern is not None:
        made["pattern"] = f"^({doc.pattern})$"
        made["patternErrorMessage"] = f"Give {doc.pattern_says}."
    return made


def json_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of the object under `cudaAgent`."""
    properties = {name: _property(default, doc) | {"description": doc.text} for _, name, default, doc in fields()}
    for made in properties.values():
        made.pop("patternErrorMessage", None)  # VS Code's own word
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "CUDA Agent settings",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def contributes() -> dict[str, Any]:
    """`contributes.configuration` of the VS Code extension's package.json. A setting that names a binary, a host or a
    flag is machine-overridable and listed by `restricted()` for `capabilities.untrustedWorkspaces`."""
    properties = {}
    for order, (_, name, default, doc) in enumerate(fields()):
        scope = "machine-overridable" if doc.scope == "restricted" else "resource"
        properties[f"{SECTION}.{name}"] = _property(default, doc) | {
            "markdownDescription": doc.text,
            "scope": scope,
            "order": order,
        }
    return {"title": "CUDA Agent", "properties": properties}


def markdown() -> str:
    """docs/configuration.md."""
    lines = [
        "# Settings",
        "",
        "<!-- Made by `python -m cuda_agent.config` from server/cuda_agent/config.py; do not edit. -->",
        "",
        "Each is `cudaAgent.<name>` in an editor's settings. Settings marked *restricted* name a program, a host or a",
        "compiler flag; those of a workspace are read only once you trust it. Environment: `CUDA_AGENT_CACHE` is the",
        "folder of the cache and of libraries built on first use (default `~/.cache/cuda-agent`).",
        "",
        "On the command line each is `--set <name>=VALUE`; a command's own flag, such as `--device`, comes first. What",
        "only an editor shows or starts means nothing there. A search from the command line",
        "takes 300 seconds and 60 candidates where nothing else is said.",
        "",
    ]
    for _, name, default, doc in fields():
        shown = json.dumps(list(default) if isinstance(default, tuple) else default)
        facts = [f"default `{shown}`"]
        if doc.choices:
            facts.append("any of " if isinstance(default, tuple) else "one of ")
            facts[-1] += ", ".join(f"`{choice}`" for choice in doc.choices)
        if doc.minimum is not None and doc.maximum is not None:
            facts.append(f"from {_plain(doc.minimum)} to {_plain(doc.maximum)}")
        if doc.scope == "restricted":
            facts.append("*restricted*")
        lines += [f"## {name}", "", doc.text, "", "; ".join(facts) + ".", ""]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Write docs/configuration.md under the folder named (default: the working directory)."""
    root = Path(arguments[0]) if arguments else Path.cwd()
    page = root / "docs" / "configuration.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(markdown())
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
