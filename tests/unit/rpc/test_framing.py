"""Lines out of a stream of bytes, however it is cut (interface section 2)."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.rpc.framing import MAX_LINE_BYTES, LineSplitter, LineTooLong

if TYPE_CHECKING:
    from collections.abc import Iterable

LIMIT = 8
PIECES = st.lists(
    st.lists(st.sampled_from([b"\n", b"a", b"\xff", b"\r", b"0123456"]), max_size=6).map(b"".join), max_size=8
)


def split(pieces: Iterable[bytes], limit: int = LIMIT) -> list[bytes | None]:
    """The lines, None for each that is too long, and what is left at the end."""
    splitter = LineSplitter(limit)
    found: list[bytes | None] = []
    for piece in pieces:
        found += [None if isinstance(line, LineTooLong) else line for line in splitter.feed(piece)]
    last = splitter.end()
    return found if last is None else [*found, last]


@given(PIECES)
def test_how_the_bytes_are_cut_makes_no_difference(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    *lines, last = whole.split(b"\n")
    expected = [line if len(line) <= LIMIT else None for line in lines]
    if last:
        expected.append(last if len(last) <= LIMIT else None)
    assert split(pieces) == split([whole]) == split(bytes([byte]) for byte in whole) == expected


@given(PIECES)
def test_it_goes_on_behind_any_rubbish(pieces: list[bytes]) -> None:
    assert split([*pieces, b"\n", b"line\n"])[-1] == b"line"


def test_a_line_that_is_too_long_is_told_before_its_end() -> None:
    splitter = LineSplitter(LIMIT)
    (told,) = splitter.feed(b"x" * (LIMIT + 1))
    assert isinstance(told, LineTooLong)
    assert str(LIMIT) in str(told)
    assert list(splitter.feed(b"x" * 100)) == []
    assert list(splitter.feed(b"\nnext\n")) == [b"next"]
    assert splitter.end() is None


def test_the_end_begins_anew() -> None:
    splitter = LineSplitter(LIMIT)
    list(splitter.feed(b"half"))
    assert (splitter.end(), splitter.end()) == (b"half", None)
    assert list(splitter.feed(b"whole\n")) == [b"whole"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 4096])
def test_memory_follows_the_bytes_and_not_the_pieces(size: int) -> None:
    splitter = LineSplitter()
    total, piece = 400_000, b"x" * size
    tracemalloc.start()
    try:
        for _ in range(total // size):
            list(splitter.feed(piece))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * total


def test_the_limit() -> None:
    assert MAX_LINE_BYTES == 32 * 1024 * 1024
