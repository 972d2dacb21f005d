"""Every spelling of a call is read, everything else is prose or a complaint, and no text makes it slow."""

from __future__ import annotations

import json
import string
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cuda_agent.agent.models import Call, Tool
from cuda_agent.agent.models.parse import checked, parse
from patience import patience

EDIT = Tool(
    "edit",
    "Replaces text.",
    {
        "type": "object",
        "properties": {
            "search": {"type": "string"},
            "replace": {"type": "string"},
            "line": {"type": "integer"},
            "options": {"type": "object"},
        },
        "required": ["search", "replace"],
    },
)
FACTS = Tool("facts", "What the compiler made.", {"type": "object", "properties": {}})
TOOLS = (EDIT, FACTS)
ONE = Call("edit", {"search": "a", "replace": "b"})

READ = {
    "tags": '<tool_call>{"name": "edit", "arguments": {"search": "a", "replace": "b"}}</tool_call>',
    "tags on lines": '<tool_call>\n{"name": "edit", "arguments": {"search": "a", "replace": "b"}}\n</tool_call>',
    "no closing tag": '<tool_call>{"name": "edit", "arguments": {"search": "a", "replace": "b"}}',
    "a fence in tags": '<tool_call>\n```\n{"name":"edit","arguments":{"search":"a","replace":"b"}}\n```\n</tool_call>',
    "a fence": '```json\n{"name": "edit", "arguments": {"search": "a", "replace": "b"}}\n```',
    "a fence without a language": '```\n{"name": "edit", "arguments": {"search": "a", "replace": "b"}}\n```',
    "bare": '{"name": "edit", "arguments": {"search": "a", "replace": "b"}}',
    "bare, the name last": '{"arguments": {"search": "a", "replace": "b"}, "name": "edit"}',
    "bare, after a thought": '{"thought": "so", "name": "edit", "arguments": {"search": "a", "replace": "b"}}',
    "bare in an array": '[ {"name": "edit", "arguments": {"search": "a", "replace": "b"}} ]',
    "parameters": '{"name": "edit", "parameters": {"search": "a", "replace": "b"}}',
    "arguments as text": r'{"name": "edit", "arguments": "{\"search\": \"a\", \"replace\": \"b\"}"}',
    "as an API writes it": '{"type":"function","function":{"name":"edit","arguments":{"search":"a","replace":"b"}}}',
    "a function with JSON": '<function=edit>{"search": "a", "replace": "b"}</function>',
    "a function with parameters": "<tool_call>\n<function=edit>\n<parameter=search>\na\n</parameter>\n"
    "<parameter=replace>\nb\n</parameter>\n</function>\n</tool_call>",
    "after its reasoning": '<think>{"name": "facts"}</think>{"name":"edit","arguments":{"search":"a","replace":"b"}}',
    "after reasoning that the prompt opened": 'so {"name": "facts"}</think>{"name":"edit","arguments":'
    '{"search":"a","replace":"b"}}',
    "a comma too many": '{"name": "edit", "arguments": {"search": "a", "replace": "b",}}',
    "a comma too many in tags": '<tool_call>{"name":"edit","arguments":{"search":"a","replace":"b"},}</tool_call>',
    "a comma twice": '{"name": "edit",, "arguments": {"search": "a", "replace": "b"}}',
    "a comma too few": '{"name": "edit" "arguments": {"search": "a", "replace": "b"}}',
    "a null for what is optional": '{"name":"edit","arguments":{"search":"a","replace":"b","line":null}}',
}


@pytest.mark.parametrize("text", READ.values(), ids=READ)
def test_a_spelling_is_read(text: str) -> None:
    parsed = parse(text, TOOLS)
    assert (parsed.calls, parsed.prose, parsed.complaint) == ((ONE,), "", "")


@pytest.mark.parametrize("text", READ.values(), ids=READ)
def test_text_around_it_is_kept(text: str) -> None:
    if "</think>" in text:
        return
    parsed = parse(f"The loop is strided.\n{text}\nThat should help.", TOOLS)
    assert parsed.calls == (ONE,)
    assert not parsed.complaint
    assert " ".join(parsed.prose.split()) == "The loop is strided. That should help."


def test_several_calls_keep_their_order() -> None:
    text = f"First {READ['tags']} then {READ['bare']}, {READ['a fence']} and {READ['a function with JSON']}"
    assert parse(text + '<tool_call>{"name": "facts"}</tool_call>', TOOLS).calls == (ONE,) * 4 + (Call("facts", {}),)


def test_one_call_that_cannot_be_read_does_not_hide_the_others() -> None:
    parsed = parse(f'<tool_call>{{"name": "edit", "arg</tool_call>{READ["tags"]}', TOOLS)
    assert parsed.calls == (ONE,)
    assert "`edit`" in parsed.complaint


COMPLAINED = {
    "an unknown tool": ('{"name": "exec", "arguments": {}}', "There is no tool `exec`: the tools are edit, facts."),
    "an argument is missing": ('{"name": "edit", "arguments": {"search": "a"}}', "`replace` is missing"),
    "an argument too many": (
        '<tool_call>{"name": "facts", "arguments": {"path": "/etc/passwd"}}</tool_call>',
        "no argument `path` (there are none)",
    ),
    "a wrong type": (
        '{"name": "edit", "arguments": {"search": "a", "replace": ["b"]}}',
        "`replace` must be a string, not an array",
    ),
    "a wrong type in a parameter": (
        "<function=edit><parameter=search>a</parameter><parameter=replace>b</parameter>"
        "<parameter=line>one</parameter></function>",
        "`line` must be an integer, not a string",
    ),
    "arguments beside the name": ('{"name": "edit", "search": "a", "replace": "b"}', 'must stand in "arguments"'),
    "arguments that are a list": ('{"name": "edit", "arguments": ["a", "b"]}', "must be a JSON object"),
    "arguments that are broken text": (r'{"name": "edit", "arguments": "{\"search\": \"a"}', "not closed"),
    "an open quote in code": (
        '<tool_call>{"name": "edit", "arguments": {"search": "printf("hi")", "replace": ""}}</tool_call>',
        'a quote is written \\"',
    ),
    "an open bracket": ('<tool_call>{"name": "facts", "arguments": {}</tool_call>', "bracket is not closed"),
    "single quotes": ("<tool_call>{'name': 'facts'}</tool_call>", "double quotes"),
    "a number that JSON has not": ('{"name": "facts", "arguments": {"a": NaN}}', "NaN is not JSON"),
    "an infinite number": (
        '{"name": "edit", "arguments": {"search": "a", "replace": "b", "line": 1e999}}',
        "`line` must be an integer, not an infinite number",
    ),
    "cut in tags": ('<tool_call>{"name": "edit", "arguments": {"search": "__global__ vo', "`edit` is cut"),
    "cut, bare": ('Let me see. {"name": "edit", "arguments": {"search": "__global__ vo', "`edit` is cut"),
    "cut in a fence": ('```json\n{"name": "edit", "arguments": {"search": "a"', "`edit` is cut"),
    "cut after the tag": ("I edit it.\n<tool_call>", "is cut"),
    "cut in a parameter": ("<function=edit><parameter=search>\n__global__ vo", "`edit` is cut"),
    "prose in tags": ("<tool_call>edit the loop</tool_call>", "after <tool_call> must come"),
    "a list of names": ('<tool_call>["edit"]</tool_call>', "a call is an object such as"),
    "too deep": ('{"name": "edit", "arguments": ' + '{"a":' * 40 + "1" + "}" * 41, "32 levels"),
    "far too deep": ('<tool_call>{"name": "edit", "arguments": ' + "[" * 100_000, "nests too deeply"),
}


@pytest.mark.parametrize(("text", "words"), COMPLAINED.values(), ids=COMPLAINED)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    parsed = parse(text, TOOLS)
    assert parsed.calls == ()
    assert words in parsed.complaint
    assert len(parsed.complaint) < 400
    assert "\n" not in parsed.complaint


PROSE = {
    "prose": "The kernel is bound by memory; I would vectorise its loads.",
    "code": "```cuda\n__global__ void k(float* a) { a[0] = 1; }\n```",
    "JSON in a fence of code": '```cpp\nauto s = R"({"name": "facts", "arguments": {}})";\n```',
    "JSON that is no call": 'It was {"name": "softmax", "us": 12}.',
    "fenced JSON that is no call": '```json\n{"us": 12}\n```',
    "an initialiser": 'struct opt o[] = {{"name", 1}, {"type", 2}};',
}


@pytest.mark.parametrize("text", PROSE.values(), ids=PROSE)
def test_prose_is_no_call(text: str) -> None:
    parsed = parse(text, TOOLS)
    assert (parsed.calls, parsed.prose, parsed.complaint) == ((), text, "")


def test_reasoning_that_never_ends_is_neither() -> None:
    assert parse('Well. <think>I could say {"name": "facts", "arguments": {}}', TOOLS).calls == ()


MENDED_NOT = [
    '{"name": "edit", "arguments": {"search": "a", "replace": "b"}',  # a bracket is no comma
    '{"name": "edit",, "arguments": {"search": "a", "replace": "b",}}',  # two commas
    '{"name": "edit", "arguments": {"search": "a" "replace"}}',  # a string follows, not a key
    '{"name": "edit", "arguments": {"search": "a", "replace": "x = c ? "b":"d";"}}',  # quotes in code
]


@pytest.mark.parametrize("text", MENDED_NOT)
def test_only_one_comma_is_mended(text: str) -> None:
    parsed = parse(text, TOOLS)
    assert parsed.calls == ()
    assert parsed.complaint


def test_half_a_surrogate_pair_reaches_nobody() -> None:
    parsed = parse(
        r"prose " + "\ud800" + r' {"name": "edit", "arguments": {"search": "\ud800", "replace": "b"}}', TOOLS
    )
    assert json.dumps([parsed.calls[0].arguments, parsed.prose], ensure_ascii=False).encode()


def test_arguments_of_an_api() -> None:
    """A server that reads calls itself hands over a name and JSON text."""
    assert checked("facts", "", TOOLS, "call_9") == Call("facts", {}, "call_9")
    assert checked("facts", None, TOOLS) == Call("facts", {})
    assert checked("edit", '{"search": "a", "replace": "b"} ', TOOLS) == ONE
    assert "not closed" in str(checked("edit", '{"search": "a", "repl', TOOLS))
    assert "text follows it" in str(checked("facts", "{} {}", TOOLS))


# Properties.

texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('{}[]"\\,:`<>\n'))
arguments = st.fixed_dictionaries(
    {"search": texts, "replace": texts},
    optional={
        "line": st.integers(),
        "options": st.dictionaries(texts, st.recursive(st.none() | st.booleans() | texts, st.lists, max_leaves=5)),
    },
)
words = st.text(string.ascii_letters + " .;()", max_size=40)


def spelled(how: str, call: dict[str, Any], indent: int | None) -> str:
    plain = {"name": "edit", "arguments": call}
    dumped = json.dumps(plain, indent=indent, ensure_ascii=indent is None)
    match how:
        case "tags":
            return f"<tool_call>{dumped}</tool_call>"
        case "open tag":
            return f"<tool_call>\n{dumped}\n"
        case "fence":
            return f"```json\n{dumped}\n```"
        case "bare":
            return dumped
        case "array":
            return f"[{dumped}]"
        case "raw line breaks":
            return dumped.replace("\\\\", "\0").replace("\\n", "\n").replace("\0", "\\\\")
        case "text":
            return json.dumps({"name": "edit", "arguments": json.dumps(call, indent=indent)})
        case "parameters":
            return json.dumps({"name": "edit", "parameters": call}, indent=indent)
        case "api":
            return json.dumps({"id": "c", "type": "function", "function": plain}, indent=indent)
        case "function":
            return f"<function=edit>{json.dumps(call, indent=indent)}</function>"
        case _:
            raise AssertionError(how)


HOW = ["tags", "open tag", "fence", "bare", "array", "raw line breaks", "text", "parameters", "api", "function"]


@given(how=st.sampled_from(HOW), call=arguments, before=words, after=words, indent=st.sampled_from([None, 2]))
@example(how="tags", call={"search": "</tool_call>", "replace": "```"}, before="", after="", indent=None)
@example(how="fence", call={"search": "```cuda\n", "replace": "</think>"}, before="", after="", indent=2)
def test_every_well_formed_call_comes_back(
    how: str, call: dict[str, Any], before: str, after: str, indent: int | None
) -> None:
    parsed = parse(f"{before}\n{spelled(how, call, indent)}\n{after}", TOOLS)
    assert parsed.complaint == ""
    assert [one.name for one in parsed.calls] == ["edit"]
    assert parsed.calls[0].arguments == call
    assert parsed.prose.split() == f"{before}\n{after}".split() or set(parsed.prose) <= set(" ,;[]\n")


@given(search=texts, replace=texts)
def test_every_parameter_comes_back(search: str, replace: str) -> None:
    pair = {"search": search.replace("</parameter>", ""), "replace": replace.replace("</parameter>", "")}
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pair.items())
    assert parse(f"<function=edit>\n{body}</function>", TOOLS).calls == (Call("edit", pair),)


PIECES = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<function=edit>", "</function>", "<parameter=line>"]
PIECES += [
    "</parameter>",
    "```",
    "```json\n",
    '{"name": ',
    '"edit"',
    '"arguments": ',
    '{"search": ',
    '"a"',
    "{",
    "}",
    "[",
    "]",
]
PIECES += [",", '"', "\\", "\n", "NaN", "9" * 5000, "null", "\ud800", '{"name": "facts"}', "[" * 2000, "1e999"]


@given(st.lists(st.sampled_from(PIECES) | st.text(), max_size=30).map("".join))
def test_no_text_raises(text: str) -> None:
    parsed = parse(text, TOOLS)
    assert all(call.name in ("edit", "facts") for call in parsed.calls)
    json.dumps([parsed.prose, parsed.complaint, [call.arguments for call in parsed.calls]], ensure_ascii=False).encode()


SLOW = ["`", "<tool_call>", '<tool_call>{"', '{"name":', '{"name":{', '{"name":1}', '{"name":"edit","arguments":[1,']
SLOW += [
    "```json\n{",
    "```cuda\n",
    "<function=",
    "<function=edit>{",
    "<think>",
    "</think>",
    "[ {",
    '<tool_call>{"a":1,,',
]


@pytest.mark.parametrize(("megabytes", "bits"), [(10, ['<tool_call>{"']), (1, SLOW)], ids=["10 MB", "1 MB each"])
def test_megabytes_take_seconds(megabytes: int, bits: list[str]) -> None:
    """A reader that is quadratic in one of these would need an hour."""
    for bit in bits:
        text = bit * (megabytes * 1_000_000 // len(bit))
        start = time.monotonic()
        parse(text, TOOLS)
        assert time.monotonic() - start < patience(20), bit
