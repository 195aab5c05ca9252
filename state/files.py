"""The few file operations that durability hangs on; everything in `state/` writes through them.

They are module functions so that a fault test can replace one and see what the rest does.
"""

from __future__ import annotations

import contextlib
import os
import sys

from state.locations import FILE_MODE

_BINARY = getattr(os, "O_BINARY", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte of `data`; a short write goes on where it stopped. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_data(fd: int) -> None:
    """Make what was written to `fd` durable. macOS needs F_FULLFSYNC for that: its fsync stops at the drive's cache."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    elif sys.platform == "win32":
        os.fsync(fd)
    else:
        os.fdatasync(fd)


def sync_directory(path: str) -> None:
    """Make a rename inside `path` durable. Windows has no such call and needs none."""
    if sys.platform == "win32":
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_new(path: str) -> int:
    """A descriptor of a new empty 0600 file at `path`; what lay there before under a temporary name is replaced."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | _BINARY, FILE_MODE)


def replace_atomically(path: str, chunks: list[bytes]) -> None:
    """Put `chunks` at `path` so that a reader or a crash sees all of the old or all of the new. Raises OSError.

    Durable on return: temp file in the same directory, sync, rename, sync of the directory (AH 9.3).
    """
    temporary = path + ".tmp"
    fd = open_new(temporary)
    try:
        for chunk in chunks:
            write_all(fd, chunk)
        sync_data(fd)
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    os.close(fd)
    os.replace(temporary, path)
    sync_directory(os.path.dirname(path))


def read_bytes(path: str) -> bytes:
    """The whole file; a symbolic link in its place is refused with OSError (ELOOP)."""
    fd = os.open(path, os.O_RDONLY | _NO_FOLLOW | _BINARY)
    with os.fdopen(fd, "rb") as handle:
        return handle.read()
