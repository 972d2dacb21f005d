"""The tools as a client lists them: what each is for, what it takes and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types as types

from cuda_agent.mcp import results

INSTRUCTIONS = (
    "CUDA Agent judges and improves CUDA kernels. Usual order: `capture` once, so that there are real inputs; `facts` "
    "for what a kernel costs; then write a rewrite of the whole file and give it to `verify` as `candidate`, or let "
    "`optimise` search. A result is what its gates say: only `status` verified is right, only `faster` is faster, and "
    "on the emulator nothing is measured. No tool changes the person's file: `propose` shows a verified rewrite in "
    "their editor, where they accept it. Text is the editor's where the file is open there, saved or not."
)

_FILE = {"type": "string", "description": "a .cu or .cuh file, absolute or relative to the first folder"}
_KERNEL = {"type": "string", "description": "name of the kernel; needed where the file has several"}
_DEVICE = {"type": "string", "description": "auto, cuda:0 or emulator; default: the person's setting"}
_PROPOSE = {
    "type": "boolean",
    "description": "show a verified result to the person as a proposal in their editor; default false",
}


def _tool(
    name: str, title: str, description: str, takes: Mapping[str, Any], answers: dict[str, Any], *, runs: bool
) -> types.Tool:
    """`runs`: it compiles or runs code of the workspace, which needs trust."""
    needs = " Needs a trusted folder." if runs else ""
    return types.Tool(
        name=name,
        title=title,
        description=description + needs,
        input_schema={
            "type": "object",
            "properties": dict(takes),
            "required": [key for key in takes if key == "file" and name != "proposals"],
            "additionalProperties": False,
        },
        output_schema=answers,
        annotations=types.ToolAnnotations(
            read_only_hint=name in ("facts", "proposals"), destructive_hint=False, open_world_hint=False
        ),
    )


def tools() -> dict[str, types.Tool]:
    """By name, in the order in which they are usually called."""
    listed = [
        _tool(
            "facts",
            "What a kernel costs",
            "Compiles the file and says registers, spills, shared memory, code size and occupancy of its kernels.",
            {"file": _FILE, "kernel": _KERNEL},
            results.facts_schema(),
            runs=True,
        ),
        _tool(
            "capture",
            "Keep a kernel's inputs",
            "Runs the program and keeps the inputs of its kernel launches, on which everything else judges and times. "
            "Without `command` the person's run command, else the file's own main with `args`.",
            {
                "file": _FILE,
                "kernel": {"type": "string", "description": "only this kernel's launches"},
                "args": {"type": "string", "description": "arguments for the file's own main, as in a shell"},
                "command": {
                    "type": "string",
                    "description": "what runs the program, from the workspace's folder; the person's own command, "
                    "another only where they allowed that",
                },
                "device": _DEVICE,
            },
            results.capture_schema(),
            runs=True,
        ),
        _tool(
            "verify",
            "Judge a rewrite",
            "Judges a rewrite of the file against the original on the kernel's inputs: same results, no faults, and "
            "on a GPU how fast. The rewrite is compiled in a sandbox only. It may change the kernel, the device "
            "functions it alone uses, and its launch shapes.",
            {
                "file": _FILE,
                "candidate": {"type": "string", "description": "the whole file as it would be"},
                "candidate_file": {"type": "string", "description": "instead of `candidate`: a file that holds it"},
                "reason": {"type": "string", "description": "one sentence for the person: why it should be faster"},
                "kernel": _KERNEL,
                "device": _DEVICE,
                "propose": _PROPOSE,
            },
            results.verdict_schema(),
            runs=True,
        ),
        _tool(
            "bench",
            "Time a kernel",
            "Times the kernel on its inputs against itself: its time and this GPU's noise. Needs a GPU.",
            {"file": _FILE, "kernel": _KERNEL, "device": _DEVICE},
            results.bench_schema(),
            runs=True,
        ),
        _tool(
            "optimise",
            "Search for a faster kernel",
            "Has CUDA Agent itself rewrite the kernel, judge and time every candidate, and answer with the best that "
            "holds. Takes up to `budget` seconds; progress is reported, a cancel ends it.",
            {
                "file": _FILE,
                "kernel": _KERNEL,
                "budget": {"type": "number", "minimum": 1, "description": "seconds; default: the person's setting"},
                "candidates": {"type": "integer", "minimum": 1, "description": "how many to try at most"},
                "device": _DEVICE,
                "propose": _PROPOSE,
            },
            results.outcome_schema(),
            runs=True,
        ),
        _tool(
            "proposals",
            "What was proposed",
            "Lists the proposals that the person has or had in their editor; with `proposal` also its diff and "
            "evidence. They are accepted in the editor only.",
            {
                "file": {"type": "string", "description": "only those of this file"},
                "proposal": {"type": "string", "description": "id of one"},
            },
            results.proposals_schema(),
            runs=False,
        ),
    ]
    return {tool.name: tool for tool in listed}
