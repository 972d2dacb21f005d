"""docs/rules/ says what the rules' docstrings say."""

import json
import re
from pathlib import Path

from cuda_agent.rewrite import analysis
from cuda_agent.rewrite.pages import pages

FOLDER = Path(__file__).parents[3] / "docs" / "rules"


def test_pages_are_fresh() -> None:
    """Stale? `python -m cuda_agent.rewrite.pages docs/rules`."""
    gains = json.loads((FOLDER / "gave.json").read_text(encoding="utf-8"))
    assert {p.name: p.read_text(encoding="utf-8") for p in FOLDER.glob("*.md")} == pages(gains)


def test_a_page_says_what_its_rule_gave() -> None:
    rules = "unroll(factor=4)+divide(by=wrap+shift)"
    gain = {"program": "p", "kernel": "k", "rules": rules, "ratio": 1.5, "ci": [1.4, 1.6], "device": "D", "date": "T"}
    made = pages([gain])
    said = f"\n- 1.50× [1.40, 1.60] p, `k`: `{rules}` (D, T)\n"
    assert {name for name, page in made.items() if page.endswith(said)} == {"divide.md", "unroll.md"}
    assert made["pad.md"].endswith("In no verified gain of the [benchmark](../benchmarks.md) so far.\n")


def test_every_analysis_is_in_the_table() -> None:
    rows = re.findall(r"^\| ([a-z_, ]+) \| .*\? \|$", (FOLDER.parent / "architecture.md").read_text("utf-8"), re.M)
    modules = {p.stem for p in Path(analysis.__path__[0]).glob("*.py")} - {"__init__"}
    assert modules == {name for row in rows for name in row.split(", ")}
