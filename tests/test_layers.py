"""The house's invariants: data goes one way, and each heavy import has one owner."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "server" / "cuda_agent"

# A module may import from its own room and from any room before it.
ORDER = [
    ("errors", "model", "paths", "keys", "__init__"),
    ("trust",),
    ("config",),
    ("cache",),
    ("source",),
    ("toolchain",),
    ("hints",),
    ("workload",),
    ("device",),
    ("capture",),
    ("judge",),
    ("rewrite",),
    ("inputs",),
    ("agent",),
    ("verify", "bench", "recheck"),
    ("regression", "replay", "compare"),
    ("compare_page",),
    ("engine",),
    ("lsp", "progress"),
    ("report", "records"),
    ("mcp",),
    ("cli",),
    ("demo",),
]
RANK = {room: i for i, rooms in enumerate(ORDER) for room in rooms}
# The recording compiler of the emulator is run by capture; the emulator's worker runs the device's interpreter.
OWNERS = {
    "pygls": ("lsp",),
    "lsprotocol": ("lsp",),
    "cupy": ("device",),
    "transformers": ("agent/models/transformers.py", "learn"),
    "mcp": ("mcp",),
    "mcp_types": ("mcp",),
    "torch": ("agent/models/transformers.py", "learn"),
    "openai": ("agent/models/endpoint.py",),
    "httpx2": ("agent/models/endpoint.py", "agent/models/wire.py"),
}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> list[str]:
    """Absolute names of everything a file imports, also inside functions (relative imports are resolved), except for
    type checking."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = ["cuda_agent", *path.relative_to(ROOT).parts[:-1]]
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found.extend(f"{name}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_earlier_rooms(path: Path) -> None:
    mine = RANK[room(path)]
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "cuda_agent" or len(parts) < 2 or parts[1] not in RANK:
            continue
        theirs = RANK[parts[1]]
        assert theirs < mine or parts[1] == room(path) or (theirs == mine == 0), f"{path.name} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_heavy_imports_have_one_owner(path: Path) -> None:
    here = str(path.relative_to(ROOT))
    for name in imports(path):
        owners = OWNERS.get(name.split(".")[0])
        assert owners is None or here.startswith(owners), f"{here} imports {name}"


def test_the_server_never_imports_numpy() -> None:
    for path in (ROOT / "lsp").rglob("*.py"):
        assert not [n for n in imports(path) if n.split(".")[0] in ("numpy", "cupy")], path.name


def test_every_room_is_in_the_order() -> None:
    assert {room(p) for p in modules()} <= set(RANK)
