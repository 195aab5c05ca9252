"""Streams and servers in few words."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson

from agent_host.ids import MACHINE
from agent_host.llm.client import LlmClient
from agent_host.llm.dialects.anthropic import AnthropicDialect
from agent_host.llm.network import AnswerLimits, GatewayTimeouts
from agent_host.testing.dialects import ANTHROPIC
from agent_host.testing.gateway import Script
from agent_host.testing.script import RequestView
from agent_host.thread.messages import Message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agent_host.llm.dialects import Dialect

VIEW = RequestView("s", "m", "", 10, True, (), 1, 0, 0, "user", "hi", False, {})


def prompt(text: str) -> Message:
    return Message("user", text, 1)


def events_of(turn: dict[str, Any]) -> list[tuple[str, str]]:
    """(event, data) of the answer that the mock gateway would send for `turn`."""
    raw = ANTHROPIC.stream_events(Script.from_turns([turn]).turns[0], VIEW)
    found = []
    for event in raw:
        name, data = event.decode().removesuffix("\n\n").split("\n", 1)
        found.append((name.removeprefix("event: "), data.removeprefix("data: ")))
    return found


def event(name: str, **fields: Any) -> tuple[str, str]:
    return name, orjson.dumps({"type": name, **fields}).decode()


def started(**usage: Any) -> tuple[str, str]:
    return event("message_start", message={"usage": usage})


def tool_use(index: int, call_id: Any, *parts: str, name: Any = "ReadFile", given: Any = None) -> list[tuple[str, str]]:
    block = {"type": "tool_use", "id": call_id, "name": name, "input": {} if given is None else given}
    deltas = [
        event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": part})
        for part in parts
    ]
    return [
        event("content_block_start", index=index, content_block=block),
        *deltas,
        event("content_block_stop", index=index),
    ]


def text(index: int, *parts: str) -> list[tuple[str, str]]:
    deltas = [event("content_block_delta", index=index, delta={"type": "text_delta", "text": part}) for part in parts]
    return [
        event("content_block_start", index=index, content_block={"type": "text", "text": ""}),
        *deltas,
        event("content_block_stop", index=index),
    ]


def ended(reason: str | None = "end_turn", **usage: Any) -> list[tuple[str, str]]:
    return [event("message_delta", delta={"stop_reason": reason}, usage=usage), event("message_stop")]


def sse(*events: tuple[str, str]) -> bytes:
    return b"".join(f"event: {name}\ndata: {data}\n\n".encode() for name, data in events)


def ok(body: bytes, *headers: str) -> bytes:
    """A whole HTTP answer with an event stream."""
    lines = ["HTTP/1.1 200 OK", "content-type: text/event-stream", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


class RawServer:
    """Answers every request with the same bytes and closes the connection."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.requests: list[bytes] = []
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        )
        self.requests.append(head + await reader.readexactly(length))
        writer.write(self._answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[RawServer]:
    made = RawServer(answer)
    server = await asyncio.start_server(made.handle, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


LIMITS = AnswerLimits(
    max_line_bytes=1_000_000,
    max_event_bytes=1_000_000,
    max_call_arguments_bytes=1_000_000,
    max_answer_bytes=10_000_000,
)
TIMEOUTS = GatewayTimeouts(connect_s=5, read_s=10, progress_s=60, answer_s=60)


@asynccontextmanager
async def client(
    url: str,
    token: str | None = None,
    *,
    limits: AnswerLimits = LIMITS,
    dialect: Dialect | None = None,
    **timeouts: float,
) -> AsyncIterator[LlmClient]:
    made = LlmClient(
        url,
        token,
        dialect or AnthropicDialect(),
        session_id="sess_1",
        time=MACHINE.time,
        timeouts=TIMEOUTS._replace(**timeouts),
        limits=limits,
    )
    try:
        yield made
    finally:
        await made.aclose()
