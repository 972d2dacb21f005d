"""Edits of a text: apply, invert, find the smallest ones, show them as a diff.

Spans are UTF-8 byte offsets into the old text. A set of edits is simultaneous: spans do not overlap, and edits that
insert at one offset are applied in the order given.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher

from cuda_agent.errors import SourceError
from cuda_agent.model import Edit, Span
from cuda_agent.source import joined
from cuda_agent.source.documents import decode, encode

_TOKEN = re.compile(r"\d[\w.]*|\w+|[ \t]+|\r\n|.", re.DOTALL)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z")
# SequenceMatcher is quadratic in the worst case: larger hunks stay whole-line edits.
_TOKENS_MAX = 4000


def ordered(edits: Iterable[Edit], size: int) -> list[Edit]:
    """Edits by position. Raises SourceError when two overlap or one lies outside a text of `size` bytes."""
    result = sorted(edits, key=lambda edit: (edit.span.start, edit.span.end))
    at = 0
    for edit in result:
        if edit.span.start < at or edit.span.end < edit.span.start or edit.span.end > size:
            raise SourceError(
                f"the edit of bytes {edit.span.start}–{edit.span.end} overlaps another or leaves the text of "
                f"{size} bytes; make the edits again from the present text"
            )
        at = edit.span.end
    return result


def apply(text: str, edits: Iterable[Edit]) -> str:
    """`text` with all `edits` made at once. Raises SourceError when they overlap, leave the text or cut a character."""
    data = encode(text)
    pieces: list[bytes] = []
    at = 0
    for edit in ordered(edits, len(data)):
        for offset in (edit.span.start, edit.span.end):
            if offset < len(data) and data[offset] & 0xC0 == 0x80:
                raise SourceError(f"byte {offset} is inside a character; make the edits again from the present text")
        pieces += (data[at : edit.span.start], encode(edit.text))
        at = edit.span.end
    pieces.append(data[at:])
    return decode(b"".join(pieces))


def invert(text: str, edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Edits of `apply(text, edits)` that lead back to `text`. Raises SourceError as `apply`."""
    data = encode(text)
    result: list[Edit] = []
    shift = 0
    for edit in ordered(edits, len(data)):
        start = edit.span.start + shift
        length = len(encode(edit.text))
        result.append(Edit(Span(start, start + length), decode(data[edit.span.start : edit.span.end])))
        shift += length - (edit.span.end - edit.span.start)
    return tuple(result)


def rebase(edits: Iterable[Edit], base: str, now: str) -> tuple[Edit, ...] | None:
    """Edits of `base` moved to `now`, a text that was changed elsewhere; None where a change touches an edit."""
    moved: list[Edit] = []
    changes = ordered(minimal(base, now), len(encode(base)))
    for edit in edits:
        shift = 0
        for change in changes:
            if change.span.end < edit.span.start:
                shift += len(encode(change.text)) - (change.span.end - change.span.start)
            elif change.span.start <= edit.span.end:
                return None
        moved.append(Edit(Span(edit.span.start + shift, edit.span.end + shift), edit.text))
    return tuple(moved)


def minimal(old: str, new: str) -> tuple[Edit, ...]:
    """The edits from `old` to `new`, first by lines, then by tokens inside the lines that differ; of joined files each
    by itself. `apply(old, minimal(old, new)) == new` always."""
    files = joined.pairs(old, new)
    return tuple(edit for was, now in files if was.text != now.text for edit in _edits(was.text, now.text, was.start))


def _edits(old: str, new: str, offset: int) -> list[Edit]:
    edits: list[Edit] = []
    old_lines, new_lines = _LINE.findall(old), _LINE.findall(new)
    for equal, old_part, new_part in _diff(old_lines, new_lines):
        before, after = "".join(old_part), "".join(new_part)
        if not equal:
            edits += _by_tokens(before, after, offset)
        offset += len(encode(before))
    return edits


def _by_tokens(before: str, after: str, offset: int) -> list[Edit]:
    old, new = _TOKEN.findall(before), _TOKEN.findall(after)
    if not old or not new or len(old) + len(new) > _TOKENS_MAX:
        return [Edit(Span(offset, offset + len(encode(before))), after)]
    edits: list[Edit] = []
    gap = ""  # equal text since the last edit
    for equal, old_part, new_part in _diff(old, new):
        was, now = "".join(old_part), "".join(new_part)
        if equal:
            gap = was
        elif edits and gap.strip() == "" and "\n" not in gap and "\r" not in gap:
            # Two edits with only blanks between them read better as one.
            last = edits.pop()
            edits.append(Edit(Span(last.span.start, offset + len(encode(was))), last.text + gap + now))
        else:
            edits.append(Edit(Span(offset, offset + len(encode(was))), now))
        offset += len(encode(was))
    return edits


def _diff(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[bool, Sequence[str], Sequence[str]]]:
    """Runs of (equal, old part, new part). The common ends are cut off first: most changes are small."""
    head, tail = _common_ends(old, new)
    old_end, new_end = len(old) - tail, len(new) - tail
    yield True, old[:head], new[:head]
    matcher = SequenceMatcher(None, old[head:old_end], new[head:new_end], autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        yield tag == "equal", old[head + a : head + b], new[head + c : head + d]
    yield True, old[old_end:], new[new_end:]


def _common_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """How many parts are equal at the start and at the end."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return head, tail


def unified_diff(old: str, new: str, path: str, context: int = 3) -> str:
    """A diff that `patch -p1` and `git apply` take; "" when nothing differs. Joined files have one part each, named
    from the folder of `path`."""
    folder = posixpath.dirname(path)
    return "".join(
        _one_diff(
            was.text, now.text, posixpath.normpath(posixpath.join(folder, was.name)) if was.name else path, context
        )
        for was, now in joined.pairs(old, new)
    )


def _one_diff(old: str, new: str, path: str, context: int) -> str:
    lines = _hunks(_split(old), _split(new), context)
    if not lines:
        return ""
    lines = [f"--- a/{path}\n", f"+++ b/{path}\n", *lines]
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def _hunks(old: list[str], new: list[str], context: int) -> list[str]:
    """As difflib.unified_diff's, but without its guess that frequent lines do not count: in a file of 200 lines it then
    shows a kept function as removed and added."""
    head, tail = _common_ends(old, new)
    first, rest = max(0, head - context), max(0, tail - context)
    a, b = old[first : len(old) - rest], new[first : len(new) - rest]
    lines: list[str] = []
    for group in SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(context):
        spans = (group[0][1], group[-1][2]), (group[0][3], group[-1][4])
        lines.append("@@ -{} +{} @@\n".format(*(_range(start + first, end + first) for start, end in spans)))
        for tag, i, j, k, m in group:
            lines += [" " + line for line in a[i:j]] if tag == "equal" else ["-" + line for line in a[i:j]]
            lines += ["+" + line for line in b[k:m]] if tag != "equal" else []
    return lines


def _range(start: int, end: int) -> str:
    """`3,2` of a hunk's head: lines from 1, the line before it when there are none."""
    length = end - start
    return str(start + 1) if length == 1 else f"{start + 1 if length else start},{length}"


def _split(text: str) -> list[str]:
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def detect_eol(text: str) -> str:
    """The line ending most lines have; "\\n" when there is none."""
    counts = Counter(re.findall(r"\r\n|\n|\r", text))
    return counts.most_common(1)[0][0] if counts else "\n"


def detect_indent(text: str) -> str:
    """One level of indentation: "\\t" or a number of spaces, from the steps between neighbouring lines; four spaces
    when nothing is indented."""
    steps: Counter[str] = Counter()
    previous = 0
    for line in re.findall(r"[^\r\n]+", text):
        body = line.lstrip(" \t")
        if not body or body[0] in "*#/":  # comment blocks and directives are set by other habits
            continue
        lead = line[: len(line) - len(body)]
        if lead.startswith("\t"):
            steps["\t"] += 1
            previous = 0
            continue
        if len(lead) - previous in (2, 3, 4, 8):
            steps[" " * (len(lead) - previous)] += 1
        previous = len(lead)
    return steps.most_common(1)[0][0] if steps else "    "


def conform(new: str, old: str) -> str:
    """`new` (from a model, say) with `old`'s line endings, and its byte order mark and final line ending when `old` has
    them."""
    result = re.sub(r"\r\n|\n|\r", lambda _: detect_eol(old), new)
    if old.startswith("\ufeff") and not result.startswith("\ufeff"):
        result = "\ufeff" + result
    if old.endswith(("\n", "\r")) and result and not result.endswith(("\n", "\r")):
        result += detect_eol(old)
    return result
