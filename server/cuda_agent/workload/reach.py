"""How far a kernel reaches into each pointer parameter, for given scalars and launch shape: intervals on the tree.

Sound for what it understands and silent about nothing: a use of a pointer or a subscript that it does not understand
raises NoInputs with the reason, because a guessed size would be an out-of-bounds read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tree_sitter import Node

from cuda_agent.errors import NoInputs

Interval = tuple[int, int]
_CALLS = {"min", "max", "umin", "umax", "std::min", "std::max", "fminf", "fmaxf"}
_WRAP = {"parenthesized_expression", "condition_clause", "subscript_argument_list", "cast_expression"}


def _text(node: Node | None) -> str:
    return node.text.decode() if node is not None and node.text is not None else ""


@dataclass(slots=True)
class Reach:
    """`names` are known integers (scalar parameters, macros, builtins such as `threadIdx.x`); `pointers` the pointer
    parameters. After `walk`, `found[p]` is the interval of element indices of p that the kernel may touch."""

    names: dict[str, Interval]
    pointers: frozenset[str]
    found: dict[str, Interval] = field(default_factory=dict)
    _aliases: dict[str, tuple[str, Interval]] = field(default_factory=dict)

    def walk(self, body: Node) -> dict[str, Interval]:
        """Raises NoInputs."""
        self._statement(body)
        return self.found

    # ------------------------------------------------------------ statements

    def _statement(self, node: Node) -> None:
        match node.type:
            case "compound_statement":
                self._block(node)
            case "declaration":
                self._declaration(node)
            case "for_statement":
                self._for(node)
            case "while_statement" | "do_statement":
                self._while(node)
            case "if_statement":
                self._if(node)
            case _:
                self._expression(node)

    def _block(self, node: Node) -> None:
        for child in node.named_children:
            self._statement(child)
            if child.type == "if_statement" and _always_leaves(child.child_by_field_name("consequence")):
                self._narrow(child.child_by_field_name("condition"), holds=False)

    def _declaration(self, node: Node) -> None:
        for declarator in node.children_by_field_name("declarator"):
            value = declarator.child_by_field_name("value") if declarator.type == "init_declarator" else None
            target = (
                declarator.child_by_field_name("declarator") if declarator.type == "init_declarator" else declarator
            )
            name = re.sub(r"[*&\s]|\[.*|const|__restrict__", "", _text(target))
            if value is None:
                self.names.pop(name, None)
                continue
            alias = self._address(value)
            if alias is not None:
                self._aliases[name] = alias
                self._inside(value)
                continue
            self._expression(value)
            interval = self.interval(value)
            if interval is None:
                self.names.pop(name, None)
            else:
                self.names[name] = interval

    def _for(self, node: Node) -> None:
        initializer, condition = node.child_by_field_name("initializer"), node.child_by_field_name("condition")
        update, body = node.child_by_field_name("update"), node.child_by_field_name("body")
        if initializer is not None:
            self._statement(initializer)
        self._loop(condition, [part for part in (update, body) if part is not None])

    def _while(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        self._loop(node.child_by_field_name("condition"), [body] if body is not None else [])

    def _loop(self, condition: Node | None, parts: list[Node]) -> None:
        """Variables that the loop changes get the widest range they can have: up or down to what its condition says."""
        before = dict(self.names)
        for part in parts:
            for name, grows, step in _changes(part):
                start = before.get(name)
                by = self.interval(step) if step is not None else (1, 1)
                if start is None or start[0] < 0 or grows is None or by is None or by[0] < 0:
                    self.names.pop(name, None)
                else:
                    self.names[name] = (start[0], 1 << 62) if grows else (-(1 << 62), start[1])
        outer = dict(self.names)
        if condition is not None:
            self._expression(condition)
            self._narrow(condition, holds=True)
        for part in reversed(parts):  # the body before the update
            self._statement(part)
        self.names = outer

    def _if(self, node: Node) -> None:
        condition = node.child_by_field_name("condition")
        before = dict(self.names)
        if condition is not None:
            self._expression(condition)
        for name, holds in (("consequence", True), ("alternative", False)):
            branch = node.child_by_field_name(name)
            if branch is None:
                continue
            self.names = dict(before)
            if condition is not None:
                self._narrow(condition, holds=holds)
            self._statement(branch if branch.type != "else_clause" else branch.named_children[-1])
        self.names = before
        for branch_name in ("consequence", "alternative"):
            for name, _, _ in _changes(node.child_by_field_name(branch_name)):
                self.names.pop(name, None)

    def _narrow(self, node: Node | None, holds: bool) -> None:
        """What a condition that holds (or does not) says about the variables in it."""
        if node is None:
            return
        if node.type in _WRAP and node.named_children:
            self._narrow(node.named_children[-1], holds)
        elif node.type == "unary_expression" and _text(node).startswith("!"):
            self._narrow(node.child_by_field_name("argument"), not holds)
        elif node.type == "binary_expression":
            operator = _text(node.child_by_field_name("operator"))
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            if (operator == "&&" and holds) or (operator == "||" and not holds):
                self._narrow(left, holds)
                self._narrow(right, holds)
            elif operator in ("<", "<=", ">", ">=", "=="):
                self._compare(left, operator, right, holds)

    def _compare(self, left: Node | None, operator: str, right: Node | None, holds: bool) -> None:
        if left is None or right is None:
            return
        if not holds:
            operator = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}.get(operator, "")
        mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "=="}
        self._bound(_text(left), operator, self.interval(right))
        self._bound(_text(right), mirrored.get(operator, ""), self.interval(left))

    def _bound(self, name: str, operator: str, other: Interval | None) -> None:
        now = self.names.get(name)
        if now is None or other is None:
            return
        low, high = now
        if operator in ("<", "<=", "=="):
            high = min(high, other[1] - (operator == "<"))
        if operator in (">", ">=", "=="):
            low = max(low, other[0] + (operator == ">"))
        # An empty range means that the code behind it is not reached; one value keeps the arithmetic simple.
        self.names[name] = (low, high) if low <= high else (low, low)

    # ------------------------------------------------------------ expressions

    def _expression(self, node: Node) -> None:
        """Notes every access below `node`, and assignments."""
        if node.type == "subscript_expression":
            self._access(node)
            return
        if node.type in ("unary_expression", "pointer_expression") and _text(node).startswith("*"):
            argument = node.child_by_field_name("argument")
            target = self._address(argument) if argument is not None else None
            if target is not None and argument is not None:
                self._note(*target)
                self._inside(argument)
                return
        if node.type == "call_expression":
            self._call(node)
            return
        if node.type == "assignment_expression":
            self._assign(node)
            return
        if node.type in ("declaration", "compound_statement", "if_statement", "for_statement", "while_statement"):
            self._statement(node)
            return
        if node.type == "update_expression":
            self.names.pop(_text(node.child_by_field_name("argument")), None)
        if node.type == "identifier" and (_text(node) in self.pointers or _text(node) in self._aliases):
            raise NoInputs(f"how the kernel uses the pointer {_text(node)} is not understood")
        for child in node.named_children:
            self._expression(child)

    def _inside(self, node: Node) -> None:
        """Accesses inside an address computation (`&x[y[0]]`, `x + y[0]`) whose own pointer is accounted for."""
        if node.type == "subscript_expression":
            indices = node.child_by_field_name("indices")
            if indices is not None:
                self._expression(indices)
        elif node.type != "identifier":
            for child in node.named_children:
                self._inside(child)

    def _access(self, node: Node) -> None:
        argument, indices = node.child_by_field_name("argument"), node.child_by_field_name("indices")
        target = self._address(argument)
        if indices is not None:
            self._expression(indices)
        if target is None:
            if argument is not None and argument.type != "identifier":
                self._expression(argument)
            return  # a shared or local array
        index = self.interval(indices) if indices is not None else None
        if index is None:
            raise NoInputs(f"the index {_text(indices)} of {target[0]} depends on data or on what is not understood")
        self._note(target[0], (target[1][0] + index[0], target[1][1] + index[1]))

    def _note(self, pointer: str, interval: Interval) -> None:
        if max(abs(interval[0]), abs(interval[1])) > 1 << 40:
            raise NoInputs(f"how far the kernel reaches into {pointer} has no bound in its text")
        old = self.found.get(pointer, interval)
        self.found[pointer] = (min(old[0], interval[0]), max(old[1], interval[1]))

    def _call(self, node: Node) -> None:
        name = _text(node.child_by_field_name("function"))
        arguments = node.child_by_field_name("arguments")
        for argument in arguments.named_children if arguments is not None else ():
            target = self._address(argument)
            if target is None:
                self._expression(argument)
            elif name.startswith(("atomic", "__ld", "__st")):
                self._note(*target)
                self._inside(argument)
            else:
                raise NoInputs(f"the pointer {target[0]} is handed to {name}: how far that reaches is not known")

    def _assign(self, node: Node) -> None:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if right is not None:
            self._expression(right)
        if left is None:
            return
        name = _text(left)
        if left.type == "identifier":
            if name in self.pointers or name in self._aliases:
                raise NoInputs(f"the kernel moves the pointer {name}: how far is not known")
            plain = _text(node.child_by_field_name("operator")) == "="
            interval = self.interval(right) if right is not None and plain else None
            if interval is None:
                self.names.pop(name, None)
            else:
                old = self.names.get(name, interval)
                self.names[name] = (min(old[0], interval[0]), max(old[1], interval[1]))
        else:
            self._expression(left)

    def _address(self, node: Node | None) -> tuple[str, Interval] | None:
        """(pointer parameter, element offsets) of an expression that is an address, else None."""
        if node is None:
            return None
        text = _text(node)
        if node.type == "identifier":
            return self._aliases.get(text) or ((text, (0, 0)) if text in self.pointers else None)
        if node.type in _WRAP and node.type != "cast_expression" and len(node.named_children) == 1:
            return self._address(node.named_children[0])
        if node.type == "binary_expression" and _text(node.child_by_field_name("operator")) in "+-":
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            base, index = self._address(left), self.interval(right) if right is not None else None
            if base is None and _text(node.child_by_field_name("operator")) == "+":
                base, index = self._address(right), self.interval(left) if left is not None else None
            if base is None:
                return None
            if index is None:
                raise NoInputs(f"the offset in {text} is not understood")
            sign = 1 if _text(node.child_by_field_name("operator")) == "+" else -1
            low, high = sorted((sign * index[0], sign * index[1]))
            return base[0], (base[1][0] + low, base[1][1] + high)
        if node.type in ("unary_expression", "pointer_expression") and text.startswith("&"):
            argument = node.child_by_field_name("argument")
            if argument is not None and argument.type == "subscript_expression":
                base = self._address(argument.child_by_field_name("argument"))
                indices = argument.child_by_field_name("indices")
                index = self.interval(indices) if indices is not None else None
                if base is None:
                    return None
                if index is None:
                    raise NoInputs(f"the index in {text} is not understood")
                return base[0], (base[1][0] + index[0], base[1][1] + index[1])
        return None

    def interval(self, node: Node) -> Interval | None:
        """The values an integer expression can have, None when that is not known."""
        text = _text(node)
        match node.type:
            case "number_literal":
                digits = text.rstrip("uUlL").replace("'", "")
                return (int(digits, 0),) * 2 if re.fullmatch(r"0[xX][0-9a-fA-F]+|[1-9]\d*|0", digits) else None
            case "identifier" | "field_expression":
                return self.names.get(text.replace(" ", ""))
            case "parenthesized_expression" | "subscript_argument_list" | "condition_clause":
                return self.interval(node.named_children[0]) if len(node.named_children) == 1 else None
            case "cast_expression":
                value = node.child_by_field_name("value")
                return self.interval(value) if value is not None else None
            case "unary_expression":
                return self._negative(node)
            case "conditional_expression":
                parts = [node.child_by_field_name(name) for name in ("consequence", "alternative")]
                found = [self.interval(part) if part is not None else None for part in parts]
                return _hull(found)
            case "call_expression":
                return self._function(node)
            case "binary_expression":
                left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
                if left is None or right is None:
                    return None
                operator = _text(node.child_by_field_name("operator"))
                return _arithmetic(operator, self.interval(left), self.interval(right))
        return None

    def _negative(self, node: Node) -> Interval | None:
        argument = node.child_by_field_name("argument")
        inner = self.interval(argument) if argument is not None else None
        return (-inner[1], -inner[0]) if inner is not None and _text(node).startswith("-") else None

    def _function(self, node: Node) -> Interval | None:
        name = _text(node.child_by_field_name("function"))
        arguments = node.child_by_field_name("arguments")
        found = [self.interval(argument) for argument in arguments.named_children] if arguments is not None else []
        if re.fullmatch(r"(unsigned )?(int|size_t|u?int(32|64)_t|long)", name) and len(found) == 1:
            return found[0]
        known = [interval for interval in found if interval is not None]
        if name in _CALLS and len(found) == 2 and len(known) == 2:
            pick = min if "min" in name else max
            return pick(known[0][0], known[1][0]), pick(known[0][1], known[1][1])
        return None


def _hull(found: list[Interval | None]) -> Interval | None:
    known = [interval for interval in found if interval is not None]
    if not known or len(known) < len(found):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _arithmetic(operator: str, a: Interval | None, b: Interval | None) -> Interval | None:
    if operator == "%" and b is not None and b[0] > 0:
        # C's remainder has the sign of the left side; what is on the left need not be known otherwise.
        low = 0 if a is not None and a[0] >= 0 else 1 - b[1]
        return (low, min(b[1] - 1, a[1])) if a is not None and a[0] >= 0 else (low, b[1] - 1)
    if operator == "&" and b is not None and b[0] == b[1] >= 0:
        return 0, b[1]
    if a is None or b is None:
        return None
    match operator:
        case "+":
            return a[0] + b[0], a[1] + b[1]
        case "-":
            return a[0] - b[1], a[1] - b[0]
        case "*":
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case "/" if b[0] > 0:
            corners = [int(x / y) if abs(x) < 1 << 50 else x // y for x in a for y in b]
            return min(corners), max(corners)
        case ">>" if b[0] >= 0 and b[1] < 64:
            corners = [x >> y for x in a for y in b]
            return min(corners), max(corners)
        case "<<" if b[0] >= 0 and b[1] < 32:
            corners = [x << y for x in a for y in b]
            return min(corners), max(corners)
    return None


def _always_leaves(node: Node | None) -> bool:
    if node is None:
        return False
    if node.type == "compound_statement" and node.named_children:
        return _always_leaves(node.named_children[-1])
    return node.type in ("return_statement", "continue_statement")


def _changes(node: Node | None) -> Iterator[tuple[str, bool | None, Node | None]]:
    """(variable, grows?, by what) for every variable changed below `node`; None when the direction is not plain. The
    directions hold for values and steps that are not negative."""
    if node is None:
        return
    if node.type == "update_expression":
        yield _text(node.child_by_field_name("argument")), "++" in _text(node), None
    elif node.type == "assignment_expression":
        left = node.child_by_field_name("left")
        if left is not None and left.type == "identifier":
            direction = {"+=": True, "*=": True, "<<=": True, "-=": False, "/=": False, ">>=": False}
            operator = _text(node.child_by_field_name("operator"))
            yield _text(left), direction.get(operator), node.child_by_field_name("right")
    for child in node.named_children:
        yield from _changes(child)


def builtins(grid: tuple[int, int, int], block: tuple[int, int, int]) -> Mapping[str, Interval]:
    """threadIdx, blockIdx, blockDim, gridDim, warpSize as intervals."""
    found: dict[str, Interval] = {"warpSize": (32, 32)}
    for axis, g, b in zip("xyz", grid, block, strict=True):
        found[f"threadIdx.{axis}"] = (0, b - 1)
        found[f"blockIdx.{axis}"] = (0, g - 1)
        found[f"blockDim.{axis}"] = (b, b)
        found[f"gridDim.{axis}"] = (g, g)
    return found
