"""Which definitions are kernels, what they are called and where they are."""

from __future__ import annotations

import pytest

from cuda_agent.errors import SourceError
from cuda_agent.model import Kernel
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import Module, module


def parse(text: str) -> Module:
    return module(Document("k.cu", text))


def only(text: str) -> tuple[Module, Kernel]:
    found = parse(text)
    assert len(found.kernels) == 1, [kernel.name for kernel in found.kernels]
    return found, found.kernels[0]


HEADS = [
    "__global__ void k(int n)",
    "static __global__ void k(int n)",
    "__global__ static void k(int n)",
    "inline __global__ void k(int n)",
    "void __global__ k(int n)",
    "__global__ __forceinline__ void k(int n)",
    "__global__ __inline__ void k(int n)",
    "__global__ void __launch_bounds__(256) k(int n)",
    "__global__ __launch_bounds__(256) void k(int n)",
    "__launch_bounds__(256) __global__ void k(int n)",
    "__global__ void __launch_bounds__(256, MIN_BLOCKS) k(int n)",
    "__global__ void __launch_bounds__(WARPS * 32, 2) k(int n)",
    "__global__ void __cluster_dims__(2, 1, 1) k(int n)",
    "__global__ void __maxnreg__(64) k(int n)",
    "__global__ __attribute__((used)) void k(int n)",
    "__attribute__((used)) __global__ void k(int n)",
    "[[maybe_unused]] __global__ void k(int n)",
    "MY_EXPORT __global__ void k(int n)",
    "MY_EXPORT\n__global__ void k(int n)",
    "EXPORT(api) __global__ void k(int n)",
    "__global__ MY_BOUNDS void k(int n)",
    "__global__ void MY_BOUNDS k(int n)",
    "__global__ MY_BOUNDS(256) void k(int n)",
    "__global__ void MY_BOUNDS(256, 2) k(int n)",
    "__global__ void k(int n) MY_BOUNDS(256)",
    "__global__ /* why */ void // because {\n k(int n)",
    "__global__\nvoid\nk\n(\nint n\n)\n",
    'extern "C" __global__ void k(int n)',
    'extern "C" MY_EXPORT __global__ void k(int n)',
    "template <typename T> __global__ void k(int n)",
    "template <typename T, int N = (3 > 2), class U = std::pair<T, int>> __global__ void k(int n)",
    "template <typename T, typename U = decltype(T{})>\n__global__ void k(int n)",
    "template <typename T>\nMY_EXPORT __global__ void MY_BOUNDS(128) k(int n)",
]


@pytest.mark.parametrize("head", HEADS)
def test_head(head: str) -> None:
    before, after = "int before() { return 1; }\n", "\nint main() { k<<<1, 2>>>(3); }\n"
    found, kernel = only(f"{before}{head} {{ if (n > 3) return; }}{after}")
    assert (kernel.name, kernel.qualified_name) == ("k", "k")
    assert not kernel.has_error
    assert [(param.type, param.name) for param in kernel.params] == [("int", "n")]
    assert found.text(kernel.name_span) == "k"
    assert found.text(kernel.params_span).strip() == "int n"
    assert found.text(kernel.body) == "{ if (n > 3) return; }"
    text = found.text(kernel.span)
    assert text.endswith(found.text(kernel.body))
    assert text.startswith(head.removeprefix("MY_EXPORT\n").split()[0])
    assert [guard.condition for guard in kernel.guards] == ["n > 3"]
    assert len(found.launches_of(kernel)) == 1


@pytest.mark.parametrize(
    ("head", "bounds"),
    [
        ("__global__ void __launch_bounds__(256) k()", ("256",)),
        ("__launch_bounds__(W * 32, 2) __global__ void k()", ("W * 32", "2")),
        ("__global__ void __launch_bounds__(F<1, 2>::value) k()", ("F<1, 2>::value",)),
        ("__global__ void k()", None),
        ("__global__ void BOUNDS(256) k()", None),
    ],
)
def test_launch_bounds(head: str, bounds: tuple[str, ...] | None) -> None:
    assert only(head + "{}")[1].launch_bounds == bounds


@pytest.mark.parametrize(
    "text",
    [
        "__global__ void k(int n);",
        'extern "C" __global__ void k(int n);',
        "template <class T> __global__ void k(T n);",
        "template __global__ void k<int>(int n);",
        "extern template __global__ void k<int>(int);",
        "// __global__ void k() {}\n",
        "/* __global__ void k() {} */",
        'const char* s = "__global__ void k() {}";',
        'const char* s = R"cu(\n__global__ void k() { "}" }\n)cu";',
        "#define KERNEL __global__ void k() {}\n",
        "#define KERNEL \\\n  __global__ void k() {}\n",
        "#if 0\n__global__ void k() {}\n#endif\n",
        "void k() {}",
        "__device__ void k() {}",
        "__global__",
        "__global__ void",
        "__global__ void k",
        "__global__ void k(",
        "__global__ void k(int n",
        "__global__ void k(int n)",
    ],
)
def test_not_a_definition(text: str) -> None:
    assert parse(text).kernels == ()
    assert [
        kernel.name for kernel in parse(text + "\n__global__ void after() {}").kernels if kernel.name == "after"
    ] or (text.startswith("__global__"))


def test_the_live_branch_of_if_0_counts() -> None:
    found = parse("#if 0\n__global__ void a() {}\n#if 1\n#endif\n#else\n__global__ void b() {}\n#endif\n")
    assert [kernel.name for kernel in found.kernels] == ["b"]


def test_names_carry_their_scopes() -> None:
    found = parse(
        "namespace a::b { namespace { template <class T> __global__ void k(T x) {} }\n"
        "  inline namespace v2 { __global__ void m() {} }\n"
        "  struct S { template <int N> static __global__ void n() {} }; }\n"
        'extern "C" { __global__ void c() {} }\n'
        "__global__ void a::b::d() {}\n"
        "template <> __global__ void a::b::k<int>(int x) {}\n"
    )
    assert [(kernel.name, kernel.qualified_name, kernel.extern_c) for kernel in found.kernels] == [
        ("k", "a::b::k", False),
        ("m", "a::b::v2::m", False),
        ("n", "a::b::S::n", False),
        ("c", "c", True),
        ("d", "a::b::d", False),
        ("k", "a::b::k<int>", False),
    ]
    assert not any(kernel.has_error for kernel in found.kernels)
    assert found.kernels[0].template_params == ("class T",)
    assert found.kernels[5].template_params == ()


def test_template_parameters_as_spelled() -> None:
    _, kernel = only("template <typename T, int N = 4, template <class> class V, class... Args> __global__ void k() {}")
    assert kernel.template_params == ("typename T", "int N = 4", "template <class> class V", "class... Args")


def test_own_macro_for_global() -> None:
    found, kernel = only(
        '#define KERNEL extern "C" __global__\n#define BLOCK 128\nKERNEL void k(int* p) { p[BLOCK] = 1; }'
    )
    assert (kernel.name, kernel.has_error) == ("k", False)
    assert found.text(kernel.span).startswith("KERNEL void")


def test_name_made_by_a_macro() -> None:
    _, kernel = only("__global__ void NAME(k, float)(float* x) { x[0] = 1; }")
    assert kernel.name == "NAME(k, float)"
    assert [param.name for param in kernel.params] == ["x"]


def test_conditionals_that_split_a_header() -> None:
    found, kernel = only("__global__ void k(int n\n#ifdef WIDE\n, float* w\n#endif\n, int* p) { p[n] = 1; }")
    assert [param.name for param in kernel.params] == ["n", "w", "p"]
    assert found.text(kernel.body) == "{ p[n] = 1; }"


def test_conditionals_that_split_an_expression_are_read_and_flagged() -> None:
    text = (
        "__global__ void k(int* p, int n) {\n  for (int i = 0; i < n\n#ifdef A\n    + 1; i++) {\n"
        "#else\n    + 2; i++) {\n#endif\n    p[i] = 1;\n  }\n}\n"
    )
    found = parse(text + "__global__ void next() {}")
    first, second = found.kernels
    assert first.has_error  # no rule may rewrite what has a branch it has not seen
    assert [loop.variable for loop in first.loops] == ["i"]
    assert found.text(first.span) == text.rstrip()
    assert found.node(first.loops[0].span).type == "for_statement"
    assert (second.name, second.has_error) == ("next", False)


def test_errors_stay_where_they_are() -> None:
    found = parse(
        "__global__ void good() { int x = 1; }\n__global__ void bad() { int x = = ; }\n__global__ void fine() {}"
    )
    assert [(kernel.name, kernel.has_error) for kernel in found.kernels] == [
        ("good", False),
        ("bad", True),
        ("fine", False),
    ]


def test_kernel_after_broken_code_is_whole() -> None:
    _, kernel = only("void host() { if (x) { foo(; \n\n__global__ void k(int n) { for (int i = 0; i < n; i++) {} }\n")
    assert (kernel.name, kernel.has_error, len(kernel.loops)) == ("k", False, 1)


def test_half_typed_body_ends_before_the_next_kernel() -> None:
    found = parse("__global__ void a(int n) { for (int i = 0; i < n; i++) { \n\n__global__ void b(int n) { }\n")
    a, b = found.kernels
    assert (a.name, a.has_error, b.name) == ("a", True, "b")
    assert b.span.start > a.body.start


def test_lookup() -> None:
    found = parse(
        "namespace a { __global__ void k() {} }\nnamespace b { __global__ void k() {}\n__global__ void m(int x) {} }\n"
        "__global__ void o(int x) {}\n__global__ void o(float x) {}\n"
    )
    assert found.kernel("a::k").qualified_name == "a::k"
    assert found.kernel("::b::m").name == "m"
    assert found.kernel("m").qualified_name == "b::m"
    assert found.kernel("o@5").params[0].type == "float"
    with pytest.raises(SourceError, match=r"2 kernels named k; say which one: a::k@1, b::k@2"):
        found.kernel("k")
    with pytest.raises(SourceError, match=r"no kernel named x; it has a::k, b::k, b::m, o"):
        found.kernel("x")
    with pytest.raises(SourceError, match="no __global__ function"):
        parse("int x;").kernel("k")


def test_kernel_at_and_hash() -> None:
    text = "int x;\n__global__ void k() { }\n"
    found, kernel = only(text)
    assert found.kernel_at(text.index("void")) == kernel
    assert found.kernel_at(2) is None
    moved, same = only("int xyz;\n" + text)
    assert moved.kernel_hash(same) == found.kernel_hash(kernel)
    other, changed = only(text.replace("{ }", "{}"))
    assert other.kernel_hash(changed) != found.kernel_hash(kernel)


def test_offsets_are_bytes() -> None:
    found, kernel = only("// größe 😀\n__global__ void k(float* größe) { größe[0] = 1; } // ü")
    assert found.text(kernel.body) == "{ größe[0] = 1; }"
    assert kernel.params[0].name == "größe"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int main() { }", True),
        ("int main(int argc, char** argv)\n{ }", True),
        ("auto main() -> int { }", True),
        ("int main();", False),
        ("// int main() {}", False),
        ("int domain() { }", False),
        ("int main(int argc, char** argv) try { } catch (...) { }", True),
    ],
)
def test_has_main(text: str, expected: bool) -> None:
    assert parse(text).has_main is expected


@pytest.mark.parametrize(
    "text",
    ["", "\0", "\ufeff__global__ void k() {}", "__global__ void k() {\0}", "\r\r\n", "{{{", "}}}", "<<<", ">>>(", "#"],
)
def test_odd_texts(text: str) -> None:
    found = parse(text)
    assert len(found.kernels) == text.count("__global__")
    assert found.launches == ()


def test_crlf_and_cr_files() -> None:
    for eol in ("\r\n", "\r"):
        text = "#define A 1\n// c\n__global__ void k(int n) {\n  // note\n  if (n < 3) return;\n}\n".replace("\n", eol)
        found, kernel = only(text)
        assert not kernel.has_error
        assert [guard.condition for guard in kernel.guards] == ["n < 3"]
        assert found.line(kernel.name_span.start) == 3
