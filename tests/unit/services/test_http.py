"""The services' client against real HTTP on loopback: retries, keys, and whatever a server may answer."""

from __future__ import annotations

import asyncio
import socket
import time
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_host.errors import (
    ErrorCode,
    ServiceError,
    ServiceRejected,
    ServiceUnauthorized,
    ServiceUnavailable,
    UsageError,
)
from agent_host.ids import MACHINE
from agent_host.services.http import MAX_ANSWER_BYTES, ServiceClient
from agent_host.testing.http1 import HttpRequest, MockServer, Reply
from agent_host.testing.services import MockServices
from tests.support.raw_http import answering
from tests.support.rows import each_row
from tests.unit.services.helpers import TOKEN, client

APPROVAL = {
    "approvalId": "a", "sessionId": "s", "taskId": "t", "userId": "u", "tenantId": "t", "workspaceId": "w",
    "decision": "approved", "actionSummary": "x",
}  # fmt: skip
BODY = orjson.dumps(APPROVAL)


async def fault(url: str, **options: Any) -> ServiceError:
    """What the client makes of the server at `url`; no token in any of it."""
    async with client(url, **options) as made:
        with pytest.raises(ServiceError) as caught:
            await made.post("/approvals", BODY)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(caught.value.details)
    assert TOKEN not in told
    return caught.value


# --- what goes well ---------------------------------------------------------------------------------------------------


async def test_a_request_is_json_with_the_token_and_a_key() -> None:
    async with MockServices(token=TOKEN) as services, client(services.url + "/") as made:
        assert await made.post("/approvals", BODY) == {"approvalId": "a"}
    (request,) = services.requests
    assert (request.method, request.path, request.body) == ("POST", "/approvals", APPROVAL)
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["content-length"] == str(len(BODY))
    assert request.headers["idempotency-key"]


async def test_without_a_token_there_is_no_header() -> None:
    async with MockServices() as services, client(services.url, None) as made:
        await made.post("/approvals", BODY)
    assert "authorization" not in services.requests[0].headers


async def test_an_empty_answer_is_none() -> None:
    async with answering(204, b"") as server, client(server.url) as made:
        assert await made.post("/x", b"{}") is None


async def test_cookies_of_a_service_come_back_to_it() -> None:
    async with answering(200, b"{}", headers={"set-cookie": "route=a1; Path=/"}) as server, client(server.url) as made:
        for _ in range(2):
            assert await made.post("/x", b"{}") == {}
    assert [request.headers.get("cookie") for request in server.requests] == [None, "route=a1"]


async def test_requests_at_once_share_one_client() -> None:
    async with MockServices() as services, client(services.url) as made:
        await asyncio.gather(*(made.post("/approvals", BODY) for _ in range(5)))
    assert len({request.headers["idempotency-key"] for request in services.requests}) == 5


# --- trying again -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
async def test_a_passing_fault_is_tried_again_with_the_same_key(status: int) -> None:
    async with MockServices() as services, client(services.url) as made:
        services.fail("/approvals", status, times=2)
        await made.post("/approvals", BODY)
    assert len(services.requests) == 3
    assert len({request.headers["idempotency-key"] for request in services.requests}) == 1
    assert [request.body for request in services.requests] == [APPROVAL] * 3


async def test_what_stays_away_is_unavailable_and_says_so() -> None:
    async with MockServices() as services:
        services.fail("/", 503, times=9)
        error = await fault(services.url)
        assert len(services.requests) == 3
    assert isinstance(error, ServiceUnavailable)
    assert (error.status, error.retryable, error.code, error.rpc_code) == (503, True, "INTERNAL_ERROR", -32603)
    assert f"{services.url}/approvals said HTTP 503 INTERNAL_ERROR: failed on request" in str(error)


async def test_rate_limiting_has_its_name() -> None:
    async with MockServices() as services:
        services.fail("/", 429, times=9)
        assert (await fault(services.url)).details == {"code": ErrorCode.RATE_LIMITED}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
async def test_what_would_fail_again_is_not_tried_again(status: int) -> None:
    async with MockServices() as services:
        services.fail("/", status)
        error = await fault(services.url)
    assert isinstance(error, ServiceRejected)
    assert (error.status, error.retryable) == (status, False)
    assert len(services.requests) == 1
    assert isinstance(error, ServiceUnauthorized) == (status in (401, 403))
    if status in (401, 403):
        assert error.code == ErrorCode.UNAUTHORIZED


async def test_the_service_s_own_word_on_a_retry_wins() -> None:
    async with MockServices() as services, client(services.url) as made:
        services.fail("/", 409, body={"code": "BUSY", "message": "soon", "retryable": True})
        assert await made.post("/approvals", BODY)
        services.fail("/", 503, body={"code": "GONE", "message": "for good", "retryable": False})
        with pytest.raises(ServiceRejected, match="HTTP 503 GONE: for good") as caught:
            await made.post("/approvals", BODY)
    assert (caught.value.status, caught.value.service_code) == (503, "GONE")


async def test_retry_after_replaces_the_back_off() -> None:
    async with MockServices() as services, client(services.url, retry_base_s=30, retry_max_s=60) as made:
        services.fail("/", 503, retry_after="0.05")
        began = time.monotonic()
        await made.post("/approvals", BODY)
    assert 0.04 < time.monotonic() - began < 20


@pytest.mark.parametrize(
    "wanted",
    ["100000", pytest.param(format_datetime(datetime.now(UTC) + timedelta(days=2)), id="in two days"), "inf"],
)
async def test_retry_after_is_capped(wanted: str) -> None:
    async with MockServices() as services, client(services.url, retry_max_s=0.02) as made:
        services.fail("/", 429, retry_after=wanted, times=2)
        async with asyncio.timeout(20):
            await made.post("/approvals", BODY)


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        error = await fault(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert isinstance(error, ServiceUnavailable)
    assert error.status is None


async def test_a_cut_connection_is_tried_again() -> None:
    tries = 0

    async def handle(_: HttpRequest, reply: Reply) -> None:
        nonlocal tries
        tries += 1
        await reply.stream(200, {"content-type": "application/json"}, [b'{"a":'], complete=False)

    server = MockServer(handle)
    url = await server.start()
    assert isinstance(await fault(url), ServiceUnavailable)
    await server.aclose()
    assert tries == 3


async def test_a_service_that_hangs_is_given_up() -> None:
    async with MockServices() as services:
        services.hang("/")
        error = await fault(services.url, timeout_s=0.1, retries=1)
    assert "did not answer in time" in str(error)
    assert len(services.requests) == 2


async def test_a_service_that_drips_is_given_up() -> None:
    async def handle(_: HttpRequest, reply: Reply) -> None:
        await reply.stream(200, {"content-type": "application/json"}, [b" "] * 1000, separately=True, pause_s=0.02)

    server = MockServer(handle)
    url = await server.start()
    async with asyncio.timeout(10):
        error = await fault(url, timeout_s=0.2, retries=0)
    await server.aclose()
    assert "did not answer in time" in str(error)


async def test_cancelling_ends_a_request_and_its_waits() -> None:
    async with MockServices() as services, client(services.url, retry_base_s=60, retry_max_s=60) as made:
        services.fail("/", 503)
        waiting = asyncio.create_task(made.post("/approvals", BODY))
        async with asyncio.timeout(10):
            while not services.requests:  # noqa: ASYNC110  the server gives no event to wait for
                await asyncio.sleep(0.005)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_closed_is_closed() -> None:
    async with MockServices() as services, client(services.url, retries=0) as made:
        await made.post("/approvals", BODY)
        await made.aclose()
        await made.aclose()
        with pytest.raises(ServiceUnavailable, match="closed"):
            await made.post("/approvals", BODY)


# --- what a server may answer -----------------------------------------------------------------------------------------


@each_row(
    ("status", "body", "options", "said"),
    [
        (200, b"<html>log in</html>", {"content_type": "text/html"}, "not JSON (text/html)"),
        (200, b"{" * 100_000, {}, "not JSON"),
        (200, b"\xff\xfe", {}, "not JSON"),
        (200, b'{"a": NaN}', {}, "not JSON"),
        (200, b"\x1f\x8b", {"headers": {"content-encoding": "gzip"}}, "encoding"),
        (302, b"", {"headers": {"location": "http://127.0.0.1:1/elsewhere"}}, "redirects elsewhere"),
        (307, b"", {"headers": {"location": "/approvals2"}}, "redirects elsewhere"),
        (404, b"\x1b[2J\x1b]0;owned\x07", {"content_type": "text/plain"}, "HTTP 404"),
        (400, b'{"code": 5, "message": ["x"], "retryable": "yes"}', {}, "HTTP 400"),
        (400, b'{"code": "a b; rm", "message": "line\\nline"}', {}, "HTTP 400: line line"),
        (400, b"[1]", {}, "HTTP 400: [1]"),
        (400, b"", {}, "no details"),
        (400, b'{"message": "' + b"x" * 1_000_000 + b'"}', {}, "HTTP 400"),
    ],
)
async def test_a_hostile_answer_is_one_clear_error(
    status: int, body: bytes, options: dict[str, Any], said: str
) -> None:
    async with answering(status, body, **options) as server:
        error = await fault(server.url)
        assert len(server.requests) == 1
    assert isinstance(error, ServiceRejected)
    assert error.status == status
    assert said in str(error)


async def test_an_answer_without_end_is_cut_off() -> None:
    async def handle(_: HttpRequest, reply: Reply) -> None:
        await reply.stream(200, {"content-type": "application/json"}, [b" " * (1 << 20)] * 64)

    server = MockServer(handle)
    url = await server.start()
    error = await fault(url)
    await server.aclose()
    assert str(MAX_ANSWER_BYTES) in str(error)


@each_row("status", [400, 401, 503])
@each_row(
    "body",
    [
        f"bad header: Bearer {TOKEN}".encode(),
        orjson.dumps({"code": "UNAUTHORIZED", "message": f"token {TOKEN} is unknown", "retryable": False}),
        orjson.dumps({"code": TOKEN.replace("-", "_"), "message": "x" * 280 + TOKEN}),
        b'{"message": "' + "".join(f"\\u{ord(char):04x}" for char in TOKEN).encode() + b'"}',
    ],
)
async def test_a_token_that_is_quoted_is_taken_out(status: int, body: bytes) -> None:
    async with answering(status, body) as server:
        await fault(server.url)


@pytest.mark.parametrize("token", ["a\nb", "a b ", "\u20ac", "a\0b"])
def test_a_token_that_no_header_carries_is_refused_and_not_quoted(token: str) -> None:
    with pytest.raises(UsageError) as caught:
        ServiceClient("http://127.0.0.1:1", token, outside=MACHINE)
    assert token not in str(caught.value)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([200, 201, 400, 404, 500]))
def test_any_bytes_are_an_answer_or_an_error(body: bytes, status: int) -> None:
    async def ask() -> None:
        async with answering(status, body) as server, client(server.url, retries=0) as made:
            answer: Any
            try:
                answer = await made.post("/x", b"{}")
            except ServiceError as error:
                answer = error
        if isinstance(answer, ServiceError):
            assert str(answer).isprintable()
        else:
            assert status < 300
            assert answer == (orjson.loads(body) if body else None)

    asyncio.run(ask())
