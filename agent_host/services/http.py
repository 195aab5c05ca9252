"""The HTTP client shared by all backend services: JSON over REST, retries, one error per failed request (AH 11)."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from agent_host import http
from agent_host.errors import (
    ErrorCode,
    ServiceError,
    ServiceRejected,
    ServiceUnauthorized,
    ServiceUnavailable,
    ServiceUnreachable,
    UsageError,
)
from agent_host.http import (
    HttpAnswer,
    RetryPolicy,
    TlsContext,
    call_with_retries,
    displayable_url,
    first_line,
    is_loopback,
    retry_after_s,
    sendable_cookies,
    strip_html,
    usable_in_header,
)
from agent_host.redaction import Scrubber
from agent_host.services import check_line, check_service_url
from config import json_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from agent_host.ids import Outside


MAX_ANSWER_BYTES = 32 * 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024
_PIECE_BYTES = 256 * 1024
# A body may be 67 MB, and some connections are slow: the timeout grows by a second for each of these.
_SLOWEST_BYTES_PER_S = 256 * 1024
_PASSING_STATUSES = frozenset({408, 429})


# Statuses of a service that accepts only one event per request, which is all that the interface promises.
_TAKES_NO_ARRAY = frozenset({400, 404, 415, 422})


class StreamedBody(Protocol):
    """A body that is generated while it is sent."""

    def __len__(self) -> int:
        """The number of bytes."""

    def pieces(self) -> Iterator[bytes]:
        """Generate the whole body; each attempt starts again at the first piece."""


class ServiceClient:
    """Client of one service. Safe to build before the event loop runs; nothing is imported, read or connected before
    the first request.

    `timeout_s` is for one whole attempt; a large body gets more. There are `retries` after a temporary failure:
    network, 408, 429, 5xx, unless the service's response says otherwise (`retryable`). A Retry-After header replaces
    the backoff, and neither is longer than `retry_max_s`. Clients may share `tls`, because making one takes 20 ms.
    Raises UsageError for a URL or a token that no request could carry.
    """

    def __init__(
        self,
        base_url: str,
        token: str | None,
        *,
        outside: Outside,
        timeout_s: float = 10.0,
        retries: int = 3,
        retry_base_s: float = 0.5,
        retry_max_s: float = 30.0,
        tls: TlsContext | None = None,
    ) -> None:
        self._base_url = check_service_url(base_url, "the service's URL")
        if token is not None and not usable_in_header(token):
            raise UsageError("the services' token contains characters that no header can carry")
        self._token = token
        self._scrubber = Scrubber([token])  # a service may quote what it rejects
        self._timeout_s = timeout_s
        self._retry = RetryPolicy(retries, retry_base_s, retry_max_s, max_retry_after_s=retry_max_s)
        self._tls = tls
        self._outside = outside
        self._http: http.httpx.AsyncClient | None = None
        self._making = asyncio.Lock()
        self._closed = False

    async def post(self, path: str, body: bytes | StreamedBody, *, idempotency_key: str | None = None) -> Any:
        """POST `body`, which is JSON, to `path` under the base URL; returns the JSON of the response, None for an empty
        one. Exceptions of a body's `pieces` propagate.

        All attempts of a request carry the same `Idempotency-Key`, a random one if none is given. Raises
        ServiceUnavailable, ServiceRejected, ServiceUnauthorized.
        """
        headers = {"idempotency-key": idempotency_key or self._outside.random_bytes(16).hex()}
        timeout_s = self._timeout_s + len(body) / _SLOWEST_BYTES_PER_S

        async def attempt() -> Any:
            async with self._send("POST", path, body, headers, timeout_s) as response:
                return await self._read(response, displayable_url(self._base_url) + path)

        return await call_with_retries(ServiceUnavailable, attempt, self._retry, _untold, self._outside)

    def clean(self, text: str) -> str:
        """Return a service's text as one short line without HTML, control characters and the token."""
        return check_line(strip_html(self._scrubber.text(text[:_MAX_ERROR_BYTES]))) or ""

    async def aclose(self) -> None:
        """Close the connections; later requests raise ServiceUnreachable. May be called again."""
        async with self._making:
            self._closed = True
            if self._http is not None:
                http, self._http = self._http, None
                await http.aclose()

    async def exchange(
        self, method: str, path: str, body: bytes = b"", *, headers: Mapping[str, str] = {}, timeout_s: float
    ) -> HttpAnswer:
        """Send one request and return the response, whatever its status: for services whose statuses mean more than
        success or failure. Nothing is retried. Raises ServiceUnreachable if nothing was sent, ServiceUnavailable if
        there was no complete response, ServiceRejected if it is too large or encoded."""
        async with self._send(method, path, body, headers, timeout_s) as response:
            content = await self._content(response, displayable_url(self._base_url) + path)
            return HttpAnswer(response.status_code, response.headers, content)

    @asynccontextmanager
    async def _send(
        self, method: str, path: str, body: bytes | StreamedBody, headers: Mapping[str, str], timeout_s: float
    ) -> AsyncIterator[http.httpx.Response]:
        """Send one request; its response's body must be read inside the context, within the timeout."""
        client = await self._client()
        shown = displayable_url(self._base_url) + path
        content = _pieces(body) if len(body) else None
        sized = {**headers, "content-length": str(len(body))} if len(body) else headers
        try:
            async with (
                asyncio.timeout(timeout_s),
                client.stream(
                    method,
                    self._base_url + path,
                    content=content,
                    headers=sized,
                    timeout=http.httpx.Timeout(timeout_s, connect=min(timeout_s, self._timeout_s)),
                ) as response,
            ):
                yield response
        except (http.httpx.ConnectTimeout, http.httpx.PoolTimeout) as error:
            raise ServiceUnreachable(f"{shown} did not answer in time") from error
        except (http.httpx.TimeoutException, TimeoutError) as error:
            raise ServiceUnavailable(f"{shown} did not answer in time") from error
        except http.httpx.RequestError as error:
            reason = self._scrubber.text(first_line(error))
            kind = ServiceUnreachable if isinstance(error, http.httpx.ConnectError) else ServiceUnavailable
            raise kind(f"{shown} cannot be reached: {reason}") from error

    async def _client(self) -> http.httpx.AsyncClient:
        async with self._making:
            if self._closed:
                raise ServiceUnreachable(f"the client of {displayable_url(self._base_url)} is closed")
            if self._http is None:
                # In a thread, because importing httpx and loading the trusted roots would block the event loop.
                self._http = await asyncio.to_thread(self._make)
            return self._http

    def _make(self) -> http.httpx.AsyncClient:
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            # The size of a compressed body is unbounded until it is read.
            "accept-encoding": "identity",
        }
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        return http.httpx.AsyncClient(
            headers=headers,
            cookies=sendable_cookies(),
            timeout=self._timeout_s,
            verify=(self._tls or TlsContext(self._base_url)).get(),
            follow_redirects=False,
            trust_env=not is_loopback(http.httpx.URL(self._base_url).host),
        )

    async def _read(self, response: http.httpx.Response, shown: str) -> Any:
        if not response.is_success:
            raise self._error(response, await _read_bounded(response, _MAX_ERROR_BYTES), shown)
        status, body = response.status_code, await self._content(response, shown)
        if not body:
            return None
        try:
            return json_text.loads(body)
        except orjson.JSONDecodeError as error:
            kind = self.clean(response.headers.get("content-type", "")) or "no content type"
            raise ServiceRejected(
                f"{shown} answered with something that is not JSON ({kind})", status=status
            ) from error

    async def _content(self, response: http.httpx.Response, shown: str) -> bytes:
        """Read the whole body. Raises ServiceRejected if it is encoded or larger than the limit."""
        status = response.status_code
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ServiceRejected(f"{shown} answered in an encoding that was not asked for", status=status)
        body = await _read_bounded(response, MAX_ANSWER_BYTES + 1)
        if len(body) > MAX_ANSWER_BYTES:
            raise ServiceRejected(f"{shown} answered with more than {MAX_ANSWER_BYTES} bytes", status=status)
        return body

    def _error(self, response: http.httpx.Response, body: bytes, shown: str) -> ServiceError:
        status = response.status_code
        if response.is_redirect:
            return ServiceRejected(f"{shown} redirects elsewhere (HTTP {status}), which is not followed", status=status)
        code, words, retryable = _error_body(body)
        code = self.clean(code) if code else None
        detail = self.clean(body.decode("utf-8", "replace") if words is None else words)
        message = f"{shown} said HTTP {status}{f' {code}' if code else ''}: {detail or 'no details'}"
        passing = status in _PASSING_STATUSES or status >= 500
        if passing if retryable is None else retryable:
            details = {"code": ErrorCode.RATE_LIMITED} if status == 429 else {}
            again_after_s = retry_after_s(response.headers, self._outside.time)
            return ServiceUnavailable(message, status=status, retry_after_s=again_after_s, **details)
        kind = ServiceUnauthorized if status in (401, 403) else ServiceRejected
        return kind(message, status=status, service_code=code)


def _error_body(body: bytes) -> tuple[str | None, str | None, bool | None]:
    """Return (code, message, retryable) of an error body; None for each that is missing or has a wrong type."""
    try:
        value = json_text.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        return None, None, None
    code, message, retryable = value.get("code"), value.get("message"), value.get("retryable")
    is_code = isinstance(code, str) and code.isascii() and code.isidentifier() and len(code) <= 64
    return (
        code if is_code else None,
        message if isinstance(message, str) else None,
        retryable if isinstance(retryable, bool) else None,
    )


async def _read_bounded(response: http.httpx.Response, limit: int) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) >= limit:
            break
    return bytes(body[:limit])


async def _pieces(body: bytes | StreamedBody) -> AsyncIterator[bytes]:
    """Yield the body in pieces. If it were passed as bytes, it would stay in memory until the next garbage collection,
    because httpx's requests are in a reference cycle."""
    if not isinstance(body, bytes):
        for piece in body.pieces():
            yield piece
        return
    for start in range(0, len(body), _PIECE_BYTES):
        yield body[start : start + _PIECE_BYTES]


def _untold(_number: int, _wait_s: float, _error: ServiceUnavailable) -> None:
    """Retries are not reported, because these services work alongside the session (AH 11)."""


class HttpEventService:
    """Post event envelopes to `path`: one as it is, several as a JSON array as long as the service accepts arrays."""

    def __init__(self, client: ServiceClient, path: str) -> None:
        self._client = client
        self._path = path
        self._takes_arrays = True

    async def post(self, events: Sequence[bytes]) -> None:
        """Deliver `events`, each an encoded envelope without newline, in order. Raises ServiceUnavailable,
        ServiceRejected; events before the failed one have been delivered, and the service recognizes them by their
        Idempotency-Key if they are sent again."""
        if len(events) > 1 and self._takes_arrays:
            try:
                await self._send(b"[" + b",".join(events) + b"]")
            except ServiceRejected as error:
                if error.status not in _TAKES_NO_ARRAY:
                    raise
                self._takes_arrays = False
            else:
                return
        for event in events:
            await self._send(event)

    async def _send(self, body: bytes) -> None:
        await self._client.post(self._path, body, idempotency_key=hashlib.sha256(body).hexdigest())
