"""OAuth for a server that requires it: the SDK's flow, with tokens stored in the state directory.

A session has no browser: it uses the stored tokens, and renews them. `agent-host doctor --authorize` gets the first
ones.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import BaseModel, ValidationError

from tool_runtime.files.writer import PRIVATE_DIRECTORY, open_directory
from tool_runtime.remote.mcp import token_file

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable


class Browser(NamedTuple):
    """A person's browser: `send_to` opens the page of an authorization server, and `sent_back` returns that page's
    answer to `port` of this machine. Raises ToolFault if the person did not agree."""

    send_to: Callable[[str], Awaitable[None]]
    sent_back: Callable[[], Awaitable[Any]]
    port: int


CALLBACK: Final = "http://127.0.0.1:{}/callback"
DEFAULT_PORT: Final = 43119  # of the address that the browser is sent back to, which is registered with the server


class _Stored(BaseModel):
    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None
    expires_at: float | None = None
    metadata: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None
    auth_server_url: str | None = None


class TokenFile:
    """A TokenStorage of the SDK: one file for each server, readable by its owner only; an unreadable file counts as
    missing. A client registered with another `redirect_uri` is ignored. `on_secrets` gets tokens and secrets before
    they are stored."""

    def __init__(
        self,
        folder: str,
        url: str,
        time: Callable[[], float],
        redirect_uri: str | None = None,
        on_secrets: Callable[[Iterable[str | None]], None] = lambda _: None,
    ) -> None:
        self._time = time
        self._redirect_uri = redirect_uri
        self._on_secrets = on_secrets
        self._path = token_file(folder, url)
        self._context: OAuthContext | None = None

    def remind(self, context: OAuthContext) -> None:
        """Restore the SDK's state from the process that got the tokens: their expiry, and the address that renews them.
        The SDK reads neither from a storage, and would require a new authorization."""
        self._context = context
        kept = self._read()
        context.token_expiry_time = kept.expires_at
        context.oauth_metadata = kept.metadata
        context.protected_resource_metadata = kept.resource
        context.auth_server_url = kept.auth_server_url

    def take_kept(self, context: OAuthContext) -> None:
        """Give the SDK the tokens that another session may have renewed: a refresh token may be good only once."""
        kept = self._read()
        if kept.tokens is not None:
            self._on_secrets((kept.tokens.access_token, kept.tokens.refresh_token))
            context.current_tokens, context.token_expiry_time = kept.tokens, kept.expires_at

    async def get_tokens(self) -> OAuthToken | None:
        """See TokenStorage."""
        return self._read().tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """See TokenStorage."""
        self._on_secrets((tokens.access_token, tokens.refresh_token))
        ends = None if tokens.expires_in is None else self._time() + tokens.expires_in
        found: dict[str, Any] = {"tokens": tokens, "expires_at": ends}
        if self._context is not None:
            context = self._context
            found |= {"metadata": context.oauth_metadata, "resource": context.protected_resource_metadata}
            found["auth_server_url"] = context.auth_server_url
        await asyncio.to_thread(self._update, found)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """See TokenStorage."""
        client = self._read().client
        if client is None or self._redirect_uri is None:
            return client
        return client if self._redirect_uri in map(str, client.redirect_uris or ()) else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """See TokenStorage."""
        self._on_secrets((client_info.client_secret,))
        await asyncio.to_thread(self._update, {"client": client_info})

    def _read(self) -> _Stored:
        try:
            with open(self._path, "rb") as file:
                return _Stored.model_validate_json(file.read(1 << 20))
        except (OSError, ValidationError):
            return _Stored()

    def _update(self, found: dict[str, Any]) -> None:
        """Store `found` as well, synced to the disk, because the previous tokens may be invalid."""
        kept = self._read().model_copy(update=found)
        folder, name = os.path.split(self._path)
        with open_directory(os.path.realpath(folder), create=PRIVATE_DIRECTORY) as directory:
            directory.put(name, kept.model_dump_json().encode(), 0o600)


class _Context(OAuthContext):
    """The SDK's, which reads the stored tokens before it treats a token as expired."""

    def is_token_valid(self) -> bool:
        """See OAuthContext."""
        if not super().is_token_valid() and isinstance(self.storage, TokenFile):
            self.storage.take_kept(self)
        return super().is_token_valid()


def oauth_of(
    name: str,
    url: str,
    folder: str,
    time: Callable[[], float],
    *,
    browser: Browser | None = None,
    on_secrets: Callable[[Iterable[str | None]], None] = lambda _: None,
) -> OAuthClientProvider:
    """Return the authentication of requests to a server. `browser` opens the page of an authorization server; without
    it a required page is a fault. `on_secrets` gets values to be redacted."""

    async def refuse(*_: Any) -> Any:
        raise OAuthFlowError(f"this program is not authorized yet: agent-host doctor --authorize {name}")

    redirect_uri = CALLBACK.format(DEFAULT_PORT if browser is None else browser.port)
    grants = {"grant_types": ["authorization_code", "refresh_token"], "token_endpoint_auth_method": "none"}
    client = {"client_name": "agent-host", "redirect_uris": [redirect_uri], "response_types": ["code"], **grants}
    metadata = OAuthClientMetadata.model_validate(client)
    kept = TokenFile(folder, url, time, None if browser is None else redirect_uri, on_secrets)
    send_to, sent_back = (refuse, refuse) if browser is None else (browser.send_to, browser.sent_back)
    provider = OAuthClientProvider(url, metadata, kept, send_to, sent_back)
    made = provider.context
    provider.context = _Context(**{one.name: getattr(made, one.name) for one in dataclasses.fields(made)})
    kept.remind(provider.context)
    return provider
