"""The extension's package.json says what the server's settings say."""

import runpy
from pathlib import Path

CLIENT = Path(__file__).parents[2] / "client-vscode"


def test_package_json_is_fresh() -> None:
    """Stale? `python client-vscode/manifest.py`."""
    wanted = runpy.run_path(str(CLIENT / "manifest.py"))["text"]()
    assert (CLIENT / "package.json").read_text(encoding="utf-8") == wanted
