"""Opening a file that may have been put there by somebody else: nothing in its place holds the program up, and no link
leads elsewhere."""

from __future__ import annotations

import errno
import os
import stat
import sys
from typing import Final

O_PATH: Final = getattr(os, "O_PATH", os.O_RDONLY)
"""To open what need not be readable, to ask about it; opening it so has no effect. Only Linux has it."""
SAYS_PATHS: Final = sys.platform == "linux"
_GONE: Final = " (deleted)"  # which is put behind the path of what is not there any more
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_FOLDER = O_PATH | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def open_regular(path: str, flags: int, folder: int | None = None) -> int:
    """A descriptor of the regular file at `path`, in the `folder` of that descriptor where one is given; private where
    `flags` have it made. A link, a named pipe or a folder in its place is refused at once. Raises OSError."""
    fd = os.open(path, flags | _FLAGS, 0o600, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return fd


def open_real(path: str) -> int:
    """A descriptor to read the regular file at the real path `path`: no link is followed on the way to it either, such
    as one that a command has put in the place of a folder. Raises OSError, ELOOP or ENOTDIR for a link."""
    fd = open_there(path, os.O_RDONLY | _FLAGS)
    if fd is not None and stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    if fd is not None:
        os.close(fd)
    if os.open not in os.supports_dir_fd:
        return open_regular(path, os.O_RDONLY)
    *folders, name = [part for part in path.split("/") if part] or [os.curdir]
    at = os.open("/", _FOLDER)
    try:
        for folder in folders:
            below = os.open(folder, _FOLDER, dir_fd=at)
            os.close(at)
            at = below
        return open_regular(name, os.O_RDONLY, at)
    finally:
        os.close(at)


def read_real(path: str, most: int) -> bytes:
    """The content of the regular file at the real path, opened by `open_real`. Raises OSError, EFBIG for one of more
    than `most` bytes."""
    with open(open_real(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", path)
    return data


def link_at(path: str) -> bytes | None:
    """The target of the symbolic link at the real path, as it says; None if there is none, or a link is on the way."""
    parent, name = os.path.split(path)
    folder = open_there(parent, _FOLDER)
    try:
        if folder is not None:
            return os.fsencode(os.readlink(name, dir_fd=folder))
        return os.fsencode(os.readlink(path)) if os.path.realpath(parent) == parent else None
    except (OSError, ValueError):
        return None
    finally:
        if folder is not None:
            os.close(folder)


def open_there(path: str, flags: int) -> int | None:
    """Descriptor of what lies at the path, by what the system says of the descriptor: whatever was moved meanwhile, it
    is no place that a link led to. None where the system does not say so. The caller closes it."""
    if not SAYS_PATHS or path.endswith(_GONE):
        return None
    try:
        fd = os.open(path, flags | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if os.readlink(f"/proc/self/fd/{fd}") == path:
            return fd
    except OSError:
        pass
    os.close(fd)
    return None
