"""The whole of a stream: the beginning in memory, then all of it in a file that has no name and is bounded (TR 7.2)."""

from __future__ import annotations

import os
import resource
import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.contracts import Artifact
from tests.unit.tool_runtime.conftest import open_descriptors
from tool_runtime.output import HeadTail, marker, whole_end
from tool_runtime.output.artifacts import Spill, SpillRoom, SpooledFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent_host.contracts import Spooled


class Stream:
    """A stream with both of its collectors."""

    def __init__(self, *, limit: int = 1000, buffer_bytes: int = 10, ends: int = 100, directory: str | None = None):
        self.ends = HeadTail(ends)
        self.spill = Spill(SpillRoom(limit), buffer_bytes, directory)

    def add(self, *chunks: bytes) -> Stream:
        for chunk in chunks:
            self.ends.add(chunk)
            self.spill.add(chunk)
        return self

    def content(self) -> bytes | Spooled:
        return self.spill.content(self.ends)

    def whole(self) -> bytes:
        """The content, as whoever stores it reads it."""
        artifact = Artifact("tool_output", "out", "text/plain", self.content())
        data = artifact.data
        assert artifact.size == len(data)
        artifact.close()
        return data


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert open_descriptors() == before


def test_a_short_stream_never_meets_a_disk() -> None:
    stream = Stream(directory="/no/such/directory").add(b"01234", b"56789")
    assert (stream.content(), stream.spill.problem) == (b"0123456789", None)


def test_what_is_longer_than_the_buffer_lies_in_a_file_that_nobody_else_can_open(tmp_path: Path) -> None:
    stream = Stream(directory=str(tmp_path)).add(b"0123456789", b"ab", b"c" * 500)
    content = stream.content()
    assert isinstance(content, SpooledFile)
    assert os.listdir(tmp_path) == []
    assert stat.S_IMODE(os.fstat(content._file.fileno()).st_mode) == 0o600
    assert b"".join(content.pieces()) == b"0123456789ab" + b"c" * 500
    assert b"".join(content.pieces()) == b"0123456789ab" + b"c" * 500, "it can be read again"
    content.close()
    content.close()
    with pytest.raises(OSError, match="closed"):
        b"".join(content.pieces())


@pytest.mark.parametrize("buffer_bytes", [4, 1000])
def test_all_is_kept_up_to_the_limit_and_then_the_end(buffer_bytes: int) -> None:
    def stream(*chunks: bytes) -> Stream:
        return Stream(limit=20, buffer_bytes=buffer_bytes, ends=10).add(*chunks)

    whole = [b"12345"] * 4
    assert stream(*whole).whole() == b"12345" * 4
    assert stream(*whole, b"6789ABC").whole() == b"12345" * 4 + marker(5, 27) + b"BC"


@given(st.text(max_size=60), st.integers(1, 7), st.integers(1, 40), st.integers(0, 40), st.integers(1, 30))
def test_memory_and_file_say_the_same(text: str, step: int, limit: int, buffer_bytes: int, ends: int) -> None:
    data = text.encode("utf-8", "replace")
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    spooled = Stream(limit=limit, buffer_bytes=buffer_bytes, ends=ends).add(*chunks).whole()
    assert spooled == Stream(limit=limit, buffer_bytes=limit, ends=ends).add(*chunks).whole()
    assert spooled == data if len(data) <= limit else spooled.startswith(whole_end(data[:limit]))


def test_without_a_place_for_the_file_the_beginning_and_the_end_are_kept() -> None:
    stream = Stream(directory="/no/such/directory", ends=10).add(b"0123456789", b"x" * 50, b"y" * 50)
    assert stream.spill.problem == "No such file or directory"
    assert stream.whole() == b"0123456789" + marker(98, 110) + b"yy"


def test_what_a_full_disk_took_is_kept() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, before[1]))  # the write that crosses it is a short one
    try:
        stream = Stream(ends=10).add(b"0123456789", b"x" * 20, b"y" * 50, b"z" * 50)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert stream.spill.problem == "File too large"
    assert stream.whole() == b"0123456789" + b"x" * 20 + b"y" * 10 + marker(88, 130) + b"zz"


def test_a_full_disk_that_does_not_even_take_the_buffer() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, before[1]))
    try:
        stream = Stream(ends=10).add(b"0123456789", b"x" * 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert stream.whole() == b"0123456789" + marker(18, 30) + b"xx"


def test_streams_of_one_call_share_what_may_be_kept() -> None:
    room = SpillRoom(15)
    first, second = Spill(room, 100, None), Spill(room, 100, None)
    first.add(b"0123456789")
    second.add(b"abcdefghij")
    first.add(b"more")
    assert (first.kept_bytes, second.kept_bytes, room.left) == (10, 5, 0)
    assert second.read(0, 10) == b"abcde"


def test_a_stream_that_nobody_wants_lets_its_file_go() -> None:
    stream = Stream().add(b"x" * 100)
    stream.spill.close()
    stream.spill.close()


def test_a_file_that_lost_bytes_is_told() -> None:
    content = Stream().add(b"x" * 100).content()
    assert isinstance(content, SpooledFile)
    content._file.truncate(50)
    with pytest.raises(OSError, match="shorter"):
        b"".join(content.pieces())
    content.close()
