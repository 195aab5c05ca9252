"""The sandbox levels that confine commands to their scope, and which of them work on this machine (decision 0055)."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Final, Literal

from tool_runtime.platform.mounts import LevelFinding
from tool_runtime.tool import FaultKind, ToolFault

if TYPE_CHECKING:
    from tool_runtime.tool import RuntimeSettings, SandboxSettings

Level = Literal["none", "landlock", "namespace"]
LEVELS: Final[tuple[Level, ...]] = ("namespace", "landlock")
"""Strongest first."""


NOTHING: Final = LevelFinding("none", works=True, unheld=("anything",))

_looking: Final = threading.Lock()
_known: Final[dict[Level, LevelFinding]] = {}


def look(level: Level, directory: str = "/tmp") -> LevelFinding:  # noqa: S108  the names of its files are random
    """Try `level` on this machine; safe from any thread. It is tried once per process, unless the trial itself
    failed."""
    with _looking:
        return _look(level, directory)


def forget() -> None:
    """Forget all findings, so that every level is tried again, after this process changed its user or was itself
    sandboxed."""
    _known.clear()


def _look(level: Level, directory: str) -> LevelFinding:
    found = _known.get(level)
    if found is None or found.is_passing:
        found = _known[level] = _try(level, directory)
    return found


def _try(level: Level, directory: str) -> LevelFinding:
    if level == "none":
        return NOTHING
    if sys.platform != "linux":
        return LevelFinding(level, works=False, problem=f"there is no such level on {sys.platform}")
    from tool_runtime.sandbox import launching

    if level == "landlock":
        return launching.landlock_level(directory)
    return launching.namespace_level(directory, lambda: _look("landlock", directory))


def find(settings: SandboxSettings, directory: str = "/tmp") -> LevelFinding:  # noqa: S108  as for `look`
    """Return the level that sandboxes commands under `settings`; levels not tried before are tried in `directory`.
    Raises ToolFault if a required level does not work, or if the trial itself failed."""
    looked = [look(one, directory) for one in (LEVELS if settings.level == "auto" else (settings.level,))]
    found = next((one for one in looked if one.works), NOTHING)
    problem = "; ".join(f"{one.level}: {one.problem}" if settings.level == "auto" else one.problem for one in looked)
    if found.level != "none" or settings.level == "none":
        return found
    if any(one.is_passing for one in looked):
        message = (
            f"commands are denied: the sandbox could not be tried ({problem}); --sandbox none runs them without one"
        )
        raise ToolFault(FaultKind.SYSTEM, message)
    if settings.required:
        named = "no level" if settings.level == "auto" else f"the level {settings.level}"
        message = f"commands are denied: {named} of the sandbox works here ({problem})"
        if settings.level != "auto":
            message = f"commands are denied: {named} of the sandbox does not work here ({problem})"
        raise ToolFault(FaultKind.SYSTEM, message)
    return NOTHING


def directory_of(runtime: RuntimeSettings) -> str:
    """Return the directory in which a session's levels are tried: its directory for temporary files."""
    return runtime.temporary or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  as for `look`
