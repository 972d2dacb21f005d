"""Whether statements only add: what they leave in memory is a sum of what the threads of a block bring, so that it does
not matter whether a thread brings its values one by one or as one sum.

Every expression that holds one of the threads' values has to be linear in them: a sum, a difference, a multiple, the
result of a shuffle or of a block's or warp's sum. Variables and shared arrays that receive such a value are followed;
they may receive nothing else but zero. Functions of the file are read the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import functions
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import squeeze, text
from cuda_agent.source.tree import arguments, base, callee, name_of, strip_parens, walk

ZERO = re.compile(r"0(\.0*)?[fFuUlL]*|\.0+[fF]?|(\w+)\(0(\.0*)?[fF]?\)|\(\w+\)0(\.0*)?[fF]?|\w+\{(0(\.0*)?[fF]?)?\}")
_SHUFFLE = re.compile(r"__shfl(_up|_down|_xor)?(_sync)?")
_SYNC = re.compile(r"__syncthreads|__syncwarp|sync")
_PLAIN = re.compile(
    r"min|max|__activemask|thread_rank|size|num_threads|meta_group_(rank|size)|this_thread_block|tiled_partition"
    r"|coalesced_threads|(unsigned|int|size_t|float|double)"
)
_PLUS = re.compile(r"(?:\w+::)*(?:plus|Sum)(?:<\w*>)?(?:\(\)|\{\})")
_HEADS = ("initializer", "condition", "update")
_DEEPEST = 4  # functions that call functions


@dataclass
class Linear:
    """The followed names of one function: `sums` hold the threads' values or sums of them."""

    context: Context
    sums: set[str]
    own: frozenset[str] = frozenset()  # names through which nothing outside the block is reached
    depth: int = 0
    sinks: list[str] = field(default_factory=list)  # variables outside the block that the sums are added to
    floating: bool = False  # a division keeps a sum a sum
    types: list[tuple[str, str]] = field(default_factory=list)  # of what holds sums in functions of the file

    def check(self, nodes: Sequence[Node]) -> None:
        """RuleRefused with the first thing that is more than adding."""
        known = -1
        while known != len(self.sums):
            known = len(self.sums)
            for node in nodes:
                self._follow(node)
        for node in nodes:
            self._statement(node)

    # ------------------------------------------------------------ which names hold sums

    def _follow(self, node: Node) -> None:
        for write in syntax.writes(node):
            root = name_of(base(write.target))
            if root is not None and write.value is not None and self._holds(write.value):
                self.sums.add(root)
        for call in walk(node, "call_expression"):
            given = arguments(call)
            if callee(call) == "atomicAdd" and len(given) == 2 and self._holds(given[1]):
                root = _root(given[0])
                if root in self.own:
                    self.sums.add(root)
            elif (function := self._function(call)) is not None:
                inner = self._inside(function, given)
                for parameter, argument in zip(_parameters(function), given, strict=True):
                    root = name_of(argument)
                    if parameter in inner.sums and root in self.own:
                        self.sums.add(root)

    def _holds(self, node: Node) -> bool:
        return bool(syntax.identifiers(node) & self.sums)

    # ------------------------------------------------------------ statements

    def _statement(self, node: Node) -> None:
        match node.type:
            case "comment" | "preproc_call" | "type_definition" | "alias_declaration" | "using_declaration" | ";":
                return
            case "namespace_alias_definition":
                return
            case "declaration":
                self._declaration(node)
            case "expression_statement":
                for inner in node.named_children:
                    self._effect(inner)
            case "compound_statement" | "else_clause":
                for inner in node.named_children:
                    self._statement(inner)
            case "if_statement":
                self._plain(syntax.field(node, "condition"))
                for part in ("consequence", "alternative"):
                    if (branch := node.child_by_field_name(part)) is not None:
                        self._statement(branch)
            case "for_statement" | "while_statement" | "do_statement":
                for part in _HEADS:
                    if (head := node.child_by_field_name(part)) is not None:
                        self._head(head)
                self._statement(syntax.field(node, "body"))
            case "return_statement" if self.depth and node.named_children:
                if not (self._linear(node.named_children[0]) or _zero(node.named_children[0])):
                    raise RuleRefused(f"{text(node)} returns more than a sum")
            case _:
                raise RuleRefused(f"behind the sum of a block stands a {node.type.replace('_', ' ')}")

    def _head(self, node: Node) -> None:
        if node.type == "declaration":
            self._declaration(node)
        elif node.type in ("assignment_expression", "update_expression", "comma_expression"):
            for inner in [node] if node.type != "comma_expression" else node.named_children:
                self._effect(inner)
        else:
            self._plain(node)

    def _declaration(self, node: Node) -> None:
        if re.search(r"\bauto\b", text(node)) and self._holds(node):
            raise RuleRefused("a sum is declared auto")
        if self.depth:
            kind = text(syntax.field(node, "type"))
            self.types += [(name, kind) for name in sorted(syntax.declared(node) & self.sums)]
        for write in syntax.writes(node):
            if write.op == "init" and write.value is not None:
                self._given(name_of(write.target), "=", write.value)

    def _effect(self, node: Node) -> None:
        if node.type == "assignment_expression":
            write = next(syntax.writes(node))
            assert write.value is not None
            target = write.target
            if target.type == "subscript_expression":
                for index in walk(target, "subscript_argument_list"):
                    self._plain(index)
            elif target.type != "identifier":
                raise RuleRefused(f"{text(target)} is written behind the sum of a block")
            root = name_of(base(target))
            if target.type == "subscript_expression" and root not in self.sums:
                raise RuleRefused(f"{text(target)} is written behind the sum of a block")
            self._given(root, write.op, write.value)
        elif node.type == "update_expression":
            if self._holds(node) or syntax.field(node, "argument").type != "identifier":
                raise RuleRefused(f"{text(node)} is no sum of what the threads bring")
        elif node.type == "call_expression":
            self._call(node)
        else:
            raise RuleRefused(f"{text(node)} is no sum of what the threads bring")

    def _given(self, name: str | None, op: str, value: Node) -> None:
        if name not in self.sums:
            self._plain(value)
            return
        scaled = op == "*=" or (op == "/=" and self.floating)
        if scaled:
            self._plain(value)
        elif op not in ("=", "+=", "-=") or not (self._linear(value) or _zero(value)):
            raise RuleRefused(f"{name} is given {text(value)}, which is no sum of what the threads bring")

    def _call(self, node: Node) -> None:
        name, given = callee(node) or "", arguments(node)
        if _SYNC.fullmatch(name):
            for one in given:
                self._plain(one)
        elif name == "atomicAdd" and len(given) == 2:
            if not self._linear(given[1]):
                raise RuleRefused(f"{text(node)} adds something else than the sum of what the threads bring")
            self._address(given[0])
        elif self._function(node) is not None:
            self._linear(node)
        else:
            raise RuleRefused(f"{text(node)} is called behind the sum of a block")

    def _address(self, node: Node) -> None:
        root = _root(node)
        inner = strip_parens(node)
        if root is None or (inner.type == "pointer_expression" and not text(inner).startswith("&")):
            raise RuleRefused(f"{text(node)} is not known to be one place")
        for index in walk(inner, "subscript_argument_list"):
            self._plain(index)
        if inner.type == "binary_expression":
            for part in ("left", "right"):
                side = syntax.field(inner, part)
                if name_of(side) != root:
                    self._plain(side)
        if root not in self.sums:
            self.sinks.append(root)

    # ------------------------------------------------------------ expressions

    def _plain(self, node: Node) -> None:
        """RuleRefused unless the value is the same whatever the threads bring, and reads no memory."""
        if self._holds(node):
            raise RuleRefused(f"{text(node)} asks what the sum is")
        for n in walk(node, ("subscript_expression", "pointer_expression", "call_expression", "assignment_expression")):
            reads = n.type != "call_expression" or not _PLAIN.fullmatch(callee(n) or "")
            if reads and not (n.type == "call_expression" and self._macro(n)):
                raise RuleRefused(f"{text(n)} is read behind the sum of a block")

    def _macro(self, call: Node) -> bool:
        """A macro; the rule has seen that the kernel's macros only compute."""
        name = re.escape(callee(call) or "")
        return re.search(rf"^[ \t]*#[ \t]*define[ \t]+{name}\(", self.context.text, re.M) is not None

    def _linear(self, node: Node) -> bool:
        node = strip_parens(node)
        match node.type:
            case "identifier":
                return text(node) in self.sums
            case "subscript_expression":
                if name_of(base(node)) not in self.sums:
                    return False
                for index in walk(node, "subscript_argument_list"):
                    self._plain(index)
                return True
            case "binary_expression":
                return self._operation(node)
            case "unary_expression":
                return text(node)[0] in "+-" and self._linear(syntax.field(node, "argument"))
            case "conditional_expression":
                self._plain(syntax.field(node, "condition"))
                sides = [syntax.field(node, part) for part in ("consequence", "alternative")]
                return all(self._linear(side) or _zero(side) for side in sides)
            case "call_expression":
                return self._summed(node)
        return False

    def _operation(self, node: Node) -> bool:
        left, right = syntax.field(node, "left"), syntax.field(node, "right")
        op = text(syntax.field(node, "operator"))
        if op in ("+", "-"):
            return self._linear(left) and self._linear(right)
        if op == "*" and not self._holds(left):
            left, right = right, left
        if op == "*" or (op == "/" and self.floating):
            self._plain(right)
            return self._linear(left)
        return False

    def _summed(self, node: Node) -> bool:
        """A shuffle, a sum of cub or cooperative groups, a function of the file."""
        name, given = callee(node) or "", arguments(node)
        if match := _SHUFFLE.fullmatch(name):
            value = 1 if match[2] else 0
            for at, one in enumerate(given):
                if at != value:
                    self._plain(one)
            return len(given) > value and self._linear(given[value])
        called = squeeze(text(syntax.field(node, "function")))
        if re.search(r"\)\.(Sum|Reduce)$", called) and given:
            plus = name == "Reduce" and len(given) == 2 and _PLUS.fullmatch(squeeze(text(given[1])))
            return bool(plus or (name == "Sum" and len(given) == 1)) and self._linear(given[0])
        if name == "reduce" and len(given) == 3 and "::" in called:
            return bool(_PLUS.fullmatch(squeeze(text(given[2])))) and self._linear(given[1])
        function = self._function(node)
        if function is None:
            return False
        inner = self._inside(function, given)
        for parameter, argument in zip(_parameters(function), given, strict=True):
            array = name_of(argument) if argument.type == "identifier" else None
            if parameter in inner.sums:
                if not (array in self.sums or self._linear(argument)):
                    return False
            elif array not in self.own:
                self._plain(argument)
        given_types = walk(syntax.field(node, "function"), "type_descriptor")
        self.types += [*inner.types, *((name, text(t)) for t in given_types)]
        return True

    def _function(self, call: Node) -> Node | None:
        """The one function of the file that is called, with all its arguments."""
        found = functions.definitions(self.context.module).get((callee(call) or "").split("<")[0], [])
        if len(found) != 1 or len(_parameters(found[0])) != len(arguments(call)):
            return None
        return found[0]

    def _inside(self, function: Node, given: Sequence[Node]) -> Linear:
        """The function's body, read with what it is given. RuleRefused where it does more than add."""
        body, name = syntax.field(function, "body"), _called(function)
        if self.depth >= _DEEPEST:
            raise RuleRefused(f"{name} calls too many functions to be followed")
        if re.search(r"\b(blockIdx|gridDim|asm)\b", text(body)):
            raise RuleRefused(f"{name} asks which block it is")
        parameters = _parameters(function)
        sums = {p for p, argument in zip(parameters, given, strict=True) if self._holds(argument)}
        own = {text(n) for d in walk(body, "declaration") for n in walk(d, "identifier") if "__shared__" in text(d)}
        pointers = {p for p, argument in zip(parameters, given, strict=True) if name_of(argument) in self.own}
        inner = Linear(self.context, sums, frozenset(own | pointers), self.depth + 1, [], self.floating)
        inner.check([n for n in body.named_children if n.type != "comment"])
        inner.types += _types(function, inner.sums)
        if inner.sinks:
            raise RuleRefused(f"{name} adds to memory outside the block")
        return inner


def _declarator(function: Node) -> Node | None:
    return next(walk(syntax.field(function, "declarator"), "function_declarator"), None)


def _called(function: Node) -> str:
    declarator = _declarator(function)
    return text(syntax.field(declarator, "declarator")) if declarator is not None else ""


def _parameters(function: Node) -> list[str]:
    declarator = _declarator(function)
    listed = declarator.child_by_field_name("parameters") if declarator is not None else None
    if listed is None:
        return []
    found = [n for n in listed.named_children if n.type.endswith("parameter_declaration")]
    return [next((text(i) for i in walk(n, "identifier")), "") for n in found]


def _types(function: Node, sums: set[str]) -> Iterator[tuple[str, str]]:
    """The types of the parameters that hold sums, and of the result."""
    declarator = _declarator(function)
    listed = declarator.child_by_field_name("parameters") if declarator is not None else None
    for n in listed.named_children if listed is not None else ():
        name = next((text(i) for i in walk(n, "identifier")), "")
        if name in sums:
            yield name, text(syntax.field(n, "type"))
    kind = text(syntax.field(function, "type"))
    if kind != "void":
        yield _called(function), kind


def _root(address: Node) -> str | None:
    """The variable of `&x`, `&x[i]`, `x` or `x + i`."""
    inner = strip_parens(address)
    if inner.type == "binary_expression":
        return name_of(strip_parens(syntax.field(inner, "left"))) if "+" in text(inner) else None
    return name_of(base(inner)) if inner.type in ("pointer_expression", "identifier") else None


def _zero(node: Node) -> bool:
    return ZERO.fullmatch(squeeze(text(strip_parens(node)))) is not None
