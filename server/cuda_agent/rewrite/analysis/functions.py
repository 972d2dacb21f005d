"""Which functions a file defines. (What calling one does: `calls.py`.)"""

from __future__ import annotations

from functools import lru_cache

from tree_sitter import Node

from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.syntax import text
from cuda_agent.source.symbols import Module


@lru_cache(maxsize=64)
def definitions(module: Module) -> dict[str, list[Node]]:
    """Each, by their plain name."""
    found: dict[str, list[Node]] = {}
    for node in syntax.of_type(module.root, "function_definition"):
        declarator = next(syntax.of_type(node, "function_declarator"), None)
        name = declarator.child_by_field_name("declarator") if declarator is not None else None
        if name is not None:
            found.setdefault(text(name).rpartition("::")[2].partition("<")[0], []).append(node)
    return found
