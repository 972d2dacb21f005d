"""All fifteen gates, in the order in which they are asked and shown: cheap ones first."""

from __future__ import annotations

from ..gate import Gate
from .g00_edit_policy import EditPolicy
from .g01_compile import Compile
from .g02_null_candidates import NullCandidates
from .g03_outputs import Outputs
from .g04_bounds import Bounds
from .g05_hidden_sizes import HiddenSizes
from .g06_determinism import Determinism
from .g07_races_and_memory import RacesAndMemory
from .g08_timing_is_real import TimingIsReal
from .g09_timing_is_fair import TimingIsFair
from .g10_above_the_noise import AboveTheNoise
from .g11_physics import Physics
from .g12_every_shape import EveryShape
from .g13_in_program import InProgram
from .g14_record import Record

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
