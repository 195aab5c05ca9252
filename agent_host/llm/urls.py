"""Where the gateway is: its URL and token, checked before anything is sent, and shown without what is secret.

Nothing here needs httpx, whose import takes as long as the rest of a session's start.
"""

from __future__ import annotations

from urllib.parse import SplitResult, unquote, urlsplit

from agent_host.errors import UsageError
from agent_host.http_basics import shown_url, usable_in_header


def checked_url(url: str) -> SplitResult:
    """`url` as an http or https URL with a host. Raises UsageError."""
    try:
        parsed = urlsplit(url)
        usable_port = parsed.port is None or 0 < parsed.port < 65536
    except ValueError as error:
        raise UsageError(f"--gateway {shown_url(url)!r}: {error}") from error
    odd = not url.isprintable() or " " in url
    if odd or parsed.scheme not in ("http", "https") or not parsed.hostname or not usable_port:
        raise UsageError(f"--gateway {shown_url(url)!r}: give an http:// or https:// URL, or mock:FILE")
    return parsed


def checked_token(token: str | None) -> str | None:
    """`token` as it is. Raises UsageError for one that no header can carry."""
    if token is not None and not usable_in_header(token):
        raise UsageError("the gateway's token holds characters that no header can carry")
    return token


def password_of(url: str) -> str | None:
    """The password that stands in `url`, as it is meant; None when there is none."""
    password = checked_url(url).password
    return unquote(password) if password else None
