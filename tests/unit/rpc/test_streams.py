"""Real descriptors of every kind: writing never waits, nothing is lost or turned around, and the end is told once."""

# ruff: noqa: ASYNC230  files of the test itself, while nothing else runs on the loop

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.rpc import channels
from agent_host.rpc.channels import StreamChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Kind = Callable[[], contextlib.AbstractContextManager[tuple[int, int]]]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="descriptors of POSIX")
Pair = tuple[int, int]
BIG = bytes(range(256)) * 8192  # 2 MiB


class Heard:
    """A Receiver."""

    def __init__(self) -> None:
        self.data = b""
        self.ends = 0
        self.over = asyncio.Event()

    def receive(self, data: bytes) -> None:
        self.data += data

    def end(self) -> None:
        self.ends += 1
        self.over.set()


@pytest.fixture(params=["watched", "threads"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to read and write: watched by the loop, and in threads as on Windows."""
    if request.param == "threads":
        monkeypatch.setattr(channels, "WINDOWS", True)
    return str(request.param)


@contextlib.contextmanager
def a_pipe() -> Iterator[Pair]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        close(*ends)


@contextlib.contextmanager
def a_socket_pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    ends = one.detach(), other.detach()
    try:
        yield ends
    finally:
        close(*ends)


@contextlib.contextmanager
def a_terminal() -> Iterator[Pair]:
    import tty

    master, slave = os.openpty()
    tty.setraw(slave)
    try:
        yield master, slave
    finally:
        close(master, slave)


def close(*fds: int) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


KINDS = pytest.mark.parametrize("kind", [a_pipe, a_socket_pair, a_terminal])


def read_all(fd: int, size: int) -> bytes:
    """In a thread of the test: `size` bytes, fewer where the end comes first."""
    data = b""
    while len(data) < size and (more := os.read(fd, 65536)):
        data += more
    return data


async def soon(awaitable: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await awaitable.wait()


@KINDS
async def test_a_reader_that_stops_holds_up_nothing(kind: Kind, way: str) -> None:
    """All that is written waits here, and goes out in order once somebody reads."""
    with kind() as (read_fd, write_fd), a_pipe() as (nothing, _keeps_it_open):
        channel = StreamChannel(nothing, write_fd)
        heard = Heard()
        channel.start(heard)
        turns = 0
        for start in range(0, len(BIG), 4096):
            channel.write(BIG[start : start + 4096])
            await asyncio.sleep(0)
            turns += 1
        assert turns == len(BIG) // 4096
        assert channel.waiting_bytes > 0
        reading = asyncio.create_task(asyncio.to_thread(read_all, read_fd, len(BIG)))
        async with asyncio.timeout(20):
            await channel.drain()
            assert await reading == BIG
        assert (channel.waiting_bytes, heard.ends) == (0, 0)
        channel.close()
        channel.write(b"dropped")
        assert channel.waiting_bytes == 0
        await channel.drain()
    del way


@KINDS
async def test_what_is_read(kind: Kind, way: str) -> None:
    with kind() as (ours, other), a_pipe() as (_, out):
        channel = StreamChannel(ours, out)
        heard = Heard()
        channel.start(heard)
        os.write(other, b"one\ntwo")
        close(other)
        await soon(heard.over)
        assert (heard.data, heard.ends) == (b"one\ntwo", 1)
        channel.close()
    del way


async def test_a_reader_that_is_gone_is_told_once(way: str) -> None:
    with a_pipe() as (read_fd, write_fd), a_pipe() as (nothing, _):
        channel = StreamChannel(nothing, write_fd)
        heard = Heard()
        channel.start(heard)
        os.close(read_fd)
        channel.write(b"x")
        channel.write(b"y")
        await soon(heard.over)
        channel.write(b"z")
        await channel.drain()
        assert (heard.ends, channel.waiting_bytes) == (1, 0)
        channel.close()
    del way


async def test_reading_can_be_paused() -> None:
    with a_pipe() as (read_fd, write_fd), a_pipe() as (_, out):
        channel = StreamChannel(read_fd, out)
        heard = Heard()
        channel.start(heard)
        channel.pause_reading(paused=True)
        os.write(write_fd, b"later")
        for _ in range(5):
            await asyncio.sleep(0)
        assert heard.data == b""
        channel.pause_reading(paused=False)
        os.close(write_fd)
        await soon(heard.over)
        assert heard.data == b"later"
        channel.close()


async def test_files(tmp_path: Path) -> None:
    """Which the event loop cannot watch."""
    (tmp_path / "in").write_bytes(BIG)
    with (tmp_path / "in").open("rb") as given, (tmp_path / "out").open("wb") as made:
        channel = StreamChannel(given.fileno(), made.fileno())
        heard = Heard()
        channel.write(b"before ")
        channel.start(heard)
        channel.write(b"after")
        await soon(heard.over)
        await channel.drain()
        channel.close()
    assert heard.data == BIG
    assert (tmp_path / "out").read_bytes() == b"before after"


async def test_the_null_device() -> None:
    with open(os.devnull, "rb") as given, open(os.devnull, "wb") as made:
        channel = StreamChannel(given.fileno(), made.fileno())
        heard = Heard()
        channel.start(heard)
        channel.write(BIG)
        await soon(heard.over)
        await channel.drain()
        assert (heard.data, heard.ends, channel.waiting_bytes) == (b"", 1, 0)
        channel.close()


async def test_modes_of_descriptors_are_left_alone() -> None:
    """They belong to everybody who shares the pipe."""
    with a_pipe() as (read_fd, write_fd):
        channel = StreamChannel(read_fd, write_fd)
        channel.start(Heard())
        channel.write(b"x")
        assert (os.get_blocking(read_fd), os.get_blocking(write_fd)) == (True, True)
        channel.close()
