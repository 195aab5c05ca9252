"""`agent-host` that is killed at one step of its first held command's start: `python -m tests.support.killed_start`.

The variable KILL_AT names the step: `module:qualified.name`, `before` or `after`, and which call of it, from 1, counted
from the start of that command: the trial of the sandbox's levels goes through the same functions.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
from typing import Any

from tool_runtime.sandbox import session


def kill_at(step: str) -> None:
    """From the first held start on this process dies at the step, without a warning."""
    begun = []
    start = session.SandboxedCommand.start

    def beginning(*arguments: Any) -> Any:
        begun.append(True)
        return start(*arguments)

    setattr(session.SandboxedCommand, "start", beginning)  # noqa: B010  the one seam that every held start passes
    place, when, number = step.split(" ")
    module, _, name = place.partition(":")
    owner: Any = importlib.import_module(module)
    *way, last = name.split(".")
    for part in way:
        owner = getattr(owner, part)
    whole = getattr(owner, last)
    left = int(number)

    @functools.wraps(whole)
    def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal left
        left -= bool(begun)
        if left == 0 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = whole(*arguments, **more)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, last, counted)


if __name__ == "__main__":
    from agent_host.cli.main import main

    kill_at(os.environ.pop("KILL_AT"))
    sys.exit(main(sys.argv[1:]))
