"""What may be asked of a process's one session when, while openings and endings take their time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from agent_host.errors import OutOfOrder, SessionNotReady
from agent_host.services.session import NewSession
from agent_host.session.start import Opened, SessionHost
from agent_host.session.stored import StoredSessions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_host.session.lifecycle import LiveSession
    from agent_host.session.opening import ClientServer

NEW = NewSession("u", "t", "desktop")

NO_SESSIONS = StoredSessions("/nonexistent", snapshot_limit_bytes=1)


class Slow:
    """A session whose end waits for `gate`."""

    session_id = "s"
    desk = None
    has_ended = False

    def __init__(self) -> None:
        self.tasks = SimpleNamespace(busy=False)
        self.gate = asyncio.Event()
        self.ends: list[str] = []

    async def shut_down(self, reason: str) -> None:
        await self._end(reason)

    async def detach(self) -> None:
        await self._end("left")

    async def _end(self, how: str) -> None:
        self.has_ended = True
        self.ends.append(how)
        await self.gate.wait()
        self.ends.append("over")


class Opener:
    """Opens one, as soon as its gate is open."""

    def __init__(self) -> None:
        self.session = Slow()
        self.opened = Opened(cast("LiveSession", self.session), "compatible", {})
        self.gate = asyncio.Event()
        self.refreshed = 0

    async def create(self, new: NewSession) -> Opened:
        await self.gate.wait()
        return self.opened

    def use_servers(self, servers: Sequence[ClientServer]) -> None:
        """Not looked at here."""

    async def resume(self, session_id: str, *, cursor: str | None) -> Opened:
        await self.gate.wait()
        return self.opened

    async def refresh(self, session: LiveSession, *, cursor: str | None) -> Opened:
        await self.gate.wait()
        self.refreshed += 1
        return self.opened

    async def set_mode(self, session: LiveSession, changes: Mapping[str, str]) -> dict[str, str]:
        await self.gate.wait()
        return dict(changes)


async def begun() -> tuple[SessionHost, Opener]:
    """A host with a session."""
    opener = Opener()
    host = SessionHost(opener, lambda: NO_SESSIONS, lambda _: None)
    opener.gate.set()
    await host.create(NEW)
    opener.gate.clear()
    return host, opener


async def test_one_session_is_opened_at_a_time() -> None:
    opener = Opener()
    host = SessionHost(opener, lambda: NO_SESSIONS, lambda _: None)
    first = asyncio.ensure_future(host.create(NEW))
    await asyncio.sleep(0)
    for second in (host.create(NEW), host.resume("s", cursor=None)):
        with pytest.raises(OutOfOrder):
            await second
    opener.gate.set()
    assert (await first).session.session_id == "s"
    with pytest.raises(OutOfOrder):
        await host.create(NEW)


async def test_a_session_is_refreshed_by_one_request_at_a_time() -> None:
    host, opener = await begun()
    first = asyncio.ensure_future(host.resume("s", cursor=None))
    await asyncio.sleep(0)
    with pytest.raises(OutOfOrder):
        await host.resume("s", cursor=None)
    opener.gate.set()
    await first
    assert opener.refreshed == 1


async def test_there_is_one_end_and_everybody_waits_for_it() -> None:
    host, opener = await begun()
    ends = [asyncio.ensure_future(end) for end in (host.shutdown("enough"), host.shutdown("again"), host.detach())]
    await asyncio.sleep(0)
    with pytest.raises(SessionNotReady):
        host.running_session("s")
    assert not host.over.is_set()
    opener.session.gate.set()
    assert (await asyncio.gather(*ends))[:2] == ["s", "s"]
    assert opener.session.ends == ["enough", "over"]
    assert host.over.is_set()


async def test_an_end_goes_on_without_whoever_asked_for_it() -> None:
    host, opener = await begun()
    asking = asyncio.ensure_future(host.shutdown("enough"))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    leaving = asyncio.ensure_future(host.detach())
    await asyncio.sleep(0)
    assert not host.over.is_set()
    opener.session.gate.set()
    await leaving
    assert opener.session.ends == ["enough", "over"]


async def test_an_end_that_fails_is_the_end_all_the_same() -> None:
    host, opener = await begun()

    async def broken(reason: str) -> None:
        raise ZeroDivisionError(reason)

    opener.session.shut_down = broken  # type: ignore[method-assign]  # this one time
    with pytest.raises(ZeroDivisionError):
        await host.shutdown("enough")
    assert host.over.is_set()
    assert isinstance(host.failure, ZeroDivisionError)


async def test_a_shutdown_does_not_wait_for_a_session_that_does_not_come() -> None:
    host = SessionHost(Opener(), lambda: NO_SESSIONS, lambda _: None)
    first = asyncio.ensure_future(host.create(NEW))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        assert await host.shutdown("x") is None
        with pytest.raises(SessionNotReady, match="shut down before"):
            await first
    assert host.over.is_set()
    with pytest.raises(SessionNotReady, match="this process is ending"):
        await host.create(NEW)


async def test_whoever_asked_for_a_session_may_go_away() -> None:
    host = SessionHost(Opener(), lambda: NO_SESSIONS, lambda _: None)
    first = asyncio.ensure_future(host.create(NEW))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert host.session is None
