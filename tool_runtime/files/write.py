"""Writing and editing one file (TR 4.2). Blocking: callers run these in a thread.

A file is replaced in one step: readers see the old content or the new, never a part. One that no new file can take the
place of is written in place (`in_place`). Paths go through `paths` and the one writer (`files.writer`), so links that
move after the check are refused and only regular files are ever touched.
"""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from agent_host.ids import own_name
from tool_runtime.files.edits import EditProblem, edit_content
from tool_runtime.files.paths import Scope, check_scope, open_regular, resolve, root_of
from tool_runtime.files.read import FileStamp, refuse_size
from tool_runtime.files.writer import NEW_DIRECTORY, open_parent
from tool_runtime.tool import FaultKind, ToolFault, os_faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tool_runtime.files.edits import Edit
    from tool_runtime.files.writer import OpenDirectory
    from tool_runtime.tool import Abandoned

BEFORE_MAX_BYTES: Final = 4 * 1024 * 1024
"""Earlier contents up to this size are kept for the diff."""
EDIT_MAX_BYTES: Final = 64 * 1024 * 1024
"""A larger file is not edited, since all of it is held in memory."""


class Expected(NamedTuple):
    """The state that the caller takes a file to be in: `sha256` is what it must be, `seen` what a call saw of it last.
    None: it may be anything. `readable`: the caller may read the file, and so may be given its hash, which tells of its
    content."""

    sha256: str | None = None
    seen: FileStamp | None = None
    readable: bool = False


class WriteParams(NamedTuple):
    """`data` replaces the whole file, or with `append` comes behind what is in it. `mark` is unique to the call, and
    the same for a process that asks after a crash what is left of it. `mode` are the permissions that the file gets,
    None for those that it has. Without `through_links` a path that leads through a symbolic link is refused. `kept` is
    where the content from before is kept while the file is written in place."""

    path: str
    scope: Scope
    data: bytes
    mark: str
    max_file_size_bytes: int | None = None
    create_directories: bool = True
    expected: Expected = Expected()
    append: bool = False
    mode: int | None = None
    through_links: bool = True
    kept: str | None = None


class EditParams(NamedTuple):
    """`scope` is that of writing, `read_scope` that of reading, and so are the limits."""

    path: str
    scope: Scope
    read_scope: Scope
    edits: Sequence[Edit]
    mark: str
    max_file_size_bytes: int | None = None
    max_read_bytes: int | None = None
    expected: Expected = Expected()
    kept: str | None = None
    mode: None = None


class WriteOutcome(NamedTuple):
    """`before` is the earlier content, None when there was no file or it was over BEFORE_MAX_BYTES. `seen` is the file
    as it is now. `places` says how many an edit replaced. `also` are other names of the file, which have changed with
    it; `kept` is what is to be settled once the result is on record, None for nothing."""

    existed: bool
    before: bytes | None
    before_bytes: int
    after: bytes
    seen: FileStamp = FileStamp("")
    places: int = 0
    also: tuple[str, ...] = ()
    kept: str | None = None


class _Found(NamedTuple):
    """The file as it is before a write; `content` is None where it is too large to keep. Without a status there is
    none."""

    status: os.stat_result | None = None
    content: bytes | None = None


_NO_NEW_FILE: Final = (errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS)
"""A mount point, and a directory that cannot be written: no new file takes the place of an entry there."""


def write_file(params: WriteParams, abandoned: Abandoned) -> WriteOutcome:
    """Replace or create the file. Raises ToolFault; CHANGED where it is not as expected."""
    refuse_size(len(params.data), params.max_file_size_bytes, params.path)
    real = resolve(params.path, params.scope, to_change=True, through_links=params.through_links)
    kept_bytes = EDIT_MAX_BYTES if params.append else BEFORE_MAX_BYTES
    root, create = root_of(real, params.scope), NEW_DIRECTORY if params.create_directories else None
    with os_faults(params.path), open_parent(real, root, create=create) as (directory, name):
        found = _found(directory, name, kept_bytes, params.expected, params.path)
        data = params.data
        if params.append and found.status is not None:
            refuse_size(found.status.st_size + len(data), params.max_file_size_bytes, params.path)
            if found.content is None:
                raise ToolFault(FaultKind.TOO_LARGE, f"nothing is appended above {EDIT_MAX_BYTES} bytes: {params.path}")
            data = found.content + data
        return _replace(directory, real, params, data, found, abandoned)


def edit_file(params: EditParams, abandoned: Abandoned) -> WriteOutcome:
    """Make the edits in the file, all or none. Raises ToolFault: INVALID_ARGUMENT for an edit that does not fit, with
    the lines nearest to it; CHANGED where the file is not as expected."""
    real = resolve(params.path, params.scope, to_change=True)
    check_scope(params.path, real, params.read_scope)
    with os_faults(params.path), open_parent(real, root_of(real, params.scope)) as (directory, name):
        found = _found(directory, name, EDIT_MAX_BYTES, params.expected, params.path)
        if found.status is None:
            raise ToolFault(FaultKind.NOT_FOUND, f"there is no such file: {params.path}")
        refuse_size(found.status.st_size, params.max_read_bytes, params.path)
        if found.content is None:
            raise ToolFault(FaultKind.TOO_LARGE, f"files above {EDIT_MAX_BYTES} bytes are not edited: {params.path}")
        try:
            after, replaced = edit_content(params.path, found.content, params.edits)
        except EditProblem as problem:
            why = problem.explain(params.path, params.edits)
            raise ToolFault(FaultKind.INVALID_ARGUMENT, why) from problem
        refuse_size(len(after), params.max_file_size_bytes, params.path)
        return _replace(directory, real, params, after, found, abandoned)._replace(places=replaced)


def remove_leftover(path: str, scope: Scope, mark: str) -> bool:
    """Take away the temporary file of a write whose process died in the middle; says whether there was one."""
    real = resolve(path, scope)
    with os_faults(path), open_parent(real, root_of(real, scope)) as (directory, _):
        try:
            directory.remove(_temporary(real, mark))
        except FileNotFoundError:
            return False
    return True


def _found(directory: OpenDirectory, name: str, most: int, expected: Expected, path: str) -> _Found:
    """The file to be written over. Raises ToolFault for one that is read-only, or not as expected."""
    try:
        fd, status = open_regular(directory.fd, directory.path_of(name))
    except FileNotFoundError:
        if expected.sha256 is not None:
            raise ToolFault(FaultKind.CHANGED, f"the file is not there any more: {path}") from None
        return _Found()
    with open(fd, "rb", buffering=0) as file:
        if not os.access(directory.path_of(name), os.W_OK, dir_fd=directory.fd):
            raise ToolFault(FaultKind.ACCESS_DENIED, f"the file is read-only: {name}")
        content = file.readall() if status.st_size <= most else None
        now = FileStamp.make(status)
        # A stamp that is the same may still hide a change within one tick of the clock; a content that is known not.
        if expected.sha256 is not None or (
            expected.seen is not None and (expected.seen.sha256 or expected.seen.stamp != now.stamp)
        ):
            digest = hashlib.file_digest(file, "sha256") if content is None else hashlib.sha256(content)
            _refuse_change(expected, now, digest.hexdigest(), path)
    return _Found(status, content)


def _refuse_change(expected: Expected, now: FileStamp, digest: str, path: str) -> None:
    """Raises ToolFault(CHANGED), with the hash that lets the call go on."""
    seen = expected.seen
    if expected.sha256 is not None:
        is_expected = expected.sha256.lower() == digest
        said = "the file is not the one that expectedSha256 names"
    else:
        is_expected = seen is None or digest == seen.sha256 or (not seen.sha256 and seen.stamp == now.stamp)
        said = "the file has changed since it was read"
    if not is_expected:
        advice = f"; its SHA-256 is now {digest}: read it again, or give that as expectedSha256 to go on"
        raise ToolFault(FaultKind.CHANGED, f"{said}: {path}{advice if expected.readable else ''}")


def _replace(
    directory: OpenDirectory,
    real: str,
    params: WriteParams | EditParams,
    data: bytes,
    found: _Found,
    abandoned: Abandoned,
) -> WriteOutcome:
    """Put `data` in the file's place, durably. A file that changed while it was made is not replaced."""
    name, temporary, status = os.path.basename(real), _temporary(real, params.mark), found.status
    done = WriteOutcome(status is not None, found.content, 0 if status is None else status.st_size, data)
    if status is not None and status.st_nlink > 1:
        return _write_in_place(directory, real, params, status, done, abandoned)
    try:
        attributes = None if status is None else name
        new = directory.write_new(temporary, data, mode=params.mode, like=status, attributes=attributes)
        abandoned.refuse()
        _refuse_other(directory.status(name), status, name)
        directory.replace(temporary, name)
    except BaseException as error:
        with suppress(OSError):
            directory.remove(temporary)
        if not isinstance(error, OSError) or status is None or error.errno not in _NO_NEW_FILE:
            raise
        return _write_in_place(directory, real, params, status, done, abandoned)
    return done._replace(seen=FileStamp.make(new, data))


def _write_in_place(
    directory: OpenDirectory,
    real: str,
    params: WriteParams | EditParams,
    status: os.stat_result,
    done: WriteOutcome,
    abandoned: Abandoned,
) -> WriteOutcome:
    from tool_runtime.files import in_place  # few files need it

    also = in_place.other_names(real, status, params.scope) if status.st_nlink > 1 else ()
    new = in_place.NewContent(real, done.after, params.mode, params.kept)
    written = in_place.write(directory, os.path.basename(real), status, new, abandoned)
    return done._replace(seen=FileStamp.make(written, done.after), also=tuple(also), kept=params.kept)


def _refuse_other(now: os.stat_result | None, found: os.stat_result | None, name: str) -> None:
    if (None if now is None else FileStamp.make(now)) != (None if found is None else FileStamp.make(found)):
        raise ToolFault(FaultKind.CHANGED, f"the file changed while it was written; nothing was replaced: {name}")


def _temporary(real: str, mark: str) -> str:
    """The name, next to `real`, of what a write prepares there. It follows from the call, so that another process finds
    it; what is random in `mark` keeps anybody from being there first."""
    digest = hashlib.sha256(mark.encode("utf-8", "surrogatepass") + b"\0" + os.fsencode(real)).hexdigest()
    return own_name(digest[:32])
