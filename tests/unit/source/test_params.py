from __future__ import annotations

import pytest

from cuda_agent.model import Param
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module

# spelled: (name, type, element, pointer, const, restrict)
CASES = {
    "int n": ("n", "int", "int", 0, False, False),
    "const int n": ("n", "const int", "int", 0, True, False),
    "int const n": ("n", "int const", "int", 0, True, False),
    "unsigned long long int n": ("n", "unsigned long long int", "unsigned long long int", 0, False, False),
    "float *x": ("x", "float *", "float", 1, False, False),
    "float* x": ("x", "float*", "float", 1, False, False),
    "float * x": ("x", "float *", "float", 1, False, False),
    "const float *x": ("x", "const float *", "float", 1, True, False),
    "float const *x": ("x", "float const *", "float", 1, True, False),
    "float *const x": ("x", "float *const", "float", 1, False, False),
    "const float *const x": ("x", "const float *const", "float", 1, True, False),
    "float *__restrict__ x": ("x", "float *__restrict__", "float", 1, False, True),
    "float * __restrict x": ("x", "float * __restrict", "float", 1, False, True),
    "const float *const __restrict__ x": ("x", "const float *const __restrict__", "float", 1, True, True),
    "const float * __restrict__ const x": ("x", "const float * __restrict__ const", "float", 1, True, True),
    "float *RESTRICT x": ("x", "float *RESTRICT", "float", 1, False, True),
    "volatile int *x": ("x", "volatile int *", "int", 1, False, False),
    "float **x": ("x", "float **", "float", 2, False, False),
    "const float **x": ("x", "const float **", "float", 2, False, False),
    "float *const *x": ("x", "float *const *", "float", 2, True, False),
    "const float *const *__restrict__ x": ("x", "const float *const *__restrict__", "float", 2, True, True),
    "float x[]": ("x", "float[]", "float", 1, False, False),
    "const float x[16]": ("x", "const float[16]", "float", 1, True, False),
    "float x[][N + 1]": ("x", "float[][N + 1]", "float[N + 1]", 1, False, False),
    "float (&x)[3]": ("x", "float(&)[3]", "float(&)[3]", 0, False, False),
    "float (*x)[3]": ("x", "float(*)[3]", "float(*)[3]", 0, False, False),
    "const T &x": ("x", "const T &", "T", 0, True, False),
    "T &&x": ("x", "T &&", "T", 0, False, False),
    "void (*f)(int, float)": ("f", "void(*)(int, float)", "void(*)(int, float)", 0, False, False),
    "struct Particle p": ("p", "struct Particle", "Particle", 0, False, False),
    "const struct Particle *p": ("p", "const struct Particle *", "Particle", 1, True, False),
    "typename Traits<T, 3>::type *x": ("x", "typename Traits<T, 3>::type *", "Traits<T, 3>::type", 1, False, False),
    "const std::pair<int, const float *> p": (
        "p",
        "const std::pair<int, const float *>",
        "std::pair<int, const float *>",
        0,
        True,
        False,
    ),
    "ns::S<(3 > 2)> s": ("s", "ns::S<(3 > 2)>", "ns::S<(3 > 2)>", 0, False, False),
    "Functor f": ("f", "Functor", "Functor", 0, False, False),
    "nvstd::function<float(float, int)> f": (
        "f",
        "nvstd::function<float(float, int)>",
        "nvstd::function<float(float, int)>",
        0,
        False,
        False,
    ),
    "int n = 3": ("n", "int", "int", 0, False, False),
    "S s = S{1, 2}": ("s", "S", "S", 0, False, False),
    "float *x = nullptr": ("x", "float *", "float", 1, False, False),
    "Args... args": ("args", "Args...", "Args...", 0, False, False),
    "const __grid_constant__ CUtensorMap map": (
        "map",
        "const __grid_constant__ CUtensorMap",
        "CUtensorMap",
        0,
        True,
        False,
    ),
    "int": ("", "int", "int", 0, False, False),
    "const float *": ("", "const float *", "float", 1, True, False),
    "float * /* out */ x": ("x", "float * x", "float", 1, False, False),
    "cudaTextureObject_t tex": ("tex", "cudaTextureObject_t", "cudaTextureObject_t", 0, False, False),
}


def parameters(text: str) -> tuple[Param, ...]:
    return module(Document("k.cu", f"template <class T> __global__ void k({text}) {{}}")).kernels[0].params


@pytest.mark.parametrize("spelled", CASES)
def test_parameter(spelled: str) -> None:
    for text, at in ((spelled, 0), (f"int a, {spelled}", 1), (f"{spelled}, float *z", 0)):
        found = parameters(text)
        param = found[at]
        name, type_, *rest = CASES[spelled]
        if "/*" in spelled:
            type_ = "float *"
        assert (param.name, param.type, param.element, param.pointer, param.const, param.restrict) == (
            name,
            type_,
            *rest,
        )
        assert len(found) == text.count("int a") + ("float *z" in text) + 1


def test_spans() -> None:
    text = "template <class T> __global__ void k(\n  const T* __restrict__ x , // in\n  int n = f(1, 2)\n) {}"
    found = module(Document("k.cu", text))
    assert [found.text(param.span) for param in found.kernels[0].params] == [
        "const T* __restrict__ x",
        "int n = f(1, 2)",
    ]
    assert [found.text(param.name_span) for param in found.kernels[0].params] == ["x", "n"]


@pytest.mark.parametrize("text", ["", "void", " ", "/* none */"])
def test_no_parameters(text: str) -> None:
    assert parameters(text) == ()


@pytest.mark.parametrize(
    "text", ["int,", ", int n", "int n,, float x", "(", "<", "T<", "int *", "int ...", "= 3", "[", "const"]
)
def test_half_typed_lists_give_what_they_can(text: str) -> None:
    document = Document("k.cu", f"__global__ void k({text}) {{}}")
    for kernel in module(document).kernels:
        for param in kernel.params:
            assert kernel.params_span.holds(param.span)
            assert param.span.holds(param.name_span)
