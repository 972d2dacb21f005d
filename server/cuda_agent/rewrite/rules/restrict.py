"""# 8 · restrict: `const` and `__restrict__` on pointer parameters

When pointers may alias, every store ends the life of every loaded value, and loads cannot use the read-only path.

Before: `__global__ void k(float *out, float *in, int n)`
After: `__global__ void k(float *__restrict__ out, const float *__restrict__ in, int n)`

Legal when the pointers of one launch lie in different allocations (captured), and `const` where the kernel never
writes through
the parameter (proved). Bit-exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from cuda_agent.errors import RuleRefused
from cuda_agent.model import Assumption, Edit, Param, Span
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.rule import Context, Rewrite, Rule, Site
from cuda_agent.rewrite.syntax import text


class Restrict(Rule):
    name = "restrict"
    number = 8

    def sites(self, context: Context) -> Iterator[Site]:
        listed = [*context.kernel.params]
        if not context.kernel.span.holds(context.kernel.body):  # it calls a function with the same parameters
            listed += context.module.kernel(context.kernel.id).params
        open_params = [p for p in listed if p.pointer == 1 and not p.restrict]
        if open_params:
            yield Site(self.name, context.kernel.params_span, {}, {"params": open_params}, minor=True)

    def rewrite(self, context: Context, site: Site) -> Rewrite:
        params: list[Param] = site.nodes["params"]
        check_disjoint(context)
        edits: list[Edit] = []
        for p in params:
            between = Span(p.name_span.start, p.name_span.start)
            before = context.slice(Span(p.span.start, p.name_span.start))
            if not before.rstrip().endswith("*"):
                continue  # an array parameter or a macro: leave it
            edits.append(Edit(between, "__restrict__ " if before.endswith((" ", "*")) else " __restrict__ "))
            if not p.const and not _written(context, p.name) and not _typed_elsewhere(context):
                edits.append(Edit(Span(p.span.start, p.span.start), "const "))
        if not edits:
            raise RuleRefused("no pointer parameter can take __restrict__")
        known: Literal["captured", "assumed"] = "captured" if context.pointer_targets() else "assumed"
        return Rewrite(tuple(edits), assumptions=(Assumption("the pointers of one launch never overlap", known),))


def check_disjoint(context: Context) -> None:
    """RuleRefused when a captured launch passes two pointers into the same allocation."""
    for targets in context.pointer_targets():
        buffers = [b for b, _ in targets.values()]
        if len(set(buffers)) != len(buffers):
            raise RuleRefused("two pointers of a captured launch lie in the same allocation")


def _written(context: Context, name: str) -> bool:
    """The kernel may write through the parameter: a store, an atomic, or the pointer handed on or copied."""
    for n in syntax.of_type(context.body, "identifier"):
        if text(n) != name:
            continue
        parent = n.parent
        if parent is None or parent.type != "subscript_expression" or parent.child_by_field_name("argument") != n:
            return True  # copied, passed on, cast, dereferenced: assume the worst
        above = parent.parent
        if above is not None and above.type in ("assignment_expression", "update_expression"):
            target = above.child_by_field_name("left") or above.child_by_field_name("argument")
            if target == parent:
                return True
        if above is not None and above.type in ("pointer_expression", "field_expression"):
            return True
    return False


def _typed_elsewhere(context: Context) -> bool:
    """A prototype, or a pointer to the kernel, would no longer match when `const` is added."""
    if context.module.other_uses(context.kernel):
        return True
    name = re.escape(context.kernel.name)
    return bool(re.search(rf"__global__[^;{{}}]*\b{name}\s*\([^;{{}}]*\)\s*;", context.text))
