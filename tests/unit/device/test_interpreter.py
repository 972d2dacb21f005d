"""Steps in one process, over the host backend."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy
import pytest

from cuda_agent.device.interpreter import Interpreter
from cuda_agent.device.jobs import blob_names, relocate

from .host_worker import HostBackend
from .kernels import PRELUDE, Program, sha


class Bench:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.blobs = dict(program.blobs)
        self.said: list[str | None] = []
        self.interpreter = Interpreter(HostBackend(), self.blobs, self.said.append)
        assert self.do(program.load())["ok"]

    def do(self, step: dict[str, Any]) -> dict[str, Any]:
        reply = self.interpreter.step(step)
        return {**reply.result, "data": reply.payload} if reply.payload else reply.result

    def floats(self, run: str, buffer: int = 1) -> list[float]:
        data = self.do({"op": "fetch", "run": run, "buffer": buffer})["data"]
        return list(struct.unpack(f"{len(data) // 4}f", data))


@pytest.fixture
def bench() -> Bench:
    return Bench(Program())


def test_canaries_survive_a_good_kernel(bench: Bench) -> None:
    assert bench.do(bench.program.launch("a"))["canaries"] == []


@pytest.mark.parametrize("shift", [0, 4, 12])
def test_a_write_by_one_beyond_is_seen(bench: Bench, shift: int) -> None:
    found = bench.do(bench.program.launch("a", "one_beyond", shift=shift))["canaries"]
    assert [(f["buffer"], f["side"], f["at"]) for f in found] == [(1, "after", 20)]
    assert found[0]["was"].startswith("00000040")  # 2.0f


def test_a_write_by_one_before_is_seen(bench: Bench) -> None:
    found = bench.do(bench.program.launch("a", "one_before", shift=4))["canaries"]
    assert [(f["buffer"], f["side"]) for f in found] == [(1, "before")]
    assert -4 <= found[0]["at"] <= -1


def test_canary_words_are_nan_and_negative_and_differ(bench: Bench) -> None:
    canary = bench.interpreter.canary(4096)
    assert numpy.isnan(canary.view("f4")).all()
    assert numpy.isnan(canary.view("f8")).all()
    assert numpy.isnan(canary.view("f2")[1::2]).all()
    assert (canary.view("i4") < 0).all()
    assert len(set(canary.view("u4").tolist())) > 1000


def test_no_two_buffers_have_equal_canaries(bench: Bench) -> None:
    """Else a kernel that copies beyond its arrays would copy one canary onto the same bytes."""
    words = [set(bench.interpreter.canary(4096, salt).view("u4").tolist()) for salt in range(4)]
    assert all(len(a & b) < 200 for number, a in enumerate(words) for b in words[:number])
    firsts = [bench.interpreter.canary(4, salt).tobytes() for salt in range(4)]
    assert len(set(firsts)) == 4


def test_canary_sizes_hold_the_alignment(bench: Bench) -> None:
    bench.do(bench.program.launch("a", canary=100))
    for placed in bench.interpreter.runs["a"].buffers:
        assert placed.data.ctypes.data % 256 == 0
    bench.do(bench.program.launch("b", canary=100, shift=4))
    assert bench.interpreter.runs["b"].buffers[0].data.ctypes.data % 256 == 4


def test_poison_and_what_is_left_of_it(bench: Bench) -> None:
    p = bench.program
    bench.do(p.launch("a", "forgets_last"))
    extent = bench.do({"op": "unpoisoned", "run": "a", "mask": "w"})["buffers"]
    assert extent[0] == {"buffer": 0, "bytes": 0}  # never poisoned
    assert (extent[1]["first"], extent[1]["last"]) == (0, 15)
    assert bench.do(p.launch("b"))["ok"]
    entry = {"buffer": 1, "dtype": "f32", "mask": "w"}
    assert bench.do({"op": "compare", "a": "b", "b": "a", "buffers": [entry]})["buffers"][0]["equal"]
    whole = bench.do({"op": "compare", "a": "b", "b": "a", "buffers": [{**entry, "mask": None}]})["buffers"][0]
    assert whole["first"]["index"] == 4
    assert whole["first"]["got"] == "nan"
    rest = bench.do({"op": "compare", "a": "b", "b": "a", "buffers": [{**entry, "invert": True}]})["buffers"][0]
    assert rest["differing"] == 1


def test_two_poisons_joined_find_an_element_that_equals_one_of_them() -> None:
    p = Program(PRELUDE + "def f(c, x, y, n): floats(y, 2)[:] = [1.0, 2.0]\n", (0.0, 0.0))
    bench = Bench(p)
    one, two = struct.pack("f", 1.0).hex(), struct.pack("f", 2.0).hex()
    bench.do(p.launch("a", "f", poison=one))
    alone = bench.do({"op": "unpoisoned", "run": "a", "mask": "w"})["buffers"][1]
    bench.do(p.launch("b", "f", poison=two))
    both = bench.do({"op": "unpoisoned", "run": "b", "mask": "w", "join": "or"})["buffers"][1]
    assert (alone["first"], both["first"], both["last"]) == (6, 2, 7)


def test_changed_counts_against_the_initial_bytes(bench: Bench) -> None:
    bench.do(bench.program.launch("a", "double_in_place", poison=""))
    extent = bench.do({"op": "changed", "run": "a", "mask": "c"})["buffers"]
    assert extent[0]["bytes"] > 0
    assert extent[1]["bytes"] == 0


def test_a_run_may_start_from_another_run(bench: Bench) -> None:
    p = bench.program
    bench.do(p.launch("a"))
    second = p.launch("b")
    second["buffers"][0]["init"] = {"run": "a", "buffer": 1}
    bench.do(second)
    assert bench.floats("b") == [2 * v for v in bench.floats("a")]
    bench.do({"op": "free", "run": "a"})
    assert bench.do({"op": "changed", "run": "b"})["buffers"][0]["bytes"] == 0  # still knows what it started from
    assert not bench.do({"op": "hash", "run": "a"})["ok"]


def test_fill_patterns(bench: Bench) -> None:
    step = bench.program.launch("a", "nothing", poison="")
    step["buffers"] = [
        {"size": 7, "init": {"fill": "0102"}},
        {"size": 5, "init": {"fill": "ff"}, "poison": [[1, 4, "abcd"]]},
    ]
    assert bench.do(step)["ok"]
    assert bench.do({"op": "fetch", "run": "a", "buffer": 0})["data"].hex() == "01020102010201"
    assert bench.do({"op": "fetch", "run": "a", "buffer": 1})["data"].hex() == "ffabcdabff"
    assert bench.do({"op": "fetch", "run": "a", "buffer": 0, "start": 1, "end": 3})["data"].hex() == "0201"


def test_wrong_sizes_are_refused(bench: Bench) -> None:
    step = bench.program.launch("a")
    step["buffers"][0]["size"] = 8
    assert "recorded bytes are 20" in bench.do(step)["error"]
    bench.do(bench.program.launch("b"))
    step["buffers"][0]["init"] = {"run": "b", "buffer": 0}
    assert "20 bytes, not 8" in bench.do(step)["error"]


def test_globals_are_set_before_every_launch_and_kept_as_it_left_them() -> None:
    p = Program()
    three = struct.pack("f", 3.0)
    p.blobs[sha(three)] = three
    bench = Bench(p)
    for run in ("a", "b"):
        assert bench.do(p.launch(run, "scaled", globals=[["scale", {"blobs": [sha(three)]}]]))["ok"]
    assert bench.floats("a") == bench.floats("b")
    assert bench.floats("a")[0] == 3.0
    assert bench.do({"op": "fetch", "run": "a", "buffer": 2})["data"] == bytes(4)  # the kernel zeroed it
    hashes = bench.do({"op": "hash", "run": "a"})
    assert hashes["globals"] == {"scale": hashlib.sha256(bytes(4)).hexdigest()}
    entry = {"buffer": 2, "dtype": "f32"}
    assert bench.do({"op": "compare", "a": "a", "b": "b", "buffers": [entry]})["buffers"][0]["equal"]
    assert "no global" in bench.do(p.launch("c", globals=[["nope", {"fill": "00"}]]))["error"]


def test_hash_is_of_the_bytes(bench: Bench) -> None:
    bench.do(bench.program.launch("a"))
    assert bench.do({"op": "hash", "run": "a"})["buffers"][0] == sha(bench.program.x)


def test_compare_with_recorded_bytes(bench: Bench) -> None:
    p = bench.program
    after = struct.pack("5f", *(2 * v for v in struct.unpack("5f", p.x)))
    bench.blobs[sha(after)] = after
    bench.do(p.launch("a"))
    entry = {"buffer": 1, "dtype": "f32", "expected": {"blobs": [sha(after)]}}
    assert bench.do({"op": "compare", "a": "a", "b": "a", "buffers": [entry]})["buffers"][0]["equal"]
    assert sha(after) in blob_names([{"op": "compare", "buffers": [entry]}])


def test_freed_memory_holds_no_answers(bench: Bench) -> None:
    bench.do(bench.program.launch("a"))
    whole = bench.interpreter.runs["a"].buffers[1].whole
    bench.interpreter.end()
    assert (whole == 0xFF).all()


def test_it_says_which_binary_is_about_to_run(bench: Bench) -> None:
    bench.do(bench.program.launch("a"))
    assert bench.said == [bench.program.digest, bench.program.digest, None]


def test_relocation() -> None:
    data = bytes(range(24))
    out = relocate(data, [[8, 1, 16]], [0x1000, 0x2000])
    assert out[:8] == data[:8]
    assert out[8:16] == (0x2010).to_bytes(8, "little")
    assert out[16:] == data[16:]
    assert relocate(bytes(8), [[0, 0, -8]], [0x1000]) == (0xFF8).to_bytes(8, "little")


def test_a_step_that_lacks_a_field_says_which(bench: Bench) -> None:
    result = bench.do({"op": "launch", "run": "a", "module": "m"})
    assert not result["ok"]
    assert "'buffers'" in result["error"]


def test_values_are_widened_and_compared(bench: Bench) -> None:
    program = bench.program
    step = program.launch("a")
    narrow = step["buffers"][0]["init"]
    count = step["buffers"][0]["size"] // 4
    wide = {"size": 8 * count, "init": {"values": narrow, "dtype": "f32", "widen": True}}
    held = bench.interpreter.place(wide, 0, 0).data.view("f8")
    plain = bench.interpreter.place(step["buffers"][0], 0, 0).data.view("f4")
    assert held.tolist() == plain.astype("f8").tolist()
    changed = {**wide, "init": {**wide["init"], "change": "last-bit", "seed": 3}}
    for _ in range(2):  # made, then kept
        again = bench.interpreter.place(changed, 0, 0).data.view("f8")
        assert 0 < abs(again - held).max() < 1e-6 * abs(held).max()


def test_an_error_step_needs_float64_of_the_same_count(bench: Bench) -> None:
    assert bench.do(bench.program.launch("a"))["ok"]
    answer = bench.do({"op": "error", "exact": "a", "runs": ["a"], "buffers": [{"buffer": 1, "dtype": "f32"}]})
    assert not answer["ok"]
    assert "bytes of f64" in answer["error"]


def test_a_good_launch_is_looked_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a shared GPU a step's cost is how often it waits for an answer, not what it computes."""
    asked: list[str] = []

    class Watched:
        """numpy; `flatnonzero` waits for the device on a GPU, and so does `stack`, whose result is fetched."""

        def __getattr__(self, name: str) -> Any:
            if name in ("flatnonzero", "count_nonzero", "stack"):
                asked.append(name)
            return getattr(numpy, name)

    monkeypatch.setattr(bench.interpreter, "xp", Watched())
    bench.do(bench.program.launch("a"))
    assert asked == []
    assert [one["bytes"] for one in bench.do({"op": "changed", "run": "a"})["buffers"]] == [0, 20]
    assert bench.do({"op": "compare", "a": "a", "b": "a", "buffers": [{"buffer": 1, "dtype": "f32"}]})["ok"]
    assert asked == ["stack", "stack"]
    bench.do(bench.program.launch("b", "one_beyond"))
    assert asked.count("flatnonzero") == 4
