"""`python -m agent_host`: the command line."""

from __future__ import annotations

import sys

from agent_host.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
