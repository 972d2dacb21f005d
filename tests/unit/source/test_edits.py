from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_agent.errors import SourceError
from cuda_agent.model import Edit, Span
from cuda_agent.source import edits

words = st.sampled_from(
    ["int", " ", "  ", "\t", "x", "= 1", ";", "\n", "\r\n", "\r", "é", "😀", "float4", "(", ")", "\u2028"]
)
texts = st.lists(words, max_size=40).map("".join)


@st.composite
def text_and_edits(draw: st.DrawFn) -> tuple[str, list[Edit]]:
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    offsets = [len(text[:cut].encode()) for cut in cuts]
    pairs = zip(offsets[::2], offsets[1::2], strict=False)
    return text, [Edit(Span(a, b), draw(texts)) for a, b in pairs]


@given(text_and_edits())
def test_invert_leads_back(case: tuple[str, list[Edit]]) -> None:
    text, changes = case
    after = edits.apply(text, changes)
    assert edits.apply(after, edits.invert(text, changes)) == text


@given(texts, texts)
def test_minimal_is_exact_and_reverses(old: str, new: str) -> None:
    changes = edits.minimal(old, new)
    assert edits.apply(old, changes) == new
    assert edits.apply(new, edits.invert(old, changes)) == old
    assert (changes == ()) == (old == new)


@given(text_and_edits())
def test_minimal_stays_inside_what_was_changed(case: tuple[str, list[Edit]]) -> None:
    """Lines that no edit touches are in no minimal edit either, when they are unique."""
    old = "".join(f"unique line {number};\r\n" for number in range(30))
    start = old.index("unique line 11;")
    new = old[:start] + case[0].replace("\r", "").replace("\n", "") + old[start:]
    for change in edits.minimal(old, new):
        assert start <= change.span.start
        assert change.span.end <= start + len("unique line 11;\r\n")


def test_minimal_keeps_indentation_and_line_endings_out_of_the_edit() -> None:
    old = "__global__ void k(float* x, int n) {\r\n\tif (n)\r\n\t\tx[0] = 1.0;\r\n}\r\n"
    new = old.replace("float* x", "float* __restrict__ x").replace("1.0", "1.0f")
    one = old.index("1.0")
    assert edits.minimal(old, new) == (Edit(Span(25, 25), "__restrict__ "), Edit(Span(one, one + 3), "1.0f"))


@pytest.mark.parametrize(
    "changes",
    [
        [Edit(Span(0, 3), "a"), Edit(Span(2, 4), "b")],
        [Edit(Span(3, 2), "")],
        [Edit(Span(0, 99), "")],
        [Edit(Span(1, 2), "")],  # cuts é
    ],
)
def test_impossible_edits_are_refused(changes: list[Edit]) -> None:
    with pytest.raises(SourceError):
        edits.apply("éabcd", changes)


def test_inserts_at_one_place_keep_their_order() -> None:
    assert edits.apply("ab", [Edit(Span(1, 1), "1"), Edit(Span(1, 1), "2")]) == "a12b"


@pytest.mark.skipif(shutil.which("patch") is None, reason="no patch program")
@settings(max_examples=20, deadline=None)
@given(texts, texts)
def test_unified_diff_is_what_patch_takes(old: str, new: str) -> None:
    diff = edits.unified_diff(old, new, "k.cu")
    if old == new:
        assert diff == ""
        return
    if not old or not new:
        return  # patch creates or removes the file then
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "k.cu"
        path.write_bytes(old.encode())
        subprocess.run(["patch", "--binary", "-p1", "-s"], input=diff.encode(), cwd=folder, check=True)
        assert path.read_bytes() == new.encode()


def test_unified_diff_names_the_file() -> None:
    assert edits.unified_diff("a\nb", "a\nc", "src/k.cu").splitlines() == [
        "--- a/src/k.cu",
        "+++ b/src/k.cu",
        "@@ -1,2 +1,2 @@",
        " a",
        "-b",
        "\\ No newline at end of file",
        "+c",
        "\\ No newline at end of file",
    ]


@pytest.mark.parametrize(
    ("text", "indent"),
    [
        ("void f() {\n  if (x) {\n    y();\n  }\n}\n", "  "),
        ("void f() {\n    if (x)\n        y();\n}\n", "    "),
        ("void f() {\r\n\tif (x)\r\n\t\ty();\r\n}\r\n", "\t"),
        ("int x;\n", "    "),
        ("/*\n * a\n * b\n */\nvoid f() {\n   x;\n}\n", "   "),
    ],
)
def test_indent(text: str, indent: str) -> None:
    assert edits.detect_indent(text) == indent


@pytest.mark.parametrize(("text", "eol"), [("a\r\nb\r\nc\n", "\r\n"), ("", "\n"), ("a\rb\r", "\r"), ("a\nb", "\n")])
def test_eol(text: str, eol: str) -> None:
    assert edits.detect_eol(text) == eol


def test_conform_takes_the_old_files_habits() -> None:
    assert edits.conform("a\nb", "\ufeffx\r\n") == "\ufeffa\r\nb\r\n"
    assert edits.conform("a\r\nb\n", "x") == "a\nb\n"


@given(texts, texts, text_and_edits())
def test_rebase_moves_edits_past_changes_elsewhere(before: str, after: str, case: tuple[str, list[Edit]]) -> None:
    text, changes = case
    wall = "\n// a line that nobody touches\n"
    base, now = f"x{wall}{text}{wall}y", f"{before}x{wall}{text}{wall}y{after}"
    start = len(f"x{wall}".encode())
    shifted = [Edit(Span(e.span.start + start, e.span.end + start), e.text) for e in changes]
    moved = edits.rebase(shifted, base, now)
    assert moved is not None
    assert edits.apply(now, moved) == f"{before}x{wall}{edits.apply(text, changes)}{wall}y{after}"


def test_rebase_refuses_where_a_change_touches_an_edit() -> None:
    base = "a = 1;\nb = 2;\n"
    edit = [Edit(Span(4, 5), "9")]
    assert edits.rebase(edit, base, "a = 3;\nb = 2;\n") is None
    assert edits.rebase(edit, base, "a = 1;\nb = 3;\n") == (Edit(Span(4, 5), "9"),)
    assert edits.rebase(edit, base, "a = 12;\nb = 2;\n") is None
