"""docs/rules/ says what the rules' docstrings say."""

from pathlib import Path

from cuda_agent.rewrite.pages import pages

FOLDER = Path(__file__).parents[3] / "docs" / "rules"


def test_pages_are_fresh() -> None:
    """Stale? `python -m cuda_agent.rewrite.pages docs/rules`."""
    assert {p.name: p.read_text(encoding="utf-8") for p in FOLDER.glob("*.md")} == pages()
