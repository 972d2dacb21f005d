"""Facts, jobs and proposals in words: lens titles (one line) and hovers (markdown). No analysis here.

Text-only facts come from the syntax tree and are there at once; the compiler's are added when the engine has them."""

from __future__ import annotations

import re

from cuda_agent.lsp.compiler_facts import KernelFacts
from cuda_agent.lsp.jobs import Job
from cuda_agent.model import Candidate, Kernel, LaunchSite, Proposal, SharedArray
from cuda_agent.source.symbols import Module


def plural(count: int, word: str, many: str | None = None) -> str:
    return f"{count} {word if count == 1 else many or word + ('es' if word.endswith('ch') else 's')}"


def code(text: str) -> str:
    """Inline code of text that may hold backticks or line breaks."""
    line = " ".join(text.split())
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence, space = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{space}{line}{space}{fence}"


# ---------------------------------------------------------------- lens titles


def text_title(module: Module, kernel: Kernel) -> str:
    """What the text alone says: launches, shared arrays, launch bounds."""
    launches, how = _launches(module, kernel)
    parts = [plural(len(launches), "launch") + f" in this file{how}"]
    if len(launches) == 1:
        parts = [f"launched{how} as <<<{launches[0].grid}, {launches[0].block}>>>"]
    if kernel.shared:
        parts.append(plural(len(kernel.shared), "shared array"))
    if kernel.launch_bounds:
        parts.append(f"bounds {', '.join(kernel.launch_bounds)}")
    return " · ".join(" ".join(part.split()) for part in parts)


def _launches(module: Module, kernel: Kernel) -> tuple[tuple[LaunchSite, ...], str]:
    """The launches, and in which way they are the kernel's: an explicit specialisation is mostly launched by its
    template's name, with arguments that the text does not tell."""
    launches, template = module.launches_of(kernel), module.template_of(kernel)
    if launches or template is None:
        return launches, ""
    return module.launches_of(template), " with its template"


def short_name(kernel: Kernel) -> str:
    """The name without its namespaces, with the arguments of an explicit specialisation."""
    name, special, arguments = kernel.qualified_name.partition("<")
    return name.rpartition("::")[2] + special + arguments


def facts_title(module: Module, kernel: Kernel, facts: KernelFacts | None) -> str:
    if kernel.has_error:
        return "syntax error in this kernel"
    if facts is None or not facts.title:
        return text_title(module, kernel)
    return facts.title if facts.current else f"{facts.title} (before this edit)"


def proposal_title(proposal: Proposal) -> str:
    """`2.31× verified on NVIDIA H200`, or what may be said without a time."""
    verdict = proposal.verdict
    if proposal.state == "stale":
        return "stale: the kernel changed since, verify again"
    if verdict.status != "verified":
        return f"{verdict.status}: {_why(proposal)}" if _why(proposal) else "not fully verified: verify it again"
    if verdict.timing is not None:
        timing = verdict.timing
        interval = f"[{timing.ci[0]:.2f}, {timing.ci[1]:.2f}]"
        return f"{timing.ratio:.2f}× {interval} verified on {timing.device}"
    return " · ".join(["verified on the emulator", *filter(None, [traffic(proposal)]), "not measured"])


def lens_title(proposal: Proposal) -> str:
    """As `proposal_title`, and who wrote it."""
    by = model_of(proposal.candidate)
    if proposal.candidate.origin == "person":
        return proposal_title(proposal)
    return f"{proposal_title(proposal)} · {f'written by {by}' if by else 'by rules'}"


def model_of(candidate: Candidate) -> str:
    """The language model that wrote it; empty when none did. What follows the model in an origin are rules it used."""
    kind, _, rest = candidate.origin.partition(":")
    return rest.partition("+")[0] if kind == "model" else ""


def authors(candidate: Candidate) -> list[str]:
    """Who made it, and why in their words, as lines of a list."""
    kind, _, rest = candidate.origin.partition(":")
    model = model_of(candidate)
    if model:
        rules = rest.partition("+")[2]
        lines = [
            f"- written by the language model {code(model)}" + (f", with the rules {code(rules)}" if rules else "")
        ]
    elif kind == "rule":
        lines = [f"- made by the rules {code(rest)}"]
    else:
        lines = [f"- made by {code(candidate.origin)}"]
    # As code: a model's words must not become links or pictures, which an editor would load.
    return [*lines, *([f"- why: {code(' '.join(candidate.reason.split()))}"] if candidate.reason else [])]


def traffic(proposal: Proposal) -> str:
    """`predicted sectors −87 %`, empty when nothing was counted."""
    before = proposal.verdict.traffic.get("sectors_before", 0.0)
    after = proposal.verdict.traffic.get("sectors_after", 0.0)
    if before <= 0:
        return ""
    change = (after - before) / before
    sign = "−" if change < 0 else "+"
    return f"predicted sectors {sign}{abs(change):.0%}".replace("%", " %")


def _why(proposal: Proposal) -> str:
    for gate in proposal.verdict.gates:
        if gate.status == "fail" or gate.undecided:
            return f"{gate.id} {gate.name}: {gate.detail}"
    return ""


def job_title(job: Job) -> str:
    best = f" · best {job.best}" if job.best else ""
    return f"{job.title}: {job.percentage} % · {job.message}{best}"


# ---------------------------------------------------------------- hovers


def kernel_hover(
    module: Module,
    kernel: Kernel,
    facts: KernelFacts | None,
    problem: str | None,
    proposal: Proposal | None,
    job: Job | None,
    note: str | None,
) -> str:
    """`problem`: why there are no compiler facts; `note`: what a person can do about it (trust, a run command)."""
    lines = [f"**kernel** {code(kernel.qualified_name)}", "", f"- {text_facts(module, kernel)}"]
    if kernel.has_error:
        lines.append("- the text of this kernel has a syntax error: it is compiled as it is and never rewritten")
    if facts is not None:
        when = "" if facts.current else ", before this edit"
        lines += ["", f"**compiler** ({facts.arch}{when})", ""]
        lines += [f"- {sentence}" for sentence in facts.sentences or (facts.title,)]
    if problem is not None:
        lines += ["", f"**no compiler facts**: {problem.splitlines()[0]}"]
    if proposal is not None:
        lines += ["", *proposal_hover(proposal)]
    if job is not None:
        lines += ["", job_title(job)]
    if note is not None:
        lines += ["", f"*{note}*"]
    return "\n".join(lines)


def text_facts(module: Module, kernel: Kernel) -> str:
    pointers = [param for param in kernel.params if param.pointer]
    parts = [f"{plural(len(kernel.params), 'parameter')}, {plural(len(pointers), 'pointer')}"]
    plain = [param.name for param in pointers if not param.restrict]
    if plain:
        parts.append(f"not `__restrict__`: {', '.join(code(name) for name in plain)}")
    if kernel.shared:
        parts.append("shared: " + ", ".join(code(shared_text(array)) for array in kernel.shared))
    bounds = ", ".join(kernel.launch_bounds) if kernel.launch_bounds else ""
    parts.append(f"`__launch_bounds__({bounds})`" if bounds else "no `__launch_bounds__`")
    sites, how = _launches(module, kernel)
    launches = [code(f"<<<{site.grid}, {site.block}>>>") for site in sites]
    parts.append(f"launched{how} as {', '.join(launches)}" if launches else "no launch in this file")
    return "; ".join(parts)


def shared_text(array: SharedArray) -> str:
    extents = "".join(f"[{extent}]" for extent in array.extents) if array.extents else "[]" if array.dynamic else ""
    return f"{array.element} {array.name}{extents}"


def proposal_hover(proposal: Proposal) -> list[str]:
    """The evidence as a list: what was done, on which inputs, each gate that did not pass, and every assumption."""
    verdict = proposal.verdict
    lines = [f"**proposal** {proposal_title(proposal)}", "", *authors(proposal.candidate)]
    lines.append(f"- evidence: {verdict.level}; inputs: {verdict.inputs}; numeric: {verdict.numeric or 'not compared'}")
    passed = [gate.id for gate in verdict.gates if gate.status == "pass"]
    lines.append(f"- gates passed: {', '.join(passed) or 'none'}")
    for gate in verdict.gates:
        if gate.status != "pass":
            lines.append(f"- {gate.id} {gate.name} {gate.status.replace('-', ' ')}: {gate.detail}")
    timing = verdict.timing
    if timing is not None:
        lines.append(
            f"- {timing.original_us:.2f} µs → {timing.candidate_us:.2f} µs, {plural(timing.samples, 'sample')}"
        )
    if timing is not None and len(timing.per_launch) > 1:
        lines += ["", "| launch | ratio | 95 % interval |", "|---|---|---|"]
        lines += [f"| {shape} | {ratio:.2f}× | {low:.2f}–{high:.2f} |" for shape, ratio, low, high in timing.per_launch]
        lines.append("")
    lines += [f"- {assumption.known}: {assumption.text}" for assumption in proposal.candidate.assumptions]
    return lines


def launch_hover(module: Module, site: LaunchSite, kernel: Kernel | None, facts: KernelFacts | None) -> str:
    lines = [f"**launch** of {code(site.kernel)}", "", f"- grid {code(site.grid)}, block {code(site.block)}"]
    lines.append(
        f"- dynamic shared memory {code(site.shared) if site.shared else '0'}, stream {code(site.stream or '0')}"
    )
    if site.template_args:
        lines.append(f"- template arguments {', '.join(code(argument) for argument in site.template_args)}")
    if kernel is None:
        lines.append("- the kernel is defined in another file")
    else:
        line = module.line(kernel.name_span.start)
        lines.append(f"- means {code(kernel.qualified_name)}, line {line}: {text_facts(module, kernel)}")
    if facts is not None:
        when = "" if facts.current else ", before this edit"
        lines += ["", f"**compiler** ({facts.arch}{when})", "", *(f"- {s}" for s in facts.sentences or (facts.title,))]
    return "\n".join(lines)


def shared_hover(array: SharedArray, kernel: Kernel, facts: KernelFacts | None) -> str:
    lines = [f"**shared memory** {code(shared_text(array))} of kernel {code(kernel.qualified_name)}", ""]
    if array.dynamic:
        lines.append("- dynamic: its size is the third launch argument")
    else:
        lines.append("- static: its size counts against the block's shared memory and so against occupancy")
    if facts is not None:
        lines += [f"- {sentence}" for sentence in facts.sentences if "shared" in sentence]
    return "\n".join(lines)


def bounds_hover(kernel: Kernel, facts: KernelFacts | None) -> str:
    given = kernel.launch_bounds or ()
    names = ("at most {} threads a block", "at least {} blocks a multiprocessor", "at most {} blocks a cluster")
    lines = [f"**launch bounds** of kernel {code(kernel.qualified_name)}", ""]
    lines += [f"- {text.format(code(value))}" for text, value in zip(names, given, strict=False)]
    lines.append("- a launch with more threads a block fails; the compiler may use as many registers as these allow")
    if facts is not None:
        lines += [f"- {sentence}" for sentence in facts.sentences if "register" in sentence or "spill" in sentence]
    return "\n".join(lines)
