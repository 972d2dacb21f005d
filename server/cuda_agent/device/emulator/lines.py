"""Code addresses of a module to source lines, by `addr2line` (binutils come with g++)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.errors import ToolMissing

_OWN = str(Path(__file__).parent / "include")


@dataclass(frozen=True, slots=True)
class Line:
    file: str
    line: int  # 1-based


class Lines:
    """Source lines of one shared object. Addresses are return addresses, relative to where the object is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[int, Line | None] = {}

    def resolve(self, addresses: Iterable[int]) -> None:
        """Look up many at once. Raises ToolMissing without addr2line."""
        wanted = sorted({address for address in addresses if address not in self._known})
        if not wanted:
            return
        tool = shutil.which("addr2line")
        if tool is None:
            raise ToolMissing("findings need addr2line to name their lines: apt install binutils")
        # One before the return address: inside the call.
        command = [tool, "-a", "-i", "-e", str(self._path)]
        asked = "\n".join(hex(address - 1) for address in wanted)
        done = subprocess.run(command, input=asked, capture_output=True, text=True, errors="replace", check=False)
        frames: list[list[str]] = []
        for row in done.stdout.splitlines():
            if row.startswith("0x"):
                frames.append([])
            elif frames:
                frames[-1].append(row)
        for address, chain in zip(wanted, frames, strict=False):
            self._known[address] = _user_line(chain)
        for address in wanted:
            self._known.setdefault(address, None)

    def line(self, address: int) -> Line | None:
        return self._known.get(address)


def _user_line(chain: list[str]) -> Line | None:
    """The innermost frame that is the user's text, not a header of the emulator or of the system."""
    for frame in chain:
        file, _, number = frame.split(" ")[0].rpartition(":")
        if not number.isdigit() or number == "0" or file.startswith((_OWN, "/usr/include", "/usr/lib")):
            continue
        return Line(file, int(number))
    return None
