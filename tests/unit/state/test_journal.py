"""Framing: every whole record comes back, nothing else ever does."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state import UnknownVersion, WriteFailed
from state.disk import LOCAL_DISK, Disk
from state.journal import JournalContent, JournalFile, JournalLine, frame, parse

if TYPE_CHECKING:
    from pathlib import Path

Payload = tuple[bytes, bytes | None]

PAYLOADS: list[Payload] = [
    (b'{"kind":"opened","sessionId":"s"}', None),
    (b"{}", None),
    (b'{"kind":"note"}', b'{"content":"\xc3\xa9"}'),
]
FRAMES = [frame(number, number - 1, *payload) for number, payload in enumerate(PAYLOADS, 7)]
STARTS = [0, len(FRAMES[0]), len(FRAMES[0]) + len(FRAMES[1])]
DATA = b"".join(FRAMES)


def records_of(payloads: list[Payload], first: int) -> list[JournalLine]:
    """The records that `payloads`, framed one behind the other, are to give."""
    records, end = [], 0
    for number, payload in enumerate(payloads, first):
        end += len(frame(number, number - 1, *payload))
        records.append(JournalLine(number, number - 1, *payload, end))
    return records


RECORDS = records_of(PAYLOADS, 7)

json_like = st.tuples(
    st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"\\n")),
    st.none() | st.binary(min_size=1, max_size=60).map(lambda data: data.replace(b"\n", b"\\n")),
)
anything = st.tuples(st.binary(max_size=80), st.none() | st.binary(min_size=1, max_size=80))


def parsed(data: bytes) -> JournalContent | None:
    try:
        return parse(data)
    except UnknownVersion:
        return None


def test_a_record_is_one_line_that_a_person_can_read() -> None:
    assert frame(3, 2, b'{"a":1}') == b'J2 3 2 7 0 ea45bf11 {"a":1}\n'
    assert frame(3, 1, b'{"a":1}', b'{"b":2}') == b'J2 3 1 7 7 3bff5308 {"a":1} {"b":2}\n'


def test_the_first_format_can_still_be_read() -> None:
    data = b'J1 3 7 ed0323bd {"a":1}\n' + frame(4, 3, b"{}")
    assert parse(data) == JournalContent(
        [JournalLine(3, 2, b'{"a":1}', None, 24), JournalLine(4, 3, b"{}", None, len(data))], len(data)
    )
    assert parse(data.replace(b'"a"', b'"b"')).damaged


def test_records_come_back() -> None:
    assert parse(DATA) == JournalContent(RECORDS, len(DATA))
    assert parse(b"") == JournalContent([], 0)


@given(st.integers(1, 2**60), st.lists(anything, max_size=8))
def test_any_payloads_come_back(first: int, payloads: list[Payload]) -> None:
    data = b"".join(frame(first + number, first + number - 1, *payload) for number, payload in enumerate(payloads))
    assert parse(data) == JournalContent(records_of(payloads, first), len(data))


@pytest.mark.slow
def test_every_changed_byte_is_seen() -> None:
    for at in range(len(DATA)):
        intact = max(number for number in range(3) if STARTS[number] <= at)
        for value in {*range(256)} - {DATA[at]}:
            content = parsed(DATA[:at] + bytes([value]) + DATA[at + 1 :])
            if content is None:  # another digit behind the J of the first record
                assert at in (1, 2)
                assert chr(value).isdigit()
                continue
            assert content.records == RECORDS[:intact], (at, value)
            assert content.valid_bytes == STARTS[intact]
            assert content.torn_bytes == len(DATA) - STARTS[intact]


def test_damage_before_whole_records_is_not_a_torn_tail() -> None:
    for at in range(STARTS[2]):
        content = parsed(DATA[:at] + bytes([DATA[at] ^ 0x80]) + DATA[at + 1 :])
        assert content is not None
        assert content.damaged, at


def test_a_file_cut_anywhere_keeps_its_whole_records_and_is_called_torn() -> None:
    for size in range(len(DATA) + 1):
        whole = sum(start + len(record) <= size for start, record in zip(STARTS, FRAMES, strict=True))
        end = (*STARTS, len(DATA))[whole]
        assert parse(DATA[:size]) == JournalContent(RECORDS[:whole], end, size - end, cut_off=size > end), size


@given(st.lists(json_like, min_size=1, max_size=6), st.data())
def test_whatever_is_overwritten_only_a_prefix_is_accepted(payloads: list[Payload], data: st.DataObject) -> None:
    whole = b"".join(frame(number, number - 1, *payload) for number, payload in enumerate(payloads, 1))
    at = data.draw(st.integers(0, len(whole) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=40))
    content = parsed(whole[:at] + junk + whole[at + len(junk) :])
    records = records_of(payloads, 1)
    assert content is None or content.records == records[: len(content.records)]


def test_a_gap_in_the_numbers_ends_the_valid_part() -> None:
    for gap in (frame(9, 8, b"c"), frame(7, 6, b"a"), frame(0, 0, b"z")):
        content = parse(FRAMES[0] + gap + FRAMES[2])
        assert content.records == RECORDS[:1]
        assert content.damaged


def test_a_gap_before_the_last_record_is_damage() -> None:
    content = parse(FRAMES[0] + FRAMES[2])
    assert content.records == RECORDS[:1]
    assert content.damaged


@pytest.mark.parametrize("version", [b"J3", b"J10", b"J999"])
def test_a_newer_format_is_refused(version: bytes) -> None:
    with pytest.raises(UnknownVersion, match=version.decode()):
        parse(version + FRAMES[0][2:] + FRAMES[1])


@pytest.mark.parametrize("line", [b"J3 {}\n", b"J3 7:abcdef {}\n", b"J4\n"])
def test_a_newer_format_of_another_shape_is_refused(line: bytes) -> None:
    with pytest.raises(UnknownVersion):
        parse(line)


def journal(tmp_path: Path) -> tuple[JournalFile, str]:
    path = str(tmp_path / "j")
    return JournalFile.create(LOCAL_DISK, path, 1, b"open"), path


def read(path: str) -> JournalContent:
    return parse(LOCAL_DISK.read(path))


def test_a_journal_is_made_and_appended_to(tmp_path: Path) -> None:
    made, path = journal(tmp_path)
    assert made.append(b"two") == 2
    made.sync()
    assert made.append(b"three", b"said") == 3
    made.sync()
    made.close()
    assert made.grown_bytes == os.path.getsize(path) - len(frame(1, 0, b"open"))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert read(path).records == records_of([(b"open", None), (b"two", None), (b"three", b"said")], 1)


@pytest.mark.parametrize("name", ["write", "sync"])
def test_a_journal_that_failed_once_is_never_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made, path = journal(tmp_path)
    made.append(b"two")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(Disk, name, fail)
        with pytest.raises(WriteFailed, match="Input/output error"):
            made.append(b"three") if name == "write" else made.sync()
    assert made.broken
    size = os.path.getsize(path)
    with pytest.raises(WriteFailed):
        made.append(b"four")
    with pytest.raises(WriteFailed):
        made.sync()
    assert os.path.getsize(path) == size
    made.close()


def test_a_sync_with_nothing_new_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = journal(tmp_path)
    synced: list[int] = []
    monkeypatch.setattr(Disk, "sync", lambda _, fd: synced.append(fd))
    made.sync()
    made.append(b"two")
    made.sync()
    made.sync()
    made.close()
    assert len(synced) == 1


def test_a_symbolic_link_is_not_appended_to(tmp_path: Path) -> None:
    _, path = journal(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        LOCAL_DISK.open_append(str(link))
