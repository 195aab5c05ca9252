"""The HTTP side of a connection: TLS, credentials for one origin, and what counts and mends the bytes below the SDK."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING

import httpx2
import orjson

from tool_runtime.faults import FaultKind, ToolFault
from tool_runtime.mcp.servers import MAX_ANSWER_BYTES, origin_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tool_runtime.mcp.servers import Http
    from tool_runtime.mcp.wire import Id, Incoming

_EVENTS = "text/event-stream"
_EVENT_END = re.compile(rb"\r\n\r?\n|\n\r?\n|\r\r")
MAX_MENDED_BYTES = 3 * MAX_ANSWER_BYTES
"""Of an event once it is mended: an answer in it stands there as a text."""
_PASSING = (408, 425, 429)
"""Of the errors of a client, those that pass."""


class AnswerTooLarge(httpx2.StreamError):
    """The body of an answer is beyond the bound."""


class Refusals:
    """What the server's last answer that was an error said of itself. `for_good`: it would say so again."""

    def __init__(self) -> None:
        self.last: str | None = None
        self.for_good = False

    def take(self, status: int, reason: str) -> None:
        """Note an answer."""
        self.last = f"HTTP {status} {reason}".strip()
        self.for_good = status < 500 and status not in _PASSING

    def clear(self) -> None:
        """Forget it: another request is sent."""
        self.last, self.for_good = None, False


def http_client(
    place: Http, auth: httpx2.Auth | None, refusals: Refusals, incoming: Incoming, connect_s: float
) -> httpx2.AsyncClient:
    """A client for the server at `place`. Raises ToolFault for certificates that cannot be read."""
    transport = httpx2.AsyncHTTPTransport(verify=_tls(place), trust_env=False, proxy=place.proxy)
    return httpx2.AsyncClient(
        transport=_OneOrigin(transport, place, refusals, incoming),
        auth=auth,
        timeout=httpx2.Timeout(connect_s, read=None),  # calls have time-outs of their own
        trust_env=False,
        headers={"accept-encoding": "identity"},
    )


def _tls(place: Http) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=place.ca_file)
        if place.client_cert is not None:
            context.load_cert_chain(place.client_cert, place.client_key)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        named = ", ".join(filter(None, (place.ca_file, place.client_cert, place.client_key)))
        raise ToolFault(FaultKind.SYSTEM, f"the certificates cannot be used ({named}): {error}") from error
    return context


class _OneOrigin(httpx2.AsyncBaseTransport):
    """Sends the token to the server's own origin only, counts what comes, and mends the messages in it. An answer is
    not decompressed: a few bytes could become many behind the count."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, place: Http, refusals: Refusals, incoming: Incoming) -> None:
        self._inner = inner
        self._place = place
        self._origin = origin_of(place.url)
        self._refusals = refusals
        self._incoming = incoming

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        own = origin_of(str(url)) == self._origin
        if self._place.token is not None and own:
            request.headers["authorization"] = f"Bearer {self._place.token}"
        to = self._incoming.sent(await request.aread()) if own and request.method == "POST" else None
        response = await self._inner.handle_async_request(request)
        if response.status_code >= 400:
            self._refusals.take(response.status_code, response.reason_phrase)
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            await response.aclose()
            raise AnswerTooLarge("the server sent a compressed answer, which nobody had asked for")
        stream = response.stream
        if not isinstance(stream, httpx2.AsyncByteStream):
            raise TypeError("an asynchronous transport gave a stream that is none")
        content_type = response.headers.get("content-type", "").lower()
        is_answer = own and 200 <= response.status_code < 300
        if not content_type.startswith(_EVENTS):
            response.stream = _Counted(stream)
            if is_answer and to is not None and response.headers.get("content-length") != "0":
                response.stream = _Body(response.stream, self._incoming, to, content_type)
                response.headers["content-type"] = "application/json"
                response.status_code = 200
        elif is_answer:  # each event has its own bound
            response.stream = _Events(stream, self._incoming, to)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_ANSWER_BYTES
        async for piece in self._inner:
            left -= len(piece)
            if left < 0:
                raise AnswerTooLarge(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Body(httpx2.AsyncByteStream):
    """A whole body, which is the answer to the request `to`, mended."""

    def __init__(self, inner: httpx2.AsyncByteStream, incoming: Incoming, to: Id, content_type: str) -> None:
        self._inner = inner
        self._incoming = incoming
        self._to = to
        self._content_type = content_type

    async def __aiter__(self) -> AsyncIterator[bytes]:
        raw = b"".join([piece async for piece in self._inner])
        yield orjson.dumps(self._incoming.body(raw, self._to, self._content_type))

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Events(httpx2.AsyncByteStream):
    """Server-sent events with the messages in them mended, one an event."""

    def __init__(self, inner: httpx2.AsyncByteStream, incoming: Incoming, to: Id | None) -> None:
        self._inner = inner
        self._incoming = incoming
        self._to = to

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = b""
        async for piece in self._inner:
            begun = max(0, len(left) - 3)
            left += piece
            place = 0
            while (end := _EVENT_END.search(left, max(begun, place))) is not None:
                yield self._event(left[place : end.start()])
                place = end.end()
            left = left[place:]
            if len(left) > MAX_ANSWER_BYTES:
                raise httpx2.SSEError(f"an event has more than {MAX_ANSWER_BYTES} bytes")
        if left.strip():
            yield self._event(left)

    def _event(self, raw: bytes) -> bytes:
        lines = [line.partition(b":") for line in raw.splitlines()]
        data = b"\n".join(value.removeprefix(b" ") for name, _, value in lines if name == b"data")
        others = b"".join(b"".join(line) + b"\n" for line in lines if line[0] in (b"id", b"retry"))
        messages = self._incoming.messages(data, self._to) if data.strip() else []
        if not messages:  # what it says of the stream itself still counts
            return others + b"data:\n\n"
        return b"".join(others + b"data: " + orjson.dumps(message) + b"\n\n" for message in messages)

    async def aclose(self) -> None:
        await self._inner.aclose()
