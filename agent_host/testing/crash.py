"""Runs `agent-host` and kills it, with SIGKILL and no warning, right after the N-th record of its journal.

    python -m agent_host.testing.crash --after-record 7 run "Do it." --gateway http://127.0.0.1:8080

For tests of what a crash leaves behind, of this project and of those who build on it. Every durable change of a session
is a record, so the numbers from 1 upwards visit every state that a crash can leave between two of them.
"""

from __future__ import annotations

import os
import signal
import sys

from agent_host.cli.main import main
from state.journal import Journal

_USAGE = "usage: python -m agent_host.testing.crash --after-record N ARGUMENTS OF agent-host"


def kill_after_record(number: int) -> None:
    """From now on this process dies once it has appended `number` records, 1 being the next."""
    append = Journal.append
    left = number

    def counted(journal: Journal, fields: bytes, message: bytes | None = None) -> int:
        nonlocal left
        seq = append(journal, fields, message)
        left -= 1
        if left <= 0:
            # Windows has no SIGKILL; there, os.kill ends a process at once with any other signal.
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        return seq

    setattr(Journal, "append", counted)  # noqa: B010  the one seam that every record passes


def run(argv: list[str]) -> int:
    """The exit code of `agent-host`, if it lives to have one; 2 when the arguments are not as in the usage line."""
    if len(argv) < 2 or argv[0] != "--after-record" or not argv[1].isdigit() or int(argv[1]) < 1:
        sys.stderr.write(_USAGE + "\n")
        return 2
    kill_after_record(int(argv[1]))
    return main(argv[2:])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
