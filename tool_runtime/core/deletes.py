"""Deleting a directory with all that is in it. Blocking: callers run it in a thread.

Everything below is looked at first: where policy keeps one entry from being deleted, nothing is. Then it goes by
descriptor from the root on, links themselves and never what they lead to.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING, Final

from policy.rules.repository_paths import repository_place
from tool_runtime.core.files import refuse_abandoned
from tool_runtime.core.paths import BY_DESCRIPTOR, Scope, check_scope, open_parent, resolve
from tool_runtime.core.writes import sync_names
from tool_runtime.faults import FaultKind, ToolFault, os_faults
from tool_runtime.platform import OS_FAMILY

if TYPE_CHECKING:
    from tool_runtime.tool import Abandoned

MAX_ENTRIES: Final = 100_000
"""A larger tree is not deleted in one call."""


def delete_tree(path: str, scope: Scope, abandoned: Abandoned) -> int:
    """Delete the directory at `path`, which leads through no link, with all that is in it; how many entries there were.
    Raises ToolFault: OUT_OF_SCOPE, and then nothing was deleted; TOO_LARGE likewise."""
    real = resolve(path, scope, to_change=True, through_links=False)
    with os_faults(path), open_parent(real) as (directory, name):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            raise ToolFault(FaultKind.PATH_CHANGED, f"is no directory any more: {path}")
        count = _looked_at(real, scope, abandoned)
        refuse_abandoned(abandoned)
        if BY_DESCRIPTOR and shutil.rmtree.avoids_symlink_attacks:
            shutil.rmtree(name, dir_fd=directory)
        else:
            shutil.rmtree(real)
        sync_names(directory)
    return count


def _looked_at(real: str, scope: Scope, abandoned: Abandoned) -> int:
    count = 0

    def failed(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(real, onerror=failed):
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
