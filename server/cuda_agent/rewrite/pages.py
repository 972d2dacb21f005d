"""The rules' pages in docs/rules/, made from their docstrings: `python -m cuda_agent.rewrite.pages docs/rules`."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from cuda_agent.rewrite.rules import RULES


def pages() -> dict[str, str]:
    """File name → text, with an index."""
    found: dict[str, str] = {}
    rows = []
    for rule in sorted(RULES, key=lambda r: r.number):
        page = inspect.getdoc(sys.modules[type(rule).__module__]) or ""
        found[f"{rule.name}.md"] = page.rstrip() + "\n"
        rows.append(f"| {rule.number} | [{rule.name}]({rule.name}.md) | {page.splitlines()[0].split(': ', 1)[-1]} |")
    head = [
        "# Rewrite rules",
        "",
        "Generated from the rules' docstrings. Numbers are the catalogue's.",
        "",
        "| # | rule | what it does |",
        "|---|---|---|",
    ]
    found["README.md"] = "\n".join([*head, *rows]) + "\n"
    return found


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
