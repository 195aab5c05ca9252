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
_SAYS_PATHS: Final = sys.platform == "linux"
_GONE: Final = " (deleted)"  # which is put behind the path of what is not there any more
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: str, flags: int) -> int:
    """A descriptor of the regular file at `path`, private where `flags` have it made. A link, a named pipe or a folder
    in its place is refused at once. Raises OSError."""
    fd = os.open(path, flags | _FLAGS, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return fd


def opened_there(path: str, flags: int) -> int | None:
    """Descriptor of what lies at the path, by what the system says of the descriptor: whatever was moved meanwhile, it
    is no place that a link led to. None where the system does not say so. The caller closes it."""
    if not _SAYS_PATHS or path.endswith(_GONE):
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
