"""CUDA C++ to plain C++17 for g++ and the emulator's headers.

Every edit keeps the line it stands on, so diagnostics, debug lines and `__LINE__` are those of the person's file:

    __global__ void k(T *x) { …        →  __global__ void k(T *x) { CUEMU_KERNEL(x); …
    k<T><<<g, b, s, t>>>(x)            →  CUEMU_LAUNCH((k<T>), (g, b, s, t), x)
    __shared__ T a[4], b;              →  CUEMU_SHARED(a, T[4]); CUEMU_SHARED(b, T);
    extern __shared__ T a[];           →  CUEMU_DYNAMIC_SHARED(a, T);
    __device__ int n;                  →  __device__ int n; CUEMU_GLOBAL(n);
    asm("…") in device code            →  CUEMU_UNSUPPORTED("inline PTX")
    #if __CUDA_ARCH__ in device code   →  #if CUEMU_CUDA_ARCH

`__CUDA_ARCH__` is not defined elsewhere, so `__host__ __device__` functions take their host branch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cuda_agent.device.emulator.tokens import (
    Token,
    back_angles,
    match_brackets,
    skip_angles,
    split_commas,
    tokenize,
)
from cuda_agent.errors import Unsupported

# Words before a function's name that take parentheses and are not its name.
_ATTRIBUTES = {
    "__launch_bounds__",
    "__attribute__",
    "__declspec",
    "alignas",
    "__align__",
    "__maxnreg__",
    "__cluster_dims__",
    "__block_size__",
    "decltype",
    "noexcept",
    "explicit",
}
_VARIABLE_SPACES = {"__device__", "__constant__", "__managed__"}
_TYPE_WORDS = {
    "int", "unsigned", "signed", "long", "short", "char", "float", "double", "bool", "void", "auto", "wchar_t",
    "const", "volatile", "struct", "class", "enum", "union", "typename", "__restrict__", "__restrict", "restrict",
}  # fmt: skip
_KEYWORDS = {"if", "while", "for", "switch", "return", "else", "do", "case", "sizeof", "template"}
_BUILT_INS = {"threadIdx", "blockIdx", "blockDim", "gridDim"}
_UNSUPPORTED_WORDS = {
    "texture": "texture references",
    "cudaTextureObject_t": "texture objects",
    "cudaSurfaceObject_t": "surface objects",
    "cudaStreamBeginCapture": "CUDA graphs",
    "cudaGraph_t": "CUDA graphs",
    "cudaGraphExec_t": "CUDA graphs",
    "cudaGraphLaunch": "CUDA graphs",
    "cudaIpcMemHandle_t": "inter-process memory",
}
_UNSUPPORTED_HEADERS = re.compile(
    r"#\s*include\s*<((?:thrust|cuda|cute|cutlass|nvtx3)/[^>]*|mma\.h|nccl\.h|nvrtc\.h"
    r"|(?:cublas|cufft|cudnn|cusparse|cusolver|npp)\w*\.h|cub/(?!cub\.cuh|(?:block/block|warp/warp)_(?:reduce|scan)\.cuh)[^>]*)>"
    r"|#\s*include\s*\"((?:cublas|cufft|cudnn|cusparse|cusolver)\w*\.h)\""
)


def translate(text: str, path: str = "<text>") -> str:
    """`text` as C++17 for g++ with the emulator's headers; line numbers are unchanged.

    Raises Unsupported, naming the construct and its line, for textures, surfaces, graphs and libraries it has not.
    """
    translator = _Translator(text, path)
    out = translator.run()
    if refused := translator.refused():
        raise Unsupported(f"{refused[0]}; use a GPU for this file")
    return out


def translate_lenient(text: str, path: str) -> tuple[str, list[str]]:
    """The translation, and what the emulator has not as sentences: it may stand in an `#if` that is not taken."""
    translator = _Translator(text, path)
    return translator.run(), translator.refused()


class _Translator:
    def __init__(self, text: str, path: str) -> None:
        self.text = text
        self.path = path
        self.tokens = tokenize(text)
        self.pairs = match_brackets(self.tokens)
        self.edits: list[tuple[int, int, str]] = []
        self.left: list[str] = []  # sentences about what `run` could not rewrite
        self.global_words, self.device_words = {"__global__"}, {"__device__"}
        self.device_only: list[tuple[int, int]] = []  # token ranges of bodies that only a device runs
        self.device_any: list[tuple[int, int]] = []  # and of those that a device may run
        self.macros = self._macros()

    # ------------------------------------------------------------ the whole text

    def run(self) -> str:
        in_namespace = self._namespace_scope()
        i = 0
        while i < len(self.tokens):
            token = self.tokens[i]
            if token.kind == "word":
                if token.text in self.global_words:
                    self._function(i, kernel=True)
                elif token.text in self.device_words:
                    self._function(i, kernel=False)
                if token.text == "__shared__":
                    i = self._shared(i)
                    continue
                if token.text == "__noinline__" and (i == 0 or self.tokens[i - 1].text != "("):
                    self.edits.append((token.start, token.end, "__attribute__((noinline))"))
                if token.text in _VARIABLE_SPACES and in_namespace[i]:
                    self._variable(i)
            elif token.text == "<<<" and token.kind == "punct":
                self._launch(i)
            i += 1
        self._device_regions()
        self._host_names()
        return self._apply()

    def _apply(self) -> str:
        pieces: list[str] = []
        at = 0
        for start, end, new in sorted(self.edits, key=lambda edit: (edit[0], edit[1])):
            if start < at:  # inside a text that another edit already replaced
                continue
            pieces += (self.text[at:start], new)
            at = end
        pieces.append(self.text[at:])
        return "".join(pieces)

    def _line(self, token: Token) -> int:
        return self.text.count("\n", 0, token.start) + 1

    def refused(self) -> list[str]:
        """One sentence for every construct that no rewriting makes runnable."""
        found = list(self.left)
        for i, token in enumerate(self.tokens):
            if token.kind == "directive":
                header = _UNSUPPORTED_HEADERS.match(token.text)
                if header:
                    found.append(self._cannot(token, f"<{header.group(1) or header.group(2)}>"))
            elif token.kind == "word" and token.text in _UNSUPPORTED_WORDS:
                if token.text == "texture" and not (i + 1 < len(self.tokens) and self.tokens[i + 1].text == "<"):
                    continue
                found.append(self._cannot(token, _UNSUPPORTED_WORDS[token.text]))
        return found

    def _cannot(self, token: Token, what: str) -> str:
        return f"{self.path}:{self._line(token)}: the emulator cannot run {what}"

    def _macros(self) -> dict[str, str]:
        """Object-like macros by name. Those that spell a qualifier (`#define KERNEL __global__ void`) act as it."""
        found: dict[str, str] = {}
        head: Token | None = None
        for i, token in enumerate(self.tokens):
            if token.kind == "define":
                head = token if "(" not in self.text[token.start : token.end] else None
                first = i + 1
            elif token.kind == "end" and head is not None:
                body = self.tokens[first:i]
                words = {t.text for t in body}
                found[head.text] = self.text[body[0].start : body[-1].end] if body else ""
                if not any(t.text in ("(", "{") for t in body if t.kind == "punct") or words & _ATTRIBUTES:
                    if "__global__" in words:
                        self.global_words.add(head.text)
                    elif "__device__" in words and "__host__" not in words and "__constant__" not in words:
                        self.device_words.add(head.text)
                head = None
        return found

    def _namespace_scope(self) -> list[bool]:
        """For every token whether it stands in a namespace, and not in a function, class or macro body."""
        inside: list[bool] = []
        stack = [True]
        statement: list[str] = []
        for token in self.tokens:
            inside.append(token.macro < 0 and stack[-1])
            if token.macro >= 0 or token.kind in ("directive", "define", "end"):
                continue
            if token.kind == "punct" and token.text == "{":
                stack.append(stack[-1] and ("namespace" in statement or statement == ["extern", '"C"']))
                statement = []
            elif token.kind == "punct" and token.text == "}":
                if len(stack) > 1:
                    stack.pop()
                statement = []
            elif token.kind == "punct" and token.text == ";":
                statement = []
            else:
                statement.append(token.text)
        return inside

    # ------------------------------------------------------------ functions

    def _function(self, at: int, kernel: bool) -> None:
        """Find the definition that the qualifier at `at` begins; rewrite it when it is a kernel."""
        tokens, pairs = self.tokens, self.pairs
        i = at + 1
        params: int | None = None
        while i < len(tokens):
            token = tokens[i]
            if token.kind == "end" or token.text in (";", "}", "=") or (token.text == "{" and params is None):
                return
            if token.text == "(" and i in pairs:
                before = tokens[i - 1]
                if before.kind == "word" and before.text in _ATTRIBUTES:
                    i = pairs[i] + 1
                    continue
                if before.text == "operator":  # operator()(…)
                    i = pairs[i] + 1
                    continue
                params = i
                i = pairs[i] + 1
            elif token.text == "{" and params is not None:
                break
            elif token.text == ":" and params is not None and not kernel:
                i = self._initializers(i)
                break
            elif token.text == "<" and tokens[i - 1].kind == "word":
                i = skip_angles(tokens, i, pairs) or i + 1
            elif token.text == "[" and i in pairs:
                i = pairs[i] + 1
            else:
                i += 1
        if params is None or i >= len(tokens) or tokens[i].text != "{" or i not in pairs:
            return
        host = any(t.text in ("__host__",) for t in self._specifiers(at))
        region = (i, pairs[i])
        if region not in self.device_any:
            self.device_any.append(region)
        if not host and region not in self.device_only:
            self.device_only.append(region)
        if kernel:
            self._kernel(params, i)

    def _specifiers(self, at: int) -> Iterator[Token]:
        """The words on both sides of a qualifier, up to the statement's limits."""
        for step in (-1, 1):
            i = at + step
            while 0 <= i < len(self.tokens) and (
                self.tokens[i].kind == "word" or self.tokens[i].text in ("<", ">", "::", ",", "*", "&")
            ):
                yield self.tokens[i]
                i += step

    def _initializers(self, at: int) -> int:
        """Index of a constructor's `{` after its member initialisers, which may use braces themselves."""
        i = at + 1
        while i < len(self.tokens):
            if self.tokens[i].text in ("(", "{") and i in self.pairs:
                follows = self.tokens[self.pairs[i] + 1].text if self.pairs[i] + 1 < len(self.tokens) else ""
                if self.tokens[i].text == "{" and self.tokens[i - 1].kind != "word" and self.tokens[i - 1].text != ">":
                    return i
                i = self.pairs[i] + 1
                if follows not in (",", "{", "..."):
                    return i
            else:
                i += 1
        return i

    def _kernel(self, params: int, body: int) -> None:
        tokens, pairs = self.tokens, self.pairs
        close = pairs[params]
        names: list[str] = []
        inner = range(params + 1, close)
        if any(tokens[i].kind in ("directive", "define") for i in inner):
            self.left.append(
                self._cannot(tokens[params], "a kernel whose parameter list holds preprocessor directives")
            )
            return
        for number, (start, stop) in enumerate(split_commas(tokens, pairs, params + 1, close)):
            part = tokens[start:stop]
            if not part or [t.text for t in part] == ["void"]:
                continue
            if len(part) == 1 and part[0].text in self.macros:  # a macro that spells several parameters
                macro = tokenize(self.macros[part[0].text])
                inner_pairs = match_brackets(macro)
                for a, b in split_commas(macro, inner_pairs, 0, len(macro)):
                    names.append(_parameter(macro[a:b], "")[0])
                continue
            name, unnamed_at = _parameter(part, f"cuemu_unnamed_{number}")
            if unnamed_at is not None:
                self.edits.append((unnamed_at, unnamed_at, f" {name}"))
            names.append(name)
        at = tokens[body].end
        self.edits.append((at, at, f" CUEMU_KERNEL({', '.join(names)});"))

    # ------------------------------------------------------------ launches

    def _launch(self, at: int) -> None:
        tokens, pairs = self.tokens, self.pairs
        close = at + 1
        while close < len(tokens) and tokens[close].text != ">>>":
            if tokens[close].text in ("(", "[", "{"):
                close = pairs.get(close, close)
            if tokens[close].kind == "end" or tokens[close].text == ";":
                return
            close += 1
        first = self._callee(at)
        if close >= len(tokens) or first is None:
            return
        opened = close + 1
        if opened >= len(tokens) or tokens[opened].text != "(" or opened not in pairs:
            self.left.append(self._cannot(tokens[at], "a launch whose arguments do not follow its >>>"))
            return
        arguments = pairs[opened] > opened + 1
        start, after = tokens[first].start, tokens[at - 1].end
        self.edits.append((start, start, "CUEMU_LAUNCH(("))
        self.edits.append((after, tokens[at].end, "), (" + self.text[after : tokens[at].start].strip(" ")))
        gap = self.text[tokens[close].end : tokens[opened].start].strip(" ")
        self.edits.append((tokens[close].start, tokens[opened].end, ")" + gap + (", " if arguments else "")))

    def _callee(self, at: int) -> int | None:
        """Index of the first token of the expression before `<<<`: `ns::k<T>`, `table[i]`, `(pick())`, `a->b`."""
        tokens, pairs = self.tokens, self.pairs
        i = at - 1
        macro = tokens[at].macro
        while i >= 0:
            token = tokens[i]
            if token.macro != macro:
                return None
            if token.text in (">", ">>>") and token.kind == "punct":
                opened = back_angles(tokens, i, pairs)
                if opened is None:
                    return None
                i = opened - 1
                continue
            if token.text in (")", "]") and token.kind == "punct":
                if i not in pairs:
                    return None
                i = pairs[i]
                before = tokens[i - 1] if i else None
                called = before is not None and (before.kind == "word" and before.text not in _KEYWORDS)
                if not (called or (before is not None and before.text in (">", "]", ")") and tokens[i].text == "[")):
                    return i
                i -= 1
                continue
            if token.kind != "word" and token.text != "#":
                return None
            while i >= 2 and tokens[i - 1].text == "#" and tokens[i - 2].text == "#":  # a ## b in a macro
                i -= 3
            if i and tokens[i - 1].text == "template":
                i -= 1
            if i and tokens[i - 1].text in ("::", ".", "->") and tokens[i - 1].macro == macro:
                if tokens[i - 1].text == "::" and not (
                    i > 1 and (tokens[i - 2].kind == "word" or tokens[i - 2].text == ">")
                ):
                    return i - 1
                if i > 1 and tokens[i - 2].text in _KEYWORDS:
                    return i - 1
                i -= 2
                continue
            return i
        return None

    # ------------------------------------------------------------ variables

    def _statement_end(self, at: int) -> int | None:
        i = at
        while i < len(self.tokens):
            token = self.tokens[i]
            if token.kind in ("end", "directive", "define"):
                return None
            if token.text in ("(", "[", "{") and token.kind == "punct":
                i = self.pairs.get(i, i)
            elif token.text == ";":
                return i
            elif token.text in ("}", ")"):
                return None
            i += 1
        return None

    def _statement_start(self, at: int) -> int:
        """First token of a declaration whose qualifier stands at `at` (`volatile extern __shared__ …`)."""
        i = at
        words = {"extern", "static", "volatile", "const", "inline", "constexpr", "alignas", "unsigned"}
        while (
            i > 0
            and self.tokens[i - 1].text in words | _VARIABLE_SPACES
            and self.tokens[i - 1].macro == self.tokens[at].macro
        ):
            i -= 1
        return i

    def _shared(self, at: int) -> int:
        """Rewrite the declaration with `__shared__` at `at`; the index to go on from."""
        tokens = self.tokens
        end = self._statement_end(at)
        if end is None:
            return at + 1
        first = self._statement_start(at)
        parts = split_commas(tokens, self.pairs, at + 1, end)
        if not parts:
            return at + 1
        leading = [t.text for t in tokens[first:at] if t.text in ("volatile", "const", "unsigned")]
        dynamic = any(t.text == "extern" for t in tokens[first : end + 1])
        lead, declared = self._declarator(self._without_alignment(*parts[0]))
        if declared is None:
            return at + 1
        base = [*leading, *lead]
        out: list[str] = []
        for number, (start, stop) in enumerate(parts):
            stars, found = ([], declared) if number == 0 else self._declarator(tokens[start:stop])
            if found is None:
                continue
            name, extents = found
            kind = " ".join([*base, *stars])
            outside = "" if self._inside_function(at) else "_OUTSIDE"
            if dynamic:
                inner = extents[extents.find("]") + 1 :] if extents.startswith("[]") else extents
                out.append(f"CUEMU_DYNAMIC_SHARED{outside}({name}, {kind}{inner})")
            else:
                out.append(f"CUEMU_SHARED{outside}({name}, {kind}{extents})")
        newlines = self.text.count("\n", tokens[first].start, tokens[end].start)
        continued = "\\\n" if tokens[at].macro >= 0 else "\n"
        self.edits.append((tokens[first].start, tokens[end].start, "; ".join(out) + continued * newlines))
        return end

    def _without_alignment(self, start: int, stop: int) -> list[Token]:
        """The tokens of a shared declaration that name its type: the storage is 128-byte aligned anyway."""
        kept: list[Token] = []
        i = start
        while i < stop:
            token = self.tokens[i]
            if token.text in ("alignas", "__align__", "__attribute__") and self.tokens[i + 1].text == "(":
                i = self.pairs.get(i + 1, i + 1)
            elif token.text not in ("extern", "static"):
                kept.append(token)
            i += 1
        return kept

    def _inside_function(self, at: int) -> bool:
        if self.tokens[at].macro >= 0:
            return True
        return any(start < at < end for start, end in self.device_any)

    @staticmethod
    def _declarator(part: list[Token]) -> tuple[list[str], tuple[str, str] | None]:
        """Split `T *name[4][5] = …` into the words before the name, and the name with its extents."""
        depth = 0
        stop = len(part)
        name_at: int | None = None
        for i, token in enumerate(part):
            text = token.text if token.kind == "punct" else ""
            if text in ("(", "{") or (text == "<" and i and part[i - 1].kind == "word"):
                if text == "{" and depth == 0:
                    stop = i
                    break
                depth += 1
            elif text in (")", "}"):
                depth -= 1
            elif text in (">", ">>>") and depth:
                depth -= len(text)
            elif text in ("[", "=") and depth == 0:
                stop = i
                break
            elif token.kind == "word" and depth == 0:
                name_at = i
        if name_at is None or name_at != stop - 1:
            return [], None
        extents: list[str] = []
        level = 0
        for token in part[stop:]:
            if token.text == "=" and level == 0:
                break
            level += {"[": 1, "]": -1}.get(token.text, 0)
            extents.append(token.text)
        return [t.text for t in part[:name_at]], (part[name_at].text, _join(extents))

    def _variable(self, at: int) -> None:
        """Register a `__device__`, `__constant__` or `__managed__` variable after its declaration."""
        tokens = self.tokens
        first = self._statement_start(at)
        if first != at and any(t.text in _VARIABLE_SPACES for t in tokens[first:at]):
            return  # `__device__ __constant__ x`: done at the first of the two
        before = tokens[first - 1].text if first else ";"
        end = self._statement_end(first)
        if end is None or before == ">":  # a template
            return
        words = [t.text for t in tokens[first:end]]
        if "extern" in words or "__shared__" in words or "operator" in words or words[-1] == ")":
            return
        parts = split_commas(tokens, self.pairs, first, end)
        names: list[str] = []
        for start, stop in parts:
            _, found = self._declarator(tokens[start:stop])
            if found is None:
                return  # a function, or a declaration this does not understand: it stays a plain variable
            names.append(found[0])
        self.edits.append((tokens[end].end, tokens[end].end, "".join(f" CUEMU_GLOBAL({name});" for name in names)))

    # ------------------------------------------------------------ what only the device sees

    def _device_regions(self) -> None:
        for start, end in self.device_only:
            for token in self.tokens[start:end]:
                if token.kind == "directive" and "__CUDA_ARCH__" in token.text and re.match(r"#\s*(el)?if", token.text):
                    new = re.sub(r"\b__CUDA_ARCH__\b", "CUEMU_CUDA_ARCH", token.text)
                    self.edits.append((token.start, token.end, new))
        for i, token in enumerate(self.tokens):
            if token.kind != "word" or token.text not in ("asm", "__asm__", "__asm"):
                continue
            if token.macro < 0 and not any(start < i < end for start, end in self.device_any):
                continue
            opened = i + 1
            while opened < len(self.tokens) and self.tokens[opened].text in (
                "volatile",
                "__volatile__",
                "inline",
                "goto",
            ):
                opened += 1
            if opened < len(self.tokens) and self.tokens[opened].text == "(" and opened in self.pairs:
                last = self.tokens[self.pairs[opened]]
                newlines = self.text.count("\n", token.start, last.end)
                filler = ("\\\n" if token.macro >= 0 else "\n") * newlines
                self.edits.append((token.start, last.end, f'CUEMU_UNSUPPORTED("inline PTX"){filler}'))

    def _host_names(self) -> None:
        """Rename host variables and members called as CUDA's built-in variables, which are macros in the emulator."""
        found: list[tuple[int, Token]] = []
        declared: set[str] = set()
        for i, token in enumerate(self.tokens):
            if token.kind != "word" or token.text not in _BUILT_INS or token.macro >= 0 or i == 0:
                continue
            before = self.tokens[i - 1]
            if before.text in (".", "->"):
                self.edits.append((token.start, token.end, f"cuemu_host_{token.text}"))
            elif not any(start < i < end for start, end in self.device_any):
                found.append((i, token))
                opened = i + 1 < len(self.tokens) and self.tokens[i + 1].text in ("(", "{", "=")
                if (before.kind == "word" and before.text not in _KEYWORDS) or (before.text in (",", "&") and opened):
                    declared.add(token.text)
        for _, token in found:
            if token.text in declared:
                self.edits.append((token.start, token.end, f"cuemu_host_{token.text}"))


def _join(words: list[str]) -> str:
    """Token texts as one line; a space only where two words would grow together."""
    out = ""
    for word in words:
        if re.search(r"\w$", out) and re.match(r"\w", word):
            out += " "
        out += word
    return out


def _parameter(part: list[Token], fallback: str) -> tuple[str, int | None]:
    """(name, where to insert it when it has none) of a parameter; the name of a pack ends in `...`."""
    depth = 0
    for i, token in enumerate(part):
        text = token.text if token.kind == "punct" else ""
        if text in ("(", "[", "{") or (text == "<" and i and part[i - 1].kind == "word"):
            depth += 1
        elif text in (")", "]", "}"):
            depth -= 1
        elif text in (">", ">>>") and depth:
            depth -= len(text)
        elif text == "=" and depth == 0:
            part = part[:i]
            break
    pack = "..." if any(t.text == "..." for t in part) else ""
    for i in range(len(part) - 3):  # pointers and references to functions and arrays: `T (&name)[N]`
        inner = [t.text for t in part[i : i + 4]]
        if inner[0] == "(" and inner[1] in ("*", "&") and part[i + 2].kind == "word" and inner[3] in (")", "["):
            return inner[2] + pack, None
    last = len(part)
    while last and part[last - 1].text == "]":
        while last and part[last - 1].text != "[":
            last -= 1
        last -= 1
    named = last > 1 and part[last - 1].kind == "word" and part[last - 1].text not in _TYPE_WORDS
    if named and part[last - 2].text in ("::", "struct", "class", "enum", "union", "typename"):
        named = False
    if named and all(t.text in ("const", "volatile", "__grid_constant__") for t in part[: last - 1]):
        named = False
    if named:
        return part[last - 1].text + pack, None
    return fallback + pack, part[last - 1].end
