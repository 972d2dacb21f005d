"""Template arguments have one spelling: whatever a person writes is what the compiler's names say."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.source.spelling import argument, arguments
from cuda_agent.toolchain import names

# One spelling of each type and all the others: words in any order, names for it.
BUILTIN = {
    "char": ["char"],
    "signed char": ["signed char"],
    "unsigned char": ["unsigned char"],
    "short": ["short", "short int", "signed short", "short signed int"],
    "unsigned short": ["unsigned short", "unsigned short int"],
    "int": ["int", "signed", "signed int"],
    "unsigned int": ["unsigned", "unsigned int"],
    "long": ["long", "long int", "signed long", "signed long int"],
    "unsigned long": ["unsigned long", "unsigned long int"],
    "long long": ["long long", "long long int", "signed long long"],
    "unsigned long long": ["unsigned long long", "unsigned long long int"],
    "double": ["double"],
    "long double": ["long double"],
}
NAMED = {
    "signed char": ["int8_t"],
    "unsigned char": ["uint8_t", "std::uint8_t", "uchar"],
    "unsigned short": ["uint16_t", "ushort"],
    "int": ["int32_t", "std::int32_t"],
    "unsigned int": ["uint32_t", "uint"],
    "long": ["int64_t", "ptrdiff_t"],
    "unsigned long": ["uint64_t", "size_t", "std::size_t", "ulong"],
    "float": ["float"],
    "__half": ["half", "__half"],
    "__half2": ["half2"],
    "__nv_bfloat16": ["nv_bfloat16", "__nv_bfloat16"],
    "ns::T": ["ns::T", "::ns::T", "ns :: T", "struct ns::T"],
}
SPELLINGS = {
    one: [
        *(" ".join(words) for text in BUILTIN.get(one, ()) for words in permutations(text.split())),
        *NAMED.get(one, ()),
    ]
    for one in BUILTIN | NAMED
}
DECLARED = """
#include <cstdint>
#include <cstddef>
#include <sys/types.h>
typedef unsigned char uchar;
struct __half {}; struct __half2 {}; struct __nv_bfloat16 {};
typedef __half half; typedef __half2 half2; typedef __nv_bfloat16 nv_bfloat16;
namespace ns { struct T {}; template <class A, class B> struct P {}; template <unsigned N> struct V {}; }
"""

Pair = tuple[str, str]  # the one spelling, another


@st.composite
def spelled(draw: st.DrawFn, depth: int = 2) -> Pair:
    """A type: qualified on either side, a pointer or reference, in the arguments of another."""
    if depth and draw(st.booleans()):
        (one, other), (one2, other2) = draw(spelled(depth - 1)), draw(spelled(depth - 1))
        base, text = f"ns::P<{one},{one2}>", f"ns::P<{other},{draw(blanks)}{other2} >"
    else:
        base = draw(st.sampled_from(sorted(SPELLINGS)))
        text = draw(st.sampled_from(SPELLINGS[base]))
    if draw(st.booleans()):
        base, text = f"{base} const", f"const {text}" if draw(st.booleans()) else f"{text} const"
    for mark in draw(st.lists(st.sampled_from(["*", "*const"]), max_size=2)):
        base, text = base + mark, f"{text}{draw(blanks)}{mark}"
    return base, f"{draw(blanks)}{text}{draw(blanks)}"


blanks = st.sampled_from(["", " ", "\n  "])


@given(st.lists(spelled(), min_size=1, max_size=3))
def test_one_spelling(pairs: list[Pair]) -> None:
    """Of the same type the same, so of another type another; and it is its own."""
    one = tuple(first for first, _ in pairs)
    assert arguments(",".join(text for _, text in pairs)) == one
    assert arguments(", ".join(one)) == one


@given(st.text(alphabet="<>(),:*&' 'intunsgedlohaf0123xuUL'-+", max_size=20))
def test_any_text_has_one(text: str) -> None:
    """Half-typed text, too: no exception, and at most the blank inside `unsigned int` is left."""
    assert argument(text) == argument(f" {text}\n") == argument(text).strip()


@pytest.mark.skipif(shutil.which("g++") is None, reason="asks g++ for its names")
def test_the_compilers_names_are_the_same() -> None:
    types = [
        *(text for texts in SPELLINGS.values() for text in texts),
        *("const float *", "float const*", "float *const *", "unsigned const &", "ns::P<half, const unsigned*>"),
        *("ns::V<3>", "ns::V<0x1fu>", "int (*)(unsigned)", "long long unsigned int"),
    ]
    values = [("int", "-3"), ("int", "0x10"), ("unsigned", "4"), ("unsigned", "4u"), ("bool", "true"), ("bool", "0")]
    values += [("size_t", "12UL"), ("char", "'a'"), ("unsigned char", "7"), ("short", "010"), ("long long", "5ll")]
    text = DECLARED
    for i, type_ in enumerate(types):
        text += f"template <class T> void k{i}() {{}}\ntemplate void k{i}<{type_}>();\n"
    for i, (type_, value) in enumerate(values, len(types)):
        text += f"template <{type_} N> void k{i}() {{}}\ntemplate void k{i}<{value}>();\n"
    asked = ["g++", "-std=c++17", "-x", "c++", "-S", "-o", "-", "-"]
    made = subprocess.run(asked, input=text, capture_output=True, text=True, check=True).stdout
    found = {}
    for mangled in re.findall(r"^(_Z\w+):", made, re.MULTILINE):
        name = names.split(names.demangle(mangled))[0]
        found[names.without_template(name)] = name.partition("<")[2][:-1]
    for i, spelling in enumerate([*types, *(value for _, value in values)]):
        assert argument(spelling) == argument(found[f"k{i}"]), (spelling, found[f"k{i}"])


def test_other_types_are_others() -> None:
    assert len({argument(one) for one in SPELLINGS}) == len(SPELLINGS)
    assert argument("const float*") != argument("float *const")
