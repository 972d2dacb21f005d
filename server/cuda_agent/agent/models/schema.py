"""Is a value what a tool's JSON schema asks for? The part of JSON Schema that tools need, and nothing else: a schema
with another keyword is a mistake of the tool's author and raises ValueError.

An object that lists its `properties` takes no others unless `additionalProperties` says so: models invent arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

LIMITS = {
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
}
KEYWORDS = {"type", "enum", "const", "anyOf", "properties", "required", "additionalProperties", "items"} | LIMITS
ANNOTATIONS = {"title", "description", "default", "examples"}


def _is_number(value: object) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and math.isfinite(value)
    )


TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "string": ("a string", lambda v: isinstance(v, str)),
    "integer": ("an integer", lambda v: isinstance(v, int) and not isinstance(v, bool)),
    "number": ("a number", _is_number),
    "boolean": ("true or false", lambda v: isinstance(v, bool)),
    "object": ("an object", lambda v: isinstance(v, Mapping)),
    "array": ("an array", lambda v: isinstance(v, list)),
    "null": ("null", lambda v: v is None),
}


def types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The type names that a schema allows; empty: any."""
    named = schema.get("type", ())
    return (named,) if isinstance(named, str) else tuple(named)


def mismatch(value: object, schema: Mapping[str, Any], at: str = "it") -> str:
    """What is wrong with `value`, which the sentence calls `at`: "`line` must be an integer, not a string". Empty when
    nothing is."""
    if strange := schema.keys() - KEYWORDS - ANNOTATIONS:
        raise ValueError(f"a tool's schema uses {sorted(strange)}, which is not checked")
    allowed = types(schema)
    if allowed and not any(TYPES[name][1](value) for name in allowed):
        return f"{at} must be {' or '.join(TYPES[name][0] for name in allowed)}, not {called(value)}"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{at} must be {schema['const']!r}"
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        return f"{at} must be one of {', '.join(map(str, schema['enum']))}, not {shown(value)}"
    if "anyOf" in schema:
        wrong = [mismatch(value, one, at) for one in schema["anyOf"]]
        if all(wrong):
            return " or ".join(wrong)
    if isinstance(value, Mapping):
        return _object(value, schema, at)
    if isinstance(value, list):
        return _array(value, schema, at)
    if isinstance(value, str):
        return _length(len(value), schema, "minLength", "maxLength", "characters", at)
    return _range(value, schema, at) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def called(value: object) -> str:
    """The type of a JSON value, for people."""
    return next((text for text, test in TYPES.values() if test(value)), "an infinite number")


def shown(value: object) -> str:
    """A JSON value in a few characters."""
    text = repr(value) if isinstance(value, str | int | float | bool | None) else called(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _same(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b


def _object(value: Mapping[str, Any], schema: Mapping[str, Any], at: str) -> str:
    known: Mapping[str, Any] = schema.get("properties", {})
    inside = "" if at == "it" else f" in {at}"
    if missing := [name for name in schema.get("required", ()) if name not in value]:
        return f"{_names(missing)} {'is' if len(missing) == 1 else 'are'} missing{inside}"
    others = schema.get("additionalProperties", "properties" not in schema)
    extra = [name for name in value if name not in known]
    if extra and others is False:
        return f"there is no argument {_names(extra)}{inside} (there {_are(list(known))})"
    for name, one in value.items():
        rule = known.get(name, others if isinstance(others, Mapping) else {})
        if wrong := mismatch(one, rule, f"`{_short(name)}`{inside}"):
            return wrong
    return ""


def _array(value: list[Any], schema: Mapping[str, Any], at: str) -> str:
    if wrong := _length(len(value), schema, "minItems", "maxItems", "items", at):
        return wrong
    rule = schema.get("items")
    if rule is None:
        return ""
    return next((wrong for i, one in enumerate(value) if (wrong := mismatch(one, rule, f"item {i} of {at}"))), "")


def _length(length: int, schema: Mapping[str, Any], low: str, high: str, of: str, at: str) -> str:
    if length < schema.get(low, 0):
        return f"{at} must have at least {schema[low]} {of}"
    if length > schema.get(high, length):
        return f"{at} must have at most {schema[high]} {of}, not {length}"
    return ""


def _range(value: float, schema: Mapping[str, Any], at: str) -> str:
    bounds: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
        ("minimum", "at least", lambda v, b: v >= b),
        ("maximum", "at most", lambda v, b: v <= b),
        ("exclusiveMinimum", "more than", lambda v, b: v > b),
        ("exclusiveMaximum", "less than", lambda v, b: v < b),
    )
    for keyword, words, holds in bounds:
        if keyword in schema and not holds(value, schema[keyword]):
            return f"{at} must be {words} {schema[keyword]}, not {shown(value)}"
    return ""


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:37]}…"


def _names(names: list[str]) -> str:
    return ", ".join(f"`{_short(name)}`" for name in names[:5]) + (" …" if len(names) > 5 else "")


def _are(names: list[str]) -> str:
    return f"{'is' if len(names) == 1 else 'are'} {_names(names)}" if names else "are none"
