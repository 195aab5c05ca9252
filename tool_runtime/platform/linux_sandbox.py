"""Restrict a thread, and everything that it starts, to a scope (Linux).

Privileges, capabilities, Landlock and filters of system calls belong to a thread. If a thread restricts itself and then
starts a program, its child is sandboxed while the rest of the process stays free. This needs no wrapper program and no
code between fork and exec. Such a thread must end afterwards, because it cannot regain its rights.
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
"""Older versions do not control truncate(2)."""
WHOLE_ABI: Final = 6
"""Older versions do not control signals and abstract sockets."""

_OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_EVERY_TCP: Final = 0b11  # bind and connect
_EVERY_SCOPE: Final = 0b11  # abstract unix sockets and signals
_CREATE_VERSION: Final = 1
_UNSUPPORTED: Final = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES)
_RULE_PATH_BENEATH: Final = 1
_OPEN: Final = os.O_CLOEXEC | getattr(os, "O_PATH", 0) | getattr(os, "O_NOFOLLOW", 0)
NOT_BY_ANY: Final = (
    "locks on files that may be read",
    "how much memory, processor time and disk space is used",
    "datagrams, where any host is open, of a program that exchanges its sockets while it is asked about one",
)
"""Gaps of every level, as shown to the user."""
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
"""Gaps of every version of Landlock, as shown to the user."""
_BELOW_6: Final = ("signals to other processes", "sockets with abstract names")
_WITHOUT_SUPERVISOR: Final = ("to which addresses connections are made, where any host is open",)


class Restriction(NamedTuple):
    """Restrictions of a thread. `abi` is the version of Landlock to use, 0 for no Landlock. With `changes_modes` root
    may change mode and times of files of other users, because its view contains no files outside of the scope that
    could be changed. `ruleset` was made of `rules` before (see `RulesCache`); it is valid until the next command
    starts."""

    rules: Sequence[PathRule]
    abi: int
    network: Network
    with_listener: bool
    changes_modes: bool = False
    ruleset: Ruleset | None = None


def restrict_this_thread(wanted: Restriction, *, is_bounded: bool = False) -> int | None:
    """Restrict the calling thread for good; return the filter's listener if one is wanted. After an OSError the thread
    must not start anything. `is_bounded` means that `bound_capabilities` was called."""
    known = linux_calls.numbers()
    if known is None:
        raise linux_calls.unknown_machine()
    linux_calls.drop_capabilities(known, changes_modes=wanted.changes_modes, is_bounded=is_bounded)
    linux_calls.forbid_new_privileges(known)
    if wanted.abi:
        restrict_files(wanted)
    wanted_filter = seccomp.Filter(linux_calls.machine(), wanted.network, wanted.with_listener)
    return seccomp.install(seccomp.program(wanted_filter), with_listener=wanted.with_listener)


def launch_by_this_thread(
    wanted: Restriction, launch: Callable[[], subprocess.Popen[bytes]]
) -> tuple[subprocess.Popen[bytes], int | None]:
    """Restrict the calling thread and start a program by `launch`; return the program and the listener. Raises
    OSError."""
    listener = restrict_this_thread(wanted)
    try:
        return launch(), listener
    except BaseException:
        if listener is not None:
            os.close(listener)
        raise


def restrict_files(wanted: Restriction) -> None:
    """Restrict this thread by Landlock only, so that it opens only files that the programs may open. Raises OSError."""
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
    """Make a ruleset from the current state of the disk. Raises OSError."""
    # The supervisor connects and binds for the program, so the program itself needs no right to.
    restrict_tcp = wanted.with_listener or wanted.network != "open"
    return make_ruleset(wanted.rules, wanted.abi, restrict_tcp=restrict_tcp)


def not_enforced(abi: int, *, is_supervised: bool) -> tuple[str, ...]:
    """List what a version of Landlock cannot enforce, for the user."""
    below_6 = _BELOW_6 if abi < WHOLE_ABI else ()
    return (*NOT_BY_ANY, *NOT_BY_LANDLOCK, *below_6, *(() if is_supervised else _WITHOUT_SUPERVISOR))


def not_enforced_by_namespaces(*, processes: bool, is_supervised: bool) -> tuple[str, ...]:
    """List what namespaces cannot enforce, for the user. `processes` is true with a process namespace."""
    others = (*(() if processes else _OF_PROCESSES), *(() if is_supervised else _WITHOUT_SUPERVISOR))
    return (*NOT_BY_ANY, "devices that have a place outside of /dev", *others)


# Landlock lets a thread give up file rights, for itself and everything that it starts.


def abi() -> int:
    """Return the kernel's version of Landlock; 0 if there is none, or if it is switched off or denied. Raises OSError
    for any other error, after which the version is unknown."""
    try:
        return linux_calls.call(linux_calls.LANDLOCK_CREATE_RULESET, None, 0, _CREATE_VERSION)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return 0


def file_rights(version: int) -> int:
    """Return the file rights that a version can control."""
    later = (REFER, 2), (TRUNCATE, 3), (IOCTL_DEV, 5)
    return sum((right for right, since in later if version >= since), (1 << 13) - 1)


def ruleset_attributes(version: int, *, restrict_tcp: bool) -> bytes:
    """Return a `struct landlock_ruleset_attr` of `version`. With `restrict_tcp` no TCP port may be bound or connected
    to."""
    fields = (file_rights(version), _EVERY_TCP if restrict_tcp else 0, _EVERY_SCOPE)
    known = 3 if version >= WHOLE_ABI else 2 if version >= 4 else 1
    return struct.pack(f"={known}Q", *fields[:known])


class Ruleset(NamedTuple):
    """The descriptor of a ruleset, which its owner closes, and the identity of the file at each granted place."""

    descriptor: int
    granted: Mapping[str, FileKey]


def make_ruleset(rules: Iterable[PathRule], version: int, *, restrict_tcp: bool) -> Ruleset:
    """Make a ruleset that grants `rules` and denies everything else. Missing paths and links are skipped. Raises
    OSError."""
    attributes = ruleset_attributes(version, restrict_tcp=restrict_tcp)
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
    """Restrict this thread to `ruleset` for good; `forbid_new_privileges` must have been called before. Raises
    OSError."""
    linux_calls.call(linux_calls.LANDLOCK_RESTRICT_SELF, ruleset.descriptor, 0)


# Landlock rules are kept between commands, and remade when the disk has changed.
#
# A ruleset is made from paths but applies to the files that they were then, which may have other names by now. So
# before each use its sources are compared (decision 0100): each place that the scope names is the file that was
# granted, no entry of a listed directory was added, removed or renamed, hidden paths exist or are missing as before,
# and nothing was mounted. Only values that a command cannot set are compared: inodes, which cannot be reused while the
# ruleset exists, and the inodes' change times.

_MAX_CACHED: Final = 8


class CachedRules(NamedTuple):
    """Rules with the state of the disk that they were made from."""

    rules: Rules
    restriction: Restriction
    is_sure: bool
    existing: tuple[bool, ...]
    has_terminals: bool


class RulesCache:
    """The rules of the scopes of one session, with the restriction that `restrict` makes of them and, unless programs
    have their own view of the disk (`in_view`), the kernel's ruleset. Not thread-safe."""

    def __init__(self, restrict: Callable[[CommandScope, Rules], Restriction], *, in_view: bool) -> None:
        self._restrict = restrict
        self._in_view = in_view
        self._cached: dict[CommandScope, CachedRules] = {}
        self._mounted = -1
        self._mounts = select.poll()

    def get(self, scope: CommandScope) -> CachedRules:
        """Return the rules of a command under `scope`, valid for the current state of the disk. Raises OSError."""
        if self._mounted >= 0 and self._mounts.poll(0):  # something was mounted
            self.forget()
        kept = self._cached.pop(scope, None)
        if kept is not None and not _is_current(kept, scope):
            _close(kept)
            kept = None
        self._cached[scope] = kept = kept or self._make(scope)
        if len(self._cached) > _MAX_CACHED:
            _close(self._cached.pop(next(iter(self._cached))))
        return kept

    def rules(self, scope: CommandScope) -> Rules:
        """Return the rules of the last command under `scope`, or new ones."""
        kept = self._cached.get(scope)
        return landlock.rules_for(scope, in_view=self._in_view) if kept is None else kept.rules

    def forget(self) -> None:
        """Drop all rules. While a ruleset exists, the files that it was made from are not freed."""
        while self._cached:
            _close(self._cached.popitem()[1])
        if self._mounted >= 0:
            self._mounts.unregister(self._mounted)
            os.close(self._mounted)
            self._mounted = -1

    def _make(self, scope: CommandScope) -> CachedRules:
        if self._mounted < 0:
            self._mounted = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            self._mounts.register(self._mounted, select.POLLPRI | select.POLLERR)
        started_ns = time.time_ns()
        terminals = landlock.has_terminals()
        existing = _existing(scope)
        rules = landlock.rules_for(scope, in_view=self._in_view)
        restriction = self._restrict(scope, rules)
        if not self._in_view:
            restriction = restriction._replace(ruleset=ruleset_of(restriction))
        changes = (max(stamp[2:]) for stamp in rules.listed.values())
        is_sure = all(mounts.is_settled(change, started_ns) for change in changes)
        return CachedRules(rules, restriction, is_sure, existing, terminals)


def _is_current(kept: CachedRules, scope: CommandScope) -> bool:
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
    return kept.existing == _existing(scope)


def _close(kept: CachedRules) -> None:
    if kept.restriction.ruleset is not None:
        os.close(kept.restriction.ruleset.descriptor)


def _existing(scope: CommandScope) -> tuple[bool, ...]:
    return tuple(map(os.path.lexists, scope.hidden))
