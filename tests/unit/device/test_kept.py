"""Initial bytes that stay on the device between jobs: moved once, and never as a kernel left them."""

from __future__ import annotations

import struct
from typing import Any

import numpy
import pytest

from cuda_agent.device import interpreter as interpreting
from cuda_agent.device import kept as keeping
from cuda_agent.device.interpreter import Interpreter
from cuda_agent.device.kept import CHUNK, Kept, digest

from .host_worker import LIMIT, HostBackend
from .kernels import PRELUDE, Program, sha

COUNT = 300_001  # floats: above what is kept, and no whole number of words

# Knows where everything lies, and writes into each copy: one bit, all of it, or two words that trade places.
SCRIBBLES = (
    PRELUDE
    + """
import gc
called = []
def copies():  # at the first launch only: a second one would undo what the first did
    called.append(1)
    stores = [] if called[1:] else [one for one in gc.get_objects() if type(one).__name__ == "Kept"]
    return [copy.array for store in stores for copy in store._copies.values()]
def double(c, x, y, n):
    floats(y, number(n))[:] = 2 * floats(x, number(n))
    return 5.0
def one_byte(c, x, y, n):
    for array in copies(): array[77] ^= 1
    return double(c, x, y, n)
def zeros(c, x, y, n):
    for array in copies(): array[:] = 0
    return double(c, x, y, n)
def trades(c, x, y, n):
    for array in copies():
        words = array.view("u4")
        words[[0, 5]] = words[[5, 0]]
    return double(c, x, y, n)
def answers(c, x, y, n):
    wanted = (2 * floats(x, number(n))).tobytes()
    floats(y, number(n))[:] = numpy.frombuffer(wanted, "f4") if any(wanted in a.tobytes() for a in copies()) else 0
"""
)


class Bench:
    def __init__(self, text: str = SCRIBBLES) -> None:
        self.program = Program(text, tuple(float(i % 1000) for i in range(COUNT)))
        self.backend = HostBackend()
        self.interpreter = Interpreter(self.backend, self.program.blobs)

    def job(self, *steps: dict[str, Any]) -> list[dict[str, Any]]:
        results = [self.interpreter.step(step).result for step in (self.program.load(), *steps)]
        self.interpreter.end()
        assert all(result["ok"] for result in results), results
        return results[1:]

    def right(self) -> bool:
        """Whether a launch finds the recorded bytes."""
        expected = struct.pack(f"{COUNT}f", *(2 * v for v in self.program.values))
        self.program.blobs[sha(expected)] = expected
        entry = {"buffer": 1, "dtype": "f32", "expected": {"blobs": [sha(expected)]}}
        steps = self.program.launch("a"), {"op": "compare", "a": "a", "b": "a", "buffers": [entry]}
        return bool(self.job(*steps)[1]["buffers"][0]["equal"])


def judgement(p: Program, kernel: str = "double") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The two jobs of a quick judgement."""
    outputs = [p.launch("c", kernel), p.launch("o"), {"op": "changed", "run": "o", "mask": "changed"}]
    outputs += [
        {"op": "unpoisoned", "run": "o", "mask": "written"},
        {"op": "compare", "a": "o", "b": "c", "buffers": [{"buffer": 1, "dtype": "f32", "mask": "written"}]},
    ]
    times = {"op": "time", "a": p.fields(), "b": p.fields(kernel), "rounds": 3, "min_us": 1.0}
    return outputs, [p.launch("o"), times]


def test_a_quick_judgement_moves_its_input_once_and_the_next_one_never() -> None:
    bench = Bench()
    for moved in (4 * COUNT, 0):
        before = bench.interpreter.uploaded
        for steps in judgement(bench.program):
            bench.job(*steps)
        assert bench.interpreter.uploaded - before == moved  # what is poisoned whole is not moved at all


@pytest.mark.parametrize("kernel", ["one_byte", "zeros", "trades"])
def test_what_a_kernel_writes_over_a_copy_is_seen_by_nobody(kernel: str) -> None:
    bench = Bench()
    assert bench.right()
    outputs, times = judgement(bench.program, kernel)
    for steps, moves in ((outputs, 1), (times, 0), ([bench.program.launch("o")], 1)):  # each after a scribble
        before = bench.interpreter.uploaded
        results = bench.job(*steps)
        rows = [row for result in results if "buffers" in result for row in result["buffers"] if "equal" in row]
        assert all(row["equal"] for row in rows)
        assert bench.interpreter.uploaded - before == moves * 4 * COUNT
    assert bench.right()


def test_who_wrote_over_a_copy_is_told_with_its_launch() -> None:
    """The original runs before and after it, and is not named; what is timed together is named together."""
    bench = Bench()
    p = bench.program
    assert bench.right()
    other = {**p.load(), "module": "other"}
    other["blob"] = sha(SCRIBBLES.encode() + b"#")
    p.blobs[other["blob"]] = SCRIBBLES.encode() + b"#"
    scribbling = {**p.launch("c", "zeros"), "module": "other"}
    results = bench.job(other, p.launch("o"), scribbling, p.launch("o"), p.launch("c", "zeros"))
    assert [result.get("damaged") for result in results] == [
        None,
        None,
        [[other["blob"]]],
        None,
        [[p.load()["blob"]]],
    ]
    times = {"op": "time", "a": p.fields(), "b": {**p.fields("zeros"), "module": "other"}, "rounds": 3, "min_us": 1.0}
    assert bench.job(other, p.launch("o"), times)[2]["damaged"] == [[p.load()["blob"], other["blob"]]]


def test_copies_of_other_jobs_are_looked_at_as_far_as_that_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuda_agent.device.kept.LOOKED", 0)
    kept, one = Kept(HostBackend()), data(4096)
    kept.put("a", one)
    kept.end_job()
    kept._copies["a"].array[7] ^= 1
    for ran in ("first", "second", "first"):
        kept.launched(ran)
        kept.look()
    assert kept.damage() == []
    assert not kept.fill("a", numpy.empty(4096, dtype=numpy.uint8))  # the first use tells it, and names both
    assert kept.damage() == [["first", "second"]]
    assert kept.damage() == []


def test_the_copies_hold_nothing_that_a_kernel_could_use() -> None:
    """The input of one launch may be the answer of another: a launch whose answer is kept must not find it."""
    bench = Bench()
    p = bench.program
    answer = numpy.multiply(numpy.frombuffer(p.x, "f4"), 2).tobytes()
    p.blobs[sha(answer)] = answer
    other = p.launch("a")
    other["buffers"][0]["init"] = {"blobs": [sha(answer)]}
    bench.job(other)
    thief = p.launch("c", "answers")
    compared = {"op": "compare", "a": "o", "b": "c", "buffers": [{"buffer": 1, "dtype": "f32"}]}
    assert len(bench.interpreter.kept._copies) == 1
    assert not bench.job(thief, p.launch("o"), compared)[2]["buffers"][0]["equal"]


def test_the_programs_own_result_is_not_kept_nor_left_in_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, taken = Bench(), []
    plain = bench.backend.alloc
    monkeypatch.setattr(bench.backend, "alloc", lambda size: taken.append(plain(size)) or taken[-1])
    assert bench.right()
    assert list(bench.interpreter.kept._copies) == [(sha(bench.program.x),)]
    answer = numpy.multiply(numpy.frombuffer(bench.program.x, "f4"), 2).tobytes()
    assert not any(answer in array.tobytes() for array in taken)


def test_copies_make_room_for_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    assert bench.right()
    assert bench.interpreter.kept.bytes > 0
    bench.backend.taken = LIMIT - 6 * COUNT  # there is room for one buffer, if anything else goes
    free, plain = bench.interpreter.kept.clear, []
    monkeypatch.setattr(
        bench.interpreter.kept, "clear", lambda: plain.append(1) or setattr(bench.backend, "taken", 0) or free()
    )
    assert bench.right()
    assert plain


def test_small_inputs_are_moved_and_not_looked_at() -> None:
    bench = Bench()
    bench.program = Program(SCRIBBLES)
    bench.interpreter.blobs = bench.program.blobs
    bench.job(bench.program.launch("a"))
    assert bench.interpreter.kept.bytes == 0


def test_a_device_that_keeps_nothing_moves_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(bench.backend, "keeps", False, raising=False)
    bench.job(bench.program.launch("a"), bench.program.launch("b"))
    assert bench.interpreter.uploaded == 2 * 4 * COUNT
    assert bench.interpreter.kept.bytes == 0


# ---------------------------------------------------------------- the store alone


def data(size: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).integers(0, 256, size, dtype=numpy.uint8)


@pytest.mark.parametrize("size", [1, 8, 13, 4096, 8 * 1000 + 5])
@pytest.mark.parametrize("shift", [0, 4, 1])
def test_what_was_put_comes_back(size: int, shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuda_agent.device.kept.CHUNK", 64)
    kept, one = Kept(HostBackend()), data(size)
    kept.put("a", one)
    kept.launched("one")
    target = numpy.zeros(size + shift, dtype=numpy.uint8)[shift:]
    assert kept.fill("a", target)
    assert (target == one).all()
    assert not kept.fill("a", numpy.zeros(size + 1, dtype=numpy.uint8))
    assert not kept.fill("b", target)


def test_the_oldest_of_other_jobs_goes_first_and_none_of_this_one() -> None:
    backend = HostBackend()
    kept, size = Kept(backend), LIMIT // 4 // 4  # a quarter of the memory may be kept: four fit at first
    backend.alloc = lambda size: numpy.empty(size, dtype=numpy.uint8)  # type: ignore[method-assign]
    backend.free_memory = lambda: LIMIT - kept.bytes  # type: ignore[method-assign]
    for name in "abcd":
        kept.put(name, data(size))
    kept.put("e", data(size))
    assert list(kept._copies) == ["a", "b", "c", "d"]
    kept.end_job()
    assert kept.fill("a", numpy.empty(size, dtype=numpy.uint8))
    kept.put("e", data(size))
    assert list(kept._copies) == ["c", "d", "a", "e"]
    assert kept.bytes == 4 * size


def test_a_digest_depends_on_every_word_its_place_and_the_key() -> None:
    one = data(4 * 64)
    seen = {digest(numpy, one, 5)}
    for place in range(one.size):
        other = one.copy()
        other[place] ^= 0x80
        seen.add(digest(numpy, other, 5))
    assert len(seen) == 1 + one.size
    turned = numpy.roll(one, 4)
    assert digest(numpy, turned, 5) not in seen
    assert digest(numpy, one, 6) not in seen
    assert digest(numpy, one, 5) in seen


def test_chunks_that_trade_places_change_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuda_agent.device.kept.CHUNK", 16)
    one = data(4 * 64)
    other = numpy.concatenate([one[64:128], one[:64], one[128:]])
    assert digest(numpy, one, 5) != digest(numpy, other, 5)


def splitmix64(state: int, count: int) -> list[int]:
    """As in Steele, Lea and Flood, Fast splittable pseudorandom number generators (2014)."""
    words = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        words.append(z ^ (z >> 31))
    return words


@pytest.mark.parametrize("key", [0, 12345, 2**64 - 1])
def test_the_noise_is_splitmix64s(key: int) -> None:
    assert keeping._noise(numpy, 0, 9, key).tolist() == splitmix64(key, 9)
    assert keeping._noise(numpy, 4, 5, key).tolist() == splitmix64(key, 9)[4:]


def test_nothing_that_tells_a_key_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    made, plain = [], keeping._noise
    monkeypatch.setattr(keeping, "_noise", lambda *arguments: made.append(plain(*arguments)) or made[-1])
    kept = Kept(HostBackend())
    kept.put("a", data(4096))
    kept.launched("one")
    assert kept.fill("a", numpy.empty(4096, dtype=numpy.uint8))
    assert len(made) == 4  # the veil and the digest, twice
    assert not any(array.any() for array in made)


def test_sizes() -> None:
    assert CHUNK * 8 <= 64 << 20  # what looking takes beside the copies
    assert 4 * COUNT >= interpreting.SMALL
