"""Holding a thread, and all that it starts, to what a scope allows (Linux).

Privileges, capabilities, Landlock and filters of system calls belong to a thread. One that restricts itself and then
starts a program has a child that is held, while the rest of its process stays free: no program in between, and no code
between fork and exec. Such a thread has to end afterwards: nothing gives its rights back.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import struct
import time

from config.lean_typing import NamedTuple
from tool_runtime.platform import landlock, linux_calls, mounts, seccomp
from tool_runtime.platform.landlock import EXECUTE, IOCTL_DEV, READ_FILE, REFER, TRUNCATE, WRITE_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Final

    from policy import CommandScope
    from tool_runtime.platform.landlock import PathRule, Rules
    from tool_runtime.platform.seccomp import Network

    FileKey = tuple[int, int]
    """Device and inode."""

LEAST_ABI: Final = 3
"""Below it truncate(2) is held nowhere."""
WHOLE_ABI: Final = 6
"""Below it signals and abstract sockets are not held."""

_OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_EVERY_TCP: Final = 0b11  # bind and connect
_EVERY_SCOPE: Final = 0b11  # abstract unix sockets and signals
_CREATE_VERSION: Final = 1
_NONE_HERE: Final = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES)
_RULE_PATH_BENEATH: Final = 1
_OPEN: Final = os.O_CLOEXEC | getattr(os, "O_PATH", 0) | getattr(os, "O_NOFOLLOW", 0)
NOT_BY_ANY: Final = (
    "locks on files that may be read",
    "how much memory, processor time and disk space is used",
    "datagrams, where any host is open, of a program that exchanges its sockets while it is asked about one",
)
"""Gaps of every level, in words for people."""
_OF_PROCESSES: Final = (
    "names, arguments and numbers of open files of other processes",
    "priorities and processors of other processes of the user",
)
NOT_BY_LANDLOCK: Final = (
    "mode, owner, times and attributes of files outside of the writable places",
    "names, sizes, attributes and link targets of hidden files, and when they change",
    "what lies in /dev/shm, and shared memory, semaphores and queues of System V and POSIX",
    "devices that have a place outside of /dev",
    *_OF_PROCESSES,
)
"""Gaps of every version of Landlock, in words for people."""
_BELOW_6: Final = ("signals to other processes", "sockets with abstract names")
_WITHOUT_SUPERVISOR: Final = ("to which addresses connections are made, where any host is open",)


class Restriction(NamedTuple):
    """Restrictions of a thread. `abi` is the version of Landlock that is used, 0 for none of it. `changes_modes`: as
    root it may change mode and times of files of others, since it sees none outside that could be changed. `ruleset` is
    one of `rules` that has been made before (`KeptRules`), and is there until the next command starts."""

    rules: Sequence[PathRule]
    abi: int
    network: Network
    with_listener: bool
    changes_modes: bool = False
    ruleset: Ruleset | None = None


def restrict_this_thread(wanted: Restriction, *, is_bounded: bool = False) -> int | None:
    """Hold the calling thread for good; the descriptor that asks, where one is wanted. Raises OSError, and then nothing
    is to be started by it. `is_bounded`: its programs get no more capabilities as it is."""
    known = linux_calls.numbers()
    if known is None:
        raise linux_calls.unknown_machine()
    linux_calls.drop_capabilities(known, changes_modes=wanted.changes_modes, is_bounded=is_bounded)
    linux_calls.forbid_new_privileges(known)
    if wanted.abi:
        hold_files(wanted)
    wanted_filter = seccomp.Filter(linux_calls.machine(), wanted.network, wanted.with_listener)
    return seccomp.install(seccomp.program(wanted_filter), with_listener=wanted.with_listener)


def launch_by_this_thread(
    wanted: Restriction, launch: Callable[[], subprocess.Popen[bytes]]
) -> tuple[subprocess.Popen[bytes], int | None]:
    """Hold the calling thread and start a program by `launch`; the program and the descriptor. Raises OSError."""
    listener = restrict_this_thread(wanted)
    try:
        return launch(), listener
    except BaseException:
        if listener is not None:
            os.close(listener)
        raise


def hold_files(wanted: Restriction) -> None:
    """Hold this thread by Landlock alone, so that it opens only what the programs may open. Raises OSError."""
    known = linux_calls.numbers()
    if known is None:
        raise linux_calls.unknown_machine()
    linux_calls.forbid_new_privileges(known)
    ruleset = wanted.ruleset or ruleset_of(wanted)
    try:
        restrict_self(ruleset)
    finally:
        if wanted.ruleset is None:
            os.close(ruleset.descriptor)


def ruleset_of(wanted: Restriction) -> Ruleset:
    """A new ruleset, as the disk is now. Raises OSError."""
    # Whoever is asked connects and binds in the program's place: the program itself has no need to.
    hold_tcp = wanted.with_listener or wanted.network != "open"
    return make_ruleset(wanted.rules, wanted.abi, hold_tcp=hold_tcp)


def not_held(abi: int, *, is_supervised: bool) -> tuple[str, ...]:
    """Describe what a version of Landlock cannot enforce, for people."""
    below_6 = _BELOW_6 if abi < WHOLE_ABI else ()
    return (*NOT_BY_ANY, *NOT_BY_LANDLOCK, *below_6, *(() if is_supervised else _WITHOUT_SUPERVISOR))


def not_held_by_namespaces(*, processes: bool, is_supervised: bool) -> tuple[str, ...]:
    """Describe what namespaces cannot enforce; `processes`: there is one of processes among them."""
    others = (*(() if processes else _OF_PROCESSES), *(() if is_supervised else _WITHOUT_SUPERVISOR))
    return (*NOT_BY_ANY, "devices that have a place outside of /dev", *others)


# Landlock, the kernel's own way for a thread to give up rights to files, for itself and all that it starts.


def abi() -> int:
    """The version of Landlock that this kernel has; 0 for none, or where it is switched off or refused. Raises OSError
    for any other answer, which says nothing about it."""
    try:
        return linux_calls.call(linux_calls.LANDLOCK_CREATE_RULESET, None, 0, _CREATE_VERSION)
    except OSError as error:
        if error.errno not in _NONE_HERE:
            raise
        return 0


def file_rights(version: int) -> int:
    """The rights to files that an ABI can hold."""
    later = (REFER, 2), (TRUNCATE, 3), (IOCTL_DEV, 5)
    return sum((right for right, since in later if version >= since), (1 << 13) - 1)


def ruleset_attributes(version: int, *, hold_tcp: bool) -> bytes:
    """A `struct landlock_ruleset_attr` of `version`. `hold_tcp`: no TCP port may be bound or connected to."""
    fields = (file_rights(version), _EVERY_TCP if hold_tcp else 0, _EVERY_SCOPE)
    known = 3 if version >= WHOLE_ABI else 2 if version >= 4 else 1
    return struct.pack(f"={known}Q", *fields[:known])


class Ruleset(NamedTuple):
    """The descriptor of a ruleset, for its owner to close, and which file each place was that it grants."""

    descriptor: int
    granted: Mapping[str, FileKey]


def make_ruleset(rules: Iterable[PathRule], version: int, *, hold_tcp: bool) -> Ruleset:
    """A ruleset that grants `rules` and holds all else; what is gone, or a link, gets nothing. Raises OSError."""
    attributes = ruleset_attributes(version, hold_tcp=hold_tcp)
    descriptor = linux_calls.call(linux_calls.LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    granted: dict[str, FileKey] = {}
    handled = file_rights(version)
    try:
        for rule in rules:
            key = _add(descriptor, rule.path, rule.rights & handled)
            if key is not None:
                granted[rule.path] = key
    except OSError:
        os.close(descriptor)
        raise
    return Ruleset(descriptor, granted)


def _add(ruleset: int, path: str, rights: int) -> FileKey | None:
    try:
        place = os.open(path, _OPEN)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP):
            return None
        raise
    try:
        status = os.fstat(place)
        if not stat.S_ISDIR(status.st_mode):
            rights &= _OF_FILES
        if rights and not stat.S_ISLNK(status.st_mode):
            beneath = struct.pack("=Qi", rights, place)
            linux_calls.call(linux_calls.LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, beneath, 0)
        return status.st_dev, status.st_ino
    finally:
        os.close(place)


def restrict_self(ruleset: Ruleset) -> None:
    """Hold this thread to `ruleset`, for good; privileges must have been forbidden before. Raises OSError."""
    linux_calls.call(linux_calls.LANDLOCK_RESTRICT_SELF, ruleset.descriptor, 0)


# Rules of Landlock that are kept between commands: made again when the disk does not look as it did.
#
# A ruleset is made of paths and holds for the files that these were. Kept, it may hold for what has another name by
# now, so before each use all is compared that it was made of (decision 0100): each place that the scope names is the
# file that was granted, each directory that was listed has had no entry come, go or change its name, what is hidden is
# there or not as it was, and nothing has been mounted. What a command cannot set decides: inodes, which the ruleset
# keeps from being used again, and the times of the inodes' own changes.

_MOST_KEPT: Final = 8


class Kept(NamedTuple):
    """Rules with what they were made of."""

    rules: Rules
    restriction: Restriction
    is_sure: bool
    is_there: tuple[bool, ...]
    has_terminals: bool


class KeptRules:
    """The rules of the scopes of one session, with what `restrict` makes of these and, unless programs have a view of
    their own (`in_view`), the kernel's form of them. Not for several threads at once."""

    def __init__(self, restrict: Callable[[CommandScope, Rules], Restriction], *, in_view: bool) -> None:
        self._restrict = restrict
        self._in_view = in_view
        self._kept: dict[CommandScope, Kept] = {}
        self._mounted = -1
        self._mounts = select.poll()

    def get(self, scope: CommandScope) -> Kept:
        """Return the ruleset of a command under `scope`, as the disk is now. Raises OSError."""
        if self._mounted >= 0 and self._mounts.poll(0):  # something was mounted
            self.forget()
        kept = self._kept.pop(scope, None)
        if kept is not None and not _is_current(kept, scope):
            _close(kept)
            kept = None
        self._kept[scope] = kept = kept or self._make_kept(scope)
        if len(self._kept) > _MOST_KEPT:
            _close(self._kept.pop(next(iter(self._kept))))
        return kept

    def rules(self, scope: CommandScope) -> Rules:
        """The rules of the last command under `scope`."""
        kept = self._kept.get(scope)
        return landlock.rules_for(scope, in_view=self._in_view) if kept is None else kept.rules

    def forget(self) -> None:
        """Keep none: as long as a ruleset is there, so are the files that it was made of."""
        while self._kept:
            _close(self._kept.popitem()[1])
        if self._mounted >= 0:
            self._mounts.unregister(self._mounted)
            os.close(self._mounted)
            self._mounted = -1

    def _make_kept(self, scope: CommandScope) -> Kept:
        if self._mounted < 0:
            self._mounted = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            self._mounts.register(self._mounted, select.POLLPRI | select.POLLERR)
        began = time.time_ns()
        terminals = landlock.has_terminals()
        is_there = _which_are_there(scope)
        rules = landlock.rules_for(scope, in_view=self._in_view)
        restriction = self._restrict(scope, rules)
        if not self._in_view:
            restriction = restriction._replace(ruleset=ruleset_of(restriction))
        changes = (max(stamp[2:]) for stamp in rules.listed.values())
        is_sure = all(mounts.is_settled(change, began) for change in changes)
        return Kept(rules, restriction, is_sure, is_there, terminals)


def _is_current(kept: Kept, scope: CommandScope) -> bool:
    if not kept.is_sure or kept.has_terminals != landlock.has_terminals():
        return False
    ruleset = kept.restriction.ruleset
    try:
        if ruleset is not None:
            granted = {place: ruleset.granted[place] for place in kept.rules.named if place in ruleset.granted}
            if mounts.keys_of(kept.rules.named) != granted:
                return False
        if any(landlock.stamp_of(place) != stamp for place, stamp in kept.rules.listed.items()):
            return False
    except OSError:
        return False
    return kept.is_there == _which_are_there(scope)


def _close(kept: Kept) -> None:
    if kept.restriction.ruleset is not None:
        os.close(kept.restriction.ruleset.descriptor)


def _which_are_there(scope: CommandScope) -> tuple[bool, ...]:
    return tuple(map(os.path.lexists, scope.hidden))
