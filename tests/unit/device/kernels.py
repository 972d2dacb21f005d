"""Modules for host_worker.py, and steps over them."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

PRELUDE = """
def pointer(raw): return int.from_bytes(raw, "little")
def floats(raw, n): return numpy.ctypeslib.as_array((ctypes.c_float * n).from_address(pointer(raw)))
def number(raw): return int.from_bytes(raw, "little")
"""
DOUBLE = (
    PRELUDE
    + """
def double(c, x, y, n):
    floats(y, number(n))[:] = 2 * floats(x, number(n))
    return 5.0
def double_in_place(c, x, y, n):
    floats(x, number(n))[:] *= 2
    return 5.0
def forgets_last(c, x, y, n):
    floats(y, number(n))[:-1] = 2 * floats(x, number(n))[:-1]
    return 5.0
def one_beyond(c, x, y, n):
    floats(y, number(n) + 1)[:] = 2
def one_before(c, x, y, n):
    ctypes.c_float.from_address(pointer(y) - 4).value = 1.0
def nothing(c, x, y, n): pass
def spin(c, x, y, n):
    while True: time.sleep(0.01)
def segfault(c, x, y, n): ctypes.string_at(8)
def fault(c, x, y, n): raise DeviceFault("CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)")
def chatter(c, x, y, n):
    import os
    for _ in range(2000): os.write(1, b"CAW1 this is printf, not a frame\\n")
    floats(y, number(n))[:] = 2 * floats(x, number(n))
scale = bytearray(4)
def scaled(c, x, y, n):
    floats(y, number(n))[:] = numpy.frombuffer(bytes(scale), dtype="f4")[0] * floats(x, number(n))
    scale[0:4] = b"\\0\\0\\0\\0"
"""
)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Program:
    """A module under test with its blobs, and launches of `kernel(x, y, n)` over floats."""

    def __init__(self, text: str = DOUBLE, values: tuple[float, ...] = (1.0, -2.5, 3.0, 0.0, 1e-20)) -> None:
        self.text = text.encode()
        self.values = values
        self.x = struct.pack(f"{len(values)}f", *values)
        self.y = bytes(len(self.x))
        self.digest = sha(self.text)
        self.blobs = {self.digest: self.text, sha(self.x): self.x, sha(self.y): self.y}

    def load(self, module: str = "m") -> dict[str, Any]:
        return {"op": "load", "module": module, "kind": "host", "blob": self.digest}

    def fields(self, kernel: str = "double", module: str = "m", poison: str = "ff") -> dict[str, Any]:
        size = len(self.x)
        zero = bytes(8).hex()
        return {
            "module": module,
            "kernel": kernel,
            "grid": [1, 1, 1],
            "block": [32, 1, 1],
            "shared": 0,
            "args": [
                {"offset": 0, "hex": zero, "pointers": [[0, 0, 0]]},
                {"offset": 8, "hex": zero, "pointers": [[0, 1, 0]]},
                {"offset": 16, "hex": len(self.values).to_bytes(4, "little").hex(), "pointers": []},
            ],
            "buffers": [
                {"size": size, "init": {"blobs": [sha(self.x)]}, "poison": []},
                {"size": size, "init": {"blobs": [sha(self.y)]}, "poison": [[0, size, poison]] if poison else []},
            ],
            "globals": [],
        }

    def launch(self, run: str, kernel: str = "double", **more: Any) -> dict[str, Any]:
        module, poison = more.pop("module", "m"), more.pop("poison", "ff")
        return {"op": "launch", "run": run, **self.fields(kernel, module, poison), **more}
