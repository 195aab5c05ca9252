"""Survey and removal of the sessions in a state directory (SK 6/7, AH 9.6).

A session is removed in this order, with its lock held, so that a crash in between leaves an intact session, one that
has ended, or remains that the next `SessionPruner.clear` removes regardless of the limits:

    0. write a stub of its result, if its id was chosen or may have been (`state.keys`); remove the previous
       pair of files
    1. rename the snapshot to `{id}.json.being-pruned`: from here on its journal must be removed too
    2. remove the journal, then the renamed snapshot: from here on the session has ended
    3. remove quarantined and temporary files
    4. rename `sessions/{id}` to `{id}.being-pruned`, which is not a session id, and remove it
    5. remove its temporary directory, which nobody needs
    6. remove the lock file

All operations are relative to descriptors of the two folders and follow no symbolic link; on a platform without that
(Windows), links are checked for just before. A link in place of a session's folder is removed, and its target stays.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

from state import (
    PREVIOUS,
    Damaged,
    NoSuchSession,
    SessionLocked,
    SessionPaths,
    TooLarge,
    UnknownVersion,
    Untrusted,
    WriteFailed,
    check_session_id,
    is_session_id,
    temporary,
)
from state.disk import LOCAL_DISK, SessionLock, holder
from state.file_store import FileCheckpointStore
from state.keys import leave_stub
from state.snapshot import SNAPSHOT_LIMIT_BYTES
from state.temporary import BY_DESCRIPTOR, Folder, is_directory, is_link

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

_SUFFIX = ".being-pruned"
_SNAPSHOT, _JOURNAL, _BLOBS, _LOCK = "json", "journal", "blobs", "lock"
_MARKER = _SNAPSHOT + _SUFFIX
_CHECKPOINT = frozenset({_SNAPSHOT, _JOURNAL, _BLOBS})
_NOTHING: frozenset[str] = frozenset()
_BEFORE = frozenset({_SNAPSHOT + PREVIOUS, _JOURNAL + PREVIOUS})  # useful only together with the newest pair
_QUARANTINED = re.compile(r"(?:json|journal|blobs)(?:\.previous)?\.corrupt-[0-9]+")
_PASSING = re.compile(
    r"(?:json|journal|blobs)(?:\.previous)?\.tmp|(?:json|journal)\.previous|lock|" + re.escape(_MARKER)
)

# A session makes its folder before it takes its lock, so a younger folder without a result may be a session that is
# starting.
_STARTING_S = 60.0
_NOT_OURS = (UnknownVersion, TooLarge, Untrusted, WriteFailed)
_ENDS = ("session_completed", "session_cancelled")
_MAX_RESULT_BYTES = 64 * 1024 * 1024


class SessionPruner(contextlib.AbstractContextManager["SessionPruner"]):
    """Surveys and removes the sessions in one state directory. `now` is in seconds since the epoch; a snapshot over
    `snapshot_limit_bytes` is not read.

    A context manager that keeps `sessions/` and `checkpoints/` open, so that replacing them by a link later has no
    effect. A missing folder counts as empty. Opening raises OSError if one is a link or cannot be read.
    """

    def __init__(self, state_dir: str, *, now: float, snapshot_limit_bytes: int = SNAPSHOT_LIMIT_BYTES) -> None:
        self._state_dir = state_dir
        self._now = now
        self._store = FileCheckpointStore(state_dir, snapshot_limit_bytes=snapshot_limit_bytes)
        with contextlib.ExitStack() as opened:
            root = opened.enter_context(Folder(state_dir))
            self._sessions = opened.enter_context(Folder(os.path.join(state_dir, "sessions"), root))
            self._checkpoints = opened.enter_context(Folder(os.path.join(state_dir, "checkpoints"), root))
            self._opened = opened.pop_all()

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def survey(self) -> list[Stored]:
        """Return every session, sorted by id. Changes nothing. Raises OSError if a folder cannot be listed."""
        parts = self._all_parts()
        ids = sorted(parts.keys() | set(filter(is_session_id, self._sessions.names())))
        return [row for one in ids if (row := self._look(one, parts.get(one, _NOTHING))) is not None]

    def look(self, session_id: str) -> Stored | None:
        """Return one session, None if there is none with this id. Raises OSError, InvalidSessionId."""
        return self._look(check_session_id(session_id), self._parts(session_id))

    def remains(self) -> dict[str, int]:
        """Return the leftovers of interrupted removals and interrupted ends: bytes by session id. Changes nothing.
        Raises OSError if a folder cannot be listed."""
        parts = self._all_parts()
        marked = (name.removesuffix(_SUFFIX) for name in self._sessions.names() if name.endswith(_SUFFIX))
        folders = set(filter(is_session_id, marked))
        found: dict[str, int] = {}
        for session_id in sorted(parts.keys() | folders):
            leftovers = self._leftovers(session_id, parts.get(session_id, _NOTHING))
            if leftovers or session_id in folders:
                found[session_id] = self._size(session_id, leftovers) + self._sessions.size(session_id + _SUFFIX)
        return found

    def clear(self, session_id: str) -> bool:
        """Remove the leftovers that `remains` listed; return False if a live process holds the session. Raises OSError,
        WriteFailed."""
        with self._lock(session_id) as has_lock:
            if has_lock:
                leftovers = self._leftovers(session_id, self._parts(session_id), has_lock=True)
                for part in sorted(leftovers - {_LOCK}):  # the marker is removed after the files that it condemns
                    self._checkpoints.remove(f"{session_id}.{part}")
                self._sessions.remove(session_id + _SUFFIX)
        return has_lock

    def remove(self, row: Stored) -> bool:
        """Remove a session with all its files; return False if it is held, or has changed since `row` was made. Raises
        OSError, or WriteFailed if its lock cannot be taken; the next run then removes the rest."""
        session_id = row.session_id
        with self._lock(session_id) as has_lock:
            if not has_lock or self._look(session_id, self._parts(session_id), has_lock=True) != row:
                return False
            options = self._read_options(session_id)
            recorded = None if options is None else options.get("temporary")
            own = temporary.session_directory(self._state_dir, session_id, os.environ, recorded)
            leave_stub(self._state_dir, session_id, options, damaged=row.standing is Standing.DAMAGED)
            self._remove_checkpoint(session_id)
            if self._folder(session_id) is not None:
                self._sessions.remove(session_id + _SUFFIX)
                self._sessions.rename(session_id, session_id + _SUFFIX)
                self._sessions.remove(session_id + _SUFFIX)
            temporary.remove(own)
        return True

    def _read_options(self, session_id: str) -> dict[str, Any] | None:
        try:
            return self._store.load(session_id).identity.options
        except (NoSuchSession, Damaged, *_NOT_OURS):
            return None

    def _remove_checkpoint(self, session_id: str) -> None:
        parts = self._parts(session_id)
        for part in sorted(_BEFORE & parts):
            self._checkpoints.remove(f"{session_id}.{part}")
        if _SNAPSHOT in parts:
            self._checkpoints.remove(f"{session_id}.{_MARKER}")
            self._checkpoints.rename(f"{session_id}.{_SNAPSHOT}", f"{session_id}.{_MARKER}")
        for part in (_JOURNAL, _BLOBS, _MARKER, *sorted(parts - _CHECKPOINT - _BEFORE - {_MARKER, _LOCK})):
            self._checkpoints.remove(f"{session_id}.{part}")

    def _leftovers(self, session_id: str, parts: AbstractSet[str], *, has_lock: bool = False) -> AbstractSet[str]:
        """Return the files in `checkpoints/` that are removed regardless of the limits."""
        is_session = (
            self._folder(session_id) is not None or self._look(session_id, parts, has_lock=has_lock) is not None
        )
        return _parts_to_remove(parts) if is_session else parts

    def _look(self, session_id: str, parts: AbstractSet[str], *, has_lock: bool = False) -> Stored | None:
        """Examine one session; None if its files are not a session. `has_lock`: this process holds the lock, so it is
        not checked."""
        paths = SessionPaths(self._state_dir, session_id)
        folder = self._folder(session_id)
        if not has_lock and _LOCK in parts and holder(paths.lock) is not None:
            standing: Standing | None = Standing.HELD
        else:
            standing = _standing(self._store, session_id, parts, has_folder=folder is not None)
        if standing is None:
            return None
        real = folder is not None and is_directory(folder)
        last_used = self._last_used(paths, parts, standing, real=real)
        if last_used is None:
            last_used = self._now if folder is None else folder.st_mtime
        is_recent = real and self._now - last_used < _STARTING_S
        if standing is Standing.ENDED and is_recent and not (os.path.lexists(paths.result) or _has_end(paths.events)):
            standing = Standing.HELD  # it may be starting
        size = self._size(session_id, parts) + (self._sessions.size(session_id) if real else 0)
        return Stored(session_id, last_used, size, standing)

    def _folder(self, session_id: str) -> os.stat_result | None:
        """Return the status of the session's folder, or of the link in its place; a file there is not ours."""
        found = self._sessions.stat(session_id)
        return found if found is not None and (is_directory(found) or is_link(found)) else None

    def _last_used(
        self, paths: SessionPaths, parts: AbstractSet[str], standing: Standing, *, real: bool
    ) -> float | None:
        """Return the time of the last use in seconds since the epoch: the end according to the result, else the newest
        change of a relevant file."""
        if standing is Standing.ENDED and real and (ended := _end_time(paths.result)) is not None:
            return ended
        found = [self._checkpoints.stat(f"{paths.session_id}.{part}") for part in parts if not _PASSING.fullmatch(part)]
        times = [entry.st_mtime for entry in found if entry is not None]
        if not times and real:
            times = [at for path in (paths.result, paths.events) if (at := _change_time(path)) is not None]
        return max(times, default=None)

    def _size(self, session_id: str, parts: Iterable[str]) -> int:
        return sum(self._checkpoints.size(f"{session_id}.{part}") for part in parts if part != _LOCK)

    def _all_parts(self) -> dict[str, set[str]]:
        """Return all entries of `checkpoints/`: by session id, the parts after the id's dot. An id contains no dot."""
        found: dict[str, set[str]] = {}
        for name in self._checkpoints.names():
            session_id, dot, part = name.partition(".")
            if dot and is_session_id(session_id):
                found.setdefault(session_id, set()).add(part)
        return found

    def _parts(self, session_id: str) -> AbstractSet[str]:
        return self._all_parts().get(session_id, _NOTHING)

    @contextlib.contextmanager
    def _lock(self, session_id: str) -> Iterator[bool]:
        """Take the session's lock; yield False if a live process has it. Raises OSError, WriteFailed."""
        path = SessionPaths(self._state_dir, session_id).lock
        self._checkpoints.make()
        replaced = OSError(errno.ELOOP, "it was replaced in the meantime", self._checkpoints.path)
        if not self._checkpoints.is_current():  # because the lock is opened by its path, and written to
            raise replaced
        lock = None
        with contextlib.suppress(SessionLocked):
            lock = SessionLock.acquire(path, session_id)
        if lock is None:
            yield False
            return
        ours = self._checkpoints.is_named(path, f"{session_id}.{_LOCK}")
        try:
            if not ours:
                raise replaced
            yield True
        finally:
            self._release(lock, session_id, ours=ours)

    def _release(self, lock: SessionLock, session_id: str, *, ours: bool) -> None:
        """Release the lock; the file is removed too if nothing remains that it could protect."""
        alone = False
        try:
            alone = ours and self._parts(session_id) <= {_LOCK}
            if alone and BY_DESCRIPTOR:
                self._checkpoints.remove(f"{session_id}.{_LOCK}")
        finally:
            lock.release(remove=alone and not BY_DESCRIPTOR)


def _standing(
    store: FileCheckpointStore, session_id: str, parts: AbstractSet[str], *, has_folder: bool
) -> Standing | None:
    """Return the standing of a session that no process holds; None if its files are not a session."""
    parts = parts - _parts_to_remove(parts)
    if any(
        part not in _CHECKPOINT and not (_PASSING.fullmatch(part) or _QUARANTINED.fullmatch(part)) for part in parts
    ):
        return Standing.FOREIGN
    if parts & _CHECKPOINT:
        try:
            state = store.load(session_id)
        except NoSuchSession:  # a journal that never started, or whose last record is the session's end
            pass
        except Damaged:
            return Standing.DAMAGED
        except _NOT_OURS:
            return Standing.FOREIGN  # newer, too large, not ours to read, or of another shape: not damage
        else:
            return Standing.ENDED if state.awaits_approval else Standing.RESUMABLE
    if any(_QUARANTINED.fullmatch(part) for part in parts):
        return Standing.DAMAGED
    return Standing.ENDED if has_folder else None


def _parts_to_remove(parts: AbstractSet[str]) -> AbstractSet[str]:
    """Return the parts that an interrupted removal was removing. If there is a snapshot besides the marker, it belongs
    to a later session with the same id."""
    if _MARKER not in parts:
        return _NOTHING
    return {_MARKER} if _SNAPSHOT in parts else {_MARKER} | ({_JOURNAL, _BLOBS} & parts)


def _end_time(path: str) -> float | None:
    """Return the end of the session according to its result, in seconds since the epoch."""
    try:
        if os.stat(path, follow_symlinks=False).st_size > _MAX_RESULT_BYTES:
            return None
        # Raises for anything but a regular file.
        moment = datetime.fromisoformat(orjson.loads(LOCAL_DISK.read(path))["endedAt"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _has_end(path: str) -> bool:
    """True if the last event of a run log is the end of its session, which may have had no task and no result."""
    try:
        if os.stat(path, follow_symlinks=False).st_size > _MAX_RESULT_BYTES:
            return False
        last = LOCAL_DISK.read(path).rstrip(b"\n").rpartition(b"\n")[2]
        return orjson.loads(last)["eventType"] in _ENDS
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _change_time(path: str) -> float | None:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime
    except OSError:
        return None


# The choice of sessions to prune, by age, count and size (SK 6/7, AH 9.6). Pure.


class Standing(StrEnum):
    """The state of a session with regard to pruning."""

    ENDED = "ended"
    RESUMABLE = "resumable"
    DAMAGED = "damaged"  # an unreadable checkpoint, or only quarantined ones
    HELD = "held"  # by a live process, or about to be
    FOREIGN = "foreign"  # of a newer program, or unrecognizable: never removed


class Reason(StrEnum):
    """The limit that a session exceeds; the first one in this order."""

    AGE = "age"
    COUNT = "count"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Stored:
    """One session on disk. `last_used` is in seconds since the epoch; `size_bytes` includes all its files except the
    lock."""

    session_id: str
    last_used: float
    size_bytes: int
    standing: Standing


@dataclass(frozen=True, slots=True)
class PruneLimits:
    """Limits on the sessions to keep: those used within `max_age_s`, the newest `max_sessions`, the newest with at most
    `max_bytes` together. None: no such limit."""

    max_age_s: float | None = None
    max_sessions: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SessionToPrune:
    """A session to remove, and the reason."""

    stored: Stored
    reason: Reason


def choose(rows: Iterable[Stored], limits: PruneLimits, *, now: float, resumable: bool = False) -> list[SessionToPrune]:
    """Return the sessions to remove, oldest first (SK 6/7).

    Only ended sessions count, with `resumable` also resumable and damaged ones; held and foreign sessions are never
    removed and do not count. A session exactly at a limit stays. Once one is over the count or the size, every older
    one is too. `now` is in seconds since the epoch.
    """
    standings = {Standing.ENDED} | ({Standing.RESUMABLE, Standing.DAMAGED} if resumable else set())
    pool = [row for row in rows if row.standing in standings]
    pool.sort(key=lambda row: (row.last_used, row.session_id), reverse=True)
    chosen: list[SessionToPrune] = []
    total = 0
    for newer, row in enumerate(pool):
        total += row.size_bytes
        if limits.max_age_s is not None and now - row.last_used > limits.max_age_s:
            chosen.append(SessionToPrune(row, Reason.AGE))
        elif limits.max_sessions is not None and newer >= limits.max_sessions:
            chosen.append(SessionToPrune(row, Reason.COUNT))
        elif limits.max_bytes is not None and total > limits.max_bytes:
            chosen.append(SessionToPrune(row, Reason.SIZE))
    return chosen[::-1]
