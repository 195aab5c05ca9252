"""Tries the guard on this machine, for `agent-host doctor`, in a process of its own. It leaves a process behind that
has a session of its own, no parent and no environment, prints its id, and is killed as a host would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from tool_runtime.processes.guard import TICK_S, ProcessGuard

_LEFT = "(setsid env -i sh -c 'echo $$; exec sleep 60' &) ; sleep 60"


def main() -> None:
    """Print the id, and die."""
    guard = ProcessGuard()
    command = guard.start(
        lambda: subprocess.Popen(["/bin/sh", "-c", _LEFT], stdout=subprocess.PIPE, start_new_session=True), "NONE=1"
    )
    if command.stdout is not None:
        sys.stdout.write(command.stdout.readline().decode())
        sys.stdout.flush()
    latest = time.monotonic() + 8 * TICK_S
    while not guard.has_reported and time.monotonic() < latest:  # it does within a tick
        time.sleep(TICK_S / 25)
    os.kill(os.getpid(), signal.SIGKILL)
