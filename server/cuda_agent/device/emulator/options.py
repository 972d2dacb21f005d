"""nvcc's command line, as far as builds use it: for the drop-in compiler and for replay builds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.errors import UsageError

# long name → canonical; options with a value also take `--name=value`.
_WITH_VALUE = {
    "--output-file": "-o", "--include-path": "-I", "--define-macro": "-D", "--undefine-macro": "-U", "--library": "-l",
    "--library-path": "-L", "--optimize": "-O", "--std": "-std", "--x": "-x", "--gpu-architecture": "-arch",
    "--gpu-code": "-code", "--generate-code": "-gencode", "--compiler-options": "-Xcompiler",
    "--ptxas-options": "-Xptxas",
    "--linker-options": "-Xlinker", "--nvlink-options": "-Xnvlink", "--archive-options": "-Xarchive",
    "--compiler-bindir": "-ccbin", "--pre-include": "-include", "--system-include": "-isystem",
    "--maxrregcount": "-maxrregcount", "--threads": "-t", "--relocatable-device-code": "-rdc", "--cudart": "-cudart",
    "--default-stream": "-default-stream", "--ftz": "-ftz", "--prec-div": "-prec-div", "--prec-sqrt": "-prec-sqrt",
    "--fmad": "-fmad", "--output-directory": "-odir", "--dependency-output": "-MF", "--dependency-target-name": "-MT",
    "--options-file": "-optf", "--diag-suppress": "-diag-suppress", "--diag-error": "-diag-error",
    "--diag-warn": "-diag-warn", "--Werror": "-Werror", "--machine": "-m", "--expt-extended-lambda": "",
    "--keep-dir": "-keep-dir", "--split-compile": "-split-compile", "--target-directory": "-target-dir",
}  # fmt: skip
_FLAGS = {
    "--compile": "-c", "--device-c": "-dc", "--device-link": "-dlink", "--link": "-link", "--lib": "-lib",
    "--preprocess": "-E", "--generate-dependencies": "-M", "--generate-nonsystem-dependencies": "-MM",
    "--generate-dependencies-with-compile": "-MD", "--generate-nonsystem-dependencies-with-compile": "-MMD",
    "--debug": "-g", "--device-debug": "-G", "--generate-line-info": "-lineinfo", "--shared": "-shared",
    "--use_fast_math": "-use_fast_math", "--version": "-V", "--help": "-h", "--ptx": "-ptx", "--cubin": "-cubin",
    "--fatbin": "-fatbin", "--verbose": "-v", "--dryrun": "-dryrun", "--profile": "-pg", "--no-exceptions": "",
}  # fmt: skip
_VALUES = sorted(
    {v for v in _WITH_VALUE.values() if v} | {"-MQ", "-idirafter", "-iquote", "-idir"}, key=len, reverse=True
)
_JOINED = ("-I", "-D", "-U", "-L", "-l", "-O", "-o", "-m", "-t", "-x")
_CANONICAL_FLAGS = {v for v in _FLAGS.values() if v}
_CUDA_LIBRARIES = re.compile(r"^(cudart(_static)?|cuda|cudadevrt|nvToolsExt|nvrtc|nvidia-ml|cupti|culibos)$")
_DEVICE_CODE = ("-ptx", "-cubin", "-fatbin")


@dataclass(slots=True)
class Options:
    inputs: list[str] = field(default_factory=list)
    output: str | None = None
    phase: str = "link"  # link, -c, -E, -M, -MM, -lib, -dlink, -ptx, -cubin, -fatbin, -V, -h
    language: str | None = None  # of -x
    standard: str | None = None
    includes: list[str] = field(default_factory=list)
    quotes: list[str] = field(default_factory=list)
    macros: list[str] = field(default_factory=list)  # -DX, -UX in order
    host: list[str] = field(default_factory=list)  # -Xcompiler and other flags for g++
    link: list[str] = field(default_factory=list)  # -L, -l, -Wl in order
    dependencies: list[str] = field(default_factory=list)  # -MD, -MF x …
    optimize: str = "3"  # nvcc optimises device code at -O3 by default
    debug: bool = False
    shared: bool = False
    fast_math: bool = False
    arch: int = 900  # of __CUDA_ARCH__
    directory: str | None = None  # of -odir


def parse(argv: Sequence[str], directory: Path | None = None) -> Options:
    """Options of an nvcc command line without the program's name. Unknown options go to g++.

    Raises UsageError when a value is missing or an options file cannot be read.
    """
    found = Options()
    words = list(argv)
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if not word.startswith("-") or word == "-":
            found.inputs.append(word)
            continue
        name, value = _split(word)
        if name in _CANONICAL_FLAGS and value is None:
            _flag(found, name)
            continue
        if name in _VALUES:
            if value is None:
                if i >= len(words):
                    raise UsageError(f"nvcc option {word} needs a value")
                value = words[i]
                i += 1
            if name == "-optf":
                words[i:i] = _options_file(value, directory)
            else:
                _valued(found, name, value)
            continue
        _other(found, word)
    return found


def _split(word: str) -> tuple[str, str | None]:
    """(canonical option, its value when joined)."""
    if word.startswith("--"):
        long, equals, value = word.partition("=")
        if long in _WITH_VALUE:
            return _WITH_VALUE[long], value if equals else None
        if word in _FLAGS:
            return _FLAGS[word], None
        word = word[1:]  # nvcc takes `--use_fast_math`, `-use_fast_math`, `--arch` and `-arch` alike
    if word in _CANONICAL_FLAGS:
        return word, None
    for name in _VALUES:
        if word == name:
            return name, None
        if word.startswith(name + "="):
            return name, word[len(name) + 1 :]
    for name in _JOINED:
        if (
            word.startswith(name)
            and len(word) > 2
            and not (name in ("-m", "-t", "-x", "-o") and not word[2:].isdigit())
        ):
            return name, word[2:]
    return word, None


def _options_file(name: str, directory: Path | None) -> list[str]:
    words: list[str] = []
    for part in name.split(","):
        try:
            words += shlex.split(((directory or Path()) / part).read_text(encoding="utf-8"), comments=True)
        except OSError as error:
            raise UsageError(f"cannot read nvcc's options file {part}: {error.strerror}") from error
    return words


def _flag(found: Options, name: str) -> None:
    if name in ("-c", "-dc"):
        found.phase = "-c"
    elif name in ("-E", "-M", "-MM", "-lib", "-dlink", "-V", "-h", *_DEVICE_CODE):
        found.phase = name
    elif name in ("-MD", "-MMD"):
        found.dependencies.append(name)
    elif name in ("-g", "-G"):
        found.debug = True
    elif name == "-shared":
        found.shared = True
    elif name == "-use_fast_math":
        found.fast_math = True
    elif name == "-pg":
        found.host.append(name)


def _valued(found: Options, name: str, value: str) -> None:
    if name == "-o":
        found.output = value
    elif name == "-I":
        found.includes += value.split(",") if not Path(value).exists() else [value]
    elif name == "-iquote":
        found.quotes.append(value)
    elif name in ("-D", "-U"):
        found.macros.append(name + value)
    elif name in ("-isystem", "-include", "-idirafter"):
        found.host += [name, value]
    elif name in ("-MF", "-MT", "-MQ"):
        found.dependencies += [name, value]
    elif name == "-std":
        found.standard = value
    elif name == "-x":
        found.language = value
    elif name == "-O":
        found.optimize = value
    elif name == "-l":
        found.link += [f"-l{lib}" for lib in value.split(",") if not _CUDA_LIBRARIES.match(lib)]
    elif name == "-L":
        found.link.append(f"-L{value}")
    elif name == "-Xcompiler":
        found.host += shlex.split(value.replace(",", " "))
    elif name == "-Xlinker":
        found.link += [f"-Wl,{word}" for word in value.split(",")]
    elif name in ("-arch", "-code", "-gencode"):
        numbers = [int(n) for n in re.findall(r"(?:sm|compute|lto)_(\d+)", value)]
        if numbers:
            found.arch = max(numbers) * 10
    elif name == "-odir":
        found.directory = value
    elif name == "-m" and value == "32":
        raise UsageError("nvcc option -m32: the emulator makes 64-bit programs only")


def _other(found: Options, word: str) -> None:
    """Options without a value that nvcc itself would not hand on are dropped: they steer device code only."""
    if word.startswith(("-f", "-W", "-march", "-mtune", "-pthread", "-std", "-static-lib")):
        found.host.append(word)
    elif word in ("-ldl", "-lm", "-lpthread", "-rdynamic"):
        found.link.append(word)
