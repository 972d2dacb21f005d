"""A server's refusals in a sentence: what it said, cleaned and shortened, and what to do."""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

OVERFLOW = re.compile(
    r"context[ _-]?(length|window|size)|maximum context|max_model_len|exceed_context|too many (input )?tokens"
    r"|(prompt|input)( is)? too long|too long for the model|reduce the length",
    re.IGNORECASE,
)
CONTEXT = re.compile(
    r"(?:context[ _-]?(?:length|window|size)|n_ctx|max_model_len)[^0-9]{0,40}([0-9]{3,8})", re.IGNORECASE
)
SPENT = re.compile(r"insufficient_quota|exceeded your current quota|billing", re.IGNORECASE)  # a 429 that will not pass
TAG = re.compile(r"<[^<>]{0,200}>")
ADVICE = {
    401: "set the environment variable CUDA_AGENT_API_KEY to a key of this server, or in VS Code run Set the API Key",
    402: "the account behind the key has nothing left to spend",
    403: "the key may not use this model here: choose another model or another key",
    404: "check the model's name (`ollama list`, `curl URL/models`) and the URL, which usually ends in /v1",
    405: "check the URL, which usually ends in /v1",
    413: "the request is larger than the server takes",
}


def words_of(body: bytes, key: str = "") -> str:
    """What an error's body says, in at most 300 characters of one line."""
    text = body.decode("utf-8", "replace")
    try:
        return words_in(json.loads(text), key)
    except (ValueError, RecursionError):  # not JSON: the text itself
        return shortened(text, key)


def words_in(error: object, key: str = "") -> str:
    """The same of an error that is read already."""
    try:
        return shortened(_said(error) or json.dumps(error), key)
    except RecursionError:
        return "an error that nests too deeply to be read"


def shortened(text: str, key: str = "") -> str:
    """One line of at most 300 printable characters, without tags and without the key, should the server repeat it."""
    text = TAG.sub(" ", hidden(text[:20_000], key))
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= 300 else f"{text[:299]}…"


def hidden(text: str, key: str) -> str:
    return text.replace(key, "[key]") if key else text


def _said(body: object) -> str:
    """The sentence in the shapes that servers use: error.message, error, message, detail (text, or a list of dicts)."""
    if isinstance(body, str):
        return body
    if isinstance(body, Mapping):
        for name in ("error", "message", "detail", "msg"):
            if name in body and (said := _said(body[name])):
                place = body.get("loc")
                return f"{said} ({'.'.join(map(str, place))})" if isinstance(place, list) else said
    if isinstance(body, list):
        return "; ".join(said for one in body[:3] if (said := _said(one)))
    return ""


def context_of(words: str) -> int:
    """The number of tokens that a context-length error names; 0 where it names none."""
    found = CONTEXT.search(words)
    return int(found[1]) if found else 0


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that a Retry-After header asks for (a number or a date); 0 without one."""
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,6})?", value):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0


def site(url: str) -> str:
    """Host and port of a URL, for people: no user info, no path, no query."""
    try:
        parts = urlsplit(url)
        return (parts.hostname or "?") + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return "?"


def advice(status: int, location: str = "") -> str:
    if 300 <= status < 400 and location:
        where = site(location) if "//" in location else "another path"
        return f"it sends requests on to {where}, which is not followed: if you trust that, put it into the model's URL"
    return ADVICE.get(status, "")
