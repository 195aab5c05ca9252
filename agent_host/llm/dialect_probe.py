"""Asks a gateway which dialects it speaks, with requests that run no model: an empty object to each path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent_host.errors import ErrorCode, GatewayError, GatewayRejected, GatewayUnavailable
from agent_host.http import TlsContext, displayable_url, first_line, is_loopback
from agent_host.lean_httpx import httpx
from agent_host.llm.urls import check_headers, check_token, check_url, request_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.llm.stream import Dialect
    from config.settings import Settings

# What the empty object is refused with where somebody reads it.
_THERE: Final = frozenset({400, 413, 415, 422})
_NOT_THERE: Final = frozenset({404, 405, 410, 501})
_NO_TOKEN: Final = frozenset({401, 403})
_TIMEOUT_S = 10.0


def probe(dialects: Mapping[str, Dialect], settings: Settings, url: str, token: str | None) -> tuple[str, str]:
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


def _client(settings: Settings, url: str) -> httpx.Client:
    host = check_url(url).host
    connect_s = min(_TIMEOUT_S, settings.llm.connect_timeout_s)
    return httpx.Client(
        timeout=httpx.Timeout(_TIMEOUT_S, connect=connect_s),
        verify=TlsContext(url).get(),
        follow_redirects=False,
        trust_env=not is_loopback(host),
    )


def _status_of(client: httpx.Client, url: str, headers: dict[str, str]) -> int:
    """The status of an answer whose body nobody reads."""
    try:
        with client.stream("POST", url, content=b"{}", headers=headers) as response:
            return response.status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise GatewayUnavailable(
            f"--dialect auto: the gateway at {_display(url)} cannot be asked: {first_line(error)}"
        ) from error


def _display(url: str) -> str:
    return displayable_url(url).partition("?")[0]
