"""A simulated GPU whose true times are known, for the tests of timing and its statistics.

`Weather` says what happens to a time on its way to the judge; `Sky` is one process under it. `samples` makes the
samples of a `time` step directly, for thousands of runs. `SimulatedDevice` is a whole device in this process: the
judge's jobs go through the real interpreter and the real `time` step (`device/timing.py`), over kernels that are Python
functions (`unit/device/host_worker.py`); only the clock is simulated. A kernel returns its true microseconds at full
clock, or (cold, warm), or (cold, warm, clock): microseconds with a cold and a warm L2, and the SM clock it runs at,
relative to the full one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cuda_agent.device.backend import Sample
from cuda_agent.device.client import Device
from cuda_agent.device.interpreter import Interpreter
from cuda_agent.device.jobs import Job
from cuda_agent.model import Binary, Build
from unit.device.host_worker import HostBackend, HostClock, HostModule

Floats = npt.NDArray[np.float64]
MHZ = 1980.0
KEEP = 0.9


@dataclass(frozen=True)
class Weather:
    noise: float = 0.005  # log-normal sigma of one sample
    wander: float = 0.0  # sigma of noise that lasts: each sample keeps nine tenths of the one before it
    drift_per_minute: float = 0.0  # everything slows down by this share
    clock_steps: float = 0.0  # chance of a sample to begin with another SM clock, in steps of 7 %
    outliers: float = 0.0  # share of samples hit by something 1.2 to 5 times slower
    address: float = 0.0  # sigma of what a buffer's address does to the time
    place: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)  # what the place in the round adds, relative
    tick_us: float = 0.032  # of the event timer
    clock_noise: float = 0.001  # of one reading of the SM clock
    pause_s: float = 0.05  # wall time between samples


WEATHERS = {
    "quiet": Weather(),
    "wander": Weather(wander=0.01),
    "drift": Weather(drift_per_minute=0.05),
    "clock steps": Weather(clock_steps=0.02),
    "outliers": Weather(outliers=0.05),
    "addresses": Weather(address=0.02),
    "all of it": Weather(wander=0.005, drift_per_minute=0.05, clock_steps=0.015, outliers=0.05, address=0.01),
    "very noisy": Weather(noise=0.05),
}


class Sky:
    """One process under a weather."""

    def __init__(self, weather: Weather, seed: int) -> None:
        self.weather = weather
        self.seed = seed
        self._random = np.random.default_rng(seed)
        self._clock = 1.0
        self._moment = 0
        self._wander = 0.0

    def windows(self, us: Floats, clock: float = 1.0) -> tuple[Floats, Floats]:
        """What the timer and the SM clock show for windows, one after the other, that take `us` at full clock."""
        w, draw, count = self.weather, self._random, len(us)
        moments = self._moment + 1 + np.arange(count)
        self._moment += count
        stepped = np.maximum.accumulate(np.where(draw.random(count) < w.clock_steps, np.arange(count), -1))
        levels = draw.choice([0.86, 0.93, 1.0, 1.07], count)
        clocks = np.where(stepped < 0, self._clock, levels[stepped])
        self._clock = float(clocks[-1])
        drift = 1 + w.drift_per_minute * moments * w.pause_s / 60
        if w.wander:
            drift *= np.exp(self._wandering(count))
        seen = us * drift / (clocks * clock) * np.exp(draw.normal(0, w.noise, count))
        seen *= np.where(draw.random(count) < w.outliers, draw.uniform(1.2, 5, count), 1.0)
        seen = np.maximum(w.tick_us, np.round(seen / w.tick_us) * w.tick_us)
        return seen, MHZ * clocks * clock * np.exp(draw.normal(0, w.clock_noise, count))

    def _wandering(self, count: int) -> Floats:
        """The next values of an AR(1) process with coefficient KEEP and standard deviation `wander`."""
        shocks = self._random.normal(0, self.weather.wander * math.sqrt(1 - KEEP**2), count)
        powers = KEEP ** np.arange(count)
        values: Floats = KEEP * powers * self._wander + np.convolve(shocks, powers)[:count]
        self._wander = float(values[-1])
        return values

    def window(self, us: float, clock: float = 1.0) -> tuple[float, float]:
        seen, mhz = self.windows(np.array([us]), clock)
        return float(seen[0]), float(mhz[0])

    def luck(self, sigma: float, *of: object) -> float:
        """A factor that is one number for `of` in this process and another in the next."""
        if not sigma:
            return 1.0
        return math.exp(sigma * np.random.default_rng(_number(self.seed, *of)).standard_normal())


def _number(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little")


def samples(weather: Weather, a_us: float, b_us: float, rounds: int, seed: int, batch: int = 1) -> list[dict[str, Any]]:
    """The samples of one `time` step, in its order of rounds and buffer sets."""
    sky, order = Sky(weather, seed), np.random.default_rng([seed, 1])
    addresses = np.exp(order.normal(0, weather.address, 8))
    sides = "".join("".join(order.permutation(["abba", "baab"])) for _ in range(0, rounds, 2))[: 4 * rounds]
    index = np.arange(4 * rounds)
    sets = (index // 8 * 2 + index % 2) % 8  # P Q P Q in two rounds, then the next two
    true = np.where(np.array(list(sides)) == "a", a_us, b_us) * batch
    seen, mhz = sky.windows(true * addresses[sets] * (1 + np.array(weather.place))[index % 4])
    return [
        {
            "side": sides[i],
            "us": us,
            "cycles": us * clock,
            "clock_mhz": clock,
            "batch": batch,
            "round": i // 4,
            "set": number,
        }
        for i, (us, clock, number) in enumerate(zip((seen / batch).tolist(), mhz.tolist(), sets.tolist(), strict=True))
    ]


class SimulatedClock(HostClock):
    def __init__(self, sky: Sky) -> None:
        super().__init__()
        self.sky = sky
        self.cold = False
        self._places: dict[tuple[int, ...], int] = {}

    def prepare(self, module: HostModule, configuration: Any) -> Callable[[], tuple[float, float, float]]:
        kernel, data = module.space[configuration.kernel], [bytes_ for _, bytes_ in configuration.args]
        addresses = tuple(region.address for region in configuration.regions)
        luck = self.sky.luck(self.sky.weather.address, self._places.setdefault(addresses, len(self._places)))

        def launch() -> tuple[float, float, float]:
            found = kernel(configuration, *data)
            cold, warm, clock = (*found, 1.0)[:3] if isinstance(found, tuple) else (found, found, 1.0)
            return cold * luck, warm * luck, clock

        return launch

    def flush(self) -> None:
        self.cold = True

    def sample(self, launches: Sequence[Any]) -> Sample:
        times = [launch() for launch in launches]
        us, mhz = self.sky.window(sum(cold if self.cold else warm for cold, warm, _ in times), times[0][2])
        self.cold = False
        return Sample(us / len(launches), mhz)


class SimulatedBackend(HostBackend):
    """A kernel may ask for `luck(sigma)`, its factor in this process, and `process`, how many there were."""

    def __init__(self, sky: Sky, process: int) -> None:
        super().__init__()
        self.process = process
        self.clock = SimulatedClock(sky)

    def load(self, kind: str, data: bytes) -> HostModule:
        module = super().load(kind, data)
        digest = hashlib.sha256(data).hexdigest()
        module.space["luck"] = lambda sigma: self.clock.sky.luck(sigma, digest)
        module.space["process"] = self.process
        return module


@dataclass
class _Blobs:
    """The client's blobs: some are read when they are needed."""

    given: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> bytes:
        found = self.given[name]
        return bytes(found() if callable(found) else found)


class SimulatedDevice(Device):
    """Calls itself an H200. `restart` is a fresh process under the same weather."""

    def __init__(self, weather: Weather, seed: int, compiler: Callable[[Build, str], Binary]) -> None:
        super().__init__("simulated", start=False)
        self.weather, self.seed, self._compiler = weather, seed, compiler
        self.restart()

    @property
    def info(self) -> Any:
        return self._backend.info

    def restart(self) -> None:
        self.starts += 1
        self._backend = SimulatedBackend(Sky(self.weather, _number(self.seed, self.starts)), self.starts)
        self._interpreter = Interpreter(self._backend, _Blobs())

    def run(self, job: Job, blobs: Any = None) -> list[dict[str, Any]]:
        interpreter, before = self._interpreter, self._interpreter.uploaded
        interpreter.blobs = _Blobs(blobs or {})
        try:
            return [interpreter.step(step).result for step in job.steps]
        finally:
            interpreter.end()
            self.uploaded += interpreter.uploaded - before

    def compile(self, build: Build, text: str, *, untrusted: bool = False, kernel: str | None = None) -> Binary:
        return self._compiler(build, text)
