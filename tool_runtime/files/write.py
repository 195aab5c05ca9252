"""Writing, editing, deleting and moving one file (TR 4.2, 4.3). Blocking: callers run these in a thread. A file is
replaced in one step: readers see the old content or the new, never a part. One that no new file can take the place of
is written in place. Paths go through `files` and the one writer (`files.writer`), so links that move after the check
are refused and only regular files are ever touched."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import stat
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import orjson

from agent_host.ids import own_name
from policy.rules.protected_paths import repository_place
from tool_runtime.files import Scope, check_scope, open_regular, refuse_irregular, resolve, root_of
from tool_runtime.files.edits import EditProblem, edit_content
from tool_runtime.files.read import FileStamp, refuse_size
from tool_runtime.files.writer import NEW_DIRECTORY, PRIVATE_DIRECTORY, open_parent, overwrite
from tool_runtime.platform import OS_FAMILY
from tool_runtime.tool import FaultKind, ToolFault, os_faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from io import FileIO

    from tool_runtime.files.edits import Edit
    from tool_runtime.files.writer import OpenDirectory
    from tool_runtime.tool import Abandoned

BEFORE_MAX_BYTES: Final = 4 * 1024 * 1024  # earlier contents up to this size are kept for the diff
EDIT_MAX_BYTES: Final = 64 * 1024 * 1024  # a larger file is not edited, because it is read into memory


class Expected(NamedTuple):
    """The caller's expected state of a file: `sha256` is the required hash, `seen` the stamp of the last call; None for
    any state. Only a caller who may read the file (`readable`) gets its hash, which reveals its content."""

    sha256: str | None = None
    seen: FileStamp | None = None
    readable: bool = False


class WriteParams(NamedTuple):
    """`data` replaces the whole file, or with `append` is added to it. `mark` is unique to the call, and the same for a
    process that looks for leftovers after a crash. The file gets the permissions `mode`, None for its present ones.
    Without `through_links` a path through a symbolic link is refused. `kept` is for the previous content while the file
    is written in place."""

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


class WriteOutcome(NamedTuple):
    """`before` is the earlier content, None when there was no file or it was over BEFORE_MAX_BYTES. `seen` is the file
    as it is now. An edit replaced `places` places. `also` are other names of the file, which have changed with it;
    `settle` is to be called once the result is on record, None for nothing."""

    existed: bool
    before: bytes | None
    before_bytes: int
    after: bytes
    seen: FileStamp = FileStamp("")
    places: int = 0
    also: tuple[str, ...] = ()
    settle: Callable[[], None] | None = None


class _Found(NamedTuple):
    """The file before a write, without a status if there is none; `content` is None if it is too large."""

    status: os.stat_result | None = None
    content: bytes | None = None


_NO_NEW_FILE: Final = (errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS)
"""A mount point, and a directory that cannot be written: no new file takes the place of an entry there."""


def write_file(params: WriteParams, abandoned: Abandoned) -> WriteOutcome:
    """Replace or create the file. Raises ToolFault; CHANGED if it differs from the expected state."""
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
        return _replace(directory, real, params._replace(data=data), found, abandoned)


def edit_file(
    params: WriteParams, edits: Sequence[Edit], read_scope: Scope, max_read_bytes: int | None, abandoned: Abandoned
) -> WriteOutcome:
    """Make the edits in the file, all or none; `params` have no data. Raises ToolFault: INVALID_ARGUMENT for an edit
    that does not match, with the most similar lines; CHANGED if the file differs from the expected state."""
    path, real = params.path, resolve(params.path, params.scope, to_change=True)
    check_scope(path, real, read_scope)
    with os_faults(path), open_parent(real, root_of(real, params.scope)) as (directory, name):
        found = _found(directory, name, EDIT_MAX_BYTES, params.expected, path)
        if found.status is None:
            raise ToolFault(FaultKind.NOT_FOUND, f"there is no such file: {path}")
        refuse_size(found.status.st_size, max_read_bytes, path)
        if found.content is None:
            raise ToolFault(FaultKind.TOO_LARGE, f"files above {EDIT_MAX_BYTES} bytes are not edited: {path}")
        try:
            after, replaced = edit_content(path, found.content, edits)
        except EditProblem as problem:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, problem.explain(path, edits)) from problem
        refuse_size(len(after), params.max_file_size_bytes, path)
        return _replace(directory, real, params._replace(data=after), found, abandoned)._replace(places=replaced)


def remove_leftover(path: str, scope: Scope, mark: str) -> bool:
    """Remove the temporary file of a write whose process died in the middle; returns True if there was one."""
    real = resolve(path, scope)
    with os_faults(path), open_parent(real, root_of(real, scope)) as (directory, _):
        try:
            directory.remove(_temporary(real, mark))
        except FileNotFoundError:
            return False
    return True


def _found(directory: OpenDirectory, name: str, most: int, expected: Expected, path: str) -> _Found:
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
        # An equal stamp may hide a change within one tick of the clock; a known content may not.
        if expected.sha256 is not None or (
            expected.seen is not None and (expected.seen.sha256 or expected.seen.stamp != now.stamp)
        ):
            digest = hashlib.file_digest(file, "sha256") if content is None else hashlib.sha256(content)
            _refuse_change(expected, now, digest.hexdigest(), path)
    return _Found(status, content)


def _refuse_change(expected: Expected, now: FileStamp, digest: str, path: str) -> None:
    """Raises ToolFault(CHANGED), with the hash that lets the call continue."""
    seen = expected.seen
    if expected.sha256 is not None:
        is_expected = expected.sha256.lower() == digest
        reason = "the file is not the one that expectedSha256 names"
    else:
        is_expected = seen is None or digest == seen.sha256 or (not seen.sha256 and seen.stamp == now.stamp)
        reason = "the file has changed since it was read"
    if not is_expected:
        advice = f"; its SHA-256 is now {digest}: read it again, or give that as expectedSha256 to continue"
        raise ToolFault(FaultKind.CHANGED, f"{reason}: {path}{advice if expected.readable else ''}")


def _replace(
    directory: OpenDirectory, real: str, params: WriteParams, found: _Found, abandoned: Abandoned
) -> WriteOutcome:
    """Put the data in the file's place, durably. A file that changed while it was made is not replaced."""
    name, temporary, status, data = os.path.basename(real), _temporary(real, params.mark), found.status, params.data
    done = WriteOutcome(status is not None, found.content, 0 if status is None else status.st_size, data)
    if status is not None and status.st_nlink > 1:
        return _replace_in_place(directory, real, params, status, done, abandoned)
    try:
        attributes = None if status is None else name
        new = directory.write_new(temporary, data, mode=params.mode, like=status, attributes=attributes)
        abandoned.refuse()
        if _stamp(directory.status(name)) != _stamp(status):
            raise ToolFault(FaultKind.CHANGED, f"the file changed while it was written; nothing was replaced: {name}")
        directory.replace(temporary, name)
    except BaseException as error:
        with suppress(OSError):
            directory.remove(temporary)
        if not isinstance(error, OSError) or status is None or error.errno not in _NO_NEW_FILE:
            raise
        return _replace_in_place(directory, real, params, status, done, abandoned)
    return done._replace(seen=FileStamp.make(new, data))


def _replace_in_place(
    directory: OpenDirectory,
    real: str,
    params: WriteParams,
    status: os.stat_result,
    done: WriteOutcome,
    abandoned: Abandoned,
) -> WriteOutcome:
    also = other_names(real, status, params.scope) if status.st_nlink > 1 else ()
    settling = None if params.kept is None else functools.partial(settle, params.kept)
    written = write_in_place(directory, os.path.basename(real), status, params._replace(path=real), abandoned)
    return done._replace(seen=FileStamp.make(written, done.after), also=tuple(also), settle=settling)


def _stamp(status: os.stat_result | None) -> FileStamp | None:
    return None if status is None else FileStamp.make(status)


def _temporary(real: str, mark: str) -> str:
    """The name, next to `real`, of a write's temporary file. It is derived from the call, so that another process finds
    it; the random part of `mark` keeps others from creating it first."""
    digest = hashlib.sha256(mark.encode("utf-8", "surrogatepass") + b"\0" + os.fsencode(real)).hexdigest()
    return own_name(digest[:32])


# Deleting and moving one file or symbolic link. Of a link at the end of a path the name that the call gives goes, and
# never what that leads to.


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
    """The file at `path` is moved to `new_path`, which must not exist. `path` must also be in the scope of reading."""

    path: str
    scope: Scope
    read_scope: Scope
    new_path: str
    new_scope: Scope


def move_file(params: MoveParams, abandoned: Abandoned) -> None:
    """Move a regular file, or a link, to a nonexistent path, in one step. Missing directories are created."""
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
                message = f"it is on another file system, and moves do not cross file systems: {params.new_path}"
                raise ToolFault(FaultKind.SYSTEM, message) from error


def _ends(params: MoveParams) -> tuple[str, str]:
    real = resolve(params.path, params.scope, to_change=True, own_name=True)
    check_scope(params.path, real, params.read_scope)
    return real, resolve(params.new_path, params.new_scope, to_change=True, own_name=True)


def _refuse_other_kinds(status: os.stat_result | None, path: str) -> None:
    if status is None or not stat.S_ISLNK(status.st_mode):
        refuse_irregular(status, path)


def take_back_half_move(params: MoveParams) -> bool:
    """Take away the second name of a move that was cut in its middle; True if there was one. Raises ToolFault."""
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


# Deleting a directory with its contents. Everything below is checked first: if policy forbids deleting one entry,
# nothing is deleted. Then entries are deleted by descriptor from the root on, links themselves and never their targets.

MAX_ENTRIES: Final = 100_000  # a larger tree is not deleted in one call


def delete_tree(path: str, scope: Scope, abandoned: Abandoned) -> int:
    """Delete the directory at `path`, which leads through no link, with all that is in it; how many entries there were.
    Raises ToolFault: OUT_OF_SCOPE, and then nothing was deleted; TOO_LARGE likewise."""
    real = resolve(path, scope, to_change=True, through_links=False)
    with os_faults(path), open_parent(real, root_of(real, scope)) as (directory, name):
        status = directory.status(name)
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise ToolFault(FaultKind.PATH_CHANGED, f"is no longer a directory: {path}")
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


# A file is written in place where a new file cannot take its place: it has several names, is a mount point, or lies in
# a directory that cannot be written. Such a write can be cut in its middle, so that
#
# - what the file holds and what it is to hold are synced first to a private file of the session (`kept`);
# - a write that fails puts back what was there;
# - after a crash `take_back` compares the file with both: it is done, not done, or half written and put back. A file
#   that is neither, block by block, was changed by another program, and is not touched;
# - the private file is removed once the call's result is on record (`settle`).
#
# Policy has judged one name of the file, and a write in place changes all of them. They are looked for, and where one
# is not found in what the call may write, nothing is written: a command could make a link of a protected file.

MAX_IN_PLACE_BYTES: Final = 256 * 1024 * 1024
"""A larger file is not written in place, because its content is stored first."""
_MAX_LOOKED_THROUGH: Final = 300_000
_BLOCK: Final = 4096
_WRITES: Final = threading.Lock()  # two names of one file are written one after the other

State = Literal["done", "not_done", "put_back", "changed"]


def other_names(real: str, status: os.stat_result, scope: Scope) -> list[str]:
    """The other names of the file at `real`. Raises ToolFault(OUT_OF_SCOPE) for one that the scope does not cover, and
    if one is not found in the allowed places."""
    roots = [root_of(real, scope)]
    is_bounded = roots[0] != os.sep
    if is_bounded:
        roots += [one for one in scope.allowed or () if os.path.isdir(one)]
    else:  # anything may be written except blocked paths and files that steer git
        roots = [
            _repository_above(real) or os.path.dirname(real),
            *(one for one in scope.blocked or () if "*" not in one),
        ]
    found = {real}
    for path in _same_file(roots, status):
        check_scope(path, path, scope)
        if repository_place(path, scope.allowed, OS_FAMILY) is not None:
            message = f"another name of the file is {path}, which policy protects: {real}"
            raise ToolFault(FaultKind.OUT_OF_SCOPE, message)
        found.add(path)
        if len(found) == status.st_nlink:
            break
    if is_bounded and len(found) < status.st_nlink:
        raise ToolFault(
            FaultKind.OUT_OF_SCOPE,
            f"the file has {status.st_nlink} names (hard links), of which only {len(found)} are where this call may "
            f"write, and all would change; nothing was written: {real}. To cut it off from the others, delete it and "
            "write it anew",
        )
    return sorted(found - {real})


def write_in_place(
    directory: OpenDirectory, name: str, found: os.stat_result, new: WriteParams, abandoned: Abandoned
) -> os.stat_result:
    """Write the file `name`, whose previous state is `found`, in place and durably; returns its new status. Its path in
    `new` is real; if `new` has no `kept`, the previous content is only in memory. Raises ToolFault and OSError: then it
    has its previous content, or the message names the place of that."""
    if max(found.st_size, len(new.data)) > MAX_IN_PLACE_BYTES:
        why = f"files above {MAX_IN_PLACE_BYTES} bytes are not written in place, and no new file can take its place"
        raise ToolFault(FaultKind.TOO_LARGE, f"{why}: {new.path}")
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
    if abandoned.flag:  # no other process would do it
        settle(new.kept)
    return status


def settle(kept: str | None) -> None:
    """Remove the backup of a write, because its result is recorded. Does nothing if there is none."""
    if kept is None:
        return
    with suppress(OSError), open_parent(kept) as (directory, name):
        directory.remove(name)


def take_back(kept: str, scope: Scope) -> State | None:
    """Find the state of a write in place whose process died; None if there was none. An incomplete one is reverted.
    Raises ToolFault if the call may no longer write the file, and OSError."""
    try:
        with open(kept, "rb") as file:
            header = orjson.loads(file.readline())
            before, after, mode = file.read(header["before"]), file.read(header["after"]), header["mode"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    real = os.fsdecode(bytes.fromhex(header["path"]))
    check_scope(real, real, scope)
    with _WRITES, open_parent(real, root_of(real, scope)) as (directory, name), directory.open_existing(name) as target:
        now = target.read(MAX_IN_PLACE_BYTES + 1)
        if now in (before, after):
            return "done" if now == after else "not_done"
        if not _is_half_written(now, before, after):
            return "changed"
        overwrite(target, before, mode)
    return "put_back"


def _keep(kept: str, new: WriteParams, before: bytes, mode: int) -> None:
    header = {"path": os.fsencode(new.path).hex(), "before": len(before), "after": len(new.data), "mode": mode}
    try:
        with open_parent(kept, create=PRIVATE_DIRECTORY) as (directory, name):
            directory.put(name, orjson.dumps(header) + b"\n" + before + new.data, 0o600)
    except OSError as error:
        why = f"its content could not be kept first ({error.strerror}), so that it is not written in place"
        raise ToolFault(FaultKind.SYSTEM, f"{why}: {new.path}") from error


def _put_back(file: FileIO, before: bytes, mode: int, new: WriteParams, error: BaseException) -> None:
    try:
        overwrite(file, before, mode)
    except OSError:
        where = "is lost" if new.kept is None else f"is in {new.kept}.lost, after a first line"
        if new.kept is not None:
            with suppress(OSError), open_parent(new.kept) as (directory, name):
                directory.replace(name, f"{name}.lost")
        raise ToolFault(
            FaultKind.SYSTEM, f"the write failed in the middle ({error}); its content {where}: {new.path}"
        ) from error
    settle(new.kept)


def _is_half_written(now: bytes, before: bytes, after: bytes) -> bool:
    """True if each block is one of the two, or the one over the other: the system writes whole blocks, in any order,
    and one that it had not yet written is empty."""
    # It is truncated last, so a shorter file was truncated by another program.
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
