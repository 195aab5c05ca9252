"""The channels of clients: two descriptors, such as the standard streams, and local sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import stat
import sys
import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol

from agent_host.errors import ErrorCode, PolicyDenied, UsageError
from agent_host.rpc.messages import Framing, RpcError, encode_fault
from state import make_private_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from agent_host.rpc.server import Receiver


class StreamChannel:
    """A client on two descriptors, such as the standard streams.

    Pipes and sockets are watched by the event loop and keep their modes; threads serve what it cannot watch (files, and
    anything on Windows). They also write to terminals: a terminal that polls as writable may have room for a few bytes
    only, and then blocks the writer.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._reader: _PolledReader | _ThreadedReader | None = None
        writer = _PolledWriter if can_be_watched(write_fd) and not os.isatty(write_fd) else _ThreadedWriter
        self._writer: _PolledWriter | _ThreadedWriter = writer(write_fd, self._end)
        self._receiver: Receiver | None = None

    def start(self, receiver: Receiver) -> None:
        """Begin to read."""
        self._receiver = receiver
        kind = _PolledReader if can_be_watched(self._read_fd) else _ThreadedReader
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


# Reading and writing descriptors without blocking: watched by the event loop if it can report when they are ready, else
# in a thread.

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
        loop.add_reader(fd, int)  # only tried
    except (PermissionError, ValueError):
        return False
    loop.remove_reader(fd)
    return True


class _Reader:
    """Reader that passes on bytes as they arrive; calls `ended` once, at the end of the stream. Starts paused."""

    def __init__(self, fd: int, received: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._fd = fd
        self._received = received
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._over = False

    def close(self) -> None:
        self._over = True

    def _take(self, data: bytes) -> None:
        if self._over:
            return
        if data:
            self._received(data)
        else:
            self.close()
            self._ended()


class _PolledReader(_Reader):
    def pause(self, *, paused: bool) -> None:
        if paused or self._over:
            self._loop.remove_reader(self._fd)
        else:
            self._loop.add_reader(self._fd, self._ready)

    def close(self) -> None:
        super().close()
        self._loop.remove_reader(self._fd)

    def _ready(self) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # a terminal that was hung up
            data = b""
        self._take(data)


class _ThreadedReader(_Reader):
    """For what the event loop cannot watch."""

    def __init__(self, fd: int, received: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        super().__init__(fd, received, ended)
        self._may_read = threading.Event()
        threading.Thread(target=self._run, name="rpc-reader", daemon=True).start()

    def pause(self, *, paused: bool) -> None:
        if paused:
            self._may_read.clear()
        else:
            self._may_read.set()

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


class _Writer:
    """Non-blocking writer. Calls `broken` when the reader is gone; data after the end is dropped."""

    def __init__(self, fd: int, broken: Callable[[], None]) -> None:
        self._fd = fd
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._over = False
        self.waiting_bytes = 0
        self._empty = asyncio.Event()
        self._empty.set()

    async def drain(self) -> None:
        await self._empty.wait()

    def close(self) -> None:
        self._over = True
        self._add(-self.waiting_bytes)

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
        super().__init__(fd, broken)
        self._parts: deque[memoryview] = deque()
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._watching = False

    def write(self, data: bytes) -> None:
        if self._over or not data:
            return
        self._parts.append(memoryview(data))
        self._add(len(data))
        if not self._watching:
            self._ready()

    def close(self) -> None:
        super().close()
        self._parts.clear()
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
        except OSError:  # the reader is gone
            self.close()
            self._broken()
            return
        self._watch(on=bool(self._parts))

    def _watch(self, *, on: bool) -> None:
        if on != self._watching:
            self._watching = on
            if on:
                self._loop.add_writer(self._fd, self._ready)
            else:
                self._loop.remove_writer(self._fd)


class _ThreadedWriter(_Writer):
    """For what the event loop cannot watch."""

    def __init__(self, fd: int, broken: Callable[[], None]) -> None:
        super().__init__(fd, broken)
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        threading.Thread(target=self._run, name="rpc-writer", daemon=True).start()

    def write(self, data: bytes) -> None:
        if not self._over and data:
            self._add(len(data))
            self._queue.put(data)

    def close(self) -> None:
        super().close()
        self._queue.put(None)

    def _run(self) -> None:
        while (data := self._queue.get()) is not None:
            try:
                written = 0
                while written < len(data):
                    written += os.write(self._fd, data[written:] if written else data)
            except OSError:
                self._call_in_loop(self._fail)
                return
            self._call_in_loop(self._on_written, len(data))

    def _call_in_loop(self, callback: Callable[..., None], *arguments: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _on_written(self, length: int) -> None:
        if not self._over:
            self._add(-length)

    def _fail(self) -> None:
        if not self._over:
            self.close()
            self._broken()


# Local sockets: mode 0600 in a directory that only the user can access; named pipes on Windows. A peer is checked when
# it connects, and again with everything that it sends.

_PIPES = "\\\\.\\pipe\\"
_MAX_PATH_BYTES = 104 if sys.platform == "darwin" else 107


class ClientCheck(Protocol):
    """The check of one client."""

    def refusal(self) -> str | None:
        """The reason to refuse the client now; None if there is none."""

    def close(self) -> None:
        """The client is gone."""


class SocketChannel(asyncio.Protocol):
    """A client on a socket or a named pipe: the event loop's own transport. `check` makes the check of a connection; it
    is made when the client comes and before anything of it is read."""

    def __init__(self, accept: Callable[[SocketChannel], Receiver | None], check: Callable[[Any], ClientCheck]) -> None:
        self._accept = accept
        self._make_check = check
        self._check: ClientCheck | None = None
        self._receiver: Receiver | None = None
        self._transport: asyncio.Transport | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come; it stays when it is accepted."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a client's transport goes both ways")
        transport.set_write_buffer_limits(high=0)
        self._transport = transport
        self._check = self._make_check(transport.get_extra_info("socket") or transport.get_extra_info("pipe"))
        self._receiver = self._accept(self) if self._is_admitted() else None
        if self._receiver is None:
            transport.close()

    def data_received(self, data: bytes) -> None:
        """The client has spoken."""
        if self._receiver is None:
            return
        if self._is_admitted():
            self._receiver.receive(data)
        elif self._transport is not None:
            self._transport.close()

    def _is_admitted(self) -> bool:
        """True for a client that is not refused; one that is gets an error."""
        problem = None if self._check is None else self._check.refusal()
        if problem is not None:
            fault = RpcError(PolicyDenied.rpc_code, f"refused: {problem}", ErrorCode.CAPABILITY_DENIED)
            self.write(Framing().wrap(encode_fault(b"null", fault)))
        return problem is None

    def eof_received(self) -> bool:
        """Nothing more will come; a client that closed only its own side still gets its answers."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.end()
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
        check, self._check = self._check, None
        if check is not None:
            check.close()
        self.eof_received()

    # Channel

    @property
    def waiting_bytes(self) -> int:
        """See Channel."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """See Channel."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        """See Channel."""
        await self._empty.wait()

    def pause_reading(self, *, paused: bool) -> None:
        """See Channel."""
        # After the end there is nothing to read, and the end would be reported again.
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


@contextlib.asynccontextmanager
async def listening(
    path: str,
    accept: Callable[[SocketChannel], Receiver | None],
    check: Callable[[Any], ClientCheck],
    *,
    option: str = "--socket",
    long: bool = False,
) -> AsyncIterator[None]:
    """Listen at `path` for as long. Raises UsageError, which names the `option`, for a path that cannot be used; with
    `long` it may be longer than the system has it, and clients take its `short_name`, too."""
    if sys.platform == "win32":
        pipe = path if path.startswith(_PIPES) else _PIPES + path
        loop: Any = asyncio.get_running_loop()
        (server,) = await loop.start_serving_pipe(lambda: SocketChannel(accept, check), pipe)
        try:
            yield
        finally:
            server.close()
        return
    with short_name(path) if long else contextlib.nullcontext(path) as name:
        bound = _bind(name, option)
    made = os.stat(path)
    server = await asyncio.get_running_loop().create_unix_server(lambda: SocketChannel(accept, check), sock=bound)
    try:
        yield
    finally:
        server.close()
        _remove(path, made)


@contextlib.contextmanager
def short_name(path: str) -> Iterator[str]:
    """A name for the socket at `path` that is short enough for the system: if its own is too long, a name through a
    link in a temporary private directory. Raises OSError."""
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield path
        return
    import tempfile  # with it comes a lot, and hardly a name is too long

    with tempfile.TemporaryDirectory(prefix="ah", dir="/tmp") as directory:
        link = os.path.join(directory, "d")
        os.symlink(os.path.dirname(path), link)
        yield os.path.join(link, os.path.basename(path))


def _bind(path: str, option: str) -> socket.socket:
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise UsageError(f"{option} {path}: a socket's path has at most {_MAX_PATH_BYTES} bytes")
    try:
        _check_directory(os.path.dirname(path), option)
        _clear_stale(path, option)
        bound = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            _appear(bound, path)
        finally:
            os.umask(before)
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror or error}") from error
    return bound


def _appear(bound: socket.socket, path: str) -> None:
    """Binds and listens before the socket gets its name: who finds it there is not refused, nor takes it for stale."""
    unnamed = os.path.join(os.path.dirname(path), f".{os.getpid()}")
    if len(os.fsencode(unnamed)) > _MAX_PATH_BYTES:
        unnamed = path
    bound.bind(unnamed)
    bound.listen()
    if unnamed != path:
        os.rename(unnamed, path)


def _check_directory(directory: str, option: str) -> None:
    """Make the directory, 0700, or check that no other user can replace the socket."""
    if not os.path.isdir(directory):
        make_private_dir(directory)
        return
    found = os.stat(directory)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise UsageError(
            f"{option}: others can change what is in {directory}; give a path in a directory that is yours alone, or "
            "in one that is not there yet"
        )


def _clear_stale(path: str, option: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise UsageError(f"{option} {path}: there is something else at this path")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise UsageError(f"{option} {path}: another process listens there")


def _remove(path: str, made: os.stat_result) -> None:
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        if (found.st_dev, found.st_ino) == (made.st_dev, made.st_ino):
            os.unlink(path)
