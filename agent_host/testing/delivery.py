"""Sending the answer that a turn describes, with everything that can go wrong on the way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agent_host.testing.dialect import Dialect, RequestView
    from agent_host.testing.http1 import Reply
    from agent_host.testing.script import Turn, TurnKind

JSON_HEADERS: Mapping[str, str] = {"content-type": "application/json"}
STREAM_HEADERS: Mapping[str, str] = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


@dataclass(frozen=True, slots=True)
class Body:
    """A body cut to pieces; when not `complete`, the connection is to be closed after the last of them."""

    pieces: tuple[bytes, ...]
    complete: bool


async def deliver(turn: Turn, dialect: Dialect, view: RequestView, reply: Reply) -> None:
    """Send the answer of `turn`, after its delay."""
    if turn.delay_ms:
        await asyncio.sleep(turn.delay_ms / 1000)
    await _DELIVERIES[turn.kind](turn, dialect, view, reply)


def stream_body(turn: Turn, dialect: Dialect, view: RequestView) -> Body:
    """The stream of an answer as it goes over the wire: stopped, ended by an error or re-split as the turn says."""
    events = dialect.stream_events(turn, view)
    if turn.stream_error is not None:
        # By default as late as can be: all content is out, the events that declare it complete are not.
        stop = len(events) - dialect.closing_events if turn.cut_after_events is None else turn.cut_after_events
        events = [*events[:stop], dialect.error_event(turn.stream_error, view)]
    elif turn.cut_after_events is not None:
        events = events[: turn.cut_after_events]
    return _cut(turn, tuple(events))


def _cut(turn: Turn, pieces: tuple[bytes, ...]) -> Body:
    if turn.cut_after_bytes is not None:
        pieces = (b"".join(pieces)[: turn.cut_after_bytes],)
    if (size := turn.split_bytes) is not None:
        joined = b"".join(pieces)
        pieces = tuple(joined[start : start + size] for start in range(0, len(joined), size))
    return Body(pieces, complete=not turn.cut)


async def _send(turn: Turn, headers: Mapping[str, str], body: Body, reply: Reply) -> None:
    await reply.stream(
        turn.status,
        {**headers, **turn.headers},
        body.pieces,
        apart=bool(turn.split_bytes or turn.chunk_delay_ms),
        pause_s=turn.chunk_delay_ms / 1000,
        complete=body.complete,
    )


async def _answer(turn: Turn, dialect: Dialect, view: RequestView, reply: Reply) -> None:
    headers = {"request-id": f"req_{view.session}_{view.turn_index}"}
    if view.stream:
        await _send(turn, {**STREAM_HEADERS, **headers}, stream_body(turn, dialect, view), reply)
    elif turn.stream_error is not None:
        # Without a stream there is no "after the answer has begun": the nearest thing is an HTTP error.
        failed = dialect.failed_message(turn.stream_error, view)
        status, said = (500, dialect.error(500, turn.stream_error)) if failed is None else (200, failed)
        await reply.send(status, {**JSON_HEADERS, **headers, **turn.headers}, said)
    else:
        body = b"" if turn.cut_after_events is not None else dialect.message(turn, view)
        await _send(turn, {**JSON_HEADERS, **headers}, _cut(turn, (body,)), reply)


async def _http_error(turn: Turn, dialect: Dialect, view: RequestView, reply: Reply) -> None:
    del view
    await reply.send(turn.status, {**JSON_HEADERS, **turn.headers}, dialect.error(turn.status, turn.error))


async def _garbage(turn: Turn, dialect: Dialect, view: RequestView, reply: Reply) -> None:
    del dialect
    headers = STREAM_HEADERS if view.stream else JSON_HEADERS
    await _send(turn, headers, _cut(turn, (turn.garbage or b"",)), reply)


async def _hang(turn: Turn, dialect: Dialect, view: RequestView, reply: Reply) -> None:
    del turn, dialect, view
    await reply.until_client_leaves()


_DELIVERIES: Mapping[TurnKind, Callable[[Turn, Dialect, RequestView, Reply], Awaitable[None]]] = {
    "answer": _answer,
    "http_error": _http_error,
    "garbage": _garbage,
    "hang": _hang,
}
