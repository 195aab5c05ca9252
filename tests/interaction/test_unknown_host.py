"""A gateway whose host does not exist is said at once; a resolver that fails is waited for like the gateway."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.approval.gate import UnattendedGate
from agent_host.errors import UsageError
from agent_host.host.opening import SessionOpener
from agent_host.services.session import NewSession
from tests.support.person import resolved_options

if TYPE_CHECKING:
    from agent_host.session.start import Opened
    from tests.support.process import Host


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were looked up, none of which is found; `errno` of the failure is the first of `failing`."""
    names: list[str] = []

    def fail(host: str, *_: Any, **__: Any) -> None:
        names.append(host)
        number = socket.EAI_AGAIN if host.startswith("again.") else socket.EAI_NONAME
        raise socket.gaierror(number, "not found")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    return names


async def opened(host: Host, monkeypatch: pytest.MonkeyPatch, url: str, **env: str) -> Opened:
    for name, value in {**host.environment(), **env}.items():
        monkeypatch.setenv(name, value)
    start = resolved_options(url, "full", workspace=str(host.workspace), state_dir=str(host.state))
    opener = SessionOpener(start, gate=lambda _: UnattendedGate(frozenset()), watch=lambda _: [])
    found = await opener.create(NewSession("u", "t", "ci"))
    await found.session.detach()
    return found


@pytest.mark.parametrize("url", ["http://none.invalid:8080/v1", "https://token:secret@none.invalid/x"])
async def test_it_is_said_at_once_and_nothing_is_begun(
    host: Host, monkeypatch: pytest.MonkeyPatch, asked: list[str], url: str
) -> None:
    with pytest.raises(UsageError) as said:
        await opened(host, monkeypatch, url)
    assert "there is no host with the name none.invalid" in str(said.value)
    assert asked == ["none.invalid"]
    assert "secret" not in str(said.value)
    assert host.checkpoints() == []


async def test_a_resolver_that_cannot_say_begins_a_session(
    host: Host, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    await opened(host, monkeypatch, "http://again.invalid")
    assert asked == ["again.invalid"]
    assert host.checkpoints() != []


async def test_a_proxy_looks_the_name_up(host: Host, monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> None:
    await opened(host, monkeypatch, "http://none.invalid", http_proxy="http://127.0.0.1:9")
    assert asked == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://[::1]:9"])
async def test_an_address_is_not_looked_up(
    host: Host, monkeypatch: pytest.MonkeyPatch, asked: list[str], url: str
) -> None:
    await opened(host, monkeypatch, url)
    assert asked == []


@pytest.mark.parametrize("name", [f"{'a' * 64}.invalid", "a..invalid"])
def test_a_name_that_no_host_can_have(host: Host, name: str) -> None:
    outcome = host.task(f"http://{name}:8080")
    assert outcome.code == 2
    assert "there is no host with the name" in outcome.error
    assert host.checkpoints() == []
