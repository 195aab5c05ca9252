"""The tokens of an MCP server, as several sessions keep, renew and hide them, with the requests of the SDK's flow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import orjson
import pytest
from mcp.shared.auth import OAuthToken

from agent_host.ids import MACHINE
from agent_host.redaction import REDACTED, Scrubber
from tool_runtime.remote.mcp import token_file
from tool_runtime.remote.mcp.oauth import TokenFile, oauth_of

if TYPE_CHECKING:
    from mcp.client.auth import OAuthClientProvider

URL = "https://tickets.example.com/mcp"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Where somebody has authorized this program: the access token is over, and its refresh token is `one`."""
    client = {"client_id": "agent-host", "redirect_uris": ["http://127.0.0.1:43119/callback"]}
    kept = {"tokens": tokens("one"), "client": client, "expires_at": 1.0}
    Path(token_file(os.fspath(tmp_path), URL)).write_bytes(orjson.dumps(kept))
    return os.fspath(tmp_path)


def tokens(name: str) -> dict[str, Any]:
    """What an authorization server answers."""
    return {
        "access_token": f"access-{name}",
        "refresh_token": f"refresh-{name}",
        "token_type": "Bearer",
        "expires_in": 3600,
    }


class Server:
    """Takes a refresh token once, and the newest access token."""

    def __init__(self) -> None:
        self.newest = "one"
        self.renewed = 0

    async def ask(self, session: OAuthClientProvider) -> str | None:
        """The token that a session's request comes with."""
        flow = session.async_auth_flow(httpx2.Request("POST", URL))
        request = await anext(flow)
        while request.url != URL:
            request = await flow.asend(self._renew(request))
        await flow.aclose()
        return request.headers.get("Authorization")

    def _renew(self, request: httpx2.Request) -> httpx2.Response:
        if f"refresh_token=refresh-{self.newest}".encode() not in request.content:
            return httpx2.Response(400, json={"error": "invalid_grant"}, request=request)
        self.renewed += 1
        self.newest = f"new-{self.renewed}"
        return httpx2.Response(200, json=tokens(self.newest), request=request)


async def test_a_session_uses_what_another_has_renewed(folder: str) -> None:
    server = Server()
    first, second = oauth_of("tickets", URL, folder, MACHINE.time), oauth_of("tickets", URL, folder, MACHINE.time)
    assert await server.ask(first) == "Bearer access-new-1"
    assert await server.ask(second) == "Bearer access-new-1"
    make_old(folder, first, second)
    assert await server.ask(first) == "Bearer access-new-2"
    assert await server.ask(second) == "Bearer access-new-2"
    assert server.renewed == 2


async def test_a_session_whose_renewal_is_refused_uses_what_another_has_got(folder: str) -> None:
    """Both found the token old in the same moment."""
    server = Server()
    first, second = oauth_of("tickets", URL, folder, MACHINE.time), oauth_of("tickets", URL, folder, MACHINE.time)
    flow = second.async_auth_flow(httpx2.Request("POST", URL))
    renewal = await anext(flow)
    assert await server.ask(first) == "Bearer access-new-1"
    refused = httpx2.Response(400, json={"error": "invalid_grant"}, request=renewal)
    assert (await flow.asend(refused)).headers["Authorization"] == "Bearer access-new-1"
    await flow.aclose()


def make_old(folder: str, *sessions: OAuthClientProvider) -> None:
    """The access token is over, as it is kept and as these know it."""
    path = Path(token_file(folder, URL))
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), "expires_at": 1.0}))
    for session in sessions:
        session.context.token_expiry_time = 1.0


def contents(folder: str) -> dict[str, bytes]:
    """The files there."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


async def test_renewed_tokens_are_hidden_from_then_on(folder: str) -> None:
    scrubber = Scrubber(["another-secret"])
    session = oauth_of("tickets", URL, folder, MACHINE.time, on_secrets=scrubber.add)
    assert await Server().ask(session) == "Bearer access-new-1"
    hidden = scrubber.text("access-new-1 refresh-new-1 another-secret")
    assert hidden == " ".join([REDACTED] * 3)
    assert scrubber.json(b'{"a":"access-new-1"}') == orjson.dumps({"a": REDACTED})


@pytest.mark.parametrize("error", [OSError("no space"), KeyboardInterrupt()])
async def test_no_part_of_a_token_file_is_left(
    folder: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    before = contents(folder)
    synced: list[int] = []

    def sync(fd: int) -> None:
        synced.append(os.fstat(fd).st_size)
        raise error

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(type(error)):
        await TokenFile(folder, URL, MACHINE.time).set_tokens(OAuthToken.model_validate(tokens("two")))
    assert contents(folder) == before
    assert len(synced) == 1
    assert synced[0] > 0
