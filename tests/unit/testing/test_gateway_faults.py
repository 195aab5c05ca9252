"""Answers that go wrong on purpose."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from agent_host.testing.gateway import MockGateway, Script
from tests.unit.testing.support import assistant, body, connect, events, post, text_of, user

TEXT = "Grüße, 世界 🌍"


async def pieces(
    *turns: dict[str, Any], **more: Any
) -> tuple[httpx.Response, list[bytes], httpx.TransportError | None]:
    """The answer to one request: its HTTP chunks as they came, and what broke it off."""
    got: list[bytes] = []
    async with (
        MockGateway(Script.from_turns(turns)) as gateway,
        connect(gateway.url) as client,
        client.stream("POST", "/v1/messages", json=body(**more)) as response,
    ):
        try:
            async for piece in response.aiter_raw():
                got.append(piece)  # noqa: PERF401 - what came before a break is kept
        except httpx.TransportError as error:
            return response, got, error
    return response, got, None


async def test_every_event_is_a_chunk_of_its_own() -> None:
    _, got, error = await pieces({"text": TEXT, "chunk_chars": 4})
    assert error is None
    assert len(got) == 8
    assert all(piece.startswith(b"event: ") and piece.endswith(b"\n\n") for piece in got)


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_split_bytes_cuts_events_and_characters(size: int) -> None:
    _, whole, _ = await pieces({"text": TEXT})
    response, got, error = await pieces({"text": TEXT, "split_bytes": size})
    assert error is None
    assert response.status_code == 200
    assert {len(piece) for piece in got[:-1]} <= {size}
    assert b"".join(got) == b"".join(whole)


@pytest.mark.parametrize("count", [0, 3])
async def test_cut_after_events_closes_in_the_middle(count: int) -> None:
    response, got, error = await pieces({"text": TEXT, "cut_after_events": count})
    assert response.status_code == 200
    assert isinstance(error, httpx.RemoteProtocolError)
    assert (
        [event["type"] for event in events(b"".join(got))]
        == [
            "message_start",
            "content_block_start",
            "content_block_delta",
        ]
        if count
        else not got
    )


@pytest.mark.parametrize("extra", [{}, {"split_bytes": 10}, {"chunk_delay_ms": 1}])
async def test_cut_after_bytes_closes_in_the_middle_of_an_event(extra: dict[str, int]) -> None:
    _, got, error = await pieces({"text": TEXT, "cut_after_bytes": 55, **extra})
    assert isinstance(error, httpx.RemoteProtocolError)
    assert len(b"".join(got)) == 55


@pytest.mark.parametrize(("key", "size"), [("cut_after_bytes", 20), ("cut_after_events", 0)])
async def test_an_answer_without_stream_can_be_cut_too(key: str, size: int) -> None:
    _, got, error = await pieces({"text": TEXT, key: size}, stream=False)
    assert isinstance(error, httpx.RemoteProtocolError)
    assert len(b"".join(got)) == size


@pytest.mark.parametrize(
    ("turn", "error"),
    [
        ({"status": 429}, {"type": "rate_limit_error", "message": "scripted error"}),
        ({"status": 529, "error": {"message": "busy"}}, {"type": "overloaded_error", "message": "busy"}),
        ({"status": 400, "error": {"type": "guard", "message": "no"}}, {"type": "guard", "message": "no"}),
        ({"status": 418}, {"type": "invalid_request_error", "message": "scripted error"}),
        ({"status": 502}, {"type": "api_error", "message": "scripted error"}),
    ],
)
async def test_http_errors_have_the_body_of_the_dialect(turn: dict[str, Any], error: dict[str, str]) -> None:
    response, got, _ = await pieces({**turn, "headers": {"retry-after": "3"}})
    assert response.status_code == turn["status"]
    assert response.headers["retry-after"] == "3"
    assert response.headers["content-type"] == "application/json"
    assert httpx.Response(200, content=b"".join(got)).json() == {"type": "error", "error": error}


@pytest.mark.parametrize(
    ("stop", "kinds"),
    [
        ({}, ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "error"]),
        ({"cut_after_events": 1}, ["message_start", "error"]),
    ],
)
async def test_an_error_inside_the_stream(stop: dict[str, int], kinds: list[str]) -> None:
    response, got, error = await pieces({"text": TEXT, "stream_error": {"message": "late"}, **stop})
    assert error is None
    assert response.status_code == 200
    found = events(b"".join(got))
    assert [event["type"] for event in found] == kinds
    assert found[-1]["error"] == {"type": "api_error", "message": "late"}


async def test_without_stream_a_stream_error_is_an_http_error() -> None:
    response, _, _ = await pieces({"stream_error": {"message": "late"}}, stream=False)
    assert response.status_code == 500


@pytest.mark.parametrize(("garbage", "raw"), [("<html>", b"<html>"), ([0, 255, 10], b"\x00\xff\n"), (b"\xfe", b"\xfe")])
async def test_garbage_is_sent_as_it_stands(garbage: object, raw: bytes) -> None:
    response, got, _ = await pieces({"garbage": garbage, "headers": {"content-type": "text/html"}})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html"
    assert b"".join(got) == raw


async def test_garbage_passes_for_a_stream_unless_headers_say_otherwise() -> None:
    response, _, _ = await pieces({"garbage": "x"})
    assert response.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("count", [1, 3, 50])
async def test_pings_come_between_the_events(count: int) -> None:
    _, got, _ = await pieces({"text": TEXT, "pings": count})
    kinds = [event["type"] for event in events(b"".join(got))]
    assert kinds.count("ping") == count
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-1] == "message_stop"
    assert len(kinds) == 6 + count


async def test_a_hanging_turn_never_answers_and_the_next_request_is_served() -> None:
    async with (
        MockGateway(Script.from_turns([{"hang": True}, {"text": "a"}])) as gateway,
        connect(gateway.url, read_timeout_s=0.05) as client,
    ):
        with pytest.raises(httpx.ReadTimeout):
            await post(client)
        assert text_of(await client.post("/v1/messages", json=body(), timeout=10)) == "a"
        assert gateway.requests[0].answer_start_ns == 0


async def test_closing_does_not_wait_for_hanging_answers() -> None:
    gateway = MockGateway(Script.from_turns([{"hang": True}]))
    async with asyncio.timeout(10), connect(await gateway.start()) as client:
        waiting = asyncio.create_task(post(client))
        while not gateway.requests:  # noqa: ASYNC110 - a bounded wait; there is no event to wait for
            await asyncio.sleep(0.001)
        assert gateway.requests[0].turn == 1
        await gateway.aclose()
        with pytest.raises(httpx.TransportError):
            await waiting
    await gateway.aclose()


async def test_delays_come_before_the_answer_and_between_chunks() -> None:
    turns = [{"text": "a", "delay_ms": 30}, {"text": "b", "chunk_delay_ms": 10}]
    async with (
        MockGateway(Script.from_turns(turns)) as gateway,
        connect(gateway.url) as client,
    ):
        await post(client)
        await post(client, user("a"), assistant("a"), user("b"))
    first, second = gateway.requests
    assert first.answer_start_ns - first.body_end_ns >= 30_000_000
    assert second.answer_end_ns - second.answer_start_ns >= 6 * 10_000_000


async def test_a_client_that_leaves_early_does_no_harm() -> None:
    long = {"text": "x" * 10_000, "chunk_chars": 1, "split_bytes": 50}
    async with (
        MockGateway(Script.from_turns([long])) as gateway,
        connect(gateway.url) as client,
    ):
        async with client.stream("POST", "/v1/messages", json=body()) as response:
            async for _ in response.aiter_raw():
                break
        assert response.status_code == 200
        assert (await client.get("/")).status_code == 404
