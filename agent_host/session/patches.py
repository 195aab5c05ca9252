"""Changes of the session, or of one of its tasks: file by file for a review, and as one patch.

A preview reads files and compares them, which may take a while. The data that it needs of the session is a value, so
that it can run in another thread:

    changes = session.changes
    patches = await asyncio.to_thread(changes.preview)
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import os
import re
import zlib
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from agent_host.safe_open import link_at, open_real, read_real
from agent_host.session.tasks import ON_DISK, spans
from agent_host.text_diff import compare, count_replaced, find_renames
from agent_host.workspace_changes import find_repository
from policy.redaction import PLACEHOLDER
from state.blobs import (
    LINK,
    NOT_KEPT,
    OVERWRITTEN,
    PLAIN_FILE,
    git_mode,
    is_untouched,
    mode_and_blob,
    unavailable_at,
)
from state.disk import LOCAL_DISK

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from agent_host.session.tasks import FirstVersions, Span

MAX_PREVIEW_CHARS: Final = 64 * 1024 * 1024
"""Limit for the diffs of one preview. Files beyond it are listed without a diff; request them with `filePaths`."""
_MAX_RENAMED_BYTES: Final = 64 * 1024 * 1024
"""Limit for the bytes that are read to find renames; files beyond it are shown as deleted and added."""


class FilePatch(NamedTuple):
    """One file of a preview; `file_path` is absolute. `diff` is in git's format, or one line `# name: why there is
    none`, which git ignores. `note` is that line's text; a binary patch, which nobody can read, has a note too, and
    `reading` is what git displays instead. A renamed file has two entries: one is added, with `renamed_from` and the
    diff between both, the other is deleted, with `renamed_to`."""

    file_path: str
    status: Literal["added", "modified", "deleted"]
    diff: str
    additions: int
    deletions: int
    note: str | None = None
    renamed_from: str | None = None
    renamed_to: str | None = None
    reading: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """An entry of `files` in the answer to GetPatchPreview (interface section 2)."""
        renames = {"renamedFrom": self.renamed_from, "renamedTo": self.renamed_to}
        return {
            "filePath": self.file_path,
            "status": self.status,
            "diff": self.diff,
            "additions": self.additions,
            "deletions": self.deletions,
            **{name: path for name, path in renames.items() if path is not None},
        }


class ChangedFile(NamedTuple):
    """A file of a patch, by its name there."""

    name: str
    status: str
    additions: int
    deletions: int


class WholePatch(NamedTuple):
    """All changes as a patch for `git apply` and `git apply --3way`: names are relative to the root of the workspace's
    repository, or to the workspace if it is in none. `omitted` has {path, why} of the files that are left out."""

    text: str
    files: list[ChangedFile]
    omitted: list[dict[str, str]]

    def to_bytes(self) -> bytes:
        """Return the content of a patch file, with file names in the bytes that they have on disk."""
        return self.text.encode("utf-8", "surrogateescape")


class SessionChanges(NamedTuple):
    """The changes of a session, from its record at one time. `kept` returns a version of a file by its name in
    `versions`.

    `former` are workspaces that the session had before, oldest first: a file that is gone from one of them is looked
    for at the same place in `workspace`, and is not treated as deleted if it is missing there too.

    `clean` redacts secrets in files from the disk; in first versions they were redacted when those were kept. A diff
    shows placeholders, and `git apply` rejects a diff that has them in a line that must match."""

    versions: FirstVersions
    kept: Callable[[str], bytes | None]
    workspace: str
    former: Sequence[str] = ()
    clean: Callable[[bytes], bytes] = bytes

    def preview(self, task_id: str | None = None, file_paths: Iterable[str] | None = None) -> list[FilePatch]:
        """Return every file that the session, or the task `task_id`, changed, in the order of their paths.

        The joined diffs of the files in `workspace` are a patch for `git apply` there. With `file_paths`, absolute or
        relative to `workspace`, only these files are compared. Raises LookupError for a task that the session does not
        know."""
        workspace = self.workspace
        places, lost = _places(self.versions.session, workspace, self.former)
        found = spans(self.versions, task_id, places)
        wanted = None if file_paths is None else _resolve_paths(file_paths, workspace, places)
        found = {path: span for path, span in sorted(found.items()) if wanted is None or path in wanted}
        shown: list[FilePatch] = []
        room = MAX_PREVIEW_CHARS
        for patch in _patches(_Source(self.kept, self.clean, workspace, lost), found):
            name, why = _patch_name(patch.file_path, workspace), "not shown with so many others: ask for it alone"
            shown.append(patch if len(patch.diff) <= room else _add_note(patch._replace(diff=""), name, why))
            room -= len(shown[-1].diff)
        return shown

    def render(self, task_id: str | None = None) -> str:
        """Return the preview as text, with a line on changes that it may miss."""
        return render_text(self.preview(task_id), self.versions.unseen_in(task_id))

    def whole_patch(self, without: Collection[str] = ()) -> WholePatch:
        """Compare the session's first versions with the disk and return a patch for another copy of the workspace,
        without the files in `without`. A file in which `clean` finds a secret, now or in its first version, is left
        out, because a placeholder must overwrite nothing."""

        def refuse_secret(content: bytes) -> bytes:
            if self.clean(content) != content:
                raise _NotShown(_HOLDS_SECRET)
            return content

        def kept_unredacted(name: str) -> bytes | None:
            content = self.kept(name)
            if content is not None and re.search(PLACEHOLDER.encode(), content) is not None:
                raise _NotShown(_HOLDS_SECRET)
            return content

        workspace = self.workspace
        places, lost = _places(self.versions.session, workspace, self.former)
        found = {path: span for path, span in sorted(spans(self.versions, None, places).items()) if path not in without}
        repository = find_repository(workspace)
        root = workspace if repository is None else workspace.removesuffix(os.sep + os.path.normpath(repository.prefix))
        result, texts = WholePatch("", [], []), []
        for patch in _patches(_Source(kept_unredacted, refuse_secret, root, lost, indexed=True), found):
            if patch.renamed_to is not None:
                continue
            path, name = patch.file_path, _patch_name(patch.file_path, root)
            if not _inside(path, workspace):
                result.omitted.append({"path": path, "why": "it is outside of the workspace"})
            elif patch.diff.startswith("#"):
                result.omitted.append({"path": name, "why": (patch.note or "").removeprefix(f"{quote(name)}: ")})
            else:
                texts.append(patch.diff)
                status = "renamed" if patch.renamed_from is not None else patch.status
                result.files.append(ChangedFile(name, status, patch.additions, patch.deletions))
        return result._replace(text="".join(texts))


_HOLDS_SECRET: Final = "a secret was found in it"  # noqa: S105  a reason


def render_text(patches: Iterable[FilePatch], unseen: str | None = None) -> str:
    """Return a preview as text; "" for an empty one. Binary patches are in the form that git displays; `unseen` comes
    first."""
    heading = "" if unseen is None else f"# not all changes by commands are known: {unseen}\n"
    return heading + "".join(
        patch.reading or (patch.diff if patch.note is None else f"# {patch.note}\n") for patch in patches
    )


# Paths of files


def _places(known: Collection[str], workspace: str, former: Sequence[str]) -> tuple[dict[str, str], set[str]]:
    """Return the new paths of files that have moved with their workspace, by the old ones, and the paths of files that
    are in neither place."""
    roots = [
        root
        for root in reversed(list(dict.fromkeys(former)))
        # Otherwise it has not moved: the session works in a larger or smaller part of it.
        if not (root == workspace or _inside(root, workspace) or _inside(workspace, root))
    ]
    places: dict[str, str] = {}
    lost: set[str] = set()
    for path in known if roots else ():
        moved = [os.path.join(workspace, os.path.relpath(path, root)) for root in roots if _inside(path, root)]
        if moved and _is_missing(path):
            place = next((candidate for candidate in moved if candidate in known or not _is_missing(candidate)), None)
            if place is None:
                lost.add(path)
            else:
                places[path] = place
    return places, lost


def _resolve_paths(file_paths: Iterable[str], workspace: str, places: Mapping[str, str]) -> set[str]:
    """Return the paths in the session's forms: normalised, with and without following links."""
    wanted: set[str] = set()
    for given in file_paths:
        path = os.path.normpath(os.path.join(workspace, given))
        with contextlib.suppress(ValueError):  # a null byte or a lone surrogate, which no file name can contain
            wanted.update((path, os.path.realpath(path)))
    return wanted.union(places[path] for path in wanted & places.keys())


def _patch_name(path: str, workspace: str) -> str:
    shown = os.path.relpath(path, workspace) if _inside(path, workspace) else path
    return shown.replace(os.sep, "/").lstrip("/")


def _inside(path: str, workspace: str) -> bool:
    return path.startswith(workspace.rstrip(os.sep) + os.sep)


def _is_missing(path: str) -> bool:
    """True if there is no file: nothing, or a folder. A path that cannot be examined is assumed to exist."""
    try:
        found = LOCAL_DISK.status(path)
    except OSError:
        return False
    return found is None or found.kind == "directory"


class _Source(NamedTuple):
    """The contents of files: `kept` returns versions by their names, and `clean` redacts content from the disk. Names
    in patches are relative to `root`; the files of `lost` are in neither workspace. `indexed`: patches have the names
    of git's objects, and are for git only."""

    kept: Callable[[str], bytes | None]
    clean: Callable[[bytes], bytes]
    root: str
    lost: Collection[str]
    indexed: bool = False

    def is_missing(self, path: str, version: str | None) -> bool:
        """True if this last version means that there is no file. For git a file is gone if a link has replaced a folder
        in its path, wherever the link leads."""
        if version != ON_DISK:
            return version is None
        folder = os.path.dirname(path)
        while self.indexed and _inside(folder, self.root):
            if os.path.islink(folder):
                return True
            folder = os.path.dirname(folder)
        return _is_missing(path)

    def version(self, name: str | None, missing: str) -> bytes | None:
        """Return the version of this name, None for no file. Raises _NotShown with the text `missing`."""
        content = None if name is None else self.kept(name)
        if name is not None and content is None:
            raise _NotShown(missing)
        return content


# Contents of files


def _patches(source: _Source, found: Mapping[str, Span]) -> Iterator[FilePatch]:
    renames = _renames(source, found)
    for path, span in found.items():
        patch = renames.get(path) or _file_patch(source, path, span)
        if patch is not None:
            yield patch


def _file_patch(source: _Source, path: str, span: Span) -> FilePatch | None:
    old_mode, old = (None, None) if span.before is None else mode_and_blob(span.before)
    if span.before == span.after and old not in NOT_KEPT:
        return None
    if span.before and is_untouched(span.before, unavailable_at(path) if span.after == ON_DISK else span.after):
        return None
    is_missing = source.is_missing(path, span.after)
    if is_missing and span.before is None:
        return None
    name = _patch_name(path, source.root)
    bare = FilePatch(path, "added" if span.before is None else "deleted" if is_missing else "modified", "", 0, 0)
    if path in source.lost and span.after == ON_DISK:
        return _add_note(bare, name, "its workspace has moved, and it is in neither place")
    try:
        done = "deleted" if is_missing else "changed"
        by_command = old == OVERWRITTEN
        why = " by a command; its earlier content was not kept" if by_command else "; its first version was not kept"
        before = source.version(old, done + why)
        if span.after == ON_DISK and not is_missing:
            after: bytes | None = source.clean(_content(path, before or b""))
        else:
            later = None if is_missing or span.after is None else mode_and_blob(span.after)[1]
            after = source.version(later, "changed; its last version was not kept")
    except _NotShown as error:
        return _add_note(bare._replace(additions=error.additions, deletions=error.deletions), name, error.why)
    except OSError as error:
        return _add_note(bare, name, f"cannot be read: {error.strerror}")
    mode = _mode(path) if span.after in (ON_DISK, None) else mode_and_blob(span.after)[0] or old_mode or _mode(path)
    if LINK in (old_mode, mode) and old_mode is None and before is not None:
        old_mode = PLAIN_FILE  # the mode of a link is always recorded
    if before == after and old_mode in (None, mode):
        return None
    patch = _GitChange(name, before, after, mode, old_mode, source.indexed).patch()
    added, deleted, reading = patch.additions, patch.deletions, patch.reading
    counted = bare._replace(diff=patch.text, additions=added, deletions=deleted, reading=reading)
    return counted if patch.summary is None else _add_note(counted, name, patch.summary)


def _renames(source: _Source, found: Mapping[str, Span]) -> dict[str, FilePatch]:
    """Return the patches of the files that were renamed, by both of their paths."""
    removed: dict[str, bytes] = {}
    new: dict[str, bytes] = {}
    if not any(span.before is None for span in found.values()):
        return {}
    room = _MAX_RENAMED_BYTES
    for path, span in found.items():
        is_missing = source.is_missing(path, span.after)
        if path in source.lost or is_missing == (span.before is None) or room < 0:
            continue
        version = span.before if is_missing else span.after
        if version is not None and version != ON_DISK:
            mode, version = mode_and_blob(version)
            if mode == LINK:
                continue
        elif not is_missing and os.path.islink(path):
            continue
        with contextlib.suppress(_NotShown, OSError):
            content = source.clean(_content(path, b"")) if version == ON_DISK else source.version(version, "") or b""
            (removed if is_missing else new)[path] = content
            room -= len(content)
    patches: dict[str, FilePatch] = {}
    for path, (old, similarity) in find_renames(removed, new).items():
        old_name, name = _patch_name(old, source.root), _patch_name(path, source.root)
        was = mode_and_blob(found[old].before or "")[0] or (PLAIN_FILE if source.indexed else None)
        change = _GitChange(name, removed[old], new[path], _mode(path), was, source.indexed, old_name)
        patch = change.as_rename(similarity)
        if patch is not None:
            added = FilePatch(path, "added", patch.text, patch.additions, patch.deletions, renamed_from=old)
            deleted = FilePatch(old, "deleted", "", 0, 0, renamed_to=path)
            patches |= {path: added, old: _add_note(deleted, old_name, f"renamed to {quote(name)}")}
    return patches


class _NotShown(Exception):
    """A file has no diff, because of `why`; its lines are counted if possible."""

    def __init__(self, why: str, additions: int = 0, deletions: int = 0) -> None:
        super().__init__(why)
        self.why, self.additions, self.deletions = why, additions, deletions


def _content(path: str, before: bytes) -> bytes:
    """Return the content of the file. Raises OSError, and _NotShown if it is too large for a patch."""
    target = link_at(path)
    if target is not None:
        return target
    found = LOCAL_DISK.status(path)
    if found is not None and found.kind != "file":
        raise _NotShown("cannot be read: it is not a regular file")
    if found is None or found.size <= MAX_PATCH_BYTES:
        return read_real(path, MAX_PATCH_BYTES)
    with open(open_real(path), "rb") as handle:

        def read(at: int, size: int) -> bytes:
            handle.seek(at)
            return handle.read(size)

        size = os.fstat(handle.fileno()).st_size
        counts = count_replaced(before, size, read) or (0, 0)
    raise _NotShown(f"too large to be shown: {size} bytes", *counts)


def _add_note(patch: FilePatch, name: str, why: str) -> FilePatch:
    """Add a line with the reason why there is no readable diff; it replaces a missing diff."""
    note = f"{quote(name)}: {why}"
    return patch._replace(diff=patch.diff or f"# {note}\n", note=note)


def _mode(path: str) -> str:
    try:
        return git_mode(os.lstat(path).st_mode)
    except OSError:
        return PLAIN_FILE


# One file's change in git's format, for `git apply`: text as hunks, anything else as a binary patch.
#
# Pure. Names are paths relative to the folder that the patch is applied in, with slashes.

MAX_TEXT_BYTES: Final = 16 * 1024 * 1024
"""Limit for each side. A larger text is shown as a binary patch, up to MAX_PATCH_BYTES."""
MAX_TEXT_LINES: Final = 400_000
"""Limit for each side, with the same effect: a line costs more than its bytes."""
MAX_PATCH_BYTES: Final = 32 * 1024 * 1024
"""Limit for each side. A larger file has no patch."""
MAX_PACKED_BYTES: Final = 16 * 1024 * 1024
"""Limit for both sides, compressed, in a binary patch. A larger one has no patch, because it would still be one line of
JSON."""

_LINE_BYTES: Final = 52
_SLICE_BYTES: Final = _LINE_BYTES * 4096
_LENGTHS: Final = " ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class GitPatch(NamedTuple):
    """A file's patch, with the numbers of added and deleted lines: 0 for binary content. `summary` describes a patch
    that is not readable; None for hunks. If there is no patch `text` is "" and `summary` is the reason. `reading` is
    what git displays instead of a binary patch."""

    text: str
    additions: int
    deletions: int
    summary: str | None = None
    reading: str | None = None


class _GitChange(NamedTuple):
    """A file's change, from the content `before` to `after`, of which one may be None (no file) and neither is larger
    than MAX_PATCH_BYTES. `mode` is the mode after, `old_mode` the mode before, None if it has not changed. `old_name`
    is the former name of a renamed file. `indexed`: include the names of git's objects, by which `git apply --3way`
    finds them."""

    name: str
    before: bytes | None
    after: bytes | None
    mode: str
    old_mode: str | None
    indexed: bool
    old_name: str | None = None

    def patch(self) -> GitPatch:
        """Return the patch of a change in place. A file that becomes a link, or was one, is deleted and added."""
        old, new = self.before, self.after
        if None not in (old, new) and LINK in (self.mode, self.old_mode) and not self._keeps_mode:
            deletion, addition = self._replace(after=None).patch(), self._replace(before=None).patch()
            text = deletion.text + addition.text if deletion.text and addition.text else ""
            reading = (deletion.reading or deletion.text) + (addition.reading or addition.text)
            summary = deletion.summary or addition.summary
            return GitPatch(text, addition.additions, deletion.deletions, summary, reading if summary else None)
        old, new = old or b"", new or b""
        if not (_is_text(old) and _is_text(new)):
            return self._binary_patch(GitPatch("", 0, 0, "binary content differs"))
        if not (_is_short(old) and _is_short(new)):
            added, deleted = count_replaced(old, len(new), lambda at, size: new[at : at + size]) or (0, 0)
            return self._binary_patch(GitPatch("", added, deleted, "too large for a diff of lines"))
        return self._text_patch(self._header)

    def as_rename(self, similarity: int) -> GitPatch | None:
        """Return the patch that renames the file and changes it; None if it changes and is not text, or too long for a
        diff of lines. `similarity` is the similarity in percent."""
        names = f"rename from {quote(self.old_name or '')}\nrename to {quote(self.name)}\n"
        header = f"{self._header}similarity index {similarity}%\n{names}"
        if self.before == self.after:
            return GitPatch(header, 0, 0)
        if not all(_is_text(one) and _is_short(one) for one in (self.before or b"", self.after or b"")):
            return None
        return self._text_patch(header)

    @property
    def _keeps_mode(self) -> bool:
        return self.old_mode in (None, self.mode)

    @property
    def _header(self) -> str:
        header = f"diff --git {quote(f'a/{self.old_name or self.name}')} {quote(f'b/{self.name}')}\n"
        if self.before is None:
            header += f"new file mode {self.mode}\n"
        if self.after is None:
            header += f"deleted file mode {self.old_mode or PLAIN_FILE}\n"
        if None not in (self.before, self.after) and not self._keeps_mode:
            header += f"old mode {self.old_mode}\nnew mode {self.mode}\n"
        return header

    @property
    def _index_names(self) -> str:
        return f"index {_object_name(self.before)}..{_object_name(self.after)}"

    @property
    def _sides(self) -> tuple[str, str]:
        old = "/dev/null" if self.before is None else quote(f"a/{self.old_name or self.name}")
        return old, "/dev/null" if self.after is None else quote(f"b/{self.name}")

    def _text_patch(self, header: str) -> GitPatch:
        diff = compare(self.before or b"", self.after or b"")
        if self.indexed and self.before != self.after:
            shows_mode = None not in (self.before, self.after) and self._keeps_mode
            header += f"{self._index_names}{f' {self.mode}' if shows_mode else ''}\n"
        if diff.hunks:  # an empty file has a header and no hunks
            header += "--- {}\n+++ {}\n".format(*self._sides) + diff.hunks.decode()
        return GitPatch(header, diff.additions, diff.deletions)

    def _binary_patch(self, counted: GitPatch) -> GitPatch:
        """Return `counted` with its text in the format of `git diff --binary`, in both directions."""
        header, old, new = self._header, self.before or b"", self.after or b""
        if self.before == self.after:  # only the mode has changed
            return GitPatch(header, 0, 0)
        counted = counted._replace(reading=f"{header}Binary files {' and '.join(self._sides)} differ\n")
        literals = [(len(data), zlib.compress(data)) for data in (new, old)]
        if sum(len(packed) for _, packed in literals) > MAX_PACKED_BYTES:
            return counted._replace(summary=f"too large to be shown: {len(new)} bytes")
        # Git rejects a binary patch without the full names of both objects.
        lines = itertools.chain.from_iterable(itertools.starmap(_literal, literals))
        return counted._replace(text=f"{header}{self._index_names}\nGIT binary patch\n{''.join(lines)}")


def quote(name: str) -> str:
    """Return a file name in git's format: in C-style quotes if it contains characters that would break the line."""
    if name.isprintable() and '"' not in name and "\\" not in name:
        return name
    return '"' + "".join(_ESCAPES.get(char, char) if char.isprintable() else _octal(char) for char in name) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\"}


def _octal(char: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def _is_short(data: bytes) -> bool:
    return len(data) <= MAX_TEXT_BYTES and data.count(b"\n") <= MAX_TEXT_LINES


def _object_name(data: bytes | None) -> str:
    if data is None:
        return "0" * 40
    found = hashlib.sha1(b"blob %d\0" % len(data), usedforsecurity=False)
    found.update(data)
    return found.hexdigest()


def _literal(size: int, packed: bytes) -> Iterator[str]:
    """Yield the lines of a literal of `size` bytes, compressed by zlib: 52 compressed bytes per line, in base85, after
    a letter for their number."""
    yield f"literal {size}\n"
    for at in range(0, len(packed), _SLICE_BYTES):
        part = packed[at : at + _SLICE_BYTES]
        digits = base64.b85encode(part, pad=True).decode()
        for number, offset in enumerate(range(0, len(part), _LINE_BYTES)):
            length = min(_LINE_BYTES, len(part) - offset)
            yield f"{_LENGTHS[length]}{digits[number * 65 : (number + 1) * 65]}\n"
    yield "\n"
