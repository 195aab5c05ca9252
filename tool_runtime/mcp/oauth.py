"""OAuth for a server that asks for it: the SDK's flow, with tokens that are kept in the state directory.

A session has nobody at a browser: it uses the tokens that there are, and renews them. `agent-host doctor --authorize`
gets them first.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.client.auth import AuthorizationCodeResult

CALLBACK: Final = "http://127.0.0.1:{}/callback"
DEFAULT_PORT: Final = 43119
"""Of the address that the browser is sent back to, which is registered with the server."""


class _Kept(BaseModel):
    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None


class TokenFile:
    """A TokenStorage of the SDK: one file for each server, for its owner alone. What cannot be read is not there."""

    def __init__(self, folder: str, url: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json")

    async def get_tokens(self) -> OAuthToken | None:
        """See TokenStorage."""
        return self._read().tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """See TokenStorage."""
        self._write(self._read().model_copy(update={"tokens": tokens}))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """See TokenStorage."""
        return self._read().client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """See TokenStorage."""
        self._write(self._read().model_copy(update={"client": client_info}))

    def _read(self) -> _Kept:
        try:
            with open(self._path, "rb") as file:
                return _Kept.model_validate_json(file.read(1 << 20))
        except (OSError, ValidationError):
            return _Kept()

    def _write(self, kept: _Kept) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        fd, path = tempfile.mkstemp(dir=self._folder)  # for its owner alone
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(kept.model_dump_json())
            os.replace(path, self._path)
        except OSError:
            with suppress(OSError):
                os.unlink(path)
            raise


def oauth_of(
    name: str,
    url: str,
    folder: str,
    *,
    send_to: Callable[[str], Awaitable[None]] | None = None,
    sent_back: Callable[[], Awaitable[AuthorizationCodeResult]] | None = None,
) -> OAuthClientProvider:
    """What authenticates the requests to a server. `send_to` shows somebody the page of an authorization server, and
    `sent_back` gives what that page sends back; without them a page that would have to be shown is a fault."""

    async def nobody(*_: Any) -> Any:
        raise OAuthFlowError(f"nobody has authorized this program yet: agent-host doctor --authorize {name}")

    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": "agent-host",
            "redirect_uris": [CALLBACK.format(DEFAULT_PORT)],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        }
    )
    return OAuthClientProvider(url, metadata, TokenFile(folder, url), send_to or nobody, sent_back or nobody)
