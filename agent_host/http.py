"""Helpers that every HTTP client of the host needs, and nothing that takes long to import; trying again what may be
tried again (AH 6.4, 11).

`http.httpx` is httpx, imported when it is first used, and without the command-line program that it carries. That
program imports rich and click wherever they happen to be installed, which takes as long as the rest of httpx. If this
process is our own command line, the module of that program is switched off. A program that embeds this package may use
it, and has httpx as it is.
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

    import httpx as httpx
    from tenacity import RetryCallState

    from agent_host.ids import Outside

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Hosts that are this machine. A proxy of the environment is for the world outside; these are reached without one."""


class HttpAnswer(NamedTuple):
    """An answer of any status; headers are found by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def is_loopback(host: str) -> bool:
    """True if a host, without brackets, is this machine by its name or address."""
    return host in _LOOPBACK or re.fullmatch(r"127(?:\.[0-9]{1,3}){3}", host) is not None


def __getattr__(name: str) -> Any:
    if name != "httpx":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _import_httpx()


def displayable_url(url: str) -> str:
    """`url` without the user and password that may stand in it, for people to read."""
    scheme, separator, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return scheme + separator + place.rpartition("@")[2] + slash + path.rstrip("/")


def usable_in_header(token: str) -> bool:
    """True if a header can carry `token`. An error about one that it cannot would quote it."""
    return token.isascii() and token.isprintable() and token == token.strip()


def retry_after_s(headers: Mapping[str, Any], time: Callable[[], float]) -> float | None:
    """Seconds of a retry-after-ms or Retry-After header; the latter is a number of seconds or an HTTP date, which is
    held against `time`, in seconds since the epoch. None when there is none to read."""
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
    """A number of a header, 0 for a negative one; None for what is none."""
    try:
        number = float(str(value).strip())
    except ValueError:
        return None
    return None if math.isnan(number) else max(0.0, number)


def strip_html(text: str) -> str:
    """`text` with the title of an HTML page in place of the page, else with what it shows: proxies answer with pages,
    alone or quoted by a server behind them."""
    begins = re.search(r"(?i)<(?:!doctype\s+html|html|head|body)\b", text)
    if begins is None:
        return text
    from html import unescape  # what hardly any process needs

    page = re.sub(r"(?is)<!--.*?(?:-->|$)|<(script|style)\b.*?(?:</\1\s*>|$)", " ", text[begins.start() :])
    title = re.search(r"(?is)<title\b[^>]*>(.*?)(?:</title|$)", page)
    shown = " ".join(unescape(re.sub(r"<[^>]*(?:>|$)", " ", title[1] if title is not None else page)).split())
    return f"{text[: begins.start()]}{shown} (an HTML page)".lstrip()


def first_line(error: Exception) -> str:
    """The text of `error` in one line, with what to do about a certificate that is not trusted; its kind if it has no
    text."""
    text = str(error).split("\n", 1)[0] or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" not in text:
        return text
    return f"{text}: its certificate is not trusted; SSL_CERT_FILE names a file with the CA of your network"


class TlsContext:
    """The TLS context that a URL needs.

    Loading the trusted roots takes as long as the rest of the start, so it happens in a thread beside it. A plain http
    server gets a context that trusts nobody: it serves no TLS, and could not be led to by a redirect either.
    """

    def __init__(self, base_url: str) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._error: OSError | None = None
        self._thread: threading.Thread | None = None
        if base_url.lower().startswith("https:"):
            self._thread = threading.Thread(target=self._load_roots, name="tls-roots")
            self._thread.start()

    def get(self) -> ssl.SSLContext:
        """The context, once it is whole. Raises UsageError when the roots cannot be loaded."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise UsageError(f"the trusted certificates cannot be loaded: {self._error}") from self._error
        return self._context

    def _load_roots(self) -> None:
        paths = ssl.get_default_verify_paths()
        has_roots = bool(paths.cafile or paths.capath)  # else those of a package
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


# Trying again.

_MOST_DOUBLED: Final = 62
T = TypeVar("T")
Passing = TypeVar("Passing", GatewayUnavailable, ServiceUnavailable)
"""A fault that may have gone by the next try; it is not tried again where its `again` is false."""


class RetryPolicy(NamedTuple):
    """`retries` after the first try; exponential back-off from `base_s` with jitter, no wait above `max_s`. A
    Retry-After of the server replaces the back-off, up to `max_retry_after_s`. A server that `gets_ready` is waited for
    up to `max_wait_s` from its first such answer, with as many further tries as that takes, unless `retries` is 0;
    None: it is no exception."""

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
    """The result of `attempt`, which is called again when it raises `passing`.

    `on_retry(number, wait_s, error)` is called before each wait. Raises the last error when no tries are left.
    """
    try:
        return await attempt()
    except passing as error:
        if policy.retries == 0 or not error.again:
            raise
        first = error
    # Only a call that failed pays for the import.
    from tenacity import AsyncRetrying, retry_if_exception

    pending, waiting = [first], _Waiting(policy, outside)

    def error_of(state: RetryCallState) -> Passing:
        error = state.outcome.exception() if state.outcome is not None else None
        return error if isinstance(error, passing) else first

    async def next_try() -> T:
        if pending:  # the first failure happened outside; raising it here gives it its wait like any other
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
        """The wait after the try of this number; none goes beyond the deadline, so that the last try is made then."""
        policy = self._policy
        if error.retry_after_s is not None:
            wait_s = min(error.retry_after_s, policy.max_retry_after_s)
        else:  # jitter over the upper half only: a wait of nothing would not help a server that is overrun
            longest_s = min(policy.max_s, math.ldexp(policy.base_s, min(number - 1, _MOST_DOUBLED)))
            wait_s = min(policy.max_s, policy.base_s / 2 + longest_s * self._outside.fraction() / 2)
        until = self._deadline_for(error)
        return wait_s if until is None else max(0.0, min(wait_s, until - self._outside.monotonic()))

    def _deadline_for(self, error: GatewayUnavailable | ServiceUnavailable) -> float | None:
        """The end of the wait for a server that gets ready, from its first such answer on; None for any other."""
        if not error.gets_ready or self._policy.max_wait_s is None:
            return None
        if self._until is None:  # tenacity asks for the wait before it asks whether to stop
            self._until = self._outside.monotonic() + self._policy.max_wait_s
        return self._until
