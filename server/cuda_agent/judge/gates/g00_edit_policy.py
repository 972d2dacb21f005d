"""G0, the edit policy: what a candidate may change at all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import ClassVar

from tree_sitter import Node

from cuda_agent.judge import launch_text, vocabulary
from cuda_agent.judge.case import Case
from cuda_agent.judge.edit_tokens import Selection, Token, select
from cuda_agent.judge.gate import Needs, failed, not_run, passed
from cuda_agent.model import GateResult, LaunchSite
from cuda_agent.source import joined
from cuda_agent.source.tree import callee, calls, walk


class EditPolicy:
    """Text from a rule, a model or a person becomes machine code that is then trusted: before anything is compiled,
    the candidate must be the original file with only the selected kernel, the device helpers it alone uses, its
    launch sites and the host variables that only feed those changed; with the same signature (const and __restrict__
    may be added) unless every launch site changed too; with launch sites that launch the very shapes the candidate is
    judged at (`launch_text.py`); with nothing but launches changed in the other files that launch a header's kernel;
    without new assembly, printing, heap, traps, clocks, launches, globals, persistent state, includes, macros,
    attributes, volatile or odd spellings; calling only device functions of the file and CUDA's own; and in no lower
    precision unless the person opted in. It reads text, not meaning: it cannot see a wrong result, only means that no
    honest rewrite needs."""

    id: ClassVar[str] = "G0"
    name: ClassVar[str] = "edit policy"
    cost: ClassVar[float] = 0.01
    needs: ClassVar[Needs] = "text"

    def check(self, case: Case) -> GateResult:
        if list(joined.others(case.original)) != list(joined.others(case.candidate.text)):
            return failed(self, "the candidate is joined with other files than the original")
        before = select(case.module, case.workload.kernel)
        if before is None:
            return not_run(self, f"the file has no kernel {case.workload.kernel}", undecided=True)
        after = select(case.candidate_module, case.workload.kernel, before.feeding_names)
        if after is None:
            return failed(self, f"the candidate has no single kernel {case.workload.kernel}")
        found = list(violations(before, after, frozenset(case.options.allow)))
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            return failed(self, found[0] + more, violations=found)
        launch = case.candidate.launch
        if not launch.seen and (
            wrong := launch_text.mismatch(case.module, case.candidate_module, before.kernel, launch)
        ):
            return failed(self, f"the text launches other shapes than were judged: {wrong}")
        if case.unchanged_text:
            return passed(self, "the candidate is the original, letter for letter")
        names = ", ".join(joined.others(case.original))
        launched = f"its launches in {names}" if names else "its launches"
        return passed(self, f"only {before.kernel.name}, what it alone uses and {launched} changed")


def violations(before: Selection, after: Selection, allow: frozenset[str] = frozenset()) -> Iterator[str]:
    """Every rule that the candidate breaks, in one sentence each."""
    if after.kernel.has_error and not before.kernel.has_error:
        yield f"{after.kernel.name} does not parse"
    yield from _outside(before, after)
    yield from _signature(before, after)
    yield from _launch_sites(before, after)
    yield from _words(before, after, allow)
    yield from _spelling(before, after)
    yield from _attributes(before, after)
    yield from _directives(before, after)
    yield from _state(before, after)
    yield from _calls(before, after, allow)


# ---------------------------------------------------------------- outside the kernel


def _outside(before: Selection, after: Selection) -> Iterator[str]:
    """The rest of the file is the same tokens, but for includes and an alias that device code may need; of files that
    are joined with it there is no such thing."""
    old, new = before.rest(), _without_allowed(after.rest(), before.rest())
    if old == new:
        return
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            was, now = " ".join(old[a:b][:12]), " ".join(new[c:d][:12])
            what = f"`{was}` became `{now}`" if was and now else f"new: `{now}`" if now else f"gone: `{was}`"
            yield f"something outside {before.kernel.name} and its launches changed: {what}"
            return


def _without_allowed(new: list[str], old: list[str]) -> list[str]:
    known = set(old)
    kept: list[str] = []
    index = 0
    alias = ["namespace", None, "=", "cooperative_groups", ";"]
    while index < len(new):
        if joined.is_mark(new[index]):
            return kept + new[index:]
        include = re.fullmatch(r"#include <([^>]+)>", new[index])
        if include and include[1] in vocabulary.INCLUDES and new[index] not in known:
            index += 1
            continue
        part = new[index : index + 5]
        if (
            len(part) == 5
            and all(want in (None, got) for want, got in zip(alias, part, strict=True))
            and "cooperative_groups" not in known
        ):
            index += 5
            continue
        kept.append(new[index])
        index += 1
    return kept


# ---------------------------------------------------------------- signature and launches


def _plain_type(type_: str) -> str:
    text = re.sub(r"\b(const|__restrict__|__restrict|restrict|RESTRICT|__grid_constant__)\b", " ", type_)
    return re.sub(r"\s*([^\w\s])\s*", r"\1", " ".join(text.split()))


def signature(selection: Selection) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Template header, parameter types without const and restrict, linkage."""
    kernel = selection.kernel
    template = tuple(" ".join(text.split()) for text in kernel.template_params)
    return template, tuple(_plain_type(param.type) for param in kernel.params), kernel.extern_c


def _site_text(site: LaunchSite) -> str:
    return " ".join(
        " ".join((site.kernel, *site.template_args, site.grid, site.block, site.shared or "", *site.args)).split()
    )


def _signature(before: Selection, after: Selection) -> Iterator[str]:
    if signature(before) == signature(after):
        return
    same = {_site_text(site) for site in before.launches} & {_site_text(site) for site in after.launches}
    if same or not after.launches or before.module.other_uses(before.kernel):
        yield f"the signature of {before.kernel.name} changed and not every launch of it did"


def _launch_sites(before: Selection, after: Selection) -> Iterator[str]:
    """Shapes may change, by arithmetic; the stream, the template arguments and what is passed may not."""
    same_signature = signature(before) == signature(after)
    for old, new in zip_longest(before.launches, after.launches):
        if old is None or new is None:
            yield (
                f"the file launches {before.kernel.name} {len(after.launches)} times, the original "
                f"{len(before.launches)} times"
            )
            return
        if _flat(old.stream or "0") != _flat(new.stream or "0"):
            yield f"a launch of {before.kernel.name} moved to another stream: `{new.stream or 0}`"
        if _flat(*old.template_args) != _flat(*new.template_args):
            yield f"a launch of {before.kernel.name} has other template arguments"
        if same_signature and _flat(*old.args) != _flat(*new.args):
            yield f"a launch of {before.kernel.name} passes other arguments: `{', '.join(new.args)}`"
    yield from _host_calls(before, after)


def _host_calls(before: Selection, after: Selection) -> Iterator[str]:
    """Launch configurations and the variables that feed them call nothing new."""

    def called(selection: Selection) -> set[str]:
        spans = [site.span for site in selection.launches] + selection.feeding
        data = selection.module.document.data
        text = " ".join(data[span.start : span.end].decode("utf-8", "replace") for span in spans)
        return set(re.findall(r"([A-Za-z_]\w*)\s*\(", text))

    declared = set(re.findall(r"dim3\s+(\w+)\s*\(", after.module.document.text))
    for name in sorted(called(after) - called(before) - vocabulary.LAUNCH_CALLS - declared):
        if name != after.kernel.name:
            yield f"a launch of {after.kernel.name} calls {name}() on the host"


def _flat(*texts: str) -> str:
    return "\0".join("".join(text.split()) for text in texts)


# ---------------------------------------------------------------- inside


def _words(before: Selection, after: Selection, allow: frozenset[str]) -> Iterator[str]:
    old, new = _counts(before.device_tokens), _counts(after.device_tokens)
    state = _device_variables(after)
    types = _types(after)
    held = vocabulary.held(set(old) - (vocabulary.ALSO_NAMES - _types(before)))
    for word in sorted(new):
        if new[word] > old[word] and (why := vocabulary.forbidden(word)):
            yield f"new `{word}` in device code: {why}"
        if word in old:
            continue
        kind = vocabulary.downgrade(word, allow)
        if kind and kind not in held and (word not in vocabulary.ALSO_NAMES or word in types):
            yield f"new `{word}` in device code: {kind} is a precision downgrade that needs the person's opt-in"
        if word in state:
            yield f"device code newly uses the global `{word}`"
    if _launch_marks(after) > _launch_marks(before):
        yield "a launch inside device code"
    if (
        any(t.text == "PTX" or "ptx" in t.text.lower() for t in after.device_tokens if t.kind == "string")
        and "asm" not in old
    ):
        yield "assembly text in device code"


DIGRAPHS = frozenset(("<%", "%>", "<:", ":>", "%:"))


def _spelling(before: Selection, after: Selection) -> Iterator[str]:
    """Other spellings, by which a word or a mark is not what it looks like: joined lines, digraphs, look-alike
    letters."""

    def odd(selection: Selection) -> Counter[str]:
        found: Counter[str] = Counter()
        marks = [token for token in selection.device_tokens if token.kind == "punct"]
        for token, following in zip(marks, [*marks[1:], None], strict=True):
            if not token.text.isascii():
                found["a character outside ASCII"] += 1
            elif token.text == "\\":
                found["a backslash, which joins lines or spells a letter,"] += 1
            elif following is not None and token.span.end == following.span.start:
                pair = token.text + following.text
                found[f"the digraph `{pair}`"] += pair in DIGRAPHS
        return found

    new = odd(after)
    new.subtract(odd(before))
    for what in sorted(what for what, count in new.items() if count > 0):
        yield f"{what} is new in device code"


def _attributes(before: Selection, after: Selection) -> Iterator[str]:
    """No new attribute but harmless ones."""
    for word in sorted(_attribute_words(after) - _attribute_words(before) - vocabulary.ATTRIBUTES):
        yield f"new attribute `{word}` in device code"


def _attribute_words(selection: Selection) -> set[str]:
    """Words inside `__attribute__((…))` and `[[…]]`."""
    found: set[str] = set()
    device = selection.device_tokens
    for at, token in enumerate(device):
        double = token.text == "[" and at + 1 < len(device) and device[at + 1].text == "["
        if not double and token.text != "__attribute__":
            continue
        depth = 0
        for inner in device[at + (not double) :]:
            depth += (inner.text in "([") - (inner.text in ")]")
            if inner.kind == "word":
                found.add(inner.text.strip("_"))
            if depth == 0:
                break
    return found


def _counts(found: list[Token]) -> Counter[str]:
    return Counter(token.text for token in found if token.kind == "word")


def _launch_marks(selection: Selection) -> int:
    return sum(token.text == "<<<" for token in selection.device_tokens)


def _device_variables(selection: Selection) -> set[str]:
    """File-scope `__device__` and `__managed__` variables."""
    text = selection.module.tree.lexed.code.decode("utf-8", "replace")
    return set(re.findall(r"\b(?:__device__|__managed__)\s+(?:[\w:<>,*&]+\s+)*?\**(\w+)\s*(?:\[[^;{}()]*)?[=;]", text))


def _types(selection: Selection) -> set[str]:
    nodes = (selection.module.node(span) for span in selection.device_spans)
    return {_text(node) for root in nodes for node in walk(root, "type_identifier")}


def _directives(before: Selection, after: Selection) -> Iterator[str]:
    """No new preprocessor line in device code but `#pragma unroll`: an `#ifdef` could hide the original as a
    fallback."""
    old = Counter(token.text for token in before.device_tokens if token.kind == "directive")
    for token in after.device_tokens:
        if token.kind != "directive":
            continue
        if old[token.text] > 0:
            old[token.text] -= 1
        elif not re.match(r"#pragma (unroll|nounroll)\b", token.text):
            yield f"new preprocessor line in device code: `{token.text}`"


def _state(before: Selection, after: Selection) -> Iterator[str]:
    """`static` and `extern` variables that are not shared memory outlive the launch."""

    def lasting(selection: Selection) -> Counter[str]:
        found = [token for token in selection.device_tokens if token.kind in ("word", "punct")]
        names: Counter[str] = Counter()
        for index, token in enumerate(found):
            if token.text in ("static", "extern"):
                near = {other.text for other in found[max(0, index - 2) : index + 4]}
                if not near & {"__shared__", "constexpr", "__device__", "inline", "__forceinline__", "__inline__"}:
                    names[token.text] += 1
        return names

    old, new = lasting(before), lasting(after)
    for word in sorted(new):
        if new[word] > old[word]:
            yield f"new `{word}` variable in device code: it outlives the launch"


def _calls(before: Selection, after: Selection, allow: frozenset[str]) -> Iterator[str]:
    """Calls go to device functions of the file, to CUDA's own, to what the original calls already, or to functions of a
    precision that the person allows."""
    known = set(_called(before)) | vocabulary.CALLS | {helper.name for helper in after.helpers}
    local = _local_names(after)
    macros = set(re.findall(r"#define (\w+)\(", "\n".join(t.text for t in before.tokens if t.kind == "directive")))
    types = {token.text for token in before.device_tokens if token.kind == "word"}
    for name in sorted(set(_called(after)) - known - local - macros - types):
        if name.startswith(".") and name[1:] in vocabulary.METHODS:
            continue
        if any(vocabulary.PRECISION[kind].fullmatch(name) for kind in allow):
            continue
        yield f"device code newly calls {name}(), which is neither in this file nor a CUDA device function known here"


def _called(selection: Selection) -> Iterator[str]:
    """Names of called functions; methods with a dot before them."""
    for span in selection.device_spans:
        for call in calls(selection.module.node(span)):
            if not (span.start <= call.start_byte < span.end):
                continue
            function = call.child_by_field_name("function")
            name = callee(call)
            if name is not None:
                yield f".{name}" if function is not None and function.type == "field_expression" else name
            elif function is not None and function.type not in (
                "primitive_type",
                "type_descriptor",
                "sized_type_specifier",
            ):
                yield _text(function)


def _local_names(selection: Selection) -> set[str]:
    """Variables declared inside the device code: calling one means a lambda or a functor made there."""
    names: set[str] = set()
    for span in selection.device_spans:
        text = selection.module.text(span)
        names |= set(re.findall(r"\bauto\s+(\w+)\s*=\s*\[", text))
        names |= set(re.findall(r"\bdim3\s+(\w+)\s*\(", text))
    names |= {
        param for kernel in (selection.kernel,) for text in kernel.template_params for param in re.findall(r"\w+", text)
    }
    return names


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")
