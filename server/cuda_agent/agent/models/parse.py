"""Tool calls out of a model's text. Nothing is evaluated and nothing raises: what is no call is prose, and what looks
like one and is none gives a sentence that the model can act on.

Spellings: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (the closing tag may be missing), `<function=NAME>`
with JSON or `<parameter=KEY>` inside, fenced JSON, bare JSON; an array of calls, `parameters` for `arguments`, OpenAI's
`{"type": "function", "function": {…}}`, arguments as a JSON string, raw line breaks inside strings. One wrong comma is
mended where there is one way to do it. What stands in a `<think>` block or in a fence of another language is no call.

Time is linear in the text: malformed JSON is looked at again only while a budget of characters lasts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder
from typing import Any

from cuda_agent.agent.models import Call, Tool
from cuda_agent.agent.models.schema import mismatch, types

MOST_CALLS = 32
DEPTH = 32
MENDED = 1 << 18  # characters: a longer call is not mended

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MARK = re.compile(
    r"<think>|</think>|</?tool_call>|<function=|</function>|```"
    r'|(?:\[\s*)?\{\s*"\w{1,40}"\s*:'
)
GAP = re.compile(r"\s*(?:```\w*\s*)?")  # before and after JSON inside tags
SPACE = re.compile(r"\s*")
FENCE = re.compile(r"[ \t]*([\w+#.-]*)\s*")
FUNCTION = re.compile(r"([^<>\n]{1,80})>\s*")
PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,80})>")
NAMED = re.compile(r'"name"\s*:\s*"([^"\\\n]{1,60})"')
KEY = re.compile(r'"(?:[^"\\\n]|\\.){0,60}"\s*:')
SURROGATE = re.compile("[\ud800-\udfff]")
ONLY_COMMAS = re.compile(r"[\s,;\[\]]*")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


DECODER = JSONDecoder(strict=False, parse_constant=_refuse)


@dataclass(frozen=True, slots=True)
class Parsed:
    """`complaint` is one sentence about the first call that could not be read; the others are in `calls`."""

    calls: tuple[Call, ...]
    prose: str
    complaint: str = ""


def parse(text: str, tools: Sequence[Tool]) -> Parsed:
    """The calls in a reply, in order, and what stands around them."""
    reader = _Reader(text, tools)
    reader.read()
    prose = clean("".join(reader.prose)).strip()
    return Parsed(tuple(reader.calls), "" if ONLY_COMMAS.fullmatch(prose) else prose, reader.complaint)


def checked(name: str, arguments: object, tools: Sequence[Tool], id: str = "") -> Call | str:
    """A call whose arguments (an object, JSON text, or None) fit the tool's schema; else a sentence that says why not.
    Optional arguments that are null are left out."""
    tool = next((one for one in tools if one.name == name), None)
    if tool is None:
        listed = ", ".join(one.name for one in tools) or "none here"
        return f"There is no tool `{_short(name)}`: the tools are {listed}."
    if isinstance(arguments, str):
        try:
            arguments = _decode_whole(arguments) if arguments.strip() else {}
        except _Broken as broken:
            return f"The call of `{name}` was not run: its arguments are not JSON, {broken.why}; {HINT}."
    try:
        given = _cleaned({} if arguments is None else arguments)
    except _Broken as broken:
        return f"The call of `{name}` was not run: {broken.why}."
    if not isinstance(given, dict):
        return f"The call of `{name}` was not run: its arguments must be a JSON object."
    known = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())
    given = {
        k: v for k, v in given.items() if not (v is None and k in known and k not in required and _never_null(known[k]))
    }
    if wrong := mismatch(given, tool.parameters):
        return f"The call of `{name}` was not run: {wrong}."
    return Call(name, given, id)


def cut_off(name: str | None) -> str:
    """The complaint about a call that the reply ends in."""
    return f"{_called(name)} is cut: the reply ends inside it; make it again, shorter."


def without_reasoning(text: str) -> str:
    """`text` without its `<think>` block, also where the opening tag stood in the prompt or the block never ends."""
    return text.rpartition("</think>")[2].partition("<think>")[0].strip()


def clean(text: str) -> str:
    """`text` without lone surrogates, which no file and no JSON reader would take."""
    return SURROGATE.sub("�", text)


HINT = 'inside a string a quote is written \\", a backslash \\\\ and a line break \\n'


class _Broken(Exception):
    """JSON that cannot be read: `why` for the model, `at` where in the text, `ended` when the text ends inside it."""

    def __init__(self, why: str, at: int, ended: bool = False) -> None:
        super().__init__(why)
        self.why, self.at, self.ended = why, at, ended


def _broken(text: str, error: Exception, start: int) -> _Broken:
    if isinstance(error, RecursionError):
        return _Broken("it nests too deeply", start)
    if not isinstance(error, JSONDecodeError):  # NaN, or a number of thousands of digits
        return _Broken(str(error)[:80], start)
    ended = error.msg.startswith("Unterminated string") or not text[error.pos : error.pos + 4096].strip()
    if ended:
        return _Broken("a quote or a bracket is not closed", error.pos, True)
    near = " ".join(text[max(start, error.pos - 24) : error.pos + 24].split())
    return _Broken(f"{error.msg[:1].lower()}{error.msg[1:]} near {near!r}", error.pos)


def _decode_whole(text: str) -> Any:
    """A text that is one JSON value, one comma mended. Raises _Broken."""
    start = len(text) - len(text.lstrip())
    try:
        value, end = DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        mended = _mend(text, error) if len(text) <= MENDED else None
        if mended is None:
            raise _broken(text, error, start) from None
        value, end = mended
    if rest := text[end:].strip():
        raise _Broken(f"text follows it: {rest[:24]!r}", end)
    return value


def _mend(text: str, error: Exception) -> tuple[Any, int] | None:
    """(value, end in `text`) with the one comma removed or added at which reading failed. None: another mistake, or
    not the only one."""
    if not isinstance(error, JSONDecodeError):
        return None
    at = error.pos + len(text[error.pos :]) - len(text[error.pos :].lstrip())
    before = len(text[:at].rstrip()) - 1
    if at >= len(text) or before < 0:
        return None
    after = text[at + 1 :].lstrip()[:1]
    if text[before] == "," and text[at] in ",}]":
        mended, moved = text[:before] + text[before + 1 :], 1
    elif text[at] == "," and after and after in ",}]":
        mended, moved = text[:at] + text[at + 1 :], 1
    elif error.msg.startswith("Expecting ',' delimiter") and KEY.match(text, at):
        mended, moved = text[:at] + "," + text[at:], -1
    else:
        return None
    try:
        value, end = DECODER.raw_decode(mended, len(mended) - len(mended.lstrip()))
    except (ValueError, RecursionError):
        return None
    return value, end + moved


def _cleaned(value: Any, depth: int = 0) -> Any:
    if depth > DEPTH:
        raise _Broken(f"it nests more than {DEPTH} levels deep", 0)
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(str(k)): _cleaned(v, depth + 1) for k, v in value.items()}
    return [_cleaned(v, depth + 1) for v in value] if isinstance(value, list) else value


def _never_null(schema: Mapping[str, Any]) -> bool:
    return bool(types(schema)) and "null" not in types(schema)


def _called(name: str | None) -> str:
    return f"The call of `{_short(name)}`" if name else "The tool call"


def _short(name: str) -> str:
    return clean(name if len(name) <= 40 else f"{name[:37]}…").replace("\n", " ")


class _Next:
    """Where a word stands next. Asked with growing positions, all answers together read the text once."""

    def __init__(self, text: str, word: str) -> None:
        self.text, self.word, self.at = text, word, -2

    def after(self, position: int) -> int:
        """The length of the text where there is none."""
        if self.at != -1 and self.at < position:
            self.at = self.text.find(self.word, position)
        return self.at if self.at >= 0 else len(self.text)


class _Reader:
    def __init__(self, text: str, tools: Sequence[Tool]) -> None:
        self.text, self.tools = text, tools
        self.names = {tool.name for tool in tools}
        self.calls: list[Call] = []
        self.prose: list[str] = []
        self.wrong, self.first = 0, ""  # how many calls could not be read, and the complaint about the first
        self.work = 4 * len(text) + 65536  # characters of malformed JSON that may still be read
        words = (OPEN, CLOSE, "</think>", "```", "</parameter>")
        self.next = {word: _Next(text, word) for word in words}

    def read(self) -> None:
        at = 0
        while self.work > 0 and (mark := MARK.search(self.text, at)):
            self.prose.append(self.text[at : mark.start()])
            at = self.step(mark)
            if len(self.calls) >= MOST_CALLS:
                self.complained(f"A reply may hold {MOST_CALLS} calls; what follows them was not read.")
                return
        if self.work <= 0:
            self.complained("Too much of the reply is malformed JSON; the rest was not read.")
        self.prose.append(self.text[at:])

    def step(self, mark: re.Match[str]) -> int:
        """Reads what begins at `mark`; where reading goes on."""
        word = mark.group()
        if word == OPEN:
            return self.tagged(mark.end())
        if word == "<function=":
            return self.function(mark.end())
        if word == "```":
            return self.fence(mark)
        if word == "<think>":
            return self.next["</think>"].after(mark.end())
        if word == "</think>":  # all before it was reasoning; its opening tag may stand in the prompt
            self.calls, self.prose, self.wrong = [], [], 0
            return mark.end()
        return mark.end() if word.startswith("</") else self.bare(mark)

    # The four spellings.

    def tagged(self, start: int) -> int:
        at = self.skip(GAP, start)
        if self.text.startswith("<function=", at):
            return self.function(at + len("<function="))
        end = min(self.next[CLOSE].after(start), self.next[OPEN].after(start))
        if self.text[at : at + 1] not in ("{", "["):
            wanted = 'after <tool_call> must come {"name": …, "arguments": {…}}'
            said = f", not {self.text[at : min(end, at + 24)]!r}" if at < end else ""
            self.complain(None, wanted + said, cut=at == len(self.text))
            return max(at, end)
        try:
            while self.text[at : at + 1] in ("{", "["):
                value, at = self.decode(at, end if end > at else len(self.text))
                self.take(value, certain=True)
                at = self.skip(GAP, at)
        except _Broken as broken:
            open_ended = broken.ended or broken.at >= end
            why = "a quote or a bracket is not closed" if open_ended else broken.why
            self.complain(self.name_near(at), why, cut=open_ended and end == len(self.text))
            return max(at + 1, end)
        return at

    def function(self, start: int) -> int:
        head = FUNCTION.match(self.text, start)
        if head is None:
            self.complain(None, "after <function= must come a tool's name and >")
            return start
        name, at = head[1].strip(), head.end()
        if self.text.startswith("{", at):
            try:
                arguments, at = self.decode(at, len(self.text))
            except _Broken as broken:
                self.complain(name, broken.why, cut=broken.ended)
                return len(self.text) if broken.ended else broken.at
            self.call(name, arguments)
            return at
        arguments = {}
        while parameter := PARAMETER.match(self.text, at):
            end = self.next["</parameter>"].after(parameter.end())
            if end == len(self.text):
                self.complain(name, "", cut=True)
                return end
            value = self.text[parameter.end() : end]
            arguments[parameter[1].strip()] = self.typed(name, parameter[1].strip(), _one_line_break_off(value))
            at = end + len("</parameter>")
        at = self.skip(SPACE, at)
        if self.text.startswith("</function>", at):
            self.call(name, arguments)
        else:
            self.complain(name, "</function> is missing", cut=at == len(self.text))
        return at

    def fence(self, mark: re.Match[str]) -> int:
        head = FENCE.match(self.text, mark.end())
        assert head is not None  # it matches the empty text too
        language, at = head[1].lower(), head.end()
        close = self.next["```"].after(mark.end())
        tool = language.startswith("tool")
        if not (tool or language in ("", "json")) or self.text[at : at + 1] not in ("{", "["):
            until = close + 3 if close < len(self.text) else mark.end()
            self.prose.append(self.text[mark.start() : until])
            return until
        found = False
        try:
            while self.text[at : at + 1] in ("{", "["):
                value, at = self.decode(at, len(self.text))
                found |= self.take(value, certain=tool)
                at = self.skip(SPACE, at)
        except _Broken as broken:
            close = self.next["```"].after(max(at, broken.at))
            if tool or self.looks_called(at):
                self.complain(self.name_near(at), broken.why, cut=broken.ended and close == len(self.text))
            elif not found:
                self.prose.append(self.text[mark.start() : close + 3])
            return min(close + 3, len(self.text))
        at += 3 if self.text.startswith("```", at) else 0
        if not found:
            self.prose.append(self.text[mark.start() : at])
        return at

    def bare(self, mark: re.Match[str]) -> int:
        start = mark.start()
        try:
            value, at = self.decode(start, len(self.text))
        except _Broken as broken:
            if self.text[start] == "[":  # its objects may be whole
                self.prose.append("[")
                return start + 1
            if self.looks_called(start):
                self.complain(self.name_near(start), broken.why, cut=broken.ended)
                return len(self.text) if broken.ended else max(mark.end(), broken.at)
            self.prose.append(mark.group())
            return mark.end()
        if not self.take(value, certain=False):
            self.prose.append(self.text[start:at])
        return at

    # What they share.

    def skip(self, pattern: re.Pattern[str], at: int) -> int:
        found = pattern.match(self.text, at)
        return found.end() if found else at

    def decode(self, start: int, end: int) -> tuple[Any, int]:
        """(value, where it ends) of the JSON at `start`; a mended one ends before `end`. Raises _Broken."""
        try:
            return DECODER.raw_decode(self.text, start)
        except (ValueError, RecursionError) as error:
            broken = _broken(self.text, error, start)
            reach = len(self.text) if broken.ended else broken.at + 1
            deep = 1 << 14 if isinstance(error, RecursionError) else 0
            self.work -= max(reach - start, deep) + broken.at // 64  # the error counts the lines before it
            end = min(end, start + MENDED)
            if isinstance(error, JSONDecodeError) and error.pos < end and self.work > 0:
                self.work -= end - start
                part = self.text[start:end]
                if mended := _mend(part, JSONDecodeError(error.msg, part, error.pos - start)):
                    return mended[0], start + mended[1]
            raise broken from None

    def take(self, value: Any, certain: bool) -> bool:
        """True where `value` is a call, or an array of calls, or was meant as one."""
        taken = (
            [self.take_one(one, certain) for one in value]
            if isinstance(value, list)
            else [self.take_one(value, certain)]
        )
        return bool(taken) and all(taken)

    def take_one(self, value: Any, certain: bool) -> bool:
        if isinstance(value, dict) and isinstance(value.get("function"), dict):
            value = value["function"]
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str):
            if certain:
                self.complain(None, 'a call is an object such as {"name": …, "arguments": {…}}')
            return certain
        key = next((k for k in ("arguments", "parameters") if k in value), None)
        if key is None and not certain and name not in self.names:
            return False
        if key is None and value.keys() - {"name", "id", "type"}:
            self.complain(name, 'its arguments must stand in "arguments": {…}')
        else:
            self.call(name, value[key] if key else {})
        return True

    def call(self, name: str, arguments: object) -> None:
        outcome = checked(name, arguments, self.tools)
        if isinstance(outcome, Call):
            if len(self.calls) < MOST_CALLS:
                self.calls.append(outcome)
        else:
            self.complained(outcome)

    def typed(self, name: str, key: str, value: str) -> Any:
        """The text of a `<parameter=…>` as the type its schema names."""
        tool = next((one for one in self.tools if one.name == name), None)
        wanted = types(tool.parameters.get("properties", {}).get(key, {})) if tool else ()
        if not wanted or "string" in wanted:
            return value
        try:
            return _decode_whole(value)
        except _Broken:
            return value  # the schema's complaint says what it should be

    def looks_called(self, start: int) -> bool:
        name = self.name_near(start)
        near = self.text[start : start + 512]
        return name is not None and (name in self.names or '"arguments"' in near or '"parameters"' in near)

    def name_near(self, start: int) -> str | None:
        named = NAMED.search(self.text, start, start + 512)
        return named[1] if named else None

    def complain(self, name: str | None, why: str, cut: bool = False) -> None:
        if cut:
            self.complained(cut_off(name))
        else:
            syntax = f"; {HINT}" if " near " in why or "not closed" in why else ""
            self.complained(f"{_called(name)} was not run: {clean(why)}{syntax}.")

    def complained(self, sentence: str) -> None:
        self.first = self.first if self.wrong else sentence
        self.wrong += 1

    @property
    def complaint(self) -> str:
        if self.wrong < 2:
            return self.first if self.wrong else ""
        return f"{self.first} ({self.wrong - 1} more could not be read either.)"


def _one_line_break_off(value: str) -> str:
    end = "\r\n" if value.startswith("\r\n") else "\n"
    return value.removeprefix(end).removesuffix(end)
