"""The levels by which commands are held to their scope, and which of them work on this machine (decision 0055)."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from tool_runtime.faults import FaultKind, ToolFault

if TYPE_CHECKING:
    from tool_runtime.core.holding import Sandbox
    from tool_runtime.settings import RuntimeSettings, SandboxSettings
    from tool_runtime.threads import DaemonPool

Level = Literal["none", "landlock", "namespace"]
LEVELS: Final[tuple[Level, ...]] = ("namespace", "landlock")
"""The strongest first."""


class Namespaces(NamedTuple):
    """Which a program gets besides that of mounts: of users, without which only root can give it any, and of
    processes."""

    users: bool
    processes: bool


class Found(NamedTuple):
    """One level on this machine. `works` and if not `problem`, why not. `abi` is Landlock's version, 0 for none.
    `is_supervised`: connections are judged one by one; else there are none. `unheld` is what the level cannot hold.
    `namespaces` are those that a program gets at that level. `is_passing`: the trial failed for want of a file, memory
    or time, and the next may succeed."""

    level: Level
    works: bool
    problem: str = ""
    abi: int = 0
    is_supervised: bool = False
    unheld: tuple[str, ...] = ()
    namespaces: Namespaces = Namespaces(users=True, processes=True)
    is_passing: bool = False


NOTHING: Final = Found("none", works=True, unheld=("anything",))


_looking: Final = threading.Lock()


def look(level: Level) -> Found:
    """Whether `level` works here, tried once in a process; from any thread."""
    with _looking:
        return _look(level)


@functools.cache
def _look(level: Level) -> Found:
    if level == "none":
        return NOTHING
    if sys.platform != "linux":
        return Found(level, works=False, problem=f"there is no such level on {sys.platform}")
    from tool_runtime.core import linux_probe

    if level == "landlock":
        return linux_probe.landlock_level()
    return linux_probe.namespace_level(lambda: _look("landlock"))


def strongest() -> Found:
    """The strongest level that works here; none at all is `NOTHING`."""
    return next((found for found in map(look, LEVELS) if found.works), NOTHING)


def find(settings: SandboxSettings) -> Found:
    """The level that commands are held by under `settings`. Raises ToolFault where a level is required that does not
    work. Tries it, which takes some milliseconds, once in a process."""
    if settings.level == "auto":
        found = strongest()
        problem = "; ".join(f"{one.level}: {one.problem}" for one in map(look, LEVELS))
    else:
        found = look(settings.level)
        problem = found.problem
    if found.works and (found.level != "none" or settings.level == "none"):
        return found
    if settings.required:
        named = "no level" if settings.level == "auto" else f"the level {settings.level}"
        message = f"commands are refused: {named} of the sandbox works here ({problem})"
        if settings.level != "auto":
            message = f"commands are refused: {named} of the sandbox does not work here ({problem})"
        raise ToolFault(FaultKind.SYSTEM, message)
    return NOTHING


def open_sandbox(runtime: RuntimeSettings, pool: DaemonPool) -> Sandbox | None:
    """What holds the commands of a session; None where nothing does. Raises ToolFault as `find` does."""
    if runtime.sandbox is None or find(runtime.sandbox).level == "none":
        return None
    from tool_runtime.core.holding import Sandbox

    return Sandbox(runtime.sandbox, runtime, pool)
