"""`python -m cuda_agent.cli`."""

from cuda_agent.cli import main

raise SystemExit(main())
