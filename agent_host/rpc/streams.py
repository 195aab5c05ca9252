"""A client on two descriptors, such as the standard streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent_host.rpc.server import Receiver


class StreamChannel:
    """A client on two descriptors, such as the standard streams.

    Pipes and sockets are watched by the event loop and keep their modes; what it cannot watch (files, and anything on
    Windows) has threads. So has writing to a terminal: one that polls as writable may have room for a few bytes only,
    and then keeps the writer waiting.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._reader: PolledReader | ThreadedReader | None = None
        writer = PolledWriter if can_be_watched(write_fd) and not os.isatty(write_fd) else ThreadedWriter
        self._writer: PolledWriter | ThreadedWriter = writer(write_fd, self._end)
        self._receiver: Receiver | None = None

    def start(self, receiver: Receiver) -> None:
        """Begin to read."""
        self._receiver = receiver
        kind = PolledReader if can_be_watched(self._read_fd) else ThreadedReader
        self._reader = kind(self._read_fd, receiver.receive, self._end)
        self._reader.pause(paused=False)

    @property
    def waiting_bytes(self) -> int:
        """See Channel."""
        return self._writer.waiting_bytes

    def write(self, data: bytes) -> None:
        """See Channel."""
        self._writer.write(data)

    async def drain(self) -> None:
        """See Channel."""
        await self._writer.drain()

    def pause_reading(self, *, paused: bool) -> None:
        """See Channel."""
        if self._reader is not None:
            self._reader.pause(paused=paused)

    def close(self) -> None:
        """See Channel."""
        self._receiver = None
        if self._reader is not None:
            self._reader.close()
        self._writer.close()

    def _end(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.end()


# Reading and writing descriptors without waiting for the other side: watched by the event loop where it shows when
# they are ready, else in a thread.

_READ_BYTES: Final = 256 * 1024
# A pipe that polls as writable takes this much without waiting, whatever its mode (PIPE_BUF of Linux and the BSDs).
_ATOMIC_BYTES: Final = 4096 if sys.platform == "linux" else 512
WINDOWS: Final = sys.platform == "win32"


def can_be_watched(fd: int) -> bool:
    """True if the event loop can find out when `fd` is ready: it cannot for files, and not on Windows."""
    if WINDOWS:
        return False
    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(fd, _nothing)
    except (PermissionError, ValueError):
        return False
    loop.remove_reader(fd)
    return True


def _nothing() -> None:
    """A callback for a descriptor that is only tried."""


class PolledReader:
    """Hands over what can be read as it comes; `ended` is called once, at the end of the stream. Begins paused."""

    def __init__(self, fd: int, received: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._fd = fd
        self._received = received
        self._ended = ended
        self._over = False

    def pause(self, *, paused: bool) -> None:
        """Leave what comes where it is, or take it (again)."""
        loop = asyncio.get_running_loop()
        if paused or self._over:
            loop.remove_reader(self._fd)
        else:
            loop.add_reader(self._fd, self._ready)

    def close(self) -> None:
        """Read no more; `ended` is not called."""
        self._over = True
        asyncio.get_running_loop().remove_reader(self._fd)

    def _ready(self) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # a terminal that was hung up
            data = b""
        if data:
            self._received(data)
            return
        self.close()
        self._ended()


class ThreadedReader:
    """As PolledReader, for what the event loop cannot watch."""

    def __init__(self, fd: int, received: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._fd = fd
        self._received = received
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._may_read = threading.Event()
        self._over = False
        threading.Thread(target=self._run, name="rpc-reader", daemon=True).start()

    def pause(self, *, paused: bool) -> None:
        """Leave what comes where it is, or take it (again)."""
        if paused:
            self._may_read.clear()
        else:
            self._may_read.set()

    def close(self) -> None:
        """Read no more; `ended` is not called."""
        self._over = True

    def _run(self) -> None:
        data = b"-"
        while data:
            self._may_read.wait()
            try:
                data = os.read(self._fd, _READ_BYTES)
            except OSError:
                data = b""
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._take, data)

    def _take(self, data: bytes) -> None:
        if self._over:
            return
        if data:
            self._received(data)
        else:
            self._ended()


class _Writer:
    """The common part of both writers: a count of what waits, and who waits for it to be gone."""

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self._empty = asyncio.Event()
        self._empty.set()

    async def drain(self) -> None:
        """Until nothing waits."""
        await self._empty.wait()

    def _add(self, length: int) -> None:
        self.waiting_bytes += length
        if self.waiting_bytes:
            self._empty.clear()
        else:
            self._empty.set()


class PolledWriter(_Writer):
    """Writes as much as the descriptor takes without waiting. It is asked before each write and stays in blocking mode:
    the mode belongs to everybody who shares the pipe or the terminal. `broken` is called when nobody reads any more."""

    def __init__(self, fd: int, broken: Callable[[], None]) -> None:
        super().__init__()
        self._fd = fd
        self._broken = broken
        self._parts: deque[memoryview] = deque()
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._watching = False
        self._over = False

    def write(self, data: bytes) -> None:
        """Write as much as goes now, and the rest when it does. What comes after the end is dropped."""
        if self._over or not data:
            return
        self._parts.append(memoryview(data))
        self._add(len(data))
        if not self._watching:
            self._ready()

    def close(self) -> None:
        """Write no more; what waits is dropped."""
        self._over = True
        self._parts.clear()
        self._add(-self.waiting_bytes)
        self._watch(on=False)

    def _ready(self) -> None:
        try:
            while self._parts and self._poll.poll(0):
                part = self._parts[0]
                written = os.write(self._fd, part[:_ATOMIC_BYTES])
                self._add(-written)
                if written == len(part):
                    self._parts.popleft()
                else:
                    self._parts[0] = part[written:]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # nobody reads any more
            self.close()
            self._broken()
            return
        self._watch(on=bool(self._parts))

    def _watch(self, *, on: bool) -> None:
        if on != self._watching:
            self._watching = on
            loop = asyncio.get_running_loop()
            if on:
                loop.add_writer(self._fd, self._ready)
            else:
                loop.remove_writer(self._fd)


class ThreadedWriter(_Writer):
    """As PolledWriter, for what the event loop cannot watch."""

    def __init__(self, fd: int, broken: Callable[[], None]) -> None:
        super().__init__()
        self._fd = fd
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._over = False
        threading.Thread(target=self._run, name="rpc-writer", daemon=True).start()

    def write(self, data: bytes) -> None:
        """Have it written. What comes after the end is dropped."""
        if not self._over and data:
            self._add(len(data))
            self._queue.put(data)

    def close(self) -> None:
        """Write no more; what waits is dropped."""
        self._over = True
        self._add(-self.waiting_bytes)
        self._queue.put(None)

    def _run(self) -> None:
        while (data := self._queue.get()) is not None:
            try:
                written = 0
                while written < len(data):
                    written += os.write(self._fd, data[written:] if written else data)
            except OSError:
                self._tell(self._fail)
                return
            self._tell(self._on_written, len(data))

    def _tell(self, callback: Callable[..., None], *arguments: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _on_written(self, length: int) -> None:
        if not self._over:
            self._add(-length)

    def _fail(self) -> None:
        if not self._over:
            self.close()
            self._broken()
