"""Demangling, and finding the kernel a launch means."""

from __future__ import annotations

import pytest

from cuda_agent.toolchain import names

TEMPLATE = "_Z2tkIfLi64EEvPKT_PS0_xl"  # void tk<float, 64>(float const*, float*, long long, long)

INTERNAL = "_ZN30_GLOBAL__N__9599761a_4_s_cu_ck2akEPf"


@pytest.mark.parametrize(
    ("mangled", "demangled", "kernel", "params"),
    [
        (
            "_Z8softMax2iiPKfPf",
            "softMax2(int, int, float const*, float*)",
            "softMax2",
            ("int", "int", "float const*", "float*"),
        ),
        (
            TEMPLATE,
            "void tk<float, 64>(float const*, float*, long long, long)",
            "tk",
            ("float const*", "float*", "long long", "long"),
        ),
        ("ck", "ck", "ck", ()),
        ("_ZN2ns1kEv", "ns::k()", "ns::k", ()),
        ("_ZN30_GLOBAL__N__9599761a_4_s_cu_ck2akEPf", "(anonymous namespace)::ak(float*)", "ak", ("float*",)),
        ("_Z1kPFviiE", "k(void (*)(int, int))", "k", ("void (*)(int, int)",)),
        (
            "_Z1kI1AIfLi2EEEvT_PS2_",
            "void k<A<float, 2> >(A<float, 2>, A<float, 2>*)",
            "k",
            ("A<float, 2>", "A<float, 2>*"),
        ),
        ("_ZN1a1b1kILb1EEEvPi", "void a::b::k<true>(int*)", "a::b::k", ("int*",)),
        ("_Z99cut", "_Z99cut", "_Z99cut", ()),
    ],
)
def test_parts(mangled: str, demangled: str, kernel: str, params: tuple[str, ...]) -> None:
    assert names.demangle(mangled) == demangled
    assert names.kernel_name(mangled) == kernel
    assert names.param_types(mangled) == params


@pytest.mark.parametrize(
    ("param", "element"),
    [
        ("float const*", "float"),
        ("float", "float"),
        ("unsigned long*", "unsigned long"),
        ("__half2 const* __restrict__", "__half2"),
        ("float**", "float"),
        ("A<int*> const&", "A<int*>"),
        ("float* const", "float"),
    ],
)
def test_element(param: str, element: str) -> None:
    assert names.element_type(param) == element


@pytest.mark.parametrize(
    ("kernels", "launch", "found"),
    [
        (["_Z1kPf", "_Z1kPfi"], "_Z1kPf", "_Z1kPf"),
        (["_Z1kPKfPf"], "_Z1kPfS_", "_Z1kPKfPf"),  # const added
        (["_Z1kPfi"], "_Z1kPf", "_Z1kPfi"),  # a parameter added
        (["_Z1kPKf", "_Z1kPKi"], "_Z1kPf", "_Z1kPKf"),  # overloads told apart by type
        (["_Z1kPKdi", "_Z1kPKii"], "_Z1kPf", None),  # ambiguous
        (["_Z2tkIfLi32EEvPKT_PS0_xl", "_Z2tkIfLi64EEvPT_PS0_xl"], TEMPLATE, "_Z2tkIfLi64EEvPT_PS0_xl"),
        (["_Z2tkIfLi32EEvPKT_PS0_xl"], TEMPLATE, None),  # other template arguments
        (["_Z1kIxEvPT_"], "_Z1kIlEvPT_", "_Z1kIxEvPT_"),  # int64_t of nvrtc and of nvcc
        (["_ZN2ns1kEPf"], "_Z1kPf", None),  # another namespace
        ([INTERNAL], "_ZN30_GLOBAL__N__00000000_4_t_cu_ck2akEPf", INTERNAL),  # the same file elsewhere
        ([], "_Z1kPf", None),
        (["ck"], "ck", "ck"),
    ],
)
def test_match(kernels: list[str], launch: str, found: str | None) -> None:
    assert names.match(kernels, launch) == found
