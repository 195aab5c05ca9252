"""Framing: every whole record comes back, nothing else ever does."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state import files
from state.errors import UnknownVersion, WriteFailed
from state.journal import Journal, JournalContent, frame, parse

if TYPE_CHECKING:
    from pathlib import Path

PAYLOADS = [b'{"kind":"opened","sessionId":"s"}', b"{}", b'{"kind":"note","message":{"content":"\xc3\xa9"}}']
FRAMES = [frame(number, payload) for number, payload in enumerate(PAYLOADS, 7)]
RECORDS = list(enumerate(PAYLOADS, 7))
DATA = b"".join(FRAMES)
STARTS = [0, len(FRAMES[0]), len(FRAMES[0]) + len(FRAMES[1])]

json_like = st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"\\n"))


def parsed(data: bytes) -> JournalContent | None:
    try:
        return parse(data)
    except UnknownVersion:
        return None


def test_a_record_is_one_line_that_a_person_can_read() -> None:
    assert frame(3, b'{"a":1}') == b'J1 3 7 ed0323bd {"a":1}\n'


def test_records_come_back() -> None:
    assert parse(DATA) == JournalContent(RECORDS, len(DATA))
    assert parse(b"") == JournalContent([], 0)


@given(st.integers(0, 2**60), st.lists(st.binary(max_size=80), max_size=8))
def test_any_payloads_come_back(first: int, payloads: list[bytes]) -> None:
    data = b"".join(frame(first + number, payload) for number, payload in enumerate(payloads))
    assert parse(data) == JournalContent([(first + n, payload) for n, payload in enumerate(payloads)], len(data))


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
        assert parse(DATA[:size]) == JournalContent(RECORDS[:whole], end, size - end), size


@given(st.lists(json_like, min_size=1, max_size=6), st.data())
def test_whatever_is_overwritten_only_a_prefix_is_accepted(payloads: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(frame(number, payload) for number, payload in enumerate(payloads, 1))
    at = data.draw(st.integers(0, len(whole) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=40))
    content = parsed(whole[:at] + junk + whole[at + len(junk) :])
    records = list(enumerate(payloads, 1))
    assert content is None or content.records == records[: len(content.records)]


def test_a_gap_in_the_numbers_ends_the_valid_part() -> None:
    for gap in (frame(9, b"c"), frame(7, b"a"), frame(0, b"z")):
        content = parse(FRAMES[0] + gap + FRAMES[2])
        assert content.records == RECORDS[:1]
        assert content.damaged


def test_a_gap_before_the_last_record_is_damage() -> None:
    content = parse(FRAMES[0] + FRAMES[2])
    assert content.records == RECORDS[:1]
    assert content.damaged


@pytest.mark.parametrize("version", [b"J2", b"J10", b"J999"])
def test_a_newer_format_is_refused(version: bytes) -> None:
    with pytest.raises(UnknownVersion, match=version.decode()):
        parse(version + FRAMES[0][2:] + FRAMES[1])


@pytest.mark.parametrize("line", [b"J2 {}\n", b"J2 7:abcdef {}\n", b"J3\n"])
def test_a_newer_format_of_another_shape_is_refused(line: bytes) -> None:
    with pytest.raises(UnknownVersion):
        parse(line)


def journal(tmp_path: Path) -> tuple[Journal, str]:
    path = str(tmp_path / "j")
    return Journal.create(path, 1, b"open"), path


def read(path: str) -> JournalContent:
    return parse(files.read_bytes(path))


def test_a_journal_is_made_appended_to_and_reopened(tmp_path: Path) -> None:
    made, path = journal(tmp_path)
    assert made.append(b"two") == 2
    assert made.append(b"three") == 3
    made.sync()
    made.close()
    assert made.size == os.path.getsize(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    content = read(path)
    assert content.records == [(1, b"open"), (2, b"two"), (3, b"three")]
    again = Journal.reopen(path, content)
    assert again.append(b"four") == 4
    again.close()
    assert read(path).records[-1] == (4, b"four")


def test_a_torn_tail_is_cut_off_before_the_next_record(tmp_path: Path) -> None:
    made, path = journal(tmp_path)
    made.close()
    with open(path, "ab") as handle:
        handle.write(frame(2, b"never whole")[:-4])
    content = read(path)
    assert content.torn_bytes
    again = Journal.reopen(path, content)
    again.append(b"two")
    again.close()
    assert read(path) == JournalContent([(1, b"open"), (2, b"two")], os.path.getsize(path))


@pytest.mark.parametrize("name", ["write_all", "sync_data"])
def test_a_journal_that_failed_once_is_never_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made, path = journal(tmp_path)
    made.append(b"two")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(files, name, fail)
        with pytest.raises(WriteFailed, match="Input/output error"):
            made.append(b"three") if name == "write_all" else made.sync()
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
    monkeypatch.setattr(files, "sync_data", synced.append)
    made.sync()
    made.append(b"two")
    made.sync()
    made.sync()
    made.close()
    assert len(synced) == 1


def test_a_symbolic_link_is_not_appended_to(tmp_path: Path) -> None:
    _, path = journal(tmp_path)
    content = read(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        Journal.reopen(str(link), content)
