"""The end of a process tree that may be forking while it is ended (TR 6.2): shared by a time-out, a cancellation, a
resume and the end of the host."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agent_host.contracts import Leftovers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

QUIET_S: Final = 0.2
LONGEST_S: Final = 5.0
_PAUSE_S: Final = 0.002
_PAUSE_MAX_S: Final = 0.02


NOBODY: Final = Leftovers()


def kill_until_quiet(
    find: Callable[[Callable[[int], None]], Mapping[int, int]], groups: Iterable[int] = ()
) -> Leftovers:
    """SIGKILL to the process groups `groups` and to all that `find` finds, until 0.2 s pass without a new process, for
    5 s at most.

    One empty look proves nothing: a process that forks and ends may lie between two generations. `find` gives live
    processes, each with its start time, and calls its argument with some of them while it still looks. Blocks.
    """
    began = quiet_since = time.monotonic()
    ended: set[tuple[int, int]] = set()
    pause_s = _PAUSE_S
    while True:
        for group in groups:
            kill_group(group)
        found = find(kill)
        for pid in found:
            kill(pid)
        now = time.monotonic()
        new = found.items() - ended
        if new:
            ended |= new
            quiet_since, pause_s = now, _PAUSE_S
        if now - quiet_since >= QUIET_S or now - began >= LONGEST_S:
            return Leftovers(len(ended), tuple(sorted(found)))
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _PAUSE_MAX_S)


def kill(pid: int) -> None:
    """SIGKILL to one process, which may be gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_group(group: int) -> None:
    """SIGKILL to a process group, all of it at once: none of it can fork meanwhile. Not to the numbers 0 and 1, which a
    process table may show: the kernel takes them for the caller's own group and for every process there is."""
    if group <= 1:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
