"""Deleting and moving one file or symbolic link (TR 4.3). Blocking: callers run these in a thread. Paths as in
`writes`, but for a link at their ends: what goes is the name that the call gives, and never what that leads to."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from policy.rules.protected_paths import repository_place
from tool_runtime.files.paths import Scope, check_scope, refuse_irregular, resolve, root_of
from tool_runtime.files.writer import NEW_DIRECTORY, open_parent
from tool_runtime.platform import OS_FAMILY
from tool_runtime.tool import FaultKind, ToolFault, os_faults

if TYPE_CHECKING:
    from tool_runtime.files.writer import OpenDirectory
    from tool_runtime.tool import Abandoned


def delete_file(path: str, scope: Scope, abandoned: Abandoned, *, through_links: bool = True) -> None:
    """Delete one regular file, or a link. Without `through_links` that is refused, and one on the way."""
    real = resolve(path, scope, to_change=True, through_links=through_links, own_name=through_links)
    with os_faults(path), open_parent(real, root_of(real, scope)) as (directory, name):
        if through_links:
            _refuse_other_kinds(directory.status(name), path)
        else:
            refuse_irregular(directory.status(name), path)
        abandoned.refuse()
        directory.remove(name)
        directory.sync()


class MoveParams(NamedTuple):
    """The file at `path` is moved to `new_path`, where nothing may be. `path` is also in the scope of reading."""

    path: str
    scope: Scope
    read_scope: Scope
    new_path: str
    new_scope: Scope


def move_file(params: MoveParams, abandoned: Abandoned) -> None:
    """Move a regular file, or a link, to where nothing is, in one step. Missing directories are made."""
    real, new_real = _ends(params)
    new_root = root_of(new_real, params.new_scope)
    with os_faults(params.path), open_parent(real, root_of(real, params.scope)) as (source, name):
        _refuse_other_kinds(source.status(name), params.path)
        with os_faults(params.new_path), open_parent(new_real, new_root, create=NEW_DIRECTORY) as (target, new_name):
            abandoned.refuse()
            try:
                source.move(name, target, new_name)
            except FileExistsError as error:
                message = f"something is there already, and a move replaces nothing: {params.new_path}"
                raise ToolFault(FaultKind.EXISTS, message) from error
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                message = f"it is on another file system, where nothing is moved to: {params.new_path}"
                raise ToolFault(FaultKind.SYSTEM, message) from error


def _ends(params: MoveParams) -> tuple[str, str]:
    real = resolve(params.path, params.scope, to_change=True, own_name=True)
    check_scope(params.path, real, params.read_scope)
    return real, resolve(params.new_path, params.new_scope, to_change=True, own_name=True)


def _refuse_other_kinds(status: os.stat_result | None, path: str) -> None:
    if status is None or not stat.S_ISLNK(status.st_mode):
        refuse_irregular(status, path)


def take_back_half_move(params: MoveParams) -> bool:
    """Take away the second name of a move by two names that was cut in its middle; True if there was one. Raises
    ToolFault."""
    real, new_real = _ends(params)
    if real == new_real:
        return False
    with (
        os_faults(params.path),
        open_parent(real, root_of(real, params.scope)) as (source, name),
        open_parent(new_real, root_of(new_real, params.new_scope)) as (target, new_name),
    ):
        one, other = source.status(name), target.status(new_name)
        if one is None or other is None or not os.path.samestat(one, other):
            return False
        target.remove(new_name)
    return True


# Deleting a directory with all that is in it. Blocking: callers run it in a thread.
#
# Everything below is looked at first: where policy keeps one entry from being deleted, nothing is. Then it goes by
# descriptor from the root on, links themselves and never what they lead to.

MAX_ENTRIES: Final = 100_000
"""A larger tree is not deleted in one call."""


def delete_tree(path: str, scope: Scope, abandoned: Abandoned) -> int:
    """Delete the directory at `path`, which leads through no link, with all that is in it; how many entries there were.
    Raises ToolFault: OUT_OF_SCOPE, and then nothing was deleted; TOO_LARGE likewise."""
    real = resolve(path, scope, to_change=True, through_links=False)
    with os_faults(path), open_parent(real, root_of(real, scope)) as (directory, name):
        status = directory.status(name)
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise ToolFault(FaultKind.PATH_CHANGED, f"is no directory any more: {path}")
        count = _look_at(directory, name, scope, abandoned)
        abandoned.refuse()
        directory.remove_tree(name)
        directory.sync()
    return count


def _look_at(directory: OpenDirectory, name: str, scope: Scope, abandoned: Abandoned) -> int:
    count = 0
    for folder, folders, files in directory.walk(name):
        abandoned.refuse()
        for name in (*folders, *files):
            inside = os.path.join(folder, name)
            check_scope(inside, inside, scope)
            if repository_place(inside, scope.allowed, OS_FAMILY) is not None:
                raise ToolFault(FaultKind.OUT_OF_SCOPE, f"policy keeps what git runs from changing: {inside}")
        count += len(folders) + len(files)
        if count > MAX_ENTRIES:
            raise ToolFault(FaultKind.TOO_LARGE, f"more than {MAX_ENTRIES} entries: delete directories further down")
    return count
