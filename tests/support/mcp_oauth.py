"""An MCP server that asks for OAuth, and is its own authorization server: who comes with a browser is let in at once,
unless a file `LOG.refuse` is there. What it gives is in its log. A client forgets when its access token ends: after a
restart it is renewed.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from typing import TYPE_CHECKING, Any

from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    AuthorizeError,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthToken

if TYPE_CHECKING:
    from mcp.shared.auth import OAuthClientInformationFull

LIFE_S = 60


def authorized(name: str, port: int, log: str | None) -> MCPServer:
    """A server on this port."""
    url = f"http://127.0.0.1:{port}"
    settings = AuthSettings.model_validate(
        {
            "issuer_url": url,
            "resource_server_url": f"{url}/mcp",
            "validate_token_resource": False,
            "client_registration_options": ClientRegistrationOptions(enabled=True),
        }
    )
    return MCPServer(name, auth=settings, auth_server_provider=_Provider(log))


class _Provider:
    """See OAuthAuthorizationServerProvider."""

    def __init__(self, log: str | None) -> None:
        self._log = log
        self._clients: dict[str, OAuthClientInformationFull] = {}
        self._codes: dict[str, AuthorizationCode] = {}
        self._access: dict[str, AccessToken] = {}
        self._refresh: dict[str, RefreshToken] = {}

    def _note(self, what: str) -> None:
        if self._log is not None:
            with open(self._log, "a", encoding="utf-8") as file:
                file.write(json.dumps({"tool": what}) + "\n")

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self._clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self._note("registered")
        self._clients[str(client_info.client_id)] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        if _is_there(f"{self._log}.refuse"):
            raise AuthorizeError("access_denied", "not today")
        self._note("authorized")
        code = secrets.token_hex(20)
        self._codes[code] = AuthorizationCode(
            code=code,
            client_id=str(client.client_id),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self._codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self._codes[authorization_code.code]
        return self._tokens(client, authorization_code.scopes)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self._refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self._note("renewed")
        del self._refresh[refresh_token.token]
        return self._tokens(client, scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self._access.get(token)

    async def exchange_identity_assertion(self, client: OAuthClientInformationFull, params: Any) -> OAuthToken:
        raise NotImplementedError

    async def revoke_token(self, token: Any) -> None:
        self._access.pop(token.token, None)

    def _tokens(self, client: OAuthClientInformationFull, scopes: list[str]) -> OAuthToken:
        access, refresh = secrets.token_hex(20), secrets.token_hex(20)
        who = str(client.client_id)
        self._access[access] = AccessToken(
            token=access, client_id=who, scopes=scopes, expires_at=int(time.time()) + LIFE_S
        )
        self._refresh[refresh] = RefreshToken(token=refresh, client_id=who, scopes=scopes)
        return OAuthToken(
            access_token=access, token_type="Bearer", expires_in=LIFE_S, refresh_token=refresh, scope=" ".join(scopes)
        )


def _is_there(path: str) -> bool:
    return os.path.exists(path)
