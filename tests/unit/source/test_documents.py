from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.errors import SourceError
from cuda_agent.model import Span
from cuda_agent.source import documents
from cuda_agent.source.documents import Document, Encoding, LineIndex

ENCODINGS: tuple[Encoding, ...] = ("utf-8", "utf-16", "utf-32")
# Everything that has ever broken a line index: all line endings, what only looks like one, two to four byte characters.
texts = st.text(st.sampled_from("ab \t\r\n\v\f\x1c\x85\u2028\u2029éß漢字\ufeff😀𝕏\0"), max_size=40)


def units(text: str, encoding: Encoding) -> int:
    return {
        "utf-8": len(text.encode("utf-8", "surrogatepass")),
        "utf-16": len(text.encode("utf-16-le", "surrogatepass")) // 2,
        "utf-32": len(text),
    }[encoding]


def model_lines(text: str) -> list[str]:
    """Lines with their endings, by hand: \\n, \\r\\n, \\r and nothing else."""
    lines, line, at = [], "", 0
    while at < len(text):
        ending = "\r\n" if text.startswith("\r\n", at) else text[at] if text[at] in "\r\n" else ""
        line += ending or text[at]
        at += len(ending) or 1
        if ending:
            lines.append(line)
            line = ""
    return [*lines, line]


@given(texts, st.sampled_from(ENCODINGS))
def test_positions_agree_with_a_plain_model(text: str, encoding: Encoding) -> None:
    data = text.encode()
    index = LineIndex(data)
    at = 0
    lines = model_lines(text)
    assert len(index) == len(lines)
    for number, line in enumerate(lines):
        body = line.rstrip("\r\n")
        for column in range(len(body) + 1):
            offset = at + len(body[:column].encode())
            position = (number, units(body[:column], encoding))
            assert index.position(offset, encoding) == position
            assert index.offset(*position, encoding) == offset
        at += len(line.encode())


@given(texts, st.integers(-5, 200), st.integers(-5, 60), st.sampled_from(ENCODINGS))
def test_any_position_is_clamped_to_a_character_boundary(
    text: str, line: int, character: int, encoding: Encoding
) -> None:
    data = text.encode()
    index = LineIndex(data)
    offset = index.offset(line, character, encoding)
    data[:offset].decode()  # raises when a character is cut
    assert index.position(offset, encoding)[0] <= len(index) - 1


def test_second_half_of_a_surrogate_pair_is_the_character_itself() -> None:
    index = LineIndex("a😀b".encode())
    assert [index.offset(0, character, "utf-16") for character in range(5)] == [0, 1, 1, 5, 6]
    assert index.position(3, "utf-16") == (0, 1)  # inside the four bytes


def test_line_separators_of_unicode_end_no_line() -> None:
    assert len(LineIndex("a\u2028b\x0cc\x85d".encode())) == 1
    assert len(LineIndex(b"a\rb\r\nc\n")) == 4


@given(texts, texts, st.data(), st.sampled_from(ENCODINGS))
def test_change_is_a_slice_replacement(text: str, inserted: str, data: st.DataObject, encoding: Encoding) -> None:
    document = Document("a.cu", text, 7)
    a, b = (data.draw(st.tuples(st.integers(0, 12), st.integers(0, 12))) for _ in range(2))
    after = document.change((a, b), inserted, encoding)
    start, end = sorted(document.lines.offset(*position, encoding) for position in (a, b))
    raw = text.encode()
    assert after.text == (raw[:start] + inserted.encode() + raw[end:]).decode()
    assert (after.path, after.version, document.text) == ("a.cu", 8, text)


def test_change_of_everything() -> None:
    document = Document("a.cu", "old", 3).change(None, "new\r\n", version=9)
    assert (document.text, document.version) == ("new\r\n", 9)


def test_lone_surrogates_keep_their_place() -> None:
    document = Document("a.cu", "a\ud800b")
    assert document.slice(Span(0, len(document.data))) == "a\ud800b"
    assert document.lines.position(4, "utf-16") == (0, 2)


def test_bytes_that_are_not_utf8_survive_reading_and_writing(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "latin.cu"
    path.write_bytes(b"// caf\xe9\r\nint x;\r")
    document = documents.read(path)
    assert len(document.lines) == 3
    documents.write(path, document.text)
    assert path.read_bytes() == b"// caf\xe9\r\nint x;\r"


def test_unreadable_file_is_a_source_error(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SourceError, match="cannot read"):
        documents.read(tmp_path / "none.cu")
    with pytest.raises(SourceError, match="cannot write"):
        documents.write(tmp_path / "no" / "where.cu", "")
