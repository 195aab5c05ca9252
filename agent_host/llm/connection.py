"""The connection to a gateway, kept from request to request (RFC 9112 9.3).

httpx's client shares any number of connections out to any number of requests, to any host. A session asks one gateway
one thing at a time, and what the sharing costs is a sixth of a step, and its import a quarter of a start: the
connection is httpcore's, which lies below it. httpx comes in for cookies, and for the
proxies of the environment: it knows the rules of NO_PROXY, tunnels and SOCKS.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, cast

import httpcore

from agent_host import http
from agent_host.errors import UsageError
from agent_host.http import displayable_url, is_loopback
from agent_host.llm.event_stream import GatewayAnswer
from agent_host.llm.urls import GatewayAddress, is_by_proxy, place_of
from agent_host.version import __version__

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence

    from httpx import AsyncByteStream, Cookies

    from agent_host.llm.event_stream import GatewayTimeouts

LATE = httpcore.TimeoutException
"""Raised by `post` and the body of an answer if the gateway takes too long."""
FAILED = (httpcore.NetworkError, httpcore.ProtocolError)
"""Raised by them if the gateway is not reached or breaks off."""
_OF_CLIENTS = {"accept": "*/*", "connection": "keep-alive", "user-agent": f"agent-host/{__version__}"}
_KEPT_S = 5.0  # how long an idle connection is used again: httpx's default


class GatewayConnection(Protocol):
    """Sends requests to one URL, each when the answer to the one before it has been closed."""

    async def post(self, body: AsyncIterable[bytes], length: int) -> GatewayAnswer:
        """Send a request with this body of `length` bytes. Raises LATE, FAILED."""
        ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


def connection_to(
    url: str, headers: Mapping[str, str], *, tls: ssl.SSLContext, timeouts: GatewayTimeouts
) -> GatewayConnection:
    """The connection for requests with these `headers` to a `url` that `check_url` has passed: by the proxy that the
    environment names, if it does; this machine is reached without one. Raises UsageError for a proxy that cannot be
    used."""
    place = place_of(url)
    headers = {**_OF_CLIENTS, **headers}
    if not is_loopback(place.host) and is_by_proxy(place.scheme):
        return _ByProxy(url, headers, tls, timeouts)
    return _Direct(place, headers, tls, timeouts)


class _Direct:
    """To the host itself."""

    def __init__(
        self, place: GatewayAddress, headers: Mapping[str, str], tls: ssl.SSLContext, timeouts: GatewayTimeouts
    ) -> None:
        self._place = place
        self._url = httpcore.URL(scheme=place.scheme, host=place.host, port=place.port, target=place.target)
        self._headers = {"host": place.named, **headers}
        if place.user is not None:
            from base64 import b64encode

            self._headers["authorization"] = f"Basic {b64encode(place.user.encode()).decode()}"
        self._raw = _encode(self._headers)
        patience_s = timeouts.read_s
        limits = {"connect": timeouts.connect_s, "read": patience_s, "write": patience_s, "pool": patience_s}
        self._extensions = {"timeout": limits}
        self._connect_s = timeouts.connect_s
        self._tls = tls
        self._cookies: Cookies | None = None
        self._kept: httpcore.AsyncHTTP11Connection | None = None

    async def post(self, body: AsyncIterable[bytes], length: int) -> GatewayAnswer:
        """See `GatewayConnection`."""
        headers = [*self._raw, (b"content-length", b"%d" % length)]
        request = httpcore.Request(b"POST", self._url, headers=headers, content=body, extensions=self._extensions)
        answer = await (await self._ready()).handle_async_request(request)
        said = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
        if "set-cookie" in said:
            self._take_cookies(answer.headers)
        stream = cast("AsyncByteStream", answer.stream)  # of an asynchronous connection
        return GatewayAnswer(answer.status, said, stream, stream.aclose)

    async def aclose(self) -> None:
        """See `GatewayConnection`."""
        if self._kept is not None:
            await self._kept.aclose()

    async def _ready(self) -> httpcore.AsyncHTTP11Connection:
        """The connection; a new one where the server has closed it, or it was idle for too long."""
        if self._kept is not None:
            if self._kept.is_available() and not self._kept.has_expired():
                return self._kept
            await self._kept.aclose()
            self._kept = None
        origin, host = self._url.origin, self._place.host
        stream = await httpcore.AnyIOBackend().connect_tcp(host, origin.port, timeout=self._connect_s)
        if self._place.scheme == "https":
            self._tls.set_alpn_protocols(["http/1.1"])
            try:
                stream = await stream.start_tls(self._tls, host, self._connect_s)
            except BaseException:
                await stream.aclose()
                raise
        self._kept = httpcore.AsyncHTTP11Connection(origin, stream, keepalive_expiry=_KEPT_S)
        return self._kept

    def _take_cookies(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Have the next requests bring what the gateway has set: some send those of one client to one server by it."""
        self._cookies = self._cookies or http.httpx.Cookies()
        request = http.httpx.Request("POST", f"{self._place.scheme}://{self._place.named}{self._place.target}")
        self._cookies.extract_cookies(http.httpx.Response(200, headers=list(headers), request=request))
        self._cookies.set_cookie_header(request)
        brought = {"cookie": request.headers["cookie"]} if "cookie" in request.headers else {}
        self._raw = _encode({**self._headers, **brought})


class _ByProxy:
    """See `GatewayConnection`. Raises UsageError for a proxy that cannot be used."""

    def __init__(self, url: str, headers: Mapping[str, str], tls: ssl.SSLContext, timeouts: GatewayTimeouts) -> None:
        limits = http.httpx.Timeout(timeouts.read_s, connect=timeouts.connect_s)
        try:
            self._url = http.httpx.URL(url)
            self._client = http.httpx.AsyncClient(headers=headers, timeout=limits, verify=tls)
        except (http.httpx.InvalidURL, ImportError, ValueError) as error:
            raise UsageError(f"--gateway {displayable_url(url)!r} by the proxy of the environment: {error}") from error

    async def post(self, body: AsyncIterable[bytes], length: int) -> GatewayAnswer:
        """See `GatewayConnection`."""
        request = self._client.build_request("POST", self._url, content=body, headers={"content-length": str(length)})
        with _translate_errors():
            answer = await self._client.send(request, stream=True)
        return GatewayAnswer(answer.status_code, answer.headers, _read(answer), answer.aclose)

    async def aclose(self) -> None:
        """See `GatewayConnection`."""
        await self._client.aclose()


async def _read(answer: http.httpx.Response) -> AsyncIterator[bytes]:
    with _translate_errors():
        async for chunk in answer.aiter_raw():
            yield chunk


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turns httpx's errors into those of the library below it."""
    try:
        yield
    except http.httpx.TimeoutException as error:
        raise httpcore.TimeoutException(str(error)) from error
    except http.httpx.RequestError as error:
        raise httpcore.NetworkError(str(error)) from error


def _encode(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]
