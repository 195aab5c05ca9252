"""Places that commands may read and not write, inside of what they may write, where the level cannot refuse it: looked
at before and after each command. What a command may not leave is saved aside, reported and put back.

Some of these places only policy can judge by what is in them: git directories (`workspace_places`). All are compared
with what was there when no other command could write: so what one command leaves running gains nothing while another
one runs. What a command begins with is on disk before it starts, so that a resume after a crash can tell as well.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from agent_host.contracts import Denial
from policy.rules.git_directory import Left
from policy.scope import CommandScope
from tool_runtime.core.workspace_places import WorkspacePlaces, head_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from policy.rules.git_directory import Kind

MAX_ENTRIES: Final = 2000
"""Of one place."""
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
_MAX_ROUNDS: Final = 50
_UNWATCHED: Final = "{} of its directories are not watched; a git repository that a command makes there is not judged"
_NEW: Final = "it is new and was left there; it starts programs when the folder that it is in is opened"


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
    nothing put back. `workspace`: places in it that start programs are found and looked at. Safe from any thread."""

    def __init__(self, directory: str | None, workspace: str | None = None) -> None:
        self._folder = directory
        self._found = None if workspace is None else WorkspacePlaces(workspace)
        self._workspace = workspace
        self._contents: dict[str, bytes] = {}
        self._known: dict[str, Entry] = {}
        self._base: dict[str, Look] = {}
        self._trusted: set[tuple[str, int, str | None]] = set()
        self._as_repositories: set[str] = set()
        self._recorded: tuple[Sequence[str], Look] | None = None
        self._lock = threading.RLock()

    def look(self, places: Iterable[str]) -> Look:
        """What the places hold now. A file that has not changed since the last look is not read again."""
        found: Look = {}
        for place in places:
            _walk(place, found, self._entry)
        return found

    def find(self, scope: CommandScope) -> None:
        """Find what starts programs in the workspace: a walk with the first command, which may take a moment."""
        with self._lock:
            if self._found is not None:
                self._found.refresh(scope)

    def begin(self, mark: str, places: Sequence[str], scope: CommandScope | None = None, *, quiet: bool = True) -> Look:
        """A look before a command, on record under its `mark` until `end`. `quiet`: no other command can have written
        since the last look, so what is there now is the user's. Raises OSError."""
        with self._lock:
            looks = self._looks(places, scope)
            for place, found in looks.items():
                if quiet or place not in self._base:
                    is_made = not quiet and self._found is not None and place in self._found.repositories
                    self._base[place] = {} if is_made else found
            if quiet and self._found is not None:
                self._trust(self._found)
            before = _merged(self._base[place] for place in looks)
            self._record(mark, places, before, scope)
            return before

    def at_top(self, scope: CommandScope) -> tuple[str, ...]:
        """Return the places directly in the workspace that are guarded by a name with a star."""
        return () if self._found is None or not scope.nested else tuple(self._found.at_top)

    def end(
        self, mark: str, places: Sequence[str], before: Look, scope: CommandScope | None = None, *, alone: bool
    ) -> list[Denial]:
        """What the command with this mark may not leave, put back where `alone`: nothing but commands was at work."""
        denials = self.check(places, before, scope, alone=alone)
        if self._folder is not None:
            with suppress(OSError):
                os.unlink(os.path.join(self._folder, f"{mark}.json"))
        return denials

    def check(
        self, places: Sequence[str], before: Look, scope: CommandScope | None = None, *, alone: bool = True
    ) -> list[Denial]:
        """The same while the command, or what it left running, is not over."""
        with self._lock:
            denials: dict[str, Denial] = {}
            for _ in range(_MAX_ROUNDS):
                looks = self._looks(places, scope)
                put_back = self._compare(looks, before, scope, denials, alone=alone)
                if not put_back or all(len(look) < MAX_ENTRIES for look in looks.values()):
                    break
            return list(denials.values())

    def close(self) -> None:
        """Let go of what tells of new names."""
        with self._lock:
            if self._found is not None:
                self._found.close()

    def _looks(self, places: Sequence[str], scope: CommandScope | None) -> dict[str, Look]:
        """What each place holds now; a file that has not changed since the last look is not read again."""
        if scope is None or self._found is None:
            return {place: self.look([place]) for place in places}
        found = self._found
        found.refresh(scope)
        apart = frozenset(places)
        named = [*places, *found.at_top, *found.nested] if scope.nested else places
        looks = {place: self.look([place]) for place in dict.fromkeys(named)}
        for of in found.judged(scope):
            look: Look = {}
            for path, is_deep in found.entries(of, apart):
                _walk(path, look, self._entry, is_deep=is_deep)
            looks[of.path] = look
        for path in [one for one in found.git_files if one not in apart]:
            looks[path] = self.look([path])
        return looks

    def _compare(
        self,
        looks: dict[str, Look],
        before: Look,
        scope: CommandScope | None,
        denials: dict[str, Denial],
        *,
        alone: bool,
    ) -> bool:
        """Judge what differs, and put back what may not stay; true if something was put back."""
        put_back = False
        for place, after in looks.items():
            is_named = self._found is not None and place in self._found.nested
            base = self._base.get(place)
            if base == after:
                continue
            if base is None:
                base = {path: entry for path, entry in before.items() if _lies_in(path, place)}
                if is_named and not base and after:
                    denials[place] = Denial("path", place, "guarded", "change", _NEW)
                    base = after
            is_gone = is_named and not after and not os.path.lexists(os.path.dirname(place))
            left = dict(after)
            found = (
                {}
                if is_gone
                else {path: self._problem(path, place, base, after, scope) for path in changes(base, after)}
            )
            refused = {path: why for path, why in found.items() if why is not None}
            if refused and not base and self._is_by_shape(place):
                refused = self._unmake(place, after, refused)
            may_undo = alone or (self._found is not None and place in self._found.repositories)
            for path, why in refused.items():
                denial, undone = self._changed(path, base.get(path), after.get(path), why, alone=may_undo)
                denials[path] = denial
                put_back = put_back or undone
                left.pop(path, None)  # what could not be put back is tried again after the next command
                if path in base:
                    left[path] = base[path]
            self._base[place] = left
        known = () if self._found is None else self._found.repositories
        for root, count in {} if self._found is None else self._found.unwatched().items():
            denials[root] = Denial("path", root, "guarded", "change", _UNWATCHED.format(count))
        self._as_repositories.update(one for one in looks if one in known)
        for place in [one for one in self._base if one not in looks]:
            if not os.path.lexists(place) or (place in self._as_repositories and place not in known):
                del self._base[place]
        return put_back

    def _is_by_shape(self, place: str) -> bool:
        return self._found is not None and place in self._found.repositories and os.path.basename(place) != ".git"

    def _unmake(self, place: str, after: Look, refused: dict[str, str]) -> dict[str, str]:
        """What to take away of a directory that has become a git directory: `HEAD` alone, since what else is in it may
        have been there before, and be a project's `hooks` or `config`."""
        head = head_of(place, os.listdir(place))
        with suppress(OSError):
            after[head] = self._entry(head, os.lstat(head))
        path, why = next(iter(refused.items()))
        return {head: f"it makes a git directory of {place}, in which {os.path.relpath(path, place)} is: {why}"}

    def _problem(self, path: str, place: str, base: Look, after: Look, scope: CommandScope | None) -> str | None:
        """Why a change may not stay, empty where the place is not a command's at all; None where it may."""
        found = self._found
        if found is None or scope is None or not (place in found.repositories or place in found.git_files):
            return ""
        if place in found.repositories and not base:
            found.made.add(place)
        left = after.get(path)
        if left is not None and (path[len(place) :], left.mode, left.content) in self._trusted:
            return None
        return found.problem(path, self._left(left), self._left(base.get(path)), base, scope)

    def _left(self, entry: Entry | None) -> Left | None:
        if entry is None:
            return None
        kind: Kind = "file" if stat.S_ISREG(entry.mode) else "directory" if stat.S_ISDIR(entry.mode) else "other"
        return Left(kind, self._content(entry.content))

    def _content(self, name: str | None) -> bytes | None:
        if name is None or name in self._contents or self._folder is None:
            return self._contents.get(name or "")
        try:
            with open(os.path.join(self._folder, "contents", name), "rb") as file:
                return file.read()
        except OSError:
            return None

    def _trust(self, found: WorkspacePlaces) -> None:
        """Remember what the user's repositories have, so that they can be copied and moved with their hooks."""
        found.trust()
        for place in found.repositories:
            for path, entry in self._base.get(place, {}).items():
                if stat.S_ISREG(entry.mode) and os.path.basename(path) not in ("commondir", "gitdir"):
                    self._trusted.add((path[len(place) :], entry.mode, entry.content))

    def _record(self, mark: str, places: Sequence[str], before: Look, scope: CommandScope | None) -> None:
        if self._folder is None or not (places or before):
            return
        path, last = (os.path.join(self._folder, name) for name in (f"{mark}.json", "last.json"))
        if self._recorded != (places, before):
            self._write_record(last, places, before, scope)
            self._recorded = places, before
        with suppress(FileNotFoundError):
            os.unlink(path)
        try:
            os.link(last, path)  # most commands find what the one before has left
        except OSError:  # the file system has no hard links
            self._write_record(path, places, before, scope)

    def _write_record(self, path: str, places: Sequence[str], before: Look, scope: CommandScope | None) -> None:
        contents = os.path.join(os.path.dirname(path), "contents")
        os.makedirs(contents, mode=0o700, exist_ok=True)
        for name in self._contents.keys() & {entry.content for entry in before.values()}:
            _write_once(os.path.join(contents, name), self._contents[name])
        record: dict[str, Any] = {
            "places": list(places),
            "look": {name: list(entry) for name, entry in before.items()},
        }
        if self._found is not None and scope is not None:
            record["repositories"] = [[one.path, one.is_strict] for one in self._found.judged(scope)]
            record["scope"] = [list(scope.writes), list(scope.given)]
            record["workspace"] = self._workspace
        _write_once(path, orjson.dumps(record), again=True)

    def after_crash(self, mark: str) -> list[Denial]:
        """What changed since the command with this mark began, whose host was killed. Only what starts programs in a
        git directory is put back: much may have happened since. Empty where no such command is on record."""
        if self._folder is None:
            return []
        path = os.path.join(self._folder, f"{mark}.json")
        try:
            with open(path, "rb") as file:
                record: Mapping[str, Any] = orjson.loads(file.read())
            before = {name: Entry(*fields) for name, fields in record["look"].items()}
            scope = None
            if "scope" in record:
                self._found = WorkspacePlaces.known(record["workspace"], record["repositories"])
                scope = CommandScope(writes=tuple(record["scope"][0]), given=tuple(record["scope"][1]))
        except (OSError, ValueError, KeyError, TypeError):  # cut off, or there was none
            return []
        return self.end(mark, record["places"], before, scope, alone=False)

    def _changed(
        self, path: str, before: Entry | None, after: Entry | None, why: str, *, alone: bool
    ) -> tuple[Denial, bool]:
        kept = self._save(path, after)
        is_safe = after is None or kept is not None or stat.S_ISDIR(after.mode)
        can_undo = alone and self._folder is not None and is_safe
        undone = can_undo and self._put_back(path, before, after)
        done = "it was put back" if undone else "it is as the command left it"
        because = f", since {why}" if why else ""
        saved = "" if kept is None else f"; what the command left is in {kept}"
        return Denial("path", path, "guarded", "change", f"{done}{because}{saved}"), undone

    def _save(self, path: str, entry: Entry | None) -> str | None:
        """Where a copy of what the command left lies now; None for nothing, and where there is none."""
        if self._folder is None or entry is None or stat.S_ISDIR(entry.mode):
            return None
        target = os.path.join(self._folder, "changed", os.urandom(8).hex(), os.path.basename(path))
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
        elif (content := self._content(entry.content)) is not None:
            other = f"{path}.agent-host"
            with open(other, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(content)
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


def _walk(place: str, found: Look, entry_of: Any, *, is_deep: bool = True) -> None:
    """The entries of one place, a folder's before what is in it where `is_deep`."""
    if len(found) >= MAX_ENTRIES:
        return
    try:
        status = os.lstat(place)
        found[place] = entry_of(place, status)
        names = sorted(os.listdir(place)) if is_deep and stat.S_ISDIR(status.st_mode) else []
    except OSError:  # it is not there, or goes just now
        return
    for name in names:
        _walk(f"{place}/{name}", found, entry_of)


def _merged(looks: Iterable[Look]) -> Look:
    return {path: entry for look in looks for path, entry in look.items()}


def _lies_in(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


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
