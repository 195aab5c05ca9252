"""The dialects that there are, by the names of the setting `llm.dialect`. Each is imported when it is chosen.

Where the setting is `auto`, the gateway is asked which it speaks, with requests that run no model: an empty object to
each path.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from agent_host import http
from agent_host.errors import ErrorCode, GatewayError, GatewayRejected, GatewayUnavailable
from agent_host.http import TlsContext, displayable_url, first_line, is_loopback
from agent_host.llm.urls import check_headers, check_token, check_url, request_url
from config.lean_typing import NamedTuple
from state.errors import WriteFailed
from state.remembered import GatewayDialects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_host.llm.stream import Dialect, Meaning
    from config.settings import Settings

AUTO: Final = "auto"
"""The name that stands for the dialect that the gateway is found to speak (`agent_host.llm.known_dialects`)."""
# What the empty object is refused with where somebody reads it.
_THERE: Final = frozenset({400, 413, 415, 422})
_NOT_THERE: Final = frozenset({404, 405, 410, 501})
_NO_TOKEN: Final = frozenset({401, 403})
_TIMEOUT_S = 10.0


def _anthropic(settings: Settings) -> Dialect:
    from agent_host.llm.dialects.anthropic import AnthropicDialect

    return AnthropicDialect(own_key=settings.provider is not None)


def _openai(settings: Settings) -> Dialect:
    from agent_host.llm.dialects.openai_chat import ChatDialect

    field = settings.llm.max_tokens_field
    return ChatDialect(max_tokens_field=field, names_cache=names_cache(settings), own_key=settings.provider is not None)


def _responses(settings: Settings) -> Dialect:
    from agent_host.llm.dialects.openai_responses import ResponsesDialect

    return ResponsesDialect(names_cache=names_cache(settings), own_key=settings.provider is not None)


_MAKERS: Mapping[str, Callable[[Settings], Dialect]] = {
    "anthropic": _anthropic,
    "openai": _openai,
    "responses": _responses,
}
NAMES: Final = tuple(_MAKERS)
"""In the order in which a gateway is asked for them."""
_HOSTS_WITH_KEYS = r"(?:^|\.)(?:openai|azure)\.com$"
_PROVIDERS: Mapping[str, str] = {"responses": "openai"}


def make_dialect(name: str, settings: Settings) -> Dialect:
    """The dialect called `name`, one of `NAMES`, as the settings want it."""
    return _MAKERS[name](settings)


def names_cache(settings: Settings) -> bool:
    """True if requests have `prompt_cache_key`. Proxies and servers of others refuse it, some of them only for some
    models, so that by default it is sent where it is known to be of use."""
    wanted = settings.llm.prompt_cache_key
    gateway = settings.llm.gateway
    if wanted != "auto" or not gateway.lower().startswith(("http://", "https://")):
        return wanted == "always"
    return re.search(_HOSTS_WITH_KEYS, check_url(gateway).host) is not None


def provider_of(name: str) -> str:
    """OpenTelemetry's name of the provider whose dialect this is."""
    return _PROVIDERS.get(name, name)


# Which dialect a gateway speaks, where the setting `llm.dialect` is `auto`.


class ChosenDialect(NamedTuple):
    """`said` is one line for a person: what `auto` took, and why; "" where the settings name the dialect."""

    dialect: Dialect
    said: str = ""


def dialect_of_settings(settings: Settings) -> ChosenDialect | None:
    """The dialect that the settings name; None where it is to be found."""
    name = settings.llm.dialect
    return None if name == AUTO else ChosenDialect(make_dialect(name, settings))


def dialect_of_script(settings: Settings) -> ChosenDialect:
    """That of a scripted gateway in this process, which speaks them all."""
    return _chosen(settings, NAMES[0], "the scripted gateway speaks all")


def meaning_of_old_record(stop_reason: str) -> Meaning:
    """The meaning of a stop reason on record without one: versions that wrote none had one dialect."""
    from agent_host.llm.dialects.anthropic import meaning_of

    return meaning_of(stop_reason)


def find_dialect(
    settings: Settings, url: str, token: str | None, state_dir: str, time: Callable[[], float], *, anew: bool = False
) -> ChosenDialect:
    """The dialect of the gateway at `url`: what the path of the URL says; else what was found within the last days by
    the clock `time`, unless it is looked for `anew`; else what the gateway says to requests that run no model. Blocks
    until it has answered. Raises UsageError, GatewayUnavailable, GatewayRejected."""
    place = displayable_url(url).partition("?")[0]
    for name in NAMES:
        if place.endswith(_tail(make_dialect(name, settings).path)):
            return _chosen(settings, name, "its URL says so")
    kept = GatewayDialects(state_dir, time)
    known = None if anew else kept.find(place)
    if known in NAMES:
        return _chosen(settings, known, "as it was found to do")
    dialects = {name: make_dialect(name, settings) for name in NAMES}
    name, why = _probe(dialects, settings, url, token)
    with contextlib.suppress(WriteFailed):  # it is asked again then
        kept.keep(place, name)
    return _chosen(settings, name, why)


def _chosen(settings: Settings, name: str, why: str) -> ChosenDialect:
    return ChosenDialect(make_dialect(name, settings), f"the gateway speaks {name}: {why}")


def _tail(path: str) -> str:
    """`path` behind its version."""
    return path[path.index("/", 1) :]


def _probe(dialects: Mapping[str, Dialect], settings: Settings, url: str, token: str | None) -> tuple[str, str]:
    """The name of the first of `dialects` that the gateway at `url` speaks, and how that was seen. Raises UsageError
    for a URL or a token that no request could carry, GatewayUnavailable, GatewayRejected."""
    token = check_token(token)
    own = {**check_headers(settings.llm.headers), "x-session-id": "probe", "accept-encoding": "identity"}
    statuses: dict[str, int] = {}
    paths: dict[str, str] = {}
    with _client(settings, url) as client:
        for name, dialect in dialects.items():
            paths[name] = dialect.path
            status = _status_of(client, request_url(url, dialect.path), {**dialect.headers(token), **own})
            statuses[name] = status
            if status in _THERE or 200 <= status < 300:
                return name, f"it reads what is posted to {dialect.path}"
    # A gateway that asks for a token first tells paths that are there from others only with a good one.
    unclear = [name for name in dialects if statuses[name] not in _NOT_THERE]
    if unclear and len(unclear) < len(dialects):
        return unclear[0], f"it has something at {paths[unclear[0]]} (HTTP {statuses[unclear[0]]})"
    raise _unknown(url, {paths[name]: status for name, status in statuses.items()})


def _unknown(url: str, statuses: Mapping[str, int]) -> GatewayError:
    """The error for a gateway whose answers, by path, tell nothing."""
    said = ", ".join(f"{path}: HTTP {status}" for path, status in statuses.items())
    text = f"--dialect auto: it cannot be seen what the gateway at {_display(url)} speaks ({said}); name the dialect"
    if set(statuses.values()) <= _NO_TOKEN:
        return GatewayRejected(f"{text}, or set LLM_GATEWAY_AUTH_TOKEN", code=ErrorCode.UNAUTHORIZED)
    return GatewayRejected(text) if set(statuses.values()) <= _NOT_THERE else GatewayUnavailable(text)


def _client(settings: Settings, url: str) -> http.httpx.Client:
    host = check_url(url).host
    connect_s = min(_TIMEOUT_S, settings.llm.connect_timeout_s)
    return http.httpx.Client(
        timeout=http.httpx.Timeout(_TIMEOUT_S, connect=connect_s),
        verify=TlsContext(url).get(),
        follow_redirects=False,
        trust_env=not is_loopback(host),
    )


def _status_of(client: http.httpx.Client, url: str, headers: dict[str, str]) -> int:
    """The status of an answer whose body nobody reads."""
    try:
        with client.stream("POST", url, content=b"{}", headers=headers) as response:
            return response.status_code
    except (http.httpx.HTTPError, http.httpx.InvalidURL) as error:
        raise GatewayUnavailable(
            f"--dialect auto: the gateway at {_display(url)} cannot be asked: {first_line(error)}"
        ) from error


def _display(url: str) -> str:
    return displayable_url(url).partition("?")[0]
