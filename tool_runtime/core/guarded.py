"""Places that commands may read and not write, inside of what they may write, where the level cannot refuse it: looked
at before and after each command. What changed is saved aside and told, and put back where nobody else can have
written it.

What a command begins with is on disk before it starts, so that a resume after a crash can tell as well.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from agent_host.contracts import Denial

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_ENTRIES: Final = 2000
MAX_FILE_BYTES: Final = 4 * 1024 * 1024


class Entry(NamedTuple):
    """One file, folder or link: what tells a change, and the SHA-256 of a file's content, the target of a link; None
    where the content is too large to be kept."""

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
        return (self.mode, self.content) == (other.mode, other.content)


Look = dict[str, Entry]
"""All entries of the guarded places by their paths; what is not there has none."""


class Guarded:
    """For the commands of one session. `directory` is its own, for this alone: without one nothing is saved, and
    nothing put back."""

    def __init__(self, directory: str | None) -> None:
        self._folder = directory
        self._contents: dict[str, bytes] = {}
        self._known: dict[str, Entry] = {}
        self._saved = 0

    def look(self, places: Iterable[str]) -> Look:
        """What the places hold now. A file that has not changed since the last look is not read again."""
        found: Look = {}
        for place in places:
            _walk(place, found, self._entry)
        return found

    def begin(self, mark: str, places: Iterable[str]) -> Look:
        """A look before a command, on record under its `mark` until `end`. Raises OSError."""
        found = self.look(places)
        if self._folder is not None:
            os.makedirs(os.path.join(self._folder, "contents"), mode=0o700, exist_ok=True)
            for entry in found.values():
                if entry.content in self._contents:
                    _write_once(
                        os.path.join(self._folder, "contents", entry.content or ""), self._contents[entry.content]
                    )
            record = {"places": list(places), "look": {path: list(entry) for path, entry in found.items()}}
            _write_once(os.path.join(self._folder, f"{mark}.json"), orjson.dumps(record), again=True)
        return found

    def end(self, mark: str, places: Iterable[str], before: Look, *, alone: bool) -> list[Denial]:
        """What the command with this mark changed. `alone`: no other command ran meanwhile, so that it is put back."""
        after = self.look(places)
        denials = [
            self._changed(path, before.get(path), after.get(path), alone=alone) for path in changes(before, after)
        ]
        if self._folder is not None:
            with suppress(OSError):
                os.unlink(os.path.join(self._folder, f"{mark}.json"))
        return denials

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

    def _changed(self, path: str, before: Entry | None, after: Entry | None, *, alone: bool) -> Denial:
        kept = self._save(path, after)
        is_safe = after is None or kept is not None or stat.S_ISDIR(after.mode)
        can_undo = alone and self._folder is not None and is_safe
        done = "it is as the command left it"
        if can_undo and self._put_back(path, before, after):
            done = "it was put back"
        saved = "" if kept is None else f"; what the command left is in {kept}"
        return Denial("path", path, "guarded", "change", f"{done}{saved}")

    def _save(self, path: str, entry: Entry | None) -> str | None:
        """Where a copy of what the command left lies now; None for nothing, and where there is none."""
        if self._folder is None or entry is None or stat.S_ISDIR(entry.mode):
            return None
        self._saved += 1
        target = os.path.join(self._folder, "changed", f"{os.getpid()}-{self._saved}", os.path.basename(path))
        try:
            os.makedirs(os.path.dirname(target), mode=0o700)
            shutil.copy2(path, target, follow_symlinks=False)
            if not stat.S_ISLNK(entry.mode):
                os.chmod(target, 0o600)
        except OSError:
            return None
        return target

    def _put_back(self, path: str, before: Entry | None, after: Entry | None) -> bool:
        """Whether it is again as it was before."""
        parent = os.path.dirname(path)
        if os.path.realpath(parent) != parent or self._now(path) != after:
            return False
        try:
            if after is not None and (before is None or stat.S_IFMT(before.mode) != stat.S_IFMT(after.mode)):
                os.rmdir(path) if stat.S_ISDIR(after.mode) else os.unlink(path)
            if before is not None:
                return self._restore(path, before)
        except OSError:
            return False
        return True

    def _restore(self, path: str, entry: Entry) -> bool:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if stat.S_ISDIR(entry.mode):
            os.makedirs(path, exist_ok=True)
            os.chmod(path, stat.S_IMODE(entry.mode))
        elif stat.S_ISLNK(entry.mode):
            with suppress(FileNotFoundError):
                os.unlink(path)
            os.symlink(entry.content or "", path)
        elif entry.content in self._contents:
            other = f"{path}.agent-host"
            with open(other, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(self._contents[entry.content])
            os.chmod(other, stat.S_IMODE(entry.mode))
            os.replace(other, path)
        else:
            return False
        return True

    def _now(self, path: str) -> Entry | None:
        try:
            return self._entry(path, os.lstat(path))
        except OSError:
            return None

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
        elif stat.S_ISREG(found.st_mode) and found.st_size <= MAX_FILE_BYTES:
            with open(path, "rb", opener=_without_links) as file:
                data = file.read(MAX_FILE_BYTES + 1)
            content = hashlib.sha256(data).hexdigest()
            self._contents[content] = data
        self._known[path] = entry = Entry(*plain, content)
        return entry


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _walk(place: str, found: Look, entry_of: Any) -> None:
    """The entries of one place, a folder's before what is in it."""
    if len(found) >= MAX_ENTRIES:
        return
    try:
        status = os.lstat(place)
        found[place] = entry_of(place, status)
        names = sorted(os.listdir(place)) if stat.S_ISDIR(status.st_mode) else []
    except OSError:  # it is not there, or goes just now
        return
    for name in names:
        _walk(os.path.join(place, name), found, entry_of)


def changes(before: Look, after: Look) -> list[str]:
    """The paths that are not as they were: what is new first, and the inmost of it, so that each can be undone."""
    new = sorted(after.keys() - before.keys(), reverse=True)
    old = [path for path, entry in sorted(before.items()) if path not in after or not entry.same_as(after[path])]
    return [*new, *old]


def _write_once(path: str, data: bytes, *, again: bool = False) -> None:
    """A file with this content, whole or not at all."""
    if not again and os.path.exists(path):
        return
    other = f"{path}.new"
    with open(other, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)
    os.replace(other, path)
