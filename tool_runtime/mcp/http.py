"""The HTTP side of a connection: TLS, credentials for one origin, and what counts the bytes below the SDK."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import httpx2

from tool_runtime.faults import FaultKind, ToolFault
from tool_runtime.mcp.servers import MAX_ANSWER_BYTES, origin_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tool_runtime.mcp.servers import Http

_EVENTS = "text/event-stream"
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


def http_client(place: Http, auth: httpx2.Auth | None, refusals: Refusals, connect_s: float) -> httpx2.AsyncClient:
    """A client for the server at `place`. Raises ToolFault for certificates that cannot be read."""
    transport = httpx2.AsyncHTTPTransport(verify=_tls(place), trust_env=False, proxy=place.proxy)
    return httpx2.AsyncClient(
        transport=_OneOrigin(transport, place, refusals),
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
    """Sends the token to the server's own origin only, and counts what comes. An answer is not decompressed: a few
    bytes could become many behind the count."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, place: Http, refusals: Refusals) -> None:
        self._inner = inner
        self._place = place
        self._origin = origin_of(place.url)
        self._refusals = refusals

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        own = origin_of(str(url)) == self._origin
        if self._place.token is not None and own:
            request.headers["authorization"] = f"Bearer {self._place.token}"
        response = await self._inner.handle_async_request(request)
        if response.status_code >= 400:
            self._refusals.take(response.status_code, response.reason_phrase)
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            await response.aclose()
            raise AnswerTooLarge("the server sent a compressed answer, which nobody had asked for")
        stream = response.stream
        if not isinstance(stream, httpx2.AsyncByteStream):
            raise TypeError("an asynchronous transport gave a stream that is none")
        if not response.headers.get("content-type", "").lower().startswith(_EVENTS):  # each event has its own bound
            response.stream = _Counted(stream)
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
