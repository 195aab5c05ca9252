"""`agent-host`, and the most memory that it had, in KiB, in the file that PEAK_MEMORY_FILE names."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from agent_host.cli.main import main


def peak_kib() -> int:
    """The most memory that this program had; getrusage of Linux counts what the program before it had, too."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    Path(os.environ["PEAK_MEMORY_FILE"]).write_text(str(peak_kib()))
    sys.exit(code)
