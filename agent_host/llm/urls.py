"""The gateway's URL and token, checked before anything is sent, and shown without what is secret.

Nothing here needs httpx, whose import takes as long as the rest of a session's start.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from typing import TYPE_CHECKING

from agent_host.errors import TOKEN_VARIABLE, UsageError
from agent_host.http import displayable_url, usable_in_header
from config.lean_typing import NamedTuple
from config.settings import KEY_HEADERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from config.settings import Settings

_URL = re.compile(
    r"(?i:https?)://(?:(?P<user>[^/?#@]*)@)?(?P<host>\[[0-9a-fA-F:.]+\]|[^/?#@:\[\]\\]+)(?::(?P<port>[0-9]{0,5}))?(?:[/?#].*)?"
)


class GatewayUrl(NamedTuple):
    """The parts of a URL that the host asks for. `host` is in lower case, without brackets."""

    host: str
    password: str | None


def check_url(url: str, named: str = "--gateway") -> GatewayUrl:
    """`url` as an http or https URL with a host that the network has a name for. Raises UsageError, which calls it
    `named`."""
    found = _URL.fullmatch(url) if url.isprintable() and " " not in url else None
    if found is None or not 0 < int(found["port"] or 1) < 65536:
        meant = f"; did you mean mock:{url}?" if os.path.isfile(url) else ""
        raise UsageError(f"{named} {displayable_url(url)!r}: give an http:// or https:// URL, or mock:FILE{meant}")
    try:
        _network_name(found["host"])
    except ValueError as error:
        raise UsageError(f"{named} {displayable_url(url)!r}: {error}") from error
    return GatewayUrl(found["host"].strip("[]").lower(), (found["user"] or "").partition(":")[2] or None)


def gateway_name(settings: Settings) -> str:
    """The name of the gateway's URL where it was written, for messages about it."""
    provider = settings.provider
    return settings.name_of("llm.gateway") if provider is None else f"provider {provider.name}"


class GatewayAddress(NamedTuple):
    """The address of requests. `host` is a name or an address, `port` None for the usual one, `target` path and query,
    `named` what stands in the header `host`, `user` "name:password" where the URL has one."""

    scheme: str
    host: str
    port: int | None
    target: str
    named: str
    user: str | None


_AS_THEY_ARE = "%/:@!$&'()*+,;=~?"  # in a path and a query
_FOUR_NUMBERS = r"[0-9]+(?:\.[0-9]+){3}"
_A_BYTE = r"(?:0|[1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5])"


def place_of(url: str) -> GatewayAddress:
    """That of a URL that `check_url` has passed."""
    from urllib.parse import quote, unquote, urlsplit

    parts = urlsplit(url)
    host = _network_name(parts.hostname or "")
    target = quote(parts.path or "/", _AS_THEY_ARE) + (f"?{quote(parts.query, _AS_THEY_ARE)}" if parts.query else "")
    named = f"[{host}]" if ":" in host else host
    if parts.port not in (None, {"http": 80, "https": 443}[parts.scheme]):
        named = f"{named}:{parts.port}"
    user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return GatewayAddress(parts.scheme, host, parts.port, target, named, None if user == ":" else user)


def is_by_proxy(scheme: str) -> bool:
    """True if a proxy may be for such URLs; which hosts it is not for, httpx knows."""
    in_environment = any(name.lower().endswith("_proxy") for name in os.environ)
    if not in_environment and sys.platform not in ("darwin", "win32"):  # those have settings of their own besides
        return False
    from urllib.request import getproxies

    return bool(getproxies().keys() & {scheme, "all"})


def _network_name(host: str) -> str:
    """A host in ASCII. Raises ValueError."""
    if ":" in host:
        try:
            socket.inet_pton(socket.AF_INET6, host.strip("[]"))
        except OSError as error:
            raise ValueError(f"{host} is no address of IPv6") from error
    elif re.fullmatch(_FOUR_NUMBERS, host):
        if not re.fullmatch(rf"{_A_BYTE}(?:\.{_A_BYTE}){{3}}", host):
            raise ValueError(f"{host} is no address of IPv4")
    elif not host.isascii():
        import idna

        return idna.encode(host.lower()).decode()  # idna.IDNAError is a ValueError
    return host


def request_url(url: str, path: str) -> str:
    """The URL at which the gateway named by `url` takes requests of a dialect with this `path`, such as `/v1/messages`.
    Gateways are named with the path, with its version, and with neither; a URL that ends in the path behind the version
    is taken as it is. A query stays behind it."""
    place, mark, query = url.partition("?")
    place = place.rstrip("/")
    version, tail = path[: path.index("/", 1)], path[path.index("/", 1) :]
    if not place.endswith(tail):
        place = place + tail if place.endswith(version) else place + path
    return place + mark + query


def check_token(token: str | None) -> str | None:
    """`token` as it is. Raises UsageError for one that no header can carry."""
    if token is not None and not usable_in_header(token):
        raise UsageError(f"the gateway's token ({TOKEN_VARIABLE}) holds characters that no header can carry")
    return token


_HEADER_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}"
# What each request says of itself: another value would break it.
_OWN_HEADERS = frozenset(
    ("accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "host", "te",
     "transfer-encoding", "upgrade", "x-session-id")
)  # fmt: skip


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """`headers` of the setting `llm.headers`, with names in lower case. They may replace `authorization`, `x-api-key`
    and what the dialect sends. Raises UsageError, which quotes no value."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        if not re.fullmatch(_HEADER_NAME, name):
            raise UsageError(f"llm.headers: {name[:80]!r} is no name of a header")
        if name.lower() in _OWN_HEADERS:
            raise UsageError(f"llm.headers: {name} is set by each request itself; leave it out")
        if not usable_in_header(value):
            raise UsageError(f"llm.headers: the value of {name} holds characters that no header can carry")
        found[name.lower()] = value
    return found


def secrets_in(headers: Mapping[str, str]) -> list[str]:
    """The values of headers, and the keys in them without the scheme that stands before (`Bearer KEY`)."""
    keys = (value.partition(" ")[2] for name, value in headers.items() if name.lower() in KEY_HEADERS)
    return [*headers.values(), *filter(None, keys)]


def password_of(url: str) -> str | None:
    """The password in `url`, as it is meant; None when there is none."""
    password = check_url(url).password
    if password is None:
        return None
    from urllib.parse import unquote

    return unquote(password)
