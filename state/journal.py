"""The append-only journal: framing, checksums, torn tails (design section 6); and the archive of journals.

A record is one line of text, so that a journal can be read with a pager:

    J2 <seq> <synced> <length of fields> <length of message> <crc32> <fields>[ <message>]\\n

`J2` is the format version; `seq` increases by one per record, also across compactions; `synced` is the last record that
was durable when this one was written; lengths are in bytes. The checksum covers everything after the version, so that a
flipped bit anywhere is detected. Fields and message are JSON; the message is separate, in its original encoding, and is
read without being parsed. Format J1, which had no `synced` and the message among the fields, is still read but no
longer written.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from typing import TYPE_CHECKING, Any, Self

import orjson

from config.lean_typing import NamedTuple
from state import UnknownVersion, WriteFailed
from state.disk import TEMPORARY, link_or_copy, make_durable_dir, write_new
from state.records import fields_of, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state import SessionPaths
    from state.blobs import BlobFolder
    from state.disk import Disk
    from state.records import JournalRecord

# Fields that the store itself adds to records.
KIND, MESSAGE, BLOBS, SNAPSHOT, DURABLE = "kind", "message", "blobs", "snapshot", "durable"
# The kind of a journal's first record, which changes nothing; and its field for a session that had ended, whose earlier
# records are in its archive.
OPENED, REOPENED = "opened", "reopened"
_VERSION = b"J2"
_OLD_VERSION = b"J1"
# Compiled by the cache of `re` at the first use, because a new session reads no journal.
_FORMAT = rb"J\d+(?=[ \n])"
_MARK = orjson.dumps({KIND: OPENED})
_ANY_RECORD = rb"(?m:^J[12] )"  # a record contains no newline
_HEADER = rb"(?:J2 (\d{1,19}) (\d{1,19}) (\d{1,19}) (\d{1,19})|J1 (\d{1,19}) (\d{1,19})) ([0-9a-f]{8}) "
_PARTIAL_HEADER = rb"J?|J[12](?: (?:\d{1,19} ){0,4}(?:\d{0,19}|[0-9a-f]{0,8})?)?"


class JournalLine(NamedTuple):
    """One record: its sequence number, the last record that was durable when it was written, its fields as JSON, and
    the encoded message, None if it has none; `end` is the offset after it in the file. In format J1 a message is among
    the fields, and `synced` is the previous record."""

    seq: int
    synced: int
    fields: bytes
    message: bytes | None
    end: int


class JournalContent(NamedTuple):
    """The content of a journal file: intact records, the number of bytes up to the end of the last of them, and the
    state of the rest: nothing, a torn tail, or damage, with the intact records after it in `after_break`. `cut_off`:
    the torn part is the beginning of a record, as a crash of the process leaves it; otherwise it was complete once."""

    records: list[JournalLine]
    valid_bytes: int
    torn_bytes: int = 0
    damaged: bool = False
    after_break: tuple[JournalLine, ...] = ()
    cut_off: bool = False


def encode(record: JournalRecord, blobs: dict[str, str] | None = None) -> bytes:
    """Encode the kind and the fields of one record as JSON, with its blobs. Raises TypeError (orjson's error is a
    subclass) for values that are not JSON."""
    return orjson.dumps({KIND: kind_of(record), **fields_of(record), **({BLOBS: blobs} if blobs else {})})


def frame(seq: int, synced: int, fields: bytes, message: bytes | None = None) -> bytes:
    """Return one record as it is in the file."""
    payload = fields if message is None else b"%s %s" % (fields, message)
    counted = b"%d %d %d %d " % (seq, synced, len(fields), 0 if message is None else len(message))
    return b"%s %s%08x %s\n" % (_VERSION, counted, zlib.crc32(payload, zlib.crc32(counted)), payload)


def parse(data: bytes) -> JournalContent:
    """Parse the valid prefix of a journal and classify the rest. Raises UnknownVersion if the file has a newer
    format."""
    newer = re.compile(_FORMAT).match(data)
    if newer is not None and newer[0] not in (_VERSION, _OLD_VERSION):
        raise UnknownVersion(f"journal format {newer[0].decode()} is newer than this program")
    records: list[JournalLine] = []
    at = 0
    while at < len(data):
        found = _record_at(data, at)
        if found is None:
            if data[at:].isspace():  # as an editor leaves it; no record begins with white space
                break
            after_break = tuple(_intact_records_after(data, at))
            return JournalContent(records, at, len(data) - at, bool(after_break), after_break, _is_cut_off(data, at))
        if records and found.seq != records[-1].seq + 1:  # intact, but not the next record
            return JournalContent(records, at, len(data) - at, damaged=True)
        records.append(found)
        at = found.end
    return JournalContent(records, at)


def _record_at(data: bytes, at: int) -> JournalLine | None:
    """Return the intact record that starts at `at`, None if there is none."""
    head = re.compile(_HEADER).match(data, at)
    if head is None:
        return None
    *numbers, old_seq, old_length, checksum = head.groups()
    if old_seq is None:
        seq, synced, fields_length, message_length = map(int, numbers)
    else:
        seq, synced, fields_length, message_length = int(old_seq), int(old_seq) - 1, int(old_length), 0
    start = head.end()
    fields_end = start + fields_length
    end = fields_end + (message_length + 1 if message_length else 0)
    if data[end : end + 1] != b"\n":
        return None
    counted = data[at + len(_VERSION) + 1 : start - len(checksum) - 1]
    if zlib.crc32(memoryview(data)[start:end], zlib.crc32(counted)) != int(checksum, 16):
        return None
    message = data[fields_end + 1 : end] if message_length else None
    return JournalLine(seq, synced, data[start:fields_end], message, end + 1)


def _end_by_header(data: bytes, at: int) -> int:
    """Return the end of the record at `at` according to its header; `at` if it has none."""
    head = re.compile(_HEADER).match(data, at)
    if head is None:
        return at
    *_, fields_length, message_length, _, old_length, _ = head.groups()
    lengths = [int(length) for length in (fields_length, message_length, old_length) if length is not None]
    return head.end() + sum(lengths) + (message_length not in (None, b"0")) + 1


def _is_cut_off(data: bytes, at: int) -> bool:
    """True if the data from `at` on is the beginning of a record without its end."""
    if data.endswith(b"\n"):
        return False
    end = _end_by_header(data, at)
    return len(data) < end if end != at else re.compile(_PARTIAL_HEADER).fullmatch(data, at) is not None


def _intact_records_after(data: bytes, at: int) -> Iterator[JournalLine]:
    """Yield the intact records after a broken one. A crash of the process leaves none, because it writes one after
    another."""
    next_one = _record_at(data, _end_by_header(data, at))
    if next_one is not None:
        yield next_one
        at = next_one.end - 1
    while (start := re.compile(_ANY_RECORD).search(data, at + 1)) is not None:
        found = _record_at(data, start.start())
        if found is not None:
            yield found
        at = start.start() if found is None else found.end - 1


class JournalFile:
    """An open journal. After any failed write it stays `broken`, and the store starts a new one. After a failed fsync
    the next one may report success although the pages are lost, so a descriptor that failed is never trusted again."""

    def __init__(self, disk: Disk, path: str, fd: int, next_seq: int) -> None:
        self._disk = disk
        self._path = path
        self._fd = fd
        self.next_seq = next_seq
        self.grown_bytes = 0  # since its opening
        self.broken = False
        self._synced = next_seq - 1
        self._after_mark: list[bytes] = []
        self._marked = False

    @classmethod
    def create(cls, disk: Disk, path: str, seq: int, opening: bytes) -> Self:
        """Create a journal at `path`, atomically in place of any file there, with the fields `opening` as its durable
        first record. Raises OSError."""
        write_new(disk, path + TEMPORARY, [frame(seq, seq - 1, opening)])
        return cls._put_in_place(disk, path, seq + 1)

    def mark(self) -> int:
        """Append a record that changes nothing and return its number: the next journal begins with a record of that
        number, followed by copies of the records after it. Raises WriteFailed."""
        seq = self.append(_MARK)
        self._after_mark, self._marked = [], True
        return seq

    def forget_mark(self) -> None:
        """Discard the last `mark`: no journal follows it."""
        self._after_mark, self._marked = [], False

    def write_next(self, seq: int, opening: dict[str, Any]) -> None:
        """Write the next journal under a temporary name, durably: the fields `opening` with the number `seq` from
        `mark`, and the records after it. Raises OSError."""
        # The records are copied unchanged, so their `synced` numbers refer to this journal.
        fields = orjson.dumps({**opening, DURABLE: self.next_seq - 1})
        write_new(self._disk, self._path + TEMPORARY, [frame(seq, seq - 1, fields), *self._after_mark])

    def switch_to_next(self) -> Self:
        """Close this journal and replace it by the one that `write_next` wrote. Raises OSError."""
        self.close()  # Windows cannot replace an open file
        following = self._put_in_place(self._disk, self._path, self.next_seq)
        following.grown_bytes = sum(map(len, self._after_mark))
        return following

    @classmethod
    def _put_in_place(cls, disk: Disk, path: str, next_seq: int) -> Self:
        disk.replace(path + TEMPORARY, path)
        disk.sync_directory(os.path.dirname(path))
        return cls(disk, path, disk.open_append(path), next_seq)

    def append(self, fields: bytes, message: bytes | None = None) -> int:
        """Write one record; it survives a crash of the process, and after `sync` one of the machine. Returns its
        sequence number. Raises WriteFailed."""
        self._refuse_broken()
        record = frame(self.next_seq, self._synced, fields, message)
        try:
            self._disk.write(self._fd, record)
        except OSError as error:
            self.broken = True
            raise WriteFailed(f"writing the journal failed: {error.strerror}") from error
        if self._marked:
            self._after_mark.append(record)
        self.grown_bytes += len(record)
        self.next_seq += 1
        return self.next_seq - 1

    def sync(self) -> None:
        """Make every appended record durable. Raises WriteFailed."""
        self._refuse_broken()
        if self._synced == self.next_seq - 1:
            return
        try:
            if not self._disk.is_named(self._fd, self._path):
                self.broken = True
                raise WriteFailed("the journal was removed or replaced")
            self._disk.sync(self._fd)
        except OSError as error:
            self.broken = True
            raise WriteFailed(f"syncing the journal failed: {error.strerror}") from error
        self._synced = self.next_seq - 1

    def close(self) -> None:
        """Close the descriptor; the file stays. Only `sync` makes its content durable."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                self._disk.close(fd)

    def _refuse_broken(self) -> None:
        if self.broken:
            raise WriteFailed("the journal failed earlier and was not renewed yet")


# Archives of sessions, kept when the checkpoint is removed (AH 9.6): every replaced journal, under the number of its
# first record, and the snapshot that the first of them continues from.
#
#     sessions/{id}/archive/000000000001.json      the snapshot
#     sessions/{id}/archive/000000000001.journal   the records after it
#     sessions/{id}/archive/000000000412.journal   the records after those; the first few may be in both
#     sessions/{id}/archive/full                   only if later records did not fit
#
# A journal contains complete messages. First versions of files, and their contents after changes by anything but a
# tool, are in a journal or in the folder of blobs, by SHA-256.


ARCHIVED_JOURNAL, ARCHIVED_SNAPSHOT = ".journal", ".json"
FULL = "full"
"""The name of an empty file which marks that later records did not fit."""
_COLOURED = b'"coloured":{"'


class Archive:
    """The archive of one session. Its bytes count toward the limit of the blobs. `problem` describes in one line the
    last failure to archive; None if there was none."""

    def __init__(self, disk: Disk, paths: SessionPaths, blobs: BlobFolder) -> None:
        self._disk = disk
        self._paths = paths
        self._blobs = blobs
        self._is_started: bool | None = None
        self._is_full = False
        self.problem: str | None = None

    def add(self, first_seq: int, base: str) -> None:
        """Archive the journal that is about to be replaced, whose first record is `first_seq`, by a hard link to its
        file. With the first one also the snapshot at `base`, which it continues from. Once one does not fit, nothing
        more is archived, so that an archive has no gaps except at its end. Not durable, and never an error, because a
        session can continue without it."""
        with self._noting_problems():
            if self._is_started is None:
                make_durable_dir(self._disk, self._paths.archive, within=self._paths.records)
                names = self._disk.names(self._paths.archive)
                self._blobs.aside_bytes += sum(self._size(self._path(name)) for name in names)
                self._is_started = any(name.endswith(ARCHIVED_JOURNAL) for name in names)
                self._is_full = FULL in names
            if self._is_full:
                return
            wanted = [] if self._is_started else [(base, self._path(f"{first_seq:012d}{ARCHIVED_SNAPSHOT}"))]
            wanted.append((self._paths.journal, self._path(f"{first_seq:012d}{ARCHIVED_JOURNAL}")))
            # It may exist already, from a failed compaction, or from a process that died before the journal was
            # replaced.
            sizes = [self._size(path) - self._size(target) for path, target in wanted]
            if not self._blobs.has_room(sum(sizes)):
                self._is_full = self._blobs.refused = True
                write_new(self._disk, self._path(FULL), [], durable=False)
                return
            for (path, target), size in zip(wanted, sizes, strict=True):
                if self._disk.status(path) is not None:
                    link_or_copy(self._disk, path, target)
                self._blobs.aside_bytes += size
            self._is_started = True

    def seal(self) -> None:
        """Make the archive durable; nothing is added afterwards. Never an error, as for `add`."""
        with self._noting_problems():
            if self._is_started:
                self._disk.sync_directory(self._paths.archive)

    def clear(self) -> None:
        """Remove everything archived under this id, by an earlier session or with other settings. Raises OSError."""
        if self._disk.status(self._paths.archive) is not None:
            for name in self._disk.names(self._paths.archive):
                self._disk.remove(self._path(name))

    @contextlib.contextmanager
    def _noting_problems(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.problem = f"the session's records could not be archived: {error.strerror or error}"

    def _path(self, name: str) -> str:
        return os.path.join(self._paths.archive, name)

    def _size(self, path: str) -> int:
        status = self._disk.status(path)
        return 0 if status is None else status.size


def archived_names(disk: Disk, paths: SessionPaths) -> list[str]:
    """Return the names in a session's archive, in the order of its records; empty if nothing is archived. Raises
    OSError."""
    return disk.names(paths.archive) if disk.status(paths.archive) is not None else []


def journals_of(disk: Disk, paths: SessionPaths) -> list[str]:
    """Return the paths of a session's journals, oldest first, as far as they are kept; the last two may not exist.
    Raises OSError."""
    names = (name for name in archived_names(disk, paths) if name.endswith(ARCHIVED_JOURNAL))
    return [*(os.path.join(paths.archive, name) for name in names), paths.previous_journal, paths.journal]


def read_coloured(disk: Disk, paths: SessionPaths) -> dict[str, dict[str, str]]:
    """Return the output of commands with its colours (`state.records.CallFinished`), by call and stream, from all
    journals of a session that is resumable or has ended. Raises OSError, UnknownVersion."""
    found: dict[str, dict[str, str]] = {}
    for path in journals_of(disk, paths):
        data = disk.read(path) if disk.status(path) is not None else b""
        if _COLOURED not in data:  # most sessions have none, and a journal may be long
            continue
        for line in parse(data).records:
            fields = orjson.loads(line.fields) if _COLOURED in line.fields else {}
            if fields.get(KIND) == "call_finished":
                found[str(fields["callId"])] = fields["coloured"]
    return found
