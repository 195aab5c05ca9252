"""MCP servers as a source of tools (TR 9). Only what `connection` brings along imports the SDK.

Here are facts about a server before anything is started or connected.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import orjson

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager

    from agent_host.contracts import PersonAnswer, PersonAsked
    from policy import CommandScope


class Asking(NamedTuple):
    """Questions of a server during a call: `put` asks a person, and `paused` stops the call's timeout."""

    put: Callable[[PersonAsked], Awaitable[PersonAnswer]]
    paused: Callable[[], AbstractContextManager[None]]


MAX_ANSWER_BYTES: Final = 10 * 1024 * 1024  # of one answer: a body, an event, a line (TR 9.3)
MAX_PAGES: Final = 50  # of one list of tools


class Http(NamedTuple):
    """A server at `url`, to whose origin alone `token` and the certificate `client_cert` are sent (its key may be in
    `client_key`). `ca_file` has the only roots that are trusted, if given. `oauth_folder` keeps the tokens of OAuth,
    None for no OAuth."""

    url: str
    token: str | None = None
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    proxy: str | None = None
    oauth_folder: str | None = None


class Stdio(NamedTuple):
    """A server that is a program. `environment` is its whole environment, `scope` its sandbox."""

    argv: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str]
    mark: str
    scope: CommandScope | None = None


class ServerConfig(NamedTuple):
    """One server by its `name`. `connect_timeout_s` is for a connection with its handshake, `timeout_s` for a call.
    `elicitation`: it may ask the person something in the middle of a call."""

    name: str
    place: Http | Stdio
    timeout_s: float
    connect_timeout_s: float
    elicitation: bool = False


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of a URL, in canonical spelling. Raises ValueError if it is not a URL."""
    parts = urlsplit(url)
    default: dict[str, int] = {"http": 80, "https": 443}
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), parts.port or default.get(scheme)


def token_file(folder: str, url: str) -> str:
    """The file of a server's OAuth tokens."""
    return os.path.join(folder, f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json")


def read_tokens(folder: str, url: str) -> tuple[str, ...]:
    """The tokens in that file, and the secret of the client; none if it cannot be read."""
    try:
        with open(token_file(folder, url), "rb") as file:
            kept = orjson.loads(file.read(1 << 20))
        found = [(kept.get("tokens") or {}).get(name) for name in ("access_token", "refresh_token", "id_token")]
        found.append((kept.get("client") or {}).get("client_secret"))
    except (OSError, ValueError, AttributeError):
        return ()
    return tuple(token for token in found if isinstance(token, str))


class NotSent(Exception):
    """The server has not got the request: it may be sent again on another connection."""
