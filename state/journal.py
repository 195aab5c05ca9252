"""The append-only journal: framing, checksums, torn tails (design section 6).

A record is one line of text, so that a person can read a journal with a pager:

    J1 <seq> <length> <crc32> <payload>\\n

`J1` is the format version, `seq` rises by one from record to record and across compactions, `length` counts the
payload's bytes and the checksum covers sequence number, length and payload, so that a flipped bit anywhere is seen.
"""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from state import files
from state.errors import UnknownVersion, WriteFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSION = b"J1"
_FORMAT = re.compile(rb"J\d+(?=[ \n])")
_MAX_HEADER_BYTES = 64


@dataclass(frozen=True, slots=True)
class JournalContent:
    """What a journal file holds: `records` as (sequence number, payload), the bytes up to the end of the last whole
    record, and what is wrong after that: nothing, a torn tail, or damage with whole records behind it."""

    records: list[tuple[int, bytes]]
    valid_bytes: int
    torn_bytes: int = 0
    damaged: bool = False
    behind: tuple[bytes, ...] = ()


def frame(seq: int, payload: bytes) -> bytes:
    """One record as it stands in the file."""
    counted = b"%d %d " % (seq, len(payload))
    return b"%s %s%08x %s\n" % (_VERSION, counted, zlib.crc32(payload, zlib.crc32(counted)), payload)


def parse(data: bytes) -> JournalContent:
    """The valid prefix of a journal. Raises UnknownVersion when the file was written by a newer format."""
    newer = _FORMAT.match(data)
    if newer is not None and newer[0] != _VERSION:
        raise UnknownVersion(f"journal format {newer[0].decode()} is newer than this program")
    records: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        found = _record_at(data, at)
        if found is None:
            behind = tuple(_whole_records_after(data, at))
            return JournalContent(records, at, len(data) - at, damaged=bool(behind), behind=behind)
        if records and found[0] != records[-1][0] + 1:  # a whole record, and not the one that belongs here
            return JournalContent(records, at, len(data) - at, damaged=True)
        seq, payload, at = found
        records.append((seq, payload))
    return JournalContent(records, at)


def _record_at(data: bytes, at: int) -> tuple[int, bytes, int] | None:
    """(sequence number, payload, offset behind it) of the record that starts at `at`, or None when there is none."""
    head = data[at : at + _MAX_HEADER_BYTES].split(b" ", 4)
    if len(head) < 5:
        return None
    version, seq, length, checksum, _ = head
    if version != _VERSION or not (seq.isdigit() and length.isdigit()):
        return None
    start = at + len(version) + len(seq) + len(length) + len(checksum) + 4
    end = start + int(length)
    payload = data[start:end]
    if data[end : end + 1] != b"\n" or b"%08x" % zlib.crc32(payload, zlib.crc32(b"%s %s " % (seq, length))) != checksum:
        return None
    return int(seq), payload, end + 1


def _whole_records_after(data: bytes, at: int) -> Iterator[bytes]:
    """Payloads of the whole records behind a broken one. No dying process leaves any: it writes one after another."""
    while (at := data.find(_VERSION + b" ", at + 1)) >= 0:
        found = _record_at(data, at)
        if found is not None:
            yield found[1]
            at = found[2] - 1


class Journal:
    """An open journal. After any failed write it is `broken` and stays so: the store starts a fresh one.

    An fsync that failed once may report success the next time although the pages are gone, so a descriptor that
    failed is never trusted again.
    """

    def __init__(self, fd: int, next_seq: int, size: int) -> None:
        self._fd = fd
        self.next_seq = next_seq
        self.size = size
        self.broken = False
        self._unsynced = False

    @classmethod
    def create(cls, path: str, seq: int, opening: bytes) -> Self:
        """A new journal in place of whatever is at `path`, atomically, with `opening` as its durable first record."""
        record = frame(seq, opening)
        files.replace_atomically(path, [record])
        return cls(_open_for_append(path), seq + 1, len(record))

    @classmethod
    def reopen(cls, path: str, content: JournalContent) -> Self:
        """The existing journal at `path`, cut back to its whole records, ready for the next one. Raises OSError."""
        fd = _open_for_append(path)
        try:
            if content.torn_bytes:
                os.ftruncate(fd, content.valid_bytes)
                files.sync_data(fd)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, content.records[-1][0] + 1, content.valid_bytes)

    def append(self, payload: bytes) -> int:
        """Write one record; it survives the death of the process, and of the machine after `sync`. Returns its
        sequence number. Raises WriteFailed."""
        if self.broken:
            raise WriteFailed("the journal failed earlier and was not renewed yet")
        record = frame(self.next_seq, payload)
        try:
            files.write_all(self._fd, record)
        except OSError as error:
            self.broken = True
            raise WriteFailed(f"writing the journal failed: {error.strerror}") from error
        self.size += len(record)
        self._unsynced = True
        self.next_seq += 1
        return self.next_seq - 1

    def sync(self) -> None:
        """Make every appended record durable. Raises WriteFailed."""
        if self.broken:
            raise WriteFailed("the journal failed earlier and was not renewed yet")
        if not self._unsynced:
            return
        try:
            files.sync_data(self._fd)
        except OSError as error:
            self.broken = True
            raise WriteFailed(f"syncing the journal failed: {error.strerror}") from error
        self._unsynced = False

    def close(self) -> None:
        """Close the descriptor; the file stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open_for_append(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.open(path, flags)
