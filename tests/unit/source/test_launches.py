"""Launch sites, and which kernel they mean."""

from __future__ import annotations

import pytest

from cuda_agent.model import LaunchSite
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import Module, module


def parse(text: str) -> Module:
    return module(Document("k.cu", text))


def host(statement: str) -> tuple[Module, LaunchSite]:
    found = parse(f"void run(int n) {{\n  {statement}\n}}\n")
    assert len(found.launches) == 1
    return found, found.launches[0]


CASES = {
    "k<<<1, 2>>>();": ("k", (), "1", "2", None, None, ()),
    "k<<<grid, block, bytes, stream>>>(x, y + 1);": ("k", (), "grid", "block", "bytes", "stream", ("x", "y + 1")),
    "k <<< grid , block >>> ( x );": ("k", (), "grid", "block", None, None, ("x",)),
    "k<<<dim3(a, b), dim3(c, d, e)>>>(f(1, 2), {3, 4}, a[5, 6]);": (
        "k",
        (),
        "dim3(a, b)",
        "dim3(c, d, e)",
        None,
        None,
        ("f(1, 2)", "{3, 4}", "a[5, 6]"),
    ),
    "k<float><<<1, 2>>>(x);": ("k", ("float",), "1", "2", None, None, ("x",)),
    "k<float, 4, std::pair<int, T>, (3 > 2)><<<1, 2>>>(x);": (
        "k",
        ("float", "4", "std::pair<int, T>", "(3 > 2)"),
        "1",
        "2",
        None,
        None,
        ("x",),
    ),
    "k<A<B<int>>><<<1, 2>>>(x);": ("k", ("A<B<int>>",), "1", "2", None, None, ("x",)),
    "a::b::k<<<1, 2>>>(x);": ("a::b::k", (), "1", "2", None, None, ("x",)),
    "::k<<<1, 2>>>(x);": ("k", (), "1", "2", None, None, ("x",)),
    "S<T>::template k<U><<<1, 2>>>(x);": ("S<T>::k", ("U",), "1", "2", None, None, ("x",)),
    "this->k<<<1, 2>>>(x);": ("k", (), "1", "2", None, None, ("x",)),
    "object.k<<<1, 2>>>(x);": ("k", (), "1", "2", None, None, ("x",)),
    "k<<<n < 32 ? 1 : 2, max(n, 3), n > 3 ? 4 : 5>>>(n < 1, n > 2);": (
        "k",
        (),
        "n < 32 ? 1 : 2",
        "max(n, 3)",
        "n > 3 ? 4 : 5",
        None,
        ("n < 1", "n > 2"),
    ),
    "k<<<n >> 5, 1 << 5>>>(x);": ("k", (), "n >> 5", "1 << 5", None, None, ("x",)),
    "k<<<div_up<32>(n), block_of<int, 3>(n, 4)>>>(g<1, 2>(n));": (
        "k",
        (),
        "div_up<32>(n)",
        "block_of<int, 3>(n, 4)",
        None,
        None,
        ("g<1, 2>(n)",),
    ),
    "k<<<1, S<2>>>>(x);": ("k", (), "1", "S<2>", None, None, ("x",)),
    "if (n) k<<<1, 2>>>(x);": ("k", (), "1", "2", None, None, ("x",)),
    "for (;;) if (n) k<<<1, 2>>>(x); else g();": ("k", (), "1", "2", None, None, ("x",)),
    "auto f = [&](auto s) { k<<<1, 2, 0, s>>>(x); };": ("k", (), "1", "2", "0", "s", ("x",)),
    "CHECK((k<<<1, 2>>>(x), cudaGetLastError()));": ("k", (), "1", "2", None, None, ("x",)),
    "TIME(k<<<1, 2>>>(x));": ("k", (), "1", "2", None, None, ("x",)),
    "k /* the kernel */ <<<1, /* threads, */ 2>>>( // first\n    x);": ("k", (), "1", "2", None, None, ("x",)),
    "k<<<\n    grid,\n    block\n    >>>(\n    x,\n    y\n  );": ("k", (), "grid", "block", None, None, ("x", "y")),
    "(n ? a : b)<<<1, 2>>>(x);": ("(n ? a : b)", (), "1", "2", None, None, ("x",)),
    "table[n]<<<1, 2>>>(x);": ("table[n]", (), "1", "2", None, None, ("x",)),
    "return k<<<1, 2>>>(x);": ("k", (), "1", "2", None, None, ("x",)),
}


@pytest.mark.parametrize("statement", CASES)
def test_launch(statement: str) -> None:
    found, site = host(statement)
    assert (site.kernel, site.template_args, site.grid, site.block, site.shared, site.stream, site.args) == CASES[
        statement
    ]
    assert site.function == "run"
    text = found.text(site.span)
    assert text.endswith(")")
    assert text.startswith(site.kernel[:1] if not statement.startswith(("::", "this", "object")) else statement[:2])
    assert found.text(site.grid_span) == site.grid
    assert found.text(site.block_span) == site.block
    assert (found.text(site.shared_span) if site.shared_span else None) == site.shared
    config = found.text(site.config_span)
    assert site.grid in config
    assert f"<<<{config}>>>" in found.document.text


def test_in_macros() -> None:
    found = parse(
        "__global__ void k(int n) {}\n#define LAUNCH(g, n) \\\n  do { \\\n    k<<<g, 32>>>(n); \\\n  } while (0)\n"
        '#define TEXT "k<<<1, 2>>>(3)"\nvoid f() { LAUNCH(1, 2); }\n'
    )
    assert [(site.kernel, site.grid, site.args, site.function) for site in found.launches] == [("k", "g", ("n",), None)]
    assert found.launches_of(found.kernels[0]) == found.launches


def test_not_launches() -> None:
    found = parse(
        '// k<<<1, 2>>>(3);\n/* k<<<1, 2>>>(3); */ const char* s = "k<<<1, 2>>>(3)";\n'
        "#if 0\nvoid f() { k<<<1,2>>>(3); }\n#endif\n"
    )
    assert found.launches == ()


@pytest.mark.parametrize(
    "text",
    ["k<<<", "k<<<1", "k<<<1,", "k<<<1, 2", "k<<<1, 2>>", "k<<<1, 2>>>", "<<<1, 2>>>(3)", "k<<<>>>", "k<<<(>>>("],
)
def test_half_typed(text: str) -> None:
    assert parse(f"void f() {{ {text}; }}").launches == ()


def test_half_typed_arguments_still_show_the_shape() -> None:
    (site,) = parse("void f() { k<<<1, 2>>>(a, ").launches
    assert (site.kernel, site.grid, site.block, site.args) == ("k", "1", "2", ())
    (site,) = parse("void f() { k<<<1>>>(a); }").launches
    assert (site.grid, site.block) == ("1", "")


def test_functions_around() -> None:
    found = parse(
        "template <class T> struct S { void go() { k<<<1, 2>>>(); } };\n"
        "template <> void S<int>::go() { k<<<1, 2>>>(); }\nstatic float* make(int n) { k<<<1, 2>>>(); return 0; }\n"
        "int main() { auto f = [] { k<<<1, 2>>>(); }; }\nint global = (k<<<1, 2>>>(), 3);\n"
    )
    assert [site.function for site in found.launches] == ["go", "S<int>::go", "make", "main", None]


def meaning(text: str) -> list[list[str]]:
    """Per launch the kernels it means, each as name@line."""
    found = parse(text)
    return [
        [f"{kernel.qualified_name}@{found.line(kernel.name_span.start)}" for kernel in found.kernels_of(site)]
        for site in found.launches
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__global__ void k() {}\nvoid f() { k<<<1, 2>>>(); other<<<1, 2>>>(); }", [["k@1"], []]),
        # namespaces: innermost first, then using declarations
        (
            "namespace a { __global__ void k() {}\nnamespace b { __global__ void k() {}\n"
            "void f() { k<<<1, 2>>>(); } }\n"
            "void f() { k<<<1, 2>>>(); b::k<<<1, 2>>>(); } }\nvoid f() { a::k<<<1, 2>>>(); ::a::b::k<<<1, 2>>>(); }",
            [["a::b::k@2"], ["a::k@1"], ["a::b::k@2"], ["a::k@1"], ["a::b::k@2"]],
        ),
        ("namespace a { __global__ void k() {} }\nusing namespace a;\nvoid f() { k<<<1, 2>>>(); }", [["a::k@1"]]),
        ("namespace { __global__ void k() {} }\nvoid f() { k<<<1, 2>>>(); }", [["k@1"]]),
        ("namespace d { __global__ void k() {} }\nnamespace z = d;\nvoid f() { z::k<<<1, 2>>>(); }", [["d::k@1"]]),
        (
            "template <class T> struct S { static __global__ void k(T) {} void f() { k<<<1, 2>>>(T()); } };\n"
            "void f() { S<int>::k<<<1, 2>>>(3); }",
            [["S::k@1"], ["S::k@1"]],
        ),
        # overloads: by the number of arguments, defaults counted
        (
            "__global__ void k(int a) {}\n__global__ void k(int a, int b, int c = 3) {}\n"
            "void f() { k<<<1, 2>>>(1); k<<<1, 2>>>(1, 2); k<<<1, 2>>>(1, 2, 3); }",
            [["k@1"], ["k@2"], ["k@2"]],
        ),
        ("__global__ void k(int a) {}\n__global__ void k(float a) {}\nvoid f() { k<<<1, 2>>>(1); }", [["k@1", "k@2"]]),
        # templates and specialisations
        (
            "template <class T> __global__ void k(T a) {}\n__global__ void k(int a) {}\n"
            "void f() { k<float><<<1, 2>>>(1); k<><<<1, 2>>>(1); }",
            [["k@1"], ["k@1", "k@2"]],
        ),
        (
            "template <class T, int N> __global__ void k(T a) {}\ntemplate <> __global__ void k<int, 3>(int a) {}\n"
            "void f() { k<int,3><<<1, 2>>>(1); k<int, 4><<<1, 2>>>(1); }",
            [["k<int, 3>@2"], ["k@1"]],
        ),
        (
            "template <class T, class I> __global__ void k(T a) {}\n"
            "template <> __global__ void k<__half, unsigned int>(__half a) {}\n"
            "void f() { k<half, unsigned><<<1, 2>>>(1); k<half, int><<<1, 2>>>(1); k<half2, uint32_t><<<1, 2>>>(1); }",
            [["k<__half, unsigned int>@2"], ["k@1"], ["k@1"]],
        ),
        (
            "template <class T> __global__ void k(T *a) {}\ntemplate <> __global__ void k<size_t>(size_t *a) {}\n"
            "void f() { k<unsigned long int><<<1, 2>>>(a); k<unsigned long long><<<1, 2>>>(a); }",
            [["k<size_t>@2"], ["k@1"]],
        ),
        # alternatives
        (
            "#ifdef A\n__global__ void k(int a) {}\n#else\n__global__ void k(int a) {}\n#endif\n"
            "void f() { k<<<1, 2>>>(1); }",
            [["k@2", "k@4"]],
        ),
        (
            "#if 0\n__global__ void k(int a) {}\n#else\n__global__ void k(int a) {}\n#endif\n"
            "void f() { k<<<1, 2>>>(1); }",
            [["k@4"]],
        ),
        ("template <class... A> __global__ void k(A... a) {}\nvoid f() { k<<<1, 2>>>(1, 2, 3); }", [["k@1"]]),
        # wrong number of arguments while typing: still the only kernel of that name
        ("__global__ void k(int a, int b) {}\nvoid f() { k<<<1, 2>>>(1, ); }", [["k@1"]]),
    ],
)
def test_which_kernel(text: str, expected: list[list[str]]) -> None:
    assert meaning(text) == expected


def test_launches_of_and_other_uses() -> None:
    found = parse(
        "__global__ void k(int n);\n__global__ void k(int n) { }\nvoid f() {\n  k<<<1, 2>>>(3);\n"
        "  cudaFuncSetAttribute(k, A, 3); // k\n  void* p = (void*)&k;\n  kk(1);\n}\n"
    )
    (kernel,) = found.kernels
    assert found.launches_of(kernel) == found.launches
    assert [found.line(span.start) for span in found.other_uses(kernel)] == [5, 6]


def test_launch_at() -> None:
    text = "void f() { k<<<1, 2>>>(3); m<<<4, 5>>>(6); }"
    found = parse(text)
    site = found.launch_at(text.index("5"))
    assert site is not None
    assert site.kernel == "m"
    assert found.launch_at(2) is None
