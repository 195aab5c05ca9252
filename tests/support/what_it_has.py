"""A process that prints what it has, in JSON, and ends with the code that it is given; without one it sleeps."""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> int:
    """See the module."""
    if len(sys.argv) == 1:
        print("up", flush=True)
        time.sleep(600)
    has = {
        "arguments": sys.argv[1:],
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "leads": os.getsid(0) == os.getpid(),
        "hash": hash("a"),
        "stdin": sys.stdin.read(),
    }
    print(json.dumps(has))
    return int(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
