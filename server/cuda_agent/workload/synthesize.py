"""Inputs made up from the text alone: signature, launch site, guards and index ranges.

The weakest inputs there are, always labelled `synthetic`. Anything that cannot be inferred for certain (structs,
pointers to pointers, indices that depend on data, unknown block sizes next to shared arrays) raises NoInputs with the
reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from cuda_agent.errors import NoInputs, WorkloadError
from cuda_agent.model import Arg, Buffer, Dim3, Kernel, Launch, LaunchSite, Pointer, Workload
from cuda_agent.source.symbols import Module
from cuda_agent.toolchain import names
from cuda_agent.workload import bundle, elements, launch_map, layout, reach
from cuda_agent.workload.layout import Concrete

# Values for the sizes of one launch: the first bounds the threads, later ones are inner lengths.
_SIZES = ((1000, 97, 13, 5), (333, 64, 7, 3))
_MOST = 256 << 20  # bytes of one launch
_INTEGER = re.compile(r"^[iu](8|16|32|64)$")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:\.[xyz])?")


def synthesize(module: Module, kernel: Kernel, *, directory: Path | None = None) -> Workload:
    """Two launches of different sizes, saved under `.cuda-agent/synthetic/<kernel>/` of `directory` (the file's folder
    by default). Raises NoInputs, WorkloadError."""
    if kernel.has_error:
        raise NoInputs(f"the text of {kernel.qualified_name} does not parse: capture a run of its program instead")
    home = (directory or Path(module.document.path).parent) / ".cuda-agent"
    folder = home / "synthetic" / bundle.safe_name(kernel.qualified_name)
    store = bundle.BlobStore(folder / "blobs")
    site = next(iter(module.launches_of(kernel)), None)
    maker = _Maker(module, kernel, site)
    launches = [maker.launch(sizes, number, store) for number, sizes in enumerate(_SIZES)]
    bundle.write_atomic(home / ".gitignore", b"*\n")
    saved = bundle.save(
        folder,
        Workload(kernel.qualified_name, "synthetic", tuple(launches), folder, store.path, device=""),
    )
    bundle.prune(folder, saved)
    return saved


class _Maker:
    def __init__(self, module: Module, kernel: Kernel, site: LaunchSite | None) -> None:
        self.module, self.kernel, self.site = module, kernel, site
        self.body = module.text(kernel.body)
        self.template = self._template_arguments()
        self.params = layout.concrete(kernel, self.template, module.document.text)

    def launch(self, sizes: tuple[int, ...], number: int, store: bundle.BlobStore) -> Launch:
        scalars = self._scalars(sizes)
        integers = {name: int(value) for name, value in scalars.items() if self._is_integer(name)}
        grid, block, shared = self._shape(integers)
        known = self._constants(integers)
        known |= reach.builtins(grid, block)
        pointers = frozenset(param.name for param in self.params if param.pointer)
        found = reach.Reach(dict(known), pointers).walk(self.module.node(self.kernel.body))
        args: list[Arg] = []
        buffers: list[Buffer] = []
        address, total = layout.BASE, 0
        for position, (param, offset) in enumerate(zip(self.params, layout.offsets(self.params), strict=True)):
            if not param.pointer:
                args.append(Arg(offset, layout.scalar(param, scalars[param.name])))
                continue
            low, high = found.get(param.name, (0, 0))
            if low < 0:
                raise NoInputs(f"the kernel may reach {-low} elements before the start of {param.name}")
            total += (high + 1) * param.size
            if total > _MOST:
                raise NoInputs(f"made-up inputs would need more than {_MOST >> 20} MiB: capture a smaller run instead")
            data = _values(param, high + 1, position + 1)
            args.append(Arg(offset, address.to_bytes(8, "little"), (Pointer(0, len(buffers), 0),)))
            buffers.append(Buffer(address, len(data), store.put(data), None))
            address += layout.spread(len(data))
        mangled = layout.mangle(self.kernel, self.params, self.template)
        return Launch(mangled, names.demangle(mangled), grid, block, shared, tuple(args), tuple(buffers), number)

    def _template_arguments(self) -> tuple[str, ...]:
        """The launch's template arguments, typedefs followed; deduced from its arguments where it has none."""
        kernel, site, text = self.kernel, self.site, self.module.document.text
        if site is None or not kernel.template_params:
            return ()
        if site.template_args:
            return tuple(layout.resolve_type(argument, {}, text) for argument in site.template_args)
        found = []
        for name in layout.template_names(kernel):
            for param, argument in zip(kernel.params, site.args, strict=False):
                declared = re.search(rf"\b([A-Za-z_][\w:]*)\s*\*[\s\w*,]*\b{re.escape(argument)}\s*[,;=]", text)
                if param.element == name and param.pointer == 1 and argument.isidentifier() and declared:
                    found.append(layout.resolve_type(declared[1], {}, text))
                    break
        return tuple(found)

    # ------------------------------------------------------------ scalars

    def _is_integer(self, name: str) -> bool:
        return any(param.name == name and _INTEGER.match(param.element) for param in self.params)

    def _scalars(self, sizes: tuple[int, ...]) -> dict[str, float]:
        """Integers that something is compared with, that make the grid, or that multiply are sizes, in the order in
        which guards, loops, the launch and the body name them; other integers are 1, floats 0.5."""
        scalars = {param.name: param for param in self.params if not param.pointer}
        order: list[str] = []
        compared = re.findall(r"[<>]=?\s*\(?([A-Za-z_]\w*)", self.body) + re.findall(r"([A-Za-z_]\w*)\s*>=?", self.body)
        texts = [guard.condition for guard in self.kernel.guards] + [loop.bound or "" for loop in self.kernel.loops]
        if self.site is not None:
            names_ = {argument: param.name for argument, param in zip(self.site.args, self.params, strict=False)}
            compared += [names_.get(word, word) for word in _WORD.findall(self.site.grid)]
        compared += [
            word for pair in re.findall(r"[*/%]\s*\(?([A-Za-z_]\w*)|([A-Za-z_]\w*)\s*[*/%]", self.body) for word in pair
        ]
        for word in [*(w for text in texts for w in _WORD.findall(text)), *compared]:
            if word in scalars and self._is_integer(word) and word not in order:
                order.append(word)
        values: dict[str, float] = {}
        for name, param in scalars.items():
            if name in order:
                value: float = sizes[min(order.index(name), len(sizes) - 1)]
                value = min(value, 100) if param.element in ("i8", "u8") else value
            else:
                value = 1 if self._is_integer(name) else 0.5
            values[name] = value
        return values

    def _constants(self, integers: Mapping[str, int]) -> dict[str, reach.Interval]:
        """Scalars, template numbers and the file's integer macros and constants, as intervals of one value."""
        known = dict(integers)
        for name, argument in zip(layout.template_names(self.kernel), self.template, strict=False):
            known.update((name, value) for value in self._numbers(argument, known))
        for name in set(_WORD.findall(self.body)) - set(known):
            if (definition := self._definition(name, file_scope=True)) is not None:
                known.update((name, value) for value in self._numbers(definition, known))
        return {name: (value, value) for name, value in known.items()}

    # ------------------------------------------------------------ shape

    def _shape(self, integers: Mapping[str, int]) -> tuple[Dim3, Dim3, int]:
        known = dict(integers)
        if self.site is not None:
            # The program has its own names: `k<<<grid, block>>>(x, rows)` makes `rows` the parameter's value.
            for text, param in zip(self.site.args, self.params, strict=False):
                if param.name in integers and re.fullmatch(r"[A-Za-z_]\w*", text):
                    known[text] = integers[param.name]
        block = self._dims(self.site.block, known) if self.site is not None else None
        if block is None:
            if self.kernel.shared:
                raise NoInputs("the block size cannot be read from a launch, and the shared arrays may depend on it")
            block = (16, 16, 1) if "threadIdx.y" in self.body else (256, 1, 1)
        if not 1 <= block[0] * block[1] * block[2] <= 1024:
            raise NoInputs(f"the block size {block} of the launch is not a legal one for these made-up sizes")
        grid = self._dims(self.site.grid, known) if self.site is not None else None
        if grid is None:
            grid = self._guarded_grid(integers, block)
        if grid[0] * grid[1] * grid[2] > 1 << 20 or max(grid[1:]) > 65535:
            raise NoInputs(f"the grid {grid} is too large for made-up inputs")
        return grid, block, self._shared(known)

    def _shared(self, known: Mapping[str, int]) -> int:
        dynamic = any(array.dynamic for array in self.kernel.shared)
        text = self.site.shared if self.site is not None else None
        if text is None or text.strip() == "0":
            if dynamic and self.site is None:
                raise NoInputs("no launch in this file says how much dynamic shared memory the kernel needs")
            return 0
        for value in self._numbers(text, known):
            return value
        raise NoInputs(f"the dynamic shared memory size {text} of the launch cannot be evaluated")

    def _guarded_grid(self, integers: Mapping[str, int], block: Dim3) -> Dim3:
        """As many blocks as the size that bounds each axis needs; one block a value where only blockIdx is compared."""
        found = [1, 1, 1]
        for axis, letter in enumerate("xyz"):
            if f"blockIdx.{letter}" not in self.body:
                continue
            size = self._bound_of(letter, integers)
            if size is None:
                raise NoInputs(f"nothing says how many blocks the kernel needs in {letter}")
            threads = block[axis] if f"threadIdx.{letter}" in self._definition_with(f"blockIdx.{letter}") else 1
            found[axis] = -(-size // threads)
        return found[0], found[1], found[2]

    def _definition_with(self, word: str) -> str:
        return next((line for line in re.split(r"[;{}]", self.body) if word in line), "")

    def _bound_of(self, letter: str, integers: Mapping[str, int]) -> int | None:
        statement = self._definition_with(f"blockIdx.{letter}")
        match = re.search(r"([A-Za-z_]\w*)\s*=[^=]", statement)
        variable = re.escape(match[1]) if match else rf"blockIdx\.{letter}"
        compare = re.search(rf"{variable}\s*(?:<|>=)\s*([A-Za-z_]\w*)", self.body)
        return integers.get(compare[1]) if compare else None

    # ------------------------------------------------------------ the host's expressions

    def _dims(self, text: str, known: Mapping[str, int]) -> Dim3 | None:
        """A launch configuration's grid or block: a number, `dim3(…)`, or a variable defined as one of these."""
        text = text.strip()
        for _ in range(4):
            inner = re.fullmatch(r"(?:dim3\s*[({]|\{)(.*)[)}]", text, re.DOTALL)
            if inner:
                parts = list(_split(inner[1]))
                values = [value for part in parts for value in self._numbers(part, known)]
                if len(values) != len(parts) or not 1 <= len(parts) <= 3 or min(values) < 1:
                    return None
                x, y, z = [*values, 1, 1][:3]
                return x, y, z
            if not re.fullmatch(r"[A-Za-z_]\w*", text) or text in known:
                break
            definition = self._definition(text)
            if definition is None:
                return None
            text = definition
        for value in self._numbers(text, known):
            return (value, 1, 1) if value >= 1 else None
        return None

    def _definition(self, name: str, file_scope: bool = False) -> str | None:
        """What a name is initialised with in this file: a macro, a constant, `dim3 name(…)`; None when there is none or
        several that differ."""
        text = self.module.document.text
        found = re.findall(rf"^[ \t]*#[ \t]*define[ \t]+{name}[ \t]+(.+?)[ \t]*(?://.*)?$", text, re.MULTILINE)
        constant = r"(?:constexpr|const)\b[\w\s]*?" if file_scope else r"[\w:<>\s]*?\b"
        found += re.findall(rf"\b{constant}\b{name}\s*=\s*([^;=][^;]*?)\s*[;]", text)
        if not file_scope:
            found += [f"dim3({inner})" for inner in re.findall(rf"\bdim3\s+{name}\s*[({{]([^;]*?)[)}}]\s*;", text)]
        unique = list(dict.fromkeys(part.strip() for part in found))
        return unique[0] if len(unique) == 1 else None

    def _numbers(self, text: str, known: Mapping[str, int], depth: int = 0) -> Iterator[int]:
        """The value of a host expression, or nothing."""
        text = re.sub(r"\b(?:static_cast|reinterpret_cast)\s*<[^<>]*>|\(\s*(?:unsigned|int|size_t|long)\s*\)", "", text)
        text = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text)
        text = re.sub(r"\bsizeof\s*\(\s*([\w\s]+?)\s*\)", lambda m: str(self._sizeof(m[1])), text)
        text = re.sub(r"\b(?:\w*(?:ceil_?div|div_?up|cdiv|divceil)\w*)\s*\(", "ceil_div(", text, flags=re.IGNORECASE)
        values = dict(known)
        for word in _WORD.findall(text):
            if word in values or word in ("ceil_div", "min", "max"):
                continue
            base, _, axis = word.partition(".")
            definition = self._definition(base)
            if definition is None or depth > 4:
                return
            if axis:
                dims = self._dims(base, known)
                if dims is None:
                    return
                text = re.sub(rf"\b{re.escape(word)}\b", str(dims["xyz".index(axis)]), text)
                continue
            inner = list(self._numbers(definition, known, depth + 1))
            if not inner:
                return
            values[word] = inner[0]
        try:
            yield launch_map.evaluate(text, values)
        except WorkloadError:
            return  # not integer arithmetic: the caller says what that means

    def _sizeof(self, type_: str) -> int:
        known = dict(zip(layout.template_names(self.kernel), self.template, strict=False))
        return elements.sizeof(layout.resolve_type(type_, known, self.module.document.text))


def _split(text: str) -> Iterator[str]:
    """At commas outside parentheses."""
    depth, start = 0, 0
    for i, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    yield text[start:].strip()


def _values(param: Concrete, count: int, seed: int) -> bytes:
    if param.element in ("f64", "f32", "f16", "bf16"):
        return layout.fill(param.element, count * param.width, "normal", seed, 0.0, 1.0)
    return layout.fill(param.element, count * param.width, "integers", seed, 0, 100)
