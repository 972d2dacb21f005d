"""The compile worker: a long-lived process that turns slices into cubins with NVRTC, one JSON line in, one out.

It runs in the sandbox (see `nvrtc.Worker`), needs neither GPU nor driver, and imports nothing of this package.
In: `{"code", "name", "options": {…ProgramOptions}, "kernels": [name expressions]}`.
Out: `{"cubin": base64, "log"}` or `{"error", "log"}`; the first line is `{"version": [13, 5]}`.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from typing import Any


def main() -> int:
    # Whatever a library prints goes to stderr: stdout carries answers only.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from cuda.bindings import nvrtc
    from cuda.core import Program, ProgramOptions

    def answer(value: dict[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    _, major, minor = nvrtc.nvrtcVersion()
    answer({"version": [int(major), int(minor)]})
    for line in sys.stdin:
        ask = json.loads(line)
        log = io.StringIO()
        try:
            program = Program(ask["code"], "c++", ProgramOptions(name=ask["name"], **ask["options"]))
            made = program.compile("cubin", name_expressions=ask["kernels"], logs=log)
            answer({"cubin": base64.b64encode(bytes(made.code)).decode(), "log": log.getvalue()})
        except Exception as error:  # every failure of a text is an answer; the worker goes on
            answer({"error": str(error), "log": log.getvalue()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
