"""`schema.json`, the JSON Schema of `evidence.json`, and a check against it.

Evidence comes from files that anyone may have written, so it is checked before it is believed. The check knows the
words of JSON Schema (draft 2020-12) that the schema uses, and refuses a schema with others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from cuda_agent.errors import UsageError

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_NOTES = {"$schema", "$defs", "title", "description"}


@cache
def schema() -> Mapping[str, Any]:
    """The schema shipped with this package."""
    found = json.loads(files(__package__).joinpath("schema.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def read(path: Path) -> dict[str, Any]:
    """An evidence file. Raises UsageError, with the first places that do not fit, for anything else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}): give a file that `cuda-agent verify --json` wrote") from error
    if isinstance(data, dict) and isinstance(data.get("schema"), int) and data["schema"] != schema_version():
        raise UsageError(
            f"{path} has schema {data['schema']}; this version reads {schema_version()}: judge again with this version"
        )
    wrong = [text for _, text in zip(range(3), misfits(data), strict=False)]
    if wrong:
        raise UsageError(f"{path} is not evidence of `cuda-agent verify --json`: {'; '.join(wrong)}")
    assert isinstance(data, dict)
    return data


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


def schema_version() -> int:
    return int(schema()["properties"]["schema"]["const"])


def misfits(value: Any, rule: Mapping[str, Any] | None = None, where: str = "$") -> Iterator[str]:
    """Where `value` does not follow `rule` (by default the whole schema), a sentence each."""
    rule = schema() if rule is None else rule
    for word, wanted in rule.items():
        check = _CHECKS.get(word)
        if check is not None:
            yield from check(value, wanted, where, rule)
        elif word not in _NOTES:
            raise ValueError(f"the schema uses {word!r}, which is not checked")


def _reference(value: Any, wanted: str, where: str, rule: Mapping[str, Any]) -> Iterator[str]:
    yield from misfits(value, schema()["$defs"][wanted.removeprefix("#/$defs/")], where)


def _type(value: Any, wanted: Any, where: str, rule: Mapping[str, Any]) -> Iterator[str]:
    names = [wanted] if isinstance(wanted, str) else wanted
    fits = any(isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool)) for name in names)
    if not fits:
        yield f"{where} is no {' or '.join(names)}"


def _enum(value: Any, wanted: list[Any], where: str, rule: Mapping[str, Any]) -> Iterator[str]:
    if value not in wanted:
        yield f"{where} is {value!r}, not one of {', '.join(map(str, wanted))}"


def _const(value: Any, wanted: Any, where: str, rule: Mapping[str, Any]) -> Iterator[str]:
    if value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
        yield f"{where} is {value!r}, not {wanted!r}"


def _pattern(value: Any, wanted: str, where: str, rule: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value, str) and not re.search(wanted, value):
        yield f"{where} does not match {wanted}"


def _required(value: Any, wanted: list[str], where: str, rule: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{where}.{key} is missing" for key in wanted if key not in value)


def _properties(value: Any, wanted: Mapping[str, Any], where: str, rule: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value, dict):
        for key in wanted.keys() & value.keys():
            yield from misfits(value[key], wanted[key], f"{where}.{key}")


def _additional(value: Any, wanted: Mapping[str, Any], where: str, rule: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value, dict):
        for key in value.keys() - rule.get("properties", {}).keys():
            yield from misfits(value[key], wanted, f"{where}.{key}")


def _items(value: Any, wanted: Mapping[str, Any], where: str, rule: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield from misfits(item, wanted, f"{where}[{at}]")


def _least(value: Any, wanted: int, where: str, rule: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value, list) and len(value) < wanted:
        yield f"{where} has {len(value)} items, at least {wanted} are needed"


def _most(value: Any, wanted: int, where: str, rule: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(value, list) and len(value) > wanted:
        yield f"{where} has {len(value)} items, at most {wanted} may be there"


def _above(value: Any, wanted: float, where: str, rule: Mapping[str, Any]) -> Iterator[str]:
    if _is_number(value) and not value > wanted:
        yield f"{where} is {value}, not above {wanted}"


def _from(value: Any, wanted: float, where: str, rule: Mapping[str, Any]) -> Iterator[str]:
    if _is_number(value) and not value >= wanted:
        yield f"{where} is {value}, below {wanted}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _any(value: Any, wanted: list[Mapping[str, Any]], where: str, rule: Mapping[str, Any]) -> Iterator[str]:
    found = [list(misfits(value, choice, where)) for choice in wanted]
    if all(found):  # the choice that goes deepest is the one that was meant
        yield from min(found, key=lambda wrong: (wrong[0].startswith(f"{where} is no "), len(wrong)))


_CHECKS = {
    "$ref": _reference,
    "type": _type,
    "enum": _enum,
    "const": _const,
    "pattern": _pattern,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "minItems": _least,
    "maxItems": _most,
    "exclusiveMinimum": _above,
    "minimum": _from,
    "anyOf": _any,
}
