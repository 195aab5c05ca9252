"""Writing a file in place, where a new file cannot take its place: it has several names, is a mount point, or lies in a
directory that cannot be written. Blocking: callers run it in a thread.

A new file and a rename leave the old content or the new. A write in place can be cut in its middle, so that

- what the file holds and what it is to hold are synced first to a private file of the session (`kept`);
- a write that fails puts back what was there;
- after a crash `take_back` compares the file with both: it is done, not done, or half written and put back. A file
  that is neither, block by block, was changed by somebody else since, and stays as it is;
- the private file goes once the call's result is on record (`settle`).

Policy has judged one name of the file, and a write in place changes all of them. They are looked for, and where one is
not found in what the call may write, nothing is written: a command could make a link of a protected file.
"""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import orjson

from policy.rules.protected_paths import repository_place
from tool_runtime.files.paths import Scope, check_scope, root_of
from tool_runtime.files.writer import PRIVATE_DIRECTORY, open_parent, overwrite
from tool_runtime.platform import OS_FAMILY
from tool_runtime.tool import FaultKind, ToolFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import FileIO

    from tool_runtime.files.writer import OpenDirectory
    from tool_runtime.tool import Abandoned

MAX_BYTES: Final = 256 * 1024 * 1024
"""A larger file is not written in place, since what it holds is kept first."""
_MAX_LOOKED_THROUGH: Final = 300_000
_BLOCK: Final = 4096
_WRITES: Final = threading.Lock()
"""Two names of one file are written one after the other."""

State = Literal["done", "not_done", "put_back", "changed"]


class NewContent(NamedTuple):
    """`data` replaces what is in the file at the real path `real`; it gets the permissions `mode`, if they are given.
    `kept` is the path of the private file; without one what was there is only in memory."""

    real: str
    data: bytes
    mode: int | None = None
    kept: str | None = None


def other_names(real: str, status: os.stat_result, scope: Scope) -> list[str]:
    """The other names of the file at `real`. Raises ToolFault(OUT_OF_SCOPE) for one that the scope does not cover, and
    where one is not found in what it allows."""
    roots = [root_of(real, scope)]
    is_bounded = roots[0] != os.sep
    if is_bounded:
        roots += [one for one in scope.allowed or () if os.path.isdir(one)]
    else:  # anything may be written but what is blocked, and what steers git
        roots = [
            _repository_above(real) or os.path.dirname(real),
            *(one for one in scope.blocked or () if "*" not in one),
        ]
    found = {real}
    for path in _same_file(roots, status):
        check_scope(path, path, scope)
        if repository_place(path, scope.allowed, OS_FAMILY) is not None:
            raise ToolFault(
                FaultKind.OUT_OF_SCOPE, f"another name of the file is {path}, which policy protects: {real}"
            )
        found.add(path)
        if len(found) == status.st_nlink:
            break
    if is_bounded and len(found) < status.st_nlink:
        raise ToolFault(
            FaultKind.OUT_OF_SCOPE,
            f"the file has {status.st_nlink} names (hard links), of which only {len(found)} lie where this call may "
            f"write, and all would change; nothing was written: {real}. To cut it off from the others, delete it and "
            "write it anew",
        )
    return sorted(found - {real})


def write(
    directory: OpenDirectory, name: str, found: os.stat_result, new: NewContent, abandoned: Abandoned
) -> os.stat_result:
    """Write the file `name`, which was `found`, in place and durably; its status then. Raises ToolFault and OSError: it
    holds what it held then, or the message says where that is kept."""
    if max(found.st_size, len(new.data)) > MAX_BYTES:
        why = f"files above {MAX_BYTES} bytes are not written in place, and no new file can take its place"
        raise ToolFault(FaultKind.TOO_LARGE, f"{why}: {new.real}")
    with _WRITES, directory.open_existing(name) as file:
        now = os.fstat(file.fileno())
        if not os.path.samestat(now, found) or (now.st_size, now.st_mtime_ns) != (found.st_size, found.st_mtime_ns):
            raise ToolFault(FaultKind.CHANGED, f"the file changed before it was written; nothing was replaced: {name}")
        before, mode = file.read(), stat.S_IMODE(now.st_mode)
        if new.kept is not None:
            _keep(new.kept, new, before, mode)
        try:
            abandoned.refuse()
        except ToolFault:
            settle(new.kept)
            raise
        try:
            overwrite(file, new.data, new.mode)
        except BaseException as error:
            _put_back(file, before, mode, new, error)
            raise
        status = os.fstat(file.fileno())
    if abandoned.flag:  # nobody is left who would do it
        settle(new.kept)
    return status


def settle(kept: str | None) -> None:
    """Remove what was kept of a write: its result is on record. Harmless where there is nothing."""
    if kept is None:
        return
    with suppress(OSError), open_parent(kept) as (directory, name):
        directory.remove(name)


def take_back(kept: str, scope: Scope) -> State | None:
    """Find the state of a write in place whose process died; None if there was none. One that is half done is put back.
    Raises ToolFault where the call may not write the file by now, and OSError."""
    try:
        with open(kept, "rb") as file:
            header = orjson.loads(file.readline())
            before, after, mode = file.read(header["before"]), file.read(header["after"]), header["mode"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    real = os.fsdecode(bytes.fromhex(header["path"]))
    check_scope(real, real, scope)
    with _WRITES, open_parent(real, root_of(real, scope)) as (directory, name), directory.open_existing(name) as target:
        now = target.read(MAX_BYTES + 1)
        if now in (before, after):
            return "done" if now == after else "not_done"
        if not _is_half_written(now, before, after):
            return "changed"
        overwrite(target, before, mode)
    return "put_back"


def _keep(kept: str, new: NewContent, before: bytes, mode: int) -> None:
    header = {"path": os.fsencode(new.real).hex(), "before": len(before), "after": len(new.data), "mode": mode}
    try:
        with open_parent(kept, create=PRIVATE_DIRECTORY) as (directory, name):
            directory.put(name, orjson.dumps(header) + b"\n" + before + new.data, 0o600)
    except OSError as error:
        why = f"what it holds could not be kept first ({error.strerror}), so that it is not written in place"
        raise ToolFault(FaultKind.SYSTEM, f"{why}: {new.real}") from error


def _put_back(file: FileIO, before: bytes, mode: int, new: NewContent, error: BaseException) -> None:
    """Undo a write that failed. Raises ToolFault where that fails, too."""
    try:
        overwrite(file, before, mode)
    except OSError:
        where = "is lost" if new.kept is None else f"is in {new.kept}.lost, behind a first line"
        if new.kept is not None:
            with suppress(OSError), open_parent(new.kept) as (directory, name):
                directory.replace(name, f"{name}.lost")
        raise ToolFault(
            FaultKind.SYSTEM, f"the write failed in its middle ({error}); what the file held {where}: {new.real}"
        ) from error
    settle(new.kept)


def _is_half_written(now: bytes, before: bytes, after: bytes) -> bool:
    """True if each block is one of the two, or the one over the other: the system writes whole blocks, in any order,
    and one that it had not yet written is empty."""
    # It is cut to its length last, so that a shorter one was cut by somebody else.
    if not min(len(before), len(after)) <= len(now) <= max(len(before), len(after)):
        return False
    for start in range(0, len(now), _BLOCK):
        block, old, later = (data[start : start + _BLOCK] for data in (now, before, after))
        ways = (old, later, later + old[len(later) :], old + later[len(old) :])
        if not any(block == (way + bytes(_BLOCK))[: len(block)] for way in ways) and any(block):
            return False
    return True


def _repository_above(real: str) -> str | None:
    above = os.path.dirname(real)
    while above != os.path.dirname(above):
        if os.path.lexists(os.path.join(above, ".git")):
            return above
        above = os.path.dirname(above)
    return None


def _same_file(roots: Sequence[str], status: os.stat_result) -> Iterator[str]:
    """The paths in the `roots`, directories or files, that are names of the file; of a large tree the first entries."""
    seen, pending, left = set[str](), list(reversed(roots)), _MAX_LOOKED_THROUGH
    while pending and left > 0:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            entries = list(os.scandir(path))
        except NotADirectoryError:
            with suppress(OSError):
                if os.path.samestat(os.lstat(path), status):
                    yield path
            continue
        except OSError:
            continue
        left -= len(entries)
        for entry in entries:
            if entry.inode() == status.st_ino and not entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    if os.path.samestat(os.lstat(entry.path), status):
                        yield entry.path
            elif entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
