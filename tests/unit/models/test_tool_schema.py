"""The checker of tools' schemas says the same as jsonschema, and says it in words."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.agent.models.schema import ANNOTATIONS, KEYWORDS, mismatch
from cuda_agent.agent.tools import TOOLS

EDIT = {
    "type": "object",
    "properties": {
        "search": {"type": "string", "minLength": 1},
        "line": {"type": "integer", "minimum": 1},
        "kind": {"enum": ["add", "drop"]},
        "rows": {"type": "array", "items": {"type": "number"}, "maxItems": 3},
        "params": {"type": "object"},
        "to": {"type": ["string", "null"]},
    },
    "required": ["search"],
    "additionalProperties": False,
}

WRONG = [
    ({}, "`search` is missing"),
    ({"search": ""}, "`search` must have at least 1 characters"),
    ({"search": 3}, "`search` must be a string, not an integer"),
    ({"search": "a", "line": "3"}, "`line` must be an integer, not a string"),
    ({"search": "a", "line": True}, "`line` must be an integer, not true or false"),
    ({"search": "a", "line": 0}, "`line` must be at least 1, not 0"),
    ({"search": "a", "kind": "swap"}, "`kind` must be one of add, drop, not 'swap'"),
    ({"search": "a", "rows": [1, "b"]}, "item 1 of `rows` must be a number, not a string"),
    ({"search": "a", "rows": [1, 2, 3, 4]}, "`rows` must have at most 3 items, not 4"),
    ({"search": "a", "to": 1}, "`to` must be a string or null, not an integer"),
    ({"search": "a", "find": "b"}, "there is no argument `find` (there are `search`, `line`,"),
    ([], "it must be an object, not an array"),
]


@pytest.mark.parametrize(("value", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_what_is_wrong_is_said(value: object, sentence: str) -> None:
    assert mismatch(value, EDIT).startswith(sentence)


def test_what_fits_is_not_refused() -> None:
    value = {"search": "a", "line": 10**400, "kind": "add", "rows": [1, 2.5], "params": {"x": [1]}, "to": None}
    assert mismatch(value, EDIT) == ""


def test_a_keyword_that_is_not_checked_is_the_authors_mistake() -> None:
    with pytest.raises(ValueError, match="pattern"):
        mismatch("a", {"type": "string", "pattern": "a+"})


def test_every_tool_has_a_schema_that_is_checked_whole() -> None:
    def visit(schema: dict[str, Any]) -> None:
        assert schema.keys() <= KEYWORDS | ANNOTATIONS
        inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
        for one in [*inner, *schema.get("anyOf", ())]:
            if isinstance(one, dict):
                visit(one)

    for tool in TOOLS:
        visit(dict(tool.parameters))


def test_invented_arguments_are_refused_where_the_schema_lists_its_own() -> None:
    assert "no argument `b`" in mismatch({"b": 1}, {"type": "object", "properties": {"a": {}}})
    assert mismatch({"b": 1}, {"type": "object"}) == ""
    assert mismatch({"b": 1}, {"type": "object", "properties": {"a": {}}, "additionalProperties": True}) == ""


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    simple = st.sampled_from(
        [
            {},
            {"type": "string", "maxLength": 2},
            {"type": "integer", "exclusiveMinimum": 0, "maximum": 5},
            {"type": ["number", "null"]},
            {"type": "boolean"},
            {"enum": ["a", 1, None]},
            {"const": "a"},
            {"anyOf": [{"type": "string"}, {"type": "integer", "exclusiveMaximum": 3}]},
        ]
    )

    def larger(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        objects = st.builds(
            lambda properties, required, other: {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": other,
            },
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.lists(st.sampled_from("ab"), unique=True, max_size=1),
            st.booleans() | inner,
        )
        return objects | inner.map(lambda items: {"type": "array", "items": items, "minItems": 1})

    return st.recursive(simple, larger, max_leaves=6)


def values() -> st.SearchStrategy[Any]:
    leaves = (
        st.none() | st.booleans() | st.integers(-2, 8) | st.sampled_from([0.5, 2.5]) | st.sampled_from(["", "a", "abc"])
    )
    return st.recursive(
        leaves,
        lambda v: st.lists(v, max_size=2) | st.dictionaries(st.sampled_from("abcd"), v, max_size=3),
        max_leaves=6,
    )


@given(value=values(), schema=schemas())
def test_it_agrees_with_jsonschema(value: object, schema: dict[str, Any]) -> None:
    assert (mismatch(value, schema) == "") == jsonschema.Draft202012Validator(schema).is_valid(value)
