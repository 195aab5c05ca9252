"""An answer's text as httpx-sse gets it, and its bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from httpx_sse import EventSource
from hypothesis import given
from hypothesis import strategies as st

from agent_host.llm import AnswerTooLarge
from agent_host.llm.network import AnswerLimits, BoundedStream, decoder
from tests.support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    import httpx

WIDE = AnswerLimits(1000, 1000, 1000, 10_000)


async def each(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def read(*pieces: bytes, limits: AnswerLimits = WIDE) -> list[tuple[str, str]]:
    """(name, data) of each event."""
    stream = BoundedStream(each(pieces), decoder(""), limits)
    return [(event.event, event.data) async for event in EventSource(cast("httpx.Response", stream)).aiter_sse()]


@each_row(
    ("stream", "events"),
    [
        (b"event: a\ndata: 1\n\n", [("a", "1")]),
        (b"event:a\ndata:1\n\ndata: 2\n\n", [("a", "1"), ("message", "2")]),
        (b"event: a\r\ndata: 1\r\n\r\nevent: b\rdata: 2\r\r", [("a", "1"), ("b", "2")]),
        ("data: \u2028\x0b\x0c\x1c\u0085ü\n\n".encode(), [("message", "\u2028\x0b\x0c\x1c\u0085ü")]),
        (b"event: a\ndata: 1\n", []),
        (b"data: \xed\xa0\x80\n\n", [("message", "\ud800")]),
        (b"\xef\xbb\xbfdata: 1\n\ndata: \xef\xbb\xbf2\n\n", [("message", "1"), ("message", "\ufeff2")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: 1\n\ndata:[DONE]\n\n", [("message", "[DONE]")]),
    ],
)
async def test_events(stream: bytes, events: list[tuple[str, str]]) -> None:
    assert await read(stream) == events
    assert await read(*(stream[n : n + 1] for n in range(len(stream)))) == events


@given(st.lists(st.sampled_from([b"data", b":", b" ", b"\n", b"\r", b"event", b"x", b"\n\n"]), max_size=30), st.data())
async def test_where_the_stream_is_cut_makes_no_difference(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    tight = AnswerLimits(max_line_bytes=12, max_event_bytes=20, max_call_arguments_bytes=1, max_answer_bytes=10_000)
    assert await outcome(pieces, tight) == await outcome([stream], tight)


async def outcome(pieces: list[bytes], limits: AnswerLimits) -> list[tuple[str, str]] | str:
    try:
        return await read(*pieces, limits=limits)
    except AnswerTooLarge:
        return "too large"


async def test_bytes_that_are_no_utf_8_are_an_error() -> None:
    with pytest.raises(UnicodeDecodeError):
        await read(b"data: \xff\n\n")


LIMITS = AnswerLimits(max_line_bytes=20, max_event_bytes=30, max_call_arguments_bytes=1, max_answer_bytes=100)


@each_row(
    ("fits", "too_much", "setting"),
    [
        (b"data: " + b"x" * 14 + b"\n\n", b"data: " + b"x" * 15 + b"\n\n", "max_line_bytes"),
        (b":" + b"x" * 19, b":" + b"x" * 20, "max_line_bytes"),
        (b"data: 12\ndata: 12\ndata: 12345\n\n", b"data: 12\ndata: 12\ndata: 1234567\n\n", "max_event_bytes"),
        (b"data: 12\ndata: 12\ndata: 123456", b"data: 12\ndata: 12\ndata: 1234567", "max_event_bytes"),
        (b"data: 12\ndata: 12\n\ndata: 1234567890123", b"data: 12\ndata: 12\ndata: 1234567890123", "max_event_bytes"),
        (b"data: 1\n\n" * 11, b"data: 1\n\n" * 12, "max_answer_bytes"),
        (b": co\n\n" * 16, b": co\n\n" * 17, "max_answer_bytes"),
    ],
)
@each_row("cut", [1, 7, 1000])
async def test_limits(fits: bytes, too_much: bytes, setting: str, cut: int) -> None:
    def pieces(stream: bytes) -> list[bytes]:
        return [stream[n : n + cut] for n in range(0, len(stream), cut)]

    await read(*pieces(fits), limits=LIMITS)
    with pytest.raises(AnswerTooLarge, match=rf"of more than {getattr(LIMITS, setting)} bytes \(llm\.{setting}\)"):
        await read(*pieces(too_much), limits=LIMITS)
