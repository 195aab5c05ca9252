"""Helper processes of the host: the launcher of sandboxed commands and the watcher.

Each is a script with one owner in the host, and ends when a pipe from its owner does, however the host ends. An owner
that finds its helper gone starts another one, at once at first and less and less often where that does not help.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

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
