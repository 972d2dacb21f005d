"""Judgements on the simulated GPU, as data: what an original and a candidate cost, and what the judge must say.

Each is the way in which somebody has published a speedup that was none, or a control. Everything but the clock is real:
jobs, interpreter, `time` step, statistics, all fifteen gates.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

from cuda_agent import judge
from cuda_agent.judge import JudgeOptions
from cuda_agent.model import Candidate, Verdict, Workload
from simulated import WEATHERS, SimulatedDevice, Weather

from .conftest import assemble, build, candidate, source, workload

WORK = "b[:] = 2 * a + 1\n"
OTHER = "b[i] = 1 + 2 * a[i]; /* {} */"  # the candidate's text must differ from the original's


@dataclass(frozen=True)
class Scenario:
    candidate: str  # machine code; µs at full clock is what it returns
    original: str = WORK + "return 100.0"
    faster: bool = False  # whether "faster" is the truth
    gate: str = ""  # the gate that must stop it
    label: str = ""  # what the timing must be called in a quiet room
    launches: int = 1
    elements: int = 64
    words: str = ""  # in some gate's sentence


SCENARIOS = {
    "the same speed": Scenario(WORK + "return 100.0", label="SAME"),
    "3 % faster": Scenario(WORK + "return 100.0 / 1.03", faster=True, label="FASTER"),
    "3 % slower": Scenario(WORK + "return 103.0", label="SLOWER"),
    "half a per cent faster": Scenario(WORK + "return 99.5"),
    "3 % faster, 5 µs, in batches": Scenario(WORK + "return 5.0", WORK + "return 5.15", faster=True, label="FASTER"),
    "the same speed, 5 µs, in batches": Scenario(WORK + "return 5.0", WORK + "return 5.0", label="SAME"),
    "1 % better in one lucky process": Scenario(WORK + "return 97.5 if process == 1 else 100.0", label="AMBIGUOUS"),
    "slower clocks for the original": Scenario(
        WORK + "return 100.0", WORK + "return 100.0, 100.0, 0.9", gate="G9", words="the SM clock was"
    ),
    "slightly slower clocks for the original": Scenario(
        WORK + "return 100.0", WORK + "return 100.0, 100.0, 0.984", label="AMBIGUOUS"
    ),
    "1.4 times faster at a clock that it drew down by 5 %": Scenario(
        WORK + "return 70.0, 70.0, 0.95", faster=True, label="FASTER", words="not smaller than stated"
    ),
    "quick only in a warm L2": Scenario(
        WORK + "return 100.0, 40.0", label="SAME", words="with a warm L2 it is 2."
    ),
    "first call works, later calls replay": Scenario(
        "state['n'] = state.get('n', 0) + 1\nif state['n'] < 7: b[:] = 2 * a + 1\nreturn 50.0", gate="G8"
    ),
    "below the bandwidth floor": Scenario(WORK + "return 0.002", gate="G11", elements=1 << 13),
    "faster at one shape, slower at the other": Scenario(
        WORK + "return 20.0 if c.grid[0] == 1 else 120.0", gate="G12", launches=2
    ),
}  # fmt: skip
# Rounds, not seconds, end it. The kernels count their launches and know one size: hidden cases have tests of their own.
OPTIONS = JudgeOptions(timing_budget_s=60.0, hidden_cases=0)


@functools.cache
def inputs(folder: Path, scenario: Scenario) -> Workload:
    into = folder / f"{scenario.launches}-{scenario.elements}"
    into.mkdir(exist_ok=True)
    values = tuple(float((i * 37) % 64) - 20.5 for i in range(scenario.elements))
    return workload(into, values, launches=scenario.launches)


def texts(scenario: Scenario, number: int = 0) -> tuple[str, Candidate]:
    original = source(scenario.original)
    machine = f"# {number}\n{scenario.candidate}"
    return original, candidate(source(machine, OTHER.format(number)), original)


def judged(folder: Path, scenario: Scenario, weather: Weather, seed: int) -> Verdict:
    original, made = texts(scenario)
    device = SimulatedDevice(weather, seed, assemble)
    options = replace(OPTIONS, seed=seed)
    return judge.judge(device, build(folder), inputs(folder, scenario), original, made, options=options)


LUCKY = Scenario(WORK + "return 100.0 * luck(0.008)")


def search(folder: Path, weather: Weather, seed: int, tries: int = 40) -> tuple[float, Verdict]:
    """The quickest of `tries` candidates that are all as fast as the original but for 0.8 % of luck in each
    process: its ratio in the search, and the judgement of it in the same process."""
    device = SimulatedDevice(weather, seed, assemble)
    work = inputs(folder, LUCKY)
    options = replace(OPTIONS, seed=seed)
    best: tuple[float, Candidate] | None = None
    for number in range(tries):
        original, made = texts(LUCKY, number)
        timing = judge.quick(device, build(folder), work, original, made, options=options).timing
        if timing is not None and (best is None or timing.ratio > best[0]):
            best = timing.ratio, made
    assert best is not None
    return best[0], judge.judge(device, build(folder), work, original, best[1], options=options)


__all__ = ["LUCKY", "SCENARIOS", "WEATHERS", "Scenario", "judged", "search"]
