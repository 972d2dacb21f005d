"""What the translator writes, and that every line stays where it was."""

from __future__ import annotations

import pytest

from cuda_agent.device.emulator.translate import translate, translate_lenient
from cuda_agent.errors import Unsupported


def lines_stay(text: str) -> str:
    out = translate(text)
    assert out.count("\n") == text.count("\n")
    return out


@pytest.mark.parametrize(
    ("cuda", "cpp"),
    [
        ("k<<<g, b>>>(x, n);", "CUEMU_LAUNCH((k), (g, b), x, n);"),
        ("k<<<g, b>>>();", "CUEMU_LAUNCH((k), (g, b));"),
        ("k <<< g, b, 0, s >>> (x);", "CUEMU_LAUNCH((k), ( g, b, 0, s ), x);"),
        ("k<T, 4><<<g, b>>>(x);", "CUEMU_LAUNCH((k<T, 4>), (g, b), x);"),
        ("k<A<B<int>>><<<g, b>>>(x);", "CUEMU_LAUNCH((k<A<B<int>>>), (g, b), x);"),
        ("ns::k<(N > 2)><<<dim3(1, 2), b>>>(x);", "CUEMU_LAUNCH((ns::k<(N > 2)>), (dim3(1, 2), b), x);"),
        ("::ns::k<<<g, b>>>(x);", "CUEMU_LAUNCH((::ns::k), (g, b), x);"),
        ("if (y) k<<<g, b>>>(x); else j<<<g, b>>>(x);", None),
        ("kernels[i]<<<g, b>>>(x);", "CUEMU_LAUNCH((kernels[i]), (g, b), x);"),
        ("(*f)<<<g, b>>>(x);", "CUEMU_LAUNCH(((*f)), (g, b), x);"),
        ("self->k<<<g, b>>>(x);", "CUEMU_LAUNCH((self->k), (g, b), x);"),
        ("return k<<<g, b>>>(x);", "return CUEMU_LAUNCH((k), (g, b), x);"),
        ('puts("k<<<1, 1>>>(x)"); // k<<<1, 1>>>(x)', 'puts("k<<<1, 1>>>(x)"); // k<<<1, 1>>>(x)'),
        ("#define GO(f, ...) f<<<1, 1>>>(__VA_ARGS__)", "#define GO(f, ...) CUEMU_LAUNCH((f), (1, 1), __VA_ARGS__)"),
        ("#define GO(T) k_##T<T><<<1, 1>>>(x)", "#define GO(T) CUEMU_LAUNCH((k_##T<T>), (1, 1), x)"),
    ],
)
def test_launches(cuda: str, cpp: str | None) -> None:
    out = lines_stay(f"void f() {{\n{cuda}\n}}" if not cuda.startswith("#") else cuda + "\n")
    assert "<<<" not in out.replace('"k<<<1, 1>>>(x)"', "").replace("// k<<<1, 1>>>(x)", "")
    if cpp is not None:
        assert cpp in out


def test_launch_over_several_lines() -> None:
    out = lines_stay("void f() {\n  k<float>\n    <<<grid,\n       block>>>\n    (x,\n     n);\n}\n")
    assert " ".join(out.split()) == "void f() { CUEMU_LAUNCH((k<float>), ( grid, block) , x, n); }"


@pytest.mark.parametrize(
    ("head", "names"),
    [
        ("__global__ void k(const float *__restrict__ x, int n)", "x, n"),
        ("template <typename T, int N = 3> __global__ void __launch_bounds__(256, 2) k(T *x)", "x"),
        ('extern "C" __global__ void k(void)', ""),
        ("static __global__ void k(float (&a)[4], void (*f)(int), int b[3])", "a, f, b"),
        ("template <class... A> __global__ void k(int n, A... rest)", "n, rest..."),
        ("__global__ void k(std::pair<int, float> p, int n = g(1, 2))", "p, n"),
        ("template <> __global__ void k<float>(const float *x)", "x"),
        ("__global__ void LIMITS(256) k(int n)", "n"),
        ("__global__ void k(const __grid_constant__ Params p)", "p"),
    ],
)
def test_kernels_name_their_parameters(head: str, names: str) -> None:
    assert f"{{ CUEMU_KERNEL({names});" in lines_stay(f"{head} {{\n  body();\n}}\n")


def test_parameters_without_a_name_get_one() -> None:
    out = lines_stay("__global__ void k(int, const float *, unsigned long, ns::T) {}")
    assert (
        "k(int cuemu_unnamed_0, const float * cuemu_unnamed_1, unsigned long cuemu_unnamed_2, ns::T cuemu_unnamed_3)"
        in out
    )
    assert "CUEMU_KERNEL(cuemu_unnamed_0, cuemu_unnamed_1, cuemu_unnamed_2, cuemu_unnamed_3);" in out


def test_declarations_and_device_functions_stay() -> None:
    text = "__global__ void k(int n);\n__device__ float f(float x) { return x; }\n"
    assert lines_stay(text) == text


def test_kernels_in_macros_and_behind_a_qualifier_macro() -> None:
    out = lines_stay(
        "#define KERNEL __global__ void\n"
        "#define MAKE(T) \\\n  __global__ void k_##T(T *x) { \\\n  }\n"
        "KERNEL j(int n) {}\n"
    )
    assert "(T *x) { CUEMU_KERNEL(x); \\" in out
    assert "j(int n) { CUEMU_KERNEL(n);}" in out


def test_noinline_is_no_macro() -> None:
    """GCC 13's libstdc++ writes it as an attribute in headers that come later."""
    out = lines_stay(
        "#define SLOW __noinline__\n__device__ __noinline__ int f();\n__attribute__((__noinline__)) int g();\n"
    )
    assert out.count("__attribute__((noinline))") == 2
    assert "__attribute__((__noinline__)) int g" in out


def test_parameters_from_a_macro() -> None:
    assert "CUEMU_KERNEL(x, n);" in lines_stay("#define ARGS float *x, int n\n__global__ void k(ARGS) {}\n")


@pytest.mark.parametrize(
    ("cuda", "cpp"),
    [
        ("__shared__ float a[32][33];", "CUEMU_SHARED(a, float[32][33]);"),
        ("__shared__ unsigned int a[N * 2], b;", "CUEMU_SHARED(a, unsigned int[N*2]); CUEMU_SHARED(b, unsigned int);"),
        ("volatile __shared__ int a;", "CUEMU_SHARED(a, volatile int);"),
        ("static __shared__ int a;", "CUEMU_SHARED(a, int);"),
        ("__shared__ typename R<T, 4>::Storage s;", "CUEMU_SHARED(s, typename R < T , 4 > :: Storage);"),
        ("__shared__ alignas(16) char raw[64];", "CUEMU_SHARED(raw, char[64]);"),
        ("__shared__ float *p[4];", "CUEMU_SHARED(p, float *[4]);"),
        ("extern __shared__ float s[];", "CUEMU_DYNAMIC_SHARED(s, float);"),
        ("extern __shared__ __align__(16) unsigned char s[];", "CUEMU_DYNAMIC_SHARED(s, unsigned char);"),
        ("extern __shared__ float s[][8];", "CUEMU_DYNAMIC_SHARED(s, float[8]);"),
    ],
)
def test_shared_memory(cuda: str, cpp: str) -> None:
    assert cpp in lines_stay(f"__global__ void k() {{\n  {cuda}\n}}\n")


def test_shared_memory_outside_a_function() -> None:
    assert "CUEMU_DYNAMIC_SHARED_OUTSIDE(s, int);" in lines_stay("extern __shared__ int s[];\n__global__ void k() {}\n")


def test_globals_are_registered() -> None:
    out = lines_stay(
        "__constant__ float c[9] = {1, 2};\nnamespace n { static __device__ int a, b; }\n"
        "extern __device__ int e;\ntemplate <class T> __device__ T v;\nstruct S { __device__ int f(); };\n"
        "__device__ int f(int x);\n__device__ __constant__ int both;\n"
    )
    assert "{1, 2}; CUEMU_GLOBAL(c);" in out
    assert "a, b; CUEMU_GLOBAL(a); CUEMU_GLOBAL(b);" in out
    assert "both; CUEMU_GLOBAL(both);" in out
    assert out.count("CUEMU_GLOBAL") == 4


def test_architecture_is_defined_in_device_code_only() -> None:
    out = lines_stay(
        "__device__ void d() {\n#if __CUDA_ARCH__ >= 700\n#endif\n}\n"
        "__host__ __device__ void hd() {\n#ifdef __CUDA_ARCH__\n#endif\n}\n"
    )
    assert "#if CUEMU_CUDA_ARCH >= 700" in out
    assert "#ifdef __CUDA_ARCH__" in out


def test_inline_ptx_is_named_in_device_code_and_left_in_host_code() -> None:
    out = lines_stay(
        '__device__ void d() {\n  asm volatile("mov.u32 %0,\\n"\n "%laneid;" : "=r"(x));\n}\nvoid h() { asm("nop"); }\n'
    )
    assert 'CUEMU_UNSUPPORTED("inline PTX")' in out
    assert 'asm("nop")' in out


def test_host_variables_named_like_builtins_are_renamed() -> None:
    out = lines_stay(
        "__global__ void k() { int i = blockDim.x; }\n"
        "int main() { dim3 gridDim(4), blockDim(8);\nk<<<gridDim, blockDim>>>(); }\n"
    )
    assert "int i = blockDim.x" in out
    assert "dim3 cuemu_host_gridDim(4), cuemu_host_blockDim(8)" in out
    assert "(cuemu_host_gridDim, cuemu_host_blockDim)" in out


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("texture<float> t;", "texture references"),
        ("__global__ void k(cudaTextureObject_t t) {}", "texture objects"),
        ("#include <thrust/sort.h>\n", "<thrust/sort.h>"),
        ("void f() { cudaGraph_t g; }", "CUDA graphs"),
    ],
)
def test_what_cannot_be_run_is_named(text: str, what: str) -> None:
    with pytest.raises(Unsupported, match=f"f.cu:1: the emulator cannot run {what}"):
        translate(text, "f.cu")
    assert translate_lenient(text, "f.cu")[1]


@pytest.mark.parametrize(
    "text",
    ["", "k<<<", "__global__ void k(", "__shared__", "#define A(", 'R"(', "/*", "'", "k<<<a>>>", ">>>", "}}}", "#"],
)
def test_broken_text_comes_back(text: str) -> None:
    assert translate_lenient(text, "f.cu")[0].count("\n") == text.count("\n")


def test_launch_without_arguments_is_refused() -> None:
    with pytest.raises(Unsupported, match="launch whose arguments do not follow"):
        translate("#define GO(k) k<<<1, 1>>>\n")


def test_branches_that_open_the_same_brace() -> None:
    out = lines_stay(
        "#if A\nvoid f() {\n#else\nvoid f(int x) {\n#endif\n  k<<<1, 1>>>(x);\n}\n__global__ void k(int n) {}\n"
    )
    assert "CUEMU_LAUNCH((k), (1, 1), x);" in out
    assert "{ CUEMU_KERNEL(n);}" in out
