"""`python -m agent_host.faults`; see `agent_host.faults.command`."""

import sys

from agent_host.faults.command import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
