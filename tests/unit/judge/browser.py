"""A headless browser for the page's tests: a picture as numbers, and what the console said."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import numpy
import numpy.typing as npt

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
    "--virtual-time-budget=2000",
]
Pixels = npt.NDArray[numpy.uint8]  # shape (rows, columns, 3)


def screenshot(page: Path, *, dark: bool = False, size: tuple[int, int] = (760, 1000)) -> tuple[Pixels, list[str]]:
    """The page as drawn, and the lines that went to its console."""
    assert CHROMIUM is not None
    picture = page.with_suffix(".png")
    picture.unlink(missing_ok=True)
    argv = [CHROMIUM, *FLAGS, f"--window-size={size[0]},{size[1]}", f"--user-data-dir={page.parent / 'browser'}"]
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = subprocess.run(
        [*argv, *scheme, f"--screenshot={picture}", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert picture.is_file(), done.stderr[-2000:]
    return read_png(picture.read_bytes()), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def read_png(data: bytes) -> Pixels:
    """8-bit RGB or RGBA, not interlaced (PNG specification, third edition, 9 "Filtering")."""
    at, body, width, height, channels = 8, b"", 0, 0, 3
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        chunk = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, *_ = struct.unpack(">IIBBBBB", chunk)
            assert (depth, colour) in ((8, 2), (8, 6))
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            body += chunk
        at += length + 12
    raw = zlib.decompress(body)
    stride = width * channels
    above, rows = bytearray(stride), []
    for start in range(0, height * (stride + 1), stride + 1):
        above = _unfilter(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), above, channels)
        rows.append(bytes(above))
    return numpy.frombuffer(b"".join(rows), dtype=numpy.uint8).reshape(height, width, channels)[:, :, :3]


def _unfilter(kind: int, row: bytearray, above: bytearray, step: int) -> bytearray:
    if kind == 2:
        return bytearray((numpy.frombuffer(row, "u1") + numpy.frombuffer(above, "u1")).astype("u1").tobytes())
    if kind == 0:
        return row
    for i in range(len(row)):
        left = row[i - step] if i >= step else 0
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + above[i]) >> 1
        else:
            corner = above[i - step] if i >= step else 0
            estimate = left + above[i] - corner
            guess = min((left, above[i], corner), key=lambda value: abs(estimate - value))
        row[i] = (row[i] + guess) & 255
    return row
