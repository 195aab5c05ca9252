"""How bytes come and go: standard streams, and a local socket. Writing never waits; what the other side does not take
stays here, and whoever writes can see how much that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES: Final = 256 * 1024
# A pipe that polls as writable takes this much without waiting, whatever its mode (PIPE_BUF of Linux and the BSDs).
_ATOMIC_BYTES: Final = 4096 if sys.platform == "linux" else 512
WINDOWS: Final = sys.platform == "win32"


class Receiver(Protocol):
    """Whoever takes what the other side says."""

    def received(self, data: bytes) -> None:
        """The next bytes."""
        ...

    def ended(self) -> None:
        """The other side is gone, or has nothing more to say. Called once."""
        ...


class Channel(Protocol):
    """One client. Used on the event loop."""

    @property
    def waiting_bytes(self) -> int:
        """What was written and not taken yet."""
        ...

    def write(self, data: bytes) -> None:
        """Hand over `data`, at once as far as the other side takes it. What comes after the end is dropped."""
        ...

    async def drained(self) -> None:
        """Until the other side has taken all, or is gone."""
        ...

    def pause_reading(self, *, paused: bool) -> None:
        """Leave further bytes where they are, or take them again."""
        ...

    def close(self) -> None:
        """Let go of the client; what it has not taken is dropped."""
        ...


class StreamChannel:
    """A client on two descriptors, such as the standard streams.

    Pipes and sockets are watched by the event loop and keep their modes; what it cannot watch (files, and anything on
    Windows) has threads. So has writing to a terminal: one that polls as writable may have room for a few bytes only,
    and then keeps whoever writes more.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._reader: _PolledReader | _ThreadedReader | None = None
        writer = _PolledWriter if _can_be_watched(write_fd) and not os.isatty(write_fd) else _ThreadedWriter
        self._writer: _PolledWriter | _ThreadedWriter = writer(write_fd, self._end)
        self._receiver: Receiver | None = None

    def start(self, receiver: Receiver) -> None:
        """Begin to read."""
        self._receiver = receiver
        kind = _PolledReader if _can_be_watched(self._read_fd) else _ThreadedReader
        self._reader = kind(self._read_fd, receiver.received, self._end)
        self._reader.pause(paused=False)

    @property
    def waiting_bytes(self) -> int:
        """See Channel."""
        return self._writer.waiting_bytes

    def write(self, data: bytes) -> None:
        """See Channel."""
        self._writer.write(data)

    async def drained(self) -> None:
        """See Channel."""
        await self._writer.drained()

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
            receiver.ended()


class SocketChannel(asyncio.Protocol):
    """A client on a socket or a named pipe: the event loop's own transport."""

    def __init__(self, accept: Callable[[SocketChannel], Receiver | None]) -> None:
        self._accept = accept
        self._receiver: Receiver | None = None
        self._transport: asyncio.Transport | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come; it stays when it is accepted."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a client's transport goes both ways")
        transport.set_write_buffer_limits(high=0)
        self._transport = transport
        self._receiver = self._accept(self)
        if self._receiver is None:
            transport.close()

    def data_received(self, data: bytes) -> None:
        """The client has spoken."""
        if self._receiver is not None:
            self._receiver.received(data)

    def eof_received(self) -> bool:
        """Nothing more will come; a client that closed only its own side still gets its answers."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.ended()
        return receiver is not None

    def pause_writing(self) -> None:
        """Something waits."""
        self._empty.clear()

    def resume_writing(self) -> None:
        """Nothing waits any more."""
        self._empty.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  the protocol's signature
        """The client is gone, however it went."""
        self._empty.set()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.ended()

    # Channel

    @property
    def waiting_bytes(self) -> int:
        """See Channel."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """See Channel."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drained(self) -> None:
        """See Channel."""
        await self._empty.wait()

    def pause_reading(self, *, paused: bool) -> None:
        """See Channel."""
        # Behind the end there is nothing to read, and it would be told again.
        if self._transport is not None and self._receiver is not None and not self._transport.is_closing():
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def close(self) -> None:
        """See Channel."""
        self._receiver = None
        if self._transport is not None:
            self._transport.abort() if self.waiting_bytes else self._transport.close()


def _can_be_watched(fd: int) -> bool:
    """Whether the event loop can tell when `fd` is ready: it cannot for files, and not on Windows."""
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


class _PolledReader:
    def __init__(self, fd: int, received: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._fd = fd
        self._received = received
        self._ended = ended
        self._over = False

    def pause(self, *, paused: bool) -> None:
        loop = asyncio.get_running_loop()
        if paused or self._over:
            loop.remove_reader(self._fd)
        else:
            loop.add_reader(self._fd, self._ready)

    def close(self) -> None:
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


class _ThreadedReader:
    def __init__(self, fd: int, received: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._fd = fd
        self._received = received
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._may_read = threading.Event()
        self._over = False
        threading.Thread(target=self._run, name="rpc-reader", daemon=True).start()

    def pause(self, *, paused: bool) -> None:
        if paused:
            self._may_read.clear()
        else:
            self._may_read.set()

    def close(self) -> None:
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
    """What both writers have: a count of what waits, and who waits for it to be gone."""

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self._empty = asyncio.Event()
        self._empty.set()

    async def drained(self) -> None:
        await self._empty.wait()

    def _add(self, length: int) -> None:
        self.waiting_bytes += length
        if self.waiting_bytes:
            self._empty.clear()
        else:
            self._empty.set()


class _PolledWriter(_Writer):
    """Writes as much as the descriptor takes without waiting. It is asked before each write and stays in blocking mode:
    the mode belongs to everybody who shares the pipe or the terminal."""

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
        if self._over or not data:
            return
        self._parts.append(memoryview(data))
        self._add(len(data))
        if not self._watching:
            self._ready()

    def close(self) -> None:
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


class _ThreadedWriter(_Writer):
    def __init__(self, fd: int, broken: Callable[[], None]) -> None:
        super().__init__()
        self._fd = fd
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._over = False
        threading.Thread(target=self._run, name="rpc-writer", daemon=True).start()

    def write(self, data: bytes) -> None:
        if not self._over and data:
            self._add(len(data))
            self._queue.put(data)

    def close(self) -> None:
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
            self._tell(self._written, len(data))

    def _tell(self, callback: Callable[..., None], *arguments: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _written(self, length: int) -> None:
        if not self._over:
            self._add(-length)

    def _fail(self) -> None:
        if not self._over:
            self.close()
            self._broken()
