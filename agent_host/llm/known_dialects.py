"""The known dialects, by the names of the setting `llm.dialect`. Each is imported when it is chosen.

If the setting is `auto`, the dialect is detected by requests that run no model: an empty object is posted to each path.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote, unquote

from agent_host import http
from agent_host.errors import TOKEN_VARIABLE, ErrorCode, GatewayRejected, GatewayUnavailable, UsageError
from agent_host.http import TlsContext, displayable_url, first_line, is_loopback, usable_in_header
from config.lean_typing import NamedTuple
from config.settings import KEY_HEADERS
from state import WriteFailed
from state.keys import GatewayDialects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.llm import Meaning
    from agent_host.llm.dialects import Dialect
    from config.settings import Settings

AUTO: Final = "auto"
"""The value of `llm.dialect` for detecting the gateway's dialect."""
# Statuses that refuse the empty object at a path that exists.
_PATH_EXISTS: Final = frozenset({400, 413, 415, 422})
_NO_PATH: Final = frozenset({404, 405, 410, 501})
_TIMEOUT_S = 10.0


_CLASSES: Mapping[str, tuple[str, str]] = {
    "anthropic": ("anthropic", "AnthropicDialect"),
    "openai": ("openai_chat", "ChatDialect"),
    "responses": ("openai_responses", "ResponsesDialect"),
}
"""The module and the class of each dialect."""
NAMES: Final = tuple(_CLASSES)
"""The names, in the order in which a gateway is probed for them."""
_HOSTS_WITH_KEYS = r"(?:^|\.)(?:openai|azure)\.com$"


def make_dialect(name: str, settings: Settings) -> Dialect:
    """Return the dialect called `name`, one of `NAMES`, configured by the settings."""
    made = _class_of(name)
    return made(
        max_tokens_field=settings.llm.max_tokens_field,
        names_cache=made.caches_by_name and names_cache(settings),
        own_key=settings.provider is not None,
    )


def _class_of(name: str) -> type[Dialect]:
    module, made = _CLASSES[name]
    return cast("type[Dialect]", getattr(import_module(f"agent_host.llm.dialects.{module}"), made))


def names_cache(settings: Settings) -> bool:
    """True if requests have `prompt_cache_key`. Proxies and servers of other vendors refuse it, some only for some
    models, so by default it is sent only to hosts that are known to use it."""
    wanted = settings.llm.prompt_cache_key
    gateway = settings.llm.gateway
    if wanted != "auto" or not gateway.lower().startswith(("http://", "https://")):
        return wanted == "always"
    return re.search(_HOSTS_WITH_KEYS, check_url(gateway).host) is not None


def provider_of(name: str) -> str:
    """Return OpenTelemetry's name of the provider whose dialect this is."""
    return {"responses": "openai"}.get(name, name)


# Detection of a gateway's dialect, if the setting `llm.dialect` is `auto`.


class ChosenDialect(NamedTuple):
    """A dialect. `notice` is one line for display: the choice of `auto` and its reason; "" if the settings name the
    dialect."""

    dialect: Dialect
    notice: str = ""


def dialect_of_settings(settings: Settings) -> ChosenDialect | None:
    """Return the dialect that the settings name; None if it is to be detected."""
    name = settings.llm.dialect
    return None if name == AUTO else ChosenDialect(make_dialect(name, settings))


def dialect_of_script(settings: Settings) -> ChosenDialect:
    """Return the dialect for a scripted gateway in this process, which speaks all of them."""
    return _chosen(settings, NAMES[0], "the scripted gateway speaks all")


def meaning_of_old_record(stop_reason: str) -> Meaning:
    """Return the meaning of a stop reason recorded without one: versions that wrote none had only one dialect."""
    return _class_of("anthropic").assembler_type.meaning_of(stop_reason)


def find_dialect(
    settings: Settings, url: str, token: str | None, state_dir: str, time: Callable[[], float], *, refresh: bool = False
) -> ChosenDialect:
    """Return the dialect of the gateway at `url`: from the URL's path; else as detected within the last days by the
    clock `time`, except with `refresh`; else from the gateway's answers to requests that run no model. Blocks until it
    has answered. Raises UsageError, GatewayUnavailable, GatewayRejected."""
    place = _display(url)
    for name in NAMES:
        path = make_dialect(name, settings).path
        if place.endswith(path[path.index("/", 1) :]):  # the path without the version
            return _chosen(settings, name, "its URL says so")
    kept = GatewayDialects(state_dir, time)
    known = None if refresh else kept.find(place)
    if known in NAMES:
        return _chosen(settings, known, "as it was found to do")
    name, why = _probe({name: make_dialect(name, settings) for name in NAMES}, settings, url, token)
    with contextlib.suppress(WriteFailed):  # then it is detected again next time
        kept.keep(place, name)
    return _chosen(settings, name, why)


def _chosen(settings: Settings, name: str, why: str) -> ChosenDialect:
    return ChosenDialect(make_dialect(name, settings), f"the gateway speaks {name}: {why}")


def _probe(dialects: Mapping[str, Dialect], settings: Settings, url: str, token: str | None) -> tuple[str, str]:
    """Return the name of the first of `dialects` that the gateway at `url` speaks, and the evidence. Raises UsageError
    for a URL or a token that no request could carry, GatewayUnavailable, GatewayRejected."""
    token = check_token(token)
    own = {**check_headers(settings.llm.headers), "x-session-id": "probe", "accept-encoding": "identity"}
    statuses: dict[str, int] = {}
    timeout = http.httpx.Timeout(_TIMEOUT_S, connect=min(_TIMEOUT_S, settings.llm.connect_timeout_s))
    trusts = not is_loopback(check_url(url).host)
    tls = TlsContext(url).get()
    with http.httpx.Client(timeout=timeout, verify=tls, follow_redirects=False, trust_env=trusts) as client:
        for name, dialect in dialects.items():
            status = _status_of(client, request_url(url, dialect.path), {**dialect.headers(token), **own})
            statuses[dialect.path] = status
            if status in _PATH_EXISTS or 200 <= status < 300:
                return name, f"it reads what is posted to {dialect.path}"
    # A gateway that checks the token first shows which paths exist only if the token is valid.
    unclear = [(name, dialect.path) for name, dialect in dialects.items() if statuses[dialect.path] not in _NO_PATH]
    if unclear and len(unclear) < len(dialects):
        name, path = unclear[0]
        return name, f"it has something at {path} (HTTP {statuses[path]})"
    answers = ", ".join(f"{path}: HTTP {status}" for path, status in statuses.items())
    text = f"--dialect auto: cannot detect the dialect of the gateway at {_display(url)} ({answers}); name the dialect"
    if set(statuses.values()) <= {401, 403}:
        raise GatewayRejected(f"{text}, or set LLM_GATEWAY_AUTH_TOKEN", code=ErrorCode.UNAUTHORIZED)
    raise GatewayRejected(text) if set(statuses.values()) <= _NO_PATH else GatewayUnavailable(text)


def _status_of(client: http.httpx.Client, url: str, headers: dict[str, str]) -> int:
    try:
        with client.stream("POST", url, content=b"{}", headers=headers) as response:
            return response.status_code
    except (http.httpx.HTTPError, http.httpx.InvalidURL) as error:
        raise GatewayUnavailable(
            f"--dialect auto: the gateway at {_display(url)} cannot be asked: {first_line(error)}"
        ) from error


def _display(url: str) -> str:
    return displayable_url(url).partition("?")[0]


# The gateway's URL and token, checked before anything is sent, and displayed without secrets.
#
# Nothing here needs httpx, whose import takes as long as the rest of a session's startup.

_URL = re.compile(
    r"(?P<scheme>(?i:https?))://(?:(?P<user>[^/?#@]*)@)?(?P<host>\[[0-9a-fA-F:.]+\]|[^/?#@:\[\]\\]+)(?::(?P<port>[0-9]{0,5}))?"
    r"(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?(?:#.*)?"
)
_AS_THEY_ARE = "%/:@!$&'()*+,;=~?"  # characters that are not quoted in a path and a query
_A_BYTE = r"(?:0|[1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5])"


class GatewayAddress(NamedTuple):
    """The address of requests. `host` is a name or an address, in lower case, without brackets; `port` is None for the
    default one, `target` path and query, `named` the value of the header `host`, `user` "name:password" if the URL has
    a user."""

    scheme: str
    host: str
    port: int | None
    target: str
    named: str
    user: str | None

    @property
    def password(self) -> str | None:
        """The decoded password; None if there is none."""
        return (self.user or "").partition(":")[2] or None


def check_url(url: str, named: str = "--gateway", *, may_be_script: bool = True) -> GatewayAddress:
    """Parse `url`, an http or https URL with a valid host. Raises UsageError, which calls it `named` and, if the
    caller accepts a script as well (`may_be_script`), mentions mock:FILE."""
    found = _URL.fullmatch(url) if url.isprintable() and " " not in url else None
    if found is None or not 0 < int(found["port"] or 1) < 65536:
        script = ", or mock:FILE" if may_be_script else ""
        script += f"; did you mean mock:{url}?" if may_be_script and os.path.isfile(url) else ""
        raise UsageError(f"{named} {displayable_url(url)!r}: give an http:// or https:// URL{script}")
    try:
        host = _network_name(found["host"]).strip("[]").lower()
    except ValueError as error:
        raise UsageError(f"{named} {displayable_url(url)!r}: {error}") from error
    scheme, port = found["scheme"].lower(), int(found["port"]) if found["port"] else None
    target = quote((found["path"] or "/") + (f"?{found['query']}" if found["query"] else ""), _AS_THEY_ARE)
    in_header = f"[{host}]" if ":" in host else host
    if port not in (None, {"http": 80, "https": 443}[scheme]):
        in_header = f"{in_header}:{port}"
    name, _, password = (found["user"] or "").partition(":")
    user = f"{unquote(name)}:{unquote(password)}" if name or password else None
    return GatewayAddress(scheme, host, port, target, in_header, user)


def gateway_name(settings: Settings) -> str:
    """Return the name of the setting or provider that defines the gateway's URL, for messages."""
    provider = settings.provider
    return settings.name_of("llm.gateway") if provider is None else provider.url_name


def is_by_proxy(scheme: str) -> bool:
    """True if a proxy may be configured for URLs of this scheme. httpx decides which hosts are exempt."""
    in_environment = any(name.lower().endswith("_proxy") for name in os.environ)
    if not in_environment and sys.platform not in ("darwin", "win32"):  # these also have system settings
        return False
    from urllib.request import getproxies

    return bool(getproxies().keys() & {scheme, "all"})


def _network_name(host: str) -> str:
    """Return the host in ASCII. Raises ValueError."""
    if ":" in host:
        try:
            socket.inet_pton(socket.AF_INET6, host.strip("[]"))
        except OSError as error:
            raise ValueError(f"{host} is not an IPv6 address") from error
    elif re.fullmatch(r"[0-9]+(?:\.[0-9]+){3}", host):
        if not re.fullmatch(rf"{_A_BYTE}(?:\.{_A_BYTE}){{3}}", host):
            raise ValueError(f"{host} is not an IPv4 address")
    elif not host.isascii():
        import idna

        return idna.encode(host.lower()).decode()  # idna.IDNAError is a ValueError
    return host


def request_url(url: str, path: str) -> str:
    """Return the URL for requests of a dialect with this `path`, such as `/v1/messages`, to the gateway at `url`. `url`
    may end with the path, with its version or with neither; a URL that ends with the path after the version is not
    changed. A query stays at the end."""
    place, mark, query = url.partition("?")
    place = place.rstrip("/")
    version, tail = path[: path.index("/", 1)], path[path.index("/", 1) :]
    if not place.endswith(tail):
        place = place + tail if place.endswith(version) else place + path
    return place + mark + query


def check_token(token: str | None) -> str | None:
    """Return `token` unchanged. Raises UsageError for one that no header can carry."""
    if token is not None and not usable_in_header(token):
        raise UsageError(f"the gateway's token ({TOKEN_VARIABLE}) contains characters that no header can carry")
    return token


_HEADER_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}"
# Headers that each request sets itself; other values would break it.
_OWN_HEADERS = frozenset(
    ("accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "host", "te",
     "transfer-encoding", "upgrade", "x-session-id")
)  # fmt: skip


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return `headers` of the setting `llm.headers` with names in lower case. They may replace `authorization`,
    `x-api-key` and the dialect's own headers. Raises UsageError, which quotes no value."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        if not re.fullmatch(_HEADER_NAME, name):
            raise UsageError(f"llm.headers: {name[:80]!r} is not a header name")
        if name.lower() in _OWN_HEADERS:
            raise UsageError(f"llm.headers: {name} is set by each request itself; leave it out")
        if not usable_in_header(value):
            raise UsageError(f"llm.headers: the value of {name} contains characters that no header can carry")
        found[name.lower()] = value
    return found


def secrets_in(headers: Mapping[str, str]) -> list[str]:
    """Return the values of headers, and also the keys in them without the scheme before them (`Bearer KEY`)."""
    keys = (value.partition(" ")[2] for name, value in headers.items() if name.lower() in KEY_HEADERS)
    return [*headers.values(), *filter(None, keys)]
