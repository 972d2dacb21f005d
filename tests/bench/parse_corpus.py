"""Parse every .cu, .cuh and .h file under the given folders and count the kernel definitions found.

    python tests/bench/parse_corpus.py DIR…

What should be found is counted by a tokenizer of its own, which shares no code with the parser: comments, literals,
directives (so `#define` bodies) and `#if 0` parts are skipped; then `__global__` … `(` … `)` … `{` is a definition,
with `;` in place of `{` a declaration. A definition counts as found when the parser has a kernel of the same name
whose body starts at the same brace. Exit code 1 below 99.9 % or on any exception.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.source import documents, symbols

GOAL = 0.999
WORD = re.compile(r'(?:u8|[uUL])?R"|[A-Za-z_$]\w*|\.?\d(?:[eEpP][+-]|\'\w|[\w.])*|.', re.DOTALL)
SUFFIXES = (".cu", ".cuh", ".h")
SPECIFIERS = {
    "__launch_bounds__",
    "__attribute__",
    "__declspec",
    "alignas",
    "__maxnreg__",
    "__cluster_dims__",
    "__align__",
}


@dataclass(frozen=True)
class Definition:
    name: str
    brace: int  # byte offset of the body's {
    line: int


def tokens(text: str) -> Iterator[tuple[str, int]]:
    """(token, offset) of the code in `text`, in characters."""
    at, size, skipping = 0, len(text), 0
    conditionals: list[bool] = []  # whether the open #if began a skipped part
    fresh = True  # nothing but blanks on this line so far
    while at < size:
        char = text[at]
        if char == "\n":
            fresh = True
            at += 1
        elif char.isspace():
            at += 1
        elif text.startswith("//", at):
            at = line_end(text, at)
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            at = size if end < 0 else end + 2
        elif char == "#" and fresh:
            end = line_end(text, at, comments=True)
            words = text[at + 1 : end].split()
            keyword = words[0] if words else ""
            if keyword in ("if", "ifdef", "ifndef"):
                zero = keyword == "if" and words[1:2] == ["0"] and "".join(words[2:])[:2] in ("", "//", "/*")
                conditionals.append(zero)
                skipping += zero
            elif keyword in ("else", "elif", "endif") and conditionals:
                if conditionals[-1]:
                    skipping -= 1
                    conditionals[-1] = False
                if keyword == "endif":
                    conditionals.pop()
            at = end
        else:
            fresh = False
            word = WORD.match(text, at)
            assert word is not None  # the last branch takes any character
            token = word[0]
            if token.endswith('R"'):
                delimiter = text[word.end() : text.find("(", word.end())]
                end = text.find(f'){delimiter}"', word.end())
                end, token = (size if end < 0 else end + len(delimiter) + 2), '""'
            elif token in ('"', "'"):
                end = literal_end(text, at)
                token *= 2
            else:
                end = word.end()
            if not skipping:
                yield token, at
            at = end


def line_end(text: str, at: int, comments: bool = False) -> int:
    """End of the logical line: continuation lines, and with `comments` block comments that begin in it, belong to
    it."""
    while at < len(text) and text[at] != "\n":
        if text[at] == "\\" and re.match(r"\\[ \t\r]*\n", text[at : at + 80]):
            at = text.index("\n", at) + 1
        elif comments and text.startswith("/*", at):
            end = text.find("*/", at + 2)
            at = len(text) if end < 0 else end + 2
        elif comments and text.startswith("//", at):
            comments = False
        else:
            at += 1
    return at


def literal_end(text: str, at: int) -> int:
    quote = text[at]
    at += 1
    while at < len(text) and text[at] not in (quote, "\n"):
        at += 2 if text[at] == "\\" else 1
    return min(at + 1, len(text))


def expected(text: str) -> list[Definition]:
    """The kernel definitions of a file by tokens alone."""
    found: dict[int, Definition] = {}
    stream = list(tokens(text))
    for index, (token, _) in enumerate(stream):
        if token == "__global__":
            definition = definition_at(text, stream, index)
            if definition is not None:
                found[definition.brace] = definition
    return list(found.values())


def definition_at(text: str, stream: list[tuple[str, int]], index: int) -> Definition | None:
    depth = 0
    name = ""
    for at in range(index + 1, len(stream)):
        token, offset = stream[at]
        if token == "(":
            if depth == 0 and re.match(r"[A-Za-z_$]", stream[at - 1][0]) and stream[at - 1][0] not in SPECIFIERS:
                name = stream[at - 1][0]
            elif depth == 0 and stream[at - 1][0] == ">":
                name = before_template(stream, at - 1) or name
            depth += 1
        elif token == ")":
            depth -= 1
        elif depth == 0 and token in (";", "}", "__global__"):
            return None
        elif depth == 0 and token == "{":
            if not name:
                return None
            return Definition(
                name, len(text[:offset].encode("utf-8", "surrogatepass")), text.count("\n", 0, offset) + 1
            )
    return None


def before_template(stream: list[tuple[str, int]], at: int) -> str | None:
    """The token in front of the `<` that the `>` at `at` closes; `<` and `>` inside parentheses are comparisons."""
    angle = paren = 0
    while at > 0:
        token = stream[at][0]
        paren += (token == ")") - (token == "(")
        if paren == 0:
            angle += (token == ">") - (token == "<")
        at -= 1
        if angle == 0 and paren == 0:
            return stream[at][0]
    return None


def files(folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        if folder.is_file():
            yield folder
        yield from sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    arguments.add_argument("--errors", action="store_true", help="also list the kernels with a syntax error inside")
    options = arguments.parse_args()
    count = wanted = found = extra = damaged = launches = resolved = size = exceptions = 0
    seconds = slowest = 0.0
    for path in files(options.folders):
        document = documents.read(path)
        count += 1
        size += len(document.data)
        started = time.perf_counter()
        try:
            module = symbols.module(document)
            kernels = module.kernels
            sites = module.launches
            targets = [module.kernels_of(site) for site in sites]
        except Exception:
            exceptions += 1
            print(f"exception: {path}\n{traceback.format_exc()}")
            continue
        elapsed = time.perf_counter() - started
        seconds, slowest = seconds + elapsed, max(slowest, elapsed)
        launches += len(sites)
        resolved += sum(bool(target) for target in targets)
        by_brace = {kernel.body.start: kernel for kernel in kernels}
        definitions = expected(document.text)
        wanted += len(definitions)
        for definition in definitions:
            kernel = by_brace.pop(definition.brace, None)
            if kernel is not None and kernel.name.split("(")[0].split("::")[-1] == definition.name:
                found += 1
            else:
                what = f"found as {kernel.name}" if kernel is not None else "not found"
                print(f"miss: {path}:{definition.line} {definition.name} {what}")
        for kernel in by_brace.values():
            extra += 1
            print(f"extra: {path}:{module.line(kernel.body.start)} {kernel.name}")
        for kernel in kernels:
            damaged += kernel.has_error
            if kernel.has_error and options.errors:
                print(f"error inside: {path}:{module.line(kernel.name_span.start)} {kernel.name}")
    share = found / wanted if wanted else 1.0
    speed = size / 1e6 / max(seconds, 1e-9)
    print(f"{count} files, {size / 1e6:.1f} MB, {seconds:.1f} s, {speed:.1f} MB/s, slowest {slowest * 1e3:.0f} ms")
    print(f"launches: {launches}, {resolved} of them of a kernel in the same file")
    print(f"kernels: {found} of {wanted} found ({share:.3%}), {extra} more, {damaged} with a syntax error inside")
    print(f"exceptions: {exceptions}")
    return 0 if share >= GOAL and exceptions == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
