"""Helpers for every HTTP client of the host, cheap to import; retries (AH 6.4, 11).

`http.httpx` is httpx, imported on first use and without its command-line program. That program imports rich and click
if they are installed, which takes as long as the rest of httpx. The module of that program is therefore disabled if
this process is our own command line. A program that embeds this package may need it, and gets the unchanged httpx.
"""

from __future__ import annotations

import math
import re
import ssl
import sys
import threading
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, TypeVar

from agent_host.errors import GatewayUnavailable, ServiceUnavailable, UsageError
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from http.cookiejar import Cookie, CookieJar
    from urllib.request import Request

    import httpx as httpx
    from tenacity import RetryCallState

    from agent_host.ids import Outside

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names of this machine. They are reached without the environment's proxy, which is for other hosts."""


class HttpAnswer(NamedTuple):
    """A response of any status; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def is_loopback(host: str) -> bool:
    """True if the name or address of a host, without brackets, is this machine."""
    return host in _LOOPBACK or re.fullmatch(r"127(?:\.[0-9]{1,3}){3}", host) is not None


def __getattr__(name: str) -> Any:
    if name != "httpx":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _import_httpx()


def displayable_url(url: str) -> str:
    """Return `url` without a user and password, for display."""
    scheme, separator, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return scheme + separator + place.rpartition("@")[2] + slash + path.rstrip("/")


def sendable_cookies() -> CookieJar:
    """Return an empty jar. Cookies route a client to one of several servers; it leaves out those that a header cannot
    have."""
    from http.cookiejar import CookieJar, DefaultCookiePolicy  # imported late, as httpx is

    class Sendable(DefaultCookiePolicy):
        def set_ok(self, cookie: Cookie, request: Request) -> bool:
            return f"{cookie.name}={cookie.value}".isascii() and super().set_ok(cookie, request)

    return CookieJar(Sendable())


def redirect_target(status: int, headers: Mapping[str, str]) -> str | None:
    """Return the place that an answer redirects to, for display; None for another answer."""
    place = headers.get("location", "") if 300 <= status < 400 else ""
    return displayable_url(place).partition("?")[0] or None


def usable_in_header(token: str) -> bool:
    """True if `token` is valid in a header. If it is not, httpx's error would quote it."""
    return token.isascii() and token.isprintable() and token == token.strip()


def retry_after_s(headers: Mapping[str, Any], time: Callable[[], float]) -> float | None:
    """Seconds of a retry-after-ms or Retry-After header; the latter is a number of seconds or an HTTP date, which is
    compared with `time`, in seconds since the epoch. None if there is no valid one."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = str(headers.get("retry-after", "")).strip()
    if not value:
        return None
    seconds = _number(value)
    if seconds is not None:
        return seconds
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:  # HTTP dates are GMT
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, moment.timestamp() - time())


def _number(value: object) -> float | None:
    """The number in a header, 0 if it is negative; None if it is not a number."""
    try:
        number = float(str(value).strip())
    except ValueError:
        return None
    return None if math.isnan(number) else max(0.0, number)


def strip_html(text: str) -> str:
    """Replace an HTML page in `text` by its title, or by its visible text if it has none. Proxies answer with pages,
    either alone or quoted by a server."""
    begins = re.search(r"(?i)<(?:!doctype\s+html|html|head|body)\b", text)
    if begins is None:
        return text
    from html import unescape  # rarely needed

    page = re.sub(r"(?is)<!--.*?(?:-->|$)|<(script|style)\b.*?(?:</\1\s*>|$)", " ", text[begins.start() :])
    title = re.search(r"(?is)<title\b[^>]*>(.*?)(?:</title|$)", page)
    shown = " ".join(unescape(re.sub(r"<[^>]*(?:>|$)", " ", title[1] if title is not None else page)).split())
    return f"{text[: begins.start()]}{shown} (an HTML page)".lstrip()


def first_line(error: Exception) -> str:
    """The text of `error` on one line, with advice if a certificate is not trusted; the error's class name if it has no
    text."""
    text = str(error).split("\n", 1)[0] or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" not in text:
        return text
    return f"{text}: its certificate is not trusted; SSL_CERT_FILE names a file with the CA of your network"


class TlsContext:
    """The TLS context that a URL needs.

    Loading the trusted roots takes as long as the rest of the start, so a thread does it in parallel. For a plain http
    URL the context trusts no certificate: such a server uses no TLS, and a redirect to one that does must fail.
    """

    def __init__(self, base_url: str) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._error: OSError | None = None
        self._thread: threading.Thread | None = None
        if base_url.lower().startswith("https:"):
            self._thread = threading.Thread(target=self._load_roots, name="tls-roots")
            self._thread.start()

    def get(self) -> ssl.SSLContext:
        """Return the context, after the roots are loaded. Raises UsageError if they cannot be."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise UsageError(f"the trusted certificates cannot be loaded: {self._error}") from self._error
        return self._context

    def _load_roots(self) -> None:
        paths = ssl.get_default_verify_paths()
        has_roots = bool(paths.cafile or paths.capath)  # else the certificates of a package
        try:
            self._context = ssl.create_default_context() if has_roots else _import_httpx().create_ssl_context()
        except OSError as error:
            self._error = error


def _import_httpx() -> Any:
    if "agent_host.cli.main" in sys.modules:
        sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None switches an import off
    import httpx

    globals()["httpx"] = httpx
    return httpx


# Retries.

_MOST_DOUBLED: Final = 62
T = TypeVar("T")
Passing = TypeVar("Passing", GatewayUnavailable, ServiceUnavailable)
"""A fault that may be gone at the next attempt; there is no retry if its `again` is false."""


class RetryPolicy(NamedTuple):
    """`retries` after the first attempt; exponential back-off from `base_s` with jitter, no wait longer than `max_s`.
    The server's Retry-After replaces the back-off, up to `max_retry_after_s`. If the server `gets_ready`, attempts
    continue for up to `max_wait_s` from its first such answer, however many they are, unless `retries` is 0; with None
    it is treated like any other server."""

    retries: int = 3
    base_s: float = 1.0
    max_s: float = 30.0
    max_retry_after_s: float = 120.0
    max_wait_s: float | None = None


async def call_with_retries(
    passing: type[Passing],
    attempt: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    on_retry: Callable[[int, float, Passing], None],
    outside: Outside,
) -> T:
    """Return the result of `attempt`, which is called again if it raises `passing`.

    `on_retry(number, wait_s, error)` is called before each wait. Raises the last error when no attempts are left.
    """
    try:
        return await attempt()
    except passing as error:
        if policy.retries == 0 or not error.again:
            raise
        first = error
    # Imported only after a failure, because it is slow.
    from tenacity import AsyncRetrying, retry_if_exception

    pending, waiting = [first], _Waiting(policy, outside)

    def error_of(state: RetryCallState) -> Passing:
        error = state.outcome.exception() if state.outcome is not None else None
        return error if isinstance(error, passing) else first

    async def next_try() -> T:
        if pending:  # the first failure happened outside; raised here, it is followed by a wait like any other
            raise pending.pop()
        return await attempt()

    retrying = AsyncRetrying(
        retry=retry_if_exception(lambda error: isinstance(error, passing) and error.again),
        stop=lambda state: waiting.is_over(error_of(state)),
        wait=lambda state: waiting.wait_s(error_of(state), state.attempt_number),
        before_sleep=lambda state: on_retry(state.attempt_number, state.upcoming_sleep, error_of(state)),
        reraise=True,
    )
    return await retrying(next_try)


class _Waiting:
    def __init__(self, policy: RetryPolicy, outside: Outside) -> None:
        self._policy = policy
        self._outside = outside
        self._left = policy.retries
        self._until: float | None = None

    def is_over(self, error: GatewayUnavailable | ServiceUnavailable) -> bool:
        self._left -= 1  # called once for each failure
        until = self._deadline_for(error)
        return self._left < 0 and (until is None or self._outside.monotonic() >= until)

    def wait_s(self, error: GatewayUnavailable | ServiceUnavailable, number: int) -> float:
        """The wait after the attempt of this number. It ends at the deadline at the latest, so the last attempt is made
        then."""
        policy = self._policy
        if error.retry_after_s is not None:
            wait_s = min(error.retry_after_s, policy.max_retry_after_s)
        else:  # jitter over the upper half only, because a very short wait would not help an overloaded server
            longest_s = min(policy.max_s, math.ldexp(policy.base_s, min(number - 1, _MOST_DOUBLED)))
            wait_s = min(policy.max_s, policy.base_s / 2 + longest_s * self._outside.fraction() / 2)
        until = self._deadline_for(error)
        return wait_s if until is None else max(0.0, min(wait_s, until - self._outside.monotonic()))

    def _deadline_for(self, error: GatewayUnavailable | ServiceUnavailable) -> float | None:
        """The deadline for a server that gets ready, counted from its first such answer; None for any other server."""
        if not error.gets_ready or self._policy.max_wait_s is None:
            return None
        if self._until is None:  # tenacity computes the wait before it decides to stop
            self._until = self._outside.monotonic() + self._policy.max_wait_s
        return self._until
