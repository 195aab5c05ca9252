"""New names in a tree of directories, told by the kernel (inotify): one walk when it begins, and then work only for
what is new.

    tree = TreeWatch(root, see, is_passed_over)
    tree.refresh()          # calls `see` for the directories that have new names since the last time

A directory that is new, or that was moved here, is looked into when the next `refresh` comes to it. Where the kernel
lost count (a full queue) the whole tree is looked at again. What cannot be watched is counted in `unwatched`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_DIRECTORIES: Final = 50_000
"""So many are watched at most; the kernel keeps about a kilobyte for each."""
_CREATE: Final = 0x100
_MOVED_TO: Final = 0x80
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ONLY_DIRECTORY: Final = 0x0100_0000
_NO_LINKS: Final = 0x0200_0000
_IS_DIRECTORY: Final = 0x4000_0000
_MASK: Final = _CREATE | _MOVED_TO | _ONLY_DIRECTORY | _NO_LINKS
_LIKELY: Final = (".git", "HEAD")
"""Names that are asked for in a directory that cannot be listed."""
_HEAD: Final = struct.Struct("iIII")
_READ_BYTES: Final = 1 << 18


class TreeWatch:
    """The directories below `root`, a real path. `see(directory, names)` is called with entries that are new, also with
    those of the first walk; directories for which `is_passed_over(path)` holds are not looked into. Links are not
    followed. Raises OSError where there is no inotify to be had."""

    def __init__(
        self, root: str, see: Callable[[str, Sequence[str]], None], is_passed_over: Callable[[str], bool]
    ) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._root = root
        self._see = see
        self._is_passed_over = is_passed_over
        self._paths: dict[int, str] = {}
        self.unwatched = 0
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._unread: set[str] = set()
        self._at: tuple[int, int] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Tell `see` of what is new."""
        new: dict[str, list[str]] = {}
        folders: dict[str, None] = {}
        while self._read(new, folders):
            pass
        at = _identity(self._root)
        if at is not None and at != self._at:  # another directory has taken its place
            self._at, folders = at, {self._root: None}
        for directory, names in new.items():
            self._see(directory, names)
        unread, self._unread = self._unread, set()
        for folder in (*folders, *unread):
            self._walk(folder)

    def walk_again(self, directory: str) -> None:
        """Look into a directory that was passed over, with the next `refresh`; nothing if it lies elsewhere."""
        if directory == self._root or directory.startswith(f"{self._root.rstrip('/')}/"):
            self._unread.add(directory)

    def close(self) -> None:
        """Let go of the watches."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self, new: dict[str, list[str]], folders: dict[str, None]) -> bool:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return False
        at = 0
        while at < len(data):
            descriptor, mask, _, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size + length
            if mask & _OVERFLOW:
                self.unwatched = 0
                folders[self._root] = None
            elif mask & _IGNORED:
                if self._paths.pop(descriptor, None) == self._root:
                    self._at = None
            elif descriptor in self._paths:
                name = os.fsdecode(data[at - length : at].rstrip(b"\0"))
                directory = self._paths[descriptor]
                new.setdefault(directory, []).append(name)
                if mask & _IS_DIRECTORY:
                    folders[os.path.join(directory, name)] = None
        return True

    def _walk(self, top: str) -> None:
        waiting = deque([top])
        while waiting:
            directory = waiting.popleft()
            if directory != self._root and self._is_passed_over(directory):
                continue
            # Watched before it is listed, so that no name comes in between.
            self._watch(directory)
            try:
                with os.scandir(directory) as entries:
                    found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            except PermissionError:  # what is in it may still be reached by its name, and it may be opened later
                self._unread.add(directory)
                self._see(directory, [name for name in _LIKELY if os.path.lexists(f"{directory}/{name}")])
                continue
            except OSError:  # it went
                continue
            self._see(directory, [name for name, _ in found])
            waiting.extend(os.path.join(directory, name) for name, is_directory in found if is_directory)

    def _watch(self, directory: str) -> None:
        if len(self._paths) >= MAX_DIRECTORIES:
            self.unwatched += 1
            return
        descriptor = self._libc.inotify_add_watch(self._fd, os.fsencode(directory), _MASK)
        if descriptor >= 0:
            self._paths[descriptor] = directory
        elif ctypes.get_errno() not in (errno.ENOENT, errno.EACCES, errno.ENOTDIR):
            self.unwatched += 1


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
