"""Open files that other programs may have created, and find files by names that a model cannot spell.

Opening never blocks (on a pipe or a device, for example) and follows no link.

A model cannot spell some names exactly: with look-alike spaces, accents in two characters, or bytes that are not UTF-8.
Every displayed name, escapes included, means its file. For reading, a missing name that looks exactly like an existing
one means that one, too.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
import sys
from typing import TYPE_CHECKING, Final

from agent_host.display_text import escape, name_for_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

O_PATH: Final = getattr(os, "O_PATH", os.O_RDONLY)
"""To open what need not be readable, to ask about it; opening it so has no effect. Only Linux has it."""
REPORTS_PATHS: Final = sys.platform == "linux"
_DELETED_SUFFIX: Final = " (deleted)"  # which is appended to the path of a removed file
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_FOLDER = O_PATH | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def open_regular(path: str, flags: int, folder: int | None = None) -> int:
    """Open the regular file at `path`, relative to the descriptor `folder` if given; `flags` that create it make it
    private. A link, a named pipe or a folder in its place is refused at once. Raises OSError."""
    fd = os.open(path, flags | _FLAGS, 0o600, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return fd


def open_real(path: str) -> int:
    """A descriptor to read the regular file at the real path `path`: no link is followed on the way to it either, such
    as one that a command has put in the place of a folder. Raises OSError, ELOOP or ENOTDIR for a link."""
    fd = open_exact(path, os.O_RDONLY | _FLAGS)
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
    """The target of the symbolic link at the real path, unresolved; None if there is none, or a link is on the way."""
    parent, name = os.path.split(path)
    folder = open_exact(parent, _FOLDER)
    try:
        if folder is not None:
            return os.fsencode(os.readlink(name, dir_fd=folder))
        return os.fsencode(os.readlink(path)) if os.path.realpath(parent) == parent else None
    except (OSError, ValueError):
        return None
    finally:
        if folder is not None:
            os.close(folder)


def open_exact(path: str, flags: int) -> int | None:
    """A descriptor whose path, as reported by the system, is this path: even after concurrent moves no link was
    followed. None if the system does not report it. The caller closes it."""
    if not REPORTS_PATHS or path.endswith(_DELETED_SUFFIX):
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


# Ways.

_MAX_STEPS: Final = 400


def steps(path: str) -> Iterator[tuple[str, list[str]]]:
    """Each place on the way of an absolute POSIX path, with the parts after it; the way of a link's target follows the
    link. Raises OSError, ELOOP for links without an end."""
    at, rest = "/", [part for part in path.split("/") if part]
    for _ in range(_MAX_STEPS):
        if not rest:
            return
        part = rest.pop(0)
        if part in (".", ".."):
            at = os.path.normpath(os.path.join(at, part))
            continue
        step = os.path.join(at, part)
        yield step, rest
        try:
            target = os.readlink(step)
        except (OSError, ValueError):
            at = step
            continue
        at = "/" if target.startswith("/") else at
        rest = [part for part in target.split("/") if part] + rest
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def leads_out(path: str, directory: str) -> bool:
    """True if an absolute `path` goes through the real `directory` to a place outside of it, as by a link in it."""
    within, real = directory.rstrip(os.sep) + os.sep, os.path.realpath(path)
    if (real + os.sep).startswith(within) or real == os.path.normpath(path):
        return False
    try:
        return any(step.startswith(within) for step, _ in steps(path))
    except OSError:
        return True


# Names.

_MAX_NAMES: Final = 20_000
"""Names that one look at a directory compares."""
_SPACES: Final = re.compile(r"\s")
_LIKENESS: Final = 0.6
_MAX_NEAREST: Final = 3


def intended_path(path: str, *, looks: bool) -> str | None:
    """The path meant by a missing absolute `path`: the one that was displayed like this, or with `looks` the only one
    that looks the same. None if there is no such path."""
    drive, rest = os.path.splitdrive(path)
    at, parts = drive + os.sep, rest.strip(os.sep).split(os.sep)
    for number, part in enumerate(parts):
        below = os.path.join(at, part)
        if not os.path.lexists(below):
            name = _entry(at, part, looks=looks)
            if name is None:
                candidate = os.path.join(at, *parts[number:])
                return candidate if not looks and candidate != path else None
            below = os.path.join(at, name)
        at = below
    return None if at == path else at


def nearest(path: str, is_admitted: Callable[[str], bool]) -> list[str]:
    """Names in the directory of the absolute `path` that look like its last one, the nearest first; at most 3. Those
    whose paths are not admitted are left out."""
    import difflib  # with the first name that is not there

    above, wanted = os.path.split(path)
    key = _look_of(wanted).casefold()
    matcher = difflib.SequenceMatcher(None, "", key, autojunk=False)
    found: list[tuple[float, str]] = []
    for name in _names(above):
        matcher.set_seq1(_look_of(name).casefold())
        if matcher.real_quick_ratio() >= _LIKENESS and matcher.quick_ratio() >= _LIKENESS:
            likeness = matcher.ratio()
            if likeness >= _LIKENESS and name != wanted and is_admitted(os.path.join(above, name)):
                found.append((-likeness, name))
    return [escape(name, "") for _, name in sorted(found)[:_MAX_NEAREST]]


def look_alikes(path: str) -> list[str]:
    """Names in the directory of the absolute `path` that look exactly like its last one, and are others."""
    above, wanted = os.path.split(path)
    return [escape(name, "") for name in _names(above) if name != wanted and _look_of(name) == _look_of(wanted)]


def _entry(directory: str, wanted: str, *, looks: bool) -> str | None:
    if "\\" not in wanted and not looks:
        return None
    names = list(_names(directory))
    shown = [name for name in names if wanted in (escape(name, ""), name_for_json(name))]
    if len(shown) == 1:
        return shown[0]
    similar = [name for name in names if _look_of(name) == _look_of(wanted)] if looks and not shown else []
    return similar[0] if len(similar) == 1 else None


def _look_of(name: str) -> str:
    import unicodedata  # a start looks at no name

    return _SPACES.sub(" ", unicodedata.normalize("NFKC", name))


def _names(directory: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            yield from [entry.name for entry in itertools.islice(entries, _MAX_NAMES)]
    except (OSError, ValueError):
        return
