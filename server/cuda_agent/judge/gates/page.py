"""docs/gates.md, made from the gates' docstrings: `python -m cuda_agent.judge.gates.page > docs/gates.md`."""

from __future__ import annotations

import inspect
import textwrap

from cuda_agent.judge.gates import GATES

HEAD = """\
# Gates

<!-- made by `python -m cuda_agent.judge.gates.page`: edit the docstrings in server/cuda_agent/judge/gates/ -->

A verdict lists all fifteen gates in this order, also those that did not run.

- `verified`: every built gate that applies passed. It says correct, not faster: a right candidate that is slower is
verified too.
  Faster is what `Verdict.faster` says: verified, on a GPU, with the label FASTER.
- `rejected`: some gate failed.
- `undecided`: the inputs are missing or too weak, the original does not compile or replay, or this device cannot run
the kernel.

Asking stops at the first gate that fails or cannot decide; after wrong outputs the full judgement still reads G4 and
G7 from the same runs, because they may name the access behind them. On the emulator the timing gates are `not-run`:
the emulator does not measure time. When both sides compile to the same instructions and are launched alike, there is
nothing to time either: "no change", never "faster". A search asks G0 to G4 with a short timing (G8, G9) of every
candidate (`judge.quick`) and all gates of the winner (`judge.judge`).

## Numeric rule
The original on the same bytes is the reference. Integers and unknown types: exact. Where float32 outputs differ in
bits, a float64 shadow decides: the original's text with double for float, run on the same inputs as double. The
candidate's error against it may be twice the original's own, in the largest error and in relative L2, and always a
few ulp of the output's magnitude. The original's own error is the largest over the recorded inputs and three copies
with last bits changed, because one sum may be exact by luck. So a sum that skips small terms fails inside any loose
tolerance, and a tree in place of a long inaccurate sum passes far outside of one. A kernel that looks at the bits of
floats, holds half precision, structures or memory of unknown type, or is more than 1 % away from its shadow has none;
nor have float64 kernels. There the largest absolute difference may be 1e-12 (f64), 1e-5 (f32), 2e-3 (f16), 1e-2
(bf16) times the largest magnitude in the original's output, and the verdict says so. The person's tolerance takes the
place of both, and twice the original's own spread over repeats is always allowed. NaN and infinities sit where the
original has them. The class of a difference is measured: equal bits are bit-exact whatever was declared; a difference
is never bit-exact.

## Timing labels
FASTER: the 95 % interval's lower end is above 1 + max(noise floor, 1 %); SLOWER the mirror image;
SAME: the whole interval lies between the two; AMBIGUOUS: it straddles a border. How the interval is made:
`judge/statistics.py`.
"""


def page() -> str:
    """The whole document."""
    parts = [HEAD]
    for gate in GATES:
        text = inspect.getdoc(type(gate)) or ""
        needs = {"text": "the text", "binary": "two binaries", "run": "a device", "gpu": "a GPU"}[gate.needs]
        paragraph = textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)
        parts.append(f"## {gate.id} · {gate.name}\nNeeds {needs}.\n\n{paragraph}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
