"""C++ names of kernels: demangling, and finding the kernel that a captured launch means.

A rewrite may change a parameter list (`const` added) and another compiler may spell `int64_t` differently, so a
candidate's kernel is looked up by its qualified name and template arguments, not by its mangled name.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Any

from cuda_agent.errors import ToolMissing

_RUNTIMES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.1.dylib")
# nvcc names what has internal linkage after the file and its path; these differ from build to build.
_INTERNAL = re.compile(
    r"_INTERNAL_[0-9a-f]{8}_\d+_\w+?_[0-9a-f]{8}(?:_\d+)?::|_GLOBAL__N__\w*::|\(anonymous namespace\)::"
)
_OPEN, _CLOSE = "(<[{", ")>]}"


@lru_cache(1)
def _runtime() -> tuple[Any, Any]:
    for name in _RUNTIMES:
        try:
            library = ctypes.CDLL(name)
            demangler = library.__cxa_demangle
        except (OSError, AttributeError):
            continue
        demangler.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        demangler.restype = ctypes.c_void_p
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        return demangler, free
    raise ToolMissing("No C++ runtime library with a demangler was found: install libstdc++6 (or libc++abi1).")


@lru_cache(4096)
def demangle(mangled: str) -> str:
    """`_Z1kPf` → `k(float*)`; a name that is not mangled (extern "C") is returned as it is. Raises ToolMissing."""
    if not mangled.startswith("_Z"):
        return mangled
    demangler, free = _runtime()
    status = ctypes.c_int()
    address = demangler(mangled.encode(), None, None, ctypes.byref(status))
    if not address:
        return mangled
    try:
        return (ctypes.cast(address, ctypes.c_char_p).value or b"").decode()
    finally:
        free(address)


def top_level(text: str, wanted: str) -> list[int]:
    """Positions of the characters in `wanted` that stand outside every bracket."""
    found, depth = [], 0
    for i, char in enumerate(text):
        if char in wanted and depth == 0:
            found.append(i)
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE and not (char == ">" and text[i - 1 : i] == "-"):  # `->` closes nothing
            depth -= 1
    return found


def split(demangled: str) -> tuple[str, str]:
    """(qualified name with template arguments, parameter list); the return type of a template is dropped."""
    text = demangled
    if text.endswith("]") and (clone := text.rfind(" [clone")) > 0:
        text = text[:clone]
    params = ""
    if text.endswith(")"):
        depth = 0
        for i in range(len(text) - 1, -1, -1):
            depth += (text[i] == ")") - (text[i] == "(")
            if depth == 0:
                text, params = text[:i], text[i + 1 : -1]
                break
    spaces = top_level(text, " ")
    if spaces:
        text = text[spaces[-1] + 1 :]
    return text, params


def without_template(name: str) -> str:
    """`ns::k<int>` → `ns::k`."""
    if not name.endswith(">"):
        return name
    depth = 0
    for i in range(len(name) - 1, -1, -1):
        depth += (name[i] == ">") - (name[i] == "<")
        if depth == 0:
            return name[:i]
    return name


def kernel_name(mangled: str) -> str:
    """Qualified name without template arguments and parameters: `ns::k`. Internal-linkage parts are dropped."""
    return without_template(_INTERNAL.sub("", split(demangle(mangled))[0]))


def param_types(mangled: str) -> tuple[str, ...]:
    """The instantiation's parameter types as the demangler spells them: `("float const*", "int")`.

    An `extern "C"` name carries no types and gives an empty tuple.
    """
    params = split(demangle(mangled))[1].strip()
    if not params or params == "void":
        return ()
    cuts = [-1, *top_level(params, ","), len(params)]
    return tuple(params[a + 1 : b].strip() for a, b in pairwise(cuts))


def element_type(param: str) -> str:
    """The type at the end of pointers and references, without cv: `float const*` → `float`."""
    text = param.strip()
    while (bare := re.sub(r"(\s|[*&]|\b(const|volatile|restrict|__restrict__|__restrict)\b)+$", "", text)) != text:
        text = bare
    return re.sub(r"^((const|volatile)\s+)+", "", text)


def _loose(text: str) -> str:
    """Spelling that survives a rewrite or another compiler: no cv, no internal-linkage names, one `long`."""
    text = _INTERNAL.sub("", text)
    text = re.sub(r"\b(const|volatile|restrict|__restrict__|__restrict)\b", "", text)
    text = text.replace("long long", "long")
    # nvcc writes a template argument of enum or unsigned type as `4u` or `(E)4`; spaces do not matter.
    return re.sub(r"\s+", "", text)


def match(kernels: Iterable[str], launch_mangled: str) -> str | None:
    """The one of `kernels` (mangled) that the launch means: same name and template arguments.

    The parameter list may differ. Several overloads of that name are told apart by their parameter types without
    const; None when there is no such kernel, or more than one and the types do not decide.
    """
    names = list(kernels)
    if launch_mangled in names:
        return launch_mangled
    wanted, params = split(demangle(launch_mangled))
    same = [name for name in names if _loose(split(demangle(name))[0]) == _loose(wanted)]
    if len(same) > 1:
        exact = [name for name in same if _loose(split(demangle(name))[1]) == _loose(params)]
        same = exact
    return same[0] if len(same) == 1 else None


def expression(mangled: str) -> str:
    """The name as C++ would write it at the end of the file: `tk<float, 64>`, without parts that have no spelling."""
    return _INTERNAL.sub("", split(demangle(mangled))[0])
