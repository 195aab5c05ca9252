"""The temporary directory of one session: where it lies, how it is made, and that it goes with the session.

It lies in the system's temporary directory, since programs expect theirs there. A hash of the state directory is in its
name: two hosts with a session of the same id do not share it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from hashlib import sha256
from typing import TYPE_CHECKING

from state.folder import Folder, is_directory
from state.locations import APP_NAME, DIRECTORY_MODE, checked_session_id

if TYPE_CHECKING:
    from collections.abc import Mapping

_HASH_DIGITS = 8
_WINDOWS = bool(sys.platform == "win32")
_VARIABLES: tuple[str, ...] = ("TMP", "TEMP") if _WINDOWS else ("TMPDIR",)
_DEFAULTS: tuple[str, ...] = ("C:\\Windows\\Temp",) if _WINDOWS else ("/tmp", "/var/tmp")  # noqa: S108  what the platform has


def system_directory(environ: Mapping[str, str]) -> str:
    """The real path of the system's temporary directory: what the environment names where it is one, else the
    platform's default."""
    # tempfile gives the same, and is a tenth of a start; it also writes a file to find out.
    named = [environ[name] for name in _VARIABLES if environ.get(name)]
    for path in (*named, *_DEFAULTS):
        if os.path.isabs(path) and os.path.isdir(path):
            return os.path.realpath(path)
    return os.path.realpath(_DEFAULTS[0])


def session_directory(state_dir: str, session_id: str, environ: Mapping[str, str], recorded: str | None = None) -> str:
    """The real path of the session's own temporary directory, which need not be there: the one `recorded` by the
    process that began the session, unless its parent is gone. Raises InvalidSessionId."""
    if recorded is not None and os.path.isdir(os.path.dirname(recorded)):
        return recorded
    known_by = sha256(os.fsencode(os.path.realpath(state_dir))).hexdigest()[:_HASH_DIGITS]
    return os.path.join(system_directory(environ), f"{APP_NAME}-{checked_session_id(session_id)}-{known_by}")


def make(path: str) -> None:
    """Make the directory, 0700; one that is there must be this user's alone. Raises OSError."""
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        found = os.lstat(path)
        if not is_directory(found):
            raise NotADirectoryError(errno.ENOTDIR, "something that is no directory has its name", path) from None
        if not _is_ours(found):
            reason = "a directory of its name is there, and it is not this user's alone (0700)"
            raise PermissionError(errno.EPERM, reason, path) from None


def remove(path: str) -> None:
    """Remove the directory with all in it; no link is followed. What cannot be removed stays, for it holds nothing that
    a session would miss."""
    parent, name = os.path.split(path)
    with contextlib.suppress(OSError), Folder(parent) as folder:
        found = folder.stat(name)
        if found is not None and is_directory(found) and _is_ours(found):
            folder.remove(name)


def _is_ours(found: os.stat_result) -> bool:
    if _WINDOWS:  # where the directory of the user's profile keeps others out
        return True
    return found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == DIRECTORY_MODE
