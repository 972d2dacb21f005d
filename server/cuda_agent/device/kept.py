"""Initial bytes that stay on the device from job to job: a search judges many candidates on the same inputs.

A kernel can read and write anywhere on its device, here too. So what is kept is noise to who does not know the key
(the input of one launch may be the answer of another), and has a digest under a second key, taken before any kernel
could reach it. It is looked at after each launch of a job that uses it (the others as far as that is quick) and before
its first use after a kernel ran, and dropped when it changed: then the bytes come from the host, and what one kernel
did is never seen by another. A changed copy is told with the binaries that ran since it was last seen whole, because
one of them wrote over memory that is not its own. The copies are few (a share of the memory, least recently used out
first), give way when memory is short, and end with the worker.
"""

from __future__ import annotations

import random
import secrets
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from cuda_agent.device.backend import Backend, OutOfMemory

SHARE = 0.25  # of the memory that is free without the copies
CHUNK = 1 << 22  # words looked at together
LOOKED = 1 << 30  # bytes of other jobs' copies that are looked at after a launch: about a millisecond on a GPU
WORD = 8


@dataclass(slots=True)
class Copy:
    array: Any  # whole words of 8 bytes
    size: int  # bytes that mean something
    veil: int  # key of the noise that lies over it
    key: int  # of the digest
    digest: int
    seen: int  # how many launches there had been when it was last known to be right
    job: int  # that last used it


class Kept:
    """Where `backend.keeps` is false (moving bytes there costs no more than copying them) copies are for one job,
    plain, and not looked at."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.bytes = 0
        self._copies: OrderedDict[Hashable, Copy] = OrderedDict()
        self._launches: list[str] = []  # the binaries that ran, one a launch
        self._damage: list[tuple[str, ...]] = []
        self._job = 0

    def fill(self, name: Hashable, target: Any) -> bool:
        """Put the copy of that name into `target` (uint8). False where there is none (any more)."""
        copy = self._copies.get(name)
        if copy is None or copy.size != target.size:
            return False
        if self.backend.keeps:
            if not self._whole(name, copy):
                return False
            _unveil(self.backend.xp, copy.array, copy.veil, target)
        else:
            target[:] = copy.array[: copy.size]
        copy.job = self._job
        self._copies.move_to_end(name)
        return True

    def put(self, name: Hashable, data: Any) -> None:
        """Keep a copy of `data` (uint8) where there is room. What this job uses is never dropped for it."""
        self._drop(name)
        size = -(-int(data.size) // WORD) * WORD
        limit = int(SHARE * (self.backend.free_memory() + self.bytes))
        for other in [name for name, copy in self._copies.items() if copy.job != self._job]:
            if self.bytes + size <= limit:
                break
            self._drop(other)
        if self.bytes + size > limit:
            return
        try:
            array = self.backend.alloc(size)
        except OutOfMemory:
            return
        array[: data.size] = data
        array[data.size :] = 0
        copy = Copy(
            array, int(data.size), secrets.randbits(64), secrets.randbits(64), 0, len(self._launches), self._job
        )
        if self.backend.keeps:
            _veil(self.backend.xp, array, copy.veil)
            copy.digest = digest(self.backend.xp, array, copy.key)
        self._copies[name] = copy
        self.bytes += size

    def launched(self, *binaries: str) -> None:
        """Kernels of these binaries have run, and may have written anywhere."""
        self._launches += binaries

    def look(self) -> None:
        """After a launch that ended well: whose copies it changed is known for certain now."""
        if not self.backend.keeps:
            return
        looked = 0
        for name, copy in sorted(self._copies.items(), key=lambda item: item[1].job != self._job):
            looked += copy.size if copy.job != self._job else 0
            if looked > LOOKED:
                break
            self._whole(name, copy)

    def damage(self) -> list[list[str]]:
        """For each copy that was found changed since this was asked last: the binaries that ran since it was last seen
        whole."""
        found, self._damage = self._damage, []
        return [list(binaries) for binaries in found]

    def end_job(self) -> None:
        self._job += 1
        if not self.backend.keeps:
            self.clear()

    def clear(self) -> bool:
        """Give all of it back. False when there was nothing."""
        had = bool(self._copies)
        self._copies.clear()
        self.bytes = 0
        return had

    def _whole(self, name: Hashable, copy: Copy) -> bool:
        """Whether it still holds what was put there. If not it is dropped."""
        since = self._launches[copy.seen :]
        if since and digest(self.backend.xp, copy.array, copy.key) != copy.digest:
            self._damage.append(tuple(dict.fromkeys(since)))
            self._drop(name)
            return False
        copy.seen = len(self._launches)
        return True

    def _drop(self, name: Hashable) -> None:
        copy = self._copies.pop(name, None)
        if copy is not None:
            self.bytes -= int(copy.array.size)


def digest(xp: Any, data: Any, key: int) -> int:
    """A multilinear hash modulo 2^64 of bytes on the device (uint8, whole words of 4): words times random weights, as
    in Lemire and Kaser, Strongly universal string hashing is fast (2014). Whoever does not know the key changes bytes
    unseen with a chance of about 2^-32. Waits for the device once."""
    words = data.view(xp.uint32)
    if not words.size:
        return 0
    weights = _noise(xp, 0, min(int(words.size), CHUNK), key)
    products, sums = xp.empty_like(weights), []
    for part in _parts(int(words.size)):
        count = part.stop - part.start
        xp.multiply(words[part], weights[:count], out=products[:count])
        sums.append(products[:count].sum())
    numbers: list[int] = xp.stack(sums).tolist()
    _forget(weights, products)
    draw = random.Random(key)
    return sum(one * (draw.getrandbits(64) | 1) for one in numbers) % 2**64


def _veil(xp: Any, array: Any, key: int) -> None:
    words = array.view(xp.uint64)
    for part in _parts(int(words.size)):
        noise = _noise(xp, part.start, part.stop - part.start, key)
        words[part] ^= noise
        _forget(noise)


def _unveil(xp: Any, array: Any, key: int, target: Any) -> None:
    """`target` may begin at any address and end within a word."""
    words = array.view(xp.uint64)
    for part in _parts(int(words.size)):
        noise = _noise(xp, part.start, part.stop - part.start, key)
        plain = (words[part] ^ noise).view(xp.uint8)
        room = target[WORD * part.start : WORD * part.stop]
        room[:] = plain[: room.size]
        _forget(noise)


def _parts(words: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, words)) for start in range(0, words, CHUNK))


def _noise(xp: Any, start: int, count: int, key: int) -> Any:
    """`count` words of splitmix64's sequence from the state `key`, from number `start` on."""
    mixed = xp.arange(start + 1, start + count + 1, dtype=xp.uint64)
    mixed *= xp.uint64(0x9E3779B97F4A7C15)
    mixed += xp.uint64(key)
    shifted = xp.empty_like(mixed)
    for places, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        xp.right_shift(mixed, xp.uint64(places), out=shifted)
        mixed ^= shifted
        mixed *= xp.uint64(factor)
    _forget(shifted)
    return mixed


def _forget(*arrays: Any) -> None:
    """Freed memory is within a kernel's reach, and what lies there would tell the keys."""
    for array in arrays:
        array[:] = 0
