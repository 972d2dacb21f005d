"""How a file is really built: compile_commands.json, else the recorded build, else sensible defaults.

`Build.flags` hold one word an option in one spelling (`-I/abs`, `-isystem=/abs`, `-include=x.h`, `-DX`, `-std=c++17`,
`-arch=sm_90`, `-Xcompiler=-Wall,-O3`), so that two spellings of one build are equal and hash alike.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cuda_agent import config, trust
from cuda_agent.errors import UsageError
from cuda_agent.model import Build
from cuda_agent.paths import folders_above
from cuda_agent.toolchain import header, options

DEFAULT_FLAGS = ("-std=c++17", "-O3")
RECORD = Path(".cuda-agent") / "builds.jsonl"
COMMANDS = "commands.jsonl"  # beside it: every nvcc command line, also those that only link
_WRAPPERS = frozenset({"ccache", "sccache", "distcc", "env", "time", "nice"})
_KNOWN = options.VALUED | options.DROPPED | options.PLAIN | frozenset(options.ALIASES.values())


@dataclass(frozen=True, slots=True)
class Command:
    """One nvcc command line, sorted out. `flags` are canonical; `arch` is the first real architecture named."""

    compiler: str
    directory: Path
    flags: tuple[str, ...]
    inputs: tuple[Path, ...]
    objects: tuple[Path, ...]
    output: Path | None
    phase: str  # "c", "dc", "cubin", "ptx", "E" …; "link" when none is named
    arch: str | None
    dropped: tuple[str, ...] = ()  # what does not matter for a cubin, canonical


@dataclass(slots=True)
class _Sorted:
    flags: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    output: str | None = None
    phase: str = "link"
    dropped: list[str] = field(default_factory=list)


def parse_command(argv: Sequence[str], directory: Path) -> list[Build]:
    """One Build for each source file of an nvcc command line; link-only commands give an empty list.

    Raises UsageError when an option misses its value or an options file cannot be read.
    """
    command = sort_out(argv, directory)
    return [
        Build(file=file, directory=command.directory, compiler=command.compiler, flags=command.flags, origin="recorded")
        for file in command.inputs
    ]


def sort_out(argv: Sequence[str], directory: Path) -> Command:
    """An nvcc (or clang -x cuda) command line as a `Command`. Raises UsageError as `parse_command`."""
    words = list(argv)
    while words and (Path(words[0]).name in _WRAPPERS or ("=" in words[0] and not words[0].startswith("-"))):
        words.pop(0)
    if not words:
        raise UsageError("An empty compiler command: give the command line as nvcc was called.")
    compiler, directory = words[0], directory.absolute()
    if "clang" in Path(compiler).name:
        words[1:] = _from_clang(words[1:])
    result = _Sorted()
    for name, value in _options(words[1:], directory):
        _place(result, name, value, directory)
    files = [directory / name for name in result.inputs]
    # `-x cu` makes every named file a source, whatever it is called.
    is_source = any(flag.startswith("-x=") for flag in result.flags)
    inputs = [f for f in files if f.suffix in options.SOURCES or (is_source and f.suffix not in {".o", ".a", ".so"})]
    return Command(
        compiler=compiler,
        directory=directory,
        flags=tuple(result.flags),
        inputs=tuple(_normal(f) for f in inputs),
        objects=tuple(_normal(f) for f in files if f not in inputs),
        output=_normal(directory / result.output) if result.output else None,
        phase=result.phase,
        arch=_arch(result.flags),
        dropped=tuple(result.dropped),
    )


def _normal(path: Path) -> Path:
    return Path(os.path.normpath(path))


def _options(words: Sequence[str], directory: Path, depth: int = 0) -> Iterator[tuple[str | None, str | None]]:
    """(option name, value) pairs; (None, word) for a file. Options files are read in place."""
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if not word.startswith("-") or word == "-":
            if word.startswith("@"):
                yield from _options_file(word[1:], directory, depth)
            elif word:
                yield None, word
            continue
        name, value = _name(word)
        takes = name in options.VALUED
        if value is None and takes:
            if i >= len(words):
                raise UsageError(f"The compiler option {word} misses its value.")
            value = words[i]
            i += 1
        if name == "optf" and value is not None:
            for file in value.split(","):
                yield from _options_file(file, directory, depth)
            continue
        yield name, value


def _options_file(name: str, directory: Path, depth: int) -> Iterator[tuple[str | None, str | None]]:
    if depth > 8:
        raise UsageError(f"Options files include each other without end at {name}.")
    try:
        text = (directory / name).read_text()
    except OSError as error:
        raise UsageError(f"The options file {directory / name} cannot be read: {error.strerror}.") from error
    yield from _options(shlex.split(text, comments=True), directory, depth + 1)


def _name(word: str) -> tuple[str, str | None]:
    """`--gpu-architecture=sm_90` → ("arch", "sm_90"); `-Idir` → ("I", "dir"); `-g` → ("g", None)."""
    body = word.lstrip("-")
    head, equals, tail = body.partition("=")
    known = options.ALIASES.get(head, head)
    # `-DX=1` is the macro `X=1`; only the long form `--define-macro=X` uses `=` as nvcc's own separator.
    if equals and known in options.VALUED:
        return known, tail
    if not equals and known in _KNOWN:
        return known, None
    if not word.startswith("--"):
        for prefix in options.GLUED:
            if body.startswith(prefix) and len(body) > len(prefix) and _may_glue(prefix, body):
                return prefix, body[len(prefix) :].removeprefix("=")
    return (known, tail) if equals else (known, None)


def _may_glue(prefix: str, body: str) -> bool:
    rest = body[len(prefix) :]
    match prefix:
        case "O":
            return rest in {"0", "1", "2", "3", "s", "z", "fast"}
        case "x":
            return rest in {"cu", "c", "c++"}
        case "m":
            return rest in {"64", "32"}
        case "t":
            return rest.isdigit()
        case "o":
            return False  # nvcc does not take -ofile; `-optf` and `-odir` must not look like it
        case _:
            return True


def _place(result: _Sorted, name: str | None, value: str | None, directory: Path) -> None:
    if name is None:
        result.inputs.append(value or "")
        return
    if name in options.PHASES:
        result.phase = name
    if name == "o":
        result.output = value
        return
    if name in {"MD", "MMD", "MP"} or name in options.DROPPED:
        result.dropped.append(_word(name, value))
        return
    if name == "dc":
        name, value = "rdc", "true"
    if name == "g" or name == "G":
        # -g is the host's; -G changes device code.
        (result.flags if name == "G" else result.dropped).append(f"-{name}")
        return
    if name == "x" and value != "cu":
        return
    values = value.split(",") if value is not None and name in options.LISTS and not _quoted(value) else [value]
    for item in values:
        if item is not None and name in options.PATHS:
            item = str(_normal(directory / item)) if name != "ccbin" or "/" in item else item
        word = _word(name, item)
        # A `-D` or `-I` given twice says nothing new, except that order of different ones matters.
        if word not in result.flags or name in {"Xcompiler", "Xcudafe"}:
            result.flags.append(word)


def _quoted(value: str) -> bool:
    return '"' in value or "'" in value or "(" in value


def _word(name: str, value: str | None) -> str:
    if value is None:
        return f"-{name}" if not _long(name) else f"--{name}"
    if name in {"D", "U", "I", "O"}:
        return f"-{name}{value}"
    return f"-{name}={value}" if not _long(name) else f"--{name}={value}"


def _long(name: str) -> bool:
    """Names that nvcc knows with one dash too are written with one; what only a long form exists for keeps two."""
    return name in {"no-align-double"}


def _arch(flags: Sequence[str]) -> str | None:
    for flag in flags:
        if flag.startswith("-arch="):
            value = flag.removeprefix("-arch=")
            if value.startswith(("sm_", "compute_")):
                return "sm_" + value.split("_", 1)[1]
        if flag.startswith("-gencode="):
            for part in flag.removeprefix("-gencode=").replace('"', "").split(","):
                key, _, value = part.partition("=")
                if key == "code" and "_" in value:
                    return "sm_" + value.strip("[]").split("_", 1)[1]
    return None


def arch_of(build: Build) -> str | None:
    """The first real architecture the build names (`sm_90`), or None (`native`, `all`, nothing)."""
    return _arch(build.flags)


def without_arch(flags: Sequence[str]) -> tuple[str, ...]:
    return tuple(f for f in flags if not f.startswith(("-arch=", "-gencode=", "-code=")))


def host_flags(build: Build) -> tuple[str, ...]:
    """What g++ needs to read the same text: -I, -isystem, -D, -U, -include, -std, in g++'s spelling."""
    words: list[str] = []
    for flag in build.flags:
        if flag.startswith(("-I", "-D", "-U", "-std=")):
            words.append(flag)
        elif flag.startswith(("-isystem=", "-include=", "-iquote=", "-idirafter=")):
            words.extend(flag.split("=", 1))
        elif flag.startswith("-Xcompiler="):
            parts = flag.removeprefix("-Xcompiler=").split(",")
            words.extend(p for p in parts if p.startswith(("-I", "-D", "-U", "-std=")))
    return tuple(words)


def to_command(build: Build) -> list[str]:
    """A command line that `parse_command` reads back as the same Build."""
    return [build.compiler, *build.flags, "-c", str(build.file)]


def _from_clang(words: Sequence[str]) -> list[str]:
    """clang's CUDA flags in nvcc's spelling; what nvcc has no word for is dropped."""
    kept: list[str] = []
    takes = {"-I", "-isystem", "-iquote", "-include", "-D", "-U", "-o", "-x", "-MF", "-MT", "-MQ"}
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if word in takes and i < len(words):
            value, i = words[i], i + 1
            kept += [word, "cu" if word == "-x" and value == "cuda" else value]
        elif word.startswith("--cuda-gpu-arch="):
            kept.append("-arch=" + word.partition("=")[2])
        elif not word.startswith("-") or word.startswith(("-I", "-isystem", "-D", "-U", "-std=", "-O")) or word == "-c":
            kept.append(word)
    return kept


# ---------------------------------------------------------------- finding


def find_build(file: Path) -> Build:
    """How `file` is built: see the module. A header is built as a part of a source that includes it, else as a `.cu`
    beside it. The setting `extraFlags` is added.

    Raises Untrusted when what would be compiled is not covered (whatever compiles a file asks for its build first),
    UsageError when a compile_commands.json there is not JSON, or an extra flag misses its value.
    """
    file = file.absolute()
    trust.need(file)
    default = Build(file, file.parent, "nvcc", (*DEFAULT_FLAGS, f"-I{file.parent}"), "default")
    found = _known(file)
    if file.suffix in options.HEADERS and (source := header.including(file, header.sources_around(file))) is not None:
        trust.need(source)
        own = _known(source) or found or default
        found = replace(own, file=file, through=source)
    elif found is None and file.suffix in options.HEADERS:
        beside = (known for source in sorted(file.parent.glob("*.cu")) if (known := _known(source)))
        found = next((replace(build, file=file) for build in beside), None)
    return with_extra(found or default, config.current().extra_flags)


def with_extra(build: Build, words: Sequence[str]) -> Build:
    """The build with more nvcc flags after its own: of two values nvcc takes the last. Raises UsageError when an option
    misses its value."""
    extra = sort_out([build.compiler, *words], build.directory).flags
    kept = without_arch(build.flags) if _arch(extra) else build.flags
    return replace(build, flags=(*kept, *extra))


def _known(file: Path) -> Build | None:
    for folder in folders_above(file):
        database = folder / "compile_commands.json"
        if not database.is_file():
            database = folder / "build" / "compile_commands.json"
        if database.is_file() and (found := _from_database(database, file)):
            return found
    for folder in folders_above(file):
        if found := _from_record(folder / RECORD, file):
            return found
    return None


def _from_database(database: Path, file: Path) -> Build | None:
    try:
        entries = json.loads(database.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{database} cannot be read ({error}): generate it again.") from error
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
            continue
        directory = database.parent / str(entry.get("directory", "."))
        if not _same(directory / entry["file"], file):
            continue
        argv = entry.get("arguments") or shlex.split(str(entry.get("command", "")))
        command = sort_out([str(word) for word in argv], directory)
        return Build(file, command.directory, command.compiler, command.flags, "compile_commands")
    return None


def _from_record(record: Path, file: Path) -> Build | None:
    """The newest entry of a builds.jsonl for the file; a torn last line is passed over."""
    if not record.is_file():
        return None
    for line in reversed(record.read_text(errors="replace").splitlines()):
        try:
            entry = json.loads(line)
            directory, argv = Path(entry["directory"]), [str(word) for word in entry["arguments"]]
        except (ValueError, KeyError, TypeError):
            continue
        if not _same(directory / str(entry.get("file", "")), file):
            continue
        command = sort_out(argv, directory)
        return Build(file, command.directory, command.compiler, command.flags, "recorded")
    return None


def _same(a: Path, b: Path) -> bool:
    return _normal(a) == _normal(b) or (a.name == b.name and os.path.realpath(a) == os.path.realpath(b))


def record_command(path: Path, argv: Sequence[str], cwd: Path) -> None:
    """Append one nvcc command line to `path` (commands.jsonl). Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"directory": str(cwd), "arguments": list(argv[1:])}) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())


def recorded_commands(path: Path) -> list[tuple[Path, list[str]]]:
    """(folder, words after the compiler's name) of every command of a commands.jsonl, each once, in the order of their
    last use; a torn line is passed over. Raises OSError."""
    found: dict[tuple[str, ...], None] = {}
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        try:
            entry = json.loads(line)
            key = (str(entry["directory"]), *(str(word) for word in entry["arguments"]))
        except (ValueError, KeyError, TypeError):
            continue
        found.pop(key, None)
        found[key] = None
    return [(Path(folder), words) for folder, *words in found]


def record(path: Path, argv: Sequence[str], cwd: Path) -> int:
    """Append one line for each source of this nvcc command to `path` (builds.jsonl); returns how many.

    Called by the recording shim: nothing is written for link-only commands. One write a line, so that parallel makes
    do not tear each other's lines. Raises OSError, UsageError.
    """
    builds = parse_command(argv, cwd)
    if not builds:
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        for build in builds:
            entry = {"directory": str(cwd), "arguments": list(argv), "file": str(build.file), "time": time.time()}
            os.write(handle, (json.dumps(entry) + "\n").encode())
    finally:
        os.close(handle)
    return len(builds)
