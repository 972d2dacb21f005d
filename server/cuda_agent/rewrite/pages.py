"""The rules' pages in docs/rules/, made from their docstrings and from `gave.json` there, which
`tests/bench/hecbench.py` writes: `python -m cuda_agent.rewrite.pages docs/rules`."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda_agent.rewrite.rules import RULES

_HOW = """\
How to write a rule: one file in `server/cuda_agent/rewrite/rules/`, listed in its `__init__.py`; its docstring is
its page here. Look with `rewrite/analysis/` (the table in [architecture.md](../architecture.md) says which module
answers what), write with `layout`, `style`, `helpers` and `launches`, so that the text reads as a person's.
`sites` yields the places where the rule is legal and raises `RuleRefused`, with a sentence, at those that it
knows and may not touch; what it takes for granted is an `Assumption`, captured or assumed. Tests: archives in
`tests/markers/rules` (a golden diff and a refusal at least; `--update` writes them), a control among
`tests/mutants` (a right rewrite of this rule, which every gate must let pass; without either the suite fails),
and, for a rule on memory, a line in `tests/unit/rewrite/test_judged.py`: what it makes of a program captured on
the emulator passes the whole judge."""


Gains = Sequence[Mapping[str, Any]]  # program, kernel, rules, ratio, ci, device, date


def pages(gains: Gains) -> dict[str, str]:
    """File name → text, with an index."""
    found: dict[str, str] = {}
    rows = []
    for rule in sorted(RULES, key=lambda r: r.number):
        page = inspect.getdoc(sys.modules[type(rule).__module__]) or ""
        gave = [gain for gain in gains if rule.name in _names(gain["rules"])]
        found[f"{rule.name}.md"] = page.rstrip() + "\n" + _gave(gave)
        rows.append(f"| {rule.number} | [{rule.name}]({rule.name}.md) | {page.splitlines()[0].split(': ', 1)[-1]} |")
    head = [
        "# Rewrite rules",
        "",
        "Generated from the rules' docstrings. Numbers are the catalogue's.",
        "",
        *_HOW.splitlines(),
        "",
        "| # | rule | what it does |",
        "|---|---|---|",
    ]
    found["README.md"] = "\n".join([*head, *rows]) + "\n"
    return found


def _names(rules: str) -> list[str]:
    """`row-per-warp(lanes=32)+divide(by=wrap+shift)` → both names."""
    return re.sub(r"\([^)]*\)", "", rules).split("+")


def _gave(gains: Gains) -> str:
    """The section with what the rule, alone or with others, was verified to give."""
    if not gains:
        return "\n## What it gave\nIn no verified gain of the [benchmark](../benchmarks.md) so far.\n"
    lines = ["", "## What it gave", "Verified in HeCBench's programs ([benchmark](../benchmarks.md)):"]
    for gain in sorted(gains, key=lambda gain: -gain["ratio"]):
        low, high = gain["ci"]
        lines.append(
            f"- {gain['ratio']:.2f}× [{low:.2f}, {high:.2f}] {gain['program']}, `{gain['kernel']}`: `{gain['rules']}` "
            f"({gain['device']}, {gain['date']})"
        )
    return "\n".join(lines) + "\n"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages(json.loads((folder / "gave.json").read_text(encoding="utf-8"))).items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
