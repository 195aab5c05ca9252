"""Landlock, the kernel's own way for a thread to give up rights to files, for itself and all that it starts.

A right that is granted at a directory holds for all below it, and nothing takes it away again there.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

from tool_runtime.platform import linux_calls
from tool_runtime.platform.landlock_rights import EXECUTE, IOCTL_DEV, READ_FILE, REFER, TRUNCATE, WRITE_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

    from tool_runtime.platform.landlock_rights import PathRule

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


def abi() -> int:
    """The version of Landlock that this kernel has; 0 for none, or where it is switched off or refused. Raises OSError
    for any other answer, which says nothing about it."""
    try:
        return linux_calls.call(linux_calls.LANDLOCK_CREATE_RULESET, None, 0, _CREATE_VERSION)
    except OSError as error:
        if error.errno not in _NONE_HERE:
            raise
        return 0


def handled_files(version: int) -> int:
    """The rights to files that an ABI can hold."""
    return (1 << 13) - 1 | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0) | _devices(version)


def _devices(version: int) -> int:
    return IOCTL_DEV if version >= 5 else 0


def ruleset_attributes(version: int, *, hold_tcp: bool) -> bytes:
    """A `struct landlock_ruleset_attr`, as long as `version` knows it. With `hold_tcp` no TCP port may be bound or
    connected to."""
    network = _EVERY_TCP if hold_tcp and version >= 4 else 0
    if version >= WHOLE_ABI:
        return struct.pack("=QQQ", handled_files(version), network, _EVERY_SCOPE)
    if version >= 4:
        return struct.pack("=QQ", handled_files(version), network)
    return struct.pack("=Q", handled_files(version))


def make_ruleset(rules: Iterable[PathRule], version: int, *, hold_tcp: bool) -> int:
    """A descriptor of a ruleset that grants `rules` and holds all else that `version` can. A place that is gone, or
    that has become a link, is granted nothing. Raises OSError."""
    attributes = ruleset_attributes(version, hold_tcp=hold_tcp)
    ruleset = linux_calls.call(linux_calls.LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    handled = handled_files(version)
    try:
        for rule in rules:
            _add(ruleset, rule.path, rule.rights & handled)
    except OSError:
        os.close(ruleset)
        raise
    return ruleset


def _add(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, _OPEN)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP):
            return
        raise
    try:
        mode = os.fstat(place).st_mode
        if not stat.S_ISDIR(mode):
            rights &= _OF_FILES
        if rights and not stat.S_ISLNK(mode):
            beneath = struct.pack("=Qi", rights, place)
            linux_calls.call(linux_calls.LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, beneath, 0)
    finally:
        os.close(place)


def restrict_self(ruleset: int) -> None:
    """Hold this thread to `ruleset`, for good; privileges must have been forbidden before. Raises OSError."""
    linux_calls.call(linux_calls.LANDLOCK_RESTRICT_SELF, ruleset, 0)
