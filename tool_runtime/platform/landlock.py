"""Landlock rules for a scope, with Landlock's file rights as bits. A right granted at a directory applies to everything
below it and cannot be taken away there. If a hidden path is below an allowed one, its neighbours are therefore granted
one by one. Importing this loads nothing that calls the kernel.
"""

from __future__ import annotations

import os
from collections import deque

from config.lean_typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Final

    from policy import CommandScope

    Place = tuple[str, int, Sequence[str]]
    """A path, the rights to it, and the hidden paths."""
    DirectoryStamp = tuple[int, int, int, int]
    """Device, inode, and the times of the last change of content and inode in nanoseconds; programs cannot set the
    latter."""

# The kernel's file rights, in the order of their bits.
(
    EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK,
    MAKE_FIFO, MAKE_BLOCK, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV,
) = (1 << bit for bit in range(16))  # fmt: skip
READ: Final = EXECUTE | READ_FILE | READ_DIR
WRITE: Final = (
    WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_SYM | REFER | TRUNCATE
)

MAX_RULES: Final = 4096
"""Maximum rules of a scope: each costs some microseconds per command."""

_DEVICE: Final = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx")
_TERMINALS: Final = "/dev/pts"
_DEVICE_FOLDER: Final = "/dev"
_ACCELERATORS: Final = ("accel", "dri", "dxg", "kfd", "kvm", "nvidia")
"""Prefixes of compute devices' names: a scope that may write everywhere includes them."""
_OF_THE_KERNEL: Final = ("/proc/", "/sys/")
"""Writing there changes the machine, for example how programs are run."""
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  semaphores and shared memory of programs are there, by POSIX
NO_TERMINALS: Final = f"no terminals of their own can be made (pty), since {_TERMINALS} has those of other programs"


class PathRule(NamedTuple):
    """`path` is absolute and not a link; `rights` apply to it and to everything below it."""

    path: str
    rights: int


class Rules(NamedTuple):
    """Landlock rules, and `notes` for the user about parts of the scope that they cannot express. `closed` are writable
    directories in which nothing new can be created. `named` are the granted paths that the scope or the system names.
    `listed` are directories whose entries are granted one by one, with the stamp of each before it was listed."""

    rules: tuple[PathRule, ...]
    notes: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    listed: Mapping[str, DirectoryStamp] = {}


def rules_for(scope: CommandScope, *, in_view: bool = False) -> Rules:
    """Make the Landlock rules for a scope. Reads the disk to find hidden paths that exist, and their neighbours. In
    /dev, only harmless devices and paths that the scope names are granted. `in_view` is for a program whose view of the
    disk hides the hidden paths, and has its own shared memory and terminals."""
    granting = _Granting()
    if not in_view and has_terminals():  # a rule for their folder would also grant their input
        granting.notes.append(NO_TERMINALS)
    else:
        granting.name(_TERMINALS, _DEVICE)
    granting.grant_all(scope, () if in_view else [place for place in scope.hidden if os.path.lexists(place)])
    granted = {rule.path for rule in granting.rules}
    named = tuple(place for place in granting.named if place in granted)
    return Rules(tuple(granting.rules), tuple(granting.notes), tuple(granting.closed), named, granting.listed)


def _is_within(path: str, place: str) -> bool:
    return path == place or place == "/" or path.startswith(f"{place}/")


def has_terminals() -> bool:
    """True if other programs have terminals."""
    try:
        return any(name.isdigit() for name in os.listdir(_TERMINALS))
    except OSError:
        return False


def stamp_of(directory: str) -> DirectoryStamp:
    """Return a stamp that changes whenever an entry of the directory is added, removed or renamed. Raises OSError."""
    found = os.lstat(directory)
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


class _Granting:
    def __init__(self) -> None:
        self.rules: list[PathRule] = []
        self.notes: list[str] = []
        self.closed: list[str] = []
        self.named: list[str] = []
        self.listed: dict[str, DirectoryStamp] = {}

    def name(self, place: str, rights: int) -> None:
        self.named.append(place)
        self.rules.append(PathRule(place, rights))

    def grant_all(self, scope: CommandScope, hidden: Sequence[str]) -> None:
        for path in _DEVICES:
            self.name(path, _DEVICE)
        self.name(SHARED_MEMORY, READ | WRITE)
        reads = ("/",) if scope.reads is None else scope.reads
        waiting: deque[Place] = deque((place, READ, hidden) for place in reads)
        waiting += ((place, READ | WRITE, hidden) for place in scope.writes)
        self.named += (place for place, _, _ in waiting)
        groups: list[list[Place]] = []
        while waiting:
            groups.append([])
            for one in self._grant(*waiting.popleft()):
                is_above_one = any(_is_within(each, one[0]) and each != one[0] for each in one[2])
                (waiting if is_above_one else groups[-1]).append(one)
        # Small groups first, so that a directory with thousands of names beside a hidden one does not use up the limit.
        for group in sorted(groups, key=len):
            for one in group:
                self._grant(*one)

    def _grant(self, place: str, rights: int, hidden: Sequence[str]) -> list[Place]:
        """Grant a place without the hidden paths in it. Returns its entries if they have to be granted one by one."""
        if place in hidden or place in (*_DEVICES, _TERMINALS):
            return []
        if place == _DEVICE_FOLDER:  # it has disks and memory, which root may open
            self._add(place, READ_DIR)
            if rights & WRITE:
                self._grant_accelerators()
            return []
        if place.startswith(f"{_DEVICE_FOLDER}/") and rights & WRITE:
            rights |= IOCTL_DEV
        if f"{place}/".startswith(_OF_THE_KERNEL):
            rights &= READ
        below = [one for one in hidden if _is_within(one, place)]
        excluded = (_DEVICE_FOLDER, *_OF_THE_KERNEL) if place == "/" else ()
        if not below and not excluded:
            self._add(place, rights)
            return []
        # Its names may be listed, also hidden ones: without this right no home directory could be listed.
        self._add(place, READ_DIR)
        if rights & WRITE:
            self.closed.append(place)
            named = ", ".join(os.path.relpath(one, place) for one in (below or excluded)[:3])
            self.notes.append(f"nothing new can be made directly in {place}, since not all of it is granted: {named}")
        try:
            self.listed[place] = stamp_of(place)
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError:
            return []
        return [(entry.path, rights, below) for entry in entries if not entry.is_symlink()]

    def _grant_accelerators(self) -> None:
        try:
            self.listed[_DEVICE_FOLDER] = stamp_of(_DEVICE_FOLDER)
            names = sorted(os.listdir(_DEVICE_FOLDER))
        except OSError:
            return
        for name in names:
            if name.startswith(_ACCELERATORS):
                self._add(f"{_DEVICE_FOLDER}/{name}", _DEVICE | READ_DIR)

    def _add(self, place: str, rights: int) -> None:
        if len(self.rules) < MAX_RULES:
            self.rules.append(PathRule(place, rights))
        elif not any("places beside" in note for note in self.notes):
            only = f"of the places beside hidden ones only {MAX_RULES} are granted"
            self.notes.append(f"{only}; {place} is the first not")
