"""The evidence as one HTML file: no script, nothing loaded from anywhere, light or dark as the reader's system is, fit
for paper. Everything that comes from outside is escaped (`markup.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from cuda_agent.judge.evidence import charts
from cuda_agent.judge.evidence.markup import Markup, join, tag
from cuda_agent.judge.evidence.words import number, numeric_class, numeric_rows, time, traffic_sentence
from cuda_agent.judge.statistics import MARGIN

Evidence = Mapping[str, Any]
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
ICON = {"verified": "✓", "rejected": "✗", "undecided": "?", "pass": "✓", "fail": "✗", "not-run": "·"}
LEVELS = {"emulated": "emulated on the CPU", "replayed": "replayed on a GPU", "in-program": "in your program"}
SMALL = 4  # error histograms on a page
NO_ICON = "data:,"  # a browser asks for no favicon then


def page(evidences: Sequence[Evidence]) -> str:
    """The whole file: one article for each `to_json` object (several when a search won in several kernels)."""
    names = ", ".join(dict.fromkeys(str(e["kernel"]) for e in evidences if e["kernel"]))
    return document(f"{names or 'kernel'}: evidence", *(article(e) for e in evidences))


def document(title: str, *articles: Markup, style: str = "") -> str:
    """An HTML file that holds these articles and loads nothing. `style` is added to the page's own."""
    own = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        Markup(f'<link rel="icon" href="{NO_ICON}">'),
        tag("title", title),
        tag("style", Markup(own + style)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', tag('main', *articles)), lang='en')}\n"


def article(e: Evidence, more: Markup | None = None, id: str | None = None) -> Markup:
    """One piece of evidence; `more` stands between the plots and the gates."""
    return tag(
        "article",
        title(e["kernel"] or "kernel", e["file"], e["status"]),
        _hero(e),
        _levels(e["evidence_level"]),
        _again(e),
        _cards(e),
        more,
        _gates(e["gates"]),
        _numeric(e),
        _diff(e["diff"]),
        _assumptions(e["candidate"]),
        _foot(e),
        id=id,
    )


def title(kernel: str, file: str | None, status: str) -> Markup:
    where = f" in {file}" if file else ""
    badge = tag("span", f"{ICON.get(status, '·')} {status}", class_=f"badge {status}")
    return tag("header", tag("h1", tag("code", kernel), tag("span", where, class_="soft")), badge)


# ---------------------------------------------------------------- at a glance


def _hero(e: Evidence) -> Markup:
    timing, traffic = e["timing"], e["traffic"]
    beside: tuple[str, ...]
    if e["status"] != "verified":
        return tag("p", e["headline"], class_="headline hero")
    if timing:
        kind = {"FASTER": "win", "SLOWER": "loss"}.get(timing["label"], "")
        low, high = timing["ci"]
        words = {"SAME": "no change in time", "SLOWER": "slower", "AMBIGUOUS": "no difference above the noise"}
        beside = (
            tag("b", f"{time(timing['original_us'])} → {time(timing['candidate_us'])}"),
            f" on {timing['device']}",
            Markup("<br>"),
            f"95 % interval {low:.2f}× to {high:.2f}×; {words.get(timing['label'], 'faster')}",
        )
        big = tag("span", f"{timing['ratio']:.2f}×", class_=f"big {kind}")
    elif e["record"].get("same_code"):
        big, beside = tag("span", "no change", class_="big text"), ("the same instructions as the original",)
    else:
        before, after = traffic.get("sectors_before"), traffic.get("sectors_after")
        change = f"{(after - before) / before * 100:+.0f} %".replace("-", "−") if before and after is not None else ""
        same = change in ("+0 %", "−0 %", "")
        big = tag("span", "same results" if same else change, class_="big text" if same else "big win")
        beside = (
            tag("b", traffic_sentence(traffic) or "same results"),
            Markup("<br>"),
            "time: not measured",
        )
    return join(
        tag("div", big, tag("span", *beside, class_="beside"), class_="hero"),
        tag("p", e["headline"], class_="headline soft"),
    )


def _levels(reached: str) -> Markup:
    names = list(LEVELS)
    done = set(names[: names.index(reached) + 1]) if reached in names else set()
    if "replayed" in done or reached == "in-program":
        done.discard("emulated")  # a GPU's judgement does not go through the emulator
    return tag(
        "ul",
        *(tag("li", text, class_="done" if name in done else None) for name, text in LEVELS.items()),
        class_="levels",
    )


def _again(e: Evidence) -> Markup:
    """What `verify --from` found."""
    again = e.get("again")
    if not again:
        return Markup("")
    kind = {True: "verified", False: "rejected", None: "undecided"}[again["holds"]]
    then = again["then"]
    return tag(
        "div",
        tag("p", tag("strong", again["sentence"])),
        tag("p", f"then ({then['date'] or 'no date'}): {then['headline']}", class_="note"),
        tag("ul", *(tag("li", text) for text in again["differs"])) if again["differs"] else None,
        class_=f"again {kind}",
    )


# ---------------------------------------------------------------- plots


def _cards(e: Evidence) -> Markup:
    cards = [*_times(e), *_memory(e), *_errors(e), *_untimed(e)]
    return tag("div", *cards, class_="cards") if cards else Markup("")


def _card(title: str, *content: Markup | str | None) -> Markup:
    return tag("section", tag("h2", title), *content)


def _times(e: Evidence) -> Iterator[Markup]:
    timing, measured = e["timing"], e["record"].get("measurements") or []
    if not timing:
        return
    several = len(timing["per_launch"]) > 1
    for launch, row in zip(measured, timing["per_launch"], strict=False):  # both in the order of the launches
        low, high = row["ci"]
        middle = _middle(launch["original_us"])
        plot = charts.distribution(launch["original_us"], launch["candidate_us"], (middle / high, middle / low))
        batch = launch["batch"] or 1
        of = f", each of {batch} launches in a row" if batch > 1 else ""
        note = f"{len(launch['original_us'])} samples a side{of}; both interleaved in one process, L2 cold"
        yield _card(f"Time of {launch['shape']}", plot, tag("p", note, class_="note"))
    rows = [charts.Ratio("all launches" if several else "ratio", timing["ratio"], tuple(timing["ci"]), True)]
    if several:
        rows += [charts.Ratio(row["shape"], row["ratio"], tuple(row["ci"])) for row in timing["per_launch"]]
    edge = max(timing["noise_floor"], MARGIN)
    noise = f"noise floor {timing['noise_floor'] * 100:.1f} %"
    warm = f"; with a warm L2 {timing['warm_ratio']:.2f}×" if timing["warm_ratio"] else ""
    note = f"grey: within {edge * 100:.1f} % of 1, where nothing is called faster ({noise}){warm}"
    yield _card("How much faster", charts.ratios(rows, edge), tag("p", note, class_="note"))


def _untimed(e: Evidence) -> Iterator[Markup]:
    """What stands where times would be."""
    if e["timing"] is None and e["status"] == "verified":
        why = next((gate["detail"] for gate in e["gates"] if gate["id"] == "G8" and gate["status"] != "pass"), "")
        yield _card("Time", tag("p", "not measured", class_="beside"), tag("p", why, class_="note"))


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _memory(e: Evidence) -> Iterator[Markup]:
    device = e["record"].get("device") or {}
    works = _works(e, float(device.get("memory_bandwidth_gbs") or 0.0))
    if works:
        plot = charts.roofline(works, float(device["memory_bandwidth_gbs"]), str(device["name"]))
        note = (
            "bytes that must move: what only const pointers reach, and what is written beyond the L2's size (gate G11)"
        )
        yield _card("Roofline of memory", plot, tag("p", note, class_="note"))
    if e["traffic"] and e["status"] == "verified":
        note = "grey: the original, green: the candidate; predicted by the emulator's counts, not measured"
        yield _card("Memory traffic", charts.traffic(e["traffic"]), tag("p", note, class_="note"))


def _works(e: Evidence, bandwidth_gbs: float) -> list[charts.Work]:
    """The launches whose bytes gate G11 knew, with both times."""
    if not e["timing"] or not bandwidth_gbs:
        return []
    found = next((gate["data"].get("launches") for gate in e["gates"] if gate["id"] == "G11"), None)
    works = []
    for row, timed in zip(found if isinstance(found, list) else (), e["timing"]["per_launch"], strict=False):
        floor, candidate = _positive(row, "floor_us"), _positive(row, "candidate_us")
        if floor and candidate:
            moved = floor * bandwidth_gbs * 1000
            works.append(charts.Work(timed["shape"], moved, candidate * timed["ratio"], candidate))
    return works


def _positive(row: Any, key: str) -> float | None:
    value = row.get(key) if isinstance(row, dict) else None
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


# ---------------------------------------------------------------- tables


def _gates(gates: Sequence[Evidence]) -> Markup:
    rows = []
    for gate in gates:
        kind = "undecided" if gate["undecided"] else gate["status"]
        seconds = f"{gate['seconds']:.1f} s" if gate["seconds"] >= 0.05 else ""
        rows.append(
            tag(
                "tr",
                tag("td", tag("span", ICON[kind], class_="icon"), gate["id"]),
                tag("td", gate["name"]),
                tag("td", "cannot decide" if kind == "undecided" else kind.replace("-", " "), class_="state"),
                tag("td", gate["detail"]),
                tag("td", seconds, class_="n seconds"),
                class_=kind,
            )
        )
    passed = sum(gate["status"] == "pass" for gate in gates)
    failed = sum(gate["status"] == "fail" for gate in gates)
    words = f"Gates: {passed} passed, {failed} failed, {len(gates) - passed - failed} not run"
    return tag(
        "section", tag("h2", words), tag("div", tag("table", *rows, class_="gates"), class_="scroll"), class_="long"
    )


def _numeric(e: Evidence) -> Markup:
    rows = numeric_rows(e)
    if not rows:
        return Markup("")
    if all(row["class"] == "bit-exact" for row in rows):
        elements = sum(row["elements"] for row in rows)
        text = f"✓ all {elements:,} written elements are bit-equal to the original's"
        return _card("Numbers", tag("p", text, class_="fine"))
    heads = ("buffer", "class", "elements", "differ", "max abs", "allowed", "max ulp", "rel L2")
    header = tag("tr", *(tag("th", head, class_=None if at < 2 else "n") for at, head in enumerate(heads)))
    body = []
    for row in rows:
        klass = numeric_class(row)
        numbers = (row.get(key) for key in ("elements", "differing", "max_abs", "allowed", "max_ulp", "rel_l2"))
        body.append(
            tag(
                "tr",
                tag("td", tag("code", row["buffer"])),
                tag("td", klass, _rule(row), class_=None if klass == row["class"] else "wrong"),
                *(tag("td", number(value), class_="n") for value in numbers),
            )
        )
    table = tag("div", tag("table", header, *body), class_="scroll")
    return _card("Numbers", table)


def _rule(row: Evidence) -> Markup | None:
    """Which numeric rule decided, where the judge says so."""
    return tag("div", str(row["rule"]), class_="note") if row.get("rule") else None


def _errors(e: Evidence) -> Iterator[Markup]:
    """Histograms of the buffers that are not bit-equal, the worst first."""
    rows = [row for row in numeric_rows(e) if row.get("histogram") and row["class"] != "bit-exact"]
    rows.sort(key=lambda row: (-row["nan_mismatch"], -len(row["histogram"])))
    for row in rows[:SMALL]:
        others = (
            f"the worst of {len(rows)} histograms, {SMALL} are drawn" if len(rows) > SMALL and row is rows[0] else ""
        )
        note = tag("p", others, class_="note") if others else None
        yield tag("section", tag("h2", "Errors of ", tag("code", row["buffer"])), charts.errors(row), note)


_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)")


def _diff(diff: str | None) -> Markup:
    """The unified diff in colour, with the line numbers of both files."""
    if not diff:
        return Markup("")
    lines, old, new, inside = [], 0, 0, False
    added = removed = 0
    for line in diff.splitlines():
        if found := _HUNK.match(line):
            old, new, inside = int(found[1]), int(found[2]), True
            lines.append(_line("hunk", "", "", "", line))
        elif not inside:
            lines.append(_line("hunk", "", "", "", line))
        elif line.startswith("+"):
            lines.append(_line("add", "", new, "+", line[1:]))
            new, added = new + 1, added + 1
        elif line.startswith("-"):
            lines.append(_line("del", old, "", "−", line[1:]))
            old, removed = old + 1, removed + 1
        elif line.startswith("\\"):
            lines.append(_line("hunk", "", "", "", line))
        else:
            lines.append(_line("", old, new, "", line[1:]))
            old, new = old + 1, new + 1
    title = tag("h2", f"Change: {added} line{'' if added == 1 else 's'} added, {removed} removed")
    return tag("section", title, tag("div", tag("div", *lines, class_="lines mono"), class_="diff"), class_="long")


def _line(kind: str, old: int | str, new: int | str, mark: str, text: str) -> Markup:
    return tag(
        "div",
        tag("span", old, class_="at"),
        tag("span", new, class_="at"),
        tag("span", mark, class_="mark"),
        tag("span", text),
        class_=f"line {kind}".strip(),
    )


def _assumptions(candidate: Evidence | None) -> Markup:
    rows = (candidate or {}).get("assumptions") or []
    if not rows:
        return Markup("")
    return _card(
        "What it rests on",
        tag("table", *(tag("tr", tag("td", r["text"]), tag("td", r["known"], class_="soft")) for r in rows)),
    )


# ---------------------------------------------------------------- the record


def _foot(e: Evidence) -> Markup:
    record = e["record"]
    rows = [(name, value) for name, value in _facts(e, record) if value]
    made = f"CUDA Agent {record.get('version', '')}, {record.get('date', 'no date')}"
    return join(
        _card("What was run", tag("dl", *(join(tag("dt", name), tag("dd", value)) for name, value in rows))),
        tag("footer", f"{made}. To run it all again: ", tag("code", "cuda-agent verify --from evidence.json")),
    )


def _facts(e: Evidence, record: Evidence) -> Iterator[tuple[str, str | Markup]]:
    device = record.get("device") or {}
    bundle = record.get("bundle") or {}
    candidate: Mapping[str, Any] = e["candidate"] or {}
    yield "file", str(e["file"] or "")
    yield "candidate", f"{candidate['origin']}, {candidate['id']}" if candidate else ""
    yield "its author says", (candidate or {}).get("reason", "")
    driver = f", driver {device['driver']}" if device.get("driver") else ""
    yield "device", f"{device['name']} ({device['kind']}, {device['arch']}{driver})" if device else ""
    yield "compiler", str(record.get("compiler") or "")
    origin = {
        "compile_commands": "compile_commands.json",
        "recorded": "the recorded build",
        "default": "no build found",
    }
    flags = " ".join(record.get("flags") or ())
    yield "flags", join(tag("code", flags), f" ({origin.get(record.get('build_origin') or '', '')})") if flags else ""
    yield "inputs", f"{e['inputs']}" + (f", in {bundle['path']}" if bundle else "")
    yield "command", tag("code", " ".join(bundle["command"])) if bundle.get("command") else ""
    for launch in bundle.get("launches", ()):
        grid, block = ("×".join(map(str, launch[key])) for key in ("grid", "block"))
        shared = f", {launch['shared']} bytes shared" if launch["shared"] else ""
        text = f"{launch['kernel']}, grid {grid}, block {block}{shared}, {charts.size(launch['bytes'])}"
        yield f"launch {launch['seq']}", text
    seeds = record.get("seeds") or {}
    yield "seeds", ", ".join(f"{name} {seed}" for name, seed in seeds.items() if seed is not None)
    allow = (record.get("options") or {}).get("allow")
    yield "allowed by the person", ", ".join(allow or ())
    for name, key in (("inputs' hash", "inputs"), ("binary offered", "offered_sha256")):
        yield name, tag("code", record[key]) if record.get(key) else ""
    for side in ("original", "candidate"):
        digest = (record.get(side) or {}).get("text_sha256")
        yield f"{side}'s text", tag("code", digest) if digest else ""
