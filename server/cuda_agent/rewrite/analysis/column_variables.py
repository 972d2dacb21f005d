"""The variables of a column that live from one run of its statements to another: where a thread takes several columns
they become arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis.column_parts import Run
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import text


def carried(context: Context, runs: Sequence[Run]) -> dict[str, Node]:
    """Variables of a column that more than one run needs → their declaration. RuleRefused where one cannot be an
    array, or a variable that is one for all columns would change."""
    found: dict[str, Node] = {}
    held: set[str] = set()
    uses: dict[str, list[Node]] = {}
    for n in syntax.of_type(context.body, "identifier"):
        uses.setdefault(text(n), []).append(n)
    count = Counter(n for d in syntax.of_type(context.body, "declaration") for n in syntax.declared(d))
    for run in runs:
        for declaration in (s for s in run.each if s.type == "declaration"):
            block = declaration.parent
            assert block is not None
            for name in syntax.declared(declaration):
                held.add(name)
                later = (n for n in uses.get(name, ()) if declaration.start_byte < n.start_byte < block.end_byte)
                if any(not run.holds(n) for n in later):
                    found[name] = declaration
    for declaration in list(found.values()):
        found |= dict.fromkeys(syntax.declared(declaration), declaration)
    for name, declaration in found.items():
        if count[name] > 1:
            raise RuleRefused(f"{name} is declared more than once")
        _check_plain(declaration)
    for run in runs:
        for s in run.each:
            for write in syntax.writes(s):
                name_ = write.name if write.op != "init" else None
                if name_ is not None and name_ not in held and not _nested(name_, s):
                    raise RuleRefused(f"{name_} is one for all columns, and each would change it")
    return found


def _nested(name: str, statement: Node) -> bool:
    return any(name in syntax.declared(n) for n in syntax.of_type(statement, "declaration"))


def _check_plain(declaration: Node) -> None:
    kind = text(syntax.field(declaration, "type"))
    declarators = declaration.children_by_field_name("declarator")
    values = [d.type == "init_declarator" for d in declarators]
    plain = all(d.type == "identifier" or syntax.field(d, "declarator").type == "identifier" for d in declarators)
    equals = all(b"=" in (d.text or b"") for d, v in zip(declarators, values, strict=True) if v)
    if kind == "auto" or not plain or not equals or len(set(values)) != 1 or "static" in text(declaration).split():
        raise RuleRefused(f"`{text(declaration)}` cannot become an array")
