"""Paths, checked again at the time of use (TR 6.1, 8.1; design invariant 6).

`resolve` converts the model's spelling into a real path inside the allowed scope. `open_dir` then opens that path
without following links, so the opened file is the checked one, even if links change in between: the system reports the
descriptor's path, or the path is walked one component at a time by descriptor. On systems without descriptor-relative
calls (Windows), the real path is used directly.
"""

from __future__ import annotations

import errno
import functools
import operator
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host.safe_open import O_PATH, open_exact
from policy.paths import covering, is_absolute, is_under, normalize, problem_with, roots
from policy.rules.protected_paths import repository_place
from tool_runtime.platform import OS_FAMILY
from tool_runtime.platform.directories import BY_DESCRIPTOR, MAY_BE_LINK, PASS_FLAGS, is_link, walk
from tool_runtime.tool import FaultKind, ToolFault, os_faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from policy.facts import OsFamily
    from policy.paths import Roots, Width

_LIST_FLAGS: Final = PASS_FLAGS & ~O_PATH | os.O_RDONLY

_SAFE: Final = ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_NOCTTY", "O_BINARY")
SAFE_FLAGS: Final = functools.reduce(operator.or_, (getattr(os, name, 0) for name in _SAFE))
"""By which no link is followed, and no pipe or terminal is waited for."""


class Scope(NamedTuple):
    """Absolute real roots. None means no restriction of that kind, an empty tuple means nothing is allowed."""

    allowed: tuple[str, ...] | None = None
    blocked: tuple[str, ...] | None = None


def open_file(path: str, scope: Scope) -> tuple[str, int, os.stat_result]:
    """Open an existing regular file to read it: its real path, descriptor and status. The caller closes it. Raises
    ToolFault as `resolve` and `open_regular` do, and the system's OSError."""
    spelled = _spell(path)
    _refuse_slash(path)
    parent, name = os.path.split(spelled)
    if name and not _out_of_scope(spelled, spelled, scope):
        directory = open_exact(parent, PASS_FLAGS)
        if directory is not None:  # then no link is in the way, up to the file itself
            try:
                return spelled, *open_regular(directory, name)
            except (OSError, ToolFault):
                pass  # the next check reports the problem, if it is not a link
            finally:
                os.close(directory)
    real = resolve(path, scope)
    with open_parent(real) as (directory, name):
        return real, *open_regular(directory, name)


def open_directory(path: str, scope: Scope) -> tuple[str, int | None]:
    """The real path of a directory, and a descriptor for reading its entries, which the caller closes; None if the
    system has no such descriptors. Raises ToolFault."""
    spelled = _spell(path)
    if not _out_of_scope(spelled, spelled, scope):
        descriptor = open_exact(spelled, _LIST_FLAGS)
        if descriptor is not None:
            return spelled, descriptor
    real = resolve(path, scope)
    if not BY_DESCRIPTOR or os.scandir not in os.supports_fd:
        return real, None
    with os_faults(path):
        return real, open_dir(real, to_list=True)


def resolve(
    path: str, scope: Scope, *, to_change: bool = False, through_links: bool = True, own_name: bool = False
) -> str:
    """The real path of `path` (a nonexistent rest keeps its spelling). Raises ToolFault: INVALID_ARGUMENT for a path
    that is relative, too long or contains a NUL (TR 8.1), OUT_OF_SCOPE for one that `scope` does not cover; with
    `to_change` also for files that determine which programs git runs, unless an allowed path names their `.git`;
    without `through_links` for a path through a symbolic link. `own_name`: a link at its end is not followed."""
    spelled = _spell(path)
    if to_change:
        _refuse_slash(path, own_name=own_name)
    with os_faults(path):
        parent, name = os.path.split(spelled)
        if own_name and name:
            real = os.path.join(parent if _is_real(parent) else os.path.realpath(parent), name)
        else:
            real = spelled if _is_real(spelled) else os.path.realpath(spelled)
    check_scope(spelled, real, scope)
    if not through_links and real != spelled:
        raise ToolFault(FaultKind.OUT_OF_SCOPE, f"the path leads through a symbolic link, to {real}: {spelled}")
    if to_change and repository_place(real, scope.allowed, OS_FAMILY) is not None:
        raise ToolFault(FaultKind.OUT_OF_SCOPE, f"policy keeps what git runs from changing: {spelled}")
    return real


def _refuse_slash(path: str, *, own_name: bool = False) -> None:
    """Raises ToolFault(INVALID_ARGUMENT) for a path that can only be a directory's, if a file's is wanted."""
    if path.endswith((os.sep, os.altsep or os.sep)) and (own_name or not os.path.isdir(path)):
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"it ends in a slash, and so names a directory: {path}")


def _is_real(spelled: str) -> bool:
    """True if one system call shows that there is no link on the way, which is cheaper than checking each component."""
    fd = open_exact(spelled, O_PATH)
    if fd is None:
        return False
    os.close(fd)
    return True


def home_directory() -> str:
    """The real path of the user's home, the host's meaning of `~`."""
    return os.path.realpath(os.path.expanduser("~"))


def _spell(path: str) -> str:
    return spell(path, home_directory() if path[:1] == "~" else "", OS_FAMILY)


def spell(path: str, home: str, os_family: OsFamily) -> str:
    """`path` with `~` and dots resolved by spelling alone, for either system. Raises ToolFault(INVALID_ARGUMENT)."""
    reason = problem_with(path, os_family)
    spelled = "" if reason else normalize(path, os_family, home=home)
    if reason is None and not is_absolute(spelled, os_family):
        reason = "the path must be absolute"
    try:
        os.fsencode(spelled)
    except UnicodeEncodeError:
        reason = reason or "the path contains a lone surrogate"
    if reason is not None:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"{reason}: {path[:200]!r}")
    return spelled


def check_scope(spelled: str, real: str, scope: Scope) -> None:
    """Raises ToolFault(OUT_OF_SCOPE) unless `real` is allowed and neither spelling is blocked (AH 8.3)."""
    why = _out_of_scope(spelled, real, scope)
    if why:
        raise ToolFault(FaultKind.OUT_OF_SCOPE, f"{why}: {spelled}")


def is_in_scope(path: str, scope: Scope) -> bool:
    """True if the scope covers the target of an absolute path, and its spelling."""
    return not _out_of_scope(path, os.path.realpath(path), scope)


def _out_of_scope(spelled: str, real: str, scope: Scope) -> str:
    place = normalize(real, OS_FAMILY)
    if scope.blocked:
        blocked = _table(scope.blocked, "wide")
        for path in dict.fromkeys((place, normalize(spelled, OS_FAMILY))):
            if covering(path, blocked, OS_FAMILY, "wide") is not None:
                return "policy blocks this path"
    if scope.allowed is None:
        return ""
    allowed = _table(scope.allowed, "narrow")
    is_covered = is_absolute(place, OS_FAMILY) and covering(place, allowed, OS_FAMILY, "narrow") is not None
    return "" if is_covered else "the path is outside the allowed directories"


@functools.lru_cache(maxsize=64)
def _table(entries: tuple[str, ...], width: Width) -> Roots:
    return roots(entries, OS_FAMILY, width)


def root_of(real: str, scope: Scope) -> str:
    """The allowed root that covers the real path, if it names a place; otherwise the root of the file system."""
    root = covering(real, _table(scope.allowed, "narrow"), OS_FAMILY, "narrow") if scope.allowed else None
    return root if root is not None and os.path.isabs(root) and real.startswith(root) else "/"


@contextmanager
def open_parent(real: str) -> Iterator[tuple[int | None, str]]:
    """Directory descriptor and name for reading `real`; (None, real) if there are no such descriptors. Raises
    ToolFault(PATH_CHANGED) if a component has become a link, and OSError."""
    parent, name = os.path.split(real)
    if not name:
        raise ToolFault(FaultKind.IS_DIRECTORY, f"is a directory: {real}")
    if not BY_DESCRIPTOR:
        yield None, real
        return
    with hold_open(open_dir(parent)) as fd:
        yield fd, name


@contextmanager
def hold_open(fd: int) -> Iterator[int]:
    """The descriptor, closed after the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def open_dir(real: str, *, to_list: bool = False) -> int:
    """Descriptor of the directory `real`, reached without following any link. The caller closes it. `to_list`: its
    entries can be read, if the user may do that."""
    flags = _LIST_FLAGS if to_list else PASS_FLAGS
    descriptor = open_exact(real, flags)
    if descriptor is not None:
        return descriptor
    names = [name for name in real.split("/") if name]
    try:
        return walk(names, os.open("/", PASS_FLAGS if names else flags), last_flags=flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _change_fault(error.filename) from error
        raise


def _change_fault(name: str) -> ToolFault:
    return ToolFault(FaultKind.PATH_CHANGED, f"a link took the place of {name} after the path was checked")


def open_regular(fd: int | None, name: str) -> tuple[int, os.stat_result]:
    """Open an existing regular file to read it: a FIFO or a device neither hangs nor answers. Raises ToolFault with
    IS_DIRECTORY, NOT_REGULAR or PATH_CHANGED, and OSError."""
    try:
        opened = os.open(name, os.O_RDONLY | SAFE_FLAGS, dir_fd=fd)
    except OSError as error:
        if error.errno in MAY_BE_LINK and is_link(fd, name):
            raise _change_fault(name) from error
        raise
    try:
        status = os.fstat(opened)
        refuse_irregular(status, name)
    except BaseException:
        os.close(opened)
        raise
    return opened, status


def refuse_irregular(status: os.stat_result | None, name: str) -> None:
    """Raises ToolFault unless `status` is that of a regular file; None is that of nothing."""
    if status is None:
        raise ToolFault(FaultKind.NOT_FOUND, f"{os.strerror(errno.ENOENT)}: {name}")
    if stat.S_ISDIR(status.st_mode):
        raise ToolFault(FaultKind.IS_DIRECTORY, f"is a directory: {name}")
    if stat.S_ISLNK(status.st_mode):
        raise _change_fault(name)
    if not stat.S_ISREG(status.st_mode):
        raise ToolFault(FaultKind.NOT_REGULAR, f"is not a regular file: {name}")


@functools.lru_cache(maxsize=64)
def narrow_scope(scope: Scope, roots: tuple[str, ...]) -> Scope:
    """The part of the scope under one of the roots, absolute real paths that a family keeps its tools to."""
    if scope.allowed is None:
        return scope._replace(allowed=roots)

    def is_in(place: str, others: tuple[str, ...]) -> bool:
        return any(is_under(normalize(place, OS_FAMILY), normalize(one, OS_FAMILY), OS_FAMILY) for one in others)

    both = [place for place in scope.allowed if is_in(place, roots)]
    both += [root for root in roots if is_in(root, scope.allowed)]
    return scope._replace(allowed=tuple(dict.fromkeys(both)))
