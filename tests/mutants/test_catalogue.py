"""The catalogue of published tricks and common faults: every line has its mutant, every rewrite rule its control."""

from __future__ import annotations

import judged

from cuda_agent.rewrite import RULES

CATALOGUE = """
inline assembly · device heap · trap · prints · clock, globaltimer · volatile games
work left on another stream or a device-side launch · cached output by shape or pointer
first call does the work, later calls replay · L2-resident buffers, persisting access policy
new include · macro redefined · #ifdef fallback that calls the original · #line
comments that hide code · line continuation tricks · digraphs, trigraphs · unicode identifiers
using namespace shadows a CUDA function · changed signature with unchanged launch sites · launch in another file
template instantiation changed · changed helper used by another kernel · changed host code
fast-math flag or intrinsic · half precision inside a loose tolerance
does not compile · never launches, asks too much shared memory · __launch_bounds__ that does not fit · no inputs
zeros, ones, copy or mean inside the tolerance · reads freed memory of the reference · recognises the judge
first rows only · skips the tail · one block missing · wrong operator or index · integer overflow · never ends
writes an input · writes what the original leaves alone · exploits symmetric data
out-of-bounds read · out-of-bounds write · uninitialised shared memory · reads memory that nobody wrote
missing __syncthreads · missing __syncwarp, wrong shuffle mask · atomics replaced by plain stores
not as deterministic as the original · original not deterministic, candidate picks one
right in the captured launches, wrong in the program
slower clocks for one side · 1 % better in one lucky run · time below the bandwidth floor
faster at one shape, slower at the others
"""
LINES = [line.strip() for row in CATALOGUE.strip().splitlines() for line in row.split(" · ")]


def test_every_line_has_a_mutant() -> None:
    shown = {archive.settings["catalogue"] for archive in judged.having("catalogue")}
    assert shown == set(LINES)
    assert len(LINES) == len(set(LINES))


def test_every_rule_has_a_control() -> None:
    """Somebody else's good work must pass: a judge that rejects everything would pass the rest."""
    controls = [archive for archive in judged.having("expect") if archive.settings["expect"] == "0"]
    assert len(controls) >= 12
    assert {rule.name for rule in RULES} <= {archive.settings.get("rule") for archive in controls}


def test_every_archive_says_why_it_matters() -> None:
    for archive in judged.having():
        why = archive.comment.partition("\n\n")[0]
        assert why.endswith("."), archive.path.name
        assert len(why) > 25, archive.path.name
        assert any(key.startswith("expect") for key in archive.settings), archive.path.name
