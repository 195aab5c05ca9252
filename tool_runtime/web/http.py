"""One HTTP exchange with its redirects (TR 4.5, 8.3). Importing this module loads httpx, so import it at the first
request.

Each hop is judged again by all rules of its scope. Proxies come from the configuration, never from the environment.
There are no cookies and no automatic decoding.

Names are resolved here, and the connection goes to an address that was checked, so a name that resolves differently a
moment later (DNS rebinding) has no effect. Everything above the connection uses the name: Host, SNI, certificate and
pool. A connection pool serves requests of a single scope, so that no connection is reused under another.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import httpcore
import httpx

from policy.urls import UrlProblem, host_of, target_of
from tool_runtime.tool import FaultKind, ToolFault
from tool_runtime.web import DomainScope, Gate, network_under, resolve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from ssl import SSLContext

    from agent_host.contracts import ToolRequest
    from tool_runtime.threads import DaemonPool
    from tool_runtime.tool import RuntimeSettings

_PORTS: Final = {"http": 80, "https": 443}
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_VALUE: Final = re.compile(r"[\0\r\n]")
_OURS: Final = frozenset((
    "accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
))  # fmt: skip
"""Headers that frame or route the message; the model cannot set them."""
_HARMLESS: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})
"""Headers that are kept when a redirect leaves the origin: any other may be a credential."""
_MAX_POOLS: Final = 32


class HttpParams(NamedTuple):
    """One request. `timeout_s` covers the whole exchange, redirects included. The body of a 2xx response has at most
    `max_saved_bytes`, None for the client's limit. A body longer than `cut_body_bytes` is cut there, which is not a
    failure."""

    url: str
    method: str
    headers: Mapping[str, str]
    body: bytes
    timeout_s: float
    domains: DomainScope = DomainScope()
    max_saved_bytes: int | None = None
    cut_body_bytes: int | None = None


class HttpOutcome(NamedTuple):
    """The last hop's response. Header names are lower case; `body` is decompressed, and incomplete if `body_cut`."""

    url: str
    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes
    body_cut: bool = False


class HttpClient:
    """The pooled connections of a family under its settings; created and closed on the same running loop. Without
    `tls_checks` requests accept any certificate."""

    def __init__(self, settings: RuntimeSettings, pool: DaemonPool, *, tls_checks: bool) -> None:
        self._threads = pool
        self._network = network_under(settings)
        self._max_body_bytes = settings.http_max_body_bytes
        self._max_redirects = settings.http_max_redirects
        # The user's SSL_CERT_FILE applies here, because networks with their own certificate authority need it.
        self._tls = httpx.create_ssl_context(verify=tls_checks, trust_env=True)
        self._gates: dict[DomainScope, Gate] = {}
        self._pools: dict[tuple[DomainScope, str | None], httpcore.AsyncConnectionPool] = {}

    async def fetch(
        self, request: ToolRequest, body: bytes, headers: Mapping[str, str], timeout_s: float, **limits: int | None
    ) -> HttpOutcome:
        """Send the request that the call's `url` and `method` describe; for the limits see HttpParams. Raises
        ToolFault: INVALID_ARGUMENT, ADDRESS_REFUSED, OUT_OF_SCOPE, NETWORK, RESPONSE_TOO_LARGE, TIMED_OUT."""
        arguments, granted = request.arguments, request.constraints
        domains, method = DomainScope(granted.allowed_domains, granted.blocked_domains), arguments.get("method", "GET")
        params = HttpParams(arguments["url"], method, headers, body, timeout_s, domains, **limits)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._follow(params)
        except (TimeoutError, httpcore.TimeoutException) as error:
            raise ToolFault(FaultKind.TIMED_OUT, f"Request timed out after {timeout_s:g} seconds") from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError, OSError) as error:
            raise ToolFault(FaultKind.NETWORK, f"{str(error) or type(error).__name__}: {params.url}") from error

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            await pool.aclose()

    async def _follow(self, params: HttpParams) -> HttpOutcome:
        check_headers(params.headers)
        if params.domains not in self._gates:
            self._gates[params.domains] = Gate(params.domains, self._network)
        gate = self._gates[params.domains]
        for _ in range(self._max_redirects + 1):
            url = parse_url(params.url)
            gate.check_url(params.url)
            outcome = await self._exchange(params, url, gate)
            location = outcome.headers.get("location")
            if outcome.status not in _REDIRECTS or location is None:
                return outcome
            params = follow_redirect(params, url, location, outcome.status)
        raise ToolFault(FaultKind.NETWORK, f"more than {self._max_redirects} redirects: {params.url}")

    async def _exchange(self, params: HttpParams, url: httpx.URL, gate: Gate) -> HttpOutcome:
        request = httpcore.Request(
            params.method,
            httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=_headers(params, url),
            content=params.body,
            extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), params.timeout_s)},
        )
        response = await self._pool_for(params, gate).handle_async_request(request)
        try:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            limit, cut = params.cut_body_bytes, False
            if limit is None:
                saved = params.max_saved_bytes if 200 <= response.status < 300 else None
                body = await _body(response.aiter_stream(), headers, self._max_body_bytes if saved is None else saved)
            else:
                body, cut = await _beginning(response.aiter_stream(), headers, limit)
        finally:
            await response.aclose()
        reason = response.extensions.get("reason_phrase", b"").decode("latin-1")
        return HttpOutcome(str(url), response.status, reason, headers, body, cut)

    def _pool_for(self, params: HttpParams, gate: Gate) -> httpcore.AsyncConnectionPool:
        """Return the pool for a URL that passed the gate. Local hosts are reached directly, because a proxy is not in
        their network."""
        scheme = params.url.partition(":")[0].lower()
        proxy = None if gate.is_local(target_of(params.url)[0]) else self._network.proxies.get(scheme)
        key = (params.domains, proxy)
        if key not in self._pools:
            if len(self._pools) >= _MAX_POOLS:
                raise ToolFault(FaultKind.SYSTEM, "requests were made under too many policies in one process")
            self._pools[key] = httpcore.AsyncConnectionPool(
                ssl_context=self._tls,
                proxy=None if proxy is None else _proxy(proxy, self._tls),
                max_connections=32,
                max_keepalive_connections=8,
                keepalive_expiry=15.0,
                network_backend=_CheckedBackend(self._threads, gate if proxy is None else None),
            )
        return self._pools[key]


def parse_url(text: str) -> httpx.URL:
    """Parse `text` as a URL that can be requested (TR 8.3). Raises ToolFault(INVALID_ARGUMENT)."""
    try:
        url = httpx.URL(text)
        # The host that policy judged must be the host that is connected to, even if two parsers read an odd spelling
        # differently.
        if host_of(str(url)) != host_of(text):
            raise UrlProblem("the host can be read in two ways")
    except (httpx.InvalidURL, ValueError) as error:
        raise ToolFault(FaultKind.INVALID_ARGUMENT, f"not a usable URL: {error}") from error
    return url


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise ToolFault(INVALID_ARGUMENT) for a header that could split, reframe or redirect the message."""
    for name, value in headers.items():
        if name.lower() in _OURS:
            raise ToolFault(FaultKind.INVALID_ARGUMENT, f"the header {name} cannot be set")
        if not _TOKEN.fullmatch(name) or _BAD_VALUE.search(value) or not value.isprintable():
            raise ToolFault(FaultKind.INVALID_ARGUMENT, f"not a valid header: {name!r}")


def follow_redirect(params: HttpParams, url: httpx.URL, location: str, status: int) -> HttpParams:
    """Return the next request after a redirect from `url`; only harmless headers are sent to another origin."""
    try:
        target = url.join(location).copy_with(fragment=None)
    except (httpx.InvalidURL, ValueError) as error:
        raise ToolFault(FaultKind.NETWORK, f"the redirect leads to no valid URL: {location}") from error
    headers, method, body = dict(params.headers), params.method, params.body
    if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
        headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
        method, body = "GET", b""
    if _origin(target) != _origin(url):
        headers = {name: value for name, value in headers.items() if name.lower() in _HARMLESS}
    return params._replace(url=str(target), method=method, headers=headers, body=body)


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or _PORTS.get(url.scheme)


def _headers(params: HttpParams, url: httpx.URL) -> list[tuple[bytes, bytes]]:
    merged = {"user-agent": "agent-host", "accept": "*/*"} | {k.lower(): v for k, v in params.headers.items()}
    merged["accept-encoding"] = "gzip, deflate"
    if params.body or params.method in ("POST", "PUT", "PATCH"):
        merged["content-length"] = str(len(params.body))
    pairs = [(name.encode("ascii"), value.encode("utf-8")) for name, value in merged.items()]
    return [(b"host", url.netloc), *pairs]


async def _body(stream: AsyncIterator[bytes], headers: Mapping[str, str], limit: int) -> bytes:
    """Read the whole body. Decompression stops at the limit too, because a small response may decompress to
    gigabytes."""
    declared = headers.get("content-length", "")
    is_longer = declared.isdigit() and int(declared) > limit
    if not is_longer:
        body, is_longer = await _beginning(stream, headers, limit)
    if is_longer:
        raise ToolFault(FaultKind.RESPONSE_TOO_LARGE, f"the response body is larger than {limit} bytes")
    return body


async def _beginning(stream: AsyncIterator[bytes], headers: Mapping[str, str], limit: int) -> tuple[bytes, bool]:
    """Read at most `limit` bytes of the body; the flag is True if there are more."""
    coding = headers.get("content-encoding", "identity").strip().lower()
    unpack = _Inflate() if coding in ("gzip", "x-gzip", "deflate") else None
    body = bytearray()
    async for chunk in stream:
        body += chunk if unpack is None else unpack.take(chunk, limit + 1 - len(body))
        if len(body) > limit:
            return bytes(body[:limit]), True
    return bytes(body), False


class _Inflate:
    def __init__(self) -> None:
        self._engine = zlib.decompressobj(zlib.MAX_WBITS | 32)  # detects gzip or zlib itself
        self._fresh = True

    def take(self, chunk: bytes, room: int) -> bytes:
        """Decompress `chunk` to at most `room` bytes. Raises ToolFault(NETWORK) for data that is not compressed."""
        try:
            return self._engine.decompress(chunk, room)
        except zlib.error as error:
            if not self._fresh:
                raise ToolFault(FaultKind.NETWORK, f"the response body is damaged: {error}") from error
        finally:
            self._fresh = False
        self._engine = zlib.decompressobj(-zlib.MAX_WBITS)  # some servers mean raw deflate by "deflate"
        return self.take(chunk, room)


def _proxy(url: str, tls: SSLContext) -> httpcore.Proxy:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = parts.port or (443 if parts.scheme == "https" else 80)
    auth = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    context = tls if parts.scheme == "https" else None
    return httpcore.Proxy(f"{parts.scheme}://{host}:{port}", auth=auth, ssl_context=context)


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Resolves names itself and connects only if the gate accepts all addresses of the name. Without a gate it connects
    to a proxy that the user configured."""

    def __init__(self, pool: DaemonPool, gate: Gate | None) -> None:
        self._pool = pool
        self._gate = gate
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """See httpcore. Raises ToolFault: ADDRESS_REFUSED, OUT_OF_SCOPE."""
        addresses = await self._pool.run(lambda: resolve(host, port))
        if self._gate is not None:
            self._gate.check_addresses(host, port, addresses)
        error: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failed:
                error = failed
        raise error
