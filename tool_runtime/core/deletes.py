"""Deleting a directory with all that is in it. Blocking: callers run it in a thread.

Everything below is looked at first: where policy keeps one entry from being deleted, nothing is. Then it goes by
descriptor from the root on, links themselves and never what they lead to.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from policy.rules.repository_paths import repository_place
from tool_runtime.core.files import refuse_abandoned
from tool_runtime.core.paths import Scope, check_scope, resolve, root_of
from tool_runtime.faults import FaultKind, ToolFault, os_faults
from tool_runtime.files.writer import open_parent
from tool_runtime.platform import OS_FAMILY

if TYPE_CHECKING:
    from tool_runtime.files.writer import OpenDirectory
    from tool_runtime.tool import Abandoned

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
        count = _looked_at(directory, name, scope, abandoned)
        refuse_abandoned(abandoned)
        directory.remove_tree(name)
        directory.sync()
    return count


def _looked_at(directory: OpenDirectory, name: str, scope: Scope, abandoned: Abandoned) -> int:
    count = 0
    for folder, folders, files in directory.walk(name):
        refuse_abandoned(abandoned)
        for name in (*folders, *files):
            inside = os.path.join(folder, name)
            check_scope(inside, inside, scope)
            if repository_place(inside, scope.allowed, OS_FAMILY) is not None:
                raise ToolFault(FaultKind.OUT_OF_SCOPE, f"policy keeps what git runs from changing: {inside}")
        count += len(folders) + len(files)
        if count > MAX_ENTRIES:
            raise ToolFault(FaultKind.TOO_LARGE, f"more than {MAX_ENTRIES} entries: delete directories further down")
    return count
