"""Landlock, the kernel's own way for a thread to give up rights to files, for itself and all that it starts.

A right that is granted at a directory holds for all below it, and nothing takes it away again there.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

from config.lean_typing import NamedTuple
from tool_runtime.platform import linux_calls
from tool_runtime.platform.landlock_rules import EXECUTE, IOCTL_DEV, READ_FILE, REFER, TRUNCATE, WRITE_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Final

    from tool_runtime.platform.landlock_rules import PathRule

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
    return (1 << 13) - 1 | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0) | _devices(version)


def _devices(version: int) -> int:
    return IOCTL_DEV if version >= 5 else 0


def ruleset_attributes(version: int, *, hold_tcp: bool) -> bytes:
    """A `struct landlock_ruleset_attr`, as long as `version` knows it. With `hold_tcp` no TCP port may be bound or
    connected to."""
    network = _EVERY_TCP if hold_tcp and version >= 4 else 0
    if version >= WHOLE_ABI:
        return struct.pack("=QQQ", file_rights(version), network, _EVERY_SCOPE)
    if version >= 4:
        return struct.pack("=QQ", file_rights(version), network)
    return struct.pack("=Q", file_rights(version))


class Ruleset(NamedTuple):
    """The descriptor of a ruleset, for its owner to close, and which file each place was that it grants."""

    descriptor: int
    granted: Mapping[str, FileKey]


def make_ruleset(rules: Iterable[PathRule], version: int, *, hold_tcp: bool) -> Ruleset:
    """A ruleset that grants `rules` and holds all else that `version` can. A place that is gone, or that has become a
    link, is granted nothing. Raises OSError."""
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
