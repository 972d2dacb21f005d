"""`python -m cuda_agent.engine [--parent PID]`."""

from __future__ import annotations

import sys

from cuda_agent.engine.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
