"""Archives of sessions, kept when the checkpoint is gone (AH 9.6): every journal that gave way to a next one, under the
number of its first record, and the snapshot that the first of them continues from.

    sessions/{id}/archive/000000000001.json      the snapshot
    sessions/{id}/archive/000000000001.journal   the records behind it
    sessions/{id}/archive/000000000412.journal   the records behind those; the first few may stand in both
    sessions/{id}/archive/full                   only where there was no room for what follows

A journal carries the messages whole. First versions of files, and what a file held when something else than a tool had
changed it, stand in a journal or in the folder of blobs, by SHA-256.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import orjson

from state.disk import make_durable_dir, write_new
from state.journal import parse
from state.store import KIND

if TYPE_CHECKING:
    from state.blobs import BlobFolder
    from state.disk import Disk
    from state.locations import SessionPaths

JOURNAL, SNAPSHOT = ".journal", ".json"
FULL = "full"
"""An empty file that says that what follows found no room."""


class Archive:
    """The archive of one session. Its bytes count as stored ones, beside the blobs. `problem` says in a line what could
    not be kept last; None while all is."""

    def __init__(self, disk: Disk, paths: SessionPaths, blobs: BlobFolder) -> None:
        self._disk = disk
        self._paths = paths
        self._blobs = blobs
        self._is_begun: bool | None = None
        self._is_full = False
        self.problem: str | None = None

    def add(self, first_seq: int, base: str) -> None:
        """Keep the journal that is about to go, `first_seq` its first record, by a second name for its file. With the
        first one goes the snapshot at `base`, which it builds on. Where there is no room for one nothing more is kept:
        an archive has no gaps but at its end. Not durable, and never an error: a session goes on without."""
        try:
            if self._is_begun is None:
                self._begin()
            if self._is_full:
                return
            wanted = [] if self._is_begun else [(base, f"{first_seq:012d}{SNAPSHOT}")]
            wanted.append((self._paths.journal, f"{first_seq:012d}{JOURNAL}"))
            sizes = [self._growth(path, name) for path, name in wanted]
            if not self._blobs.has_room(sum(sizes)):
                self._is_full = self._blobs.refused = True
                write_new(self._disk, os.path.join(self._paths.archive, FULL), [], durable=False)
                return
            for (path, name), size in zip(wanted, sizes, strict=True):
                self._put(path, name)
                self._blobs.set_aside(size)
            self._is_begun = True
        except OSError as error:
            self.problem = f"the session's records could not be archived: {error.strerror or error}"

    def seal(self) -> None:
        """Make what was added durable: nothing is added any more. Never an error, as for `add`."""
        try:
            if self._is_begun:
                self._disk.sync_directory(self._paths.archive)
        except OSError as error:
            self.problem = f"the session's records could not be archived: {error.strerror or error}"

    def clear(self) -> None:
        """Take away what is archived under this id, by an earlier session or under other settings. Raises OSError."""
        if self._disk.status(self._paths.archive) is not None:
            for name in self._disk.names(self._paths.archive):
                self._disk.remove(os.path.join(self._paths.archive, name))

    def _begin(self) -> None:
        make_durable_dir(self._disk, self._paths.archive, within=self._paths.records)
        names = self._disk.names(self._paths.archive)
        found = (self._disk.status(os.path.join(self._paths.archive, name)) for name in names)
        self._blobs.set_aside(sum(status.size for status in found if status is not None))
        self._is_begun = any(name.endswith(JOURNAL) for name in names)
        self._is_full = FULL in names

    def _growth(self, path: str, name: str) -> int:
        """By how many bytes the archive grows when the file at `path` is kept as `name`. It may be there already: put
        there for a compaction that failed, or by a process that died before the journal gave way."""
        status, former = self._disk.status(path), self._disk.status(os.path.join(self._paths.archive, name))
        return (0 if status is None else status.size) - (0 if former is None else former.size)

    def _put(self, path: str, name: str) -> None:
        if self._disk.status(path) is None:
            return
        target = os.path.join(self._paths.archive, name)
        self._disk.remove(target)
        try:
            self._disk.link(path, target)
        except OSError:  # a file system that knows no second names
            write_new(self._disk, target, [self._disk.read(path)], durable=False)


_COLOURED = b'"coloured":{"'


def read_coloured(disk: Disk, paths: SessionPaths) -> dict[str, dict[str, str]]:
    """Output of commands with its colours (`state.records.CallFinished`), by call and stream, from all journals of a
    session that is resumable or has ended. Raises OSError, UnknownVersion."""
    names = sorted(disk.names(paths.archive)) if disk.status(paths.archive) is not None else []
    kept = [os.path.join(paths.archive, name) for name in names if name.endswith(JOURNAL)]
    found: dict[str, dict[str, str]] = {}
    for path in (*kept, paths.previous_journal, paths.journal):
        data = disk.read(path) if disk.status(path) is not None else b""
        if _COLOURED not in data:  # most sessions have none, and a journal may be long
            continue
        for line in parse(data).records:
            fields = orjson.loads(line.fields) if _COLOURED in line.fields else {}
            if fields.get(KIND) == "call_finished":
                found[str(fields["callId"])] = fields["coloured"]
    return found
