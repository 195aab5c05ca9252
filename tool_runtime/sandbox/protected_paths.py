"""Protect guarded places: read-only paths inside of writable ones, where the sandbox level cannot deny writes. They are
compared before and after each command. A forbidden change is saved as a copy, reported and undone.

For git directories (`workspace_places`), policy judges each change by the content. All places are compared with their
state when no other command could write, so a background process of one command gains nothing while another command
runs. The state before a command is written to disk before it starts, so that a resume after a crash can compare as
well.

Nothing is read or written through a link; paths are written step by step from the root (`tool_runtime.files.writer`).
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from agent_host.contracts import Denial
from agent_host.safe_open import open_regular
from policy import CommandScope
from policy.rules.protected_paths import LeftEntry
from tool_runtime.files.writer import NEW_DIRECTORY, PRIVATE_DIRECTORY, open_directory, open_parent
from tool_runtime.sandbox.workspace_places import Entry, Look, WorkspacePlaces, head_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from policy.rules.protected_paths import Kind
    from tool_runtime.files.writer import OpenDirectory

MAX_ENTRIES: Final = 2000
"""Maximum entries of one place."""
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
MAX_LOOK_BYTES: Final = 128 * 1024 * 1024
"""Maximum total of contents that one look reads; further files are treated as too large."""
MAX_REPORTED: Final = 200
"""Maximum changes per command that are reported and saved as copies."""
MAX_SAVED_BYTES: Final = 256 * 1024 * 1024
"""Maximum total size of the copies of changes by a session's commands."""
_MAX_LOOKS: Final = 200
_MAX_RECENT: Final = 1024
_RECENT_BYTES: Final = 16 * 1024
_CONTENTS: Final = "contents"
_LAST: Final = "last.json"
_AS_LEFT: Final = "it is as the command left it"
_PUT_BACK: Final = "it was put back"
_UNWATCHED: Final = "{} of its directories are not watched; a git repository that a command makes there is not judged"
_NEW: Final = "it is new and was left there; it starts programs when the folder that it is in is opened"
_FOLDER: Final = "/"
"""The `content` of a folder that is not itself a guarded place."""


class Watched(NamedTuple):
    """The guarded places of one command, their state before it, and the scope by which git directories are judged;
    without a scope the workspace is not searched and nothing is judged."""

    places: Sequence[str]
    before: Look
    scope: CommandScope | None = None


class _Check:
    """Findings of successive looks while changes are undone."""

    def __init__(self, watched: Watched, *, alone: bool) -> None:
        self.watched, self.alone = watched, alone
        self.reported: dict[str, Denial] = {}
        self.seen: dict[str, Entry | None] = {}
        self.refused: set[str] = set()
        self.is_changing = False


class Guarded:
    """Protection of the guarded places of one session. `directory` is private to this object; without one nothing is
    saved and nothing undone. In `workspace`, places that start programs are searched and checked as well. Safe from any
    thread."""

    def __init__(self, directory: str | None, workspace: str | None = None) -> None:
        self._folder = None if directory is None else os.path.realpath(directory)
        # Without a workspace nothing is searched.
        self._found = WorkspacePlaces.restore("/", ()) if workspace is None else WorkspacePlaces(workspace)
        self._workspace = workspace
        self._known: dict[str, Entry] = {}
        self._recent: dict[str, bytes] = {}
        self._kept: set[str] = set()
        self._base: dict[str, Look] = {}
        self._between: Look = {}
        self._trusted: set[tuple[str, int, str | None]] = set()
        self._as_repositories: set[str] = set()
        self._recorded: Watched | None = None
        self._saved = self._saved_bytes = 0
        self._room = 0
        self._in_part: set[str] = set()
        self._lock = threading.RLock()

    def find(self, scope: CommandScope) -> None:
        """Find places in the workspace that start programs. With the first command this walks the workspace, which may
        take a moment."""
        with self._lock:
            self._found.refresh(scope)

    def begin(
        self,
        mark: str,
        places: Sequence[str],
        scope: CommandScope | None = None,
        *,
        folders: Iterable[str] = (),
        quiet: bool = True,
    ) -> Watched:
        """Look at the places before a command, and record the result under its `mark` until `end`. `folders` are
        folders around the places that the command could replace. `quiet` means that no other command can have written
        since the last look. Raises OSError."""
        with self._lock:
            self._see_between(folders, quiet=quiet)
            looks = self._looks(places, scope, list(self._find_exchanged()))
            for place, found in looks.items():
                if quiet or place not in self._base:
                    is_made = not quiet and place in self._found.repositories
                    self._base[place] = {} if is_made else found
            if quiet:
                self._trust()
            before = {path: entry for place in looks for path, entry in self._base[place].items()}
            watched = Watched(places, before, scope)
            self._record(mark, watched)
            return watched

    def places_at_top(self, scope: CommandScope) -> tuple[str, ...]:
        """Return the places directly in the workspace that a guarded name with a star matches."""
        return tuple(self._found.at_top) if scope.nested else ()

    def end(self, mark: str, watched: Watched, *, alone: bool) -> list[Denial]:
        """Undo and return the forbidden changes of the command with this mark. Changes are undone only if `alone`,
        which means that only commands wrote since then; forbidden changes in git directories are always undone."""
        denials = self.check(watched, alone=alone)
        if self._folder is not None:
            with suppress(OSError), open_directory(self._folder) as folder:
                folder.remove(f"{mark}.json")
        return denials

    def check(self, watched: Watched, *, alone: bool = True) -> list[Denial]:
        """Do the same as `end` while the command, or a process that it left, still runs."""
        with self._lock:
            check = _Check(watched, alone=alone)
            last: dict[str, Look] | None = None
            for _ in range(_MAX_LOOKS):
                for folder, now in self._find_exchanged().items():  # restore folders that were replaced
                    self._report_change(folder, self._between[folder], now, "", check, can_undo=alone)
                looks = self._looks(watched.places, watched.scope, closed := list(self._find_exchanged()))
                if looks == last:  # nothing more can be undone
                    break
                last, check.refused, check.is_changing = looks, set(closed), False
                self._compare(looks, check)
                if not check.is_changing:
                    break
            if len(self._known) > 4 * MAX_ENTRIES + 2 * sum(map(len, looks.values())):
                self._known.clear()
            # Places that could not be seen for a while may be unchanged.
            reported = check.reported.items()
            return [one for path, one in reported if path in check.refused or not one.done.startswith(_AS_LEFT)]

    def close(self) -> None:
        """Release the watches of new names."""
        with self._lock:
            self._found.close()

    # Looking

    def _see_between(self, folders: Iterable[str], *, quiet: bool) -> None:
        if quiet:
            self._between = {}
        for folder in folders:
            with suppress(OSError):
                status = os.lstat(folder)
                if not stat.S_ISLNK(status.st_mode):
                    self._between.setdefault(folder, Entry(stat.S_IFDIR, 0, 0, 0, status.st_ino, _FOLDER))

    def _find_exchanged(self) -> Look:
        """Return folders around guarded places that were replaced by something else: only the outermost ones, which may
        be links to the others."""
        found: Look = {}
        for folder in sorted(self._between):
            if not folder.startswith(tuple(f"{one}/" for one in found)):
                with suppress(OSError):
                    status = os.lstat(folder)
                    if not stat.S_ISDIR(status.st_mode):
                        found[folder] = self._entry(folder, status)
        return found

    def _looks(self, places: Sequence[str], scope: CommandScope | None, closed: Sequence[str]) -> dict[str, Look]:
        """Look at each place, reading only new contents, and skipping everything below the replaced folders
        `closed`."""
        self._room, self._in_part = MAX_LOOK_BYTES, set()
        leads = tuple(f"{one}/" for one in closed)
        found = self._found
        if scope is None:
            return {place: self._look(place, leads) for place in places}
        found.refresh(scope)
        excluded = frozenset(places)
        named = [*places, *found.at_top, *found.nested] if scope.nested else places
        looks = {place: self._look(place, leads) for place in dict.fromkeys(named)}
        for of in found.directories_to_judge(scope):
            if not of.path.startswith(leads):
                look = looks[of.path] = {}
                parts = found.entries(of, excluded)
                complete = [_walk(path, look, self._entry, is_deep=is_deep) for path, is_deep in parts]
                if not all(complete):
                    self._in_part.add(of.path)
        for path in [one for one in found.git_files if one not in excluded]:
            looks[path] = self._look(path, leads)
        return looks

    def _look(self, place: str, leads: tuple[str, ...]) -> Look:
        look: Look = {}
        if not place.startswith(leads) and not _walk(place, look, self._entry):
            self._in_part.add(place)
        return look

    def _entry(self, path: str, found: os.stat_result) -> Entry:
        known = self._known.get(path)
        plain = (found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        if stat.S_ISDIR(found.st_mode):  # its times change with its entries, which are compared themselves
            return Entry(found.st_mode, 0, 0, 0, found.st_ino, "")
        if known is not None and known[:5] == plain:
            return known
        content: str | None = None
        if stat.S_ISLNK(found.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(found.st_mode) and found.st_size <= min(MAX_FILE_BYTES, self._room):
            with suppress(OSError):  # another user's file, or an unreadable one
                data = _content(path)
                self._room -= len(data)
                content = hashlib.sha256(data).hexdigest() if len(data) <= MAX_FILE_BYTES else None
                if content is not None and len(data) <= _RECENT_BYTES:
                    if len(self._recent) >= _MAX_RECENT:
                        self._recent.clear()
                    self._recent[content] = data
        self._known[path] = entry = Entry(*plain, content)
        return entry

    def _data(self, path: str, digest: str | None) -> bytes | None:
        """Return the content with this hash, which the file has or had; None if it is lost."""
        if digest is None or digest in self._recent:
            return self._recent.get(digest or "")
        kept = [] if self._folder is None else [os.path.join(self._folder, _CONTENTS, digest)]
        for one in (*kept, path):
            with suppress(OSError):
                data = _content(one)
                if hashlib.sha256(data).hexdigest() == digest:
                    return data
        return None

    # Judging

    def _compare(self, looks: dict[str, Look], check: _Check) -> None:
        """Judge the differences, and undo forbidden ones."""
        for place, after in looks.items():
            base = self._base.get(place)
            if base == after:
                continue
            if base is None:
                # The part of the earlier look, without places in it that are guarded separately.
                separate = [one for one in check.watched.places if one != place and _is_in(one, place)]
                mine = {path: entry for path, entry in check.watched.before.items() if _is_in(path, place)}
                base = {path: one for path, one in mine.items() if not any(_is_in(path, each) for each in separate)}
                if not base and after and place in self._found.nested:
                    check.reported[place] = Denial("path", place, "guarded", "change", _NEW)
                    base = after
            self._compare_place(place, base, after, check)
        known = self._found.repositories
        for root, count in self._found.count_watched_unwatched().items():
            check.reported[root] = Denial("path", root, "guarded", "change", _UNWATCHED.format(count))
        self._as_repositories.update(one for one in looks if one in known)
        for place in [one for one in self._base if one not in looks]:
            if not os.path.lexists(place) or (place in self._as_repositories and place not in known):
                del self._base[place]

    def _compare_place(self, place: str, base: Look, after: Look, check: _Check) -> None:
        is_repository = place in self._found.repositories
        is_judged = is_repository or place in self._found.git_files
        may_undo = self._folder is not None and (check.alone or is_repository)
        if may_undo and not is_judged and len(after) >= MAX_ENTRIES > len(base) and self._set_aside(place, base, check):
            self._base[place] = base
            return
        left = dict(after)
        if is_judged and place in self._in_part:  # entries that cannot be seen now are judged when they can
            left = {**{path: entry for path, entry in base.items() if path not in after}, **after}
        is_removed = place in self._found.nested and not after and not os.path.lexists(os.path.dirname(place))
        scope = check.watched.scope
        found = {path: self._problem(path, place, base, left, scope) for path in changes(base, left) if not is_removed}
        refused = {path: why for path, why in found.items() if why is not None}
        if refused and not base and is_repository and os.path.basename(place) != ".git":
            refused = self._unmake(place, after, refused)
        for path, why in refused.items():
            now = after.get(path)
            if now is not None or place not in self._in_part:
                check.seen.setdefault(path, now)
            # An entry that was not looked at before may have existed, and a later change is by another program.
            is_the_commands = check.seen.get(path, now) == now or (now is not None and stat.S_ISDIR(now.mode))
            can_undo = may_undo and is_the_commands and (path in base or len(base) < MAX_ENTRIES)
            self._report_change(path, base.get(path), now, why, check, can_undo=can_undo)
            left.pop(path, None)  # a change that could not be undone is tried again after the next command
            if path in base:
                left[path] = base[path]
        check.is_changing = check.is_changing or (may_undo and bool(refused))
        check.refused.update(refused)
        self._base[place] = left
        if self._folder is not None:
            with suppress(OSError):
                self._keep(self._folder, left)

    def _unmake(self, place: str, after: Look, refused: dict[str, str]) -> dict[str, str]:
        """Return the entry to remove from a directory that has become a git directory: only `HEAD`, because the other
        entries may have existed before, such as a project's `hooks` or `config`."""
        names: list[str] = []
        with suppress(OSError):  # a program that outlived its command may remove it
            names = os.listdir(place)
        head = head_of(place, names)
        with suppress(OSError):
            after[head] = self._entry(head, os.lstat(head))
        path, why = next(iter(refused.items()))
        return {head: f"it makes a git directory of {place}, in which {os.path.relpath(path, place)} is: {why}"}

    def _problem(self, path: str, place: str, base: Look, after: Look, scope: CommandScope | None) -> str | None:
        """Return the reason why a change is forbidden (empty if commands may not write the place at all); None if it is
        allowed."""
        found = self._found
        if scope is None or not (place in found.repositories or place in found.git_files):
            return ""
        if place in found.repositories and not base:
            found.made.add(place)
        left = after.get(path)
        if left is not None and (path[len(place) :], left.mode, left.content) in self._trusted:
            return None
        return found.problem(path, self._read_left(path, left), self._read_left(path, base.get(path)), base, scope)

    def _read_left(self, path: str, entry: Entry | None) -> LeftEntry | None:
        if entry is None:
            return None
        kind: Kind = "file" if stat.S_ISREG(entry.mode) else "directory" if stat.S_ISDIR(entry.mode) else "other"
        return LeftEntry(kind, self._data(path, entry.content) if kind == "file" else None)

    def _trust(self) -> None:
        """Remember the content of the user's repositories, so that commands can copy and move them with their hooks."""
        self._found.users.update(self._found.repositories)
        for place in self._found.repositories:
            for path, entry in self._base.get(place, {}).items():
                if stat.S_ISREG(entry.mode) and os.path.basename(path) not in ("commondir", "gitdir"):
                    self._trusted.add((path[len(place) :], entry.mode, entry.content))

    # Records

    def _record(self, mark: str, watched: Watched) -> None:
        if self._folder is None or not (watched.places or watched.before):
            return
        with open_directory(self._folder, create=PRIVATE_DIRECTORY) as folder:
            if self._recorded != watched:
                self._keep(self._folder, watched.before)
                self._write_record(folder, _LAST, watched)
                self._recorded = watched
            try:
                folder.link(_LAST, f"{mark}.json")  # mostly nothing changed since the previous command
            except OSError:  # no hard links here, or an earlier try of the command left one
                self._write_record(folder, f"{mark}.json", watched)

    def _write_record(self, folder: OpenDirectory, name: str, watched: Watched) -> None:
        scope = watched.scope
        record: dict[str, Any] = {
            "places": list(watched.places),
            "folders": {path: list(entry) for path, entry in self._between.items()},
            "look": {path: list(entry) for path, entry in watched.before.items()},
        }
        if self._workspace is not None and scope is not None:
            record["repositories"] = [[one.path, one.is_strict] for one in self._found.directories_to_judge(scope)]
            record["scope"] = [list(scope.writes), list(scope.given)]
            record["workspace"] = self._workspace
        folder.put(name, orjson.dumps(record), 0o600, durable=False)

    def _keep(self, folder: str, found: Look) -> None:
        """Write the contents of the files to disk, named by their hashes. Raises OSError."""
        files = {path: one.content for path, one in found.items() if stat.S_ISREG(one.mode) and one.content}
        new = {path: digest for path, digest in files.items() if digest not in self._kept}
        if not new:
            return
        with open_directory(os.path.join(folder, _CONTENTS), create=PRIVATE_DIRECTORY) as contents:
            for path, digest in new.items():
                data = self._data(path, digest)
                if data is not None and digest not in self._kept:  # None: it has changed since
                    contents.put(digest, data, 0o600, durable=False)
                    self._kept.add(digest)

    def check_after_crash(self, mark: str) -> list[Denial]:
        """Return the changes since the command with this mark started, after its host was killed. Only entries that
        start programs in a git directory are undone, because other programs may have written since. Empty if there is
        no record of the command."""
        if self._folder is None:
            return []
        path = os.path.join(self._folder, f"{mark}.json")
        try:
            with open(path, "rb") as file:
                record: Mapping[str, Any] = orjson.loads(file.read())
            before = {name: Entry(*fields) for name, fields in record["look"].items()}
            self._between = {name: Entry(*fields) for name, fields in record["folders"].items()}
            scope = None
            if "scope" in record:
                self._found = WorkspacePlaces.restore(record["workspace"], record["repositories"])
                scope = CommandScope(writes=tuple(record["scope"][0]), given=tuple(record["scope"][1]))
        except (OSError, ValueError, KeyError, TypeError):  # truncated, or there is none
            return []
        return self.end(mark, Watched(record["places"], before, scope), alone=False)

    # Undoing

    def _report_change(
        self, path: str, before: Entry | None, after: Entry | None, why: str, check: _Check, *, can_undo: bool
    ) -> None:
        known = check.reported.get(path)
        detail = "" if known is None else known.done.removeprefix(_AS_LEFT).removeprefix(_PUT_BACK)
        is_reported = known is not None or len(check.reported) < MAX_REPORTED
        because = f", since {why}" if why else ""
        detail = detail or because + (self._describe_copy(path, after) if is_reported else "")
        was_put_back = can_undo and self._put_back(path, before, after)
        if is_reported:
            done = _PUT_BACK if was_put_back else _AS_LEFT
            check.reported[path] = Denial("path", path, "guarded", "change", f"{done}{detail}")

    def _describe_copy(self, path: str, after: Entry | None) -> str:
        if self._folder is None or after is None or not (stat.S_ISREG(after.mode) or stat.S_ISLNK(after.mode)):
            return ""
        kept = self._save(path, after)
        if kept is None:
            return "; the command's version could not be kept"
        part = f"the first {MAX_FILE_BYTES} bytes of " if after.size > MAX_FILE_BYTES else ""
        return f"; {part}the command's version is in {kept}"

    def _save(self, path: str, entry: Entry) -> str | None:
        """Save a copy of a file, or the target of a link as a file, and return its path; None if that fails."""
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

    def _set_aside(self, place: str, base: Look, check: _Check) -> bool:
        """Move a place with too many entries for one look aside, to a folder outside of git directories, where it would
        be judged. True if it was moved."""
        above = os.path.dirname(place)
        while (of := self._found.repository_of(above)) is not None:
            above = os.path.dirname(of)
        left = f".agent-host-left-{os.urandom(8).hex()}"
        try:
            with open_parent(place) as (directory, name), open_directory(above) as target:
                if (found := directory.status(name)) is not None and stat.S_ISDIR(found.st_mode):
                    directory.set_permissions(name, 0o700 | found.st_mode)  # needed to move it to another folder
                directory.move(name, target, left)
        except OSError:
            return False
        done = f"{_PUT_BACK}; the command's version is in {os.path.join(above, left)}"
        check.reported[place] = Denial("path", place, "guarded", "change", done)
        check.is_changing = True
        if place in base:
            self._put_back(place, base[place], None)
        return True

    def _put_back(self, path: str, before: Entry | None, after: Entry | None) -> bool:
        """Undo a change; true if the entry is again as it was before."""
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
        except PermissionError:  # the folder is closed to its owner; open it for the next look
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
        else:
            data = None
            if stat.S_ISREG(entry.mode):
                data = self._data(os.path.join(directory.path, name), entry.content)
            if data is None:
                return False
            directory.put(name, data, stat.S_IMODE(entry.mode))
        return True


def _content(path: str) -> bytes:
    """Read up to MAX_FILE_BYTES + 1 bytes of a regular file, without following a link or waiting for a pipe."""
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def _remove(directory: OpenDirectory, name: str, entry: Entry) -> None:
    """Remove an entry that a command left. If a folder has unseen entries, open it for the next look. Raises
    OSError."""
    if not stat.S_ISDIR(entry.mode):
        directory.remove(name)
        return
    try:
        directory.remove_directory(name)
    except OSError:
        directory.set_permissions(name, 0o700)
        raise


def _take_back(moved: str, entry: Entry, directory: OpenDirectory, name: str) -> None:
    """Move a folder back to its name, if the link that replaced it leads to it."""
    with suppress(OSError), open_parent(moved) as (source, other):
        status = source.status(other)
        if status is not None and stat.S_ISDIR(status.st_mode) and status.st_ino == entry.inode:
            source.move(other, directory, name)


def _walk(place: str, found: Look, entry_of: Callable[[str, os.stat_result], Entry], *, is_deep: bool = True) -> bool:
    """Add the entries of one place to `found`, a folder before its entries (which only `is_deep` adds); true if it is
    complete."""
    if len(found) >= MAX_ENTRIES:
        return False
    try:
        status = os.lstat(place)
        found[place] = entry_of(place, status)
        names = sorted(os.listdir(place)) if is_deep and stat.S_ISDIR(status.st_mode) else []
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    complete = [_walk(f"{place}/{name}", found, entry_of) for name in names]
    return all(complete)


def _is_in(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def changes(before: Look, after: Look) -> list[str]:
    """Return the changed paths: new ones first, and inner ones before outer ones, so that each can be undone."""
    new = sorted(after.keys() - before.keys(), reverse=True)
    old = [path for path, entry in before.items() if path not in after or not entry.same_as(after[path])]
    return [*new, *sorted(old, reverse=True)]
