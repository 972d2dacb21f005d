"""docs/rules/ says what the rules' docstrings say."""

import re
from pathlib import Path

from cuda_agent.rewrite import analysis
from cuda_agent.rewrite.pages import pages

FOLDER = Path(__file__).parents[3] / "docs" / "rules"


def test_pages_are_fresh() -> None:
    """Stale? `python -m cuda_agent.rewrite.pages docs/rules`."""
    assert {p.name: p.read_text(encoding="utf-8") for p in FOLDER.glob("*.md")} == pages()


def test_every_analysis_is_in_the_table() -> None:
    rows = re.findall(r"^\| ([a-z_, ]+) \| .*\? \|$", (FOLDER.parent / "architecture.md").read_text("utf-8"), re.M)
    modules = {p.stem for p in Path(analysis.__path__[0]).glob("*.py")} - {"__init__"}
    assert modules == {name for row in rows for name in row.split(", ")}
