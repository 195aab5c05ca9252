"""Helpers that every HTTP client of the host needs, and nothing that takes long to import.

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
from typing import TYPE_CHECKING, Any

from agent_host.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import httpx as httpx

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Hosts that are this machine. A proxy of the environment is for the world outside; these are reached without one."""


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
        try:
            self._context = ssl.create_default_context() if _has_system_roots() else _roots_of_package()
        except OSError as error:
            self._error = error


def _has_system_roots() -> bool:
    paths = ssl.get_default_verify_paths()
    return bool(paths.cafile or paths.capath)


def _roots_of_package() -> ssl.SSLContext:
    context: ssl.SSLContext = _import_httpx().create_ssl_context()
    return context


def _import_httpx() -> Any:
    if "agent_host.cli.main" in sys.modules:
        sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None switches an import off
    import httpx

    globals()["httpx"] = httpx
    return httpx
