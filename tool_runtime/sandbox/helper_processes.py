"""Helper processes of the host: the launcher of sandboxed commands and the orphan reaper.

Each is a script with one owner in the host, and exits when a pipe from its owner closes, however the host ends. An
owner whose helper has exited starts another one: immediately at first, then with increasing pauses if it keeps exiting.
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
    """Start a script (absolute, or in this folder) that inherits only `descriptors` from the host. Raises OSError."""
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
    """Close a helper's stdin and wait for its exit; after 1 s (if it was stopped, for example) kill it."""
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
        """Record that the helper exited before it did any work."""
        if self._failures:
            pause_s = min(_FIRST_PAUSE_S * 2.0 ** (self._failures - 1), _LONGEST_PAUSE_S)
            self._not_before = time.monotonic() + pause_s
        self._failures += 1

    def worked(self) -> None:
        """Record that the helper did its work, and reset the pauses."""
        self._failures, self._not_before = 0, 0.0
