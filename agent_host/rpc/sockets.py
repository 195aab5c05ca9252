"""Local sockets: mode 0600 in a directory that is the user's alone; named pipes on Windows. Who comes is looked at, and
again with all that it sends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Protocol

from agent_host.errors import ErrorCode, PolicyDenied, UsageError
from agent_host.rpc.framing import Framing
from agent_host.rpc.messages import RpcError, encode_fault
from state.locations import make_private_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from agent_host.rpc.server import Receiver

_PIPES = "\\\\.\\pipe\\"
_MAX_PATH_BYTES = 104 if sys.platform == "darwin" else 107


class ClientCheck(Protocol):
    """The check of one client."""

    def refusal(self) -> str | None:
        """Why the client is refused now, None where it is not."""
        ...

    def close(self) -> None:
        """The client is gone."""
        ...


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

    # What the event loop calls

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
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.end()

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
        # Behind the end there is nothing to read, and it would be reported again.
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
    """A name for the socket at `path` that is short enough for the system: where its own is not, one by a link in a
    directory that is there for so long, and nobody else's. Raises OSError."""
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield path
        return
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
    """Make the directory, 0700, or see that nobody else can put something else in the socket's place."""
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
    """Take away the socket of a process that is no more."""
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
