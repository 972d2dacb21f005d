"""Counting in masks of bytes, eight at a time: cupy reduces whole words by CUB, and single bytes ten times slower.

A mask is a bool array (one byte an element, 0 or 1) that begins at an address divisible by 8, on whichever device it
lives (xp = numpy or cupy). Only what says so waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CHUNK = 1 << 27  # bytes looked at together: three times as many are needed beside the mask
ONES = 0x0101010101010101


def words(xp: Any, mask: Any) -> Any:
    """The mask as uint64 words, the last one filled up with zeros."""
    short = -int(mask.size) % 8
    if short:
        mask = xp.concatenate([mask, xp.zeros(short, dtype=bool)])
    return mask.view(xp.uint64)


def count(xp: Any, mask: Any) -> Any:
    """How many are true. The product adds a word's eight bytes up in its highest one."""
    return _count(xp, words(xp, mask))


def _count(xp: Any, whole: Any) -> Any:
    return ((whole * xp.uint64(ONES)) >> xp.uint64(56)).sum()


def differ(xp: Any, a: Any, b: Any) -> bool:
    """Whether two arrays of bytes of one size differ. Waits for the device."""
    whole = int(a.size) // 8 * 8 if not (_address(a) % 8 or _address(b) % 8) else 0
    if whole and bool((a[:whole].view(xp.uint64) != b[:whole].view(xp.uint64)).view(xp.uint8).max()):
        return True
    return bool((a[whole:] != b[whole:]).any())


def elements(xp: Any, mask: Any, width: int) -> Any:
    """A mask of elements of `width` bytes: those of which any byte is true. Bytes beyond the last element are left
    out."""
    whole = mask[: int(mask.size) // width * width]
    if width in (2, 4, 8):
        return whole.view(f"uint{8 * width}") != 0
    return whole if width == 1 else whole.reshape(-1, width).any(axis=1)


def extents(xp: Any, masks: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Of each mask: how many are true, the first and the last of them (0, 0 where there is none). Waits once."""
    rows: list[Any] = []
    owners: list[tuple[int, int]] = []
    for number, mask in enumerate(masks):
        for start in range(0, int(mask.size), CHUNK):
            rows += _extent(xp, words(xp, mask[start : start + CHUNK]))
            owners.append((number, start))
    numbers = iter(xp.stack(rows).tolist() if rows else ())
    found: list[tuple[int, int, int]] = [(0, 0, 0)] * len(masks)
    for number, start in owners:
        total, first, last, first_word, last_word = (next(numbers) for _ in range(5))
        if total:
            low = start + 8 * first + ((first_word & -first_word).bit_length() - 1) // 8
            high = start + 8 * last + (last_word.bit_length() - 1) // 8
            before = found[number]
            found[number] = (before[0] + total, before[1] if before[0] else low, high)
    return found


def _extent(xp: Any, whole: Any) -> list[Any]:
    """Five uint64: count, first and last word that is not zero, and those words."""
    some, index = whole != 0, xp.arange(whole.size, dtype=xp.uint64)
    first = xp.where(some, index, xp.uint64(whole.size - 1)).min()
    last = xp.where(some, index, xp.uint64(0)).max()
    return [_count(xp, whole), first, last, whole[first.astype(xp.int64)], whole[last.astype(xp.int64)]]


def _address(array: Any) -> int:
    return int(array.data.ptr if hasattr(array.data, "ptr") else array.ctypes.data)
