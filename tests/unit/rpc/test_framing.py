"""Messages out of a stream of bytes in either framing, however it is cut (interface section 2)."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.rpc.messages import (
    MAX_HEADER_BYTES,
    MAX_LINE_BYTES,
    Framing,
    FramingError,
    HeaderSplitter,
    LineSplitter,
    LineTooLong,
)
from tests.support.rows import each_row

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


# Headers


def framed(message: bytes, *, name: bytes = b"Content-Length", end: bytes = b"\r\n") -> bytes:
    return b"%s: %d%s%s%s" % (name, len(message), end, end, message)


def taken(splitter: Framing | HeaderSplitter, pieces: Iterable[bytes]) -> list[bytes | str]:
    """The messages, the text of each error, and what the end says."""
    found = [message for piece in pieces for message in splitter.feed(piece)]
    last = splitter.end()
    if last is not None:
        found.append(last)
    return [str(one) if isinstance(one, FramingError) else one for one in found]


def behind_headers(*pieces: bytes, limit: int = 64) -> list[bytes | str]:
    return taken(HeaderSplitter(limit), pieces)


CUT_OFF = "the stream ended within a message"
NO_NUMBER = "Content-Length is not a number of bytes"
NO_FIELD = "a header's line is not of the form `Name: value`"
TOO_SOON = "a message begins before its header has ended with an empty line"
MESSAGE = b'{"a":"\xc3\xa9\r\n"}'
NEXT = framed(b"[1]")


@each_row(
    ("header", "expected"),
    [
        (b"Content-Length: 3\r\n\r\n", [b"{a}"]),
        (b"content-length:3\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n", [b"{a}"]),
        (b"CONTENT-LENGTH:\t 003 \r\n\r\n", [b"{a}"]),
        (b"Content-Length: 3\n\n", [b"{a}"]),
        (b"\r\n\r\n\nX: 1\nContent-Length: 3\r\n\n", [b"{a}"]),
        (b"Content-Length: -3\r\n\r\n", [NO_NUMBER]),
        (b"Content-Length: +3\r\n\r\n", [NO_NUMBER]),
        (b"Content-Length: 3.0\r\n\r\n", [NO_NUMBER]),
        (b"Content-Length: 0x3\r\n\r\n", [NO_NUMBER]),
        (b"Content-Length: 1 2\r\n\r\n", [NO_NUMBER]),
        (b"Content-Length: \xb3\r\n\r\n", [NO_NUMBER]),
        (b"Content-Length:\r\n\r\n", [NO_NUMBER]),
        (b"Content-Length: " + b"9" * 19 + b"\r\n\r\n", [NO_NUMBER]),
        (b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", [f"a header is longer than {MAX_HEADER_BYTES} bytes"]),
        (b"X: 1\r\n" * 1000 + b"\r\n", [f"a header is longer than {MAX_HEADER_BYTES} bytes"]),
        (b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n", ["a header has more than one Content-Length"]),
        (b"Content-Type: x\r\n\r\n", ["a header has no Content-Length"]),
        (b"Content-Length 3\r\n\r\n", [NO_FIELD]),
        (b" Content-Length: 3\r\n\r\n", [NO_FIELD]),
        (b": 3\r\n\r\n", [NO_FIELD]),
        (b"Content-Length: 3", [TOO_SOON]),
        (b"Content-Length: 3\r\n", [TOO_SOON]),
        (b"Content-Length: 3\r\r", [TOO_SOON]),
        (b"", [TOO_SOON]),
    ],
)
def test_headers(header: bytes, expected: list[bytes | str]) -> None:
    """Each in front of a message and of another one, which is always read."""
    assert behind_headers(header + b"{a}\r\n" + NEXT) == [*expected, b"[1]"]


@pytest.mark.parametrize(
    "begun", [b"C", b"Content-Length: 3", b"Content-Length: 3\r\n\r", b"Content-Length: 3\r\n\r\n", NEXT[:-1]]
)
def test_a_message_that_is_cut_off(begun: bytes) -> None:
    assert behind_headers(NEXT, begun) == [b"[1]", CUT_OFF]


def test_the_end_leaves_nothing_behind() -> None:
    splitter = HeaderSplitter()
    for begun in (b"Content-Length: 1", framed(b"ab")[:-1], b"Content-Length: x\n", framed(b"x" * 99)[:-1]):
        list(splitter.feed(begun))
        splitter.end()
        assert (list(splitter.feed(NEXT)), splitter.end()) == ([b"[1]"], None)


def test_a_message_that_is_too_long_is_said_before_its_end_and_passed_over() -> None:
    splitter = HeaderSplitter(LIMIT)
    (said,) = splitter.feed(framed(b"x" * (LIMIT + 1))[: -LIMIT - 1])
    assert str(said) == f"a message is longer than {LIMIT} bytes"
    assert list(splitter.feed(b"x" * (LIMIT + 1) + framed(b"x" * LIMIT))) == [b"x" * LIMIT]


def test_an_error_is_said_once_for_all_that_is_skipped() -> None:
    assert behind_headers(b"Content-Length: x\r\n\r\n{}\nContent-: 3\r\nY: 2\r\n", NEXT) == [NO_NUMBER, b"[1]"]


def test_no_part_of_a_message_is_taken_for_a_header() -> None:
    inner = b'{"text":"\\r\\nContent-Length: 2\\r\\n\\r\\n{}"}'
    broken = b"Content-Length: x\r\n\r\n" + inner + b"\r\n"
    assert behind_headers(framed(inner) + broken + NEXT) == [inner, NO_NUMBER, b"[1]"]


NO_LENGTHS = [
    *(
        b"Content-Length: ",
        b"content-length:",
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b"{",
        b"}",
        b"-",
        b" ",
        b"a:",
        b"\0",
    ),
    *(b"Content-Type: x", b"\xff", b"x" * 70, b"y" * MAX_HEADER_BYTES),
]
LENGTHS = [b"0", b"3", b"12", b"9" * 20, b"Content-Length: 3\r\n\r\n", NEXT, framed(MESSAGE)]


def streams(pieces: list[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(pieces), max_size=14).map(b"".join)


@pytest.mark.parametrize("brace", [MAX_HEADER_BYTES - 1, MAX_HEADER_BYTES])
def test_what_comes_first_is_reported(brace: int) -> None:
    data = (b"y" * brace + b"{").ljust(2 * MAX_HEADER_BYTES, b"y")
    reported = TOO_SOON if brace < MAX_HEADER_BYTES else f"a header is longer than {MAX_HEADER_BYTES} bytes"
    assert behind_headers(data) == behind_headers(*(bytes([byte]) for byte in data)) == [reported]


@given(streams(NO_LENGTHS + LENGTHS), st.data())
def test_how_headers_are_cut_makes_no_difference(data: bytes, draw: st.DataObject) -> None:
    at = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=5)))
    pieces = [data[start:end] for start, end in zip([0, *at], [*at, len(data)], strict=True)]
    assert behind_headers(*pieces) == behind_headers(data) == behind_headers(*(bytes([byte]) for byte in data))


@given(streams(NO_LENGTHS))
def test_it_goes_on_behind_any_header(data: bytes) -> None:
    assert behind_headers(data, b"\n\n", NEXT)[-1] == b"[1]"


@given(st.lists(st.binary(max_size=20).map(lambda text: b'"%s"' % text.hex().encode()), max_size=5), st.booleans())
def test_what_is_wrapped_is_read_again(messages: list[bytes], headers: bool) -> None:
    speaker = Framing()
    speaker.feed(b"Content-Length: 2\r\n\r\n{}" if headers else b"{}\n")
    assert taken(Framing(), [b"".join(speaker.wrap(message) for message in messages)]) == messages


# Which of the two


@each_row(
    ("said", "expected"),
    [
        (b"{}\n[]\n", [b"{}", b"[]"]),
        (b"\r\n \t\n{}\n", [b"{}"]),
        (b"\xff\n", [b"\xff"]),
        (b"Content\n{}\n", [b"Content", b"{}"]),
        (b"c", [b"c"]),
        (b"", []),
        (b"\xef\xbb\xbf{}\n", [b"{}"]),
        (b"\xef\xbb\xbf" + NEXT, [b"[1]"]),
        (b"\xef\xbb{}\n", [b"\xef\xbb{}"]),
        (NEXT, [b"[1]"]),
        (b" \r\n" + NEXT + NEXT, [b"[1]", b"[1]"]),
        (framed(MESSAGE, name=b"cOnTeNt-LeNgTh", end=b"\n"), [MESSAGE]),
        (b"Content-Type: x\r\n" + NEXT, [b"[1]"]),
        (NEXT + b"{}\n" + NEXT, [b"[1]", TOO_SOON, b"[1]"]),
    ],
)
def test_the_first_bytes_say_which(said: bytes, expected: list[bytes | str]) -> None:
    assert taken(Framing(), [said]) == taken(Framing(), (bytes([byte]) for byte in said)) == expected


def test_it_is_answered_in_the_same() -> None:
    framing = Framing()
    assert framing.wrap(b"{}") == b"{}\n"
    framing.feed(b" CONTENT-")
    assert framing.wrap(b"{}") == b"Content-Length: 2\r\n\r\n{}"
    following = Framing(before=framing)
    assert following.wrap(b"{}") == b"Content-Length: 2\r\n\r\n{}"
    following.feed(b"{")
    assert following.wrap(b"{}") == b"{}\n"
