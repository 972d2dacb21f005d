"""The desk: the one text that a model works on, and what is known of it.

A model never sees or touches anything but this text. It becomes a candidate when the model asks for a judgement, and
is compiled only by the loop, after the edit policy has passed it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cuda_agent.agent.policies import State, Step
from cuda_agent.errors import SourceError, UsageError, WorkloadError
from cuda_agent.model import Assumption, Candidate, Edit, LaunchMap, NumericClass, Span
from cuda_agent.rewrite import labels_of, launches
from cuda_agent.rewrite.rule import Context
from cuda_agent.source import edits
from cuda_agent.source.documents import text_id
from cuda_agent.source.edits import minimal
from cuda_agent.workload import launch_map


@dataclass
class Desk:
    """`author` is the model's name; `start` the step whose candidate lies here at first, None: the original."""

    state: State
    author: str
    original: Context = field(init=False)
    text: str = field(init=False)
    launch: LaunchMap = field(default_factory=LaunchMap)
    numeric: NumericClass = "reassociated"  # the float64 shadow decides what a model's rewrite does to the sums
    assumptions: tuple[Assumption, ...] = ()
    rules: tuple[str, ...] = ()
    parent: str | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        self.original = self.state.context_of(None)
        self.text = self.original.text

    # ------------------------------------------------------------ what lies here

    def take(self, candidate: Candidate | None) -> None:
        """Go on from this candidate, or from the original."""
        start = candidate or Candidate(self.original.kernel.id, self.original.text, self.original.text, (), "original")
        self.text, self.launch, self.assumptions, self.reason = start.text, start.launch, start.assumptions, ""
        self.parent = start.id or None
        labels = labels_of(candidate.origin) if candidate else ()
        self.rules = tuple(label for label in labels if not label.startswith("model:"))

    @property
    def untouched(self) -> bool:
        return self.text == self.original.text

    def candidate(self) -> Candidate:
        author = re.sub(r"[+()\s]", "_", self.author)
        return Candidate(
            kernel=self.original.kernel.id,
            original=self.original.text,
            text=self.text,
            edits=minimal(self.original.text, self.text),
            origin="+".join((f"model:{author}", *self.rules)),
            numeric=self.numeric,
            launch=self.launch,
            assumptions=self.assumptions,
            parent=self.parent,
            id=text_id(self.text),
            reason=self.reason,
        )

    def context(self) -> Context:
        """Of the text as it is; nothing is compiled for it. Raises SourceError."""
        return self.original if self.untouched else self.original.behind(self.candidate())

    def step(self) -> Step | None:
        """What became of this text, if it was judged."""
        if self.untouched:
            return None
        return next((s for s in reversed(self.state.steps) if s.candidate.text == self.text), None)

    # ------------------------------------------------------------ changes

    def replace(self, old: str, new: str, reason: str) -> None:
        """Exact search and replace. Raises UsageError unless `old` is there once."""
        found = self.text.count(old) if old else 0
        if found != 1:
            how = "is not in the file" if found == 0 else f"is there {found} times: give more of the lines around it"
            raise UsageError(f"the text to replace {how}; nothing was changed")
        self._set(self.text.replace(old, new), reason)

    def replace_kernel(self, code: str, reason: str) -> None:
        """The kernel's definition, with what stands before it in `code` (helpers), in place of the old one."""
        context = self.context()
        kernel = context.module.kernel(context.kernel.id)
        if "__global__" not in code or kernel.name not in code:
            raise UsageError(f"the code has no `__global__` function {kernel.name}; nothing was changed")
        data = context.module.document.data
        new = data[: kernel.span.start].decode("utf-8", "surrogateescape") + code.strip()
        self._set(new + data[kernel.span.end :].decode("utf-8", "surrogateescape"), reason)

    def relaunch(self, grid: list[str], block: list[str], shared: str | None) -> None:
        """Other launch shapes: expressions over gx gy gz bx by bz shared, the shapes of the original's launches. All
        launch sites are rewritten to say the same. Raises UsageError, RuleRefused."""
        base = LaunchMap()
        new = LaunchMap(_padded(grid, base.grid), _padded(block, base.block), shared or base.shared)
        for seen in self.original.launched:
            try:
                shape = launch_map.apply(new, seen.grid, seen.block, seen.shared)
            except WorkloadError as error:
                raise UsageError(f"{error}; use integers, + - * / %, ceil_div, min, max and {_NAMES}") from error
            if min(*shape.grid, *shape.block) < 1 or shape.threads > 1024:
                raise UsageError(f"{seen.text()} would become {shape.text()}, which no GPU launches")
        if new.shared != base.shared:
            raise UsageError("dynamic shared memory stays as it is: use a __shared__ array of a constant size")
        context = self.original
        changes = []
        for site in launches.sites_of(context):
            at = site.span.start
            names = dict(
                zip(
                    ("gx", "gy", "gz", "bx", "by", "bz"),
                    (*launches.axes(context, site.grid, at), *launches.block_axes(context, site.block, at)),
                    strict=True,
                )
            )
            if new.grid != base.grid:
                changes.append((site.grid_span, launches.dims(_said(new.grid, names))))
            if new.block != base.block:
                changes.append((site.block_span, launches.dims(_said(new.block, names))))
        self._launches(changes)
        self.launch = new

    def _launches(self, changes: list[tuple[Span, str]]) -> None:
        """The original's launch texts with these changes, put into the text as it is. Launch sites are paired in
        order."""
        then = [site.config_span for site in launches.sites_of(self.original)]
        now = [site.config_span for site in launches.sites_of(self.context())]
        if len(then) != len(now):
            raise UsageError("launch sites were added or removed: undo that first (start_from)")
        data = self.original.module.document.data
        made = []
        for old, new in zip(then, now, strict=True):
            inside = [Edit(Span(s.start - old.start, s.end - old.start), t) for s, t in changes if old.holds(s)]
            config = data[old.start : old.end].decode("utf-8", "surrogateescape")
            made.append(Edit(new, edits.apply(config, inside)))
        self.text = edits.apply(self.text, made)

    def use(self, candidate: Candidate) -> None:
        """What a rule made of this text."""
        reason = self.reason
        self.take(candidate)
        self.reason, self.numeric = reason, "reassociated"

    def _set(self, text: str, reason: str) -> None:
        if len(text) > 4 * len(self.original.text) + 100_000:
            raise UsageError("the new text is far too long; nothing was changed")
        before, self.text = self.text, text
        try:
            self.context()
        except SourceError as error:
            self.text = before
            raise UsageError(f"{error}; nothing was changed") from error
        self.parent = self.parent if self.step() is None else self.candidate().id
        self.reason = " ".join(reason.split())[:300]


_NAMES = "gx gy gz bx by bz shared"


def _padded(given: list[str], same: tuple[str, str, str]) -> tuple[str, str, str]:
    if len(given) > 3:
        raise UsageError("a grid or block has three axes at most")
    x, y, z = [*map(str, given), *("1", "1", "1")][:3] if given else same
    return x, y, z


def _said(axes: tuple[str, str, str], names: dict[str, str]) -> tuple[str, str, str]:
    """Map expressions in the words of a launch site. UsageError for what has no such words."""

    def text(expression: str) -> str:
        if re.search(r"\b(min|max|shared)\b", expression):
            raise UsageError("a launch site is rewritten with integers, + - * / %, ceil_div and gx gy gz bx by bz only")
        done = re.sub(r"\bceil_div\(([^(),]+),([^(),]+)\)", r"((\1) + (\2) - 1) / (\2)", expression)
        if "ceil_div" in done:
            raise UsageError("give ceil_div two plain terms")
        if done.strip() in names:
            return names[done.strip()]
        return re.sub(r"\b[gb][xyz]\b", lambda m: launches.paren(names[m[0]]), done)

    x, y, z = map(text, axes)
    return x, y, z
