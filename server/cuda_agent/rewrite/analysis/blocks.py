"""What the threads of a block have in common: its barriers, its size, their index. Nothing here writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from tree_sitter import Node

from cuda_agent.judge import launch_text
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import uniform
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import ancestors, strip_parens
from cuda_agent.toolchain import names
from cuda_agent.workload.launch_map import Shape

_BARRIER = re.compile(r"__syncthreads\(\)|(?:\w+::)*sync\((\w+)\)|(\w+)\.sync\(\)")
_CAST = re.compile(r"^\((?:int|unsigned|unsignedint|size_t|long|uint|u?int(?:32|64)_t)\)")
_LINEAR = (
    "threadIdx.y*blockDim.x+threadIdx.x",
    "blockDim.x*threadIdx.y+threadIdx.x",
    "threadIdx.x+threadIdx.y*blockDim.x",
    "threadIdx.x+blockDim.x*threadIdx.y",
)
_THREADS = ("blockDim.x*blockDim.y", "blockDim.y*blockDim.x")


# ---------------------------------------------------------------- barriers


def barrier(statement: Node, body: Node) -> str | None:
    """The text of a statement that is a barrier of the whole block and nothing else; None for any other."""
    if statement.type != "expression_statement" or statement.named_child_count != 1:
        return None
    found = _BARRIER.fullmatch(squeeze(text(statement.named_children[0])))
    if found is None:
        return None
    group = found[1] or found[2]
    if group is not None and not re.search(
        rf"(?:thread_block|auto)&?{group}=(?:\w+::)*this_thread_block\(\)", squeeze(text(body))
    ):
        return None
    return text(statement)


# ---------------------------------------------------------------- sizes


def shapes(context: Context) -> tuple[tuple[Shape, dict[str, str]], ...]:
    """Each launch: its shape in this text, and the template arguments it was made with."""
    recorded = context.workload.launches if context.workload is not None else ()
    made_of = [launch.demangled for launch in recorded] + [names.demangle(one.mangled) for one in context.unrecorded]
    return tuple((s, template_arguments(context, m)) for s, m in zip(context.launched, made_of, strict=True))


def template_arguments(context: Context, demangled: str) -> dict[str, str]:
    """Template parameter → argument of one instantiation, as the demangler spells it; empty when the counts differ."""
    name = names.split(demangled)[0]
    if not context.kernel.template_params or not name.endswith(">"):
        return {}
    start = next(i for i in range(len(name)) if name[i] == "<")
    inside = name[start + 1 : -1]
    cuts = [-1, *names.top_level(inside, ","), len(inside)]
    arguments = [inside[a + 1 : b].strip() for a, b in pairwise(cuts)]
    parameters = [re.findall(r"\w+", p.split("=")[0])[-1] for p in context.kernel.template_params]
    return dict(zip(parameters, arguments, strict=True)) if len(parameters) == len(arguments) else {}


def value(context: Context, node: Node, shape: Shape, templates: dict[str, str]) -> int | None:
    """The integer that an expression of the kernel has in one launch, where its text says so: literals, macros,
    template arguments, blockDim, and variables that are initialised with such and never changed."""
    node = strip_parens(node)
    code = squeeze(text(node))
    if node.type == "number_literal":
        digits = code.rstrip("uUlL")
        return int(digits) if digits.isdigit() else None
    if code in ("blockDim.x", "blockDim.y", "blockDim.z"):
        return shape.block["xyz".index(code[-1])]
    if re.fullmatch(r"\w+\.(size|num_threads)\(\)", code):
        return shape.threads if "this_thread_block" in text(context.body) and "tile" not in code else None
    if node.type == "cast_expression":
        inner = node.child_by_field_name("value")
        return value(context, inner, shape, templates) if inner is not None else None
    if node.type == "identifier":
        return _named(context, node, shape, templates)
    if node.type != "binary_expression":
        return None
    left = value(context, syntax.field(node, "left"), shape, templates)
    right = value(context, syntax.field(node, "right"), shape, templates)
    if left is None or right is None:
        return None
    match text(syntax.field(node, "operator")):
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/" if right > 0:
            return left // right
        case ">>" if 0 <= right < 64:
            return left >> right
        case "<<" if 0 <= right < 64:
            return left << right
    return None


def _named(context: Context, node: Node, shape: Shape, templates: dict[str, str]) -> int | None:
    name = text(node)
    if name in templates:
        digits = templates[name].rstrip("ul")
        return int(digits) if digits.isdigit() else None
    if name in {p.name for p in context.kernel.params}:
        return shape.threads if _is_block_size(context, name) else None
    written = context.written.get(name)
    if not written:
        return launch_text.constant(context.module, name, node.start_byte)
    initial = written[0].value
    if len(written) != 1 or written[0].op not in ("init", "=") or initial is None:
        return None
    return value(context, initial, shape, templates)


def _is_block_size(context: Context, parameter: str) -> bool:
    """Every launch passes the parameter what it gives as the block's size: `k<<<grid, size>>>(x, size)`."""
    position = next(i for i, p in enumerate(context.kernel.params) if p.name == parameter)
    blocks = [(squeeze(s.block), [squeeze(a) for a in s.args]) for s in context.sites]
    return (
        bool(blocks)
        and not context.module.other_uses(context.kernel)
        and parameter not in context.written
        and all(len(args) > position and block in (args[position], f"dim3({args[position]})") for block, args in blocks)
    )


def is_constant(context: Context, code: str) -> bool:
    """The expression is fixed when the kernel is compiled: it mentions no variable of the kernel and no parameter."""
    local = syntax.declared(context.body) | {p.name for p in context.kernel.params} | set(syntax.BUILTINS)
    return not local & set(re.findall(r"[A-Za-z_]\w*", code))


# ---------------------------------------------------------------- the thread's index


def is_thread_index(context: Context, node: Node) -> bool:
    """The expression is the thread's index in its block, counted as warps are made of threads: x first, then y."""
    node = strip_parens(node)
    code = squeeze(text(node))
    while cast := _CAST.match(code):
        code = code[cast.end() :]
    flat = all(s.block[1:] == (1, 1) for s in context.launched)
    if code == "threadIdx.x":
        return flat
    if code in _LINEAR:
        return all(s.block[2] == 1 for s in context.launched)
    if re.fullmatch(r"(\w+)\.thread_rank\(\)", code):
        group = code.split(".")[0]
        return re.search(rf"{group}=(\w+::)*this_thread_block\(\)", squeeze(text(context.body))) is not None
    if node.type != "identifier":
        return False
    written = context.written.get(code, [])
    initial = written[0].value if len(written) == 1 and written[0].op in ("init", "=") else None
    return initial is not None and is_thread_index(context, initial)


# ---------------------------------------------------------------- who comes where


def leaves(context: Context, before: int) -> Iterator[Node]:
    """Returns that only some threads of a block may take, ahead of the offset `before`."""
    for n in syntax.of_type(context.body, "return_statement"):
        if n.start_byte < before and not all(
            uniform.level(context, c) in ("block", "grid") for c in _conditions(context, n)
        ):
            yield n


def _conditions(context: Context, node: Node) -> Iterator[Node]:
    """Of the statements around a node."""
    for around in ancestors(node, (*syntax.LOOPS, "if_statement", "switch_statement")):
        condition = around.child_by_field_name("condition")
        if condition is not None and syntax.span(context.body).holds(syntax.span(around)):
            yield condition


def is_first_thread(context: Context, condition: Node) -> bool:
    """The condition holds for the block's thread 0 and for no other: `t == 0`, `!t`, `0 == t`."""
    node = strip_parens(condition)
    if node.type == "unary_expression" and text(node).startswith("!"):
        return is_thread_index(context, syntax.field(node, "argument"))
    if node.type != "binary_expression" or text(syntax.field(node, "operator")) != "==":
        return False
    left, right = syntax.field(node, "left"), syntax.field(node, "right")
    if text(strip_parens(left)) == "0":
        left, right = right, left
    return text(strip_parens(right)) == "0" and is_thread_index(context, left)
