"""How long the editor waits: `python tests/latency/latency.py [--check] [--rounds N]`.

A 2,000-line file with 40 kernels. Each row: p50 and p99 in milliseconds of our server and of an empty pygls server,
and their ratio. `--check` ends with 1 when a gate is broken. Gates are ratios; where a bare server has nothing to
compare, they are milliseconds, generous for a busy machine."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

import raw
from raw import Raw

BARE = [sys.executable, str(Path(__file__).with_name("bare_server.py"))]
KERNEL = Path(__file__).parents[1] / "corpus" / "softmax_rows.cu"
OURS = list(raw.SERVER)


def big_file() -> str:
    """40 kernels in about 2,000 lines, each with its launch, from our own softmax."""
    text = KERNEL.read_text()
    start = text.index("__global__")
    end = text.index("static void softmax_reference")
    body = text[start:end]
    launch = "void run_{0}(const float *a, float *b) {{\n    softmax_rows_{0}<<<64, 256>>>(a, b, 64, 96);\n}}\n\n"
    filler = "".join(f"// line {i} of a comment that people write\n" for i in range(20))
    parts = [body.replace("softmax_rows", f"softmax_rows_{i}") + launch.format(i) + filler for i in range(40)]
    return "#include <cuda_runtime.h>\n#include <cmath>\n\n" + "".join(parts)


@dataclass
class Row:
    name: str
    ours: list[float]  # milliseconds
    bare: list[float]
    limit: float  # of the ratio of medians, or without `bare` of our median in milliseconds

    @property
    def value(self) -> float:
        median = statistics.median(self.ours)
        return median / statistics.median(self.bare) if self.bare else median

    def line(self) -> str:
        bare = (
            f"{statistics.median(self.bare):8.2f} {quantile(self.bare):8.2f} {self.value:6.2f}×"
            if self.bare
            else " " * 25
        )
        verdict = "ok" if self.value <= self.limit else "OVER"
        unit = "×" if self.bare else " ms"
        return (
            f"{self.name:44} {statistics.median(self.ours):8.2f} {quantile(self.ours):8.2f} {bare} "
            f"limit {self.limit:g}{unit} {verdict}"
        )


def quantile(values: list[float], share: float = 0.99) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def timed(rounds: int, act: Callable[[int], Awaitable[Any]]) -> list[float]:
    times = []
    for i in range(rounds):
        began = time.perf_counter()
        await act(i)
        times.append((time.perf_counter() - began) * 1e3)
    return times


class Session:
    """One server with the big file open."""

    def __init__(self, server: Raw, uri: str, text: str, nothing: str) -> None:
        self.server, self.uri, self.text, self.nothing = server, uri, text, nothing
        self.version = 1
        lines = text.splitlines()
        self.kernels = [i for i, line in enumerate(lines) if line.startswith("__global__")]

    @classmethod
    async def start(
        cls, command: list[str], folder: Path, text: str, nothing: str, **more: Any
    ) -> tuple[Session, float]:
        raw.SERVER[:] = command
        began = time.perf_counter()
        environment = {"CUDA_AGENT_CACHE": str(folder / "cache"), "XDG_CONFIG_HOME": str(folder / "config")}
        server = await Raw.start(folder, environment, **more)
        took = (time.perf_counter() - began) * 1e3
        path = folder / "big.cu"
        path.write_text(text)
        return cls(server, await server.open(path, text), text, nothing), took

    def where(self, i: int) -> dict[str, Any]:
        line = self.kernels[i % len(self.kernels)]
        return {"textDocument": {"uri": self.uri}, "position": {"line": line, "character": 18}}

    async def hover(self, i: int) -> None:
        assert (await self.server.request("textDocument/hover", self.where(i)))["result"]

    async def lenses(self, i: int) -> None:
        assert len((await self.server.request("textDocument/codeLens", self.where(i)))["result"]) >= 40

    async def action(self, i: int) -> None:
        position = self.where(i)["position"]
        context = {"diagnostics": [], "triggerKind": 2}
        params = {**self.where(i), "range": {"start": position, "end": position}, "context": context}
        assert "result" in await self.server.request("textDocument/codeAction", params)

    def change(self, line: int, text: str = "x") -> None:
        self.version += 1
        where = {"start": {"line": line, "character": 0}, "end": {"line": line, "character": 0}}
        document = {"uri": self.uri, "version": self.version}
        changes = [{"range": where, "text": text}]
        self.server.notify("textDocument/didChange", {"textDocument": document, "contentChanges": changes})

    async def typed(self, i: int) -> None:
        """A keystroke in a comment, and the next empty request behind it: what the keystroke holds the loop for."""
        self.change(self.kernels[i % len(self.kernels)] - 2, "x")
        await self.server.request(self.nothing, {})

    async def empty(self, i: int) -> None:
        await self.server.request(self.nothing, {})

    async def typed_and_lenses(self, i: int) -> None:
        self.change(self.kernels[i % len(self.kernels)] - 2, "x")
        await self.lenses(i)


def memory_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def measure(rounds: int, folder: Path) -> list[Row]:
    text = big_file()
    print(
        f"{len(text.splitlines())} lines, {text.count('__global__')} kernels, {os.cpu_count()} cores, {rounds} rounds"
    )
    rows = []
    options = {"trusted": False}
    starts: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(3):
        for name, command, nothing in (("ours", OURS, "cudaAgent/jobs"), ("bare", BARE, "bare/nothing")):
            one, took = await Session.start(command, folder, text, nothing, initializationOptions=options)
            starts[name].append(took)
            await one.server.kill()
    rows.append(Row("spawn → initialize answered", starts["ours"], starts["bare"], 2.0))
    ours, _ = await Session.start(OURS, folder, text, "cudaAgent/jobs", initializationOptions=options)
    bare, _ = await Session.start(BARE, folder, text, "bare/nothing")
    for one in (ours, bare):
        await one.lenses(0)
        await one.hover(0)
        await one.action(0)
    idle = memory_mib(ours.server.process.pid)
    for name, limit in (("hover", 4.0), ("lenses", 4.0), ("action", 4.0), ("empty", 3.0), ("typed", 4.0)):
        both = [await timed(rounds, getattr(one, name)) for one in (ours, bare)]
        rows.append(
            Row({"typed": "didChange and an empty request", "empty": "empty request"}.get(name, name), *both, limit)
        )
    rows.append(Row("didChange, then lenses (parsed anew)", await timed(rounds // 4, ours.typed_and_lenses), [], 200.0))
    await bare.server.kill()
    ended = time.perf_counter()
    await ours.server.finish()
    rows.append(Row("shutdown → process gone", [(time.perf_counter() - ended) * 1e3], [], 300.0))
    rows.append(Row("memory of the idle server, MiB", [idle], [], 90.0))
    return rows + await with_engine(folder, text)


async def with_engine(folder: Path, text: str) -> list[Row]:
    """What needs the engine: hovers while a job runs, cancel, shutdown under a job."""
    settings = {"device": "emulator", "runCommand": "sleep 1000"}
    options = {"trusted": True, "settings": settings}
    one, _ = await Session.start(OURS, folder, text, "cudaAgent/jobs", initializationOptions=options)
    where = {"uri": one.uri, "kernel": "softmax_rows_0"}
    rows = await fresh_facts(folder)
    cancels, hovers = [], []
    for _ in range(3):
        job = (await one.server.command("cudaAgent.capture", where))["job"]
        await asyncio.sleep(1.0)
        hovers += await timed(50, one.hover)
        began = time.perf_counter()
        answer = await one.server.request("cudaAgent/job/cancel", {"job": job})
        cancels.append((time.perf_counter() - began) * 1e3)
        assert answer["result"] == {"cancelled": True}, "the job had ended before it could be cancelled"
    rows.append(Row("hover while a job runs", hovers, [], 15.0))
    rows.append(Row("cancel → process gone", cancels, [], 500.0))
    await one.server.command("cudaAgent.capture", where)
    await asyncio.sleep(0.5)
    ended = time.perf_counter()
    await one.server.finish()
    rows.append(Row("shutdown under a job → process gone", [(time.perf_counter() - ended) * 1e3], [], 1000.0))
    return rows


async def fresh_facts(folder: Path) -> list[Row]:
    """From the last keystroke in a kernel to its new registers in the lens, debounce included. None without a
    compiler."""
    options = {"trusted": True, "settings": {"device": "emulator"}}
    one, _ = await Session.start(OURS, folder, KERNEL.read_text(), "cudaAgent/jobs", initializationOptions=options)
    times = []

    async def title() -> str:
        answer = await one.server.request("textDocument/codeLens", {"textDocument": {"uri": one.uri}})
        return str(answer["result"][0]["command"]["title"])

    async def until(wanted: Callable[[str], bool], seconds: float) -> bool:
        end = time.perf_counter() + seconds
        while not wanted(await title()):
            if time.perf_counter() > end:
                return False
            await asyncio.sleep(0.005)
        return True

    if await until(lambda text: "register" in text, 15.0):
        for i in range(5):
            one.change(one.kernels[0] + 1, f"    /* {i} */ ")
            await title()
            began = time.perf_counter()
            assert await until(lambda text: "register" in text and "before this edit" not in text, 20.0)
            times.append((time.perf_counter() - began) * 1e3)
    await one.server.finish()
    return [Row("keystroke → fresh registers (300 ms debounce)", times, [], 4000.0)] if times else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--check", action="store_true", help="exit 1 when a gate is broken")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cuda-agent-latency-") as folder:
        rows = asyncio.run(measure(options.rounds, Path(folder)))
    print(f"{'':44} {'p50':>8} {'p99':>8} {'bare p50':>8} {'bare p99':>8} {'ratio':>7}")
    print("\n".join(row.line() for row in rows))
    broken = [row.name for row in rows if row.value > row.limit]
    print(f"{len(rows) - len(broken)} passed, {len(broken)} failed")
    return 1 if options.check and broken else 0


if __name__ == "__main__":
    sys.exit(main())
