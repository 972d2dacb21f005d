"""What the judge's statistics and timing gates say on a simulated GPU whose true times are known, counted; prints the
tables of docs/benchmarks.md. Needs no GPU.

usage: timing_statistics.py [--runs 1000] [--judgements 100] [--searches 25]

The first table is `judge/statistics.py` alone: 30 rounds beside a noise floor of 20. The second is whole judgements in
the weather "all of it", the third the best of forty equal candidates, each a search and a judgement.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from cuda_agent import cache
from cuda_agent.judge import floor, statistics
from simulated import WEATHERS, samples
from unit.judge import scenarios

ALL = "all of it"
# (microseconds of the original, launches in a batch)
LENGTHS = ((100.0, 1), (4.6, 5), (0.9, 23))


def one_label(weather: str, us: float, gain: float, batch: int, seed: int) -> str:
    sky = WEATHERS[weather]
    noise = statistics.noise_floor(samples(sky, us, us, 20, seed + 10_000_000, batch))
    return statistics.compare(samples(sky, us * gain, us, 30, seed, batch), noise_floor=noise, seed=seed).label


def one_judgement(name: str, seed: int) -> str:
    """FASTER, another label, or the gate that stopped it. Each has a cache, and so a day, of its own."""
    with tempfile.TemporaryDirectory() as folder:
        _own_floors(folder)
        verdict = scenarios.judged(Path(folder), scenarios.SCENARIOS[name], WEATHERS[ALL], seed)
    stopped = next((gate.id for gate in verdict.gates if gate.status == "fail" or gate.undecided), "")
    if stopped:
        return f"{verdict.status} by {stopped}"
    return verdict.timing.label if verdict.timing else "not timed"


def one_search(seed: int) -> tuple[float, float, bool]:
    """Ratio of the luckiest of forty in the search, as it is reported, and whether it is called faster."""
    with tempfile.TemporaryDirectory() as folder:
        _own_floors(folder)
        lucky, verdict = scenarios.search(Path(folder), WEATHERS["quiet"], seed)
    assert verdict.timing is not None
    return lucky, verdict.timing.ratio, verdict.faster


def _own_floors(folder: str) -> None:
    kept = cache.Cache(Path(folder) / "floors")
    floor.store = lambda: kept


def words(found: Iterable[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(found).most_common())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--judgements", type=int, default=100)
    parser.add_argument("--searches", type=int, default=25)
    arguments = parser.parse_args()
    began = time.monotonic()
    wrong = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        print(f"{arguments.runs} comparisons each\n\n| weather | a launch | A against A | 3 % faster | 3 % slower |")
        print("|---|---|---|---|---|")
        for weather in WEATHERS:
            for us, batch in LENGTHS if weather in ("quiet", ALL) else LENGTHS[:1]:
                cells = []
                for gain in (1.0, 1.03, 1 / 1.03):
                    run = partial(one_label, weather, us, gain, batch)
                    found = list(pool.map(run, range(arguments.runs), chunksize=50))
                    cells.append(words(found))
                    if gain == 1.0:
                        wrong += found.count("FASTER") > 0.01 * arguments.runs
                    elif gain > 1 and weather != "very noisy":
                        wrong += found.count("FASTER") < 0.95 * arguments.runs
                length = f"{us:g} µs" + (f", {batch} in a batch" if batch > 1 else "")
                print(f"| {weather} | {length} | " + " | ".join(cells) + " |", flush=True)
        print(f'\n{arguments.judgements} judgements each, weather "{ALL}"\n\n| candidate | the judge says |\n|---|---|')
        for name, scenario in scenarios.SCENARIOS.items():
            found = list(pool.map(partial(one_judgement, name), range(arguments.judgements)))
            wrong += not scenario.faster and found.count("FASTER") > 0.01 * arguments.judgements
            print(f"| {name} | {words(found)} |", flush=True)
        searches = list(pool.map(one_search, range(arguments.searches)))
    lucky = sum(one for one, _, _ in searches) / len(searches)
    said = sum(one for _, one, _ in searches) / len(searches)
    claims = sum(faster for _, _, faster in searches)
    print(f"\n{len(searches)} searches for the best of forty equal candidates: {lucky:.4f}× on average in the search,")
    print(f"{said:.4f}× as reported, {claims} called faster; {time.monotonic() - began:.0f} s in all, {wrong} misses")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
