"""Opening a file that may have been put there by somebody else: nothing in its place holds the program up."""

from __future__ import annotations

import errno
import os
import stat

_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: str, flags: int) -> int:
    """A descriptor of the regular file at `path`, private where `flags` have it made. A link, a named pipe or a folder
    in its place is refused at once. Raises OSError."""
    fd = os.open(path, flags | _FLAGS, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return fd
