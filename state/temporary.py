"""The temporary directory of one session: where it lies, how it is made, and that it goes with the session.

It lies in the system's temporary directory, since programs expect theirs there. A hash of the state directory is in its
name: two hosts with a session of the same id do not share it. Other directories that this program makes there are held
by a lock, so that the next start removes those that a crash has left (`sweep`).
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
from state.locations import APP_NAME, DIRECTORY_MODE, SessionPaths, checked_session_id
from state.lock import holder

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HASH_DIGITS = 8
_OF_A_SESSION = f"{APP_NAME}-"
_SCRATCH = f"{_OF_A_SESSION}~"
"""How the names of other directories begin, which are no session's: no id has that sign. There is one more in
`tool_runtime.core.linux_probe`."""
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
    name = f"{_OF_A_SESSION}{checked_session_id(session_id)}{_known_by(state_dir)}"
    return os.path.join(system_directory(environ), name)


def _known_by(state_dir: str) -> str:
    return f"-{sha256(os.fsencode(os.path.realpath(state_dir))).hexdigest()[:_HASH_DIGITS]}"


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


@contextlib.contextmanager
def scratch(purpose: str) -> Iterator[str]:
    """The real path of a new directory, 0700, in the system's temporary directory, which goes at the end. Raises
    OSError."""
    path = os.path.join(system_directory(os.environ), f"{_SCRATCH}{purpose}-{os.urandom(8).hex()}")
    os.mkdir(path, DIRECTORY_MODE)
    try:
        with _locked(path):
            yield path
    finally:
        remove(path)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a disk without locks: then nobody takes it from here
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def sweep(state_dir: str, environ: Mapping[str, str]) -> None:
    """Remove from the system's temporary directory what a crash has left there and nobody will ask for: directories of
    this user without their lock, and those of sessions of this state directory that are over. What a session still
    has that can be resumed stays."""
    if sys.platform == "win32":
        return
    known_by = _known_by(state_dir)
    with contextlib.suppress(OSError), Folder(system_directory(environ)) as folder:
        for name in folder.names():
            with contextlib.suppress(OSError):
                if name.startswith(_SCRATCH):
                    _remove_unlocked(folder, name)
                elif name.startswith(_OF_A_SESSION) and name.endswith(known_by):
                    session_id = name.removeprefix(_OF_A_SESSION).removesuffix(known_by)
                    if _is_over(SessionPaths(state_dir, session_id)):
                        remove(os.path.join(folder.path, name))


def _remove_unlocked(folder: Folder, name: str) -> None:
    found = folder.stat(name)
    if found is None or not is_directory(found) or not _is_ours(found):
        return
    descriptor = folder.descriptor_of(name)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.remove(name)
    finally:
        os.close(descriptor)


def _is_over(paths: SessionPaths) -> bool:
    """True if nothing is left that a session could be resumed from, and no process has it."""
    return not any(map(os.path.lexists, paths.checkpoint_files)) and holder(paths.lock) is None


def _is_ours(found: os.stat_result) -> bool:
    if _WINDOWS:  # where the directory of the user's profile keeps others out
        return True
    return found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == DIRECTORY_MODE
