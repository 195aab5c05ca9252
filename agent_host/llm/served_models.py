"""The models that a provider lists: asked where a session has to choose one, or to prove that one is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from agent_host.errors import UsageError
from agent_host.http import TlsContext, displayable_url, first_line, httpx, is_loopback
from agent_host.llm.urls import check_headers, check_token, check_url, request_url

if TYPE_CHECKING:
    from agent_host.llm.stream import Dialect
    from config.settings import Settings

_TIMEOUT_S: Final = 20.0
_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_MODELS: Final = 5000


class NoList(UsageError):
    """A provider gives no list of models that can be read."""


def list_url(url: str, path: str) -> str:
    """The URL of the list of models beside the one that takes requests of a dialect with this `path`."""
    place = request_url(url, path).partition("?")[0]
    return f"{place.removesuffix(path[path.index('/', 1) :])}/models"


async def ask_models(
    settings: Settings, dialect: Dialect, token: str | None, timeout_s: float = _TIMEOUT_S
) -> tuple[str, ...]:
    """The ids of the models that the provider at `llm.gateway` lists, in its order. No redirect is followed, since the
    key is for this place. Raises NoList, and UsageError for a URL or a key that no request could carry."""
    url = settings.llm.gateway
    host, address = check_url(url).host, list_url(url, dialect.path)
    shown, headers = displayable_url(address), {**dialect.headers(check_token(token))}
    headers = {**headers, **check_headers(settings.llm.headers), "accept": "application/json"}
    headers.pop("content-type")
    client = httpx.AsyncClient(
        timeout=timeout_s, verify=TlsContext(url).get(), follow_redirects=False, trust_env=not is_loopback(host)
    )
    try:
        async with client, client.stream("GET", address, params={"limit": "1000"}, headers=headers) as answer:
            data = bytearray()
            async for piece in answer.aiter_bytes():
                data += piece
                if len(data) > _MAX_BYTES:
                    raise NoList(f"{shown} lists no models: its answer is longer than {_MAX_BYTES} bytes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NoList(f"{shown} cannot be asked for its models: {first_line(error)}") from error
    if answer.status_code != httpx.codes.OK:
        raise NoList(f"{shown} gives no list of models (HTTP {answer.status_code}): name one with --model")
    try:
        rows = orjson.loads(data)["data"][:_MAX_MODELS]
        return tuple(row["id"].removeprefix("models/") for row in rows)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NoList(f"{shown} gives no list of models that can be read: name one with --model") from error
