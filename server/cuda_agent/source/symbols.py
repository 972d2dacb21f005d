"""What a file says: its kernels, its launches, and which launch means which kernel."""

from __future__ import annotations

import hashlib
import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from functools import cached_property, lru_cache

from tree_sitter import Node

from cuda_agent.errors import SourceError
from cuda_agent.model import Kernel, LaunchSite, Span
from cuda_agent.source import joined, resolve
from cuda_agent.source.body import contents
from cuda_agent.source.documents import Document, encode
from cuda_agent.source.headers import Header
from cuda_agent.source.launches import launches
from cuda_agent.source.lexical import closing, cut, split_commas
from cuda_agent.source.params import params
from cuda_agent.source.parse import Tree, other_branches, parse, parse_part
from cuda_agent.source.scopes import scope
from cuda_agent.source.tree import span as span_of

_MAIN = re.compile(rb"\b(?:int|void|auto)\s+main\s*\(")
_BODY = re.compile(rb"\s*(?:noexcept\s*)?(?:->\s*int\s*)?(?:try\s*)?\{")
_EXTERN_C = re.compile(rb'extern\s*"C"')
_TEMPLATE = re.compile(rb"template\s*<")
_TREES = 16  # trees kept to parse the next version of a file from


class Module:
    """One snapshot of one file, analysed. Everything is found on first use and kept."""

    def __init__(self, document: Document, tree: Tree) -> None:
        self.document = document
        self.tree = tree
        self._parts: list[tuple[Span, Node]] = []  # kernels that needed a tree of their own

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The file's kernel definitions in text order; declarations are not among them."""
        found = (header for header in self.tree.headers if header.body is not None)
        return tuple(self._kernel(header) for header in found if header.name_span.start < self.own_end)

    @cached_property
    def launches(self) -> tuple[LaunchSite, ...]:
        return launches(self.document, self.tree)

    @cached_property
    def own_end(self) -> int:
        """Where the file itself ends; other files may be joined with it (`joined.py`)."""
        return len(encode(joined.own(self.document.text)))

    @cached_property
    def has_main(self) -> bool:
        """Whether the file itself has one."""
        code = self.tree.lexed.code
        for match in _MAIN.finditer(code, 0, self.own_end):
            close = closing(code, match.end() - 1)
            if close is not None and _BODY.match(code, close + 1):
                return True
        return False

    @property
    def root(self) -> Node:
        return self.tree.root_node

    @property
    def has_error(self) -> bool:
        return self.tree.root_node.has_error

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name: qualified, or plain when only one has it; `name@LINE` (1-based) tells overloads
        apart. Raises SourceError when there is none or several."""
        wanted, _, line = name.partition("@")
        wanted = wanted.strip().removeprefix("::")
        found = [kernel for kernel in self.kernels if kernel.qualified_name == wanted]
        found = found or [kernel for kernel in self.kernels if kernel.name == wanted]
        found = found or [kernel for kernel in self.kernels if kernel.qualified_name.endswith("::" + wanted)]
        if line.isdigit():
            found = [kernel for kernel in found if self.line(kernel.name_span.start) == int(line)]
        if len(found) == 1:
            return found[0]
        path = self.document.path
        if found:
            choices = ", ".join(f"{kernel.qualified_name}@{self.line(kernel.name_span.start)}" for kernel in found)
            raise SourceError(f"{path} has {len(found)} kernels named {wanted}; say which one: {choices}")
        names = sorted({kernel.qualified_name for kernel in self.kernels})
        known = f"it has {', '.join(names)}" if names else "it has no __global__ function with a body"
        raise SourceError(f"{path} has no kernel named {name}; {known}")

    def launches_of(self, kernel: Kernel) -> tuple[LaunchSite, ...]:
        """Launch sites that mean this kernel (see resolve.py)."""
        return self._launches_by_kernel.get(kernel.span, ())

    def template_of(self, kernel: Kernel) -> Kernel | None:
        """The template that `kernel` is an explicit specialisation of; None for other kernels. A launch of the template
        with arguments that the text does not tell may start either."""
        name, special, _ = kernel.qualified_name.partition("<")
        templates = (one for one in self.kernels if special and one.qualified_name == name)
        return next(templates, None)

    @cached_property
    def _launches_by_kernel(self) -> dict[Span, tuple[LaunchSite, ...]]:
        result: dict[Span, tuple[LaunchSite, ...]] = {}
        for site, kernels in self._resolved:
            for kernel in kernels:
                result[kernel.span] = (*result.get(kernel.span, ()), site)
        return result

    def kernels_of(self, site: LaunchSite) -> tuple[Kernel, ...]:
        """Kernels a launch may mean: one as a rule; several where `#if` picks; none when it is defined elsewhere."""
        return next((kernels for other, kernels in self._resolved if other == site), ())

    @cached_property
    def _resolved(self) -> tuple[tuple[LaunchSite, tuple[Kernel, ...]], ...]:
        code = self.tree.lexed.code
        return tuple(
            (site, resolve.resolve(site, self.kernels, scope(self.tree, site.span.start).names, code))
            for site in self.launches
        )

    def other_uses(self, kernel: Kernel) -> tuple[Span, ...]:
        """Where the kernel's name stands and is neither a definition, a declaration nor a launch: its address is taken
        there (cudaLaunchKernel, cudaFuncSetAttribute, a table of functions)."""
        named = {header.name_span.start for header in self.tree.headers}
        starts = [site.span.start for site in self.launches]
        word = re.compile(rb"\b" + re.escape(kernel.name.encode()) + rb"\b")
        result = []
        for match in word.finditer(self.tree.lexed.code):
            at = bisect_right(starts, match.start())
            launched = at > 0 and match.start() in self.launches[at - 1].span
            if match.start() not in named and not launched:
                result.append(Span(*match.span()))
        return tuple(result)

    def kernel_at(self, offset: int) -> Kernel | None:
        return next((kernel for kernel in self.kernels if kernel.span.start <= offset <= kernel.span.end), None)

    def launch_at(self, offset: int) -> LaunchSite | None:
        """The innermost launch whose text holds the offset."""
        found = [site for site in self.launches if site.span.start <= offset <= site.span.end]
        return min(found, key=lambda site: site.span.end - site.span.start, default=None)

    def kernel_hash(self, kernel: Kernel) -> str:
        """sha256 (hex) of the definition's text; it changes with any character of it."""
        return hashlib.sha256(self.document.data[kernel.span.start : kernel.span.end]).hexdigest()

    def node(self, span: Span) -> Node:
        """The smallest named node that covers `span`; for a kernel that needed its own tree, from that tree."""
        for part, root in self._parts:
            if part.holds(span):
                found = root.named_descendant_for_byte_range(span.start, span.end)
                if found is not None:
                    return found
        return self.root.named_descendant_for_byte_range(span.start, span.end) or self.root

    def text(self, item: Node | Span) -> str:
        """What is written there."""
        return self.document.slice(item if isinstance(item, Span) else span_of(item))

    def line(self, offset: int) -> int:
        """1-based line of a byte offset."""
        return self.document.lines.line_of(offset) + 1

    # ------------------------------------------------------------ kernels

    def _kernel(self, header: Header) -> Kernel:
        lexed = self.tree.lexed
        definition, has_error = self._definition(header)
        body_node = definition.child_by_field_name("body") if definition is not None else None
        assert header.body is not None
        if body_node is not None:
            body = span_of(body_node)
        else:
            close = closing(lexed.code, header.body)
            body = Span(header.body, close + 1 if close is not None else self._unclosed(header))
        shared, loops, guards = contents(self.document, body_node) if body_node is not None else ((), (), ())
        parameters = _parameter_list(definition, header)
        around = scope(self.tree, header.name_span.start)
        special = self.document.slice(header.specialised) if header.specialised is not None else ""
        return Kernel(
            name=header.name,
            qualified_name="::".join((*around.names, *header.scope, header.name)) + " ".join(special.split()),
            template_params=self._template(header),
            params=params(self.document, lexed.code, header.params, parameters),
            launch_bounds=tuple(self.document.slice(span) for span in header.launch_bounds)
            if header.launch_bounds is not None
            else None,
            shared=shared,
            loops=loops,
            guards=guards,
            span=Span(header.span.start, body.end),
            name_span=header.name_span,
            params_span=header.params,
            body=body,
            extern_c=around.extern_c or self._extern_c(header),
            has_error=has_error,
        )

    def _definition(self, header: Header) -> tuple[Node | None, bool]:
        """The function_definition of a header and whether it is damaged. When the whole tree lost it, the definition
        is parsed alone; when `#if` splits it, with its first branches only, and then it counts as damaged."""
        node = _function(self.root, header)
        if node is not None and not node.has_error:
            return node, False
        source, code = self.tree.source, self.tree.lexed.code
        end = closing(code, header.body or header.span.end)
        whole = Span(header.span.start, end + 1 if end is not None else self._unclosed(header))
        alone = _function(parse_part(source, whole), header)
        if alone is not None and not alone.has_error:
            self._parts.append((whole, alone))
            return alone, False
        branches = other_branches(self.tree.lexed, whole, header.body or header.span.end)
        if branches:
            end = closing(cut(code, branches), header.body or header.span.end)
            whole = Span(header.span.start, end + 1 if end is not None else whole.end)
            first = _function(parse_part(cut(source, branches), whole), header)
            if first is not None and (not first.has_error or (node is None and alone is None)):
                self._parts.append((whole, first))
                return first, True
        if node is not None:
            return node, True
        if alone is not None:
            self._parts.append((whole, alone))
        return alone, True

    def _unclosed(self, header: Header) -> int:
        """Where a body without closing brace ends: before the next kernel header, or at the end of the text."""
        following = (other.span.start for other in self.tree.headers if other.span.start > header.span.end)
        return min(following, default=len(self.document.data))

    def _template(self, header: Header) -> tuple[str, ...]:
        code = self.tree.lexed.code
        match = _TEMPLATE.match(code, header.span.start)
        if match is None:
            return ()
        depth = 0
        for at in range(match.end() - 1, header.marker):
            depth += (code[at] == 60) - (code[at] == 62)
            if depth == 0:
                return tuple(
                    self.document.slice(span) for span in split_commas(code, Span(match.end(), at), types=True)
                )
        return ()

    def _extern_c(self, header: Header) -> bool:
        return _EXTERN_C.match(self.document.data, header.span.start, header.marker) is not None


def _function(root: Node, header: Header) -> Node | None:
    """The function_definition whose name and body are the header's."""
    node: Node | None = root.descendant_for_byte_range(header.name_span.start, header.name_span.end)
    while node is not None:
        if node.type == "function_definition":
            body = node.child_by_field_name("body")
            if body is not None and body.type == "compound_statement" and body.start_byte == header.body:
                return node
            return None
        node = node.parent
    return None


def _parameter_list(definition: Node | None, header: Header) -> Node | None:
    if definition is None:
        return None
    found = definition.descendant_for_byte_range(header.params.start - 1, header.params.end + 1)
    return found if found is not None and found.type == "parameter_list" else None


_lock = threading.Lock()
_last: OrderedDict[str, Tree] = OrderedDict()


@lru_cache(maxsize=64)
def module(document: Document) -> Module:
    """The analysed file. Kept for the 64 latest documents; parsed incrementally from the last text of the same path.
    Never raises on any text."""
    with _lock:
        previous = _last.pop(document.path, None)
    tree = parse(document, previous)
    with _lock:
        _last[document.path] = tree
        while len(_last) > _TREES:
            _last.popitem(last=False)
    return Module(document, tree)
