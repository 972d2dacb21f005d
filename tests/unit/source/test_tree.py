from __future__ import annotations

from tree_sitter import Node

from cuda_agent.source import tree
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import Module, module

TEXT = """__global__ void k(float* x, const float* __restrict y, int n) {
  // comment
  int i = blockIdx.x * blockDim.x + threadIdx.x, j;
  float sum = 0, part[4];
  for (j = 0; j < n; ++j) {
    sum += y[i * n + j] * part[j % 4];
    x[i] = sum; *(x + 1) = 2; (*x)++; x[i].w = 3; (x)[j] -= f(&sum);
  }
  cg::reduce<float>(tile, sum);
  obj.template go<3>(x[y[i]]);
  m<<<1, 2>>>(x);
  if (i < n) x[0] = float(i);
}
"""


def parsed() -> tuple[Module, Node]:
    found = module(Document("k.cu", TEXT))
    (kernel,) = found.kernels
    assert not kernel.has_error
    return found, found.node(kernel.body)


def texts(found: Module, nodes: list[Node]) -> list[str]:
    return [found.text(node) for node in nodes]


def test_text_is_the_files_not_the_masked_copys() -> None:
    found, body = parsed()
    function = tree.enclosing(body, "function_definition")
    assert function is not None
    assert "const float* __restrict y" in tree.text(found.document, function)
    assert b"__restrict" not in (function.text or b"")


def test_walk_and_enclosing() -> None:
    found, body = parsed()
    loops = list(tree.walk(body, tree.LOOPS))
    assert len(loops) == 1
    inside = list(tree.walk(body, "assignment_expression", into=("for_statement",)))
    assert texts(found, inside) == ["x[0] = float(i)"]
    deep = next(tree.walk(loops[0], "call_expression"))
    assert tree.enclosing(deep, tree.LOOPS) == loops[0]
    assert tree.enclosing(body, tree.LOOPS) is None
    assert tree.field(loops[0], "condition", "left", "nothing") is None
    order = [node.start_byte for node in tree.walk(body)]
    assert order == sorted(order)


def test_identifiers_and_uses() -> None:
    found, body = parsed()
    statement = tree.statements(tree.field(next(tree.walk(body, tree.LOOPS)), "body") or body)[0]
    assert tree.identifiers(statement) == {"sum", "y", "i", "n", "j", "part"}
    assert len(tree.uses(body, "sum")) == 5
    assert texts(found, tree.uses(statement, "j")) == ["j", "j"]


def test_assignments() -> None:
    found, body = parsed()
    assert texts(found, tree.assignments(body, "x")) == [
        "x[i] = sum", "*(x + 1) = 2", "(*x)++", "x[i].w = 3", "(x)[j] -= f(&sum)", "x[0] = float(i)",
    ]  # fmt: skip
    assert texts(found, tree.assignments(body, "sum")) == ["sum = 0", "sum += y[i * n + j] * part[j % 4]"]
    assert texts(found, tree.assignments(body, "j")) == ["j = 0", "++j"]
    assert tree.assignments(body, "y") == []
    assert len(tree.assignments(body)) == 11
    assert [tree.operator(node) for node in tree.assignments(body, "x")] == ["=", "=", "++", "=", "-=", "="]


def test_calls() -> None:
    found, body = parsed()
    assert [tree.callee(call) for call in tree.calls(body)] == ["f", "reduce", "go", "m", None]
    (call,) = tree.calls(body, "reduce")
    assert texts(found, tree.arguments(call)) == ["tile", "sum"]


def test_subscripts() -> None:
    found, body = parsed()
    assert [texts(found, list(parts)) for parts in tree.subscripts(body, "y")] == [
        ["y[i * n + j]", "y", "i * n + j"],
        ["y[i]", "y", "i"],
    ]
    assert [found.text(parts[0]) for parts in tree.subscripts(body, "x")] == [
        "x[i]",
        "x[i]",
        "(x)[j]",
        "x[y[i]]",
        "x[0]",
    ]
    written = [found.text(whole) for whole, _, _ in tree.subscripts(body) if tree.is_written(whole)]
    assert written == ["x[i]", "(x)[j]", "x[0]"]


def test_two_dimensions_come_outer_first() -> None:
    found = module(Document("k.cu", "__global__ void k(float a[3][4]) { a[1][2] = 3; }"))
    body = found.node(found.kernels[0].body)
    assert [texts(found, list(parts)) for parts in tree.subscripts(body, "a")] == [
        ["a[1][2]", "a[1]", "2"],
        ["a[1]", "a", "1"],
    ]
    assert found.text(tree.base(tree.subscripts(body)[0][0])) == "a"


def test_statements() -> None:
    found, body = parsed()
    listed = tree.statements(body)
    assert [node.type for node in listed] == [
        "declaration", "declaration", "for_statement", "expression_statement", "expression_statement",
        "expression_statement", "if_statement",
    ]  # fmt: skip
    consequence = tree.field(listed[-1], "consequence")
    assert consequence is not None
    assert texts(found, tree.statements(consequence)) == ["x[0] = float(i);"]
    condition = tree.field(listed[-1], "condition")
    assert condition is not None
    assert found.text(tree.strip_parens(condition)) == "i < n"
