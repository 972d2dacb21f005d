"""Every rule on small files: the golden diff, or the reason why it refuses. Cases are archives in
tests/markers/rules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from archive import Archive, archives
from cuda_agent import config
from cuda_agent.errors import RuleRefused
from cuda_agent.judge import launch_text
from cuda_agent.model import Arg, Buffer, Candidate, Facts, Launch, Launched, Pointer, Workload
from cuda_agent.rewrite import RULES, Context
from cuda_agent.source import joined
from cuda_agent.source.documents import Document
from cuda_agent.source.edits import apply, unified_diff
from cuda_agent.source.symbols import module

FOLDER = Path(__file__).parents[2] / "markers" / "rules"


def workload(kernel: str, settings: dict[str, str]) -> Workload | None:
    """The launches an archive names: `launch: (grid), (block), {parameter position: value or "bufferN+offset"}`; and
    `demangled: ` when the template arguments matter. `seen: N`: launches of the program, of which the parameters at the
    positions `varied: ` changed; `shapes: ` (grid), (block) of others that are not recorded, and of another
    instantiation its mangled name and dynamic shared bytes. `bytes: N`: of each buffer."""
    if "launch" not in settings:
        return None
    size = int(settings.get("bytes", 4096))
    launches = []
    for grid, block, values in ast.literal_eval(f"[{settings['launch']}]"):
        args, buffers, offset = [], [], 0
        for value in values:
            if isinstance(value, str):
                number, at = (int(x) for x in value.removeprefix("buffer").split("+"))
                args.append(Arg(offset, bytes(8), (Pointer(0, number, at),)))
                while len(buffers) <= number:
                    buffers.append(Buffer(0x7F0000000000 + size * len(buffers), size, (), None))
                offset += 8
            else:
                args.append(Arg(offset, int(value).to_bytes(4, "little", signed=True)))
                offset += 4
        mangled, demangled = settings.get("mangled", "_Z1kv"), settings.get("demangled", "k()")
        launches.append(Launch(mangled, demangled, grid, block, 0, tuple(args), tuple(buffers)))
    seen = int(settings.get("seen", len(launches)))
    varied = frozenset(int(word) for word in settings.get("varied", "").split())
    ended = settings.get("ended") == "yes"
    first = launches[0].mangled
    others = {
        Launched(other[0] if other else first, grid, block, other[1] if other else 0)
        for grid, block, *other in ast.literal_eval(f"[{settings.get('shapes', '')}]")
    }
    shapes = frozenset({Launched(x.mangled, x.grid, x.block, x.shared) for x in launches} | others)
    told = {"seen": seen, "varied": varied, "shapes": shapes, "ended": ended}
    return Workload(kernel, "captured", tuple(launches), Path(), Path(), "NVIDIA H200", **told)


def facts(settings: dict[str, str]) -> Facts | None:
    """What the compiler says: `facts: registers=N`."""
    if "facts" not in settings:
        return None
    registers = int(settings["facts"].removeprefix("registers="))
    return Facts("_Z1kv", "k()", "sm_90", registers, 0, 0, 0, 0, 0, "", 0)


def sources(archive: Archive) -> list[str]:
    """The kernel's file, and after a header the files that launch its kernels."""
    return [name for name in archive.files if name not in ("after.diff", "refusal.txt")]


def attempt(archive: Archive) -> tuple[Context, Candidate | str]:
    settings = archive.settings
    path, *others = sources(archive)
    before = joined.join(archive.files[path], {name: archive.files[name] for name in others})
    kernel = settings.get("kernel") or module(Document(path, before)).kernels[0].id
    context = Context.make(Path(path), before, kernel, workload(kernel, settings), facts=facts(settings))
    rule = next(r for r in RULES if r.name == settings["rule"].split("(")[0])
    try:
        for site in rule.sites(context):
            if "(" not in settings["rule"] or site.label == settings["rule"]:
                return context, rule.apply(context, site)
    except RuleRefused as error:
        return context, str(error)
    return context, "no site"


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    yield
    config.use(config.Settings())


@pytest.mark.parametrize("path", archives(FOLDER), ids=lambda p: p.stem)
def test_rule(path: Path, update: bool) -> None:
    archive = Archive.read(path)
    config.use(config.parse(config.from_words(archive.settings.get("set", "").split())))
    context, got = attempt(archive)
    name = "after.diff" if isinstance(got, Candidate) else "refusal.txt"
    said = got + "\n" if isinstance(got, str) else ""
    if isinstance(got, Candidate):
        shown = joined.shown(Path("/project/src", sources(archive)[0]), got.original)
        said = unified_diff(got.original, got.text, shown)
        assert not re.search(r"^\+[ \t]+$", said, re.M), "a line of blanks"
        said += f"launch {' '.join(got.launch.grid)} | {' '.join(got.launch.block)} · {got.numeric}\n"
        assert apply(got.original, got.edits) == got.text
        after = module(Document(context.module.document.path, got.text))
        assert launch_text.mismatch(context.module, after, context.kernel, got.launch) is None
    if update:
        archive.files = {source: archive.files[source] for source in sources(archive)} | {name: said}
        archive.write()
    assert {name: archive.files.get(name)} == {name: said}


def test_every_rule_has_a_golden_and_a_refusal() -> None:
    goldens = {
        Archive.read(p).settings["rule"].split("(")[0]
        for p in archives(FOLDER)
        if "after.diff" in Archive.read(p).files
    }
    refusals = {
        Archive.read(p).settings["rule"].split("(")[0]
        for p in archives(FOLDER)
        if "refusal.txt" in Archive.read(p).files
    }
    assert goldens == {r.name for r in RULES}
    assert refusals == {r.name for r in RULES}
