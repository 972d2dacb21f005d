"""The page: what it shows, that nothing in it can act, and how a browser draws it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cuda_agent import judge
from cuda_agent.device.client import Device
from cuda_agent.judge import JudgeOptions, evidence
from cuda_agent.judge.evidence import charts, schema
from cuda_agent.judge.evidence.markup import Scale, linear_ticks, log_ticks, quantile, tag
from cuda_agent.judge.evidence.page import page
from cuda_agent.source.edits import unified_diff

from . import browser
from .conftest import build, candidate, source, workload
from .test_evidence import CANDIDATE, EMULATED, ROW, VERDICTS, failing, verdict

Json = dict[str, Any]
NOISE = "import random\nb[:] = 2 * a + 1\nreturn {} * random.lognormvariate(0, 0.006)"
TRAFFIC = {f"{what}_{when}": 1e6 for what in ("requests", "sectors", "bytes") for when in ("before", "after")}
THEN = {
    "status": "verified",
    "evidence_level": "replayed",
    "headline": "2.31×",
    "date": None,
    "device": "x",
    "ci": [2.2, 2.4],
}
DIFF = "--- a/x.cu\n+++ b/x.cu\n@@ -7,2 +7,2 @@\n a < b && c;\n-  old();\n+  fresh();\n\\ No newline at end of file\n"


@pytest.fixture(scope="module")
def timed(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """Evidence of a kernel that is 2.3 times as fast on a device that is noisy, on two launches."""
    folder = tmp_path_factory.mktemp("timed")
    original, text = source(NOISE.format(100)), source(NOISE.format(43), "b[i] = 1 + 2 * a[i];")
    made = candidate(text, original)
    work = workload(folder, values=tuple(n % 97 + 0.25 for n in range(4096)), launches=2)
    found = judge.judge(device, build(folder), work, original, made, options=JudgeOptions(rounds=12))
    assert found.faster, judge.headline(found)
    return evidence.to_json(found, candidate=made, diff=unified_diff(original, text, "x.cu"))


def emulated(**more: Any) -> Json:
    traffic = TRAFFIC | {"sectors_after": 1.3e5}
    gates = tuple(
        replace(g, status="not-run", detail="the emulator does not measure time") if g.id == "G8" else g
        for g in EMULATED.gates
    )
    return evidence.to_json(replace(EMULATED, traffic=traffic, gates=gates), candidate=CANDIDATE, diff=DIFF, **more)


def misplaced() -> Json:
    row = {**ROW, "nan_mismatch": 7, "within": False}
    gates = tuple(replace(g, data={"numeric": [row]}) if g.id == "G3" else g for g in failing("G3"))
    return evidence.to_json(verdict(status="rejected", gates=gates, timing=None, numeric=None), diff=DIFF)


class Reader(HTMLParser):
    """Text without the style sheet, and whether every element is closed where it was opened."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.words: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.add(name)
        if name not in ("meta", "link", "br"):
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def plots(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def test_a_win_at_a_glance(timed: Json) -> None:
    html = page([timed])
    text = Reader(html).text
    assert f"{timed['timing']['ratio']:.2f}×" in text
    assert "on NVIDIA H200" in text
    assert timed["headline"] in text
    for gate in timed["gates"]:
        assert f"{gate['id']} {gate['name']}" in text
        assert " ".join(gate["detail"].split()) in text
    assert "Gates: 13 passed, 0 failed, 2 not run" in text
    assert "all 8,192 written elements are bit-equal" in text
    record = timed["record"]
    for fact in (
        record["compiler"],
        "-O3",
        record["inputs"],
        record["offered_sha256"],
        "axpy(float const*, float*, int)",
    ):
        assert fact in text
    titles = [plot[0].text or "" for plot in plots(html)]
    assert [title.split()[0] for title in titles] == ["Timed", "Timed", "Ratio", "Time"]  # two launches, roofline


def test_every_sample_is_drawn(timed: Json) -> None:
    """A dot a sample, within the picture, and the medians in the order of the times."""
    for plot, measured in zip(plots(page([timed])), timed["record"]["measurements"], strict=False):
        dots = [e for e in plot.iter() if "dot" in (e.get("class") or "")]
        assert len(dots) == len(measured["original_us"]) + len(measured["candidate_us"]) == 48
        assert all(charts.LEFT <= float(dot.get("cx", 0)) <= charts.WIDTH for dot in dots)
        bars = {e.get("class"): float(e.get("width", 0)) for e in plot.iter() if "solid" in (e.get("class") or "")}
        assert bars["solid a"] / bars["solid b"] == pytest.approx(100 / 43, rel=0.02)


def test_close_times_are_drawn_on_one_axis_that_says_where_it_starts() -> None:
    svg = ElementTree.fromstring(charts.distribution([100.0, 101, 102], [97.0, 98, 99], (96.5, 98.5)))
    words = [e.text for e in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "µs, one launch; the axis does not start at zero" in words
    x = [float(e.get("cx", 0)) for e in svg.iter("{http://www.w3.org/2000/svg}circle")]
    assert max(x[3:]) < min(x[:3])


def test_the_emulator_measures_nothing_and_says_so() -> None:
    html = page([emulated()])
    text = Reader(html).text
    assert "Time not measured the emulator does not measure time" in text
    assert "−87 %" in text
    assert not re.search(r"\d (µs|ms)\b", text)
    assert not re.search(r"\d×", text)
    assert [plot[0].text for plot in plots(html)] == ["Predicted memory traffic", "Errors of out by distance"]


def test_the_histogram_counts_what_the_comparison_counted() -> None:
    svg = ElementTree.fromstring(charts.errors({**ROW, "dtype": "f32", "nan_mismatch": 7}))
    words = [e.text for e in svg.iter("{http://www.w3.org/2000/svg}text")]
    for name in ("equal", "1", "2", "≤ 4", "NaN, Inf", "8.2 k", "8", "3", "7"):
        assert name in words
    assert len([e for e in svg.iter() if "error" in (e.get("class") or "")]) == 5


def test_a_misplaced_nan_is_shown_as_one() -> None:
    text = Reader(page([misplaced()])).text
    assert "7 NaN or Inf misplaced" in text
    assert "reassociated" not in text


def test_the_rule_that_decided_is_named_where_it_is_known() -> None:
    data = emulated()
    data["gates"][3]["data"]["numeric"][0]["rule"] = "your tolerance 0.01·max|reference|"
    assert "reassociated your tolerance 0.01·max|reference|" in Reader(page([data])).text


def test_the_diff_has_the_line_numbers_of_both_files() -> None:
    html = page([emulated()])
    rows = re.findall(r'<div class="line ?(\w*)">(.*?)</div>', html)
    cells = [(kind, re.findall(r"<span[^>]*>(.*?)</span>", row)) for kind, row in rows]
    assert ("", ["7", "7", "", "a &lt; b &amp;&amp; c;"]) in cells
    assert ("del", ["8", "", "−", "  old();"]) in cells
    assert ("add", ["", "8", "+", "  fresh();"]) in cells


def test_several_winners_on_one_page(timed: Json) -> None:
    html = page([timed, emulated(kernel="other")])
    assert html.count("<article>") == 2
    assert "<title>axpy, other: evidence</title>" in html


HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\x00\ud800&amp;'


def spoiled(value: Any, key: str = "") -> Any:
    """Every string that is not a word of the schema is replaced by one that wants to act."""
    fixed = {"status", "evidence_level", "label", "kind", "known", "id", "class", "dtype", "build_origin", "numeric"}
    if isinstance(value, dict):
        return {k: spoiled(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [spoiled(v, key) for v in value]
    return HOSTILE if isinstance(value, str) and key not in fixed else value


def test_nothing_from_outside_acts(timed: Json) -> None:
    for data in (timed, emulated(), misplaced(), {**timed, "diff": f"@@ -1 +1 @@\n+{HOSTILE}\n {HOSTILE}\n"}):
        html = page([spoiled({**data, "diff": None}) | {"diff": data["diff"]}])
        assert Reader(html).names <= {
            *("html", "head", "meta", "link", "title", "style", "body", "main", "article", "header", "h1", "h2", "p"),
            *("div", "span", "b", "br", "ul", "li", "section", "table", "tr", "td", "th", "code", "strong", "dl", "dt"),
            *("dd", "footer", "svg", "text", "line", "rect", "circle", "path"),
        }
        assert "onerror=alert" not in re.sub(r"&lt;.*?&gt;", "", html)
        assert not set(html) & {chr(c) for c in range(32) if c not in (9, 10)}
        html.encode("utf-8")
        assert all(plot.tag.endswith("svg") for plot in plots(html))


def changed(value: Any) -> Iterator[Any]:
    """The value with one part of it replaced, for every part and every replacement."""
    yield from (None, "x", -1, 0, 1e300, True, [], {})
    if isinstance(value, dict):
        for key, part in value.items():
            yield {k: v for k, v in value.items() if k != key}
            yield from ({**value, key: new} for new in changed(part))
    if isinstance(value, list) and value:
        yield from ([new, *value[1:]] for new in changed(value[0]))


def test_whatever_the_schema_takes_has_a_page(timed: Json) -> None:
    """Evidence may come from anyone: what passes the check is drawn, whatever it says."""
    small = {**timed, "gates": [g for g in timed["gates"] if g["id"] in ("G3", "G8", "G11")]}
    small["gates"][0] = {**small["gates"][0], "data": {"numeric": [ROW]}}
    again = {"holds": True, "sentence": "s", "differs": ["d"], "then": THEN}
    taken = 0
    physics = {**small, "gates": small["gates"][::-1]}
    for base in (small, physics, {**emulated(), "gates": small["gates"][:2], "again": again}):
        for data in changed(base):
            if not list(schema.misfits(data)):
                taken += 1
                assert page([data])
    assert taken > 200


def test_nothing_is_loaded(timed: Json) -> None:
    html = page([timed])
    assert "default-src &#x27;none&#x27;" in html
    assert set(re.findall(r"https?://[^\"']*", html)) == {"http://www.w3.org/2000/svg"}
    assert not re.findall(r"url\(|@import|<script", html)


@pytest.mark.parametrize("name", VERDICTS)
def test_every_kind_of_verdict_has_a_page(name: str) -> None:
    data = evidence.to_json(VERDICTS[name], candidate=CANDIDATE, diff=DIFF)
    text = Reader(page([json.loads(json.dumps(data))])).text
    assert data["status"] in text
    assert data["headline"] in text


def test_what_holds_again_is_said() -> None:
    for holds, kind in ((True, "verified"), (False, "rejected"), (None, "undecided")):
        again = {"holds": holds, "sentence": "what came out", "differs": ["driver 1 then, 2 now"], "then": THEN}
        html = page([{**emulated(), "again": again}])
        assert f'<div class="again {kind}">' in html
        assert "driver 1 then, 2 now" in Reader(html).text


# ---------------------------------------------------------------- the small functions


def test_markup_escapes_what_is_not_markup() -> None:
    assert tag("td", "<b>", tag("i", "x"), class_='"q"', hidden=True, width=2.50) == (
        '<td class="&quot;q&quot;" hidden width="2.5">&lt;b&gt;<i>x</i></td>'
    )


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 104, [0, 20, 40, 60, 80, 100]), (92.1, 101.7, [92, 94, 96, 98, 100]), (5, 5, [5])],
)
def test_linear_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert [t for t in linear_ticks(low, high, 5 if low else 6) if t >= low] == [t for t in ticks if t >= low]


def test_log_ticks_are_round() -> None:
    assert log_ticks(0.7, 20000, 4) == [1, 100, 10000]
    assert log_ticks(1, 10) == [1, 2, 5, 10]
    assert log_ticks(0.95, 1.12, 5) == linear_ticks(0.95, 1.12, 5)


def test_scales_clamp_and_quantiles_interpolate() -> None:
    assert Scale((1, 100), (0, 200), log=True)(10) == pytest.approx(100)
    assert Scale((0, 10), (0, 100))(25) == 100
    assert Scale((5, 5), (0, 100))(5) == 50
    assert [quantile([4, 1, 3, 2], share) for share in (0, 0.5, 1)] == [1, 2.5, 4]


# ---------------------------------------------------------------- a browser

needs_browser = pytest.mark.skipif(browser.CHROMIUM is None, reason="chromium is not installed")


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("make", "colours"),
    [
        ("timed", {"light": (0x0B8767, 0x6F7F95, 0xFFFFFF), "dark": (0x41CFA3, 0x93A3BA, 0x14171B)}),
        (emulated, {"light": (0x0B8767, 0x6F7F95, 0xFFFFFF), "dark": (0x41CFA3, 0x93A3BA, 0x14171B)}),
        (misplaced, {"light": (0xC02B32, 0x6F7F95, 0xFFFFFF), "dark": (0xFF7B7B, 0x93A3BA, 0x14171B)}),
    ],
    ids=["timed", "emulated", "rejected"],
)
def test_a_browser_draws_it(
    make: str | Callable[[], Json], colours: dict[str, tuple[int, ...]], dark: bool, timed: Json, tmp_path: Path
) -> None:
    """The paper, and both sides' colours in areas that only plots have; the console stays silent."""
    file = tmp_path / "page.html"
    file.write_text(page([make() if callable(make) else timed]), encoding="utf-8")
    pixels, console = browser.screenshot(file, dark=dark)
    assert console == []
    flat = pixels.reshape(-1, 3).astype("u4")
    packed = flat[:, 0] << 16 | flat[:, 1] << 8 | flat[:, 2]
    for colour in colours["dark" if dark else "light"]:
        assert (packed == colour).sum() > 400, f"#{colour:06x} is not in the picture"


@needs_browser
def test_the_console_would_be_heard(tmp_path: Path) -> None:
    file = tmp_path / "bad.html"
    file.write_text('<!doctype html><meta charset="utf-8"><script>throw new Error("oh no")</script>')
    assert any("oh no" in line for line in browser.screenshot(file, size=(100, 100))[1])
    file.write_text(page([emulated()]).replace("<main>", '<main><img src="http://127.0.0.1:9/x.png">'))
    assert any("Content Security Policy" in line for line in browser.screenshot(file, size=(100, 100))[1])
