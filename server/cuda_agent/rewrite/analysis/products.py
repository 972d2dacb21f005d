"""A matrix product among a kernel's threads, one output a thread: which of a thread's places are its row and column.

The thread stands for digits of a flat index (`digits.py`), perhaps with a loop of its own over columns. In the loop
that adds up the products one operand is the same for all columns, the other for all rows; both may differ between the
other digits, the batches.
"""

from __future__ import annotations

from dataclasses import dataclass

from tree_sitter import Node

from cuda_agent.errors import RuleRefused
from cuda_agent.rewrite import syntax
from cuda_agent.rewrite.analysis import access, affine, aliasing, declarations, digits, trips, zeros
from cuda_agent.rewrite.analysis.access import Access
from cuda_agent.rewrite.analysis.digits import Digit
from cuda_agent.rewrite.analysis.induction import Induction
from cuda_agent.rewrite.analysis.names import Variable
from cuda_agent.rewrite.analysis.polynomial import Poly
from cuda_agent.rewrite.analysis.product_nest import Body, adds, body, check_threads, nest, total
from cuda_agent.rewrite.rule import Context
from cuda_agent.rewrite.syntax import ThreadId, text
from cuda_agent.source.tree import strip_parens, walk

_LITERAL_ZEROS = ("0", "0.0", "0.0f", "0.f", "0.", "0.0F")


@dataclass(frozen=True)
class Operand:
    """One factor: the load that reads it, and where the sum names it (the load, or a variable that holds it)."""

    load: Access
    uses: tuple[Node, ...]
    index: Poly  # of the load, in the digits' names
    names: frozenset[str]  # in the index
    closure: tuple[Node, ...]  # declarations that the load's text needs where another thread makes it


@dataclass(frozen=True)
class Axis:
    """The rows or the columns: a digit of the thread's index, or the variable of a loop around the product."""

    variable: Variable
    extent: Poly
    digit: Digit | None
    loop: Induction | None = None


@dataclass(frozen=True)
class Product:
    """`rows` has the operand `row`, the same for all columns; `columns` likewise. `work` is what a thread does for an
    output, in order, with the loop among it; `shared` are declarations at its front that do not depend on row and
    column; `top` those before the guard that depend on no thread."""

    thread: ThreadId
    index: Poly
    digits: tuple[Digit, ...]
    total: Poly
    rows: Axis
    columns: Axis
    row: Operand
    column: Operand
    loop: Induction
    relation: str
    bound: Poly  # in the digits' names
    sum: Variable
    add: syntax.Write
    top: tuple[Node, ...]
    shared: tuple[Node, ...]
    work: tuple[Node, ...]
    leaves: tuple[Node, ...]  # conditions of `if (…) …; return;` before the loop: there the output needs no product

    @property
    def batches(self) -> tuple[Digit, ...]:
        mine = {a.digit.symbol for a in (self.rows, self.columns) if a.digit is not None}
        return tuple(d for d in self.digits if d.symbol not in mine)

    @property
    def triangular(self) -> bool:
        """Rows have products of different lengths."""
        return self.rows.variable.symbol in mentioned(self.bound)


def mentioned(value: Poly) -> frozenset[str]:
    """Every name in the polynomial and in its operations' operands."""
    found: set[str] = set()
    for atom in value.atoms:
        found |= {atom.name} if not atom.op else set()
        for one in atom.args:
            found |= mentioned(one)
    return frozenset(found)


def find(context: Context) -> Product | None:
    """The product that the kernel's threads compute. None when there is none in this form; RuleRefused when there is
    one that may not be shared out otherwise."""
    ids = syntax.thread_ids(context.body)
    if len(ids) != 1 or ids[0].axis != "x" or syntax.COOPERATION.search(text(context.body)):
        return None
    kernel = body(context)
    found = nest(context, kernel.work) if kernel is not None else None
    if kernel is None or found is None:
        return None
    check_threads(context, ids[0])
    index = affine.of(context, ids[0].value)
    threads, parts = total(context, index, kernel)
    if threads is None or not parts:
        return None
    return _Finder(context, ids[0], index, threads, parts, kernel, *found).product()


# ---------------------------------------------------------------- its parts


@dataclass
class _Finder:
    context: Context
    thread: ThreadId
    index: Poly
    total: Poly
    digits: tuple[Digit, ...]
    kernel: Body
    outer: Induction | None
    loop: Induction
    beside: list[Node]

    def product(self) -> Product | None:
        context = self.context
        add = adds(context, self.loop.loop)
        leaves = self._operands(add.value) if add is not None and add.value is not None else None
        if add is None or leaves is None:
            return None
        places = [d.symbol for d in self.digits] + ([self.outer.symbol] if self.outer is not None else [])
        if not all(self._steady(mentioned(d.view.radix)) for d in self.digits if d.view.radix is not None):
            return None
        a, b = leaves
        only_a = [s for s in places if s in a.names and s not in b.names]
        only_b = [s for s in places if s in b.names and s not in a.names]
        if len(only_a) != 1 or len(only_b) != 1:
            return None
        if self._rank(only_a[0]) < self._rank(
            only_b[0]
        ):  # columns are what neighbouring threads or loop steps differ in
            a, b, only_a, only_b = b, a, only_b, only_a
        rows, columns = self._axis(only_a[0]), self._axis(only_b[0])
        if rows.loop is not None:
            return None
        limit = trips.limit(context, self.loop)
        if limit is None or limit[0] not in ("<", "<=") or self.loop.step.value != 1:
            raise RuleRefused("the loop over the products does not count up by one to a bound")
        bound = digits.named(limit[1], self.index, self.digits)
        self._check_range(bound, rows, columns)
        total = self._sum(add)
        top, shared, work = self._shared_out(rows, columns)
        self._check_work(work, top)
        operands = [self._closed(o, shared, top, axis) for o, axis in ((a, rows), (b, columns))]
        return Product(
            self.thread,
            self.index,
            self.digits,
            self.total,
            rows,
            columns,
            operands[0],
            operands[1],
            self.loop,
            limit[0],
            bound,
            total,
            add,
            tuple(top),
            tuple(shared),
            tuple(work),
            tuple(self._leaves(work)),
        )

    def _rank(self, symbol: str) -> int:
        """How far apart neighbours along an axis are, in the order of a thread's work."""
        if self.outer is not None and symbol == self.outer.symbol:
            return -1
        return [d.symbol for d in self.digits].index(symbol)

    def _axis(self, symbol: str) -> Axis:
        if self.outer is not None and symbol == self.outer.symbol:
            limit = trips.limit(self.context, self.outer)
            fits = limit is not None and limit[0] == "<" and self.outer.start.value == 0 and self.outer.step.value == 1
            if limit is None or not fits or not self._steady(mentioned(limit[1])):
                raise RuleRefused("the loop over columns does not count from 0 to a number that all threads share")
            return Axis(self.outer.variable, limit[1], None, self.outer)
        digit = next(d for d in self.digits if d.symbol == symbol)
        assert digit.view.radix is not None
        return Axis(digit.variable, digit.view.radix, digit)

    def _steady(self, symbols: frozenset[str]) -> bool:
        """Parameters and what the launch says: the same for all threads."""
        parameters = {p.name for p in self.context.kernel.params if not p.pointer}
        return symbols <= parameters and not symbols & self.context.written.keys()

    def _check_range(self, bound: Poly, rows: Axis, columns: Axis) -> None:
        start = mentioned(self.loop.start)
        if not self._steady(start):
            raise RuleRefused("where the loop over the products begins differs between threads")
        mine = mentioned(bound)
        if not self._steady(mine - {rows.variable.symbol}):
            raise RuleRefused("how many products there are differs between columns, or is read from memory")
        step = bound.stride(rows.variable.symbol)
        if step is None or step.value is None or step.value < 0:
            raise RuleRefused("rows further down do not have at least as many products")
        assert columns is not rows

    # ------------------------------------------------------------ operands

    def _operands(self, value: Node) -> tuple[Operand, Operand] | None:
        """The two factors of the sum; None when it is no sum of products of two loaded elements."""
        context = self.context
        loads = {a.node.id: a for a in access.of(context).globals if a.kind == "load"}
        inside = syntax.span(self.loop.loop)
        found: dict[str, tuple[Access, list[Node]]] = {}
        uses: set[Node] = set()
        for n in walk(value, ("subscript_expression", "identifier")):
            load = loads.get(n.id)
            if load is None and n.type == "identifier":
                v = affine.variable(context, n)
                held = _held(v) if v is not None and inside.holds(syntax.span(v.scope)) and v.param is None else None
                load = loads.get(held.id) if held is not None else None
                if load is not None and v is not None and syntax.squeeze(v.type) not in _plain(load.element):
                    return None
            if load is None:
                continue
            if "volatile" in load.element:
                return None
            key = f"{load.array}[{load.index}]"
            found.setdefault(key, (load, []))[1].append(n)
            uses.add(n)
        if len(found) != 2 or not zeros.zero_with(context, value, uses):
            return None
        effects = aliasing.effects(context)
        arrays = {load.array for load, _ in found.values()}
        if effects.unknown or arrays & effects.written:
            raise RuleRefused("what is multiplied may be written by the kernel, too")
        if conflict := aliasing.conflicts(context, context.workload, arrays, set(effects.written)):
            raise RuleRefused(f"{conflict[0][0]} overlaps {conflict[0][1]} in a captured launch")
        operands = []
        for load, nodes in found.values():
            index = digits.named(load.index, self.index, self.digits)
            mine = mentioned(index)
            known = {d.symbol for d in self.digits} | {self.loop.symbol}
            known |= {self.outer.symbol} if self.outer is not None else set()
            if self.loop.symbol not in mine or not self._steady(mine - known):
                return None
            operands.append(Operand(load, tuple(nodes), index, mine, ()))
        return operands[0], operands[1]

    def _closed(self, operand: Operand, shared: list[Node], top: list[Node], axis: Axis) -> Operand:
        """The operand with the declarations that its text needs, in order."""
        context = self.context
        free = {d.symbol for d in self.digits} - ({axis.digit.symbol} if axis.digit else set())
        given = {axis.variable.symbol, self.loop.symbol} | free
        pending, wanted = [operand.load.node], dict[int, Node]()
        while pending:
            for n in walk(pending.pop(), "identifier"):
                v = affine.variable(context, n)
                if v is None or v.param is not None or v.symbol in given:
                    continue
                statement = declarations.statement_of(v)
                other = v.name == self.thread.name or any(v is d.variable for d in self.digits)  # than the own axis
                if other or statement is None or [w.op for w in v.writes] != ["init"] or v.escapes:
                    raise RuleRefused(f"{v.name} cannot be computed by another thread")
                if statement in shared or statement in top or statement.id in wanted:
                    continue
                if not declarations.pure(statement):
                    raise RuleRefused(f"{v.name} is read from memory or computed by a function")
                wanted[statement.id] = statement
                pending += [w.value for w in v.writes if w.value is not None]
        closure = tuple(sorted(wanted.values(), key=lambda node: node.start_byte))
        return Operand(operand.load, operand.uses, operand.index, operand.names, closure)

    # ------------------------------------------------------------ the sum and the rest

    def _sum(self, add: syntax.Write) -> Variable:
        """The variable that the products are added to. RuleRefused unless it starts at zero, just for this loop."""
        v = affine.variable(self.context, add.target)
        first = v.writes[0] if v is not None and v.writes else None
        if v is None or first is None or v.pointer or v.extents or v.escapes or v.param is not None:
            raise RuleRefused(f"{text(add.target)} is not a plain variable")
        if v.type.removeprefix("const").strip() == "auto":
            raise RuleRefused(f"the type of {v.name} is not written out")
        if first.op != "init" or first.value is None or text(first.value) not in _LITERAL_ZEROS:
            raise RuleRefused(f"{v.name} does not start at zero")
        statement = declarations.statement_of(v)
        alone = statement is not None and len(statement.children_by_field_name("declarator")) == 1
        if not alone or statement not in self.beside or len(v.writes) < 2 or v.writes[1].node != add.node:
            raise RuleRefused(f"{v.name} is not declared just for the products")
        inside = syntax.span(self.loop.loop)
        early = [u for u in v.uses if u.start_byte < inside.start and not syntax.span(first.node).holds(syntax.span(u))]
        within = [u for u in v.uses if inside.holds(syntax.span(u)) and u != add.target]
        if early or within:
            raise RuleRefused(f"{v.name} is read while the products are added")
        return v

    def _shared_out(self, rows: Axis, columns: Axis) -> tuple[list[Node], list[Node], list[Node]]:
        """(declarations of no thread, of a batch, everything else of an output); without those of the digits and of the
        thread's index. Comments stay with what they are about."""
        context = self.context
        counters = {a.variable.symbol for a in (rows, columns)}
        moving = {self.thread.declaration.id}
        places = {d.variable.name for d in self.digits} | {self.thread.name}
        for variable in [d.variable for d in self.digits]:
            statement = declarations.statement_of(variable)
            if statement is None or not {v.name for v in declarations.made_by(context, statement)} <= places:
                raise RuleRefused(f"{variable.name} is declared together with others")
            moving.add(statement.id)
        batch = {d.symbol for d in self.digits} - counters
        inner = self.beside if self.outer is not None else []
        before = [n for n in self.kernel.work if self.outer is None or n != self.outer.loop]
        top: list[Node] = []
        shared: list[Node] = []
        work: list[Node] = []
        ready: set[str] = set()
        for node in (*self.kernel.top, *before, *inner):
            if node.id in moving or node.type == "comment":
                continue
            made = declarations.made_by(context, node)
            first = node in self.kernel.top
            once = node.type == "declaration" and declarations.pure(node) and all(declarations.once(v) for v in made)
            needs = declarations.needs(context, node)
            if once and first and self._steady(needs - ready):
                ready |= {v.symbol for v in made}
                top.append(node)
            elif (
                once
                and node not in inner
                and node.start_byte < self.loop.loop.start_byte
                and (self._steady(needs - ready - batch))
            ):
                ready |= {v.symbol for v in made}
                shared.append(node)
            elif first and node.type == "declaration" and not declarations.pure(node):
                raise RuleRefused("memory is read before the guard")
            else:
                work.append(node)
        return top, shared, work

    def _check_work(self, work: list[Node], top: list[Node]) -> None:
        context, loop = self.context, self.loop.loop
        if loop not in work:
            raise RuleRefused("the loop is not on its own")
        early = {v.symbol for n in top for v in declarations.made_by(context, n)}
        for write in (w for n in work for w in syntax.writes(n) if w.op != "init"):
            v = affine.variable(context, write.target) if write.target.type == "identifier" else None
            if v is not None and (v.param is not None or v.symbol in early):
                raise RuleRefused(f"{v.name} is changed by the threads")
        for node in work:
            if node == loop:
                continue
            for leave in walk(node, ("return_statement", "break_statement", "continue_statement", "goto_statement")):
                inside = next((a for a in _above(leave, node) if a.type in (*syntax.LOOPS, "switch_statement")), None)
                if leave.type == "goto_statement" or (leave.type != "return_statement" and inside is None):
                    raise RuleRefused("the work for an output jumps")
                if leave.type == "return_statement" and (inside is not None or self.outer is not None):
                    raise RuleRefused("a thread may leave from within a loop")
        if any(n.type.startswith("preproc") for n in work):
            raise RuleRefused("a directive stands among the work for an output")

    def _leaves(self, work: list[Node]) -> list[Node]:
        """Conditions before the loop under which an output is done without it."""
        found = []
        for node in work:
            if node == self.loop.loop:
                break
            if node.type == "if_statement" and next(walk(node, "return_statement"), None) is not None:
                last = syntax.statements(syntax.field(node, "consequence"))[-1]
                if node.child_by_field_name("alternative") is None and last.type == "return_statement":
                    found.append(syntax.field(syntax.field(node, "condition"), "value"))
        return found


def _held(v: Variable) -> Node | None:
    """The load that a variable is declared with."""
    if [w.op for w in v.writes] != ["init"] or v.writes[0].value is None or v.pointer or v.extents or v.escapes:
        return None
    value = strip_parens(v.writes[0].value)
    return value if value.type == "subscript_expression" else None


def _plain(element: str) -> tuple[str, ...]:
    bare = syntax.squeeze(element).removeprefix("const")
    return bare, f"const{bare}"


def _above(node: Node, end: Node) -> list[Node]:
    """The nodes around `node`, up to `end` and with it."""
    found = []
    current = node.parent
    while current is not None:
        found.append(current)
        if current == end:
            break
        current = current.parent
    return found
