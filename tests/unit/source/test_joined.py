"""Several files as one text: put together, taken apart, and edits of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.errors import SourceError
from cuda_agent.model import Edit, Span
from cuda_agent.source import edits, joined
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module

KERNEL = "__global__ void k(float *x) { x[threadIdx.x] = 0; } // é 🚀"
MAIN = '#include "k.cuh"\n__global__ void own() {}\nint main() { k<<<1, 32>>>(nullptr); own<<<1, 1>>>(); }\n'
MORE = '#include "inc/k.cuh"\r\nvoid go() { k<<<2, 32>>>(nullptr); }'
TEXTS = {"main.cu": MAIN, "../more.cu": MORE}


@pytest.mark.parametrize("own", [KERNEL, f"{KERNEL}\n", "", "\n", "a\r\n"])
@pytest.mark.parametrize("others", [{}, {"main.cu": MAIN}, TEXTS, {"a.cu": "", "b.cu": "\n"}])
def test_what_was_joined_comes_apart(own: str, others: dict[str, str]) -> None:
    text = joined.join(own, others)
    assert (joined.own(text), joined.others(text)) == (own, others)
    assert joined.again(text, "new", lambda name: f"{name} new") == joined.join(
        "new", {name: f"{name} new" for name in others}
    )
    for part in joined.parts(text):
        assert text.encode()[part.start :].startswith(part.text.encode())


def test_a_text_that_has_the_directive_is_not_joined() -> None:
    with pytest.raises(SourceError, match="cuda_agent file"):
        joined.join(KERNEL, {"main.cu": joined.join(MAIN, TEXTS)})


def test_the_header_s_kernels_and_everybody_s_launches() -> None:
    whole = module(Document("k.cuh", joined.join(KERNEL, TEXTS)))
    alone = module(Document("k.cuh", KERNEL))
    assert whole.kernels == alone.kernels
    assert [site.grid for site in whole.launches_of(whole.kernels[0])] == ["1", "2"]
    assert not whole.has_main
    assert module(Document("main.cu", MAIN)).has_main


def test_edits_and_the_diff_of_each_file() -> None:
    old = joined.join(KERNEL, TEXTS)
    new = joined.join(
        KERNEL.replace("= 0", "= 1"), {name: text.replace("32>>>", "64>>>") for name, text in TEXTS.items()}
    )
    made = edits.minimal(old, new)
    assert edits.apply(old, made) == new
    for name, of_file in joined.by_file(old, made).items():
        was = KERNEL if name is None else TEXTS[name]
        assert edits.apply(was, of_file) == (joined.own(new) if name is None else joined.others(new)[name])
    diff = edits.unified_diff(old, new, joined.shown(Path("/project/inc/k.cuh"), old))
    names = ["inc/k.cuh", "inc/main.cu", "more.cu"]
    assert [line for line in diff.splitlines() if line.startswith("---")] == [f"--- a/{name}" for name in names]
    assert diff.count("@@ -") == 3
    assert "cuda_agent" not in diff
    assert joined.shown(Path("/project/inc/k.cuh"), KERNEL) == "k.cuh"


def test_an_edit_moves_with_its_own_file() -> None:
    old = joined.join(KERNEL, TEXTS)
    made = edits.minimal(old, joined.join(KERNEL, TEXTS | {"main.cu": MAIN.replace("1, 32", "1, 64")}))
    now = joined.join(f"// above\n{KERNEL}", TEXTS | {"main.cu": f"// above\n{MAIN}"})
    moved = edits.rebase(made, old, now)
    assert moved is not None
    assert joined.by_file(now, moved).keys() == {"main.cu"}
    assert edits.apply(now, moved) == now.replace("k<<<1, 32", "k<<<1, 64")
    assert edits.rebase(made, old, joined.join(KERNEL, TEXTS | {"main.cu": MAIN.replace("1, 32", "1, 96")})) is None


def test_an_edit_across_two_files_belongs_to_none() -> None:
    size = len(KERNEL.encode())
    with pytest.raises(SourceError, match="from one file into the next"):
        joined.by_file(joined.join(KERNEL, TEXTS), [Edit(Span(size - 1, size + 2), "")])
