"""The client against real HTTP on loopback: every answer a gateway may give ends in a turn or in one error of ours."""

from __future__ import annotations

import asyncio
import gzip
import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_host.errors import (
    AgentHostError,
    ContextTooLong,
    ErrorCode,
    GatewayRejected,
    GatewayUnavailable,
    GuardrailBlocked,
    ModelOverloaded,
)
from agent_host.http import retry_after_s
from agent_host.ids import MACHINE
from agent_host.llm.network import Patience
from agent_host.testing.gateway import MockGateway, Script
from tests.support.raw_http import answering
from tests.support.rows import each_row
from tests.unit.llm.helpers import (
    LIMITS,
    TIMEOUTS,
    client,
    ended,
    event,
    events_of,
    ok,
    prompt,
    raw_server,
    sse,
    started,
    text,
)

if TYPE_CHECKING:
    from agent_host.llm import ModelTurn
    from agent_host.llm.client import LlmClient


async def call(made: LlmClient, shown: list[str] | None = None, *messages: bytes) -> ModelTurn:
    head = made.dialect.head(model="m", max_output_tokens=64, system="Be careful.", tools=[])
    pieces: list[str] = [] if shown is None else shown
    return await made.stream(head, messages or [made.dialect.renderer("m").user([prompt("hi")])], pieces.append)


async def answered(turn: dict[str, Any], token: str | None = None) -> ModelTurn:
    """What the client makes of a scripted answer."""
    async with MockGateway(Script.from_turns([turn])) as gateway, client(gateway.url, token) as made:
        try:
            return await call(made)
        finally:
            assert gateway.failures == []


async def fault(turn: dict[str, Any]) -> AgentHostError:
    with pytest.raises(AgentHostError) as caught:
        await answered(turn)
    assert "\n" not in str(caught.value)
    return caught.value


async def raw_fault(answer: bytes) -> AgentHostError:
    async with raw_server(answer) as server, client(server.url) as made:
        with pytest.raises(AgentHostError) as caught:
            await call(made)
    return caught.value


async def test_cookies_of_a_gateway_come_back_to_it() -> None:
    """Some send the requests of one client to one server by them."""
    headers = {"set-cookie": "route=a1; Path=/"}
    async with answering(503, b"{}", headers=headers) as server, client(server.url) as made:
        for _ in range(2):
            with pytest.raises(GatewayUnavailable):
                await call(made)
    first, second = server.requests
    assert "cookie" not in first.headers
    assert second.headers["cookie"] == "route=a1"
    same = {*first.headers} - {"cookie"}
    assert {name: second.headers[name] for name in same} == {name: first.headers[name] for name in same}


# --- what goes well ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [None, 1, 7])
async def test_an_answer_comes_whole_however_it_is_cut_up(split: int | None) -> None:
    calls = [{"name": "ReadFile", "arguments": {"path": "/größe"}}]
    turn: dict[str, Any] = {"text": "Grüße\u2028an\u0085alle 👋\r\n", "tool_calls": calls, "pings": 2}
    shown: list[str] = []
    script = Script.from_turns([turn | ({"split_bytes": split} if split else {})])
    async with MockGateway(script) as gateway, client(gateway.url) as made:
        got = await call(made, shown)
    assert got.text == "".join(shown) == turn["text"]
    assert [(one.name, one.arguments) for one in got.tool_calls] == [("ReadFile", {"path": "/größe"})]


async def test_thinking_comes_apart_from_text() -> None:
    turn = {"thinking": "First I think.", "text": "Then I speak.", "redacted_thinking": "x", "chunk_chars": 5}
    said: list[tuple[str, str]] = []
    async with MockGateway(Script.from_turns([turn])) as gateway, client(gateway.url) as made:
        head = made.dialect.head(model="m", max_output_tokens=64, system="Be careful.", tools=[])
        messages = [made.dialect.renderer("m").user([prompt("hi")])]
        await made.stream(
            head, messages, lambda text: said.append(("text", text)), lambda text: said.append(("thinking", text))
        )
    assert said == [
        ("thinking", "First"), ("thinking", " I th"), ("thinking", "ink."),
        ("text", "Then "), ("text", "I spe"), ("text", "ak."),
    ]  # fmt: skip


async def test_the_request_is_that_of_the_messages_api() -> None:
    script = Script.from_turns([{"text": "ok"}])
    async with MockGateway(script, keep_bodies=True) as gateway, client(gateway.url + "/", "the-token") as made:
        renderer = made.dialect.renderer("m")
        first, second = renderer.user([prompt("one")]), b"," + renderer.user([prompt("two")])
        await call(made, None, first, second)
        (record,) = gateway.requests
    assert record.path == "/v1/messages"
    assert {
        name: record.headers[name] for name in ("x-api-key", "x-session-id", "anthropic-version", "content-type")
    } == {
        "x-api-key": "the-token",
        "x-session-id": "sess_1",
        "anthropic-version": "2023-06-01",
        "content-type": "application/json",
    }
    assert record.body is not None
    assert record.headers["content-length"] == str(len(record.body))
    assert [message["content"][0]["text"] for message in orjson.loads(record.body)["messages"]] == ["one", "two"]


async def test_without_a_token_no_credentials_are_sent() -> None:
    expect = {"headers": {"x-api-key": False, "authorization": False}}
    assert (await answered({"text": "ok", "expect": expect})).text == "ok"


async def test_a_thread_of_megabytes_arrives_as_it_is() -> None:
    script = Script.from_turns([{"text": "ok"}])
    async with MockGateway(script, keep_bodies=True) as gateway, client(gateway.url) as made:
        user = made.dialect.renderer("m").user([prompt("x" * 400_000)])
        await call(made, None, user, b",", user, b",", user)
        body = gateway.requests[0].body
    assert body is not None
    assert body.endswith(user + b"," + user + b"," + user + b"]}")


async def test_a_proxy_of_the_environment_is_not_asked_about_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw_server(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n") as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert (await answered({"text": "ok"})).text == "ok"
        assert proxy.requests == []


# --- HTTP errors ------------------------------------------------------------------------------------------------------


@each_row(
    ("status", "kind", "code"),
    [
        (400, GatewayRejected, ErrorCode.LLM_REFUSED),
        (401, GatewayRejected, ErrorCode.UNAUTHORIZED),
        (402, GatewayRejected, ErrorCode.LLM_GATEWAY_ERROR),
        (403, GatewayRejected, ErrorCode.UNAUTHORIZED),
        (404, GatewayRejected, ErrorCode.LLM_REFUSED),
        (405, GatewayRejected, ErrorCode.LLM_REFUSED),
        (408, GatewayUnavailable, ErrorCode.LLM_GATEWAY_ERROR),
        (409, GatewayUnavailable, ErrorCode.LLM_GATEWAY_ERROR),
        (413, GatewayRejected, ErrorCode.LLM_GATEWAY_ERROR),
        (422, GatewayRejected, ErrorCode.LLM_GATEWAY_ERROR),
        (429, GatewayUnavailable, ErrorCode.RATE_LIMITED),
        (446, GuardrailBlocked, ErrorCode.LLM_GUARDRAIL_BLOCKED),
        (500, GatewayUnavailable, ErrorCode.LLM_GATEWAY_ERROR),
        (502, GatewayUnavailable, ErrorCode.LLM_GATEWAY_ERROR),
        (503, ModelOverloaded, ErrorCode.LLM_GATEWAY_ERROR),
        (529, ModelOverloaded, ErrorCode.LLM_GATEWAY_ERROR),
    ],
)
async def test_every_status_has_its_error(status: int, kind: type[AgentHostError], code: ErrorCode) -> None:
    error = await fault({"status": status, "error": {"message": "because\nof this"}})
    assert type(error) is kind
    assert error.details.get("code", error.code) == code
    assert "because of this" in str(error)
    assert str(status) in str(error)


async def test_other_successes_are_no_answer() -> None:
    error = await raw_fault(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert type(error) is GatewayRejected


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    async with raw_server(ok(sse(*events_of({"text": "gotcha"})))) as elsewhere:
        answer = f"HTTP/1.1 {status} Moved\r\nlocation: {elsewhere.url}/v1/messages\r\ncontent-length: 0\r\n\r\n"
        error = await raw_fault(answer.encode())
        assert elsewhere.requests == []
    assert type(error) is GatewayRejected
    assert f"(HTTP {status}): it redirects to {elsewhere.url}/v1/messages, which is not followed: if" in str(error)


@pytest.mark.parametrize("status", [429, 500, 503, 529])
async def test_the_gateway_says_when_to_come_back(status: int) -> None:
    error = await fault({"status": status, "headers": {"retry-after": "7.5"}})
    assert isinstance(error, GatewayUnavailable)
    assert error.retry_after_s == 7.5


async def test_the_moment_may_be_a_date() -> None:
    when = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    error = await fault({"status": 429, "headers": {"retry-after": when}})
    assert isinstance(error, GatewayUnavailable)
    assert error.retry_after_s is not None
    assert 50 < error.retry_after_s <= 60


async def test_milliseconds_count_before_seconds() -> None:
    error = await fault({"status": 429, "headers": {"retry-after-ms": "1500", "retry-after": "7"}})
    assert isinstance(error, GatewayUnavailable)
    assert error.retry_after_s == 1.5


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after-ms": "nan", "retry-after": "7"}, 7.0),
        ({"retry-after-ms": "-1"}, 0.0),
        ({"retry-after": "inf"}, float("inf")),
        ({"retry-after": "nan"}, None),
    ],
)
def test_odd_waits(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, MACHINE.time) == seconds


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_header_of_a_wait_raises(milliseconds: str, seconds: str) -> None:
    wait = retry_after_s({"retry-after-ms": milliseconds, "retry-after": seconds}, MACHINE.time)
    assert wait is None or wait >= 0


@pytest.mark.parametrize("status", [400, 401, 404, 413])
async def test_the_gateway_may_ask_for_a_retry_of_what_would_not_get_one(status: int) -> None:
    error = await fault({"status": status, "headers": {"x-should-retry": "true", "retry-after": "2"}})
    assert type(error) is GatewayUnavailable
    assert (error.again, error.retry_after_s) == (True, 2.0)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 529])
async def test_the_gateway_may_ask_for_no_retry(status: int) -> None:
    error = await fault({"status": status, "headers": {"x-should-retry": "false"}})
    assert isinstance(error, GatewayUnavailable)
    assert not error.again


@pytest.mark.parametrize("said", ["", "maybe", "1"])
async def test_other_words_about_a_retry_say_nothing(said: str) -> None:
    assert type(await fault({"status": 400, "headers": {"x-should-retry": said}})) is GatewayRejected
    error = await fault({"status": 500, "headers": {"x-should-retry": said}})
    assert isinstance(error, GatewayUnavailable)
    assert error.again


async def test_a_request_that_is_too_long_is_no_passing_fault_whatever_the_gateway_asks() -> None:
    said = {"message": "prompt is too long: 213462 tokens > 200000 maximum"}
    error = await fault({"status": 400, "error": said, "headers": {"x-should-retry": "true"}})
    assert isinstance(error, ContextTooLong)
    assert error.limit == 200_000
    assert "llmPolicy.maxInputTokens" in str(error)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0", 0.0), ("-5", 0.0), (" 3 ", 3.0), ("Fri, 01 Jan 1999 00:00:00 GMT", 0.0), ("soon", None), ("", None)],
)
def test_odd_retry_after_headers(value: str, seconds: float | None) -> None:
    assert retry_after_s({"retry-after": value}, MACHINE.time) == seconds


@pytest.mark.parametrize(
    "value", ["Sun Nov  6 08:49:37 1994", "Sun, 06 Nov 1994 08:49:37 -0000", "Sun, 06 Nov 1994 08:49:37"]
)
def test_dates_without_a_zone_are_gmt(value: str) -> None:
    assert retry_after_s({"retry-after": value}, MACHINE.time) == 0.0


@each_row(
    ("body", "said"),
    [
        (b"<html>Bad\n Gateway</html>", "): Bad Gateway (an HTML page)"),
        (
            b"<!DOCTYPE html><html><style>p {}</style><title>\n502 &amp; Bad Gateway</title><body><p>x</body>",
            "): 502 & Bad Gateway (an HTML page)",
        ),
        (b'{"error": {"message": "It said: <html><body><h1>413 Too Large"}}', "It said: 413 Too Large (an HTML page)"),
        (b"a < b and <b>bold</b>", "a < b and <b>bold</b>"),
        (b"", "no details"),
        (b"\xff\xfe\x00", "�"),
        (b'{"detail":"x"}', "): x"),
        (b'{"what":"x"}', '{"what":"x"}'),
        (b"y" * 200_000, "y" * 300),
    ],
)
async def test_an_error_body_of_another_kind_is_shown_in_short(body: bytes, said: str) -> None:
    head = f"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\ncontent-length: {len(body)}\r\n\r\n"
    error = await raw_fault(head.encode() + body)
    assert type(error) is GatewayUnavailable
    assert said in str(error)
    assert len(str(error)) < 500


@pytest.mark.parametrize("body", [b"", b"Not Found", b'{"error": {"message": "no route"}}', b"<html><title>404"])
async def test_what_is_not_there_hints_at_the_url_and_the_dialect(body: bytes) -> None:
    head = f"HTTP/1.1 404 Not Found\r\ncontent-length: {len(body)}\r\n\r\n"
    said = str(await raw_fault(head.encode() + body))
    assert "/v1/messages: check the URL and --dialect" in said
    assert "<" not in said


# --- answers that are none --------------------------------------------------------------------------------------------


@each_row("cut", [{"cut_after_events": n} for n in range(8)] + [{"cut_after_bytes": n} for n in (0, 1, 500)])
async def test_a_cut_stream_is_worth_a_retry(cut: dict[str, int]) -> None:
    error = await fault({"text": "Hello you", "chunk_chars": 3, "tool_calls": [{"name": "X", "arguments": {}}], **cut})
    assert type(error) is GatewayUnavailable
    assert error.retryable


async def test_a_stream_that_ends_too_soon_but_properly_is_worth_a_retry() -> None:
    error = await raw_fault(ok(sse(*events_of({"text": "Hello"})[:-1])))
    assert type(error) is GatewayUnavailable
    assert "ended before the message did" in str(error)


@each_row(
    ("kind", "error_type"),
    [
        ("overloaded_error", ModelOverloaded),
        ("api_error", GatewayUnavailable),
        ("rate_limit_error", GatewayUnavailable),
        ("timeout_error", GatewayUnavailable),
        ("error_of_tomorrow", GatewayUnavailable),
        ("billing_error", GatewayRejected),
        ("request_too_large", GatewayRejected),
        ("invalid_request_error", GatewayRejected),
        ("authentication_error", GatewayRejected),
        ("permission_error", GatewayRejected),
        ("not_found_error", GatewayRejected),
    ],
)
async def test_an_error_in_the_middle_of_an_answer(kind: str, error_type: type[AgentHostError]) -> None:
    error = await fault({"text": "Hel", "stream_error": {"type": kind, "message": "boom"}})
    assert type(error) is error_type
    assert f"{kind}: boom" in str(error)


async def test_an_error_in_the_middle_may_say_that_the_request_is_too_long() -> None:
    said = {"type": "invalid_request_error", "message": "prompt is too long: 9000 tokens > 8000 maximum"}
    error = await fault({"text": "Hel", "stream_error": said})
    assert isinstance(error, ContextTooLong)
    assert error.limit == 8000


def answer_of(body: bytes, kind: str = "application/json") -> bytes:
    """A successful answer with this body."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@each_row(
    ("body", "kind"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "boom"}}, ModelOverloaded),
        ({"error": {"message": "boom", "code": "context_length_exceeded"}}, ContextTooLong),
        ({"error": {"message": "boom", "code": 402}}, GatewayRejected),
        ({"error": {"message": "boom", "code": 429}}, GatewayUnavailable),
        ({"error": {"message": "boom", "code": 400}}, GatewayRejected),
        ({"error": "boom"}, GatewayUnavailable),
        ([{"error": {"message": "boom", "code": 403, "status": "PERMISSION_DENIED"}}], GatewayRejected),
        ({"object": "error", "message": "boom", "type": "BadRequestError", "code": 400}, GatewayRejected),
    ],
)
@each_row("content_type", ["application/json", "application/problem+json; charset=utf-8"])
async def test_an_error_in_the_body_of_a_success_is_read(
    body: Any, kind: type[AgentHostError], content_type: str
) -> None:
    error = await raw_fault(answer_of(orjson.dumps(body), content_type))
    assert type(error) is kind
    assert "HTTP 200" in str(error)
    assert "boom" in str(error)


WHOLE = {"type": "message", "content": [{"type": "text", "text": "Hello"}], "error": None, "stop_reason": "end_turn"}


@pytest.mark.parametrize("coding", ["", "gzip"])
async def test_a_whole_answer_without_a_stream_is_read(coding: str) -> None:
    body = b"\xef\xbb\xbf" + orjson.dumps(WHOLE)
    zipped = answer_of(gzip.compress(body), "application/json\r\ncontent-encoding: gzip")
    answer = zipped if coding else answer_of(body)
    shown: list[str] = []
    async with raw_server(answer) as server, client(server.url) as made:
        turn = await call(made, shown)
    assert (turn.text, turn.meaning, shown) == ("Hello", "complete", ["Hello"])


async def test_a_whole_answer_is_bounded_as_a_stream_is() -> None:
    body = {**WHOLE, "content": [{"type": "text", "text": "x" * 40_000_000}]}
    error = await raw_fault(answer_of(orjson.dumps(body)))
    assert type(error) is GatewayRejected
    assert "max_line_bytes" in str(error)


@pytest.mark.parametrize(
    "body",
    [
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
        {"object": "chat.completion", "choices": [{"message": {"content": "Hello"}}]},
        {"object": "response", "status": "completed", "error": None, "output": []},
    ],
)
async def test_a_whole_answer_of_another_dialect_is_called_so(body: dict[str, Any]) -> None:
    error = await raw_fault(answer_of(orjson.dumps(body)))
    assert type(error) is GatewayRejected
    assert "not an answer of this dialect: check the URL and --dialect" in str(error)


@each_row("body", [b"", b"{}", b"[]", b"5", b"null", b'{"hello"', b'{"error": null}', b"[[[[[[[[[]]]]]]]]]"])
async def test_a_body_of_json_that_says_nothing_is_no_answer(body: bytes) -> None:
    error = await raw_fault(answer_of(body))
    assert type(error) is GatewayRejected
    assert "application/json" in str(error)


async def test_a_secret_in_an_error_is_not_shown_wherever_it_stands() -> None:
    said = {"error": {"message": "no", "metadata": {"raw": "the key s3cr3t-t0ken is wrong"}}}
    async with raw_server(answer_of(orjson.dumps(said))) as server, client(server.url, "s3cr3t-t0ken") as made:
        with pytest.raises(AgentHostError) as caught:
            await call(made)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    "garbage", ["no events at all", "event: message_start\ndata: {broken\n\n", "\n\n\n", [0, 255, 10]]
)
async def test_garbage_is_worth_a_retry(garbage: str | list[int]) -> None:
    assert type(await fault({"garbage": garbage})) is GatewayUnavailable


@pytest.mark.parametrize("kind", ["application/json", "text/html; charset=utf-8", "text/event-stream-x", "text/plain"])
async def test_an_answer_that_is_no_event_stream_is_not(kind: str) -> None:
    error = await fault({"text": "Hello", "headers": {"content-type": kind}})
    assert type(error) is GatewayRejected
    assert kind.partition(";")[0] in str(error)
    assert "--dialect" in str(error)


@pytest.mark.parametrize(
    "kind",
    [
        "text/event-stream",
        "text/event-stream ; x=y",
        "Text/Event-Stream;charset=UTF-8",
    ],
)
async def test_the_content_type_may_be_spelled_in_any_way(kind: str) -> None:
    body = sse(*events_of({"text": "Hello"}))
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    async with raw_server(head.encode() + body) as server, client(server.url) as made:
        assert (await call(made)).text == "Hello"


async def test_no_http_at_all_is_worth_a_retry() -> None:
    assert type(await raw_fault(b"SSH-2.0-OpenSSH_9.2\r\n")) is GatewayUnavailable
    assert type(await raw_fault(b"")) is GatewayUnavailable


async def test_bytes_that_are_no_utf_8_are_no_answer() -> None:
    body = sse(started(), *text(0, "rm /tmp/ä"), *ended()).replace("ä".encode(), b"\xe4")
    assert type(await raw_fault(ok(body))) is GatewayUnavailable


async def test_an_event_stream_is_utf_8_whatever_the_header_says() -> None:
    body = sse(*events_of({"text": "Grüße"}))
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=latin-1\r\ncontent-length: {len(body)}\r\n\r\n"
    async with raw_server(head.encode() + body) as server, client(server.url) as made:
        assert (await call(made)).text == "Grüße"


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
async def test_an_answer_that_cannot_be_decompressed_is_an_error_of_ours(status: str) -> None:
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n"
    )
    assert type(await raw_fault(head.encode() + b"nope")) is GatewayUnavailable


async def test_a_compressed_answer_is_read() -> None:
    body = gzip.compress(sse(*events_of({"text": "Hello"})))
    async with raw_server(ok(body, "content-encoding: gzip")) as server, client(server.url) as made:
        assert (await call(made)).text == "Hello"


async def test_what_is_accepted_is_what_can_be_read_in_small_pieces() -> None:
    expect = {"headers": {"accept-encoding": "gzip, deflate"}}
    assert (await answered({"text": "ok", "expect": expect})).text == "ok"


async def test_a_content_encoding_that_was_not_offered_is_refused() -> None:
    error = await raw_fault(ok(b"whatever", "content-encoding: br"))
    assert type(error) is GatewayRejected
    assert "content encoding br" in str(error)


@pytest.mark.parametrize(("status", "kind"), [(401, GatewayRejected), (503, ModelOverloaded)])
@pytest.mark.parametrize(
    ("body", "coding"), [(b"nope", "gzip"), (b"nope", "br"), (gzip.compress(bytes(50_000_000)), "gzip")]
)
async def test_the_status_counts_whatever_the_body_of_an_error_is(
    body: bytes, coding: str, status: int, kind: type[AgentHostError]
) -> None:
    head = f"HTTP/1.1 {status} No\r\ncontent-encoding: {coding}\r\ncontent-length: {len(body)}\r\n\r\n"
    error = await raw_fault(head.encode() + body)
    assert type(error) is kind
    assert str(status) in str(error)
    assert len(str(error)) < 500


async def test_an_error_in_an_answer_is_shown_in_short() -> None:
    error = await fault({"text": "x", "stream_error": {"type": "api_error", "message": "boom\n" * 10_000}})
    assert "api_error: boom boom" in str(error)
    assert len(str(error)) < 500


TIGHT = LIMITS._replace(max_line_bytes=5000, max_event_bytes=4000, max_call_arguments_bytes=1000)


@pytest.mark.parametrize(
    ("turn", "setting"),
    [
        ({"text": "x" * 5000, "chunk_chars": 5000}, "max_line_bytes"),
        ({"text": "x" * 4000, "chunk_chars": 5000}, "max_event_bytes"),
        ({"tool_calls": [{"name": "X", "arguments": {"a": "x" * 1000}}]}, "max_call_arguments_bytes"),
        ({"text": "".join(map(str, range(20_000)))}, "max_answer_bytes"),
    ],
)
async def test_what_is_over_a_limit_is_not_worth_a_retry(turn: dict[str, Any], setting: str) -> None:
    limits = TIGHT._replace(max_answer_bytes=50_000)
    async with MockGateway(Script.from_turns([turn])) as gateway, client(gateway.url, limits=limits) as made:
        with pytest.raises(GatewayRejected, match=rf"of more than {getattr(limits, setting)} bytes \(llm\.{setting}\)"):
            await call(made)


async def test_content_gives_a_gateway_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    patience = Patience(TIMEOUTS._replace(progress_s=60, answer_s=100))
    first = patience.timeout.when()
    assert first == pytest.approx(began + 60, abs=5)
    moved = []
    async with patience.timeout:
        for later in (0.5, 20, 30, 90):  # the first is less than a hundredth of the time
            monkeypatch.setattr(patience, "_now", lambda later=later: began + later)
            patience.renew()
            moved.append(patience.timeout.when())
    assert moved == [first, began + 80, began + 90, pytest.approx(began + 100, abs=5)]


async def test_content_gives_no_time_beyond_the_end_of_the_answer() -> None:
    patience = Patience(TIMEOUTS._replace(progress_s=60, answer_s=50))
    first = patience.timeout.when()
    async with patience.timeout:
        await asyncio.sleep(0)
        patience.renew()
        assert patience.timeout.when() == first
    assert patience.what_was_missed() == "was not done after 50 s (llm.answer_timeout_s)"


@pytest.mark.parametrize("turn", [{"hang": True}, {"text": "Hello", "chunk_delay_ms": 5000}])
async def test_silence_ends_at_the_time_out(turn: dict[str, Any]) -> None:
    async with MockGateway(Script.from_turns([turn])) as gateway, client(gateway.url, read_s=0.05) as made:
        with pytest.raises(GatewayUnavailable, match="did not answer in time"):
            await call(made)


async def test_a_gateway_that_is_not_there_is_worth_a_retry() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port
        async with client(f"http://127.0.0.1:{taken.getsockname()[1]}") as made:
            with pytest.raises(GatewayUnavailable, match=r"127\.0\.0\.1"):
                await call(made)


async def test_the_client_is_good_after_any_failure() -> None:
    turns: list[dict[str, Any]] = [
        {"text": "x", "cut_after_events": 2},
        {"status": 500},
        {"garbage": "nonsense"},
        {"text": "fine"},
    ]
    async with MockGateway(Script.from_turns(turns)) as gateway, client(gateway.url) as made:
        for _ in range(3):
            with pytest.raises(GatewayUnavailable):
                await call(made)
        assert (await call(made)).text == "fine"


async def test_cancelling_a_call_leaves_the_client_usable() -> None:
    turns: list[dict[str, Any]] = [{"hang": True}, {"text": "fine"}]
    async with MockGateway(Script.from_turns(turns)) as gateway, client(gateway.url) as made:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await call(made)
        assert (await call(made)).text == "fine"


@pytest.mark.parametrize(
    "url",
    [
        "http://host:port",
        "http://[::1",
        "http://",
        "ftp://host",
        "host",
        "http://127.0.0.1:99999",
    ],
)
async def test_a_url_that_cannot_be_used_is_an_error_of_ours(url: str) -> None:
    with pytest.raises(AgentHostError):
        async with client(url) as made:
            await call(made)


@pytest.mark.parametrize(
    "token",
    [
        "s3cr3t\n",
        "s3c\0r3t",
        "\ts3cr3t",
        " s3cr3t",
        "s3cr3t ",
    ],
)
async def test_a_token_that_is_no_header_value_is_not_shown(token: str) -> None:
    said = ""
    try:
        await answered({"text": "ok"}, token)  # surrounding space may be taken off
    except AgentHostError as error:
        said = str(error)
    assert "s3c" not in said


async def test_a_token_beyond_ascii_is_an_error_of_ours() -> None:
    with pytest.raises(AgentHostError) as caught:
        await answered({"text": "ok"}, token="s3crét")
    assert "s3cr" not in str(caught.value)


async def test_a_null_in_place_of_text_is_an_error_of_ours() -> None:
    null = event("content_block_delta", index=0, delta={"type": "text_delta", "text": None})
    assert isinstance(await raw_fault(ok(sse(started(), text(0)[0], null, *ended()))), GatewayUnavailable)


# Answers that repeat themselves


@each_row("piece", ["\n", "Let me think. ", "éa" * 70, "".join(map(str, range(190)))])
@each_row("kind", ["text", "thinking"])
async def test_an_answer_that_repeats_one_piece_is_cut_there(piece: str, kind: str) -> None:
    said = "I begin. " + piece * (200_000 // len(piece))
    turn = {kind: said, "text": "Done.", "usage": {"output_tokens": 7}} | {kind: said}
    async with MockGateway(Script.from_turns([turn])) as gateway, client(gateway.url) as made:
        texts: list[str] = []
        found = await call(made, texts)
    assert (found.meaning, found.tool_calls) == ("repeated", ())
    assert len("".join(texts)) < 12_000
    assert found.text.startswith("I begin. " if kind == "text" else "")
    assert len(found.text.encode()) < 3_000


@pytest.mark.parametrize("character", ["x", "─"])
@pytest.mark.parametrize(
    ("bytes_of_run", "stop_reason", "meaning"),
    [
        (200_000, "end_turn", "complete"),
        (200_000, "max_tokens", "repeated"),
        (2_000_000, "end_turn", "repeated"),
    ],
)
async def test_a_run_of_one_character_is_judged_by_how_it_ends(
    character: str, bytes_of_run: int, stop_reason: str, meaning: str
) -> None:
    said = "I begin. " + character * (bytes_of_run // len(character.encode()))
    turn = {"text": said, "stop_reason": stop_reason, "chunk_chars": 5_000}
    async with MockGateway(Script.from_turns([turn])) as gateway, client(gateway.url) as made:
        texts: list[str] = []
        found = await call(made, texts)
    assert found.meaning == meaning
    assert len("".join(texts).encode()) < 1_100_000
    assert found.text == said if meaning == "complete" else len(found.text.encode()) < 3_000


async def test_thinking_that_is_a_run_of_one_character_is_cut() -> None:
    turn = {"thinking": "x" * 200_000, "text": "Done."}
    async with MockGateway(Script.from_turns([turn])) as gateway, client(gateway.url) as made:
        assert (await call(made)).meaning == "repeated"


@pytest.mark.parametrize(
    "text", ["x" * 8_000, "".join(map(str, range(513))) * 9, "a line of words, " * 480 + "The end.", "x" * 20_000 + "."]
)
async def test_what_repeats_itself_less_is_an_answer(text: str) -> None:
    async with MockGateway(Script.from_turns([{"text": text}])) as gateway, client(gateway.url) as made:
        assert (await call(made)).text == text
