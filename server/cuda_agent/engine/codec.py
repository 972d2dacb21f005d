"""Dataclasses to JSON values and back, by their type hints; used for messages and for proposals kept on disk.

bytes become base64, paths strings, tuples lists. A field that is missing takes its default; an unknown one is ignored,
so that a newer writer does not break an older reader."""

from __future__ import annotations

import base64
import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

T = TypeVar("T")


class CodecError(ValueError):
    """The value does not have the type's shape; the message names the field."""


def to_json(value: Any) -> Any:
    """A JSON value. CodecError for a type that has none."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    if hasattr(value, "item"):  # a numpy scalar
        return value.item()
    raise CodecError(f"{type(value).__name__} has no JSON form")


@lru_cache(maxsize=256)
def _fields(cls: type) -> tuple[tuple[str, Any, bool], ...]:
    hints = typing.get_type_hints(cls)
    missing = dataclasses.MISSING
    return tuple(
        (field.name, hints[field.name], field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(cls)
    )


def from_json(cls: type[T], value: Any) -> T:
    """`value` as a `cls`; CodecError says which field does not fit."""
    return typing.cast(T, _decode(cls, value, cls.__name__))


def _decode(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(args, value, where)
    if origin is Literal:
        if value not in args:
            raise CodecError(f"{where}: {value!r} is not one of {', '.join(map(repr, args))}")
        return value
    if origin in (tuple, list):
        return _decode_sequence(origin, args, value, where)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        _expect(isinstance(value, Mapping), where, "an object", value)
        return {key: _decode(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        _expect(isinstance(value, Mapping), where, "an object", value)
        return _decode_dataclass(typing.cast(type, hint), value, where)
    return _decode_scalar(hint, value, where)


def _decode_union(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in args:
        return None
    problems = []
    for choice in args:
        if choice is not type(None):
            try:
                return _decode(choice, value, where)
            except CodecError as problem:
                problems.append(str(problem))
    raise CodecError("; ".join(problems) or f"{where}: null expected")


def _decode_sequence(origin: type, args: tuple[Any, ...], value: Any, where: str) -> Any:
    _expect(isinstance(value, (list, tuple)), where, "a list", value)
    if origin is list or (len(args) == 2 and args[1] is Ellipsis):
        items = [_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    else:
        _expect(len(value) == len(args), where, f"{len(args)} elements", value)
        items = [_decode(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(args, value, strict=True))]
    return items if origin is list else tuple(items)


def _decode_dataclass(cls: type, value: Mapping[str, Any], where: str) -> Any:
    known = {}
    for name, hint, required in _fields(cls):
        if name in value:
            known[name] = _decode(hint, value[name], f"{where}.{name}")
        elif required:
            raise CodecError(f"{where}: the field {name!r} is missing")
    return cls(**known)


def _decode_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float:
        _expect(isinstance(value, (int, float)) and not isinstance(value, bool), where, "a number", value)
        return float(value)
    if hint is int:
        _expect(isinstance(value, int) and not isinstance(value, bool), where, "an integer", value)
        return value
    if hint is bytes or hint is Path:
        _expect(isinstance(value, str), where, "a string", value)
        return base64.b64decode(value) if hint is bytes else Path(value)
    if isinstance(hint, type):
        _expect(isinstance(value, hint), where, hint.__name__, value)
    return value


def _expect(holds: bool, where: str, what: str, value: Any) -> None:
    if not holds:
        raise CodecError(f"{where}: {what} expected, got {type(value).__name__}")
