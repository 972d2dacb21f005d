"""The picture of a search: what stands in it, and how a browser draws it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cuda_agent.agent.picture import picture
from cuda_agent.agent.request import Outcome
from unit.judge import browser
from unit.judge.test_page import Reader

from .script import Script
from .test_loop_timed import WORK, Bench, made

SEARCH = (
    made(96, "block-shape(x=64)"),
    made(41, "row-per-warp(lanes=32)"),
    made(99, "restrict"),
    made(70, "unroll(factor=8)"),
    made(20, "coarsen(elements=4)", machine="b[:] = 2 * a\nreturn 20.0"),
    made(120, "launch-bounds(threads=64)"),
    made(71, "unroll(factor=4)"),
)
ON_THE_BEST = (
    made(31, "row-per-warp(lanes=32)+unroll(factor=8)"),
    made(30, "row-per-warp(lanes=32)+vectorize(width=4)"),
    made(41, "row-per-warp(lanes=32)+restrict"),
    made(29, "row-per-warp(lanes=32)+vectorize(width=4)+unroll(factor=8)"),
    made(33, "row-per-warp(lanes=32)+vectorize(width=4)+unroll(factor=16)", note="<script>"),
)


@pytest.fixture
def searched(tmp_path: Path) -> Outcome:
    return Bench(tmp_path).run(Script(SEARCH, ON_THE_BEST))


def test_it_shows_every_candidate(searched: Outcome) -> None:
    html = picture("x.cu", [replace(searched, left="at 91 % of peak bandwidth")])
    assert "What is left: at 91 % of peak bandwidth." in html
    text = Reader(html).text
    for name in ("row-per-warp(lanes=32)", "vectorize(width=4)", "unroll(factor=16)", "coarsen(elements=4)"):
        assert name in html
    assert "G3 outputs" in html
    assert "Roofline of memory" in html
    assert "lines added" in text
    assert "11 candidates in" in text
    assert "<script" not in html


def test_a_search_that_found_nothing(tmp_path: Path) -> None:
    outcome = Bench(tmp_path).run(Script([made(110, "a"), made(130, "b", machine=WORK + "return 130.0")]))
    html = picture("x.cu", [outcome])
    assert "nothing better found for axpy after 2 candidates" in html
    assert "Tree of candidates" in html
    assert "Gates:" not in html
    assert "no candidate was judged" in picture("x.cu", [replace(outcome, steps=(), tried=0)])


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_draws_it(searched: Outcome, dark: bool, tmp_path: Path) -> None:
    file = tmp_path / "search.html"
    nothing = replace(searched, status="nothing", kernel="scale", candidate=None, verdict=None, evidence={}, share=0.2)
    file.write_text(picture("x.cu", [replace(searched, share=0.8), nothing]), encoding="utf-8")
    pixels, console = browser.screenshot(file, dark=dark, size=(1100, 2600))
    assert console == []
    flat = pixels.reshape(-1, 3).astype("u4")
    packed = flat[:, 0] << 16 | flat[:, 1] << 8 | flat[:, 2]
    winner, paper = (0x41CFA3, 0x14171B) if dark else (0x0B8767, 0xFFFFFF)
    for colour in (winner, paper):
        assert (packed == colour).sum() > 400, f"#{colour:06x} is not in the picture"
