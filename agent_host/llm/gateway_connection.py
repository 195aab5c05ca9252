"""The connection to a gateway, kept from request to request (RFC 9112 9.3).

httpx's client shares any number of connections out to any number of requests, to any host. A session asks one gateway
one thing at a time, and what the sharing costs is a sixth of a step: the connection is httpcore's, which lies below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast
from urllib.request import getproxies

from agent_host.http_basics import LOOPBACK
from config.lean_typing import NamedTuple

from agent_host.lean_httpx import httpx  # isort: skip  first: without the program that it carries
import httpcore

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence

    Headers = Sequence[tuple[bytes, bytes]]

LATE = (httpx.TimeoutException, httpcore.TimeoutException)
"""What `post` and the body of an answer raise where the gateway takes too long."""
FAILED = (httpx.RequestError, httpcore.NetworkError, httpcore.ProtocolError)
"""What they raise where it is not reached, or breaks off."""
_OF_CLIENTS = {"accept": "*/*", "connection": "keep-alive", "user-agent": f"python-httpx/{httpx.__version__}"}
_KEPT_S = 5.0  # how long an idle connection is used again: httpx's default


class Answer(NamedTuple):
    """An answer whose body is still to be read. `headers` are by their names in lower case; `close` ends it, after
    which the connection may be used again."""

    status: int
    headers: Mapping[str, str]
    body: AsyncIterable[bytes]
    close: Callable[[], Awaitable[None]]


class Connection(Protocol):
    """Sends requests to one URL, each when the answer to the one before it has been closed."""

    async def post(self, body: AsyncIterable[bytes], length: int) -> Answer:
        """Send a request with this body of `length` bytes. Raises LATE, FAILED."""
        ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


def connection_to(
    url: httpx.URL, headers: Mapping[str, str], *, tls: ssl.SSLContext, timeout: httpx.Timeout
) -> Connection:
    """The connection for requests with these `headers`: by the proxy that the environment names, if it does. This
    machine is reached without one."""
    if url.host not in LOOPBACK and getproxies().keys() & {url.scheme, "all"}:
        return _ByClient(httpx.AsyncClient(headers=headers, timeout=timeout, verify=tls), url)
    first = httpx.Request("POST", url, headers={**_OF_CLIENTS, **headers}, extensions={"timeout": timeout.as_dict()})
    del first.headers["content-length"]
    if url.username or url.password:
        first = next(httpx.BasicAuth(url.username, url.password).auth_flow(first))
    return _Direct(first, tls)


class _Direct:
    """To the host itself. `first` is a request without a body: its URL, its headers and its time-outs are those of each
    request."""

    def __init__(self, first: httpx.Request, tls: ssl.SSLContext) -> None:
        url = first.url
        self._first = first
        self._url = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        self._headers = first.headers.raw
        self._tls = tls
        self._cookies = httpx.Cookies()
        self._kept: httpcore.AsyncHTTP11Connection | None = None

    async def post(self, body: AsyncIterable[bytes], length: int) -> Answer:
        """See `Connection`."""
        request = httpcore.Request(
            b"POST",
            self._url,
            headers=[*self._headers, (b"content-length", b"%d" % length)],
            content=body,
            extensions=self._first.extensions,
        )
        answer = await (await self._ready()).handle_async_request(request)
        headers = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
        if "set-cookie" in headers:
            self._take_cookies(answer.headers)
        stream = cast("httpx.AsyncByteStream", answer.stream)  # of an asynchronous connection
        return Answer(answer.status, headers, stream, stream.aclose)

    async def aclose(self) -> None:
        """See `Connection`."""
        if self._kept is not None:
            await self._kept.aclose()

    async def _ready(self) -> httpcore.AsyncHTTP11Connection:
        """The connection; a new one where the server has closed it, or it was idle for too long."""
        if self._kept is not None:
            if self._kept.is_available() and not self._kept.has_expired():
                return self._kept
            await self._kept.aclose()
            self._kept = None
        origin, limit_s = self._url.origin, self._first.extensions["timeout"]["connect"]
        host = origin.host.decode("ascii")
        stream = await httpcore.AnyIOBackend().connect_tcp(host, origin.port, timeout=limit_s)
        if origin.scheme == b"https":
            self._tls.set_alpn_protocols(["http/1.1"])
            try:
                stream = await stream.start_tls(self._tls, host, limit_s)
            except BaseException:
                await stream.aclose()
                raise
        self._kept = httpcore.AsyncHTTP11Connection(origin, stream, keepalive_expiry=_KEPT_S)
        return self._kept

    def _take_cookies(self, headers: Headers) -> None:
        """Have the next requests bring what the gateway has set: some send those of one client to one server by it."""
        self._cookies.extract_cookies(httpx.Response(200, headers=list(headers), request=self._first))
        self._first.headers.pop("cookie", None)
        self._cookies.set_cookie_header(self._first)
        self._headers = self._first.headers.raw


class _ByClient:
    """By httpx's client, which knows proxies."""

    def __init__(self, client: httpx.AsyncClient, url: httpx.URL) -> None:
        self._client = client
        self._url = url

    async def post(self, body: AsyncIterable[bytes], length: int) -> Answer:
        """See `Connection`."""
        request = self._client.build_request("POST", self._url, content=body, headers={"content-length": str(length)})
        answer = await self._client.send(request, stream=True)
        return Answer(answer.status_code, answer.headers, answer.aiter_raw(), answer.aclose)

    async def aclose(self) -> None:
        """See `Connection`."""
        await self._client.aclose()
