"""Where a socket may be, who may reach it, and how a client's connection ends."""

# ruff: noqa: ASYNC240  files of the test itself, while nothing else runs on the loop

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from agent_host.errors import UsageError
from agent_host.rpc.channels import listening
from tests.unit.rpc.test_streams import BIG, Heard, soon

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.rpc.channels import SocketChannel
    from agent_host.rpc.server import Receiver

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a named pipe there")


class Check:
    """Admits everybody, unless it is told why not."""

    why: ClassVar[str | None] = None
    closed: ClassVar[int] = 0

    def __init__(self, connection: object) -> None:
        assert connection is not None

    def refusal(self) -> str | None:
        return self.why

    def close(self) -> None:
        type(self).closed += 1


class Door:
    """Lets everybody in, or nobody."""

    def __init__(self, *, shut: bool = False) -> None:
        self._shut = shut
        self.channels: list[SocketChannel] = []
        self.heard: list[Heard] = []

    def __call__(self, channel: SocketChannel) -> Receiver | None:
        if self._shut:
            channel.write(b"no\n")
            return None
        self.channels.append(channel)
        self.heard.append(Heard())
        return self.heard[-1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "s"


async def problem(path: Path | str) -> str:
    with pytest.raises(UsageError) as found:
        async with listening(os.fspath(path), Door(), Check):
            raise AssertionError("it listens")
    return str(found.value)


async def test_who_finds_it_before_it_is_served_is_not_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    serve = loop.create_unix_server

    async def knocked_at_first(*args: Any, **kwargs: Any) -> asyncio.Server:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        return await serve(*args, **kwargs)

    monkeypatch.setattr(loop, "create_unix_server", knocked_at_first)
    async with listening(str(path), Door(), Check):
        assert os.listdir(path.parent) == [path.name]


async def test_only_the_user_can_reach_it(path: Path) -> None:
    before = os.umask(0)
    try:
        async with listening(str(path), Door(), Check):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(before)
    assert not path.exists()


async def test_a_socket_that_nobody_listens_at_is_taken_away(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as former:
        former.bind(str(path))
    door = Door()
    async with listening(str(path), door, Check), asyncio.timeout(10):
        reader, writer = await asyncio.open_unix_connection(path)
        while not door.channels:  # noqa: ASYNC110  bounded by the time-out around it
            await asyncio.sleep(0)
        door.channels[0].close()
        assert await reader.read() == b""
        writer.close()
    assert not path.exists()


async def test_a_path_that_is_in_use(path: Path) -> None:
    async with listening(str(path), Door(), Check):
        assert "another process listens there" in await problem(path)
        assert path.exists()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
async def test_a_path_where_something_else_is(path: Path, kind: str) -> None:
    path.parent.mkdir(mode=0o700)
    if kind == "file":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("elsewhere")
    assert "something else at this path" in await problem(path)
    assert path.is_symlink() or path.exists()


async def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    assert "at most" in await problem(tmp_path / ("é" * 60))


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702, 0o1777])
async def test_a_directory_that_others_can_change(path: Path, mode: int) -> None:
    path.parent.mkdir()
    path.parent.chmod(mode)
    assert "others can change what is in" in await problem(path)


async def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--socket" in await problem(tmp_path / "file" / "s")


async def test_what_took_its_place_is_left_alone(path: Path) -> None:
    async with listening(str(path), Door(), Check):
        path.unlink()
        path.write_text("somebody else's")
    assert path.read_text() == "somebody else's"


# Clients


async def test_a_client_that_is_refused_is_told_why(path: Path) -> None:
    async with listening(str(path), Door(shut=True), Check), asyncio.timeout(10):
        reader, writer = await asyncio.open_unix_connection(path)
        assert await reader.read() == b"no\n"
        writer.close()


async def test_a_client_that_does_not_read_holds_up_nothing(path: Path) -> None:
    door = Door()
    async with listening(str(path), door, Check), asyncio.timeout(20):
        reader, writer = await asyncio.open_unix_connection(path, limit=1024)
        writer.write(b"hello")
        while not (door.heard and door.heard[0].data):  # noqa: ASYNC110  bounded by the time-out around it
            await asyncio.sleep(0)
        (channel,) = door.channels
        channel.write(BIG)
        assert channel.waiting_bytes > 0
        assert await reader.readexactly(len(BIG)) == BIG
        await channel.drain()
        assert (channel.waiting_bytes, door.heard[0].data) == (0, b"hello")
        channel.close()
        assert await reader.read() == b""
        writer.close()


async def test_a_client_that_closes_only_its_own_side_is_still_told(path: Path) -> None:
    door = Door()
    async with listening(str(path), door, Check), asyncio.timeout(10):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"last")
        writer.write_eof()
        while not door.heard:  # noqa: ASYNC110  bounded by the time-out around it
            await asyncio.sleep(0)
        (heard,), (channel,) = door.heard, door.channels
        await soon(heard.over)
        channel.pause_reading(paused=True)
        channel.pause_reading(paused=False)
        channel.write(b"answer")
        channel.close()
        assert await reader.read() == b"answer"
        assert (heard.data, heard.ends) == (b"last", 1)
        writer.close()


async def test_a_client_that_is_gone(path: Path) -> None:
    door = Door()
    async with listening(str(path), door, Check), asyncio.timeout(10):
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(b"x")
        await writer.drain()
        writer.close()
        while not door.heard:  # noqa: ASYNC110  bounded by the time-out around it
            await asyncio.sleep(0)
        await soon(door.heard[0].over)
        door.channels[0].write(BIG)
        door.channels[0].write(BIG)
        await door.channels[0].drain()
        door.channels[0].close()
        assert door.heard[0].ends == 1
