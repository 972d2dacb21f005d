"""All fifteen gates, in the order in which they are asked and shown: cheap ones first."""

from __future__ import annotations

from cuda_agent.judge.gate import Gate
from cuda_agent.judge.gates.g00_edit_policy import EditPolicy
from cuda_agent.judge.gates.g01_compile import Compile
from cuda_agent.judge.gates.g02_null_candidates import NullCandidates
from cuda_agent.judge.gates.g03_outputs import Outputs
from cuda_agent.judge.gates.g04_bounds import Bounds
from cuda_agent.judge.gates.g05_hidden_sizes import HiddenSizes
from cuda_agent.judge.gates.g06_determinism import Determinism
from cuda_agent.judge.gates.g07_races_and_memory import RacesAndMemory
from cuda_agent.judge.gates.g08_timing_is_real import TimingIsReal
from cuda_agent.judge.gates.g09_timing_is_fair import TimingIsFair
from cuda_agent.judge.gates.g10_above_the_noise import AboveTheNoise
from cuda_agent.judge.gates.g11_physics import Physics
from cuda_agent.judge.gates.g12_every_shape import EveryShape
from cuda_agent.judge.gates.g13_in_program import InProgram
from cuda_agent.judge.gates.g14_record import Record

GATES: tuple[Gate, ...] = (
    EditPolicy(),
    Compile(),
    NullCandidates(),
    Outputs(),
    Bounds(),
    HiddenSizes(),
    Determinism(),
    RacesAndMemory(),
    TimingIsReal(),
    TimingIsFair(),
    AboveTheNoise(),
    Physics(),
    EveryShape(),
    InProgram(),
    Record(),
)
QUICK = frozenset(("G0", "G1", "G2", "G3", "G4"))  # what a search asks of every candidate, with a short timing
