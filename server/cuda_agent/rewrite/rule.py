"""The rule protocol. A rule finds sites on the syntax tree, says what must be true there and how it knows, and edits
the text.

A rule never runs or measures anything; whether its candidate is right and faster is the judge's to say. `sites`
yields only
places where the rule believes itself legal; a place where it is not is refused with a reason (`refusals`), for the
person to read.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tree_sitter import Node

from cuda_agent.device import DeviceInfo
from cuda_agent.errors import RuleRefused
from cuda_agent.model import (
    Assumption,
    Candidate,
    Edit,
    Facts,
    Kernel,
    Launched,
    LaunchMap,
    LaunchSite,
    NumericClass,
    Span,
    Workload,
)
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import aliasing, dispatch, trips
from cuda_agent.source.documents import Document, text_id
from cuda_agent.source.edits import apply as apply_edits
from cuda_agent.source.edits import minimal
from cuda_agent.source.symbols import Module
from cuda_agent.source.symbols import module as parse_module
from cuda_agent.workload import launch_map
from cuda_agent.workload.launch_map import Shape

ORDER = {"bit-exact": 0, "reassociated": 1, "tolerance": 2, "fast-math": 3}


@dataclass(frozen=True)
class Context:
    """One kernel in one text, with what is known about its launches. `shapes` are the launch shapes of *this*
    text; `facts` what the compiler made of it, where that is known."""

    module: Module
    kernel: Kernel
    workload: Workload | None
    device: DeviceInfo | None
    original: str
    base: Candidate | None = None
    facts: Facts | None = None

    @classmethod
    def make(
        cls,
        path: Path,
        text: str,
        kernel: str,
        workload: Workload | None = None,
        device: DeviceInfo | None = None,
        *,
        original: str | None = None,
        base: Candidate | None = None,
        facts: Facts | None = None,
    ) -> Context:
        module = parse_module(Document(str(path), text))
        first = text if original is None else original
        return cls(module, dispatch.worker(module, module.kernel(kernel)), workload, device, first, base, facts)

    def behind(self, candidate: Candidate, facts: Facts | None = None) -> Context:
        """The same kernel and launches in the text of a candidate that was made from this one; nothing is compiled."""
        return self._in(candidate.text, candidate, facts)

    def after(self, edits: Iterable[Edit]) -> Context:
        """The same kernel in the middle of a rewrite: launches and facts are still those of this text."""
        return self._in(apply_edits(self.text, edits), self.base, self.facts)

    def _in(self, text: str, base: Candidate | None, facts: Facts | None) -> Context:
        return Context.make(
            Path(self.module.document.path),
            text,
            self.kernel.id,
            self.workload,
            self.device,
            original=self.original,
            base=base,
            facts=facts,
        )

    @property
    def code(self) -> str:
        """The kernel's text, with the function that does its work where that is another (see dispatch.py)."""
        kernel = self.kernel
        inside = kernel.span.holds(kernel.body)
        return self.slice(kernel.span) + ("" if inside else self.slice(kernel.params_span) + self.slice(kernel.body))

    @property
    def text(self) -> str:
        return self.module.document.text

    @cached_property
    def body(self) -> Node:
        """The kernel's body (a compound statement)."""
        for node in syntax.of_type(self.module.node(self.kernel.body), "compound_statement"):
            if syntax.span(node) == self.kernel.body:
                return node
        raise RuleRefused(f"{self.kernel.name} has no body the parser understands")

    @cached_property
    def written(self) -> dict[str, list[syntax.Write]]:
        """Every assignment and initialisation of each variable of the kernel, in order."""
        found: dict[str, list[syntax.Write]] = {}
        for write in syntax.writes(self.body):
            if write.name is not None:
                found.setdefault(write.name, []).append(write)
        return found

    @cached_property
    def sites(self) -> tuple[LaunchSite, ...]:
        return tuple(self.module.launches_of(self.kernel))

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        if self.workload is None:
            return ()
        mapping = self.base.launch if self.base else LaunchMap()
        return tuple(launch_map.apply(mapping, x.grid, x.block, x.shared) for x in self.workload.launches)

    @cached_property
    def unrecorded(self) -> tuple[Launched, ...]:
        """The shapes, in this text, of launches that were seen and that no recorded launch has."""
        if self.workload is None:
            return ()
        return launch_map.unrecorded(self.workload, self.base.launch if self.base else LaunchMap())

    @cached_property
    def launched(self) -> tuple[Shape, ...]:
        """The shapes of all launches that were seen, the recorded ones first: what must hold for a rewrite holds for
        these. What it may gain is better asked of `shapes`, by which it is timed."""
        return (*self.shapes, *map(Shape.of, self.unrecorded))

    def slice(self, span: Span) -> str:
        return self.module.document.data[span.start : span.end].decode("utf-8", "surrogateescape")

    def edited(self, span: Span, edits: Iterable[Edit]) -> str:
        """The text of a span after edits inside it."""
        moved = (Edit(Span(e.span.start - span.start, e.span.end - span.start), e.text) for e in edits)
        return apply_edits(self.slice(span), moved)

    def indent(self, offset: int) -> str:
        """The white space in front of the line that holds `offset`."""
        data = self.module.document.data
        start = data.rfind(b"\n", 0, offset) + 1
        end = start
        while end < len(data) and data[end : end + 1] in (b" ", b"\t"):
            end += 1
        return data[start:end].decode()

    @cached_property
    def eol(self) -> str:
        return "\r\n" if b"\r\n" in self.module.document.data[: self.module.own_end] else "\n"

    def unused(self, name: str) -> str:
        """`name`, or `name` with a number when the file has it already."""
        return next(n for n in (name, *(f"{name}{i}" for i in range(2, 100))) if n not in self._taken)

    @cached_property
    def _taken(self) -> set[str]:
        return set(re.findall(r"[A-Za-z_]\w*", self.text))

    def unused_here(self, name: str) -> str:
        """As `unused`, for a local variable of the kernel: other functions may have the name."""
        taken = (
            syntax.identifiers(self.module.node(self.kernel.span))
            | syntax.identifiers(self.body)
            | {p.name for p in self.kernel.params}
            | {
                text[1].decode()
                for d in self.module.tree.lexed.directives
                if (text := re.match(rb"#\s*define\s+(\w+)", self.module.document.data[d.span.start : d.span.end]))
            }
        )
        return next(n for n in (name, *(f"{name}{i}" for i in range(2, 100))) if n not in taken)

    def captured(self, parameter: str) -> tuple[int, ...]:
        """The values an integer parameter had in the recorded launches; empty when unknown. In others it may have had
        other values: see `varied`."""
        if self.workload is None:
            return ()
        position = next((i for i, p in enumerate(self.kernel.params) if p.name == parameter), None)
        values = []
        for one in self.workload.launches:
            if position is None or position >= len(one.args):
                return ()
            data = one.args[position].data
            if len(data) not in (1, 2, 4, 8) or one.args[position].pointers:
                return ()
            values.append(int.from_bytes(data, "little", signed=True))
        return tuple(values)

    @cached_property
    def varied(self) -> frozenset[str]:
        """Parameters that had other values in launches that were not recorded: what `captured` and `numbers` have of
        them speaks for a few launches only."""
        workload = self.workload
        if workload is None or (workload.seen == len(workload.launches) and not workload.ended):
            return frozenset()
        positions = workload.varied or ()
        return frozenset(p.name for i, p in enumerate(self.kernel.params) if i in positions)

    @property
    def every_launch(self) -> str:
        """The launches that a scalar which is not `varied` is known of, in words."""
        workload = self.workload
        if workload is None or workload.origin != "captured":
            return "every launch"
        if workload.varied is None and workload.seen != len(workload.launches):
            return "every recorded launch"
        return "every launch seen" if workload.ended else "every launch"

    def pointer_targets(self) -> list[dict[str, tuple[int, int]]]:
        """Per launch: pointer parameter → (buffer number, offset in it)."""
        return aliasing.targets(self.kernel, self.workload)

    @cached_property
    def numbers(self) -> list[dict[str, int]]:
        """Per captured launch: blockDim and gridDim of this text and the integer arguments, by name."""
        return trips.bindings(self, self.workload, self.shapes)

    @cached_property
    def launched_numbers(self) -> list[dict[str, int]]:
        """As `numbers` for each of `launched`: of launches that were not recorded the arguments that never changed."""
        recorded = self.numbers
        steady = {n: v for n, v in recorded[0].items() if "." not in n and n not in self.varied} if recorded else {}
        return recorded + [steady | trips.extents(shape) for shape in self.launched[len(recorded) :]]

    def aligned(self, parameter: str, nbytes: int) -> bool:
        """Every captured pointer of this parameter is aligned to `nbytes` (allocations themselves are to 256)."""
        targets = self.pointer_targets()
        if not targets or self.workload is None:
            return False
        bases = [
            one.buffers[t[parameter][0]].address + t[parameter][1] if parameter in t else 1
            for one, t in zip(self.workload.launches, targets, strict=True)
        ]
        return all(b % nbytes == 0 for b in bases)


@dataclass(frozen=True)
class Site:
    """One place where a rule can act, with its parameters."""

    rule: str
    span: Span
    params: Mapping[str, Any] = field(default_factory=dict)
    nodes: Mapping[str, Any] = field(default_factory=dict)  # what the rule found there, for itself
    minor: bool = False  # alone it hardly ever gives anything: others go first
    unless: tuple[str, ...] = ()  # rules that do the same here, and that go before: not tried where one of them acts

    @property
    def label(self) -> str:
        inner = ", ".join(f"{k}={v}" for k, v in self.params.items())
        return f"{self.rule}({inner})" if inner else self.rule


@dataclass(frozen=True)
class Rewrite:
    """What a rule does at a site: edits of the context's text."""

    edits: tuple[Edit, ...]
    launch: LaunchMap = field(default_factory=LaunchMap)
    assumptions: tuple[Assumption, ...] = ()
    numeric: NumericClass = "bit-exact"


class Rule(ABC):
    """One rewrite rule. `number` is its place in the catalogue; the module's docstring is its page in docs/rules/."""

    name: str
    number: int
    opens: bool = False  # gives nothing by itself: it is there for the rules that can act behind it

    @abstractmethod
    def sites(self, context: Context) -> Iterator[Site]:
        """Places where the rule may act, most promising parameters first. Raises RuleRefused with the reason when it
        recognises the pattern but may not touch it."""

    @abstractmethod
    def rewrite(self, context: Context, site: Site) -> Rewrite:
        """The edits at one site. Raises RuleRefused when it is not legal after all."""

    def apply(self, context: Context, site: Site) -> Candidate:
        """The candidate made by this rule at this site, on top of the context's base."""
        done = self.rewrite(context, site)
        text = apply_edits(context.text, done.edits)
        base = context.base
        merged = tuple(dict.fromkeys((*(base.assumptions if base else ()), *done.assumptions)))
        numeric = max((done.numeric, base.numeric if base else "bit-exact"), key=lambda n: ORDER[n])
        return Candidate(
            kernel=context.kernel.id,
            original=context.original,
            text=text,
            edits=minimal(context.original, text),
            origin=f"{base.origin}+{site.label}" if base else f"rule:{site.label}",
            numeric=numeric,
            launch=launch_map.compose(done.launch, base.launch) if base else done.launch,
            assumptions=merged,
            parent=base.id if base else None,
            id=text_id(text),
        )


def refuse_damaged(context: Context) -> None:
    """No rule touches a kernel that the parser does not understand whole."""
    if context.kernel.has_error:
        raise RuleRefused(f"{context.kernel.name} has a syntax error: mend it first")
    if next(syntax.of_type(context.body, "preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif"), None):
        raise RuleRefused(f"{context.kernel.name} has #if inside: which branch is built is not known from the text")


def changes(parameters: Iterable[str]) -> str:
    """The words of a refusal for scalars whose recorded values are not the usual ones."""
    found = sorted(parameters)
    return f"{' and '.join(found)} change{'s' if len(found) == 1 else ''} between launches"


def with_launch(site: LaunchSite, grid: str | None, block: str | None) -> tuple[Edit, ...]:
    """Edits of one launch site's grid and block texts."""
    edits = []
    if grid is not None and grid != site.grid:
        edits.append(Edit(site.grid_span, grid))
    if block is not None and block != site.block:
        edits.append(Edit(site.block_span, block))
    return tuple(edits)


__all__ = ["Context", "Rewrite", "Rule", "RuleRefused", "Site", "changes", "refuse_damaged", "with_launch"]
