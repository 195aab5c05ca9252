"""The levels by which commands are held to their scope, and which of them work on this machine (decision 0055)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final, Literal

from tool_runtime.platform.mounts import LevelFinding
from tool_runtime.tool import FaultKind, ToolFault

if TYPE_CHECKING:
    from collections.abc import Collection

    from tool_runtime.tool import RuntimeSettings, SandboxSettings

Level = Literal["none", "landlock", "namespace"]
LEVELS: Final[tuple[Level, ...]] = ("namespace", "landlock")
"""The strongest first."""


NOTHING: Final = LevelFinding("none", works=True, unheld=("anything",))


_looking: Final = threading.Lock()
_known: Final[dict[Level, LevelFinding]] = {}


def look(level: Level, directory: str = "/tmp") -> LevelFinding:  # noqa: S108  the names of its files are random
    """Try whether `level` works here; from any thread. Once in a process, unless the trial failed by itself."""
    with _looking:
        return _look(level, directory)


def forget() -> None:
    """Have every level tried again: this process has become another user, or is held itself."""
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
    """The level that commands are held by under `settings`, tried in `directory` unless it is known by now. Raises
    ToolFault where a level is required that does not work, and where a trial failed for a reason of its own."""
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
    """Return the directory in which a session's levels are tried: its own for temporary files."""
    return runtime.temporary or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  as for `look`


# Helper processes of the host: the launcher of sandboxed commands and the watcher.
#
# Each is a script of this package with one owner in the host, and ends when a pipe from its owner does, however the
# host ends. An owner that finds its helper gone starts another one, at once at first and less and less often where that
# does not help.

_FOLDER: Final = os.path.dirname(__file__)
_PATIENCE_S: Final = 1.0
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 10.0


def start_helper(
    script: str,
    *arguments: str,
    descriptors: Collection[int] = (),
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    own_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a script of this folder with nothing of this process but `descriptors`. Raises OSError."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-E", os.path.join(_FOLDER, script), *arguments],
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
        bufsize=0,
        pass_fds=tuple(descriptors),
        start_new_session=own_session,
    )


def end_helper(helper: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a helper whose pipe has been closed; one that somebody stopped is killed."""
    if helper.stdin is not None:
        with suppress(OSError):
            helper.stdin.close()
    try:
        helper.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.wait()


class Backoff:
    """Pauses between starts of a helper that keeps dying: none before the second, then doubled up to 10 s."""

    def __init__(self) -> None:
        self._failures = 0
        self._not_before = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until the next start; 0 if it may be now."""
        return max(0.0, self._not_before - time.monotonic())

    def failed(self) -> None:
        """The helper ended before it was of any use."""
        if self._failures:
            pause_s = min(_FIRST_PAUSE_S * 2.0 ** (self._failures - 1), _LONGEST_PAUSE_S)
            self._not_before = time.monotonic() + pause_s
        self._failures += 1

    def worked(self) -> None:
        """The helper has done its work."""
        self._failures, self._not_before = 0, 0.0
