"""Facts from a server on this machine or a private network: the models that it serves, and their context windows.

Pages of several servers are read: llama.cpp's `/props`, `/v1/models` if it contains a length (vLLM, LM Studio, SGLang),
and Ollama's `/api/show` with `/api/ps`. Nothing is posted to a gateway that has none of the other pages. A gateway on
the internet is not queried: its models are in the shipped table, and it might count the requests. All requests together
take at most `PATIENCE_S`; a server that does not answer is treated like one without these pages. A host name is only
queried if its address is private, which is checked after connecting and before anything is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host import http
from agent_host.errors import UsageError
from agent_host.http import TlsContext, displayable_url, first_line, is_loopback
from agent_host.llm.known_dialects import check_headers, check_token, check_url, request_url
from config.lean_typing import NamedTuple
from policy.urls import address_is_public

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from agent_host.llm.dialects import Dialect
    from config.settings import Settings

PATIENCE_S: Final = 1.0
_MAX_BYTES = 4 * 1024 * 1024
_OK = 200
_LLAMA_PAGE: Final = "/props"
"""The page that identifies llama.cpp's server."""
_LENGTHS = ("max_model_len", "loaded_context_length", "context_length", "context_window", "max_context_length")
_LOCAL_NAME = r"(?:[^.]+|.+\.(?:localhost|local|lan|internal|home\.arpa))\.?"
_API = r"/v1(?:/.*)?$|/(?:messages|chat/completions|responses)$"


class ServerFacts(NamedTuple):
    """Facts from a server: `models` are ids in its order, `context_tokens` is the window of the requested model, or of
    the only one, and `page` its source; None and "" if no page contains it. `takes_tools` is False if the server
    reports that the model does not accept tools."""

    models: tuple[str, ...] = ()
    context_tokens: int | None = None
    page: str = ""
    takes_tools: bool | None = None

    @classmethod
    def read_row(cls, row: Mapping[str, Any]) -> ServerFacts | None:
        """Return the facts of a stored row; None if another version wrote it."""
        return None if row.keys() != set(cls._fields) else cls(**{**row, "models": tuple(row["models"])})

    @property
    def takes_forms(self) -> bool:
        """True unless the server is known to reject an answer schema together with tools."""
        return self.page != _LLAMA_PAGE


def is_local(url: str) -> bool:
    """True if the host of `url`, which `check_url` accepts, may be on this machine or a private network."""
    host = check_url(url).host
    if ":" in host or re.fullmatch(r"[0-9.]+", host):
        return not address_is_public(host)
    return re.fullmatch(_LOCAL_NAME, host) is not None


async def ask_server(
    url: str, model: str, headers: Mapping[str, str], tls: Callable[[], ssl.SSLContext]
) -> ServerFacts | None:
    """Query the local server at `url` for its models and for the window of `model`, "" for the only one that it serves.
    `headers` are those of requests to it, `tls` makes the TLS context for an https URL. None if it does not answer
    within `PATIENCE_S` or is not ready."""
    place = check_url(url)
    secure = tls() if place.scheme == "https" else None
    root = re.sub(_API, "", place.target.partition("?")[0].rstrip("/"))

    until = asyncio.get_running_loop().time() + PATIENCE_S

    async def page(path: str, body: bytes | None = None) -> tuple[int, Any]:
        """Return the page, (0, None) if it cannot be read, because the other pages may be enough."""
        try:
            async with asyncio.timeout_at(until):
                return await _page(place, root + path, headers, secure, body)
        except (OSError, ValueError, EOFError):  # a timeout is an OSError
            return 0, None

    (status, props), (listed_status, listed) = await asyncio.gather(page("/props"), page("/v1/models"))
    if status >= 500 or status == listed_status == 0:  # it is loading or unreachable
        return None
    rows = _rows(listed)
    wanted = model or (rows[0]["id"] if len(rows) == 1 else "")
    facts = ServerFacts(tuple(row["id"] for row in rows), *_read_props(props))
    if facts.context_tokens is None:
        facts = facts._replace(**_read_row(next((row for row in rows if row["id"] == wanted), {})))
    if facts.context_tokens is None and wanted:
        # A gateway that is not one of these servers might treat a posted body as a request to its model.
        (_, running), (_, tags) = await asyncio.gather(page("/api/ps"), page("/api/tags"))
        if rows or running is not None or tags is not None:
            _, shown = await page("/api/show", orjson.dumps({"model": wanted}))
            facts = facts._replace(**_read_ollama(shown, running, wanted))
    return facts


async def _page(
    place: Any, path: str, headers: Mapping[str, str], secure: ssl.SSLContext | None, body: bytes | None
) -> tuple[int, Any]:
    """Return the status of one page and its JSON, None if it has none. Uses HTTP/1.0, whose answers are not chunked."""
    port = place.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(place.host, port, ssl=secure)
    try:
        if address_is_public(str(writer.get_extra_info("peername")[0])):
            raise OSError("this is not a private address")
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.0", f"host: {place.named}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [] if body is None else ["content-type: application/json", f"content-length: {len(body)}"]
        writer.write("\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + (body or b""))
        status = int((await reader.readline()).split()[1])
        length = _MAX_BYTES
        while (line := await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            if name.strip().lower() == "content-length":
                length = min(length, int(value))
        data = b""
        while len(data) < length and (piece := await reader.read(length - len(data))):
            data += piece
        with contextlib.suppress(orjson.JSONDecodeError):
            return status, orjson.loads(data) if status == _OK else None
        return status, None
    except IndexError as error:
        raise EOFError from error
    finally:
        writer.close()


def _rows(listed: Any) -> list[dict[str, Any]]:
    data = _object(listed).get("data")
    rows = data[:1000] if isinstance(data, list) else []
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str) and row["id"]]


def _read_props(props: Any) -> tuple[int | None, str]:
    """Return llama.cpp's window of one slot, because all slots share the server's context."""
    inner = _object(_object(props).get("default_generation_settings"))
    found = _tokens(inner.get("n_ctx")) or _tokens(_object(props).get("n_ctx"))
    return (found, _LLAMA_PAGE) if found else (None, "")


def _read_row(row: Mapping[str, Any]) -> dict[str, Any]:
    lengths = (_tokens(row.get(name)) for name in _LENGTHS)
    found = next(filter(None, lengths), None) or _tokens(_object(row.get("meta")).get("n_ctx"))
    return {"context_tokens": found, "page": "/v1/models"} if found else {}


def _read_ollama(shown: Any, running: Any, model: str) -> dict[str, Any]:
    """Read Ollama's window: the one in use takes precedence over a configured one, and that over the model's
    maximum."""
    if not isinstance(shown, dict):
        return {}
    parameters, able, loaded = shown.get("parameters"), shown.get("capabilities"), _object(running).get("models")
    chosen = re.search(r"(?m)^\s*num_ctx\s+(\d{1,9})\s*$", parameters) if isinstance(parameters, str) else None
    in_use = [
        row.get("context_length")
        for row in map(_object, loaded if isinstance(loaded, list) else ())
        if model in (row.get("name"), row.get("model"))
    ]
    of_model = (value for name, value in _object(shown.get("model_info")).items() if name.endswith(".context_length"))
    candidates = [*in_use, int(chosen[1]) if chosen else None, *of_model]
    found = next(filter(None, map(_tokens, candidates)), None)
    facts: dict[str, Any] = {"takes_tools": "tools" in able} if isinstance(able, list) else {}
    return {**facts, "context_tokens": found, "page": "/api/show"} if found else facts


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tokens(value: object) -> int | None:
    return value if type(value) is int and 0 < value <= 10**9 else None


# The models that a provider lists: queried if a session has to choose one or to check that one exists.

_TIMEOUT_S: Final = 20.0
_MAX_LIST_BYTES: Final = 16 * 1024 * 1024
_MAX_LISTED: Final = 5000


class NoList(UsageError):
    """A provider returned no readable list of models."""


async def ask_models(
    settings: Settings, dialect: Dialect, token: str | None, timeout_s: float = _TIMEOUT_S
) -> tuple[str, ...]:
    """Return the ids of the models that the provider at `llm.gateway` lists, in its order. No redirect is followed,
    because the key is for this host only. Raises NoList, and UsageError for a URL or a key that no request could
    carry."""
    url, path = settings.llm.gateway, dialect.path
    host = check_url(url).host
    # The list is next to the path of requests.
    address = f"{request_url(url, path).partition('?')[0].removesuffix(path[path.index('/', 1) :])}/models"
    shown, headers = displayable_url(address), {**dialect.headers(check_token(token))}
    headers = {**headers, **check_headers(settings.llm.headers), "accept": "application/json"}
    headers.pop("content-type")
    client = http.httpx.AsyncClient(
        timeout=timeout_s, verify=TlsContext(url).get(), follow_redirects=False, trust_env=not is_loopback(host)
    )
    try:
        async with client, client.stream("GET", address, params={"limit": "1000"}, headers=headers) as answer:
            data = bytearray()
            async for piece in answer.aiter_bytes():
                data += piece
                if len(data) > _MAX_LIST_BYTES:
                    raise NoList(f"{shown} lists no models: its answer is longer than {_MAX_LIST_BYTES} bytes")
    except (http.httpx.HTTPError, http.httpx.InvalidURL) as error:
        raise NoList(f"{shown} cannot be asked for its models: {first_line(error)}") from error
    if answer.status_code != http.httpx.codes.OK:
        raise NoList(f"{shown} gives no list of models (HTTP {answer.status_code}): name one with --model")
    try:
        rows = orjson.loads(data)["data"][:_MAX_LISTED]
        return tuple(row["id"].removeprefix("models/") for row in rows)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NoList(f"{shown} gives no list of models that can be read: name one with --model") from error
