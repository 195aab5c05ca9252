"""The entries of `[[mcp.servers]]` in the user's configuration: read, checked, and their tokens fetched."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from agent_host.errors import UsageError
from agent_host.http_basics import usable_in_header
from config.lean_typing import NamedTuple
from config.shapes import FLAG, TEXT, ListOf, Record, first_problem, number, one_of
from policy.bundle.meaning import SERVER_NAME
from policy.urls import UrlProblem, canonical_domain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from config.settings import Settings

SETTING: Final = "mcp.servers"
KEYRING_SERVICE: Final = "agent-host"
_SHAPE: Final = Record(
    {"name": TEXT},
    {
        "transport": one_of("stdio", "http"),
        "command": TEXT,
        "args": ListOf(TEXT),
        "environment_names": ListOf(TEXT),
        "url": TEXT,
        "ca_file": TEXT,
        "client_cert": TEXT,
        "client_key": TEXT,
        "token_env": TEXT,
        "token_keyring": TEXT,
        "oauth": FLAG,
        "elicitation": FLAG,
        "timeout_s": number(0.1, 86_400),
        "allow_http": FLAG,
        "write": ListOf(TEXT),
        "domains": ListOf(TEXT),
    },
    closed=True,
)


class UserServer(NamedTuple):
    """An entry of `[[mcp.servers]]`. `write` are places that a sandbox lets its program write to, `domains` hosts that
    it lets it reach. With `elicitation` it may ask the person something in the middle of a call."""

    name: str
    transport: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    environment_names: tuple[str, ...] = ()
    url: str | None = None
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    token_env: str | None = None
    token_keyring: str | None = None
    oauth: bool = False
    timeout_s: float | None = None
    allow_http: bool = False
    write: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    elicitation: bool = False


class Refused(NamedTuple):
    """A server that is not used, and why."""

    name: str
    why: str


def user_servers(settings: Settings) -> dict[str, UserServer]:
    """The entries of the user's configuration, by name. Raises UsageError."""
    found: dict[str, UserServer] = {}
    for place, table in enumerate(settings.tables(SETTING)):
        path = f"{SETTING}[{place}]"
        problem = first_problem(_SHAPE, table, path)
        if problem is not None:
            raise UsageError(f"configuration: {problem.sentence}")
        said: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in table.items()}
        entry = UserServer(**said)
        wrong = _wrong(entry, found)
        if wrong is not None:
            raise UsageError(f"configuration: {path}: {wrong}")
        found[entry.name] = entry
    return found


def _wrong(entry: UserServer, others: Mapping[str, UserServer]) -> str | None:
    """What the shape does not say of an entry."""
    if not re.fullmatch(SERVER_NAME, entry.name):
        return f"name: {entry.name!r} names no server: 1 to 64 of A-Z a-z 0-9 _ - ."
    if entry.name in others:
        return f"name: there is another server called {entry.name}"
    if entry.transport == "stdio" and (not entry.command or entry.url is not None):
        return "a server over stdio has command, and no url"
    if entry.transport == "http" and (not entry.url or entry.command is not None):
        return "a server over http has url, and no command"
    if entry.url is not None and not re.match(r"(?i)https?://[^/]", entry.url):
        return f"url: {entry.url!r} is not an http or https URL"
    with_credentials = entry.token_env or entry.token_keyring or entry.client_cert or entry.oauth or entry.allow_http
    if with_credentials and entry.url is None:
        return "credentials are for one URL: name it as url"
    if (entry.write or entry.domains) and entry.command is None:
        return "write and domains are for a program: name it as command"
    for domain in entry.domains:
        try:
            canonical_domain(domain)
        except UrlProblem as error:
            return f"domains: {error}"
    if (entry.token_env is not None) + (entry.token_keyring is not None) + entry.oauth > 1:
        return "give one of token_env, token_keyring and oauth"
    return None


def token_of(entry: UserServer) -> str | Refused | None:
    """The user's token for a server, from the environment or the keyring."""
    if entry.token_env is not None:
        token = os.environ.get(entry.token_env, "")
        where = f"${entry.token_env}"
    elif entry.token_keyring is not None:
        try:
            import keyring
            from keyring.errors import KeyringError
        except ImportError:
            return Refused(entry.name, "token_keyring needs the package keyring, which is not installed")
        try:
            token = keyring.get_password(KEYRING_SERVICE, entry.token_keyring) or ""
        except KeyringError as error:
            return Refused(entry.name, f"the keyring does not give {entry.token_keyring}: {error}")
        where = f"the keyring ({KEYRING_SERVICE}, {entry.token_keyring})"
    else:
        return None
    if not token:
        return Refused(entry.name, f"there is no token in {where}")
    return token if usable_in_header(token) else Refused(entry.name, f"what is in {where} is no token")
