"""Places that commands may read and not write, inside of what they may write, where the level cannot refuse it: looked
at before and after each command. What changed is saved aside and told, and put back where nobody else can have
written it.

What a command begins with is on disk before it starts, so that a resume after a crash can tell as well.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from agent_host.contracts import Denial
from agent_host.regular_files import open_regular
from tool_runtime.files.writer import NEW_DIRECTORY, PRIVATE_DIRECTORY, open_directory, open_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tool_runtime.files.writer import OpenDirectory

MAX_ENTRIES: Final = 2000
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
MAX_LOOK_BYTES: Final = 128 * 1024 * 1024
"""The contents that one look reads; a file behind that counts as one that is too large."""
MAX_TOLD: Final = 200
"""The changes of one command that are told, and of which copies are kept."""
MAX_SAVED_BYTES: Final = 256 * 1024 * 1024
"""Copies that are kept of what the commands of a session left."""
_MAX_LOOKS: Final = 200
_SET_IDS: Final = stat.S_ISUID | stat.S_ISGID
_CONTENTS: Final = "contents"
_AS_LEFT: Final = "it is as the command left it"
_PUT_BACK: Final = "it was put back"


class Entry(NamedTuple):
    """One file, folder or link: what tells a change, and the SHA-256 of a file's content, the target of a link; None
    where the content is too large to be kept, or cannot be read."""

    mode: int
    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    content: str | None

    def same_as(self, other: Entry) -> bool:
        """Whether both are the same thing with the same content, whenever it was written."""
        if self.content is None or other.content is None:
            return self[:5] == other[:5]
        if self.content == _FOLDER:
            return other.mode in (0, stat.S_IFDIR)
        # The host gives nothing a set-user-id bit, so that it cannot put one back.
        return (self.mode & ~_SET_IDS, self.content) == (other.mode & ~_SET_IDS, other.content)


_NOTHING: Final = Entry(0, -1, 0, 0, 0, None)
_FOLDER: Final = "/"
"""The content of a folder that is no guarded place itself."""
Look = dict[str, Entry]
"""All entries of the guarded places by their paths; what is not there has none."""


class Guarded:
    """For the commands of one session. `directory` is its own, for this alone: without one nothing is saved, and
    nothing put back."""

    def __init__(self, directory: str | None) -> None:
        self._folder = None if directory is None else os.path.realpath(directory)
        self._known: dict[str, Entry] = {}
        self._kept: set[str] = set()
        self._saved = self._saved_bytes = 0
        self._room = 0
        self._saw_all = True

    def look(self, places: Iterable[str], folders: Iterable[str] = ()) -> Look:
        """What the places hold now. A file that has not changed since the last look is not read again. Where something
        else is in the place of one of the `folders`, it is found, and not what it may lead to."""
        found: Look = {}
        for folder in folders:
            with suppress(OSError):
                status = os.lstat(folder)
                is_folder = stat.S_ISDIR(status.st_mode)
                as_folder = Entry(stat.S_IFDIR, 0, 0, 0, status.st_ino, _FOLDER)
                found[folder] = as_folder if is_folder else self._entry(folder, status)
        closed = tuple(f"{path}{os.sep}" for path, entry in found.items() if entry.content != _FOLDER)
        self._room = MAX_LOOK_BYTES
        whole = [not place.startswith(closed) and _walk(place, found, self._entry) for place in places]
        self._saw_all = all(whole)
        return found

    def begin(self, mark: str, places: Iterable[str], folders: Iterable[str] = ()) -> Look:
        """A look before a command, on record under its `mark` until `end`, with the contents. `folders` are those that
        places lie in and that the command may exchange. Raises OSError."""
        found = self.look(places, [folder for folder in folders if not os.path.islink(folder)])
        if self._folder is not None:
            self._keep(self._folder, found)
            record = {"places": list(places), "look": {path: list(entry) for path, entry in found.items()}}
            with open_directory(self._folder, create=PRIVATE_DIRECTORY) as folder:
                folder.put(f"{mark}.json", orjson.dumps(record), 0o600, durable=False)
        return found

    def end(self, mark: str, places: Iterable[str], before: Look, *, alone: bool) -> list[Denial]:
        """What the command with this mark changed. `alone`: no other command ran meanwhile, so that it is put back;
        which may show more, such as what lies in a folder that nobody could look into."""
        told: dict[str, Denial] = {}
        folders = [path for path, entry in before.items() if entry.content == _FOLDER]
        seen: dict[str, Entry | None] = {}
        last: Look | None = None
        changed: list[str] = []
        for _ in range(_MAX_LOOKS):
            after = self.look(places, folders)
            changed = changes(before, after)
            if after == last:
                break
            last = after
            if alone and len(after) >= MAX_ENTRIES > len(before) and self._set_aside(places, before, after, told):
                continue
            for path in changed:
                now = after.get(path)
                if now is not None or self._saw_all:
                    seen.setdefault(path, now)
                # What was not looked at before may have been there, and what changes later is somebody else's.
                is_the_commands = seen.get(path, now) == now or (now is not None and stat.S_ISDIR(now.mode))
                can_undo = alone and self._folder is not None and (path in before or len(before) < MAX_ENTRIES)
                self._changed(path, before.get(path), now, told, can_undo=can_undo and is_the_commands)
            if not changed or not alone:
                break
        if len(self._known) > 4 * MAX_ENTRIES:
            self._known.clear()
        if self._folder is not None:
            with suppress(OSError), open_directory(self._folder) as folder:
                folder.remove(f"{mark}.json")
        # What nobody could see for a while may be as it was.
        return [one for path, one in told.items() if path in changed or one.done.startswith(_PUT_BACK)]

    def after_crash(self, mark: str) -> list[Denial]:
        """What changed since the command with this mark began, whose host was killed. Nothing is put back: much may
        have happened since. Empty where no such command is on record."""
        if self._folder is None:
            return []
        path = os.path.join(self._folder, f"{mark}.json")
        try:
            with open(path, "rb") as file:
                record: Mapping[str, Any] = orjson.loads(file.read())
            before = {name: Entry(*fields) for name, fields in record["look"].items()}
        except (OSError, ValueError, KeyError, TypeError):  # cut off, or there was none
            return []
        return self.end(mark, record["places"], before, alone=False)

    def _changed(
        self, path: str, before: Entry | None, after: Entry | None, told: dict[str, Denial], *, can_undo: bool
    ) -> None:
        """Tell one change, and put it back where that may be."""
        known = told.get(path)
        said = "" if known is None else known.done.removeprefix(_AS_LEFT).removeprefix(_PUT_BACK)
        is_told = known is not None or len(told) < MAX_TOLD
        said = said or (self._saved_aside(path, after) if is_told else "")
        was_put_back = can_undo and self._put_back(path, before, after)
        if is_told:
            done = _PUT_BACK if was_put_back else _AS_LEFT
            told[path] = Denial("path", path, "guarded", "change", f"{done}{said}")

    def _saved_aside(self, path: str, after: Entry | None) -> str:
        """Where a copy of what the command left is, in words; empty where there is nothing to keep."""
        if self._folder is None or after is None or not (stat.S_ISREG(after.mode) or stat.S_ISLNK(after.mode)):
            return ""
        kept = self._save(path, after)
        if kept is None:
            return "; what the command left could not be kept"
        part = f"the first {MAX_FILE_BYTES} bytes of " if after.size > MAX_FILE_BYTES else ""
        return f"; {part}what the command left is in {kept}"

    def _save(self, path: str, entry: Entry) -> str | None:
        """The path of a copy of a file, or of a file that holds the target of a link; None where there is none."""
        size = min(entry.size, MAX_FILE_BYTES)
        if self._folder is None or self._saved_bytes + size > MAX_SAVED_BYTES:
            return None
        self._saved, self._saved_bytes = self._saved + 1, self._saved_bytes + size
        target = os.path.join(self._folder, "changed", f"{os.getpid()}-{self._saved}", os.path.basename(path))
        try:
            data = os.fsencode(entry.content or "") if stat.S_ISLNK(entry.mode) else _content(path)
            with open_parent(target, create=PRIVATE_DIRECTORY) as (directory, name):
                directory.put(name, data[:MAX_FILE_BYTES], 0o600, durable=False)
        except OSError:
            return None
        return target

    def _set_aside(self, places: Iterable[str], before: Look, after: Look, told: dict[str, Denial]) -> bool:
        """Give the place that holds the most another name, where more lies than one look takes: whether it has one.
        What was in it is put back as what is gone."""
        if self._folder is None:
            return False
        place = max(places, key=lambda one: sum(path.startswith(f"{one}{os.sep}") for path in after))
        left = f".agent-host-left-{os.urandom(8).hex()}"
        try:
            with open_parent(place) as (directory, name):
                directory.move(name, directory, left)
        except OSError:
            return False
        where = os.path.join(os.path.dirname(place), left)
        told[place] = Denial("path", place, "guarded", "change", f"{_PUT_BACK}; what the command left is in {where}")
        if place in before:
            self._put_back(place, before[place], None)
        return True

    def _put_back(self, path: str, before: Entry | None, after: Entry | None) -> bool:
        """Whether it is again as it was before."""
        try:
            with open_parent(path, create=None if before is None else NEW_DIRECTORY) as (directory, name):
                found = directory.status(name)
                if (None if found is None else self._entry(path, found)) != after:
                    return False
                if after is not None and (before is None or stat.S_IFMT(before.mode) != stat.S_IFMT(after.mode)):
                    moved = os.path.realpath(path)
                    _remove(directory, name, after)
                    if before is not None and before.content == _FOLDER:
                        _take_back(moved, before, directory, name)
                return before is None or self._restore(directory, name, before)
        except PermissionError:  # the folder is closed to its owner as well; the next look sees into it
            with suppress(OSError), open_parent(os.path.dirname(path)) as (above, folder):
                found = above.status(folder)
                above.set_permissions(folder, 0o700 | (0 if found is None else found.st_mode))
            return False
        except OSError:
            return False

    def _restore(self, directory: OpenDirectory, name: str, entry: Entry) -> bool:
        if stat.S_ISDIR(entry.mode):
            if directory.status(name) is None:
                directory.make_directory(name)
            if entry.content != _FOLDER:
                directory.set_permissions(name, entry.mode)
        elif stat.S_ISLNK(entry.mode):
            directory.put_link(name, entry.content or "")
        elif stat.S_ISREG(entry.mode) and entry.content in self._kept:
            data = _content(os.path.join(self._folder or "", _CONTENTS, entry.content or ""))
            directory.put(name, data, stat.S_IMODE(entry.mode))
        else:
            return False
        return True

    def _keep(self, folder: str, found: Look) -> None:
        """Have the contents of the files on disk, by their hashes. Raises OSError where they cannot be written."""
        has_content = (path for path, one in found.items() if stat.S_ISREG(one.mode) and one.content is not None)
        new = [path for path in has_content if found[path].content not in self._kept]
        if not new:
            return
        with open_directory(os.path.join(folder, _CONTENTS), create=PRIVATE_DIRECTORY) as contents:
            for path in new:
                try:
                    data = _content(path)
                except OSError:  # it has changed meanwhile
                    continue
                digest = hashlib.sha256(data).hexdigest()
                if digest == found[path].content:
                    contents.put(digest, data, 0o600, durable=False)
                    self._kept.add(digest)

    def _entry(self, path: str, found: os.stat_result) -> Entry:
        known = self._known.get(path)
        plain = (found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        if stat.S_ISDIR(found.st_mode):  # its times change with what is in it, which is looked at by itself
            return Entry(found.st_mode, 0, 0, 0, found.st_ino, "")
        if known is not None and known[:5] == plain:
            return known
        content: str | None = None
        if stat.S_ISLNK(found.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(found.st_mode) and found.st_size <= min(MAX_FILE_BYTES, self._room):
            with suppress(OSError):  # another user's, or one that nobody may read
                data = _content(path)
                self._room -= len(data)
                content = hashlib.sha256(data).hexdigest() if len(data) <= MAX_FILE_BYTES else None
        self._known[path] = entry = Entry(*plain, content)
        return entry


def _content(path: str) -> bytes:
    """Up to a byte more than MAX_FILE_BYTES of a regular file; no link is followed, and no pipe waited for."""
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def _remove(directory: OpenDirectory, name: str, entry: Entry) -> None:
    """Remove what a command left. A folder with something in it that could not be seen becomes one to look into."""
    if not stat.S_ISDIR(entry.mode):
        directory.remove(name)
        return
    try:
        directory.remove_directory(name)
    except OSError:
        directory.set_permissions(name, 0o700)
        raise


def _take_back(moved: str, entry: Entry, directory: OpenDirectory, name: str) -> None:
    """Give a folder its name again, where the link in its place led to it."""
    with suppress(OSError), open_parent(moved) as (source, other):
        there = source.status(other)
        if there is not None and stat.S_ISDIR(there.st_mode) and there.st_ino == entry.inode:
            source.move(other, directory, name)


def _walk(place: str, found: Look, entry_of: Callable[[str, os.stat_result], Entry]) -> bool:
    """The entries of one place, a folder's before what is in it; whether all of it could be looked at."""
    if len(found) >= MAX_ENTRIES:
        return False
    try:
        status = os.lstat(place)
        found[place] = entry_of(place, status)
        names = sorted(os.listdir(place)) if stat.S_ISDIR(status.st_mode) else []
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    whole = [_walk(os.path.join(place, name), found, entry_of) for name in names]
    return all(whole)


def changes(before: Look, after: Look) -> list[str]:
    """The paths that are not as they were: what is new first, and the inmost first, so that each can be undone. A
    folder that is gone is no change but for the places in it."""
    new = sorted(after.keys() - before.keys(), reverse=True)
    old = [path for path, entry in before.items() if not entry.same_as(after.get(path, _NOTHING))]
    return [*new, *sorted(old, reverse=True)]
